"""What an operation does and gives, and when files are opened and closed."""

from __future__ import annotations

import errno
import itertools
import os
import resource
import threading
import time
import zlib
from contextlib import contextmanager
from pathlib import Path

import pytest

from dxt_replay.replay.engine.clock import StopFlag
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
from tests.replay.engine.issue_lanes import (
    collect_all,
    counters_of,
    open_paths,
    results,
    run_together,
    started,
)


def test_a_read_of_nothing_at_the_end_asks_for_a_page(data):
    # Only a file that has grown since it was opened shows what was asked for.
    files = Files([FileSlot(path=data, writable=True, uses=9)])
    grow = (WRITE_AT, 0, 10_000, 50_000, 0)
    assert results(files, grow, (READ_AT, 0, 10_000, 0, 0), (READ_AT, 0, 9_999, 0, 0), (READ_AT, 0, 40_000, 0, 0)) == [
        50_000,
        4096,
        0,
        4096,
    ]


def test_writes_make_and_extend_a_file_with_data_that_does_not_compress(tmp_path):
    path = tmp_path / "new"
    files = Files([FileSlot(path=bytes(path), writable=True, create=True, uses=3)])
    assert results(files, (WRITE_AT, 0, 0, 3_000_000, 0), (WRITE_AT, 0, 5_000_000, 7, 0), (WRITE_AT, 0, 10, 0, 0)) == [
        3_000_000,
        7,
        0,
    ]
    written = path.read_bytes()
    assert len(written) == 5_000_007
    assert len(zlib.compress(written[:3_000_000], 1)) > 2_990_000
    assert not any(written[3_000_000:5_000_000])


def test_errors_of_the_system_are_results(data, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(os.fsdecode(data))
    slots = [
        FileSlot(path=bytes(tmp_path / "missing"), uses=1),
        FileSlot(path=bytes(tmp_path), uses=1),
        FileSlot(path=data, uses=1),
        FileSlot(path=bytes(link), writable=True, create=True, uses=1),
        FileSlot(path=bytes(link), uses=1),
    ]
    items = [
        (READ_AT, 0, 0, 1, 0),
        (READ_AT, 1, 0, 1, 0),
        (WRITE_AT, 2, 0, 1, 0),
        (WRITE_AT, 3, 0, 1, 0),
        (READ_AT, 4, 0, 1, 0),
    ]
    files = Files(slots)
    assert results(files, *items) == [-errno.ENOENT, -errno.EISDIR, -errno.EBADF, -errno.ELOOP, 1]
    assert [(slot, call, number, path) for slot, path, call, number in files.failures()] == [
        (0, "open", errno.ENOENT, slots[0].path),
        (3, "open", errno.ELOOP, slots[3].path),
    ]


def test_no_memory_is_a_result(tmp_path):
    path = tmp_path / "sparse"
    path.touch()
    os.truncate(path, 8 << 30)
    files = Files([FileSlot(path=bytes(path), writable=True, uses=3)])
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (512 << 20), limits[1]))
    try:
        got = results(files, (READ_AT, 0, 0, 1 << 40, 0), (WRITE_AT, 0, 0, 1 << 40, 0), (READ_AT, 0, 0, 100, 0))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    assert got == [-errno.ENOMEM, -errno.ENOMEM, 100]


def test_null_does_nothing_and_succeeds(tmp_path):
    slots = [FileSlot(path=bytes(tmp_path / name), writable=True, create=True, uses=20) for name in ("none", "new")]
    moves = [(READ_AT, 0, 0, 1 << 50, 0), (WRITE_AT, 0, 7, 9, 0), (READ_AT, 0, 7, 0, 0)]
    calls = [(kind, 0, 1, 0, 0) for kind in (OPEN, CLOSE, STAT, SYNC, SEEK, RENAME)]
    refused = [(READ_AT, 0, -1, 1, 0), (SEEK, 0, -1, 0, 0), (READ_AT, 2, 0, 1, 0), (OPEN, 2, 0, 0, 0)]
    errors = [-errno.EINVAL, -errno.EINVAL, -errno.EBADF, -errno.EBADF]
    assert results(Files(slots, "null"), *moves, *calls, *refused) == [1 << 50, 9, 0, *[0] * 6, *errors]
    assert not list(tmp_path.iterdir())


def test_a_file_is_closed_with_its_last_use(tmp_path):
    paths = [tmp_path / name for name in ("one", "two", "open")]
    for path in paths:
        path.write_bytes(b"0123456789")
    slots = [FileSlot(path=bytes(path), uses=uses) for path, uses in zip(paths, (3, 2, 3), strict=True)]
    files = Files(slots)
    assert results(files, *((READ_AT, slot, 0, 4, 0) for slot in (0, 1, 0, 1, 2, 0, 2))) == [4] * 7
    assert [bytes(path) in open_paths() for path in paths] == [False, False, True]
    files.close_all()
    assert bytes(paths[2]) not in open_paths()


@pytest.mark.parametrize("kind", [READ_AT, SEEK])
def test_an_open_that_hangs_holds_up_no_other_lane_after_a_stop(tmp_path, kind):
    """A named pipe is open once it has a writer."""
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    files = Files([FileSlot(path=bytes(fifo), uses=2)])
    start, stop = started(), StopFlag()
    lanes = [Lane(files, pace=LoopPace.NONE, start=start, stop=stop) for _ in range(2)]
    threads = [threading.Thread(target=lane.run, daemon=True) for lane in lanes]
    for lane, thread, state in zip(lanes, threads, (OPENS, AWAITS_OPEN), strict=True):
        lane.submit(make_batch((kind, 0, 0, 10, 0)))
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


@pytest.fixture(params=["posix", "stdio", "python"])
def backend(request):
    """Back ends whose handles are descriptors or have one."""
    return PythonPosix() if request.param == "python" else request.param


def opened(path):
    return open_paths().count(path)


def test_each_open_makes_a_descriptor_and_each_close_takes_one(backend, data):
    files = Files([FileSlot(path=data, uses=100)], backend)
    counts = []
    for kind in (OPEN, OPEN, OPEN, CLOSE, READ_AT, CLOSE, CLOSE, READ_AT, CLOSE):
        assert results(files, (kind, 0, 0, 0, 0)) == [0]
        counts.append(opened(data))
    assert counts == [1, 2, 3, 2, 2, 1, 0, 1, 0]


def test_an_open_can_succeed_where_an_earlier_one_failed(backend, tmp_path):
    path = tmp_path / "late"
    files = Files([FileSlot(path=bytes(path), uses=100)], backend)
    assert results(files, (READ_AT, 0, 0, 1, 0), (OPEN, 0, 0, 0, 0), (STAT, 0, 0, 0, 0)) == [-errno.ENOENT] * 3
    path.write_bytes(b"now")
    assert results(files, (READ_AT, 0, 0, 1, 0), (OPEN, 0, 0, 0, 0), (READ_AT, 0, 0, 9, 0)) == [-errno.ENOENT, 0, 3]


def test_a_rename_replaces_a_link_and_not_what_is_behind_it(backend, data, tmp_path):
    behind, link = tmp_path / "behind", tmp_path / "link"
    behind.write_bytes(b"precious")
    link.symlink_to(behind)
    slots = [FileSlot(path=path, writable=True) for path in (data, bytes(link))]
    assert results(Files(slots, backend), (RENAME, 0, 1, 0, 0)) == [0]
    assert behind.read_bytes() == b"precious"
    assert not link.is_symlink()


def test_a_close_leaves_other_lanes_their_file(backend, data):
    """The other lane reads before and after: it holds the file all the while, and opens nothing anew."""
    files, counters = Files([FileSlot(path=data, uses=100)], backend), counters_of(2)
    start, stop = started(), StopFlag()
    reader, closer = (Lane(files, pace=LoopPace.NONE, start=start, stop=stop, counters=counters) for _ in range(2))
    reader.submit(make_batch((READ_AT, 0, 0, 9, 0), (ADD, 0, 1, 1, 0), (WAIT, 1, 1, 1, 0), (READ_AT, 0, 0, 9, 0)))
    closer.submit(make_batch((WAIT, 0, 1, 1, 0), (CLOSE, 0, 0, 0, 0), (CLOSE, 0, 0, 0, 0), (ADD, 1, 1, 1, 0)))
    run_together(reader, closer)
    assert reader.collect().result.tolist() == [9, 0, 0, 9]
    assert closer.collect().result.tolist() == [0, 0, 0, 0]
    assert opened(data) == 1


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


def test_without_descriptors_a_close_beside_another_lane_closes_what_is_idle(backend, tmp_path):
    """The other lane holds the first file, and all other descriptors are idle files' when a further one is needed."""
    paths = [tmp_path / str(i) for i in range(20)]
    for path in paths:
        path.write_bytes(b"0123456789")
    files = Files([FileSlot(path=bytes(path), uses=1000) for path in paths], backend)
    counters, start, stop = counters_of(2), started(), StopFlag()
    holder, closer = (Lane(files, pace=LoopPace.NONE, start=start, stop=stop, counters=counters) for _ in range(2))
    holder.submit(make_batch((READ_AT, 0, 0, 9, 0), (ADD, 0, 1, 1, 0), (WAIT, 1, 1, 1, 0), (READ_AT, 0, 0, 9, 0)))
    idle = [(READ_AT, i, 0, 9, 0) for i in range(1, 20)]
    closer.submit(make_batch((WAIT, 0, 1, 1, 0), *idle, (CLOSE, 0, 0, 0, 0), (ADD, 1, 1, 1, 0)))
    with descriptors(8):
        run_together(holder, closer)
    assert holder.collect().result.tolist() == [9, 0, 0, 9]
    assert closer.collect().result.tolist() == [0, *[9] * 19, 0, 0]


def test_without_descriptors_a_direct_file_is_opened_once_more_all_the_same(tmp_path):
    try:
        check_direct(tmp_path, [])
    except TargetError as error:
        pytest.skip(str(error))
    slots = [FileSlot(path=bytes(tmp_path / str(i)), writable=True, create=True, uses=1000) for i in range(20)]
    files = Files(slots, "direct")
    with descriptors(8):
        assert results(files, *((WRITE_AT, i, 100, 7, 0) for i in range(20))) == [7] * 20


def test_a_stream_says_what_the_system_says(tmp_path):
    """What is told at the write with a descriptor, a stream tells at its flush or close."""
    link, to_data, data = (tmp_path / name for name in ("link", "to data", "data"))
    link.symlink_to(tmp_path / "behind")
    data.write_bytes(b"precious")
    to_data.symlink_to(data)
    slots = [
        FileSlot(path=bytes(tmp_path / "full"), writable=True, create=True, uses=100),
        FileSlot(path=bytes(link), writable=True, create=True, uses=100),
        FileSlot(path=bytes(tmp_path), uses=100),
        FileSlot(path=bytes(tmp_path / "missing"), writable=True, uses=100),
        FileSlot(path=bytes(to_data), writable=True, uses=100),
        FileSlot(path=bytes(to_data), uses=100),
    ]
    files = Files(slots, "stdio")
    full = [
        (WRITE_AT, 0, 0, 5, 0),
        (SYNC, 0, 0, 0, 0),
        (WRITE_AT, 0, 0, 5, 0),
        (CLOSE, 0, 0, 0, 0),
        (WRITE_AT, 0, 0, 5, 0),
    ]
    with no_file_may_grow():
        assert results(files, *full) == [5, -errno.EFBIG, 5, -errno.EFBIG, 5]
    others = [(WRITE_AT, 1, 0, 5, 0), (OPEN, 1, 0, 0, 0), (READ_AT, 2, 0, 5, 0), (WRITE_AT, 3, 0, 5, 0)]
    assert results(files, *others) == [-errno.ELOOP, -errno.ELOOP, -errno.EISDIR, -errno.ENOENT]
    assert results(files, (WRITE_AT, 4, 0, 5, 0), (WRITE_AT, 5, 0, 5, 0), (READ_AT, 5, 0, 99, 0)) == [
        -errno.ELOOP,
        -errno.EBADF,
        len(b"precious"),
    ]
    with no_file_may_grow():
        files.close_all()
    found = [(slot, call, number) for slot, _, call, number in files.failures()]
    opens = [(1, "open", errno.ELOOP), (3, "open", errno.ENOENT), (4, "open", errno.ELOOP)]
    assert found == [(0, "close", errno.EFBIG), *opens]
    assert not (tmp_path / "behind").exists()
    assert data.read_bytes() == b"precious"


def test_what_a_back_end_raises_by_mistake_ends_the_lane_and_reaches_the_feeder_after_the_results():
    class Broken(FakeBackend):
        def write(self, handle, offset, length, data):
            raise ZeroDivisionError

    lane = Lane(Files([FileSlot(path=b"/f")], Broken()), pace=LoopPace.NONE, start=started(), stop=StopFlag())
    for batch in (make_batch((READ_AT, 0, 0, 1, 0), (WRITE_AT, 0, 0, 1, 0)), make_batch((READ_AT, 0, 0, 1, 0))):
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
    assert results(files, (READ_AT, 1, 0, 1, 0)) == [1]
    files.close_all()
    assert [(slot, call, number) for slot, _, call, number in files.failures()] == [(1, "close", errno.ENOSPC)]


def test_a_stream_keeps_small_writes_until_a_sync(tmp_path):
    path = tmp_path / "log"
    files = Files([FileSlot(path=bytes(path), writable=True, create=True, uses=100)], "stdio")
    sizes = []
    for item in (
        (WRITE_AT, 0, 0, 100, 0),
        (WRITE_AT, 0, 100, 100, 0),
        (SYNC, 0, 0, 0, 0),
        (WRITE_AT, 0, 200, 100_000, 0),
    ):
        results(files, item)
        sizes.append(path.stat().st_size)
    assert sizes[:3] == [0, 0, 200]
    assert sizes[3] > 90_000
    files.close_all()
    assert path.stat().st_size == 100_200
