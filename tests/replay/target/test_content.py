"""Bytes that fill a staged file: incompressible, repeatable, different everywhere."""

from __future__ import annotations

import lzma
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.replay.target.content import BLOCK_BYTES, PlainStager, make_noise, stager_of
from dxt_replay.traces.schema import FORMATS

record_ids = st.integers(0, 2**64 - 1)


def noise(record_id: int, block: int, size: int = 4096) -> bytes:
    words = np.empty(size // 8, dtype=np.uint64)
    make_noise(record_id, block, words)
    return words.tobytes()


def filled(path: Path, record_id: int, size: int) -> bytes:
    with open(path, "wb") as file:
        assert sum(PlainStager().fill(file.fileno(), record_id, size)) == size
    return path.read_bytes()


def test_it_does_not_compress_within_a_file_nor_across_files(tmp_path: Path) -> None:
    both = b"".join(filled(tmp_path / "a", record_id, 2 * BLOCK_BYTES + 4321) for record_id in (1, 2))
    assert len(lzma.compress(both, preset=1)) >= len(both)
    values = np.bincount(np.frombuffer(both, dtype=np.uint8), minlength=256) / len(both)
    assert np.all(np.abs(values - 1 / 256) < 0.0005)


def test_no_two_sectors_are_alike(tmp_path: Path) -> None:
    data = b"".join(filled(tmp_path / "a", record_id, 3 * BLOCK_BYTES) for record_id in (0, 1, 2**64 - 1))
    sectors = {data[begin : begin + 512] for begin in range(0, len(data), 512)}
    assert len(sectors) == len(data) // 512


@given(record_ids, st.integers(0, 1 << 30), record_ids, st.integers(0, 1 << 30))
def test_blocks_differ_between_files_and_places(one: int, block: int, other: int, at: int) -> None:
    assert (noise(one, block) == noise(other, at)) == ((one, block) == (other, at))


def test_a_short_block_is_the_start_of_the_long_one() -> None:
    assert noise(5, 6, BLOCK_BYTES).startswith(noise(5, 6, 8 * 33))


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, BLOCK_BYTES + 1])
def test_a_file_is_recognised_by_its_start(size: int, tmp_path: Path) -> None:
    stager = PlainStager()
    filled(tmp_path / "a", 17, size)
    with open(tmp_path / "a", "r+b") as file:
        assert stager.made(file.fileno(), 17, size)
        if size:
            assert not stager.made(file.fileno(), 18, size)
            first = file.read(1)
            file.seek(0)
            file.write(bytes([first[0] ^ 1]))
            file.flush()
            assert not stager.made(file.fileno(), 17, size)


def test_every_format_has_a_stager() -> None:
    assert all(stager_of(name).may_be_sparse in (True, False) for name in FORMATS)
