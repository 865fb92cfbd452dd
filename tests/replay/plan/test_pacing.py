import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.replay.plan.pacing import Pace, Pacing, due_ns, mpi_hints
from dxt_replay.traces.schema import CaptureInfo, Job
from tests.capture_builder import build_capture, read

GAPS = st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)), min_size=1, max_size=30)


@given(GAPS, st.integers(-(10**12), 10**12))
def test_timed_keeps_the_recorded_starts_think_the_gaps_and_none_nothing(gaps, origin):
    times = origin + np.cumsum(gaps)  # a gap, an operation, a gap ...
    starts, ends = times[::2], times[1::2]

    def due(pace):
        return due_ns(Pacing(pace=pace), starts, ends, origin, origin).tolist()

    assert due(Pace.TIMED) == (starts - origin).tolist()
    assert due(Pace.THINK) == [gap for gap, _ in gaps]
    assert due(Pace.NONE) == [0] * len(gaps)


@pytest.mark.parametrize(
    ("pacing", "due"),
    [
        (Pacing(speed=2.0), [5, 17]),
        (Pacing(pace=Pace.THINK, speed=2.0), [5, 10]),
        (Pacing(pace=Pace.THINK, speed=2.0, compute_speed=4.0), [5, 10]),
        (Pacing(pace=Pace.THINK), [10, 20]),
    ],
)
def test_speed_divides_times_and_gaps(pacing, due):
    starts, ends = np.array([110, 134]), np.array([114, 138])
    assert due_ns(pacing, starts, ends, 100, 100).tolist() == due
    scaled = due_ns(pacing, starts, ends, 100, 100, pacing.compute_ns)
    assert pacing.compute_speed is None or scaled.tolist() == [2, 5]
    overlapping = due_ns(pacing, np.array([0, 5]), np.array([10, 20]), 0, 0)
    assert overlapping.min() >= 0


def test_hints_come_from_the_log(tmp_path):
    job = Job(nprocs=1, run_time_s=1, metadata={"h": "romio_no_indep_rw=true;cb_nodes=4; "})
    capture = build_capture(tmp_path, ops=[read(0)], files=["/a"], info=CaptureInfo(job=job, ranks=(0,)))
    assert mpi_hints(capture) == {"romio_no_indep_rw": "true", "cb_nodes": "4"}
