import pytest

from replay.survey import replayed_rows, survey_rank
from tests.capture_builder import Op, build_capture, read, write


def test_a_file_recorded_at_two_layers_is_replayed_at_one(tmp_path):
    ops = [
        read(0, lane=0, start_ns=1, length=8),
        read(0, lane=2, start_ns=0, length=8, api="MPIIO"),
        read(1, lane=2, start_ns=5, length=8, api="MPIIO"),
        write(2, lane=1, start_ns=6, length=4),
        Op("open", 0, start_ns=7, origin="reconstructed"),
    ]
    capture = build_capture(tmp_path, ops=ops, files=["/both", "/mpi", "/out"])
    survey = survey_rank(capture, 0)
    assert dict(survey.uses) == {0: 1, 1: 1, 2: 1}
    assert survey.lanes == (0, 1, 2)
    assert (survey.reads, survey.writes) == (frozenset({0, 1}), frozenset({2}))
    assert (survey.operations, survey.left_out) == (3, 2)
    (batch,) = capture.operations(0)
    assert replayed_rows(batch, survey).tolist() == [False, True, True, True, False]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_without_operations_has_no_lanes(tmp_path, rank):
    capture = build_capture(tmp_path, ops=[read(0, rank=1)], files=["/a"], ranks=[0, 1])
    assert bool(survey_rank(capture, rank).lanes) is (rank == 1)
