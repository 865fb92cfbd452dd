"""The causal model of tf.data against a simulation of the pipeline that shares nothing with it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dxt_replay.replay.causal.events import schedule
from dxt_replay.replay.causal.ranks import Steps, steps_of
from dxt_replay.replay.causal.storage_limit import NoStorageLimitError, doubt_of_capture, held_out, storage_limit
from dxt_replay.replay.engine.items import MARK, READ_AT
from dxt_replay.traces.schema import CaptureInfo, Job
from dxt_replay.traces.storage_limit import UNKNOWN
from dxt_replay.traces.store.reader import Capture
from tests.capture_builder import build_capture
from tests.examples import examples
from tests.planned_lanes import lanes_that_last
from tests.simulated_input_pipeline import MS, US, InputPipeline, Run, files, run

FAST, SLOW = 60 * US, 11 * MS

PIPELINES = {
    "plain": InputPipeline(),
    "shuffle": InputPipeline(shuffle=100),
    "a shuffle of several files": InputPipeline(shuffle=300, batch=32),
    "interleave of two": InputPipeline(readers=2),
    "interleave and shuffle": InputPipeline(readers=2, shuffle=100),
    "cache": InputPipeline(shuffle=60, cached=True, epochs=3),
    "a deep buffer": InputPipeline(prefetch=8, shuffle=40),
    "bound by processing": InputPipeline(record_ns=900 * US, compute_ns=4 * MS),
    "one epoch": InputPipeline(epochs=1, shuffle=100, files=12),
}


def recorded(folder: Path, made: Run, pipeline: InputPipeline) -> tuple[Capture, Steps]:
    last = max(span.end_ns for span in made.spans)
    info = CaptureInfo(job=Job(nprocs=1, run_time_s=last / 1e9), ranks=(0,), lanes="pthread_id")
    capture = build_capture(folder, files=files(pipeline), ops=made.ops, spans=made.spans, info=info)
    return capture, steps_of(capture)


def predicted_ns(capture: Capture, steps: Steps, read_ns: int) -> int:
    """The training loop if each read lasts `read_ns`."""
    lanes = lanes_that_last(capture, steps, lambda rows: np.where(rows["kind"] == READ_AT, read_ns, 0))
    items, _ = lanes[0, "training"]
    return int(np.ptp(schedule(lanes)[0, "training"].begin_ns[items["kind"] == MARK]))


@pytest.mark.parametrize("name", PIPELINES)
@pytest.mark.parametrize(("here_ns", "there_ns"), [(FAST, SLOW), (SLOW, FAST)], ids=["to slow", "to fast"])
def test_a_pipeline_is_predicted_in_both_directions(name: str, here_ns: int, there_ns: int, tmp_path: Path) -> None:
    pipeline = PIPELINES[name]
    capture, steps = recorded(tmp_path, run(pipeline, here_ns), pipeline)
    assert steps.models[0].production is not None
    truth = run(pipeline, there_ns).loop_ns
    assert predicted_ns(capture, steps, there_ns) == pytest.approx(truth, rel=0.06)


@settings(max_examples=examples(40), deadline=None)
@given(
    shuffle=st.integers(0, 200),
    batch=st.sampled_from([4, 16, 48]),
    prefetch=st.integers(1, 6),
    readers=st.sampled_from([1, 2]),
    record_us=st.integers(20, 400),
    compute_ms=st.integers(1, 15),
    here_us=st.integers(50, 12_000),
    there_us=st.integers(50, 12_000),
)
def test_any_pipeline_is_predicted(
    tmp_path_factory: pytest.TempPathFactory,
    shuffle: int,
    batch: int,
    prefetch: int,
    readers: int,
    record_us: int,
    compute_ms: int,
    here_us: int,
    there_us: int,
) -> None:
    pipeline = InputPipeline(
        shuffle=shuffle,
        batch=batch,
        prefetch=prefetch,
        readers=readers,
        record_ns=record_us * US,
        compute_ns=compute_ms * MS,
    )
    capture, steps = recorded(tmp_path_factory.mktemp("c"), run(pipeline, here_us * US), pipeline)
    truth = run(pipeline, there_us * US).loop_ns
    assert predicted_ns(capture, steps, there_us * US) == pytest.approx(truth, rel=0.1)


def test_storage_costs_what_it_costs(tmp_path: Path) -> None:
    pipeline = PIPELINES["shuffle"]
    capture, _ = recorded(tmp_path, run(pipeline, SLOW), pipeline)
    truth = run(pipeline, SLOW).loop_ns - run(pipeline, 0).loop_ns
    assert storage_limit(capture).saved_ns == pytest.approx(truth, rel=0.06)


def test_a_full_shuffle_buffer_is_doubted_where_the_profile_does_not_say_what_was_used(tmp_path: Path) -> None:
    pipeline, made = PIPELINES["shuffle"], run(PIPELINES["shuffle"], SLOW)
    made.spans = [dataclasses.replace(span, fetched_ns=None) for span in made.spans]
    capture, steps = recorded(tmp_path, made, pipeline)
    assert steps.models[0].production is None
    assert "which reads a batch waits for is not known" in steps.models[0].doubt
    assert doubt_of_capture(capture, steps).state == UNKNOWN
    with pytest.raises(NoStorageLimitError, match="is not known"):
        storage_limit(capture)


@pytest.mark.parametrize("read_ns", [FAST, SLOW])
def test_each_quarter_follows_from_the_others(read_ns: int, tmp_path: Path) -> None:
    pipeline = InputPipeline(shuffle=20, epochs=1, files=20)
    capture, steps = recorded(tmp_path, run(pipeline, read_ns), pipeline)
    assert [abs(part["error_pct"]) < 8 for part in held_out(capture, steps)] == [True] * 4


def test_quarters_do_not_follow_where_storage_hides_in_the_processing(tmp_path: Path) -> None:
    # Every other file is on storage that no recorder saw: its reads are missing, and the batches take longer.
    pipeline = InputPipeline(shuffle=0, epochs=1, files=20)
    made = run(pipeline, SLOW)
    made.ops = [op for op in made.ops if op.file_id < 5]
    capture, steps = recorded(tmp_path, made, pipeline)
    assert max(abs(part["error_pct"]) for part in held_out(capture, steps)) > 8
