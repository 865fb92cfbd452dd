"""What storage costs a training: held against the same job on other storage, simulated by itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.replay.causal import storage_limit as module
from dxt_replay.replay.causal.storage_limit import (
    LimitPoint,
    NoStorageLimitError,
    StorageLimit,
    enough,
    latencies,
    storage_limit,
)
from dxt_replay.replay.commands.main import main
from dxt_replay.replay.engine.items import OPERATION_ROW, PLAN_ROW
from dxt_replay.traces.schema import CaptureInfo, Job
from dxt_replay.traces.store.reader import Capture
from tests.capture_builder import Span, build_capture, read, with_counts_of
from tests.simulated_application import MS, US, Storage
from tests.simulated_known_loader import KnownJob, run

STARVED = KnownJob(readers=1, prefetch=1, reads=6, compute_ns=2 * MS, ready_ns=0, evaluation_steps=0)
RECORDED = Storage(latency_ns=900 * US, bytes_per_ns=0.5)
FASTEST = Storage(latency_ns=0, bytes_per_ns=1e12)


def elapsed_ns(job: KnownJob, storage: Storage) -> int:
    """How long the job trains, from its first step's begin to the last one's end."""
    steps = [span for span in run(job, storage).spans if span.kind == "step"]
    return max(step.end_ns for step in steps) - min(step.start_ns for step in steps)


def limit_of(folder: Path, job: KnownJob, *, curve: bool = False) -> StorageLimit:
    return storage_limit(run(job, RECORDED).capture(folder, job), curve=curve)


@pytest.mark.parametrize("job", [STARVED, KnownJob(), KnownJob(readers=0), KnownJob(ranks=1, readers=2)])
def test_the_limit_is_the_time_that_the_job_saves_on_infinitely_fast_storage(tmp_path: Path, job: KnownJob) -> None:
    found, fastest = limit_of(tmp_path, job), elapsed_ns(job, FASTEST)
    assert found.model_ns == pytest.approx(found.recorded_ns, rel=1e-6)
    assert found.fastest_ns == pytest.approx(fastest, rel=1e-4)
    assert found.limit_pct == pytest.approx(100 * (1 - fastest / found.recorded_ns), abs=0.02)


def test_the_curve_is_the_job_on_faster_and_slower_storage(tmp_path: Path) -> None:
    found = limit_of(tmp_path, STARVED, curve=True)
    speeds = {point.multiple: point for point in found.points if point.quantity == "speed"}
    for multiple in (0.25, 0.5, 2.0, 8.0):
        other = Storage(latency_ns=round(RECORDED.latency_ns / multiple), bytes_per_ns=0.5 * multiple)
        assert speeds[multiple].elapsed_ns == pytest.approx(elapsed_ns(STARVED, other), rel=1e-4)
    assert speeds[1.0].elapsed_ns == found.model_ns
    assert speeds[None].elapsed_ns == found.fastest_ns
    assert (found.enough["speed"] or 0) > 1
    times = [point.elapsed_ns for point in speeds.values()]
    assert times == sorted(times, reverse=True)


def a_reader(tmp_path: Path) -> Capture:
    """40 steps, each of which reads 4 KiB and 1 MiB in 100 us and 1 ns a byte each, and computes 2 ms."""
    ops, spans, now = [], [], 0
    for step in range(40):
        begin = now
        for length in (4096, 1 << 20):
            ops.append(read(0, start_ns=now, end_ns=now + 100 * US + length, length=length, step=step))
            now = ops[-1].end_ns or 0
        spans.append(Span("input_wait", begin, now, "next_batch", step=step))
        spans.append(Span("compute", now, now + 2 * MS, step=step))
        now += 2 * MS
        spans.append(Span("step", begin, now, step=step))
    return build_capture(tmp_path, ops=ops, files=["/a"], spans=spans)


def test_requests_of_several_sizes_tell_latency_from_bandwidth(tmp_path: Path) -> None:
    found = storage_limit(a_reader(tmp_path), curve=True)
    last = {point.quantity: point.elapsed_ns for point in found.points if point.multiple is None}
    transfer, latency, compute = 40 * (4096 + (1 << 20)), 40 * 2 * 100 * US, 40 * 2 * MS
    assert last["speed"] == compute
    assert last["bandwidth"] == pytest.approx(compute + latency, rel=0.001)
    assert last["latency"] == pytest.approx(compute + transfer, rel=0.001)


@given(st.integers(0, 10**7), st.floats(0.001, 10.0), st.lists(st.integers(0, 25), min_size=2, unique=True))
def test_the_latency_of_exact_times_is_found(latency: int, per_byte: float, powers: list[int]) -> None:
    items = np.zeros(len(powers), dtype=PLAN_ROW)
    length = 1 << np.array(powers)
    items.view(OPERATION_ROW)["length"] = length
    durations = latency + np.rint(per_byte * length).astype(np.int64)
    found = latencies({"lane": (items, durations)})
    assert (found is not None) == (max(powers) - min(powers) >= 2)
    if found is not None:
        assert np.abs(found["lane"] - latency).max() <= 2 + 1e-6 * durations.max()


@pytest.mark.parametrize(
    ("above", "expected"),
    [((1.9, 1.0, 0.1), 0.25), ((8.0, 4.0, 1.0), pytest.approx(2**0.5)), ((90.0, 50.0, 2.1), None)],
)
def test_the_speed_that_is_enough_lies_between_two_points(above: tuple[float, ...], expected: float | None) -> None:
    points = [
        LimitPoint(quantity="speed", multiple=each, elapsed_ns=1, above_fastest_pct=pct, utilisation_pct=None)
        for each, pct in zip((0.25, 1.0, 2.0), above, strict=True)
    ]
    assert enough(points, "speed") == expected


def test_without_steps_there_is_a_reason(tmp_path: Path) -> None:
    with pytest.raises(NoStorageLimitError, match="not every rank has training steps"):
        storage_limit(build_capture(tmp_path, ops=[read(0)], files=["/a"]))


def test_counts_that_contradict_the_rows_are_damage_and_no_reason(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """`summary` printed figures, a clause that the capture is damaged, and status 0."""
    capture = a_reader(tmp_path)
    ops = [read(0, lane=1, start_ns=start) for start in range(capture.operation_count())]
    other = build_capture(tmp_path, ops=ops, files=["/a"], name="other")
    with_counts_of(capture, other)
    assert main(["summary", str(capture.path)]) == 2
    printed = capfd.readouterr()
    assert printed.out == ""
    assert " ".join(printed.err.split()).count("is damaged: index.parquet counts no operation of lane") == 1


def test_above_its_size_there_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_OPERATIONS", 79)
    with pytest.raises(NoStorageLimitError, match="above 79 operations or 1,000,000 steps and waits"):
        storage_limit(a_reader(tmp_path))


def test_columns_that_contradict_each_other_are_a_reason(tmp_path: Path) -> None:
    spans = [Span("step", 100 * k, 100 * k + 100, step=k) for k in range(3)]
    spans += [Span("input_wait", 100 * k, 100 * k + 10, "input_wait", step=k) for k in range(3)]
    info = CaptureInfo(job=Job(nprocs=1, run_time_s=3e-7), ranks=(0,), dependencies="known")
    ops = [read(0, lane=1, start_ns=30, end_ns=40, length=8, feeds=0, follows=1, follows_end=True)]
    with pytest.raises(NoStorageLimitError, match="contradict each other"):
        storage_limit(build_capture(tmp_path, ops=ops, files=["/a"], spans=spans, info=info))
