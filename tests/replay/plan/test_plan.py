"""From a capture to items: what is replayed, through which back end, when each item is due, and the compute lane."""

import numpy as np
import pytest

from dxt_replay.replay.engine import items
from dxt_replay.replay.engine.items import BATCH_ITEMS, MARK, RING_BATCHES, SLEEP
from dxt_replay.replay.plan.layers import BACKENDS, POSIX, STDIO, choose_layers, spans_by_rank, survey_rank
from dxt_replay.replay.plan.operations import PROCESS_ITEMS, RankPlan, batch_items_of, compute_rows, process_slots
from dxt_replay.replay.plan.pacing import Pace, Pacing, due_ns, mpi_hints
from dxt_replay.replay.plan.spill import SpillFile
from dxt_replay.traces.errors import CaptureError
from dxt_replay.traces.schema import OPEN_FLAGS, CaptureInfo, Job, codes
from tests.capture_builder import File, Op, Span, build_capture, read, write

OPS = [
    read(0, start_ns=0, length=8),
    read(0, start_ns=1, length=8, api="MPIIO"),
    read(0, start_ns=2, length=8, api="HDF5"),
    read(1, start_ns=3, length=8, api="MPIIO_COLL"),
    write(2, start_ns=4, length=8, api="STDIO"),
    Op("sync", 2, start_ns=5, api="STDIO", origin="reconstructed"),
    Op("open", 3, start_ns=6, offset=-1, origin="reconstructed"),
    Op("open", 4, start_ns=7),  # np.save makes its stream of a descriptor
    *(write(4, start_ns=8, length=8, api="STDIO"), Op("sync", 4, start_ns=9, api="STDIO")),
]
FILES = [File("/a.h5", format="hdf5"), "/b", "/log", File("/looked-at", size=0), "/a.npy"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # The lowest layer, through what it was recorded at.
        ({}, "0 posix, 3 mpiio, 4 stdio, 5 stdio, 6 posix, 7 posix, 8 posix"),
        ({"reconstruct": False}, "0 posix, 3 mpiio, 4 stdio, 7 posix, 8 posix"),
        ({"api": "stdio"}, ", ".join(f"{row} stdio" for row in (0, *range(3, 10)))),
        ({"api": "null"}, ", ".join(f"{row} null" for row in (0, *range(3, 9)))),
        # The flush of a stream is nothing without streams.
        ({"api": "posix"}, "0 posix, 3 posix, 4 posix, 6 posix, 7 posix, 8 posix"),
        # A higher layer where there are rows of it.
        ({"api": "mpiio"}, "1 mpiio, 3 mpiio, 4 mpiio, 6 mpiio, 7 mpiio, 8 mpiio"),
        ({"api": "hdf5"}, "2 hdf5, 3 mpiio, 4 stdio, 5 stdio, 6 posix, 7 posix, 8 posix"),
    ],
)
def test_rows_and_back_ends(tmp_path, options, expected):
    layers = choose_layers(capture := build_capture(tmp_path, ops=OPS, files=FILES), **options)
    (batch,) = capture.operations(0)
    mask = layers.replayed(batch)
    used = layers.backends(codes(batch, "api")[mask], batch.column("file_id").to_numpy()[mask])
    assert expected == ", ".join(
        f"{row} {BACKENDS[code]}" for row, code in zip(np.flatnonzero(mask), used, strict=True)
    )


def surveyed(capture, rank=0):
    return survey_rank(capture, rank, choose_layers(capture))


def test_a_file_recorded_at_two_layers_is_replayed_at_one(tmp_path):
    ops = [
        read(0, lane=0, start_ns=1, length=8),
        read(0, lane=2, start_ns=0, length=8, api="MPIIO"),
        read(1, lane=2, start_ns=5, length=8, api="MPIIO"),
        read(1, lane=2, start_ns=5, length=8, api="MPIIO_COLL"),
        read(1, lane=3, start_ns=6, length=8, api="HDF5"),
        write(2, lane=1, start_ns=7, length=4),
        Op("open", 0, start_ns=8, origin="reconstructed"),
    ]
    survey = surveyed(build_capture(tmp_path, ops=ops, files=["/both", "/mpi", "/out"]))
    assert dict(survey.slots[["file_id", "uses"]].tolist()) == {0: 2, 1: 2, 2: 1}
    assert (survey.lanes, survey.operations, survey.left_out) == ((0, 1, 2), 5, 2)
    assert (survey.reads.tolist(), survey.writes.tolist()) == ([0, 1], [2])


def test_the_layer_of_a_file_is_the_same_on_all_ranks(tmp_path):
    # Rank 0 aggregated the collective read of both: replaying rank 1 at MPI-IO would read the bytes twice.
    ops = [read(0, rank=rank, api="MPIIO_COLL", length=8) for rank in (0, 1)] + [read(0, rank=0, length=16)]
    capture = build_capture(tmp_path, ops=ops, files=["/shared"])
    found = [surveyed(capture, rank) for rank in (0, 1)]
    assert [(survey.operations, survey.lanes) for survey in found] == [(1, (0,)), (0, ())]


def test_a_rename_to_a_file_that_there_is_not_is_damage(tmp_path):
    capture = build_capture(tmp_path, ops=[Op("rename", 0, other_file_id=7)], files=[File("/a", size=0)])
    with pytest.raises(CaptureError, match="rename"):
        surveyed(capture)


# ----------------------------------------------------------------------------------------------------------- items


def planned(capture, lane, pacing=None):
    """All rows of a lane, and the sizes of its batches."""
    survey = surveyed(capture)
    _, _, (numbers,) = process_slots([survey])
    source = RankPlan(capture, survey, numbers, pacing or Pacing(), origin_ns=100, spill=SpillFile())
    batches = [source.pull(lane) for _ in range(3)]
    assert not len(batches[-1])
    rows = np.concatenate(batches)
    return rows, rows.view(items.OPERATION_ROW), [len(batch) for batch in batches if len(batch)]


def test_batches_never_exceed_what_the_loop_takes_and_think_carries_over_between_them(tmp_path):
    count = BATCH_ITEMS + 10
    ops = [read(0, start_ns=100 + 30 * i, end_ns=110 + 30 * i, length=1, offset=i) for i in range(count)]
    rows, own, sizes = planned(build_capture(tmp_path, ops=ops, files=["/a"]), 0, Pacing(pace=Pace.THINK))
    assert sizes == [BATCH_ITEMS, 10]
    assert own["offset"].tolist() == list(range(count))
    assert rows["due_ns"].tolist() == [0] + [20] * (count - 1)
    assert batch_items_of(1) == BATCH_ITEMS
    assert batch_items_of(512) * 512 * RING_BATCHES <= PROCESS_ITEMS
    assert batch_items_of(10**6) >= 1


def test_written_files_are_made_and_a_file_has_a_slot_for_each_back_end(tmp_path):
    ops = [read(0, start_ns=100), read(0, api="STDIO", start_ns=101, lane=1), *[write(1, start_ns=102, lane=2)] * 2]
    capture = build_capture(tmp_path, ops=ops, files=["/a", "/b"])
    uses, writable, numbers = process_slots([surveyed(capture)] * 2)
    assert uses.tolist() == [(0, POSIX, 1), (0, STDIO, 1), (1, POSIX, 2)] * 2
    assert writable.tolist() == [False, False, True] * 2
    assert [each[POSIX].tolist() for each in numbers] == [[0, 2], [3, 5]]
    assert [planned(capture, lane)[1]["slot"].tolist() for lane in (0, 1, 2)] == [[0], [1], [2, 2]]


def test_operations_that_move_no_data_become_items(tmp_path):
    names = ("open", "seek", "stat", "sync", "close", "rename")
    ops = [
        Op(op, 0, start_ns=100 + i, offset=77 if op == "seek" else -1, other_file_id=1 if op == "rename" else None)
        for i, op in enumerate(names)
    ]
    sequential = 1 << OPEN_FLAGS.index("sequential")
    ops += [Op("open", 1, start_ns=110, offset=-1, open_flags=sequential), write(1, start_ns=120, length=3)]
    rows, own, _ = planned(build_capture(tmp_path, ops=ops, files=[File("/a.tmp", size=0), "/a"]), 0)
    assert rows["kind"].tolist() == [getattr(items, name.upper()) for name in (*names, "open", "write_at")]
    assert rows["_place"].tolist() == [-1, 77, -1, -1, -1, 1, items.READ_AHEAD, 0]
    assert own["slot"].tolist() == [0] * 6 + [1, 1]
    assert rows.view(items.RENAME_ROW)["new_file_id"][5] == 1, "the record needs the file of the new name"


def test_the_compute_lane_has_the_gaps_and_the_borders_of_the_steps(tmp_path):
    spans = [
        Span("step", 100, 200, step=0),
        Span("input_wait", 100, 120, step=0),
        Span("compute", 130, 150, step=0),
        Span("collective", 170, 180, step=0),
        Span("step", 200, 260, step=1),
        Span("compute", 300, 310),
        Span("step", 0, 1000, step=9, rank=1),
    ]
    capture = build_capture(tmp_path, spans=spans)
    rows, think = (
        compute_rows(spans_by_rank(capture.spans, [0])[0], Pacing(pace=pace), "sleep", origin_ns=100)
        for pace in (Pace.TIMED, Pace.THINK)
    )
    assert think["due_ns"].tolist() == [0, 20, 10, 0, 0, 0, 0, 40]
    assert list(
        zip(rows["kind"], rows["due_ns"], rows.view(items.GAP_ROW)["duration_ns"], rows["step"], strict=True)
    ) == [
        (MARK, 0, 0, 0),
        (SLEEP, 20, 50, 0),
        (SLEEP, 80, 20, 0),
        (MARK, 100, 0, 0),
        (MARK, 100, 0, 1),
        (SLEEP, 100, 60, 1),
        (MARK, 160, 0, 1),
        (SLEEP, 200, 10, -1),
    ]


# ------------------------------------------------------------------------------------------------------- due times


@pytest.mark.parametrize(
    ("pacing", "due", "compute"),
    [
        (Pacing(), [10, 34], [10, 34]),
        (Pacing(speed=2.0), [5, 17], [5, 17]),
        (Pacing(speed=0.5, compute_speed=4.0), [20, 68], [20, 68]),
        (Pacing(pace=Pace.THINK), [10, 20], [10, 20]),
        (Pacing(pace=Pace.THINK, speed=2.0), [5, 10], [5, 10]),
        (Pacing(pace=Pace.THINK, speed=2.0, compute_speed=4.0), [5, 10], [2, 5]),
        (Pacing(pace=Pace.NONE, speed=2.0), [0, 0], [0, 0]),
    ],
)
@pytest.mark.parametrize("origin", [-(10**12), 100])
def test_timed_keeps_the_recorded_starts_think_the_gaps_and_none_nothing(pacing, due, compute, origin):
    starts, ends = origin + np.array([10, 34]), origin + np.array([14, 38])
    assert due_ns(pacing, starts, ends, origin, origin).tolist() == due
    assert due_ns(pacing, starts, ends, origin, origin, pacing.compute_ns).tolist() == compute
    assert due_ns(pacing, np.array([0, 5]), np.array([10, 20]), 0, 0).min() >= 0, "of operations that overlap"
    assert not len(due_ns(pacing, starts[:0], ends[:0], origin, origin))
    assert pacing.recorded_ns(10) == 10 / pacing.speed


def test_hints_come_from_the_log(tmp_path):
    job = Job(nprocs=1, run_time_s=1, metadata={"h": "romio_no_indep_rw=true;cb_nodes=4; ;flag;=1"})
    capture = build_capture(tmp_path, ops=[read(0)], files=["/a"], info=CaptureInfo(job=job, ranks=(0,)))
    assert mpi_hints(capture) == {"romio_no_indep_rw": "true", "cb_nodes": "4"}
