"""Known dependencies: with the recorded durations they come to the recorded times, with others to those of the job."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dxt_replay.replay.causal.events import schedule
from dxt_replay.replay.causal.explain import explanation, rank_model
from dxt_replay.replay.causal.ranks import expected_elapsed_ns, steps_of
from dxt_replay.replay.engine.items import GAP_ROW, NO_EVENT, READ_AT, WRITE_AT, is_operation
from dxt_replay.traces.errors import CaptureError
from dxt_replay.traces.part import Part
from dxt_replay.traces.schema import CaptureInfo, Job
from dxt_replay.traces.store.part_capture import part_of
from dxt_replay.traces.store.reader import Capture
from tests.capture_builder import Span, build_capture, read
from tests.examples import examples
from tests.planned_lanes import lanes_that_last
from tests.simulated_application import MS, US, Storage
from tests.simulated_known_loader import KnownJob, KnownRun, run

FAST = Storage(latency_ns=150 * US)
SLOW = Storage(latency_ns=2_900 * US, bytes_per_ns=0.05)

JOBS = {
    "four readers": KnownJob(),
    "no readers": KnownJob(readers=0),
    "one rank, one reader": KnownJob(ranks=1, readers=1, checkpoint_every=0),
    "bound by its input": KnownJob(readers=1, compute_ns=1 * MS, reads=6),
    "short passes": KnownJob(steps=3, epochs=4, checkpoint_every=2),
    "three ranks, prefetch 1": KnownJob(ranks=3, prefetch=1, readers=2),
}


def times(capture: Capture, storage: Storage) -> dict[tuple[int, object], np.ndarray]:
    """By rank and lane, begin and end of each operation on a storage, (n, 2); of `training`, of each event."""

    def lasts(rows: np.ndarray) -> np.ndarray:
        moves = (rows["kind"] == READ_AT) & (rows["length"] > 0) | (rows["kind"] == WRITE_AT)
        takes = np.array([storage.takes_ns(each) for each in rows["length"].tolist()], dtype=np.int64)
        return np.where(moves, takes, storage.latency_ns)

    lanes = lanes_that_last(capture, steps_of(capture), lasts)
    assert not any(len(lanes.pop((rank, "pipeline"))[0]) for rank in capture.ranks)
    found = {}
    for name, lane in schedule(lanes).items():
        items = lanes[name][0]
        if name[1] == "training":
            event = items.view(GAP_ROW)["event"]
            first = np.flatnonzero((np.diff(event, prepend=NO_EVENT) != 0) & (event != NO_EVENT))
            last = np.array([np.flatnonzero(event == event[at])[-1] for at in first])
            found[name] = np.stack((lane.begin_ns[first], lane.end_ns[last]), axis=1)[1:]
        else:
            mine = is_operation(items)
            found[name] = np.stack((lane.begin_ns[mine], lane.end_ns[mine]), axis=1)
    return found


def truth(run: KnownRun) -> dict[tuple[int, object], np.ndarray]:
    """The same of the job itself, from its first operation."""
    origin = min(op.start_ns for op in run.ops)
    found: dict[tuple[int, object], list[tuple[int, int]]] = {}
    for op in sorted(run.ops, key=lambda op: op.start_ns):
        found.setdefault((op.rank, op.lane), []).append((op.start_ns - origin, op.end_ns - origin))
    for span in sorted(run.spans, key=lambda span: span.start_ns):
        if span.kind in ("input_wait", "collective", "checkpoint"):
            found.setdefault((span.rank, "training"), []).append((span.start_ns - origin, span.end_ns - origin))
    return {name: np.array(rows) for name, rows in found.items()}


def check_times(capture: Capture, job: KnownJob, storage: Storage) -> None:
    """Raises: AssertionError where an operation or an event is more than 2 ns a step from the job's own time."""
    wanted, found = truth(run(job, storage)), times(capture, storage)
    assert found.keys() == wanted.keys()
    allowed = 2 * job.epochs * (job.steps + job.evaluation_steps)
    for name in wanted:
        assert found[name].shape == wanted[name].shape, name
        assert np.abs(found[name] - wanted[name]).max() <= allowed, name


@pytest.mark.parametrize("storage", [FAST, SLOW], ids=["as recorded", "slower"])
@pytest.mark.parametrize("name", JOBS)
def test_the_times_are_those_of_the_job(tmp_path: Path, name: str, storage: Storage) -> None:
    check_times(run(JOBS[name], FAST).capture(tmp_path, JOBS[name]), JOBS[name], storage)


@settings(max_examples=examples(15), deadline=None)
@given(
    job=st.builds(
        KnownJob,
        ranks=st.integers(1, 3),
        epochs=st.integers(1, 3),
        steps=st.integers(1, 9),
        readers=st.sampled_from([0, 1, 2, 4]),
        prefetch=st.integers(1, 3),
        reads=st.integers(1, 4),
        compute_ns=st.integers(1, 20 * MS),
        think_ns=st.integers(0, MS),
        ready_ns=st.integers(0, 3 * MS),
        evaluation_steps=st.integers(0, 3),
        checkpoint_every=st.integers(0, 4),
        seed=st.integers(0, 9),
    ),
    recorded_ns=st.integers(1, 9 * MS),
    latency_ns=st.integers(1, 9 * MS),
)
def test_any_job_is_predicted_on_any_storage(
    tmp_path_factory: pytest.TempPathFactory, job: KnownJob, recorded_ns: int, latency_ns: int
) -> None:
    capture = run(job, Storage(latency_ns=recorded_ns)).capture(tmp_path_factory.mktemp("known"), job)
    check_times(capture, job, Storage(latency_ns=recorded_ns))
    check_times(capture, job, Storage(latency_ns=latency_ns))


@pytest.mark.parametrize("steps", ["0-3", "2-9", "12-15"])
def test_a_part_of_a_run_comes_to_its_recorded_time(tmp_path: Path, steps: str) -> None:
    job = KnownJob(ranks=1)
    part = part_of(run(job, FAST).capture(tmp_path, job), Part.parse(steps=steps))
    begin, end = part.time_span_ns
    assert expected_elapsed_ns(part, steps_of(part)) == pytest.approx(end - begin, abs=1_000)


def test_the_explanation_says_that_dependencies_are_known(tmp_path: Path) -> None:
    job = KnownJob(prefetch=1)
    capture = run(job, FAST).capture(tmp_path, job)
    found = explanation(capture)
    assert found is not None
    first = found["ranks"]["0"]
    assert first["feed_rule"].startswith("known: ")
    assert first["evidence"]["dependencies"] == "known"
    assert first["evidence"]["loop_reads"] == 2 * 10 * 3
    assert (first["batch_fetches"], first["checkpoints"], first["evaluations"]) == (20, 2, 0)
    assert first["ready_ms"] == pytest.approx(0.9)
    assert first["depth_steps"]["max"] == 3  # the end of fetch n lets batch n + 4 begin
    assert abs(found["check"]["error_pct"]) < 0.01
    alone = KnownJob(readers=0)
    model = steps_of(run(alone, FAST).capture(tmp_path, alone)).models[0]
    assert rank_model(model)["depth_steps"]["max"] == 0


def a_loop(tmp_path: Path, **known: int) -> Capture:
    """Three steps of 100 ns that begin with a fetch of 10 ns, and a read between 30 ns and 40 ns."""
    spans = [Span("step", 100 * k, 100 * k + 100, step=k) for k in range(3)]
    spans += [Span("input_wait", 100 * k, 100 * k + 10, "input_wait", step=k) for k in range(3)]
    info = CaptureInfo(job=Job(nprocs=1, run_time_s=3e-7), ranks=(0,), dependencies="known")
    ops = [read(0, lane=1, start_ns=30, end_ns=40, length=8, **known)]
    return build_capture(tmp_path, ops=ops, files=["/a"], spans=spans, info=info)


def moment(feeds: int, follows: int) -> dict[str, int]:
    """The columns of an operation that feeds a fetch and follows moment 2 n (begin of fetch n) or 2 n + 1 (its end)."""
    return {"feeds": feeds, "follows": follows // 2, "follows_end": bool(follows % 2)}


@pytest.mark.parametrize("known", [moment(1, 3), moment(0, 1), moment(1, 4)])
def test_an_operation_that_waits_for_what_waits_for_it_is_an_error(tmp_path: Path, known: dict[str, int]) -> None:
    with pytest.raises(CaptureError, match=r"rank 0: an operation in lane 1 feeds batch fetch .* contradict"):
        steps_of(a_loop(tmp_path, **known))


@pytest.mark.parametrize("known", [moment(9, 1), moment(2, 9), {}])
def test_a_fetch_that_never_came_is_none(tmp_path: Path, known: dict[str, int]) -> None:
    """A replay that was stopped names fetches that it did not come to."""
    capture = a_loop(tmp_path, **known)
    assert expected_elapsed_ns(capture, steps_of(capture)) == 300


def test_fetches_without_duration_keep_their_numbers(tmp_path: Path) -> None:
    spans = [Span("step", 100 * k, 100 * k + 100, step=k) for k in range(4)]
    spans += [Span("input_wait", 100 * k, 100 * k, "input_wait", step=k) for k in range(4)]
    ops = [read(0, lane=1, start_ns=110, end_ns=150, length=8, **moment(3, 3))]
    info = CaptureInfo(job=Job(nprocs=1, run_time_s=4e-7), ranks=(0,), dependencies="known")
    capture = build_capture(tmp_path, ops=ops, files=["/a"], spans=spans, info=info)
    slower = times(capture, Storage(latency_ns=400, bytes_per_ns=1e9))
    assert slower[0, 1].tolist() == [[110, 510]]
    assert slower[0, "training"].tolist() == [[0, 0], [100, 100], [200, 200], [300, 510]]
