"""Bytes that fill a staged file: incompressible, repeatable, different everywhere; and its pages in the page cache."""

from __future__ import annotations

import lzma
import mmap
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.replay.target import page_cache
from dxt_replay.replay.target.content import BLOCK_BYTES, Content, make_noise
from dxt_replay.replay.target.page_cache import DropResult, Residency, drop, resident


@dataclass(frozen=True)
class HeldReader:
    """A `Reader` of bytes in memory."""

    data: bytes

    @property
    def size(self):
        return len(self.data)

    def read_into(self, into, offset):
        found = self.data[offset : offset + len(into)]
        into[: len(found)] = found
        return len(found)

    def data_from(self, offset):
        return next((at for at in range(offset, self.size) if self.data[at]), self.size)


record_ids = st.integers(0, 2**64 - 1)


def noise(record_id, block, size=4096):
    words = np.empty(size // 8, dtype=np.uint64)
    make_noise(record_id, block, words)
    return words.tobytes()


def filled(record_id, size):
    return b"".join(map(bytes, Content(record_id=record_id, size=size).blocks()))


def test_it_does_not_compress_within_a_file_nor_across_files():
    both = b"".join(filled(record_id, BLOCK_BYTES + 4321) for record_id in (1, 2))
    assert len(lzma.compress(both, preset=1)) >= len(both)
    values = np.bincount(np.frombuffer(both, dtype=np.uint8), minlength=256) / len(both)
    assert np.all(np.abs(values - 1 / 256) < 0.0007)


@given(record_ids, st.integers(0, 1 << 30), record_ids, st.integers(0, 1 << 30))
def test_blocks_differ_between_files_and_places_and_a_short_one_is_the_start_of_a_long_one(one, block, other, at):
    assert (noise(one, block) == noise(other, at)) == ((one, block) == (other, at))
    assert noise(one, block).startswith(noise(one, block, 8 * 33))


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


PAGE = mmap.PAGESIZE


def make(path, size):
    path.write_bytes(os.urandom(size))
    return os.fsencode(path)


@pytest.fixture
def on_disk(tmp_path):
    """A directory on a file system that gives pages up."""
    probe = make(tmp_path / "probe", 10 * PAGE)
    result = drop([probe])
    if result.kept:
        pytest.skip(f"the temporary directory is on {next(iter(result.kept))}, which keeps its pages")
    return tmp_path


def test_files_are_resident_to_the_last_byte_until_they_are_dropped(on_disk):
    paths = [make(on_disk / "a", 100 * PAGE + 7), make(on_disk / "b", 5), make(on_disk / "empty", 0)]
    assert resident(paths) == Residency(resident_bytes=100 * PAGE + 12, total_bytes=100 * PAGE + 12)
    assert resident(paths).percent == 100.0
    assert drop(iter(paths)) == DropResult()
    (on_disk / "hole").touch()
    os.truncate(on_disk / "hole", 3 << 30)
    paths.append(os.fsencode(on_disk / "hole"))
    for _ in range(2):  # asking loads nothing
        assert resident(paths) == Residency(resident_bytes=0, total_bytes=(3 << 30) + 100 * PAGE + 12)


@pytest.mark.parametrize("window_pages", [1, 3, 1000])
def test_a_part_that_was_read_is_counted_in_any_window(window_pages, on_disk, monkeypatch):
    path = make(on_disk / "a", 20 * PAGE + 100)
    drop([path])
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)  # no read-ahead
    os.pread(fd, 10, 7 * PAGE)
    os.pread(fd, 100, 20 * PAGE)
    os.close(fd)
    monkeypatch.setattr(page_cache, "WINDOW_BYTES", window_pages * PAGE)
    assert resident([path]) == Residency(resident_bytes=PAGE + 100, total_bytes=20 * PAGE + 100)


def test_what_is_no_file_is_skipped_and_named(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    paths = [os.fsencode(tmp_path / "none"), os.fsencode(tmp_path / "fifo"), os.fsencode(tmp_path), b"a\0b", b""]
    before = os.listdir("/proc/self/fd")
    result = drop(paths)
    assert (result.skipped["No such file or directory"], result.skipped["not a plain file"]) == (2, 2)
    assert result.skipped.total() == 5
    assert "the pages of 2 files could not be dropped: not a plain file" in result.warnings
    assert resident(paths) == Residency(resident_bytes=0, total_bytes=0)
    assert resident(paths).percent is None
    assert os.listdir("/proc/self/fd") == before


def test_a_file_system_in_memory_says_that_it_cannot_drop():
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        pytest.skip("no /dev/shm to write to")
    path = memory / f"dxt-replay-test-{os.getpid()}"
    try:
        name = make(path, 2 * PAGE)
        result = drop([name])
        assert dict(result.kept) == {"tmpfs": 1}
        assert result.warnings == (
            "1 files are on tmpfs, which does not drop pages on request: their reads will not be cold",
        )
        assert resident([name]).percent == 100.0
    finally:
        path.unlink()


def test_files_the_kernel_does_not_tell_about_are_unknown(tmp_path, monkeypatch):
    """Since Linux 5.2 mincore says "all resident" to a user who neither owns a file nor may write it."""
    path = make(tmp_path / "a", 2 * PAGE)
    mine = make(tmp_path / "b", PAGE)
    monkeypatch.setattr(os, "geteuid", lambda: os.stat(path).st_uid + 1)
    monkeypatch.setattr(os, "access", lambda name, mode, effective_ids: name == mine)
    assert resident([path, mine]) == Residency(resident_bytes=PAGE, total_bytes=PAGE)
