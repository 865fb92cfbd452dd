"""Bytes that fill a staged file: incompressible, repeatable, different everywhere."""

from __future__ import annotations

import lzma

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.replay.target.content import BLOCK_BYTES, Content, make_noise
from tests.replay.target.staging import HeldReader

record_ids = st.integers(0, 2**64 - 1)


def noise(record_id, block, size=4096):
    words = np.empty(size // 8, dtype=np.uint64)
    make_noise(record_id, block, words)
    return words.tobytes()


def filled(record_id, size):
    return b"".join(map(bytes, Content(record_id=record_id, size=size).blocks()))


def test_it_does_not_compress_within_a_file_nor_across_files():
    both = b"".join(filled(record_id, 2 * BLOCK_BYTES + 4321) for record_id in (1, 2))
    assert len(lzma.compress(both, preset=1)) >= len(both)
    values = np.bincount(np.frombuffer(both, dtype=np.uint8), minlength=256) / len(both)
    assert np.all(np.abs(values - 1 / 256) < 0.0005)


@given(record_ids, st.integers(0, 1 << 30), record_ids, st.integers(0, 1 << 30))
def test_blocks_differ_between_files_and_places(one, block, other, at):
    assert (noise(one, block) == noise(other, at)) == ((one, block) == (other, at))


def test_a_short_block_is_the_start_of_the_long_one():
    assert noise(5, 6, BLOCK_BYTES).startswith(noise(5, 6, 8 * 33))


@pytest.mark.parametrize("is_hole", [False, True])
@pytest.mark.parametrize("size", [0, 1, 4095, 4096, BLOCK_BYTES + 1, 2 * BLOCK_BYTES + 5])
def test_the_first_byte_that_differs_is_found(size, is_hole):
    content = Content(record_id=17, size=size, is_hole=is_hole)
    right = b"".join(map(bytes, content.blocks()))
    assert len(right) == size
    assert content.first_difference(HeldReader(right), 0, size) is None
    for offset in {0, size // 2, BLOCK_BYTES, size - 1} & set(range(size)):
        wrong = bytearray(right)
        wrong[offset] ^= 1
        wrong[-1] ^= 2
        found = content.first_difference(HeldReader(bytes(wrong)), 0, size)
        assert found is not None
        assert (found[0], found[1][:2], found[2][:2]) == (offset, f"{right[offset]:02x}", f"{wrong[offset]:02x}")
        if not is_hole:
            short = content.first_difference(HeldReader(right[:offset]), 0, size)
            assert short is not None
            assert (short[0], short[2]) == (offset, "the end of the file")
