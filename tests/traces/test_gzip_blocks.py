"""Files that may be gzip, in blocks: whole, of several members, cut off, damaged, padded, and bombs."""

from __future__ import annotations

import gzip
import io
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.traces.gzip_blocks import FREE_BYTES, ExpansionError, unpacked_blocks


@given(st.lists(st.binary(max_size=3000), min_size=1, max_size=4), st.integers(1, 4000), st.integers(1, 4000))
def test_the_blocks_are_the_contents_plain_or_packed(parts: list[bytes], block: int, packed: int) -> None:
    data = b"".join(parts)
    members = b"".join(map(gzip.compress, parts))
    for stored in (b"{" + data, members, members + bytes(20)):
        blocks = list(unpacked_blocks(io.BytesIO(stored), block, packed))
        assert b"".join(blocks) == (stored if stored[:1] == b"{" else data)
        assert all(0 < len(each) <= block for each in blocks)


@pytest.mark.parametrize("change", ["cut off", "damaged"])
def test_what_is_readable_comes_before_the_error(change: str) -> None:
    data = os.urandom(1 << 16)
    stored = bytearray(gzip.compress(data))
    if change == "cut off":
        del stored[-1000:]
    else:
        stored[-6] ^= 1  # of the checksum
    blocks = []
    with pytest.raises(EOFError, match=change):
        blocks.extend(unpacked_blocks(io.BytesIO(stored), 4096))
    found = b"".join(blocks)
    assert data.startswith(found)
    assert len(found) > (1 << 16) - 8192


def test_a_bomb_stops_before_it_fills_the_memory() -> None:
    sizes: list[int] = []
    bomb = io.BytesIO(gzip.compress(bytes(FREE_BYTES * 2)))
    with pytest.raises(ExpansionError, match="more than 200 times its size"):
        sizes.extend(map(len, unpacked_blocks(bomb, 1 << 20)))
    assert sum(sizes) <= FREE_BYTES
