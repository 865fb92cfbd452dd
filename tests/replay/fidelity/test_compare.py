"""A faithful replay passes; what is compared with what, by which thresholds, and what the JSON holds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dxt_replay.replay.fidelity.compare import compare
from dxt_replay.replay.fidelity.workload_verdict import Thresholds
from dxt_replay.traces.errors import CaptureError
from dxt_replay.traces.store.reader import Capture
from tests.capture_builder import build_capture
from tests.replay.fidelity.comparing import STEPS, flat, replay_of, replayed_ops, source_fixture, spans  # noqa: F401


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


def test_the_json_has_the_keys_of_the_design(source: Capture) -> None:
    found = flat(compare(source, source))
    assert found.keys() >= {"similarity", "exact", "distribution", "timing", "overlap", "verdict", "passed"}
    assert found["similarity"].keys() >= {"cosine", "factors"}
    assert found["similarity"]["factors"]["bytes"].keys() == {"source", "replay", "difference"}
    assert len(found["similarity"]["factors"]) == 10
    assert found["exact"].keys() >= {"operations", "bytes", "files", "order"}
    assert found["distribution"].keys() == {"transfer_size", "inter_arrival", "latency"}
    assert found["distribution"]["latency"].keys() == {"ks", "wasserstein"}
    assert found["timing"].keys() >= {"elapsed_error_pct", "drift_ppm", "step_error_pct", "lag_us"}
    assert found["timing"]["step_error_pct"].keys() >= {"p50", "max"}
    assert found["overlap"].keys() == {"source_pct", "replay_pct"}
    assert found["verdict"].keys() >= {"similarity", "exact", "timing"}
    assert found["workload"].keys() >= {"verdict", "operations", "bytes", "own_lag_p99_us", "allowed_lag_us"}
    assert found["storage"].keys() >= {"verdict", "io_time_s", "latency_p50_us", "bandwidth_mib_s", "elapsed_s"}
    assert found["passed"] is True
    assert isinstance(found["exact"]["order"], bool)
    json.dumps(found, allow_nan=False)


def test_rows_are_reported_as_ranks_finish(source: Capture) -> None:
    seen: list[int] = []
    compare(source, source, on_rows=seen.append)
    assert sum(seen) == 2 * source.operation_count()


def test_a_replay_through_an_interface_that_is_unknown_is_an_error(source: Capture, tmp_path: Path) -> None:
    """Which rows it replayed is then unknown: a comparison with all of them would blame the replay."""
    with pytest.raises(CaptureError, match="api 'gpfs'"):
        compare(source, replay_of(tmp_path, replayed_ops(), api="gpfs"))
