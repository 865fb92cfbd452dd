"""Open files of the issue loop: when they are opened and closed, and who shares them."""

from __future__ import annotations

import errno
import os
import resource
import threading
import time

import pytest

from dxt_replay.replay.engine.clock import StopFlag
from dxt_replay.replay.engine.files import FileSlot
from dxt_replay.replay.engine.issue import Files, Lane
from dxt_replay.replay.engine.items import AWAITS_OPEN, MARK, NO_OPEN, OPENS, READ_AT, SEEK, LoopPace
from dxt_replay.traces.errors import ReplayError
from tests.fakes import make_batch
from tests.replay.engine.issue_lanes import HOUR_NS, collect_all, open_paths, results, run_together, started


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


def test_the_last_use_closes_before_the_next_wait(data):
    """A file is not held open over a pause, because on a network file system closing is when data is written back."""
    start, stop = started(), StopFlag()
    files = Files([FileSlot(path=data, uses=1)])
    lane = Lane(files, pace=LoopPace.ABSOLUTE, start=start, stop=stop)
    lane.submit(make_batch((READ_AT, 0, 0, 10, 0), (MARK, -1, 0, 0, HOUR_NS)))
    thread = threading.Thread(target=lane.run)
    thread.start()
    while data in open_paths() or lane.items_done < 1:
        time.sleep(0)
    stop.set()
    thread.join()
    assert collect_all(lane)[0].count == 1


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


def test_a_lane_that_waited_for_an_open_shares_what_it_gave(tmp_path):
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    files = Files([FileSlot(path=bytes(fifo), uses=3)])
    start = started()
    lanes = [Lane(files, pace=LoopPace.NONE, start=start, stop=StopFlag()) for _ in range(3)]
    threads = [threading.Thread(target=lane.run) for lane in lanes]
    for lane, thread, state in zip(lanes, threads, (OPENS, AWAITS_OPEN, AWAITS_OPEN), strict=True):
        lane.submit(make_batch((READ_AT, 0, 0, 10, 0)))
        lane.finish()
        thread.start()
        while lane.opening != state:
            time.sleep(0.001)
    with open(fifo, "wb"):
        for thread in threads:
            thread.join()
    assert [done.result.tolist() for lane in lanes for done in collect_all(lane)] == [[-errno.ESPIPE]] * 3
    assert bytes(fifo) not in open_paths(), "all three were counted as uses"


def test_too_small_a_count_of_uses_costs_another_open_only(data):
    files = Files([FileSlot(path=data, uses=1)])
    assert results(files, *[(READ_AT, 0, 0, 10, 0)] * 5) == [10] * 5
    assert data not in open_paths()


def test_the_limit_of_descriptors_is_raised_for_many_slots():
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (300, limits[1]))
    try:
        Files([FileSlot(path=b"/none")] * 200)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 400
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_lanes_share_files(tmp_path):
    paths = [tmp_path / f"f{i}" for i in range(3)]
    for path in paths:
        path.write_bytes(bytes(5000))
    lanes, items = 6, 600
    files = Files([FileSlot(path=bytes(path), uses=lanes * items // 3) for path in paths])
    running = [Lane(files, pace=LoopPace.NONE, start=started(), stop=StopFlag()) for _ in range(lanes)]
    for number, lane in enumerate(running):
        lane.submit(make_batch(*((READ_AT, (i + number) % 3, i, 100, 0) for i in range(items))))
    run_together(*running)
    assert all(completed.result.tolist() == [100] * items for lane in running for completed in collect_all(lane))
    assert not set(open_paths()) & {bytes(path) for path in paths}


@pytest.mark.parametrize("path", [b"", b"/a\0b"])
def test_a_path_that_cannot_be_is_refused(path):
    with pytest.raises(ReplayError, match="not the path of a file"):
        FileSlot(path=path)
