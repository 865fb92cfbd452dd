"""A faithful replay passes; what is compared with what, by which thresholds, and what the JSON holds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dxt_replay.replay.compare.comparison import compare
from dxt_replay.replay.compare.verdict import Thresholds
from dxt_replay.traces.errors import CaptureError, UsageError
from dxt_replay.traces.schema import CaptureInfo, Job, Source
from dxt_replay.traces.store.reader import Capture, open_capture
from dxt_replay.traces.store.writer import write_capture_info
from tests.capture_builder import Span, build_capture, read
from tests.replay.compare.comparing import MS, STEPS, flat, replay_of, replayed_ops, source_fixture, spans  # noqa: F401


def test_a_capture_compared_with_itself_is_perfect(source: Capture) -> None:
    found = compare(source, source)
    assert found.passed
    assert found.similarity.cosine == pytest.approx(1)
    assert all(not factor.difference for factor in found.similarity.factors.values())
    exact = found.exact
    assert (exact.operations, exact.bytes, exact.files, exact.order, exact.failed) == (True, True, True, True, 0)
    assert (exact.inversions.count, exact.differences) == (0, ())
    for distance in (found.distribution.transfer_size, found.distribution.inter_arrival, found.distribution.latency):
        assert (distance.ks, distance.wasserstein) == (0, 0)
    timing = found.timing
    assert (timing.elapsed_error_pct, timing.drift_ppm, timing.drift_interval_ppm) == (0, 0, (0, 0))
    assert timing.step_error_pct is not None
    assert (timing.step_error_pct.max, timing.step_error_pct.steps) == (0, 2 * STEPS)
    assert found.overlap.source_pct == found.overlap.replay_pct
    assert (found.curves.in_flight_pct, found.curves.bandwidth_pct) == (0, 0)
    assert found.verdict.reasons == ()


def test_a_good_replay_passes(source: Capture, tmp_path: Path) -> None:
    found = compare(source, replay_of(tmp_path, replayed_ops()))
    assert found.passed, found.verdict.reasons
    assert found.pace == "timed"
    assert found.timing.lag_us == pytest.approx({"p50": 20, "p90": 20, "p99": 20, "max": 20})
    assert found.timing.drift_ppm == pytest.approx(0, abs=1e-6)
    assert found.overlap.replay_pct == pytest.approx(found.overlap.source_pct, abs=2)
    assert found.overlap.source_pct is not None
    assert 0 < found.overlap.source_pct < 100


def test_the_source_is_measured_by_the_same_definitions_as_a_summary(source: Capture) -> None:
    from dxt_replay.profiler_merge.analysis.summary import summarise

    summary, factors = summarise(source), compare(source, source).similarity.factors
    assert factors["io_time_s"].source == pytest.approx(summary.io_time_s.sum_per_rank_mean)
    assert factors["bytes"].source == summary.bytes.read + summary.bytes.written
    assert factors["files"].source == summary.files
    assert factors["transfer_size_median"].source == summary.transfer_size_bytes.median
    assert factors["bandwidth_mean"].source == pytest.approx(summary.bandwidth_per_op_mib_s.mean)
    assert factors["sequential_pct"].source == pytest.approx(summary.sequential_pct)
    assert compare(source, source).overlap.source_pct == pytest.approx(summary.compute.io_hidden_pct)


def test_thresholds_are_the_callers(source: Capture, tmp_path: Path) -> None:
    ops = [replace(op, end_ns=op.start_ns + 3 * ((op.end_ns or 0) - op.start_ns)) for op in replayed_ops()]
    replay = replay_of(tmp_path, ops)
    assert compare(source, replay).verdict.similarity == "pass", "I/O time and bandwidth are the storage's"
    assert compare(source, replay, Thresholds(fail_under=0.5)).verdict.similarity == "pass"
    strict = compare(source, replay, Thresholds(fail_under=0.99))
    assert (strict.verdict.similarity, strict.passed) == ("fail", False)
    assert flat(strict)["thresholds"]["fail_under"] == 0.99
    assert compare(source, replay, Thresholds(storage_pct=250)).storage.verdict == "same"


def test_thresholds_of_time_are_the_callers(source: Capture, tmp_path: Path) -> None:
    ops = [replace(op, start_ns=int(op.start_ns * 1.05), end_ns=int((op.end_ns or 0) * 1.05)) for op in replayed_ops()]
    replay = replay_of(tmp_path, [replace(op, due_ns=None) for op in ops], span_list=spans(1.05))
    for elapsed, drift, verdict in ((6, 60_000, "pass"), (4, 60_000, "fail"), (6, 40_000, "fail")):
        thresholds = Thresholds(elapsed_error_pct=elapsed, drift_ppm=drift)
        assert compare(source, replay, thresholds).verdict.timing == verdict


def test_an_empty_capture_against_itself_and_against_something(source: Capture, tmp_path: Path) -> None:
    empty = build_capture(tmp_path, name="empty")
    found = compare(empty, empty)
    assert not found.passed
    assert (found.verdict.similarity, found.verdict.timing) == ("fail", "skipped")
    for one, other in ((empty, source), (source, empty)):
        found = compare(one, other)
        assert not found.passed
        assert (found.verdict.similarity, found.verdict.exact) == ("fail", "fail")
        json.dumps(flat(found), allow_nan=False)


def test_a_replay_through_an_interface_that_is_unknown_is_an_error(source: Capture, tmp_path: Path) -> None:
    """Which rows it replayed is then unknown: a comparison with all of them would blame the replay."""
    with pytest.raises(CaptureError, match="api 'gpfs'"):
        compare(source, replay_of(tmp_path, replayed_ops(), api="gpfs"))


@pytest.mark.parametrize(("rebuilt", "said"), [(0, False), (1, True), (4, True)])
def test_the_share_from_counters_is_in_the_headline(rebuilt: int, said: bool, tmp_path: Path) -> None:
    origins = ["reconstructed"] * rebuilt + ["traced"] * (4 - rebuilt)
    ops = [
        read(0, offset=100 * i, length=100, start_ns=i * MS, end_ns=i * MS + MS // 2, origin=origin)
        for i, origin in enumerate(origins)
    ]
    source = build_capture(tmp_path, files=["/data"], ops=ops, name="source")
    found = compare(source, build_capture(tmp_path, files=["/data"], ops=ops, name="replay", replay_of=source))
    assert found.workload.reconstructed == {"operations": rebuilt, "bytes": 100 * rebuilt, "pct": 25.0 * rebuilt}
    assert (f"{25 * rebuilt} % of the recorded reads and writes were rebuilt from counters" in found.headline) is said


def test_a_replay_that_was_stopped_is_named_so(tmp_path: Path) -> None:
    ops = [read(0, offset=100 * i, length=100, start_ns=i * MS, end_ns=i * MS + MS // 2) for i in range(4)]
    source = build_capture(tmp_path, files=["/data"], ops=ops, name="source")
    whole = build_capture(tmp_path, files=["/data"], ops=ops[:2], name="replay", replay_of=source)
    assert compare(source, whole).headline.startswith("FAILED: the replay did not do the same work")
    write_capture_info(whole.path, replace(whole.info, partial=True))
    cut = compare(source, open_capture(whole.path))
    assert cut.headline.startswith("FAILED: the replay was stopped before its end and so did not do the same work")


@pytest.mark.parametrize("extended", [0, 3])
def test_the_share_of_steps_without_a_profile_is_in_the_headline(extended: int, tmp_path: Path) -> None:
    ops = [read(0, offset=100 * i, length=100, start_ns=i * MS, end_ns=i * MS + MS // 2) for i in range(4)]
    spans = [
        Span("step", i * MS, (i + 1) * MS, step=i, origin="reconstructed" if i < extended else "traced")
        for i in range(4)
    ]
    source = build_capture(tmp_path, files=["/data"], ops=ops, spans=spans, name="source")
    replay = build_capture(tmp_path, files=["/data"], ops=ops, spans=spans, name="replay", replay_of=source)
    found = compare(source, replay)
    assert found.workload.extended_steps_pct == 25.0 * extended
    assert ("75 % of the training steps were not profiled" in found.headline) is bool(extended)


@pytest.mark.parametrize(("kind", "named"), [("darshan", None), ("strace", "strace"), ("dftracer", "DFTracer")])
def test_a_tracer_that_slows_every_call_is_named(kind: str, named: str | None, tmp_path: Path) -> None:
    ops = [read(0, offset=100 * i, length=100, start_ns=i * MS, end_ns=i * MS + MS // 2) for i in range(4)]
    job = Job(nprocs=1, run_time_s=0.01)
    info = CaptureInfo(job=job, ranks=(0,), sources=(Source(name="job.log", sha256="0", kind=kind),))
    source = build_capture(tmp_path, files=["/data"], ops=ops, name="source", info=info)
    headline = compare(source, build_capture(tmp_path, files=["/data"], ops=ops, replay_of=source)).headline
    assert (f"include what {named} added to every call" in headline) is (named is not None)
    assert ("added to every call" in headline) is (named is not None)


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ({"fail_under": 2}, "--fail-under 2: give 0 to 1"),
        ({"similarity": float("nan")}, "similarity nan: give 0 to 1"),
        ({"elapsed_error_pct": -1}, "--max-elapsed-error -1: give 0 or more"),
        ({"drift_ppm": float("nan")}, "--max-drift nan: give 0 or more"),
        ({"storage_pct": -5}, "storage_pct -5: give 0 or more"),
    ],
)
def test_a_limit_that_no_comparison_can_have_is_refused(limit: dict[str, float], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Thresholds(**limit)
