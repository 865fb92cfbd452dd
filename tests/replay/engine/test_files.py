"""What an operation does and gives, and when files are opened, mapped and closed."""

import ctypes
import errno
import itertools
import mmap
import os
import resource
import threading
import time
import zlib
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

from dxt_replay.replay.engine.clock import Counters, StopFlag
from dxt_replay.replay.engine.files import FileSlot
from dxt_replay.replay.engine.issue import Files, Lane
from dxt_replay.replay.engine.items import (
    ADD,
    AWAITS_OPEN,
    CLOSE,
    NO_OPEN,
    OPEN,
    OPENS,
    READ_AT,
    READ_NO_FURTHER,
    RENAME,
    SEEK,
    STAT,
    SYNC,
    WAIT,
    WRITE_AT,
    LoopPace,
)
from dxt_replay.replay.engine.limits import check_direct
from dxt_replay.traces.errors import ReplayError, TargetError
from tests.contract import no_file_may_grow
from tests.fakes import FakeBackend, PythonPosix, make_batch
from tests.replay.engine.issue_lanes import collect_all, open_paths, results, run_together, started

PAGE = 4096
ENOENT, EISDIR, EBADF, ELOOP = -errno.ENOENT, -errno.EISDIR, -errno.EBADF, -errno.ELOOP


def slot(path, uses=100, **access):
    return FileSlot(path=os.fsencode(path), uses=uses, **access)


def made(path, **more):
    """A slot whose file is made and written."""
    return slot(path, writable=True, create=True, **more)


def told(files):
    return [(number, call, code) for number, _, call, code in files.failures()]


def test_a_read_of_nothing_at_the_end_asks_for_a_page(data):
    # Only a file that has grown since it was opened shows what was asked for.
    files = Files([slot(data, writable=True)])
    reads = [(READ_AT, 0, place) for place in (10_000, 9_999, 40_000)]
    assert results(files, (WRITE_AT, 0, 10_000, 50_000), *reads) == [50_000, 4096, 0, 4096]


def test_writes_have_data_that_does_not_compress(tmp_path):
    assert results(Files([made(tmp_path / "new")]), (WRITE_AT, 0, 0, 3_000_000), (WRITE_AT, 0, 10, 0)) == [3_000_000, 0]
    assert len(zlib.compress((tmp_path / "new").read_bytes(), 1)) > 2_990_000


def test_no_memory_is_a_result(tmp_path):
    path = tmp_path / "sparse"
    path.touch()
    os.truncate(path, 8 << 30)
    files = Files([slot(path, writable=True)])
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (512 << 20), limits[1]))
    try:
        got = results(files, (READ_AT, 0, 0, 1 << 40), (WRITE_AT, 0, 0, 1 << 40), (READ_AT, 0, 0, 100))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    assert got == [-errno.ENOMEM, -errno.ENOMEM, 100]


def test_null_does_nothing_and_succeeds(tmp_path):
    moves = [(READ_AT, 0, 0, 1 << 50), (WRITE_AT, 0, 7, 9), (READ_AT, 0, 7, 0)]
    calls = [(kind, 0, 1) for kind in (OPEN, CLOSE, STAT, SYNC, SEEK, RENAME)]
    refused = [(READ_AT, 0, -1, 1), (SEEK, 0, -1), (READ_AT, 2, 0, 1), (OPEN, 2)]
    files = Files([made(tmp_path / name) for name in ("none", "new")], "null")
    errors = [-errno.EINVAL, -errno.EINVAL, EBADF, EBADF]
    assert results(files, *moves, *calls, *refused) == [1 << 50, 9, 0, *[0] * 6, *errors]
    assert not list(tmp_path.iterdir())


def test_a_file_is_closed_with_its_last_use(tmp_path):
    paths = [tmp_path / name for name in ("one", "two", "open")]
    for path in paths:
        path.write_bytes(b"0123456789")
    files = Files([slot(path, uses) for path, uses in zip(paths, (3, 2, 3), strict=True)])
    assert results(files, *((READ_AT, number, 0, 4) for number in (0, 1, 0, 1, 2, 0, 2))) == [4] * 7
    assert [bytes(path) in open_paths() for path in paths] == [False, False, True]
    files.close_all()
    assert bytes(paths[2]) not in open_paths()


@pytest.mark.parametrize("kind", [READ_AT, SEEK])
def test_an_open_that_hangs_holds_up_no_other_lane_after_a_stop(tmp_path, kind):
    """A named pipe is open once it has a writer."""
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    files, start, stop = Files([slot(fifo, 2)]), started(), StopFlag()
    lanes = [Lane(files, pace=LoopPace.NONE, start=start, stop=stop) for _ in range(2)]
    threads = [threading.Thread(target=lane.run, daemon=True) for lane in lanes]
    for lane, thread, state in zip(lanes, threads, (OPENS, AWAITS_OPEN), strict=True):
        lane.submit(make_batch((kind, 0, 0, 10)))
        lane.finish()
        thread.start()
        while lane.opening != state:
            time.sleep(0.001)
    assert files.failures() == []
    files.close_all()
    stop.set()
    threads[1].join(60)
    assert [lane.done for lane in lanes] == [False, True]
    assert [done.count for done in collect_all(lanes[1])] == [0]
    with open(fifo, "wb"):
        threads[0].join(60)
    assert [lane.opening for lane in lanes] == [NO_OPEN, NO_OPEN]
    assert bytes(fifo) not in open_paths()


@pytest.mark.parametrize("path", [b"", b"/a\0b"])
def test_a_path_that_cannot_be_is_refused(path):
    with pytest.raises(ReplayError, match="not the path of a file"):
        FileSlot(path=path)


# ---------------------------------------------------------------------------------------------------- descriptors


@pytest.fixture(params=["posix", "stdio", "python"])
def backend(request):
    """Back ends whose handles are descriptors or have one."""
    return PythonPosix() if request.param == "python" else request.param


def test_each_open_makes_a_descriptor_and_each_close_takes_one(backend, data):
    files, counts = Files([slot(data)], backend), []
    for kind in (OPEN, OPEN, OPEN, CLOSE, READ_AT, CLOSE, CLOSE, READ_AT, CLOSE):
        assert results(files, (kind, 0)) == [0]
        counts.append(open_paths().count(data))
    assert counts == [1, 2, 3, 2, 2, 1, 0, 1, 0]


def test_an_open_can_succeed_where_an_earlier_one_failed(backend, tmp_path):
    path = tmp_path / "late"
    files = Files([slot(path)], backend)
    assert results(files, (READ_AT, 0, 0, 1), (OPEN, 0), (STAT, 0)) == [ENOENT] * 3
    path.write_bytes(b"now")
    assert results(files, (READ_AT, 0, 0, 1), (OPEN, 0), (READ_AT, 0, 0, 9)) == [ENOENT, 0, 3]


def test_a_rename_replaces_a_link_and_not_what_is_behind_it(backend, data, tmp_path):
    behind, link = tmp_path / "behind", tmp_path / "link"
    behind.write_bytes(b"precious")
    link.symlink_to(behind)
    assert results(Files([slot(data, writable=True), slot(link, writable=True)], backend), (RENAME, 0, 1)) == [0]
    assert (behind.read_bytes(), link.is_symlink()) == (b"precious", False)


@contextmanager
def descriptors(count):
    """At most so many more: the limit is a number, and files that are open already may leave gaps below it."""
    taken = {int(name) for name in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{name}")}
    free = (number for number in itertools.count() if number not in taken)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (next(itertools.islice(free, count, None)), limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.parametrize("idle", [0, 19])
def test_a_close_leaves_other_lanes_their_file(backend, tmp_path, idle):
    """The other lane reads before and after: it holds the file all the while, and opens nothing anew. With idle files
    all other descriptors are theirs when a further one is needed."""
    paths = [tmp_path / str(i) for i in range(idle + 1)]
    for path in paths:
        path.write_bytes(b"0123456789")
    files, counters, start, stop = (
        Files([slot(path, 1000) for path in paths], backend),
        Counters.of(2),
        started(),
        StopFlag(),
    )
    holder, closer = (Lane(files, pace=LoopPace.NONE, start=start, stop=stop, counters=counters) for _ in range(2))
    holder.submit(make_batch((READ_AT, 0, 0, 9), (ADD, 0, 1, 1), (WAIT, 1, 1, 1), (READ_AT, 0, 0, 9)))
    others = [(READ_AT, i, 0, 9) for i in range(1, idle + 1)]
    closes = [(CLOSE, 0)] * (1 if idle else 2)
    closer.submit(make_batch((WAIT, 0, 1, 1), *others, *closes, (ADD, 1, 1, 1)))
    with descriptors(8):
        run_together(holder, closer)
    assert holder.collect().result.tolist() == [9, 0, 0, 9]
    assert closer.collect().result.tolist() == [0, *[9] * idle, *[0] * len(closes), 0]
    assert open_paths().count(bytes(paths[0])) == 1


def test_without_descriptors_a_direct_file_is_opened_once_more_all_the_same(tmp_path):
    try:
        check_direct(tmp_path, [])
    except TargetError as error:
        pytest.skip(str(error))
    files = Files([made(tmp_path / str(i)) for i in range(20)], "direct")
    with descriptors(8):
        assert results(files, *((WRITE_AT, i, 100, 7) for i in range(20))) == [7] * 20


# -------------------------------------------------------------------------------------------- streams, and in Python


def test_a_stream_tells_at_its_flush_or_close_what_a_descriptor_tells_at_the_write(tmp_path):
    files = Files([made(tmp_path / "full")], "stdio")
    with no_file_may_grow():
        calls = [(WRITE_AT, 0, 0, 5), (SYNC, 0), (WRITE_AT, 0, 0, 5), (CLOSE, 0), (WRITE_AT, 0, 0, 5)]
        assert results(files, *calls) == [5, -errno.EFBIG, 5, -errno.EFBIG, 5]
        files.close_all()
    assert told(files) == [(0, "close", errno.EFBIG)]


def test_a_stream_keeps_small_writes_until_a_sync(tmp_path):
    path = tmp_path / "log"
    files, sizes = Files([made(path)], "stdio"), []
    for item in ((WRITE_AT, 0, 0, 100), (WRITE_AT, 0, 100, 100), (SYNC, 0), (WRITE_AT, 0, 200, 100_000)):
        results(files, item)
        sizes.append(path.stat().st_size)
    assert sizes[:3] == [0, 0, 200]
    assert sizes[3] > 90_000
    files.close_all()
    assert path.stat().st_size == 100_200


def test_what_a_back_end_raises_by_mistake_ends_the_lane_and_reaches_the_feeder_after_the_results():
    class Broken(FakeBackend):
        def write(self, handle, offset, length, data):
            raise ZeroDivisionError

    lane = Lane(Files([FileSlot(path=b"/f")], Broken()), pace=LoopPace.NONE, start=started(), stop=StopFlag())
    for batch in (make_batch((READ_AT, 0, 0, 1), (WRITE_AT, 0, 0, 1)), make_batch((READ_AT, 0, 0, 1))):
        lane.submit(batch)
    lane.finish()
    lane.run()
    assert lane.done
    assert lane.collect().result.tolist() == [1, -errno.EIO]
    with pytest.raises(ZeroDivisionError):
        lane.collect()


def test_a_failed_close_in_python_is_told():
    class Full(FakeBackend):
        def close(self, handle):
            raise OSError(errno.ENOSPC, "no space")

    files = Files([FileSlot(path=b"/a"), FileSlot(path=b"/b", uses=9)], Full())
    assert results(files, (READ_AT, 1, 0, 1)) == [1]
    files.close_all()
    assert told(files) == [(1, "close", errno.ENOSPC)]


# ------------------------------------------------------------------------------ mapped files, and shared descriptors


def resident(path):
    """bool by page of the file: in the page cache, by mincore(2)."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as mapped:
        place = (ctypes.c_char * len(mapped)).from_buffer(mapped)
        found = (ctypes.c_ubyte * (len(mapped) // PAGE))()
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.mincore(ctypes.c_void_p(ctypes.addressof(place)), ctypes.c_size_t(len(mapped)), found) == 0
        del place
        return np.frombuffer(found, dtype=np.uint8) & 1 > 0


@pytest.mark.parametrize("advice", [-1, READ_NO_FURTHER])
def test_a_mapped_read_brings_its_pages_into_the_cache(tmp_path, advice):
    path, first = tmp_path / "data", 10_000
    path.write_bytes(os.urandom(64 << 20))
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    before = resident(path)
    assert results(Files([slot(path)], "mapped"), (OPEN, 0, advice), (READ_AT, 0, first * PAGE, 5 * PAGE)) == [
        0,
        5 * PAGE,
    ]
    after = resident(path)
    assert after[first : first + 5].all()
    if not before.any():  # a file system in memory drops nothing
        assert not after.all()
        assert (after.sum() == 5) == (advice == READ_NO_FURTHER)


def test_results_of_mapped_reads_are_those_of_the_file(tmp_path):
    path, empty = tmp_path / "data", tmp_path / "empty"
    path.write_bytes(b"x" * (2 * PAGE + 100))
    empty.touch()
    files = Files([slot(path), slot(empty), slot(tmp_path / "missing")], "mapped")
    reads = [(READ_AT, 0, PAGE, PAGE), (READ_AT, 0, PAGE, 9 * PAGE), (READ_AT, 0, 9 * PAGE, PAGE), (WRITE_AT, 0, 0, 1)]
    assert results(files, *reads) == [PAGE, PAGE + 100, 0, -errno.EROFS]
    again = [(OPEN, 0), (CLOSE, 0), (OPEN, 0), (READ_AT, 0, 0, PAGE), (CLOSE, 0)]
    assert results(files, *again) == [0, 0, 0, PAGE, 0]
    assert results(files, (READ_AT, 1, 0, PAGE), (OPEN, 2), (READ_AT, 2, 0, PAGE)) == [0, ENOENT, ENOENT]


@pytest.mark.parametrize(
    ("second", "items", "opens"),
    [
        # A mapping of an open file opens it no more.
        ("mapped", [(OPEN, 1)], 1),
        ("mapped", [(OPEN, 0), (OPEN, 1)], 1),
        ("mapped", [(OPEN, 1), (OPEN, 0)], 2),
        ("mapped", [*[(OPEN, 0), (OPEN, 1), (CLOSE, 0), (CLOSE, 1)] * 2, (OPEN, 1)], 3),
        # Nor does a stream that nothing else opened.
        ("stdio", [(READ_AT, 1)], 1),
        ("stdio", [(OPEN, 0), (READ_AT, 1), (CLOSE, 0), (READ_AT, 1)], 1),
        ("stdio", [(OPEN, 0), (OPEN, 1), (READ_AT, 1)], 2),
    ],
)
def test_a_file_that_is_open_for_calls_is_opened_no_more_for_a_mapping_or_stream(tmp_path, second, items, opens):
    """By inotify(7), which joins equal events in a row: an open of a file that stays open is followed by no other."""
    path, opened, closed = tmp_path / "data", 0x20, 0x10
    path.write_bytes(bytes(4 * PAGE))
    libc = ctypes.CDLL(None, use_errno=True)
    watch = libc.inotify_init1(os.O_NONBLOCK)
    assert libc.inotify_add_watch(watch, bytes(path), opened | closed) >= 0
    files, found = Files([slot(path)] * 2, ["posix", second]), 0
    for item in items:
        results(files, item)
        with suppress(BlockingIOError):
            events = np.frombuffer(os.read(watch, 1 << 16), dtype=np.uint32).reshape(-1, 4)
            found += int(((events[:, 1] & opened) > 0).sum())
    os.close(watch)
    assert found == opens


def test_a_seek_beside_a_stream_of_the_same_descriptor_does_not_move_it(tmp_path):
    path = tmp_path / "data"
    path.write_bytes(bytes(4 * PAGE))
    files = Files([slot(path)] * 2, ["posix", "stdio"])
    items = [(OPEN, 0), (READ_AT, 1, 0, PAGE), (SEEK, 0, 4 * PAGE), (READ_AT, 1, PAGE, 3 * PAGE)]
    assert results(files, *items) == [0, PAGE, 0, 3 * PAGE]
