"""The issue loop: every behaviour over both cores, the exact times over the Python loop with a fake clock."""

from __future__ import annotations

import errno
import os
import resource
import threading
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay import clock as clock_module
from replay import issue, items, lane_files
from replay.backends import base, posix
from replay.backends.base import FileSlot, PythonFiles
from replay.backends.null import NullBackend
from replay.backends.posix import DirectPosixBackend, PosixBackend, check_direct
from replay.backends.stdio import StdioBackend
from replay.clock import PIECE_NS, WINDOW_NS, StartGate, StopFlag, wait_until
from replay.counters import Counters
from replay.issue import FEED_POLL_NS, PythonLane, choose_core, make_files, make_lane
from replay.items import (
    ADD,
    BATCH_ITEMS,
    CLOSE,
    MARK,
    OPEN,
    READ,
    RENAME,
    RING_BATCHES,
    SEEK,
    SLEEP,
    SPIN,
    STAT,
    SYNC,
    WAIT,
    WRITE,
    Batch,
    Pace,
)
from tests.fakes import FakeBackend, FakeClock, make_batch
from traces.errors import ReplayError, TargetError, UsageError

HOUR_NS = 3600 * 10**9
T0 = 5_000_000_000


@pytest.fixture(params=["python", "compiled"])
def core(request):
    """Each core in turn. Where the compiled one must be there (CI), its absence fails instead of skipping."""
    if request.param == "compiled" and os.environ.get("DXT_REPLAY_REQUIRE_COMPILED") != "1":
        pytest.importorskip("replay._issue")
    return request.param


@pytest.fixture
def data(tmp_path):
    """A file of 10,000 bytes."""
    path = tmp_path / "data"
    path.write_bytes(np.random.default_rng(1).bytes(10_000))
    return os.fsencode(path)


def run_lane(files, *batches, pace=Pace.NONE, start=None, stop=None):
    """Run all batches through one lane in this thread; its completed batches and the lane."""
    if start is None:
        start = StartGate()
        start.open(time.monotonic_ns())
    lane = make_lane(files, pace=pace, start=start, stop=stop or StopFlag())
    for batch in batches:
        assert lane.submit(batch)
    lane.finish()
    lane.run()
    assert lane.done
    return collect_all(lane), lane


def collect_all(lane):
    return list(iter(lane.collect, None))


def results(files, *items, **options):
    """Results of one batch."""
    (completed,), _ = run_lane(files, make_batch(*items), **options)
    assert completed.count == len(items)
    return completed.result.tolist()


def open_paths():
    """Paths that this process has open."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.fsencode(os.readlink(f"/proc/self/fd/{name}")))
        except OSError:
            continue  # the descriptor of the listing itself is gone
    return found


# ---------------------------------------------------------------------------------- what an operation does and gives


def test_results_are_what_was_transferred(core, data):
    files = make_files([FileSlot(path=data, uses=5)], core=core)
    items = [(READ, 0, 0, 100, 0), (READ, 0, 9_990, 100, 0), (READ, 0, 20_000, 5, 0), (READ, 0, 3, 0, 0)]
    assert results(files, *items) == [100, 10, 0, 0]


def test_a_read_of_nothing_at_the_end_asks_for_a_page(core, data):
    # Only a file that has grown since it was opened shows what was asked for.
    files = make_files([FileSlot(path=data, writable=True, uses=9)], core=core)
    grow = (WRITE, 0, 10_000, 50_000, 0)
    assert results(files, grow, (READ, 0, 10_000, 0, 0), (READ, 0, 9_999, 0, 0), (READ, 0, 40_000, 0, 0)) == [
        50_000,
        4096,
        0,
        4096,
    ]


def test_writes_make_and_extend_a_file_with_data_that_does_not_compress(core, tmp_path):
    path = tmp_path / "new"
    files = make_files([FileSlot(path=bytes(path), writable=True, create=True, uses=3)], core=core)
    assert results(files, (WRITE, 0, 0, 3_000_000, 0), (WRITE, 0, 5_000_000, 7, 0), (WRITE, 0, 10, 0, 0)) == [
        3_000_000,
        7,
        0,
    ]
    written = path.read_bytes()
    assert len(written) == 5_000_007
    assert len(zlib.compress(written[:3_000_000], 1)) > 2_990_000
    assert not any(written[3_000_000:5_000_000])


def test_data_can_be_made_before_it_is_due(core, tmp_path):
    path = tmp_path / "new"
    files = make_files([FileSlot(path=bytes(path), writable=True, create=True, uses=2)], core=core)
    files.prepare_payload(5_000_000)
    assert results(files, (WRITE, 0, 0, 5_000_000, 0), (WRITE, 0, 5_000_000, 6_000_000, 0)) == [5_000_000, 6_000_000]
    assert len(zlib.compress(path.read_bytes()[:5_000_000], 1)) > 4_990_000


def test_reads_of_many_sizes(core, tmp_path):
    path = tmp_path / "large"
    path.write_bytes(bytes(3 << 20))
    sizes = [1, 4096, 4097, 1 << 20, 5, (3 << 20) - 1, 3 << 20, 1 << 40, 100]
    files = make_files([FileSlot(path=bytes(path), uses=len(sizes))], core=core)
    assert results(files, *((READ, 0, 0, size, 0) for size in sizes)) == [min(size, 3 << 20) for size in sizes]


def test_what_cannot_be_asked_is_refused_without_a_call(core, data):
    files = make_files([FileSlot(path=data, writable=True, uses=9)], core=core)
    before = Path(os.fsdecode(data)).read_bytes()
    items = [
        (READ, 0, -1, 10, 0),
        (WRITE, 0, -5, 10, 0),
        (READ, 0, 0, -1, 0),
        (WRITE, 0, 0, -1, 0),
        (READ, -1, 0, 1, 0),
        (READ, 1, 0, 1, 0),
        (READ, 0, 0, 1, 0),
    ]
    assert results(files, *items) == [-errno.EINVAL] * 4 + [-errno.EBADF] * 2 + [1]
    assert Path(os.fsdecode(data)).read_bytes() == before


def test_compute_and_marks_have_no_result(core):
    files = make_files([], core=core)
    items = [(SLEEP, -1, 0, 200_000, 0), (SPIN, -1, 0, 100_000, 0), (MARK, -1, 0, 0, 0), (SLEEP, -1, 0, 0, 0)]
    (completed,), lane = run_lane(files, make_batch(*items))
    took = completed.end_ns - completed.begin_ns
    assert completed.result.tolist() == [0, 0, 0, 0]
    assert took[0] >= 200_000
    assert took[1] >= 100_000
    assert took[2:].tolist() == [0, 0]
    assert lane.items_done == 4


def test_errors_of_the_system_are_results(core, data, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(os.fsdecode(data))
    slots = [
        FileSlot(path=bytes(tmp_path / "missing"), uses=1),
        FileSlot(path=bytes(tmp_path), uses=1),
        FileSlot(path=data, uses=1),
        FileSlot(path=bytes(link), writable=True, create=True, uses=1),
        FileSlot(path=bytes(link), uses=1),
    ]
    items = [(READ, 0, 0, 1, 0), (READ, 1, 0, 1, 0), (WRITE, 2, 0, 1, 0), (WRITE, 3, 0, 1, 0), (READ, 4, 0, 1, 0)]
    files = make_files(slots, core=core)
    assert results(files, *items) == [-errno.ENOENT, -errno.EISDIR, -errno.EBADF, -errno.ELOOP, 1]
    assert [(f.slot, f.call, f.errno, f.path) for f in files.failures()] == [
        (0, "open", errno.ENOENT, slots[0].path),
        (3, "open", errno.ELOOP, slots[3].path),
    ]


def test_a_failed_open_is_not_tried_again(core, tmp_path):
    path = tmp_path / "late"
    files = make_files([FileSlot(path=bytes(path), uses=4)], core=core)
    assert results(files, (READ, 0, 0, 1, 0), (READ, 0, 0, 1, 0)) == [-errno.ENOENT] * 2
    path.write_bytes(b"now")
    assert results(files, (READ, 0, 0, 1, 0), (READ, 0, 0, 1, 0)) == [-errno.ENOENT] * 2


def test_no_memory_is_a_result(core, tmp_path):
    path = tmp_path / "sparse"
    path.touch()
    os.truncate(path, 8 << 30)
    files = make_files([FileSlot(path=bytes(path), writable=True, uses=3)], core=core)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (512 << 20), limits[1]))
    try:
        got = results(files, (READ, 0, 0, 1 << 40, 0), (WRITE, 0, 0, 1 << 40, 0), (READ, 0, 0, 100, 0))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    assert got == [-errno.ENOMEM, -errno.ENOMEM, 100]


def test_null_does_nothing_and_succeeds(core, tmp_path):
    slots = [FileSlot(path=bytes(tmp_path / "none"), writable=True, create=True, uses=4)]
    files = make_files(slots, backend=NullBackend(), core=core)
    assert files.core == core
    items = [(READ, 0, 0, 1 << 50, 0), (WRITE, 0, 7, 9, 0), (READ, 0, 7, 0, 0), (READ, 0, -1, 1, 0), (READ, 1, 0, 1, 0)]
    assert results(files, *items) == [1 << 50, 9, 0, -errno.EINVAL, -errno.EBADF]
    assert not list(tmp_path.iterdir())


# ------------------------------------------------------------------------------------------------------ open files


def test_a_file_is_closed_with_its_last_use(core, tmp_path):
    paths = [tmp_path / name for name in ("one", "two", "open")]
    for path in paths:
        path.write_bytes(b"0123456789")
    slots = [FileSlot(path=bytes(path), uses=uses) for path, uses in zip(paths, (3, 2, 3), strict=True)]
    files = make_files(slots, core=core)
    assert results(files, *((READ, slot, 0, 4, 0) for slot in (0, 1, 0, 1, 2, 0, 2))) == [4] * 7
    assert [bytes(path) in open_paths() for path in paths] == [False, False, True]
    files.close_all()
    assert bytes(paths[2]) not in open_paths()


def test_the_last_use_closes_before_the_next_wait(core, data):
    """A file is not held open over a pause, because on a network file system closing is when data is written back."""
    stop, start = StopFlag(), StartGate()
    start.open(time.monotonic_ns())
    files = make_files([FileSlot(path=data, uses=1)], core=core)
    lane = make_lane(files, pace=Pace.ABSOLUTE, start=start, stop=stop)
    lane.submit(make_batch((READ, 0, 0, 10, 0), (MARK, -1, 0, 0, HOUR_NS)))
    thread = threading.Thread(target=lane.run)
    thread.start()
    while data in open_paths() or lane.items_done < 1:
        time.sleep(0)
    stop.set()
    thread.join()
    assert collect_all(lane)[0].count == 1


def test_the_time_of_an_open_is_lag_and_not_latency(core, tmp_path):
    """A FIFO opens when somebody opens its other end, and then refuses a read at an offset."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    start = StartGate()
    start.open(time.monotonic_ns())
    lane = make_lane(
        make_files([FileSlot(path=bytes(fifo))], core=core), pace=Pace.ABSOLUTE, start=start, stop=StopFlag()
    )
    lane.submit(make_batch((MARK, -1, 0, 0, 0), (READ, 0, 0, 1, 0)))
    lane.finish()
    thread = threading.Thread(target=lane.run)
    thread.start()
    while lane.items_done < 1:
        time.sleep(0)
    opened_ns = time.monotonic_ns() - start.t0_ns
    with open(fifo, "wb"):
        thread.join()
    (completed,) = collect_all(lane)
    assert completed.result.tolist() == [0, -errno.ESPIPE]
    assert completed.due_ns[1] == 0
    assert completed.begin_ns[1] >= opened_ns


def test_too_small_a_count_of_uses_costs_another_open_only(core, data):
    files = make_files([FileSlot(path=data, uses=1)], core=core)
    assert results(files, *[(READ, 0, 0, 10, 0)] * 5) == [10] * 5
    assert data not in open_paths()


def test_files_beyond_the_limit_of_descriptors_are_closed_and_opened_again(core, tmp_path):
    count = 60
    paths = [tmp_path / f"f{i}" for i in range(count)]
    for path in paths:
        path.write_bytes(bytes(100))
    files = make_files([FileSlot(path=bytes(path), uses=1000) for path in paths], core=core)
    items = [(READ, slot, 0, 50, 0) for slot in [*range(count), *range(count), *[0, 59, 0, 59]]]
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.open("/", os.O_RDONLY)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free + 10, limits[1]))
    try:
        got = results(files, *items)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert got == [50] * len(items)
    assert not files.failures()
    files.close_all()
    assert not set(open_paths()) & {bytes(path) for path in paths}


def test_the_limit_of_descriptors_is_raised_for_many_slots(core):
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (300, limits[1]))
    try:
        make_files([FileSlot(path=b"/none")] * 200, core=core)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 400
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_lanes_share_files(core, tmp_path):
    paths = [tmp_path / f"f{i}" for i in range(3)]
    for path in paths:
        path.write_bytes(bytes(5000))
    lanes, items = 6, 600
    files = make_files([FileSlot(path=bytes(path), uses=lanes * items // 3) for path in paths], core=core)
    start, stop = StartGate(), StopFlag()
    running = [make_lane(files, pace=Pace.NONE, start=start, stop=stop) for _ in range(lanes)]
    for number, lane in enumerate(running):
        lane.submit(make_batch(*((READ, (i + number) % 3, i, 100, 0) for i in range(items))))
        lane.finish()
    threads = [threading.Thread(target=lane.run) for lane in running]
    for thread in threads:
        thread.start()
    start.open(time.monotonic_ns())
    for thread in threads:
        thread.join()
    assert all(completed.result.tolist() == [100] * items for lane in running for completed in collect_all(lane))
    assert not set(open_paths()) & {bytes(path) for path in paths}


@pytest.mark.parametrize("path", [b"", b"/a\0b"])
def test_a_path_that_cannot_be_is_refused(path):
    with pytest.raises(ReplayError, match="no path of a file"):
        FileSlot(path=path)


# ---------------------------------------------------------------------------------------------------------- the ring


def test_many_batches_pass_the_ring_in_order(core, data):
    start = StartGate()
    start.open(time.monotonic_ns())
    files = make_files([FileSlot(path=data, uses=10**6)], core=core)
    lane = make_lane(files, pace=Pace.NONE, start=start, stop=StopFlag())
    batches = [
        make_batch(*((READ, 0, 7 * number, number + i, 0) for i in range(1 + number % 5))) for number in range(100)
    ]
    thread = threading.Thread(target=lane.run)
    thread.start()
    waiting, completed = list(batches), []
    while len(completed) < len(batches):
        while waiting and lane.submit(waiting[0]):
            waiting.pop(0)
            if not waiting:
                lane.finish()
        completed += collect_all(lane)
    thread.join()
    assert [done.batch for done in completed] == batches
    for number, done in enumerate(completed):
        assert done.result.tolist() == [number + i for i in range(1 + number % 5)]
    ends = np.concatenate([done.end_ns for done in completed])
    assert np.all(np.diff(ends) >= 0)
    assert lane.items_done == sum(len(batch) for batch in batches)


def test_a_full_ring_takes_no_more(core, data):
    files = make_files([FileSlot(path=data, uses=100)], core=core)
    start = StartGate()
    start.open(time.monotonic_ns())
    lane = make_lane(files, pace=Pace.NONE, start=start, stop=StopFlag())
    batch = make_batch((READ, 0, 0, 1, 0))
    assert [lane.submit(batch) for _ in range(RING_BATCHES + 1)] == [True] * RING_BATCHES + [False]
    lane.finish()
    lane.run()
    with pytest.raises(RuntimeError):
        lane.submit(batch)
    with pytest.raises(RuntimeError):
        lane.run()
    assert len(collect_all(lane)) == RING_BATCHES


def test_a_full_batch(core, data):
    files = make_files([FileSlot(path=data, uses=BATCH_ITEMS)], core=core)
    assert results(files, *[(READ, 0, i % 10_000, 1, 0) for i in range(BATCH_ITEMS)]) == [1] * BATCH_ITEMS


def test_a_lane_without_batches_ends(core):
    completed, lane = run_lane(make_files([], core=core))
    assert completed == []
    assert lane.starved_ns == 0


def test_time_spent_waiting_for_the_feeder_is_counted(core, data):
    most = 1000
    files = make_files([FileSlot(path=data, uses=most)], core=core)
    start = StartGate()
    start.open(time.monotonic_ns())
    lane = make_lane(files, pace=Pace.NONE, start=start, stop=StopFlag())
    thread = threading.Thread(target=lane.run)
    batch, completed = make_batch((READ, 0, 0, 1, 0)), []
    lane.submit(batch)
    thread.start()
    # A lane that got no processor in time found its next batch there, and has not waited: once more.
    while not lane.starved_ns and len(completed) < most:
        while (done := lane.collect()) is None:
            time.sleep(0)
        completed.append(done)
        late = time.monotonic_ns() + 4 * FEED_POLL_NS
        while time.monotonic_ns() < late:
            time.sleep(0)
        lane.submit(batch)
    lane.finish()
    thread.join()
    completed += collect_all(lane)
    begins, ends = (np.concatenate([getattr(done, name) for done in completed]) for name in ("begin_ns", "end_ns"))
    assert 0 < lane.starved_ns <= (begins[1:] - ends[:-1]).sum()


@pytest.mark.parametrize(
    "change",
    [
        {"kind": np.array([13], dtype=np.uint8)},
        {"kind": np.zeros(BATCH_ITEMS + 1, dtype=np.uint8)},
        {"kind": np.zeros(0, dtype=np.uint8)},
        {"slot": np.zeros(1, dtype=np.int64)},
        {"offset": np.zeros(2, dtype=np.int64)},
        {"length": np.zeros((1, 1), dtype=np.int64)},
        {"due_ns": np.zeros(1, dtype=np.float64)},
    ],
)
def test_a_batch_of_the_wrong_form_is_refused(change):
    good = make_batch((READ, 0, 0, 1, 0))
    columns = {name: getattr(good, name) for name in ("kind", "slot", "offset", "length", "due_ns")}
    with pytest.raises(ValueError, match="batch"):
        Batch(**{**columns, **change})


@pytest.mark.parametrize("item", [(READ, 0, 0, 1, 2**62), (READ, 0, 0, 1, -(2**62)), (SLEEP, -1, 0, 2**62, 0)])
def test_times_that_would_overflow_are_refused(item):
    with pytest.raises(ReplayError, match="73 years"):
        make_batch(item)


# ------------------------------------------------------------------------------------------------------ start and stop


def test_nothing_begins_before_the_start(core, data):
    start = StartGate()
    start.open(time.monotonic_ns() + 3_000_000)
    files = make_files([FileSlot(path=data, uses=1)], core=core)
    for pace in Pace:
        (completed,), _ = run_lane(files, make_batch((READ, 0, 0, 1, 0)), pace=pace, start=start)
        assert completed.begin_ns[0] >= completed.due_ns[0] >= 0


def test_lanes_wait_for_the_gate(core, data):
    start = StartGate()
    files = make_files([FileSlot(path=data, uses=1)], core=core)
    lane = make_lane(files, pace=Pace.NONE, start=start, stop=StopFlag())
    lane.submit(make_batch((READ, 0, 0, 1, 0)))
    lane.finish()
    thread = threading.Thread(target=lane.run)
    thread.start()
    assert lane.collect() is None
    start.open(time.monotonic_ns())
    thread.join()
    assert collect_all(lane)[0].begin_ns[0] >= 0


def test_a_gate_opens_once():
    start = StartGate()
    with pytest.raises(RuntimeError):
        start.open(0)
    start.open(7)
    with pytest.raises(RuntimeError):
        start.open(8)
    assert start.t0_ns == 7


@pytest.mark.parametrize("where", ["gate", "feeder"])
def test_a_stop_ends_a_lane_that_waits(core, where):
    start, stop = StartGate(), StopFlag()
    if where == "feeder":
        start.open(time.monotonic_ns())
    lane = make_lane(make_files([], core=core), pace=Pace.NONE, start=start, stop=stop)
    thread = threading.Thread(target=lane.run)
    thread.start()
    assert not stop.is_set()
    stop.set()
    thread.join()
    assert stop.is_set()
    assert lane.done
    assert collect_all(lane) == []


@pytest.mark.parametrize(
    "last", [(READ, 0, 0, 1, HOUR_NS), (SLEEP, -1, 0, HOUR_NS, 0), (SPIN, -1, 0, HOUR_NS, 0), (MARK, -1, 0, 0, HOUR_NS)]
)
def test_a_stop_leaves_what_was_done(core, data, last):
    start, stop = StartGate(), StopFlag()
    start.open(time.monotonic_ns())
    files = make_files([FileSlot(path=data, uses=100)], core=core)
    lane = make_lane(files, pace=Pace.ABSOLUTE, start=start, stop=stop)
    batch = make_batch((READ, 0, 0, 5, 0), (READ, 0, 1, 6, 0), last, (READ, 0, 0, 7, 0))
    lane.submit(batch)
    lane.submit(batch)
    thread = threading.Thread(target=lane.run)
    thread.start()
    while lane.items_done < 2:
        time.sleep(0)
    stop.set()
    thread.join()
    (completed,) = collect_all(lane)
    assert completed.count == 2 < len(completed.batch)
    assert completed.result.tolist() == [5, 6]
    for times in (completed.due_ns, completed.begin_ns, completed.end_ns):
        assert len(times) == 2
    files.close_all()
    assert data not in open_paths()


def test_the_timer_slack_of_the_thread_is_as_before(core):
    def slack():
        return Path("/proc/self/timerslack_ns").read_text()

    before = slack()
    run_lane(make_files([], core=core))
    assert slack() == before


# ---------------------------------------------------------------------------------------------- paces, on a real clock


def gaps(count):
    return [(i * 7919) % 90_000 for i in range(count)]


def test_absolute_items_are_due_at_their_time_and_never_earlier(core, data):
    files = make_files([FileSlot(path=data, uses=100)], core=core)
    due = np.cumsum(gaps(60))
    (completed,), _ = run_lane(files, make_batch(*((READ, 0, 0, 10, int(d)) for d in due)), pace=Pace.ABSOLUTE)
    assert np.array_equal(completed.due_ns, due)
    assert np.all(completed.begin_ns >= due)
    assert np.all(completed.begin_ns[1:] >= completed.end_ns[:-1])


def test_think_items_are_due_a_gap_after_the_previous_end(core, data):
    files = make_files([FileSlot(path=data, uses=100)], core=core)
    first, second = (make_batch(*((READ, 0, 0, 10, gap) for gap in gaps(30))) for _ in range(2))
    completed, _ = run_lane(files, first, second, pace=Pace.THINK)
    due, begin, end = (
        np.concatenate([getattr(done, name) for done in completed]) for name in ("due_ns", "begin_ns", "end_ns")
    )
    assert due[0] == gaps(1)[0]
    assert np.array_equal(due[1:], end[:-1] + (gaps(30) * 2)[1:])
    assert np.all(begin >= due)


def test_without_pace_items_are_due_when_they_begin(core, data):
    files = make_files([FileSlot(path=data, uses=100)], core=core)
    (completed,), _ = run_lane(files, make_batch(*((READ, 0, 0, 10, HOUR_NS) for _ in range(60))), pace=Pace.NONE)
    assert np.array_equal(completed.due_ns, completed.begin_ns)
    assert np.all(completed.begin_ns[1:] >= completed.end_ns[:-1])


# ------------------------------------------------------------------------------------------- both cores do the same

LENGTHS = st.one_of(st.integers(0, 300), st.sampled_from([4096, 5000, 70_000, -1]))
OFFSETS = st.one_of(st.integers(0, 20_000), st.just(-3))
ITEMS = st.one_of(
    st.tuples(st.just(READ), st.integers(-1, 4), OFFSETS, LENGTHS, st.integers(-100, 20_000)),
    st.tuples(st.just(WRITE), st.integers(-1, 4), OFFSETS, LENGTHS, st.integers(-100, 20_000)),
    st.tuples(st.sampled_from([SLEEP, SPIN, MARK]), st.just(-1), st.just(0), st.integers(-5, 20_000), st.just(0)),
    st.tuples(
        st.sampled_from([OPEN, CLOSE, STAT, SYNC, SEEK]), st.integers(-1, 4), OFFSETS, st.just(0), st.integers(0, 9_000)
    ),
    st.tuples(st.just(RENAME), st.integers(-1, 4), st.integers(-1, 4), st.just(0), st.just(0)),
)
ALONE = st.sampled_from(
    [
        PosixBackend(),
        PosixBackend(pieces=3),
        DirectPosixBackend(),
        DirectPosixBackend(pieces=2),
        StdioBackend(),
        NullBackend(),
    ]
)
MIXED = st.lists(st.sampled_from([PosixBackend(), StdioBackend(), NullBackend()]), min_size=4, max_size=4)
BACKENDS = st.one_of(ALONE, st.just(StdioBackend()), MIXED)
PLANS = st.lists(st.lists(ITEMS, min_size=1, max_size=12), min_size=1, max_size=4)


def run_plan(folder, core, plan, pace, uses, backend):
    """Everything that a plan leaves: results, dues, file contents by size, open files, failures."""
    folder.mkdir()
    for index, size in enumerate((0, 100, 9_000)):
        (folder / f"f{index}").write_bytes(bytes(range(250)) * (size // 250) + bytes(size % 250))
    slots = [
        FileSlot(path=bytes(folder / "f0"), writable=True, uses=uses[0]),
        FileSlot(path=bytes(folder / "f1"), uses=uses[1]),
        FileSlot(path=bytes(folder / "f2"), writable=True, uses=uses[2]),
        FileSlot(path=bytes(folder / "f3"), writable=True, create=True, uses=uses[3]),
    ]
    files = make_files(slots, backend=backend, core=core)
    assert files.core == core
    assert len(files) == len(slots)
    completed, lane = run_lane(files, *(make_batch(*items) for items in plan), pace=pace)
    still_open = [path for path in open_paths() if path.startswith(bytes(folder))]
    files.close_all()
    for done in completed:
        assert np.all(done.begin_ns >= done.due_ns)
        assert np.all(done.end_ns >= done.begin_ns)
        assert np.all(done.begin_ns[1:] >= done.end_ns[:-1])
        if pace is Pace.NONE:
            assert np.array_equal(done.due_ns, done.begin_ns)
    return {
        "results": [done.result.tolist() for done in completed],
        "due": [done.due_ns.tolist() for done in completed] if pace is Pace.ABSOLUTE else None,
        "done": lane.items_done,
        "sizes": {path.name: path.stat().st_size for path in sorted(folder.iterdir())},
        "holes": {path.name: zeros(path) for path in sorted(folder.iterdir())},
        "open": sorted(os.path.basename(path) for path in still_open),
        "open at the end": [path for path in open_paths() if path.startswith(bytes(folder))],
        "not direct": lane.not_direct,
        "failures": [(failure.slot, failure.call, failure.errno) for failure in files.failures()],
    }


def zeros(path):
    """Pages of 64 bytes that nothing was written to: a random one of that size is never all zero."""
    content = path.read_bytes()
    return [begin for begin in range(0, len(content), 64) if not any(content[begin : begin + 64])]


@settings(max_examples=150)
@given(
    plan=PLANS,
    pace=st.sampled_from(list(Pace)),
    uses=st.lists(st.integers(0, 12), min_size=4, max_size=4),
    backend=BACKENDS,
)
def test_both_cores_do_the_same(tmp_path_factory, plan, pace, uses, backend):
    pytest.importorskip("replay._issue")
    folder = tmp_path_factory.mktemp("plans")
    if isinstance(backend, DirectPosixBackend):
        needs_direct(folder)
    python, compiled = (run_plan(folder / core, core, plan, pace, uses, backend) for core in ("python", "compiled"))
    assert python["open at the end"] == []
    assert compiled == python


def needs_direct(folder):
    try:
        check_direct(folder, [])
    except TargetError as error:
        pytest.skip(str(error))


def test_both_cores_have_the_same_constants():
    constants = pytest.importorskip("replay._issue").CONSTANTS
    homes = (issue, clock_module, items, base, lane_files, posix)
    shared = {name: next((getattr(home, name) for home in homes if hasattr(home, name)), None) for name in constants}
    assert {name: value for name, value in shared.items() if value is not None} == {
        name: value for name, value in constants.items() if "BUCKET" not in name
    }


# ----------------------------------------------------------------------- the Python loop on a fake clock, exactly


def fake_lane(clock, *, pace=Pace.ABSOLUTE, slots=2, stop=None, **backend_options):
    """A Python lane over the fake back end, started at T0."""
    clock.time_ns = T0
    start = StartGate()
    start.open(T0)
    backend = FakeBackend(clock, **backend_options)
    files = PythonFiles([FileSlot(path=b"/f%d" % i, writable=True, uses=100) for i in range(slots)], backend)
    lane = PythonLane(files, pace=pace, start=start, stop=stop or StopFlag(), clock=clock)
    return lane, backend


def finish(lane, *batches):
    for batch in batches:
        assert lane.submit(batch)
    lane.finish()
    lane.run()
    return collect_all(lane)


def test_a_wait_sleeps_to_the_window_in_pieces_then_spins():
    clock = FakeClock(0, read_ns=7)
    end = wait_until(clock, 120_000_000, 0, StopFlag())
    assert clock.sleeps == [PIECE_NS, 2 * PIECE_NS + 7, 120_000_000 - WINDOW_NS]
    assert 120_000_000 <= end < 120_000_000 + 7
    assert clock.time_ns == end


def test_a_wait_within_the_window_does_not_sleep():
    clock = FakeClock(0, read_ns=10)
    assert wait_until(clock, WINDOW_NS, 0, StopFlag()) == WINDOW_NS
    assert clock.sleeps == []


def test_a_sleep_that_ends_early_is_continued():
    clock = FakeClock(0, read_ns=1)
    clock.sleep_until = lambda deadline: setattr(clock, "time_ns", (clock.time_ns + deadline) // 2)
    assert wait_until(clock, 1_000_000, 0, StopFlag()) == 1_000_000


def test_begin_is_the_read_before_the_call_and_end_the_one_after():
    lane, backend = fake_lane(FakeClock(read_ns=1), transfer_ns=5_000)
    (done,) = finish(lane, make_batch((READ, 0, 10, 20, 1_000_000), (WRITE, 1, 30, 40, 2_000_000)))
    assert done.due_ns.tolist() == [1_000_000, 2_000_000]
    assert done.begin_ns.tolist() == [1_000_000, 2_000_000]
    assert done.end_ns.tolist() == [1_005_001, 2_005_001]
    assert [call for call in backend.calls if call[0] not in ("open", "close")] == [
        ("read", b"/f0", 10, 20),
        ("write", b"/f1", 30, 40),
    ]


def test_late_items_are_issued_at_once_and_the_schedule_does_not_move():
    lane, _ = fake_lane(FakeClock(read_ns=1), transfer_ns=3_000_000)
    (done,) = finish(lane, make_batch(*((READ, 0, 0, 1, due) for due in (0, 1_000_000, 2_000_000, 20_000_000))))
    assert done.due_ns.tolist() == [0, 1_000_000, 2_000_000, 20_000_000]
    lag = done.begin_ns - done.due_ns
    assert lag.tolist() == [1, 2_000_003, 4_000_005, 0]


def test_opening_comes_before_the_wait_and_is_not_latency():
    lane, backend = fake_lane(FakeClock(read_ns=1), open_ns=400_000, transfer_ns=100)
    (done,) = finish(lane, make_batch((READ, 0, 0, 1, 1_000_000), (READ, 1, 0, 1, 1_200_000)))
    assert done.begin_ns[0] == 1_000_000
    assert (done.end_ns - done.begin_ns).tolist() == [101, 101]
    assert done.begin_ns[1] - done.due_ns[1] > 200_000  # the open took longer than the gap
    assert [call[0] for call in backend.calls] == ["open", "read", "open", "read"]


def test_think_time_counts_from_the_previous_end():
    lane, _ = fake_lane(FakeClock(read_ns=1), pace=Pace.THINK, transfer_ns=9_000)
    (done,) = finish(lane, make_batch((READ, 0, 0, 1, 50_000), (READ, 0, 0, 1, 70_000), (SLEEP, -1, 0, 500_000, 0)))
    assert done.due_ns[0] == 50_000
    assert done.due_ns[1:].tolist() == [done.end_ns[0] + 70_000, done.end_ns[1]]
    # Compute begins when the read has ended, whenever the lane comes to it.
    assert done.end_ns[2] == done.due_ns[2] + 500_000


def test_an_error_costs_no_call():
    lane, backend = fake_lane(FakeClock(), missing=frozenset({b"/f0"}))
    (done,) = finish(lane, make_batch((READ, 0, 0, 1, 0), (WRITE, 0, 0, 1, 0), (READ, 1, -1, 1, 0), (READ, 1, 0, 1, 0)))
    assert done.result.tolist() == [-errno.ENOENT, -errno.ENOENT, -errno.EINVAL, 1]
    assert backend.calls == [("open", b"/f0"), ("open", b"/f1"), ("read", b"/f1", 0, 1)]


@pytest.mark.parametrize(("due_ns", "starved"), [(0, 700_000), (400_000, 300_000), (900_000, 0)])
def test_starving_is_waiting_for_the_feeder_while_an_item_is_due(due_ns, starved):
    """The batch is there 0.7 ms after the start; its item could have begun at max(start, due)."""
    clock = FakeClock(read_ns=0, oversleep_ns=0)
    lane, _ = fake_lane(clock)

    def feed(deadline_ns):
        clock.read_ns = 1  # from now on a spin ends
        if deadline_ns >= T0 + 700_000 and not lane._no_more:
            clock.time_ns = T0 + 700_000
            lane.submit(make_batch((READ, 0, 0, 1, due_ns)))
            lane.finish()

    clock.on_sleep = feed
    lane.run()
    assert lane.starved_ns == pytest.approx(starved, abs=max(FEED_POLL_NS, 700_000 >> 3) + 100)  # a look late at most
    assert (lane.starved_ns == 0) == (starved == 0)


def test_a_stop_in_a_long_wait_is_noticed_within_a_piece():
    stop = StopFlag()
    clock = FakeClock(read_ns=1)
    lane, backend = fake_lane(clock, stop=stop)
    clock.on_sleep = lambda deadline: stop.set() if len(clock.sleeps) == 3 else None
    (done,) = finish(lane, make_batch((MARK, -1, 0, 0, 0), (READ, 0, 0, 1, HOUR_NS)))
    assert done.count == 1
    assert len(clock.sleeps) == 4
    assert clock.time_ns <= T0 + 4 * PIECE_NS + 100
    assert backend.calls == [("open", b"/f0")]


def test_a_bug_in_a_back_end_reaches_the_feeder_after_the_results():
    lane, backend = fake_lane(FakeClock())

    def broken(*arguments):
        raise ZeroDivisionError

    backend.write = broken
    for batch in (make_batch((READ, 0, 0, 1, 0), (WRITE, 0, 0, 1, 0)), make_batch((READ, 0, 0, 1, 0))):
        lane.submit(batch)
    lane.finish()
    lane.run()
    assert lane.done
    assert lane.collect().result.tolist() == [1]
    with pytest.raises(ZeroDivisionError):
        lane.collect()


def test_a_failed_close_is_reported():
    lane, backend = fake_lane(FakeClock())

    def full(handle):
        raise OSError(errno.ENOSPC, "no space")

    backend.close = full
    finish(lane, make_batch((READ, 1, 0, 1, 0)))
    lane._files._files.close_all()
    assert [(failure.slot, failure.call, failure.errno) for failure in lane._files._files.failures()] == [
        (1, "close", errno.ENOSPC)
    ]


# -------------------------------------------------------------------------------------------------- choice of core


def test_the_environment_decides_in_place_of_auto(monkeypatch):
    monkeypatch.setenv("DXT_REPLAY_CORE", "python")
    assert choose_core().name == "python"
    assert choose_core().warning is None
    assert make_files([]).core == "python"
    monkeypatch.setenv("DXT_REPLAY_CORE", "fast")
    with pytest.raises(UsageError, match="fast"):
        choose_core()
    assert choose_core("python").name == "python"


def test_a_missing_compiled_core_is_a_warning_or_an_error(monkeypatch):
    monkeypatch.delenv("DXT_REPLAY_CORE", raising=False)
    monkeypatch.setitem(__import__("sys").modules, "replay._issue", None)
    chosen = choose_core()
    assert chosen.name == "python"
    assert "C compiler" in chosen.warning
    with pytest.raises(ReplayError, match="C compiler"):
        choose_core("compiled")
    monkeypatch.setenv("DXT_REPLAY_CORE", "compiled")
    with pytest.raises(ReplayError, match="C compiler"):
        make_files([])


def test_other_back_ends_run_in_python(core):
    class Wrapped(PosixBackend):
        pass

    assert make_files([], backend=Wrapped(), core=core).core == "python"
    assert make_files([], backend=PosixBackend(), core=core).core == core
    slots = [FileSlot(path=b"/a"), FileSlot(path=b"/b")]
    assert make_files(slots, backend=[StdioBackend(), PosixBackend()], core=core).core == core
    assert make_files(slots, backend=[Wrapped(), PosixBackend()], core=core).core == "python"
    assert make_files(slots, backend=[PosixBackend(), PosixBackend(pieces=2)], core=core).core == "python"
    with pytest.raises(ValueError, match="zip"):
        make_files(slots, backend=[StdioBackend()], core=core)


def test_a_lane_needs_a_table_of_this_module():
    with pytest.raises(TypeError, match="make_files"):
        make_lane(object(), pace=Pace.NONE, start=StartGate(), stop=StopFlag())


# ------------------------------------------------------------------------------------------- counters between lanes


def counters_of(count):
    return Counters.of(count)


def started():
    """A gate that is open."""
    start = StartGate()
    start.open(time.monotonic_ns())
    return start


def lane_with(counters, core, *batches, start=None, stop=None):
    """A lane whose batches are submitted, ready to run."""
    start = start or started()
    files = make_files([], core=core)
    lane = make_lane(files, pace=Pace.THINK, start=start, stop=stop or StopFlag(), counters=counters)
    for batch in batches:
        assert lane.submit(batch)
    lane.finish()
    return lane


def test_a_lane_adds_to_counters_and_goes_on_where_they_suffice(core):
    counters = counters_of(2)
    lane = lane_with(counters, core, make_batch((ADD, 1, 1, 3, 0), (WAIT, 1, 1, 3, 0), (WAIT, 0, 1, 0, 0)))
    lane.run()
    (done,) = collect_all(lane)
    assert done.result.tolist() == [0, 0, 0]
    assert counters.cells[:, 0].tolist() == [0, 3]


def test_lanes_take_turns_through_counters(core):
    counters, rounds = counters_of(2), 200
    ping = [item for k in range(rounds) for item in ((ADD, 0, 1, 1, 0), (WAIT, 1, 1, k + 1, 0))]
    pong = [item for k in range(rounds) for item in ((WAIT, 0, 1, k + 1, 0), (ADD, 1, 1, 1, 0))]
    start = started()
    lanes = [lane_with(counters, core, make_batch(*items), start=start) for items in (ping, pong)]
    threads = [threading.Thread(target=lane.run) for lane in lanes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (first,), (second,) = map(collect_all, lanes)
    # each wait ended after the addition that it waited for had begun
    assert (second.end_ns[0::2] >= first.begin_ns[0::2]).all()
    assert (first.end_ns[1::2] >= second.begin_ns[1::2]).all()
    assert counters.cells[:, 0].tolist() == [rounds, rounds]


def test_a_waiting_lane_is_woken_by_a_python_thread(core):
    counters = counters_of(1)
    lane = lane_with(counters, core, make_batch((WAIT, 0, 2, 2, 0)))
    thread = threading.Thread(target=lane.run)
    thread.start()
    counters.add(0, 1, 2, time.monotonic_ns())
    assert thread.is_alive()
    counters.add(0, 1, 2, time.monotonic_ns())
    thread.join()
    assert collect_all(lane)[0].result.tolist() == [0]


def test_a_stop_ends_a_wait_for_a_counter(core):
    stop, counters = StopFlag(), counters_of(2)
    lane = lane_with(counters, core, make_batch((ADD, 1, 1, 1, 0), (WAIT, 0, 1, 1, 0)), stop=stop)
    thread = threading.Thread(target=lane.run)
    thread.start()
    while not counters.value(1):
        thread.join(0.001)
    stop.set()
    thread.join()
    assert lane.done
    assert collect_all(lane)[0].count == 1


def test_a_counter_that_there_is_not_is_an_error_of_the_item(core):
    lane = lane_with(counters_of(1), core, make_batch((WAIT, 1, 1, 5, 0), (ADD, -1, 1, 5, 0), (ADD, 0, 1, 5, 0)))
    lane.run()
    (done,) = collect_all(lane)
    assert done.result.tolist() == [-errno.EINVAL, -errno.EINVAL, 0]


def test_a_wait_is_due_first(core):
    counters = counters_of(1)
    lane = lane_with(counters, core, make_batch((ADD, 0, 1, 1, 0), (WAIT, 0, 1, 1, 200_000)))
    lane.run()
    (done,) = collect_all(lane)
    assert done.begin_ns[1] >= done.due_ns[1] == done.end_ns[0] + 200_000


def test_an_addition_that_wakes_at_no_multiple_is_refused():
    with pytest.raises(ValueError, match="multiple of 1"):
        make_batch((ADD, 0, 0, 1, 0))
