"""What a change makes of a tf.data pipeline, held against the simulated pipeline with that change."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dxt_replay import open_capture, transform
from dxt_replay.replay.causal.ranks import Steps, expected_elapsed_ns, steps_of
from dxt_replay.traces.store.reader import Capture
from tests.examples import examples
from tests.replay.causal.test_production import FAST, PIPELINES, SLOW, predicted_ns, recorded
from tests.simulated_input_pipeline import US, InputPipeline, run

Sources = Callable[[InputPipeline, int], tuple[Capture, Steps]]


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """The recording of a pipeline whose reads last so long, ns; each is made once, since all changes only read it."""
    return functools.cache(
        lambda pipeline, read_ns: recorded(tmp_path_factory.mktemp("source"), run(pipeline, read_ns), pipeline)
    )


def with_compute(pipeline, speed):
    compute_ns, between_ns = round(pipeline.compute_ns / speed), round(pipeline.between_ns / speed)
    return dataclasses.replace(pipeline, compute_ns=compute_ns, between_ns=between_ns)


def lasted(made):
    """From the first moment that a capture shows."""
    each = (*made.spans, *made.ops)
    return max(one.end_ns for one in each) - min(one.start_ns for one in each)


def changed(folder, source, **changes):
    found = transform(source.path, folder / "changed.capture", force=True, **changes)
    capture = open_capture(found.path)
    # The times of the result are those that its own dependencies lead to.
    assert expected_elapsed_ns(capture, steps_of(capture)) == pytest.approx(found.after.elapsed_ns, rel=0.001)
    return found, capture


@settings(max_examples=examples(20), deadline=None)
@given(
    shuffle=st.integers(0, 200),
    batch=st.sampled_from([4, 16, 48]),
    prefetch=st.integers(1, 6),
    readers=st.sampled_from([1, 2]),
    record_us=st.integers(20, 400),
    read_us=st.integers(50, 12_000),
    speed=st.sampled_from([0.5, 3.0, 100.0]),
)
def test_any_pipeline_with_another_accelerator(
    tmp_path_factory, shuffle, batch, prefetch, readers, record_us, read_us, speed
):
    pipeline = InputPipeline(shuffle=shuffle, batch=batch, prefetch=prefetch, readers=readers, record_ns=record_us * US)
    folder = tmp_path_factory.mktemp("c")
    source, _ = recorded(folder, run(pipeline, read_us * US), pipeline)
    found, _ = changed(folder, source, compute_speed=speed)
    truth = lasted(run(with_compute(pipeline, speed), read_us * US))
    assert found.after.elapsed_ns == pytest.approx(truth, rel=0.06)


@pytest.mark.parametrize("name", PIPELINES)
@pytest.mark.parametrize("read_ns", [FAST, SLOW])
@pytest.mark.parametrize("prefetch", [1, 16])
def test_another_buffer_here_and_on_other_storage(name, read_ns, prefetch, tmp_path, sources):
    pipeline = PIPELINES[name]
    source, _ = sources(pipeline, read_ns)
    found, capture = changed(tmp_path, source, prefetch=prefetch)
    other = dataclasses.replace(pipeline, prefetch=prefetch)
    assert found.after.elapsed_ns == pytest.approx(lasted(run(other, read_ns)), rel=0.005)
    elsewhere = SLOW if read_ns == FAST else FAST
    if not found.same:
        truth = run(other, elsewhere).loop_ns
        assert predicted_ns(capture, steps_of(capture), elsewhere) == pytest.approx(truth, rel=0.02)


@pytest.mark.parametrize("read_ns", [FAST, SLOW])
@pytest.mark.parametrize(
    ("name", "readers"),
    [
        ("plain", 2),
        ("plain", 3),
        ("shuffle", 2),
        ("a deep buffer", 4),
        ("interleave of two", 1),
        ("interleave of two", 3),
        ("interleave and shuffle", 1),
    ],
)
def test_other_readers(name, readers, read_ns, tmp_path, sources):
    pipeline = PIPELINES[name]
    source, _ = sources(pipeline, read_ns)
    found, _ = changed(tmp_path, source, readers=readers)
    truth = lasted(run(dataclasses.replace(pipeline, readers=readers), read_ns))
    assert found.after.elapsed_ns == pytest.approx(truth, rel=0.05)
    assert any("mix their records" in each for each in found.assumptions) == (readers > pipeline.readers)


def test_a_training_thread_that_makes_its_batches_waits_for_all_of_it(tmp_path, sources):
    pipeline = PIPELINES["plain"]
    source, _ = sources(pipeline, SLOW)
    found, _ = changed(tmp_path, source, readers=0)
    # Without reads ahead the making of the batches and compute follow each other.
    made = run(dataclasses.replace(pipeline, compute_ns=0, between_ns=0), SLOW)
    computed = len([span for span in made.spans if span.kind == "step"]) * pipeline.compute_ns + pipeline.between_ns
    assert found.after.elapsed_ns == pytest.approx(lasted(made) + computed, rel=0.01)


def test_a_changed_capture_is_changed_again(tmp_path, sources):
    pipeline = PIPELINES["interleave and shuffle"]
    source, _ = sources(pipeline, SLOW)
    once = transform(source.path, tmp_path / "once.capture", compute_speed=2).path
    found, capture = changed(tmp_path, open_capture(once), compute_speed=2, prefetch=4)
    other = dataclasses.replace(with_compute(pipeline, 4), prefetch=4)
    assert found.after.elapsed_ns == pytest.approx(lasted(run(other, SLOW)), rel=0.005)
    assert capture.spans["name"].to_pylist().count("make batch") == steps_of(capture).models[0].loop.fetches.size
