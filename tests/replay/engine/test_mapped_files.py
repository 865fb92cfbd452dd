"""The back ends for mapped files and streams that share a descriptor: against mincore, inotify and the file itself."""

from __future__ import annotations

import ctypes
import errno
import functools
import mmap
import os
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from dxt_replay.replay.engine.clock import StartGate, StopFlag
from dxt_replay.replay.engine.files import FileSlot
from dxt_replay.replay.engine.issue import Files, Lane
from dxt_replay.replay.engine.items import CLOSE, OPEN, READ_AT, READ_NO_FURTHER, SEEK, WRITE_AT, LoopPace, loop_items

PAGE = 4096
IN_OPEN, IN_CLOSE_NOWRITE = 0x20, 0x10


def _results(path: Path, *items: tuple[int, int, int]) -> list[int]:
    """The results of items (kind, offset, length) on one file."""
    rows = loop_items(np.array([kind for kind, *_ in items]), 0, len(items))
    for row, (_, offset, length) in zip(rows, items, strict=True):
        row["_place"], row["_amount"] = offset, length
    return _run(Files([FileSlot(path=bytes(path), uses=len(items))], "mapped"), rows)


def _run(files: Files, rows: np.ndarray) -> list[int]:
    start = StartGate()
    start.open(time.monotonic_ns())
    lane = Lane(files, pace=LoopPace.NONE, start=start, stop=StopFlag())
    lane.submit(rows)
    lane.finish()
    lane.run()
    done = lane.collect()
    assert done is not None
    return [int(each) for each in done.result]


def _resident(path: Path) -> np.ndarray:
    """bool by page of the file: in the page cache."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as mapped:
        place = (ctypes.c_char * len(mapped)).from_buffer(mapped)
        found = (ctypes.c_ubyte * (len(mapped) // PAGE))()
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.mincore(ctypes.c_void_p(ctypes.addressof(place)), ctypes.c_size_t(len(mapped)), found) == 0
        del place
        return np.frombuffer(found, dtype=np.uint8) & 1 > 0


@pytest.mark.parametrize("advice", [-1, READ_NO_FURTHER])
def test_a_read_brings_its_pages_into_the_cache(tmp_path: Path, advice: int) -> None:
    path = tmp_path / "data"
    path.write_bytes(os.urandom(64 << 20))
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    before = _resident(path)
    assert _results(path, (OPEN, advice, 0), (READ_AT, 40 << 20, 5 * PAGE)) == [0, 5 * PAGE]
    first = (40 << 20) // PAGE
    after = _resident(path)
    assert after[first : first + 5].all()
    if not before.any():  # a file system in memory drops nothing
        assert not after.all()
        assert (after.sum() == 5) == (advice == READ_NO_FURTHER)


def test_results_are_those_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"x" * (2 * PAGE + 100))
    items = [(READ_AT, PAGE, PAGE), (READ_AT, PAGE, 9 * PAGE), (READ_AT, 9 * PAGE, PAGE), (WRITE_AT, 0, 1)]
    assert _results(path, *items) == [PAGE, PAGE + 100, 0, -errno.EROFS]
    again = [(OPEN, -1, 0), (CLOSE, -1, 0), (OPEN, -1, 0), (READ_AT, 0, PAGE), (CLOSE, -1, 0), (CLOSE, -1, 0)]
    assert _results(path, *again)[:5] == [0, 0, 0, PAGE, 0]
    empty, missing = tmp_path / "empty", tmp_path / "missing"
    empty.touch()
    assert _results(empty, (READ_AT, 0, PAGE)) == [0]
    assert _results(missing, (OPEN, -1, 0), (READ_AT, 0, PAGE)) == [-errno.ENOENT] * 2


def _opens(path: Path, *items: tuple[int, int], second: str = "mapped") -> int:
    """How often items (kind, slot) open the file by inotify(7); slot 0 is read by calls, slot 1 mapped or a stream.

    inotify joins equal events in a row: an open of a file that stays open is followed by no other event."""
    libc = ctypes.CDLL(None, use_errno=True)
    watch = libc.inotify_init1(os.O_NONBLOCK)
    assert libc.inotify_add_watch(watch, bytes(path), IN_OPEN | IN_CLOSE_NOWRITE) >= 0
    files, found = Files([FileSlot(path=bytes(path), uses=100)] * 2, ["posix", second]), 0
    for kind, slot in items:
        _run(files, loop_items(kind, slot, 1))
        with suppress(BlockingIOError):
            events = np.frombuffer(os.read(watch, 1 << 16), dtype=np.uint32).reshape(-1, 4)
            found += int(((events[:, 1] & IN_OPEN) > 0).sum())
    os.close(watch)
    return found


def test_a_mapping_of_an_open_file_opens_it_no_more(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(bytes(4 * PAGE))
    assert _opens(path, (OPEN, 1)) == 1
    assert _opens(path, (OPEN, 0), (OPEN, 1)) == 1
    assert _opens(path, (OPEN, 1), (OPEN, 0)) == 2
    again = ((OPEN, 0), (OPEN, 1), (CLOSE, 0), (CLOSE, 1))
    assert _opens(path, *again, *again, (OPEN, 1)) == 3


def test_a_stream_of_an_open_file_that_was_opened_by_nothing_else_opens_it_no_more(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(bytes(4 * PAGE))
    opens = functools.partial(_opens, path, second="stdio")
    assert opens((READ_AT, 1)) == 1
    assert opens((OPEN, 0), (READ_AT, 1), (CLOSE, 0), (READ_AT, 1)) == 1
    assert opens((OPEN, 0), (OPEN, 1), (READ_AT, 1)) == 2


def test_a_seek_beside_a_stream_of_the_same_descriptor_does_not_move_it(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(bytes(4 * PAGE))
    rows = loop_items(np.array([OPEN, READ_AT, SEEK, READ_AT]), np.array([0, 1, 0, 1]), 4)
    rows["_place"], rows["_amount"] = (0, 0, 4 * PAGE, PAGE), (0, PAGE, 0, 3 * PAGE)
    files = Files([FileSlot(path=bytes(path), uses=100)] * 2, ["posix", "stdio"])
    assert _run(files, rows) == [0, PAGE, 0, 3 * PAGE]
