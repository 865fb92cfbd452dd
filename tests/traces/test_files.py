"""Recorded paths: their bytes, those of recorders, those that were probably mapped, and packed files."""

from __future__ import annotations

import gzip
import io
import os

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.traces.files import exact_paths, is_recorder_file, probably_mapped
from dxt_replay.traces.gzip_blocks import FREE_BYTES, ExpansionError, unpacked_blocks
from tests.capture_builder import File, files_table


def test_the_exact_bytes_of_a_path() -> None:
    files = pa.table({"path": ["/a", "/\\xff", "/é"], "path_bytes": pa.array([None, b"/\xff", None], pa.binary())})
    assert exact_paths(files) == [b"/a", b"/\xff", "/é".encode()]
    assert exact_paths(files.slice(1, 1)) == [b"/\xff"]


@pytest.mark.parametrize(
    ("counters", "mapped"),
    [
        ({"posix_opens": 2, "posix_seeks": 3, "posix_reads": 0}, True),
        ({"posix_opens": 2, "posix_seeks": 3, "posix_reads": 1}, False),
        ({"posix_opens": 2, "posix_seeks": 0, "posix_reads": 0}, False),
        ({"posix_opens": 1, "posix_seeks": 1, "posix_writes": 4}, False),
        ({"posix_opens": 1, "posix_seeks": 1, "mpiio_reads": 4}, False),
        ({"stdio_opens": 1, "stdio_seeks": 1}, False),
        ({}, False),
    ],
)
def test_a_file_that_is_positioned_and_never_read_was_probably_mapped(counters: dict[str, int], mapped: bool) -> None:
    table = files_table([File("/data", counters=counters), File("<STDIN>", counters=counters)], [])
    assert probably_mapped(table).tolist() == [mapped, False]


@pytest.mark.parametrize(
    ("path", "recorder"),
    [
        ("/run/dxt-anchor.vm.18352.bin", True),
        ("/logs/plugins/profile/2026_11_20/vm.xplane.pb", True),
        ("/logs/plugins/profile/2026_11_20/vm.trace.json.gz", True),
        ("/logs/events.out.tfevents.1.vm.profile-empty", True),
        ("/prof/vm_17815.1795309101260993922.pt.trace.json.gz", True),
        ("/logs/u_python_id1-1_1-1-1-1_1.darshan_partial", True),
        ("/data/train.tfrecord", False),
        ("/data/anchor.bin", False),
        ("/data/annotations.json", False),
        ("/run/model.ckpt-1.data-00000-of-00001", False),
    ],
)
def test_who_wrote_a_file(path, recorder):
    assert is_recorder_file(path) is recorder


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
