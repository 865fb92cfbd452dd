"""The causal model: what it derives, that it reproduces a capture, and that it predicts another storage."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dxt_replay.replay.causal.events import schedule
from dxt_replay.replay.causal.explain import rank_model
from dxt_replay.replay.causal.ranks import Steps, expected_elapsed_ns, steps_of
from dxt_replay.replay.engine.clock import FIRST_RANK_COUNTER
from dxt_replay.replay.engine.items import ADD, COUNTER_ROW
from dxt_replay.replay.plan.pacing import Pace, Pacing
from dxt_replay.traces.errors import CaptureError
from dxt_replay.traces.part import Part
from dxt_replay.traces.schema import OWN_IO, CaptureInfo, Job
from dxt_replay.traces.store.part_capture import part_of
from dxt_replay.traces.store.reader import Capture
from tests.capture_builder import Span, build_capture, read
from tests.examples import examples
from tests.planned_lanes import Lanes, elapsed_ns, lanes_that_last
from tests.simulated_application import FILES, MS, READ_BYTES, US, Application, Recorded, Storage, run

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
    "decoding hidden at first": Application(depth=8, decode_ns=4 * MS, compute_ns=12 * MS, steps=30),
    "bound by decoding": Application(depth=1, decode_ns=6 * MS, compute_ns=3 * MS, reads_per_batch=2),
    "decoding hidden, but traced": Application(depth=1, decode_ns=2 * MS, traced=True),
}


def derived(
    tmp_path: Path, application: Application, storage: Storage, profiled: range | None = None
) -> tuple[Capture, Steps, int]:
    """The capture of an application, its model, and the true time from the capture's first event.

    `profiled`: the steps that the profile shows; None for all.
    """
    recorded = run(application, storage)
    if profiled is not None:
        recorded.spans = [span for span in recorded.spans if span.step in profiled]
    info = CaptureInfo(
        job=Job(nprocs=application.ranks, run_time_s=recorded.elapsed_ns / 1e9),
        ranks=tuple(range(application.ranks)),
        lanes="pthread_id",
    )
    capture = build_capture(tmp_path, files=FILES, ops=recorded.ops, spans=recorded.spans, info=info)
    return capture, steps_of(capture), recorded.elapsed_ns - capture.time_span_ns[0]


def predicted_ns(capture: Capture, steps: Steps, storage: Storage, pacing: Pacing | None = None) -> int:
    """What the plan comes to when each operation lasts what it lasts on `storage`."""
    return elapsed_ns(predicted_lanes(capture, steps, storage, pacing))


def predicted_takes_ns(capture: Capture, steps: Steps, storage: Storage) -> np.ndarray:
    """When rank 0 obtains its batches on `storage`, int64."""
    lanes = predicted_lanes(capture, steps, storage)
    script = lanes[0, "training"][0]
    fetches = steps.counters(FIRST_RANK_COUNTER)[0].fetches
    counter = script.view(COUNTER_ROW)["counter"]
    return schedule(lanes)[0, "training"].begin_ns[(script["kind"] == ADD) & (counter == fetches)]


def true_takes_ns(application: Application, storage: Storage, steps: range) -> np.ndarray:
    """When rank 0 does obtain the batches of these steps."""
    spans = [span for span in run(application, storage).spans if span.kind == "input_wait" and span.rank == 0]
    return np.array([span.end_ns for span in spans if span.step in steps])


def predicted_lanes(capture: Capture, steps: Steps, storage: Storage, pacing: Pacing | None = None) -> Lanes:
    """The items of all lanes, and how long their operations last on `storage`."""

    def lasts(rows: np.ndarray) -> np.ndarray:
        return np.array([storage.takes_ns(each) for each in rows["length"].tolist()], dtype=np.int64)

    return lanes_that_last(capture, steps, lasts, pacing)


@pytest.mark.parametrize("name", APPLICATIONS)
@pytest.mark.parametrize(("here", "there"), [(FAST, FAST), (FAST, SLOW), (SLOW, FAST)], ids=["", "slower", "faster"])
def test_any_storage_is_predicted(name: str, here: Storage, there: Storage, tmp_path: Path) -> None:
    capture, steps, _ = derived(tmp_path, APPLICATIONS[name], here)
    truth = run(APPLICATIONS[name], there).elapsed_ns - capture.time_span_ns[0]
    found = expected_elapsed_ns(capture, steps) if here == there else predicted_ns(capture, steps, there)
    assert found == pytest.approx(truth, rel=0.001 if here == there else 0.01)


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
    traced=st.booleans(),
)
storages = st.builds(Storage, latency_ns=st.integers(20 * US, 2000 * US), bytes_per_ns=st.sampled_from([0.2, 1.0, 3.0]))


@settings(max_examples=examples(20))
@given(
    application=applications,
    storages=st.tuples(storages, storages),
    first=st.integers(0, 6),
    profiled=st.integers(1, 15),
)
def test_every_capture_follows_from_its_model_and_no_model_waits_for_itself(
    tmp_path_factory: pytest.TempPathFactory,
    application: Application,
    storages: tuple[Storage, Storage],
    first: int,
    profiled: int,
) -> None:
    first = min(first, application.steps - 1)
    shown = range(first, first + profiled)
    capture, steps, _ = derived(tmp_path_factory.mktemp("part"), application, storages[0], shown)
    assert predicted_ns(capture, steps, storages[1]) > 0  # a circle raises
    capture, steps, elapsed = derived(tmp_path_factory.mktemp("capture"), application, storages[0])
    assert expected_elapsed_ns(capture, steps) == pytest.approx(elapsed, rel=1e-4)


LONG = Application(depth=2, jitter=0.3, steps=200)


@pytest.mark.parametrize(
    ("application", "here", "there"),
    [
        (LONG, FAST, SLOW),
        (dataclasses.replace(LONG, compute_ns=2 * MS, reads_per_batch=6), FAST, SLOW),
        (dataclasses.replace(LONG, depth=4), SLOW, FAST),
        (dataclasses.replace(LONG, depth=0), FAST, SLOW),
    ],
)
@pytest.mark.parametrize("profiled", [range(40), range(80, 120), range(160, 200)], ids=str)
def test_steps_of_a_profile_that_shows_a_part_of_the_run(
    application: Application, here: Storage, there: Storage, profiled: range, tmp_path: Path
) -> None:
    capture, steps, _ = derived(tmp_path, application, here, profiled)
    truth = np.ptp(true_takes_ns(application, there, profiled))
    assert np.ptp(predicted_takes_ns(capture, steps, there)) == pytest.approx(truth, rel=0.02)
    if application.depth:
        assert f"the profile shows steps {profiled[0]} to {profiled[-1]}, and " in steps.warnings[0]
        assert f"--part steps={profiled[0]}-{profiled[-1]}" in steps.warnings[0]


def test_steps_selected_in_the_midst_of_a_run(tmp_path: Path) -> None:
    application = dataclasses.replace(LONG, depth=4)
    capture, _, _ = derived(tmp_path, application, FAST)
    part = part_of(capture, Part(steps=(80, 119)))
    steps = steps_of(part)
    assert steps.models[0].feed.fetches_before == -1.0  # a batch was there at least at each fetch
    truth = np.ptp(true_takes_ns(application, SLOW, range(80, 120)))
    assert np.ptp(predicted_takes_ns(part, steps, SLOW)) == pytest.approx(truth, rel=0.05)


def test_a_run_that_was_resumed_began_with_its_first_step(tmp_path: Path) -> None:
    recorded = run(LONG, FAST)
    spans = [dataclasses.replace(span, step=span.step + 5000) for span in recorded.spans]
    capture = build_capture(tmp_path, files=FILES, ops=recorded.ops, spans=spans, info=in_turn_info())
    steps = steps_of(capture)
    assert (steps.models[0].feed.fetches_before, steps.models[0].feed.step_bytes) == (0.0, 3 * 262_144)
    assert steps.warnings == ()


def with_evaluation(application: Application, storage: Storage) -> Recorded:
    """Two epochs, and between them 60 reads of another file by the training thread, with a millisecond after each."""
    first, second = run(application, storage), run(dataclasses.replace(application, seed=9), storage)
    recorded, now = Recorded(ops=first.ops, spans=first.spans), first.elapsed_ns
    for number in range(60):
        end = now + storage.takes_ns(READ_BYTES)
        recorded.ops.append(read(3, lane=0, offset=number * READ_BYTES, length=READ_BYTES, start_ns=now, end_ns=end))
        now = end + MS
    for rows, later in ((recorded.ops, second.ops), (recorded.spans, second.spans)):
        rows += [dataclasses.replace(row, start_ns=row.start_ns + now, end_ns=row.end_ns + now) for row in later]
    recorded.elapsed_ns = now + second.elapsed_ns
    return recorded


@pytest.mark.parametrize("application", [Application(depth=0, steps=40), Application(depth=2, jitter=0.3, steps=40)])
@pytest.mark.parametrize(("here", "there"), [(FAST, SLOW), (SLOW, FAST)])
def test_what_an_evaluation_reads_between_two_epochs_feeds_no_step(
    application: Application, here: Storage, there: Storage, tmp_path: Path
) -> None:
    recorded = with_evaluation(application, here)
    capture = build_capture(
        tmp_path, files=[*FILES, "/data/validation"], ops=recorded.ops, spans=recorded.spans, info=in_turn_info()
    )
    steps = steps_of(capture)
    model = steps.models[0]
    assert rank_model(model)["evaluations"] == 1
    assert model.loop_files.tolist() == [True, False, False, False]
    assert model.synchronous == (application.depth == 0)
    start = capture.time_span_ns[0]
    assert expected_elapsed_ns(capture, steps) == pytest.approx(recorded.elapsed_ns - start, rel=1e-4)
    truth = with_evaluation(application, there).elapsed_ns - start
    assert predicted_ns(capture, steps, there) == pytest.approx(truth, rel=0.005)


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
    assert told["feed_rule"] == "ahead of the loop, in order, as many bytes as a step takes"
    assert rank_model(serial.models[0])["feed_rule"].startswith("depth 0")
    assert told["step_bytes"] == 3 * 262_144


def in_turn_info() -> CaptureInfo:
    return CaptureInfo(job=Job(nprocs=1, run_time_s=1.0), ranks=(0,), lanes="pthread_id")


def test_ranks_with_different_collectives_are_not_tied(tmp_path: Path) -> None:
    recorded = run(Application(ranks=2, collective_ns=MS, steps=10), FAST)
    last = max(span.start_ns for span in recorded.spans if span.kind == "collective" and span.rank == 1)
    spans = [span for span in recorded.spans if (span.kind, span.rank, span.start_ns) != ("collective", 1, last)]
    capture = build_capture(tmp_path, files=FILES, ops=recorded.ops, spans=spans)
    steps = steps_of(capture)
    assert not len(steps.meetings.cost_ns)
    assert "different numbers of collectives (9 to 10)" in steps.warnings[0]
    assert expected_elapsed_ns(capture, steps) == pytest.approx(recorded.elapsed_ns - capture.time_span_ns[0], rel=0.02)


def test_a_capture_without_steps_cannot_be_paced_so(tmp_path: Path) -> None:
    capture = build_capture(tmp_path, files=FILES, ops=[read(0, length=10)], spans=[Span("compute", 0, 10)])
    with pytest.raises(CaptureError, match=r"no training steps.*--pace think or timed"):
        steps_of(capture)


@pytest.mark.parametrize(("here", "there"), [(FAST, SLOW), (SLOW, FAST)])
def test_without_input_waits_a_thread_that_trains_and_reads_does_one_after_the_other(
    here: Storage, there: Storage, tmp_path: Path
) -> None:
    application = Application(steps=30, checkpoint_every=7)
    recorded = run(application, here)
    spans = [span for span in recorded.spans if span.kind != "input_wait"]
    capture = build_capture(tmp_path, files=FILES, ops=recorded.ops, spans=spans, info=in_turn_info())
    steps = steps_of(capture)
    assert steps.models[0].synchronous
    assert steps.warnings == ()
    truth = run(application, there).elapsed_ns - capture.time_span_ns[0]
    assert predicted_ns(capture, steps, there) == pytest.approx(truth, rel=0.01)


@pytest.mark.parametrize(
    ("application", "doubted"), [(Application(depth=2, reads_per_batch=6), True), (Application(), False)]
)
def test_waits_for_other_threads_are_not_known_where_only_own_reads_are_shown(
    application: Application, doubted: bool, tmp_path: Path
) -> None:
    recorded = run(application, SLOW)
    spans = [
        dataclasses.replace(span, name=OWN_IO, end_ns=span.start_ns + 1 if doubted else span.end_ns)
        if span.kind == "input_wait"
        else span
        for span in recorded.spans
    ]
    capture = build_capture(tmp_path, files=FILES, ops=recorded.ops, spans=spans)
    model = steps_of(capture).models[0]
    assert (bool(model.unshown), model.doubt.startswith("reads last")) == (doubted, doubted)


def test_a_checkpoint_of_another_thread_does_not_block(tmp_path: Path) -> None:
    recorded = run(Application(checkpoint_every=5, steps=20), FAST)
    beside = [dataclasses.replace(span, thread=5) if span.kind == "checkpoint" else span for span in recorded.spans]
    capture = build_capture(tmp_path, files=FILES, ops=recorded.ops, spans=beside)
    assert len(steps_of(capture).models[0].loop.checkpoints) == 0
