"""The causal model: what it derives, that it reproduces a capture, and that it predicts another storage."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.causal.check import course
from replay.causal.explain import rank_model
from replay.causal.items import FIRST_RANK_COUNTER
from replay.causal.steps import Steps, derive_steps, expected_elapsed_ns, rank_batches
from replay.items import ADD, READ, WAIT
from replay.layers import choose_layers
from replay.pacing import Pace, Pacing
from replay.plan_row import PLAN_ROW
from replay.survey import survey_rank
from tests.capture_builder import Span, build_capture, read
from tests.simulated_application import FILES, MS, US, Application, Storage, run
from traces.errors import CaptureError, ReplayError
from traces.ops import CaptureInfo, Job
from traces.store import Capture

FAST = Storage(latency_ns=150 * US)
SLOW = Storage(latency_ns=900 * US, bytes_per_ns=0.3)

APPLICATIONS = {
    "serial": Application(),
    "serial, two ranks": Application(ranks=2, collective_ns=2 * MS),
    "prefetch 1": Application(depth=1),
    "prefetch 2": Application(depth=2, jitter=0.3),
    "prefetch 8": Application(depth=8, jitter=0.5, steps=150),
    "four readers": Application(depth=8, readers=4, reads_per_batch=8, jitter=0.3),
    "two ranks with a collective": Application(ranks=2, depth=2, jitter=0.4, collective_ns=1 * MS),
    "four ranks that read by themselves": Application(ranks=4, jitter=0.6, collective_ns=3 * MS),
    "checkpoints": Application(ranks=2, checkpoint_every=10, collective_ns=1 * MS),
    "checkpoints beside readers": Application(depth=4, checkpoint_every=7, jitter=0.3),
    "loaded first": Application(load_reads=30, reads_per_batch=1, steps=40),
    "bound by its input": Application(depth=2, compute_ns=1 * MS, reads_per_batch=6),
}


def derived(tmp_path: Path, application: Application, storage: Storage) -> tuple[Capture, Steps, int]:
    """The capture of an application, its model, and the true time from the capture's first event."""
    recorded = run(application, storage)
    info = CaptureInfo(
        job=Job(nprocs=application.ranks, run_time_s=recorded.elapsed_ns / 1e9),
        ranks=tuple(range(application.ranks)),
        lanes="pthread_id",
    )
    capture = build_capture(tmp_path, files=FILES, ops=recorded.ops, spans=recorded.spans, info=info)
    return capture, steps_of(capture), recorded.elapsed_ns - capture.time_span_ns[0]


def steps_of(capture: Capture) -> Steps:
    layers = choose_layers(capture)
    surveys = [survey_rank(capture, rank, layers) for rank in capture.ranks]
    return derive_steps(capture, surveys, capture.time_span_ns[0])


def predicted_ns(capture: Capture, steps: Steps, storage: Storage, pacing: Pacing | None = None) -> int:
    """What the plan comes to when each operation takes what it takes on `storage`."""
    pacing = pacing or Pacing(pace=Pace.STEPS)
    lanes: dict[object, tuple[np.ndarray, np.ndarray]] = {}
    for rank, counters in steps.counters(FIRST_RANK_COUNTER).items():
        causal = steps.lanes(rank, counters, pacing)
        parts: dict[int, list[np.ndarray]] = {}
        for batch in rank_batches(capture, rank, steps.surveys[rank].layers):
            rows = np.zeros(len(batch.lane), dtype=PLAN_ROW)
            rows["length"] = batch.length
            for lane, items, _ in causal.split(rows, batch):
                parts.setdefault(lane, []).append(items)
        for lane, made in parts.items():
            items = np.concatenate(made)
            takes = np.array([storage.takes_ns(length) for length in items["length"].tolist()])
            lanes[rank, lane] = (items, np.where(items["kind"] == READ, takes, 0))
        ready = steps.pipeline(rank, counters, pacing)
        lanes[rank, "pipeline"] = (ready, np.zeros(len(ready), dtype=np.int64))
        script = steps.script(rank, counters, pacing)
        lanes[rank, "training"] = (script, np.zeros(len(script), dtype=np.int64))
    return max(int(each.end_ns[-1]) for each in course(lanes).values() if len(each.end_ns))


@pytest.mark.parametrize("name", APPLICATIONS)
def test_the_model_comes_to_the_recorded_time(name: str, tmp_path: Path) -> None:
    capture, steps, elapsed = derived(tmp_path, APPLICATIONS[name], FAST)
    assert expected_elapsed_ns(capture, steps) == pytest.approx(elapsed, rel=0.001)


@pytest.mark.parametrize("name", APPLICATIONS)
def test_a_slower_storage_is_predicted(name: str, tmp_path: Path) -> None:
    capture, steps, _ = derived(tmp_path, APPLICATIONS[name], FAST)
    truth = run(APPLICATIONS[name], SLOW).elapsed_ns - capture.time_span_ns[0]
    assert predicted_ns(capture, steps, SLOW) == pytest.approx(truth, rel=0.01)


@pytest.mark.parametrize("name", APPLICATIONS)
def test_a_faster_storage_is_predicted(name: str, tmp_path: Path) -> None:
    capture, steps, _ = derived(tmp_path, APPLICATIONS[name], SLOW)
    truth = run(APPLICATIONS[name], FAST).elapsed_ns - capture.time_span_ns[0]
    assert predicted_ns(capture, steps, FAST) == pytest.approx(truth, rel=0.01)


applications = st.builds(
    Application,
    steps=st.integers(3, 15),
    ranks=st.integers(1, 3),
    depth=st.sampled_from([0, 1, 2, 4, 8]),
    readers=st.just(1),
    reads_per_batch=st.integers(1, 6),
    think_ns=st.integers(0, 500 * US),
    decode_ns=st.integers(0, 1500 * US),
    compute_ns=st.integers(1, 12 * MS),
    jitter=st.floats(0.0, 0.6),
    collective_ns=st.integers(1, 3 * MS),
    load_reads=st.sampled_from([0, 5]),
    checkpoint_every=st.sampled_from([0, 7]),
    seed=st.integers(0, 1000),
)
storages = st.builds(Storage, latency_ns=st.integers(20 * US, 2000 * US), bytes_per_ns=st.sampled_from([0.2, 1.0, 3.0]))


@settings(max_examples=25)
@given(application=applications, storage=storages)
def test_every_capture_follows_from_its_model(
    tmp_path_factory: pytest.TempPathFactory, application: Application, storage: Storage
) -> None:
    capture, steps, elapsed = derived(tmp_path_factory.mktemp("capture"), application, storage)
    assert expected_elapsed_ns(capture, steps) == pytest.approx(elapsed, rel=1e-4)


@settings(max_examples=10)
@given(application=applications, storages=st.tuples(storages, storages))
def test_no_model_waits_for_itself(
    tmp_path_factory: pytest.TempPathFactory, application: Application, storages: tuple[Storage, Storage]
) -> None:
    capture, steps, _ = derived(tmp_path_factory.mktemp("capture"), application, storages[0])
    assert predicted_ns(capture, steps, storages[1]) > 0  # a circle raises


def test_a_faster_accelerator_is_predicted(tmp_path: Path) -> None:
    application = Application(depth=2, jitter=0.0, compute_ns=8 * MS)
    capture, steps, _ = derived(tmp_path, application, FAST)
    truth = run(dataclasses.replace(application, compute_ns=2 * MS), FAST).elapsed_ns - 5 * MS * 3 // 4
    pacing = Pacing(pace=Pace.STEPS, compute_speed=4.0)
    # the time before the loop is busy too, and four times faster
    assert predicted_ns(capture, steps, FAST, pacing) == pytest.approx(truth - 5 * MS // 4, rel=0.02)


def test_depth_zero_is_told_from_reading_ahead(tmp_path: Path) -> None:
    _, serial, _ = derived(tmp_path / "0", Application(depth=0), FAST)
    _, ahead, _ = derived(tmp_path / "4", Application(depth=4, jitter=0.3), FAST)
    assert serial.models[0].synchronous
    assert not ahead.models[0].synchronous
    told = rank_model(ahead.models[0])
    assert told["depth_steps"]["max"] == 3.0  # the batch that is being read is the fourth
    assert told["feed_rule"] == "ahead of the loop: by cumulative bytes"
    assert rank_model(serial.models[0])["feed_rule"].startswith("depth 0")
    assert told["step_bytes"] == 3 * 262_144


def test_readers_that_take_turns_are_told_from_those_that_share_a_batch(tmp_path: Path) -> None:
    application = Application(depth=8, readers=4, reads_per_batch=8, jitter=0.3)
    _, in_turn, _ = derived(tmp_path / "turns", application, FAST)
    assert in_turn.models[0].turns == (0, 1, 2, 3)
    recorded = run(Application(depth=8, reads_per_batch=8, jitter=0.3), FAST)
    # the same reads, shared out to lanes one by one
    shared = [dataclasses.replace(op, lane=number % 4) for number, op in enumerate(recorded.ops)]
    capture = build_capture(tmp_path, files=FILES, ops=shared, spans=recorded.spans, info=in_turn_info())
    assert steps_of(capture).models[0].turns == ()


def in_turn_info() -> CaptureInfo:
    return CaptureInfo(job=Job(nprocs=1, run_time_s=1.0), ranks=(0,), lanes="pthread_id")


def test_a_collective_costs_what_the_last_to_come_spent_in_it(tmp_path: Path) -> None:
    application = Application(ranks=3, jitter=0.5, collective_ns=2 * MS)
    _, steps, _ = derived(tmp_path, application, FAST)
    assert steps.meetings.ranks == 3
    assert steps.meetings.cost_ns.tolist() == [2 * MS] * application.steps


def test_ranks_with_different_collectives_are_not_tied(tmp_path: Path) -> None:
    recorded = run(Application(ranks=2, collective_ns=MS, steps=10), FAST)
    last = max(span.start_ns for span in recorded.spans if span.kind == "collective" and span.rank == 1)
    spans = [span for span in recorded.spans if (span.kind, span.rank, span.start_ns) != ("collective", 1, last)]
    capture = build_capture(tmp_path, files=FILES, ops=recorded.ops, spans=spans)
    steps = steps_of(capture)
    assert not len(steps.meetings.cost_ns)
    assert "9 to 10 collectives" in steps.warnings[0]
    assert expected_elapsed_ns(capture, steps) == pytest.approx(recorded.elapsed_ns - capture.time_span_ns[0], rel=0.02)


def test_a_capture_without_steps_cannot_be_paced_so(tmp_path: Path) -> None:
    capture = build_capture(tmp_path, files=FILES, ops=[read(0, length=10)], spans=[Span("compute", 0, 10)])
    with pytest.raises(CaptureError, match=r"no training steps.*--pace think or timed"):
        steps_of(capture)


def test_without_input_waits_a_step_takes_its_batch_when_it_begins(tmp_path: Path) -> None:
    recorded = run(Application(depth=2), FAST)
    spans = [span for span in recorded.spans if span.kind == "step"]
    capture = build_capture(tmp_path, files=FILES, ops=recorded.ops, spans=spans)
    steps = steps_of(capture)
    assert any("no input waits" in warning for warning in steps.warnings)
    assert len(steps.models[0].loop.takes) == 80
    elapsed = recorded.elapsed_ns - capture.time_span_ns[0]
    assert expected_elapsed_ns(capture, steps) == pytest.approx(elapsed, rel=0.001)


def test_a_checkpoint_of_another_thread_does_not_block(tmp_path: Path) -> None:
    recorded = run(Application(checkpoint_every=5, steps=20), FAST)
    beside = [dataclasses.replace(span, thread=5) if span.kind == "checkpoint" else span for span in recorded.spans]
    capture = build_capture(tmp_path, files=FILES, ops=recorded.ops, spans=beside)
    assert len(steps_of(capture).models[0].loop.checkpoints) == 0


def test_lanes_that_wait_for_each_other_are_an_error() -> None:
    def lane(first: int, second: int) -> tuple[np.ndarray, np.ndarray]:
        items = np.zeros(2, dtype=PLAN_ROW)
        items["kind"], items["slot"], items["length"] = (WAIT, ADD), (first, second), 1
        return items, np.zeros(2, dtype=np.int64)

    with pytest.raises(ReplayError, match="a, b wait for each other"):
        course({"a": lane(0, 1), "b": lane(1, 0)})


@given(order=st.permutations(range(4)), arrivals=st.lists(st.integers(0, 1000), min_size=4, max_size=4))
def test_who_meets_leaves_when_the_last_has_come(order: list[int], arrivals: list[int]) -> None:
    lanes: dict[object, tuple[np.ndarray, np.ndarray]] = {}
    for name in order:
        items = np.zeros(2, dtype=PLAN_ROW)
        items["kind"], items["length"], items["due_ns"] = (ADD, WAIT), (1, 4), (arrivals[name], 0)
        lanes[name] = (items, np.zeros(2, dtype=np.int64))
    assert {int(each.end_ns[-1]) for each in course(lanes).values()} == {max(arrivals)}
