import numpy as np

from dxt_replay.replay.engine.items import (
    BATCH_ITEMS,
    CLOSE,
    GAP_ROW,
    MARK,
    OPEN,
    OPERATION_ROW,
    READ_AHEAD,
    RENAME,
    RENAME_ROW,
    RING_BATCHES,
    SEEK,
    SLEEP,
    STAT,
    SYNC,
    WRITE_AT,
)
from dxt_replay.replay.plan.layers import POSIX, STDIO, choose_layers, spans_by_rank, survey_rank
from dxt_replay.replay.plan.operations import (
    PROCESS_ITEMS,
    RankPlan,
    batch_items_of,
    compute_rows,
    process_slots,
)
from dxt_replay.replay.plan.pacing import Pace, Pacing
from dxt_replay.replay.plan.spill import SpillFile
from dxt_replay.traces.schema import OPEN_FLAGS
from tests.capture_builder import File, Op, Span, build_capture, read, write


def drained(source, lane):
    """All rows of a lane and the sizes of its batches."""
    batches = []
    while len(rows := source.pull(lane)):
        batches.append(rows)
    return np.concatenate(batches), [len(rows) for rows in batches]


def slots(rows):
    return rows.view(OPERATION_ROW)["slot"].tolist()


def durations(rows):
    return rows.view(GAP_ROW)["duration_ns"]


def compute_of(capture, *, pacing=None, compute="sleep"):
    return compute_rows(spans_by_rank(capture.spans, [0])[0], pacing or Pacing(), compute, origin_ns=100)


def planned(capture, pacing=None):
    survey = survey_rank(capture, 0, choose_layers(capture))
    _, _, (numbers,) = process_slots([survey])
    return RankPlan(capture, survey, numbers, pacing or Pacing(), origin_ns=100, spill=SpillFile())


def test_batches_never_exceed_what_the_loop_takes_and_think_carries_over_between_them(tmp_path):
    count = BATCH_ITEMS + 10
    ops = [read(0, start_ns=100 + 30 * i, end_ns=110 + 30 * i, length=1, offset=i) for i in range(count)]
    rows, sizes = drained(planned(build_capture(tmp_path, ops=ops, files=["/a", "/b"]), Pacing(pace=Pace.THINK)), 0)
    assert sizes == [BATCH_ITEMS, 10]
    assert rows.view(OPERATION_ROW)["offset"].tolist() == list(range(count))
    assert rows["due_ns"].tolist() == [0] + [20] * (count - 1)
    assert batch_items_of(1) == BATCH_ITEMS
    assert batch_items_of(512) * 512 * RING_BATCHES <= PROCESS_ITEMS
    assert batch_items_of(10**6) >= 1


def test_written_files_are_made_and_a_file_has_a_slot_for_each_back_end(tmp_path):
    ops = [read(0, start_ns=100), read(0, api="STDIO", start_ns=101, lane=1), *[write(1, start_ns=102)] * 2]
    capture = build_capture(tmp_path, ops=ops, files=["/a", "/b"])
    uses, writable, numbers = process_slots([survey_rank(capture, 0, choose_layers(capture))] * 2)
    assert uses.tolist() == [(0, POSIX, 1), (0, STDIO, 1), (1, POSIX, 2)] * 2
    assert writable.tolist() == [False, False, True] * 2
    assert [each[POSIX].tolist() for each in numbers] == [[0, 2], [3, 5]]
    source = planned(capture)
    assert [slots(drained(source, lane)[0]) for lane in (0, 1)] == [[0, 2, 2], [1]]


def test_operations_that_move_no_data_become_items(tmp_path):
    names = ("open", "seek", "stat", "sync", "close", "rename")
    sequential = 1 << OPEN_FLAGS.index("sequential")
    ops = [
        Op(op, 0, start_ns=100 + i, offset=77 if op == "seek" else -1, origin="reconstructed")
        for i, op in enumerate(names[:-1])
    ]
    ops.append(Op("rename", 0, start_ns=105, other_file_id=1, origin="reconstructed"))
    ops += [Op("open", 1, start_ns=110, offset=-1, open_flags=sequential), write(1, start_ns=120, length=3)]
    rows, _ = drained(planned(build_capture(tmp_path, ops=ops, files=[File("/a.tmp", size=0), "/a"])), 0)
    assert rows["kind"].tolist() == [OPEN, SEEK, STAT, SYNC, CLOSE, RENAME, OPEN, WRITE_AT]
    assert rows["_place"].tolist() == [-1, 77, -1, -1, -1, 1, READ_AHEAD, 0]
    assert slots(rows) == [0] * 6 + [1, 1]
    assert rows.view(RENAME_ROW)["new_file_id"][5] == 1, "the record needs the file of the new name"


SPANS = [
    Span("step", 100, 200, step=0),
    Span("input_wait", 100, 120, step=0),
    Span("compute", 130, 150, step=0),
    Span("collective", 170, 180, step=0),
    Span("step", 200, 260, step=1),
    Span("compute", 300, 310),
    Span("step", 0, 1000, step=9, rank=1),
]


def test_the_compute_lane_has_the_gaps_and_the_borders_of_the_steps(tmp_path):
    capture = build_capture(tmp_path, spans=SPANS)
    rows = compute_of(capture)
    described = list(zip(rows["kind"], rows["due_ns"], durations(rows), rows["step"], strict=True))
    assert described == [
        (MARK, 0, 0, 0),
        (SLEEP, 20, 50, 0),
        (SLEEP, 80, 20, 0),
        (MARK, 100, 0, 0),
        (MARK, 100, 0, 1),
        (SLEEP, 100, 60, 1),
        (MARK, 160, 0, 1),
        (SLEEP, 200, 10, -1),
    ]
