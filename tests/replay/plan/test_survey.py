import pytest
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.replay.plan.chosen_layers import POSIX, STDIO, choose_layers
from dxt_replay.replay.plan.survey import spans_by_rank, survey_rank
from dxt_replay.traces.errors import CaptureError
from tests.capture_builder import File, Op, Span, build_capture, read, spans_table, write


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
    capture = build_capture(tmp_path, ops=ops, files=["/both", "/mpi", "/out"])
    survey = surveyed(capture)
    assert dict(survey.slots[["file_id", "uses"]].tolist()) == {0: 2, 1: 2, 2: 1}
    assert survey.lanes == (0, 1, 2)
    assert (survey.reads.tolist(), survey.writes.tolist()) == ([0, 1], [2])
    assert (survey.operations, survey.left_out) == (5, 2)
    (batch,) = capture.operations(0)
    assert survey.layers.replayed(batch).tolist() == [False, True, True, True, False, True, True]


def test_the_layer_of_a_file_is_the_same_on_all_ranks(tmp_path):
    # Rank 0 aggregated the collective read of both: replaying rank 1 at MPI-IO would read the bytes twice.
    ops = [read(0, rank=rank, api="MPIIO_COLL", length=8) for rank in (0, 1)] + [read(0, rank=0, length=16)]
    capture = build_capture(tmp_path, ops=ops, files=["/shared"])
    assert [surveyed(capture, rank).operations for rank in (0, 1)] == [1, 0]


def test_streams_are_replayed_beside_the_other_layers(tmp_path):
    ops = [read(0, length=80), read(0, api="STDIO", length=4096, offset=80, start_ns=5)]
    capture = build_capture(tmp_path, ops=ops, files=["/array.npy"])
    assert surveyed(capture).operations == 2


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_without_operations_has_no_lanes(tmp_path, rank):
    capture = build_capture(tmp_path, ops=[read(0, rank=1)], files=["/a"], ranks=[0, 1])
    assert bool(surveyed(capture, rank).lanes) is (rank == 1)


def test_lanes_and_slots_know_their_back_ends(tmp_path):
    ops = [
        read(0, lane=0, length=8),
        read(0, lane=1, length=8, api="STDIO", start_ns=1),
        Op("open", 0, lane=1, start_ns=2),
        write(1, lane=0, length=8, start_ns=3),
    ]
    survey = surveyed(build_capture(tmp_path, ops=ops, files=["/a", "/b"]))
    assert survey.slots.tolist() == [(0, POSIX, 2), (0, STDIO, 1), (1, POSIX, 1)]
    assert dict(survey.lane_backends) == {0: frozenset({POSIX}), 1: frozenset({POSIX, STDIO})}


def test_a_rename_uses_and_writes_both_names(tmp_path):
    ops = [write(0, length=8), Op("rename", 0, other_file_id=1, start_ns=5)]
    survey = surveyed(build_capture(tmp_path, ops=ops, files=["/a.tmp", "/a"]))
    assert dict(survey.slots[["file_id", "uses"]].tolist()) == {0: 2, 1: 1}
    assert survey.writes.tolist() == [0, 1]
    assert survey.operations == 2


def test_a_rename_to_a_file_that_there_is_not_is_damage(tmp_path):
    capture = build_capture(tmp_path, ops=[Op("rename", 0, other_file_id=7)], files=[File("/a", size=0)])
    with pytest.raises(CaptureError, match="rename"):
        surveyed(capture)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 100)), max_size=30))
def test_the_spans_of_each_rank_are_found_in_their_order(placed):
    table = spans_table([Span("step", at, at + 1, rank=rank, step=number) for number, (rank, at) in enumerate(placed)])
    found = spans_by_rank(table, [0, 2, 7])
    rows = table.to_pylist()
    assert {rank: spans.to_pylist() for rank, spans in found.items()} == {
        rank: [row for row in rows if row["rank"] == rank] for rank in (0, 2, 7)
    }
