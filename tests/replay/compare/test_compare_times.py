"""A replay that was early, late or slow is caught, and the storage's share is named as such."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dxt_replay.replay.compare.comparison import Comparison, compare
from dxt_replay.traces.store.reader import Capture
from tests.capture_builder import Op, build_capture, read
from tests.replay.compare.comparing import MS, STEPS, S, info, replay_of, replayed_ops, source_fixture, spans  # noqa: F401


def test_scaled_time(source: Capture, tmp_path: Path) -> None:
    ops = [replace(op, start_ns=int(op.start_ns * 1.05), end_ns=int((op.end_ns or 0) * 1.05)) for op in replayed_ops()]
    found = compare(source, replay_of(tmp_path, ops, span_list=spans(1.05)))
    assert found.timing.elapsed_error_pct == pytest.approx(5, abs=0.1)
    assert found.timing.step_error_pct is not None
    assert found.timing.step_error_pct.p50 == pytest.approx(5, abs=0.1)
    assert found.distribution.inter_arrival.ks > 0.4
    assert (found.verdict.exact, found.verdict.timing, found.passed) == ("pass", "fail", False)
    assert any("elapsed time is off by +5.0" in reason for reason in found.verdict.reasons)


def test_slower_operations(source: Capture, tmp_path: Path) -> None:
    ops = [replace(op, end_ns=op.start_ns + 3 * ((op.end_ns or 0) - op.start_ns)) for op in replayed_ops()]
    found = compare(source, replay_of(tmp_path, ops))
    assert found.distribution.latency.ks == pytest.approx(1, abs=0.05)
    assert found.distribution.inter_arrival.ks < 0.1
    assert found.distribution.latency.wasserstein == pytest.approx(2 * 280 / 244 * 1000)
    assert found.similarity.factors["io_time_s"].difference == pytest.approx(-2 / 3, rel=1e-6)
    assert found.curves.in_flight_pct == pytest.approx(200, rel=0.05)


@pytest.mark.parametrize(("ppm", "verdict"), [(0, "pass"), (10, "pass"), (100, "fail"), (-100, "fail")])
def test_a_clock_that_drifts(source: Capture, tmp_path: Path, ppm: int, verdict: str) -> None:
    """100 ppm are 0.8 ms in these 8 s: elapsed time and distributions do not see it."""
    ops = [
        replace(op, start_ns=round(op.start_ns * (1 + ppm / 1e6)), end_ns=round((op.end_ns or 0) * (1 + ppm / 1e6)))
        for op in replayed_ops()
    ]
    found = compare(source, replay_of(tmp_path, ops))
    assert found.timing.drift_ppm == pytest.approx(ppm, abs=0.5)
    assert abs(found.timing.elapsed_error_pct or 0) < 0.1
    assert (found.verdict.timing, found.verdict.exact, found.verdict.similarity) == (verdict, "pass", "pass")


def test_the_same_bytes_in_bursts(source: Capture, tmp_path: Path) -> None:
    """Each operation starts with its step: counts, bytes and order hold, gaps and curves do not."""
    ops = [replace(op, start_ns=op.start_ns // (S // 2) * (S // 2)) for op in replayed_ops()]
    ops = [replace(op, start_ns=op.start_ns + place, end_ns=op.start_ns + place + MS) for place, op in enumerate(ops)]
    found = compare(source, replay_of(tmp_path, ops))
    assert found.distribution.inter_arrival.ks > 0.3
    assert (found.curves.bandwidth_pct or 0) > 50
    assert found.overlap.replay_pct != pytest.approx(found.overlap.source_pct, abs=1)


def _skipped(pace: str, speed: float) -> Callable[[Capture, Path], Comparison]:
    def run(source: Capture, tmp_path: Path) -> Comparison:
        ops = [replace(op, start_ns=op.start_ns // 2, end_ns=(op.end_ns or 0) // 2) for op in replayed_ops()]
        return compare(source, replay_of(tmp_path, ops, span_list=spans(0.5), pace=pace, speed=speed))

    return run


@pytest.mark.parametrize(("pace", "speed"), [("none", 1.0), ("think", 1.0), ("timed", 2.0)])
def test_recorded_times_are_not_judged_where_they_were_not_kept(
    source: Capture, tmp_path: Path, pace: str, speed: float
) -> None:
    found = _skipped(pace, speed)(source, tmp_path)
    assert abs(found.timing.replay_elapsed_s / found.timing.source_elapsed_s - 0.5) < 0.01
    assert found.verdict.timing == "pass", "each operation began when its pace wanted it"
    assert found.verdict.reasons == ()
    assert found.passed


def test_errors_are_relative_to_the_speed(source: Capture, tmp_path: Path) -> None:
    found = _skipped("timed", 2.0)(source, tmp_path)
    assert found.timing.elapsed_error_pct == pytest.approx(0, abs=0.1)
    assert found.timing.drift_ppm == pytest.approx(0, abs=1)
    assert found.timing.step_error_pct is not None
    assert found.timing.step_error_pct.max == pytest.approx(0, abs=1e-3)


def test_drift_that_cannot_be_told_is_said(tmp_path: Path) -> None:
    source = build_capture(tmp_path, files=["/a"], ops=[read(0, start_ns=k, length=1) for k in (0, S)])
    found = compare(source, source)
    assert found.timing.drift_ppm is None
    assert found.verdict.timing == "pass"
    assert found.verdict.reasons == ("timing: drift is not judged, too few operations on equal threads to measure it",)


def slower(factor: float, pace: str) -> list[Op]:
    """All times stretched, as slower storage stretches them; under a closed loop what is due stretches with them."""
    ops = []
    for op in replayed_ops():
        start, end = int(op.start_ns * factor), int((op.end_ns or 0) * factor)
        due = op.due_ns if pace == "timed" else start - 20_000
        ops.append(replace(op, start_ns=start, end_ns=end, due_ns=due))
    return ops


@pytest.mark.parametrize("pace", ["steps", "think", "none"])
def test_slower_storage_is_a_result_and_not_a_failure(source: Capture, tmp_path: Path, pace: str) -> None:
    replay = replay_of(tmp_path, slower(1.55, pace), span_list=spans(1.55), pace=pace)
    found = compare(source, replay)
    assert found.passed, found.verdict.reasons
    assert (found.workload.verdict, found.storage.verdict) == ("pass", "slower")
    assert found.storage.io_time_s.ratio == pytest.approx(1.55, rel=1e-3)
    assert "Storage here was 55 % slower (I/O time" in found.headline
    assert (found.storage.elapsed_s is not None) == (pace != "none"), "without waiting there is no run to compare"


def test_a_timed_replay_is_held_to_its_recorded_times(source: Capture, tmp_path: Path) -> None:
    found = compare(source, replay_of(tmp_path, slower(1.55, "timed"), span_list=spans(1.55)))
    assert (found.passed, found.verdict.timing, found.storage.elapsed_s) == (False, "fail", None)
    assert found.headline.startswith("FAILED: the replay did the same work: 488 of 488 operations")


def last_read_of(tmp_path: Path, latency_ms: int, **replayed: str) -> Capture:
    """A read after 0 s and one after 1 s, of which the last takes this long; the capture of a replay where it has a
    pace."""
    ends = (MS, S + latency_ms * MS)
    ops = [
        replace(read(0, offset=k, length=1, start_ns=k * S, end_ns=end), due_ns=k * S if replayed else None)
        for k, end in enumerate(ends)
    ]
    if not replayed:
        return build_capture(tmp_path, files=["/a"], ops=ops, name="source", info=info())
    return replay_of(tmp_path, [replace(op, result=1) for op in ops], files=("/a",), span_list=[], **replayed)


@pytest.mark.parametrize("latency_ms", [1, 900])
def test_the_duration_of_the_last_operation_is_the_storages(tmp_path: Path, latency_ms: int) -> None:
    """A timed replay at storage that was faster or slower in the end did all its work on time."""
    source = last_read_of(tmp_path, 100)
    found = compare(source, last_read_of(tmp_path, latency_ms, pace="timed"))
    assert (found.timing.source_elapsed_s, found.timing.replay_elapsed_s, found.timing.elapsed_error_pct) == (1, 1, 0)
    assert found.passed, found.verdict.reasons
    waiting = compare(source, last_read_of(tmp_path / "think", latency_ms, pace="think"))
    assert waiting.storage.elapsed_s is not None
    assert waiting.storage.elapsed_s.replay == pytest.approx(1 + latency_ms / 1e3), "here the storage decides it"


def test_a_single_read_is_judged_by_its_lag_and_not_by_its_duration(tmp_path: Path) -> None:
    one = read(0, length=1, start_ns=0, end_ns=100 * MS)
    source = build_capture(tmp_path, files=["/a"], ops=[one], name="source", info=info())
    for late_ns, verdict in ((0, "pass"), (50 * MS, "fail")):
        done = replace(one, start_ns=late_ns, end_ns=late_ns + MS, due_ns=0, result=1)
        found = compare(source, replay_of(tmp_path / verdict, [done], files=("/a",), span_list=[]))
        assert (found.timing.elapsed_error_pct, found.verdict.timing) == (None, verdict), found.verdict.reasons


def test_storage_that_cannot_follow_the_recorded_times_is_named(tmp_path: Path) -> None:
    """One thread, an operation of 90 ms each 100 ms; in the replay each takes 98 ms, and the first ones far longer."""
    ops = [read(0, offset=k, length=1, start_ns=100 * MS * k, end_ns=(100 * k + 90) * MS) for k in range(100)]
    source = build_capture(tmp_path, files=["/a"], ops=ops, name="source", info=info())
    late, free = [], 0
    for k, op in enumerate(ops):
        start = max(op.start_ns, free)
        free = start + (2_000 if k == 0 else 70) * MS
        late.append(replace(op, start_ns=start, end_ns=free, due_ns=op.start_ns, result=1))
    found = compare(source, replay_of(tmp_path, late, files=("/a",), span_list=[]))
    assert found.workload.own_lag_p99_us == 0
    assert found.workload.lag_p99_us == pytest.approx(1.9e6, rel=0.05)
    assert "; the storage could not keep the recorded times: " in found.headline
    assert (found.passed, found.verdict.timing) == (True, "pass")


@pytest.mark.parametrize("known", [True, False])
def test_storage_is_blamed_for_no_more_than_its_calls_took(tmp_path: Path, known: bool) -> None:
    """All that was due in 2 s in which a machine stood still begins at once afterwards; each call takes 1 ms."""
    ops = [read(0, offset=k, length=1, start_ns=100 * MS * k, end_ns=(100 * k + 1) * MS) for k in range(100)]
    source = build_capture(tmp_path, files=["/a"], ops=ops, name="source", info=info())
    late, free = [], 0
    for k, op in enumerate(ops):
        start = max(op.start_ns, free if k < 50 else free + 2_000 * MS * (k == 50))
        free = start + MS
        late.append(replace(op, start_ns=start, end_ns=free, due_ns=op.start_ns, result=1))
    result = {"stood_still_s": 2.0} if known else {}
    found = compare(source, replay_of(tmp_path, late, files=("/a",), span_list=[], result=result))
    assert found.passed == known
    assert "could not keep" not in found.headline
    if known:
        assert found.headline.startswith("Disturbed: stood still for 2.0 s, so times are not judged. The replay did")
        assert found.verdict.timing == "skipped"
    else:
        said = "all calls together took 100 ms, so this machine or the replayer was late and not the storage"
        assert said in found.verdict.reasons


def test_a_replayer_that_was_late_fails_under_every_pace(source: Capture, tmp_path: Path) -> None:
    """5 ms after both the due time and the end of the operation before, where an idle thread woke within 3 us."""
    jitter = {"p50": 1.0, "p90": 2.0, "p99": 3.0, "max": 9.0}
    for pace in ("timed", "steps", "think", "none"):
        replay = replay_of(tmp_path / pace, replayed_ops(late_ns=5 * MS), pace=pace, result={"jitter_us": jitter})
        found = compare(source, replay)
        assert found.verdict.timing == "fail", pace
        assert found.workload.allowed_lag_us == 1_000
        assert "although their thread was free" in found.headline
    noisy = {**jitter, "p99": 600.0}
    found = compare(source, replay_of(tmp_path / "noisy", replayed_ops(late_ns=5 * MS), result={"jitter_us": noisy}))
    assert found.passed, "the machine itself was no better"


def test_elapsed_time_means_the_same_on_both_sides(source: Capture, tmp_path: Path) -> None:
    """A replay with --compute skip has no spans: then the source's spans do not count either."""
    found = compare(source, replay_of(tmp_path, replayed_ops(), span_list=[]))
    assert found.timing.elapsed_error_pct == pytest.approx(0)
    assert found.timing.source_elapsed_s < STEPS * 0.2 - 0.01
    assert found.overlap.replay_pct is None
    assert found.timing.step_error_pct is None
