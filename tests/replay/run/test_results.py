"""A lane between its source and its recorder, and from its results to totals, rows and spans."""

import errno

import numpy as np
import pytest

from dxt_replay.replay.causal.loop import FETCH
from dxt_replay.replay.engine.clock import StartGate, StopFlag
from dxt_replay.replay.engine.items import (
    MARK,
    OPERATION_ROW,
    READ_AHEAD,
    READ_AT,
    RENAME_ROW,
    SLEEP,
    Completed,
    LoopPace,
    add,
    gap,
    mark,
    operation_rows,
    rows_of_each,
    wait,
)
from dxt_replay.replay.plan.spill import SpillFile
from dxt_replay.replay.run.feeder import FedLane, Feeder
from dxt_replay.replay.run.recorded import ComputeRecorder, LaneRecorder, TimeCollector, rank_rows
from dxt_replay.replay.run.result import MOST_FAILURES, Tally
from dxt_replay.traces.schema import OPS, READ, RECONSTRUCTED, TRACED, WRITE
from tests.capture_builder import Span, spans_table
from tests.fakes import make_batch

STAT, RENAME, SEEK, OPEN = (OPS.index(name) for name in ("stat", "rename", "seek", "open"))


def completed(rows, begin, end, result=None, due=None):
    columns = (begin if due is None else due, begin, end, [0] * len(begin) if result is None else result)
    times = [np.array(values, dtype=np.int64) for values in columns]
    return Completed(items=rows, due_ns=times[0], begin_ns=times[1], end_ns=times[2], result=times[3])


class Ring:
    """A lane of the loop that does nothing by itself. `items_done`: as a test says."""

    done, items_done = False, 0

    def submit(self, items): ...

    def finish(self): ...

    def collect(self): ...


def test_operations_count_as_done_and_the_next_one_has_the_lag():
    kinds, ring = (MARK, READ_AT, SLEEP, READ_AT, MARK), Ring()
    batches = [make_batch(*((kind, 0, 0, 1, due + i) for i, kind in enumerate(kinds))) for due in (10, 20)]
    lane = FedLane(ring, "0.0", iter([*batches, batches[0][:0]]).__next__)
    lane.pump()
    gate = StartGate()
    gate.cell[0] = 100
    feeder = Feeder([lane], str.encode, gate, StopFlag(), LoopPace.ABSOLUTE, 4, 50)
    found = []
    for ring.items_done in range(11):
        progress = feeder._progress(122)
        found.append((progress.done, progress.lag_ns))
    done = (0, 0, 1, 1, 2, 2, 2, 3, 3, 4, 4)
    assert found == list(zip(done, (12, 11, 10, 9, 8, 2, 1, 0, 0, 0, 0), strict=True))


def operations(op, *, offset=0, length=0, origin=0):
    zeros = np.zeros(len(op), dtype=np.int32)
    return operation_rows(
        op=np.array(op), api=0, origin=origin, slot=zeros, file_id=zeros, step=0, offset=offset, length=length
    )


def recorder_of(*batches, lane=3):
    recorder = LaneRecorder(2, lane, SpillFile(), TimeCollector())
    for done in batches:
        recorder.record(done)
    return recorder


def test_totals_count_failures_short_counts_and_times():
    rows = operations([READ, WRITE, READ, READ], length=[10, 20, 30, 40])
    recorder = recorder_of(completed(rows, [0, 20, 40, 60], [5, 30, 44, 61], [10, 20, 0, -2], due=[0, 15, 40, 50]))
    tally = recorder.tally + recorder._times.tally()
    assert (tally.operations, tally.failed, tally.short, tally.errors) == (4, 1, 1, {2: 1})
    assert (tally.bytes_read, tally.bytes_written, tally.last_end_ns) == (10, 20, 61)
    assert (tally.lag_ns.quantile(1.0), tally.latency_ns.quantile(1.0), tally.response_ns.quantile(1.0)) == (10, 10, 15)
    assert {op: times.maximum for op, times in tally.latency_by_op.items()} == {READ: 5, WRITE: 10}
    failures = tally.failures[["rank", "lane", "begin_ns", "length", "result"]].tolist()
    assert failures == [(2, 3, 40, 30, 0), (2, 3, 60, 40, -2)]
    both = tally + tally
    assert (both.operations, both.errors, both.last_end_ns, both.lag_ns.count) == (8, {2: 2}, 61, 8)
    assert len(sum([tally] * 20, Tally()).failures) == MOST_FAILURES
    (table,) = rank_rows(2, [recorder.rows])
    row = table.to_pylist()[-1]
    assert (row["rank"], row["length"], row["result"], row["due_ns"], row["op"]) == (2, 0, -2, 50, "read")


def test_a_reconstructed_operation_that_finds_nothing_is_no_failure():
    rows = operations([STAT, RENAME, STAT, READ, STAT], origin=RECONSTRUCTED, length=[0, 0, 0, 9, 0])
    refused = completed(rows, [0] * 5, [1] * 5, [-errno.ENOENT, -errno.ENOTDIR, -errno.EIO, -2, 0])
    rebuilt = completed(operations([READ], origin=RECONSTRUCTED, length=9), [0], [1], [5])
    traced = completed(operations([STAT], origin=TRACED), [0], [1], [-errno.ENOENT])
    tally = recorder_of(refused, rebuilt, traced).tally
    assert (tally.failed, tally.short, tally.errors) == (3, 0, {errno.EIO: 1, errno.ENOENT: 2})
    assert tally.refused == {errno.ENOENT: 1, errno.ENOTDIR: 1}


def test_operations_are_recorded_as_the_capture_had_them_and_other_items_are_not():
    rows = operations([RENAME, OPEN, SEEK], offset=[-1, READ_AHEAD, 77])
    rows.view(RENAME_ROW)[["new_slot", "new_file_id"]][0] = (12, 5)
    rows = np.concatenate((rows_of_each([gap(kind=SLEEP, duration_ns=1)]), rows))
    (table,) = rank_rows(0, [recorder_of(completed(rows, range(4), range(4))).rows])
    columns = ("op", "offset", "length", "other_file_id", "lane")
    assert [tuple(row[name] for name in columns) for row in table.to_pylist()] == [
        ("rename", -1, 0, 5, 3),
        ("open", -1, 0, None, 3),
        ("seek", 77, 0, None, 3),
    ]
    assert rows.view(OPERATION_ROW)["offset"][1] == 12, "the plan is as it was"


EVENT = {"event": 5, "event_kind": FETCH, "step": 7}


@pytest.mark.parametrize(
    ("items", "begin", "end", "expected"),
    [
        (
            # A step lies between its marks, and compute moves with its gap.
            [
                mark(is_end=0, step=7),
                gap(kind=SLEEP, recorded_ns=1010, duration_ns=80, step=7, due_ns=10),
                mark(is_end=1, step=7, due_ns=100),
            ],
            [2, 13, 104],
            [2, 94, 104],
            [("step", 7, 2, 104), ("compute", 7, 13, 18), ("compute", 7, 23, 33), ("compute", 7, 83, 94)],
        ),
        (
            # A fetch is over when it is announced, not when all are awake.
            [
                add(counter=2, **EVENT),
                wait(counter=4, until=1, **EVENT),
                gap(kind=SLEEP, duration_ns=9, **EVENT),
                add(counter=3, **EVENT),
            ],
            [10, 30, 50, 60],
            [30, 50, 60, 90],
            [("input_wait", 7, 10, 60)],
        ),
        ([mark(is_end=0, step=7)], [2], [2], []),
    ],
)
def test_spans_of_the_training_thread(items, begin, end, expected):
    recorder = ComputeRecorder()
    recorder.record(completed(rows_of_each(items), begin, end))
    computed = [Span("compute", *limits) for limits in ((1000, 1015), (1020, 1030), (1080, 1200))]
    found = recorder.spans(1, spans_table([Span("step", 990, 1300, step=7), *computed])).to_pylist()
    assert [(each["kind"], each["step"], each["start_ns"], each["end_ns"]) for each in found] == expected
    assert (recorder.last_end_ns, {each["rank"] for each in found}) == (end[-1], {1} if found else set())
