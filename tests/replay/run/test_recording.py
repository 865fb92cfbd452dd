import errno

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from dxt_replay.replay.causal.loop import FETCH
from dxt_replay.replay.engine.items import SLEEP, Completed
from dxt_replay.replay.plan.plan_row import Add, Gap, Mark, Wait, operation_rows, rows_of_each
from dxt_replay.replay.plan.row_queue import RowQueue, SpillFile
from dxt_replay.replay.run.recording import (
    RESULT_ROW,
    ComputeRecorder,
    ComputeStructure,
    LaneRecorder,
    Tally,
    rank_rows,
)
from dxt_replay.traces.schema import OPS, READ, RECONSTRUCTED, SPAN_KINDS, TRACED, WRITE, codes
from tests.examples import examples


def completed(rows, begin, end, result, due=None):
    times = [np.array(values, dtype=np.int64) for values in (due if due is not None else begin, begin, end, result)]
    return Completed(items=rows, due_ns=times[0], begin_ns=times[1], end_ns=times[2], result=times[3])


def operations(op, *, offset=0, length=0, origin=0):
    zeros = np.zeros(len(op), dtype=np.int32)
    return operation_rows(
        op=np.array(op), api=0, origin=origin, slot=zeros, file_id=zeros, step=0, offset=offset, length=length
    )


def test_totals_count_failures_short_counts_and_times():
    recorder = LaneRecorder(3, SpillFile())
    rows = operations([READ, WRITE, READ, READ], length=[10, 20, 30, 40])
    recorder.record(rows, completed(rows, [0, 20, 40, 60], [5, 30, 44, 61], [10, 20, 7, -2], due=[0, 15, 40, 50]))
    tally = recorder.tally(starved_ns=9) + recorder.times.tally()
    assert (tally.operations, tally.failed, tally.short, tally.errors) == (4, 1, 1, {2: 1})
    assert (tally.bytes_read, tally.bytes_written, tally.last_end_ns, tally.starved_ns) == (17, 20, 61, 9)
    assert (tally.lag_ns.quantile(1.0), tally.latency_ns.quantile(1.0), tally.response_ns.quantile(1.0)) == (10, 10, 15)
    both = tally + tally
    assert (both.operations, both.errors, both.last_end_ns, both.lag_ns.count) == (8, {2: 2}, 61, 8)


def test_a_reconstructed_operation_that_finds_nothing_is_no_failure():
    recorder = LaneRecorder(0, SpillFile())
    stat, rename = OPS.index("stat"), OPS.index("rename")
    rows = operations([stat, rename, stat, READ, stat], origin=RECONSTRUCTED)
    recorder.record(rows, completed(rows, [0] * 5, [1] * 5, [-errno.ENOENT, -errno.ENOTDIR, -errno.EIO, -2, 0]))
    rows = operations([stat], origin=TRACED)
    recorder.record(rows, completed(rows, [0], [1], [-errno.ENOENT]))
    tally = recorder.tally() + Tally(refused={errno.ENOENT: 4})
    assert (tally.failed, tally.errors) == (3, {errno.EIO: 1, errno.ENOENT: 2})
    assert tally.refused == {errno.ENOENT: 5, errno.ENOTDIR: 1}


@given(st.lists(st.lists(st.tuples(st.sampled_from(OPS), st.integers(0, 50)), min_size=1, max_size=6), max_size=5))
def test_latencies_are_kept_by_operation_and_together(batches):
    recorder, expected = LaneRecorder(0, SpillFile()), {}
    for batch in batches:
        rows = operations([OPS.index(name) for name, _ in batch])
        recorder.record(rows, completed(rows, [0] * len(batch), [time for _, time in batch], [0] * len(batch)))
        for name, time in batch:
            expected.setdefault(OPS.index(name), []).append(time)
    tally = recorder.times.tally()
    for total, times in ((tally, 1), (tally + tally, 2)):
        found = {op: each.values.repeat(each.counts).tolist() for op, each in total.latency_by_op.items()}
        assert found == {op: sorted(latencies * times) for op, latencies in expected.items()}
        assert list(found) == sorted(expected)
        assert total.latency_ns.count == times * sum(map(len, batches))


def test_a_stopped_batch_counts_only_what_was_done():
    recorder = LaneRecorder(0, SpillFile())
    rows = operations([READ, READ], length=10)
    recorder.record(rows, completed(rows, [1], [2], [10]))
    assert recorder.tally().operations == 1
    (table,) = rank_rows(0, [recorder.rows])
    assert table.num_rows == 1


@settings(max_examples=examples(50))
@given(st.lists(st.lists(st.integers(0, 1000), max_size=30).map(sorted), max_size=5), st.integers(1, 7))
def test_lanes_are_merged_in_start_order_and_nothing_is_lost(lanes, chunk):
    queues = []
    for lane, begins in enumerate(lanes):
        rows = np.zeros(len(begins), dtype=RESULT_ROW)
        rows["begin_ns"], rows["lane"], rows["op"] = begins, lane, READ
        rows["result"] = np.arange(len(begins))
        queue = RowQueue(RESULT_ROW, SpillFile())
        for part in np.array_split(rows, range(chunk, len(rows), chunk)):
            queue.append(part)
        queues.append(queue)
    tables = list(rank_rows(4, queues))
    table = pa.concat_tables(tables) if tables else None
    starts = table["start_ns"].to_pylist() if table else []
    assert starts == sorted(begin for lane in lanes for begin in lane)
    for lane, begins in enumerate(lanes):
        if table:
            mine = table.filter(pa.compute.equal(table["lane"], lane))
            assert mine["start_ns"].to_pylist() == begins
            assert mine["result"].to_pylist() == list(range(len(begins)))


def test_a_failed_operation_moved_nothing():
    recorder = LaneRecorder(0, SpillFile())
    rows = operations([READ], length=10)
    recorder.record(rows, completed(rows, [5], [6], [-13], due=[3]))
    (table,) = rank_rows(2, [recorder.rows])
    row = table.to_pylist()[0]
    assert (row["rank"], row["length"], row["result"], row["due_ns"], row["op"]) == (2, 0, -13, 3, "read")


def test_steps_lie_between_their_marks_and_compute_moves_with_its_gap():
    rows = rows_of_each(
        [
            Mark(is_end=0, step=7),
            Gap(kind=SLEEP, recorded_ns=1010, duration_ns=80, step=7, due_ns=10),
            Mark(is_end=1, step=7, due_ns=100),
        ]
    )
    recorder = ComputeRecorder()
    recorder.record(rows, completed(rows, [2, 13, 104], [2, 94, 104], [0, 0, 0]))
    structure = ComputeStructure(starts=np.array([1000, 1020, 1080]), ends=np.array([1015, 1030, 1200]))
    spans = recorder.spans(1, structure)
    kinds = codes(spans, "kind")
    step = spans.filter(pa.array(kinds == SPAN_KINDS.index("step"))).to_pylist()
    assert [(s["step"], s["start_ns"], s["end_ns"]) for s in step] == [(7, 2, 104)]
    busy = spans.filter(pa.array(kinds == SPAN_KINDS.index("compute"))).to_pylist()
    assert [(s["start_ns"], s["end_ns"]) for s in busy] == [(13, 18), (23, 33), (83, 94)]


def test_a_fetch_is_over_when_it_is_announced_not_when_all_are_awake():
    event = {"event": 5, "event_kind": FETCH, "step": 7}
    rows = rows_of_each(
        [
            Add(counter=2, **event),
            Wait(counter=4, until=1, **event),
            Gap(kind=SLEEP, duration_ns=9, **event),
            Add(counter=3, **event),
        ]
    )
    recorder = ComputeRecorder()
    recorder.record(rows, completed(rows, [10, 30, 50, 60], [30, 50, 60, 90], [0] * 4))
    (span,) = recorder.spans(1, ComputeStructure(starts=np.array([]), ends=np.array([]))).to_pylist()
    assert (span["kind"], span["step"], span["start_ns"], span["end_ns"]) == ("input_wait", 7, 10, 60)


def test_nothing_adds_up_to_nothing():
    total = sum([], Tally())
    assert (total.operations, total.lag_ns.count) == (0, 0)
