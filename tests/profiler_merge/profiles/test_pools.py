"""Threads of a pool that reads ahead: each takes requests in turn, whatever Darshan counted for another file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dxt_replay.profiler_merge import recording as mark
from dxt_replay.profiler_merge.profiles.marks import (
    MARK,
    ProcessMarks,
    RankMarks,
    RankOperations,
    batches_of,
    processor_times,
    training_loop,
)
from dxt_replay.profiler_merge.profiles.pools import asked, pool_of, spread
from dxt_replay.traces.schema import OPS, READ, RECONSTRUCTED, TRACED

MS, US = 1_000_000, 1_000
BATCHES, EACH, THREADS, PERIOD_NS = 40, 6, 3, 25 * MS
OPEN, CLOSE = OPS.index("open"), OPS.index("close")


def operations(stray: bool, lost: bool) -> RankOperations:
    """Two passes over 120 files, 6 a batch, each with an open, two reads and a close; bursts of three threads.

    stray: two reads were counted for files that were read two batches before. lost: the second visits of two files were
    not seen, but for their opens, and these files were read at both ends of their batch.
    """
    rows = []
    for number in range(BATCHES * EACH):
        batch, place = divmod(number, EACH)
        begin, file = batch * PERIOD_NS + place // THREADS * 600 * US + place % THREADS * 30 * US, number % 120
        gone = lost and number in (120 + 11, 120 + 17)
        rows.append((begin, begin, OPEN, RECONSTRUCTED, file))
        if not gone:
            counted = file - 2 * EACH if stray and number in (26, 33) else file
            rows.append((begin, begin + 100 * US, READ, TRACED, counted))
            rows.append((begin + 200 * US, begin + 300 * US, READ, RECONSTRUCTED, file))
            rows.append((begin + 300 * US, begin + 301 * US, CLOSE, RECONSTRUCTED, file))
    start, end, op, origin, file = np.array(sorted(rows), dtype=np.int64).T
    lanes = np.arange(len(start)) % THREADS + 1
    return RankOperations(
        pid=np.zeros(len(start), dtype=np.int64), lane=lanes, start_ns=start, end_ns=end, op=op, origin=origin,
        file_id=file, threads={},
    )  # fmt: skip


@pytest.mark.parametrize(("stray", "lost"), [(False, False), (True, False), (False, True)])
def test_no_thread_is_busy_with_what_belongs_to_another_visit(stray: bool, lost: bool) -> None:
    made = operations(stray, lost)
    begin = np.arange(BATCHES) * PERIOD_NS + 20 * MS
    pool = pool_of(made, np.arange(len(made.op)), begin, begin + MS)
    assert pool is not None
    assert pool.threads == THREADS
    assert np.unique([pool.request, pool.after], axis=1).shape[1] == pool.request.max() + 1  # none is held once begun
    lane, start, _ = spread(pool, made)
    for one in range(1, THREADS + 1):
        own = np.sort(start[(lane == one) & (made.op[pool.rows] == READ)])
        assert np.diff(own).max() < 2 * PERIOD_NS
        assert len(own) == pytest.approx(2 * BATCHES * EACH / THREADS, rel=0.1)


def reads(lane: np.ndarray, start: np.ndarray, lasted: int) -> RankOperations:
    """Reads of one file each."""
    every = {"pid": 0 * start, "op": np.full(len(start), READ), "origin": np.full(len(start), TRACED), "threads": {}}
    return RankOperations(lane=lane, start_ns=start, end_ns=start + lasted, file_id=np.arange(len(start)), **every)


def test_a_thread_that_slow_storage_keeps_busy_may_still_read_a_batch_ahead() -> None:
    """It reads 4 files a batch, 35 ms in 45; the loop takes a batch, computes 20 ms and waits for the next one."""
    number = np.arange(BATCHES * 4)
    made = reads(0 * number + 1, number // 4 * 45 * MS + number % 4 * 9 * MS, 8 * MS)
    taken = np.arange(BATCHES) * 45 * MS + 35 * MS
    pool = pool_of(made, number, taken - 15 * MS, taken, elsewhere=True)
    assert pool is not None
    assert (pool.batch == number // 4).all()
    assert (pool.after == np.maximum(pool.batch - 1, -1)).all()  # a batch begins when the one before is asked for


def test_threads_that_make_whole_batches_of_a_loop_that_waits_for_two_at_once() -> None:
    """Two threads read four files of a batch each, one after the other: 80 ms for two batches that last 20 each."""
    pair, file, thread = np.indices((20, 4, 2)).reshape(3, -1)
    start = pair * 81 * MS + file * 20 * MS + thread * MS
    made = reads(thread + 1, start, 19_900 * US)
    ended = start.reshape(20, 4, 2)[:, -1].ravel() + 19_900 * US
    begin = np.where(np.arange(40) % 2 == 0, ended - 41 * MS, ended)
    pool = pool_of(made, np.arange(len(start)), begin, ended)
    assert pool is not None
    assert (pool.batch == 2 * pair + thread).all()
    lane = spread(pool, made)[0]
    assert all(len(set(lane[pool.batch == each].tolist())) == 1 for each in range(40))


def test_threads_of_which_each_step_asks_share_a_batch_and_wait_for_the_loop_alone() -> None:
    """Each step maps 8 reads over four threads, of which the first does five: 2 ms in 30."""
    step, number = np.indices((BATCHES, 8)).reshape(2, -1)
    start = step * 30 * MS + np.array([0, 5, 10, 15, 80, 160, 240, 320])[number] * US
    made = reads(np.array([1, 2, 3, 4, 1, 1, 1, 1])[number], start, 75 * US)
    made.end_ns[np.isin(number, (1, 2, 3))] += 500 * US
    begin = np.arange(BATCHES) * 30 * MS + 20 * US  # it has begun the first requests when it comes to wait
    pool = pool_of(made, np.arange(len(start)), begin, begin + 2 * MS)
    assert pool is not None
    waiting = asked(pool, made, begin, begin + 2 * MS)
    assert (waiting.after == waiting.batch).all()
    assert (np.bincount(spread(waiting, made)[0]) == [0, *[2 * BATCHES] * 4]).all()
    assert asked(pool, made, begin + 10 * MS, begin + 12 * MS) is pool  # such requests are made ahead of the loop


def process(pid: int, *marks: tuple[int, ...]) -> ProcessMarks:
    """Marks of the thread that has the number of its process: ms, kind, number, group, ms of a processor."""
    rows = np.zeros(len(marks), dtype=MARK)
    ms, rows["kind"], rows["number"], rows["group"], cpu = np.array(marks).T
    rows["t"], rows["cpu"], rows["thread"] = ms * MS, cpu * MS, pid
    anchors = np.zeros((0, 4), dtype=np.int64)
    return ProcessMarks(path=Path("a"), host="h", pid=pid, parent=1, rank=-1, rows=rows, anchors=anchors)


def test_threads_that_began_before_the_loop_read_its_batches_and_what_was_read_before_them_is_none() -> None:
    """They read two files a batch side by side, three batches ahead of the loop. A list was read before they began."""
    kinds = ((0, mark.GET, 2), (1, mark.GET_END, 2), (2, mark.OPTIMIZER, 0))
    steps = [(10 * k + 130 + ms, kind, k, group, 0) for k in range(20) for ms, kind, group in kinds]
    marks = RankMarks(own=process(7, (90, mark.START, 0, 0, 0), (91, mark.START_END, 8, 0, 0), *steps))
    number = np.arange(40)
    start = np.append(50 * MS, 100 * MS + number // 2 * 10 * MS + number % 2 * MS)
    made = replace(reads(np.append(3, number % 2 + 1), start, 7 * MS), pid=np.full(41, 7))
    found = batches_of(marks, training_loop(marks.own), made, np.zeros(41, dtype=bool))
    assert found is not None
    assert found["feeds"].tolist() == [-1, *(number // 2).tolist()]


@pytest.mark.parametrize(("begin", "waited"), [(5, 7), (11, 1)])
def test_what_a_worker_did_before_its_first_batch_is_waited_for_where_that_batch_is(begin: int, waited: int) -> None:
    """It makes a batch in 4 or 2 ms, 3 or 2 of them on a processor, after 4 ms of imports."""
    took = 3 if begin == 5 else 2
    loop = [
        (1, mark.PASS, 0, 1, 0),
        (2, mark.TAKE, 0, 1, 0),
        (10, mark.TAKE_END, 0, 1, 0),
        (11, mark.OPTIMIZER, 0, 0, 0),
    ]
    loop += [
        (12, mark.TAKE, 1, 1, 0),
        (13, mark.TAKE_END, 1, 1, 0),
        (14, mark.OPTIMIZER, 1, 0, 0),
        (15, mark.PASS_END, 2, 1, 0),
    ]
    worker = process(
        8, (begin, mark.MAKE, 0, 1, 4), (begin + 4 if took == 3 else begin + 2, mark.MAKE_END, 0, 1, 4 + took)
    )
    own = process(7, *loop)
    found = processor_times(RankMarks(own=own, processes={7: own, 8: worker}))
    assert (found["wait_ns"], found["made_ns"]) == (9 * MS, waited * MS)
