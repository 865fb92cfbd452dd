"""A faithful replay passes; each way of being unfaithful is caught by the measure that is there for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from replay.fidelity.compare import Comparison, compare
from replay.fidelity.verdict import Thresholds
from tests.capture_builder import Op, Span, build_capture, read, write
from traces.errors import CaptureError
from traces.schema import CaptureInfo, Job
from traces.store import writer as capture_writer
from traces.store.reader import Capture

MS = 1_000_000
S = 1_000_000_000
FILES = ("/data/a", "/data/b", "/out/c")
STEPS = 40


def recorded() -> list[Op]:
    """Two ranks, two lanes each, 40 steps in 8 s: both lanes read file a, lane 0 reads b, and writes c now and then."""
    ops = []
    for rank in range(2):
        for step in range(STEPS):
            at = step * 200 * MS + rank * MS
            for k in range(5):
                start = at + k * 4 * MS
                place = step * 5 + k
                ops.append(
                    read(0, rank=rank, lane=k % 2, offset=4096 * place, length=4096, start_ns=start, end_ns=start + MS)
                )
            ops.append(read(1, rank=rank, offset=100 * step, length=100, start_ns=at + 30 * MS, end_ns=at + 31 * MS))
            if step % 10 == 9:
                ops.append(
                    write(2, rank=rank, offset=10**6 * step, length=10**6, start_ns=at + 40 * MS, end_ns=at + 50 * MS)
                )
    return ops


def spans(scale: float = 1.0) -> list[Span]:
    found = []
    for rank in range(2):
        for step in range(STEPS):
            begin, end = int(step * 200 * MS * scale), int((step * 200 + 190) * MS * scale)
            found.append(Span("step", rank=rank, start_ns=begin, end_ns=end, step=step))
            found.append(Span("compute", rank=rank, start_ns=begin + 10 * MS, end_ns=end - 10 * MS, step=step))
    return found


def info(**made_by: Any) -> CaptureInfo:
    return CaptureInfo(job=Job(nprocs=2, run_time_s=8), ranks=(0, 1), made_by=made_by)


def replayed_ops(late_ns: int = 20_000) -> list[Op]:
    """What a good replay leaves: as recorded, 20 us late, with due times and results."""
    return [
        replace(
            op, start_ns=op.start_ns + late_ns, end_ns=(op.end_ns or 0) + late_ns, due_ns=op.start_ns, result=op.length
        )
        for op in recorded()
    ]


@pytest.fixture
def source(tmp_path: Path) -> Capture:
    return build_capture(tmp_path, files=FILES, ops=recorded(), spans=spans(), info=info(), name="source")


def replay_of(
    tmp_path: Path,
    ops: list[Op],
    *,
    files: tuple[str, ...] = FILES,
    span_list: list[Span] | None = None,
    **made_by: Any,
) -> Capture:
    made_by = {"pace": "timed", "speed": 1.0, **made_by}
    return build_capture(
        tmp_path,
        files=files,
        ops=ops,
        spans=spans() if span_list is None else span_list,
        info=info(**made_by),
        name="replay",
    )


def flat(comparison: Comparison) -> Mapping[str, Any]:
    return comparison.as_json()


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
    from profiler_merge.analysis.summary import summarise

    summary, factors = summarise(source), compare(source, source).similarity.factors
    assert factors["io_time_s"].source == pytest.approx(summary.io_time_s.sum_per_rank_mean)
    assert factors["bytes"].source == summary.bytes.read + summary.bytes.written
    assert factors["files"].source == summary.files
    assert factors["transfer_size_median"].source == summary.transfer_size_bytes.median
    assert factors["bandwidth_mean"].source == pytest.approx(summary.bandwidth_per_op_mib_s.mean)
    assert factors["sequential_pct"].source == pytest.approx(summary.sequential_pct)
    assert compare(source, source).overlap.source_pct == pytest.approx(summary.compute.io_hidden_pct)


def test_a_dropped_operation(source: Capture, tmp_path: Path) -> None:
    ops = replayed_ops()
    del ops[7]
    found = compare(source, replay_of(tmp_path, ops))
    assert (found.exact.operations, found.exact.bytes, found.exact.files, found.exact.order) == (
        False,
        False,
        True,
        False,
    )
    assert "rank 0, /data/a: 200 reads of 800 KiB recorded, 199 reads of 796 KiB replayed" in found.exact.differences
    assert any("lane 1, operation 2: read of 4096 B at" in text for text in found.exact.differences)
    assert (found.verdict.exact, found.verdict.similarity, found.passed) == ("fail", "pass", False)


def test_two_operations_that_changed_places(source: Capture, tmp_path: Path) -> None:
    ops = replayed_ops()
    first, second = [place for place, op in enumerate(ops) if op.file_id == 0 and op.lane == 0][3:5]
    ops[first], ops[second] = (
        replace(ops[first], offset=ops[second].offset),
        replace(ops[second], offset=ops[first].offset),
    )
    found = compare(source, replay_of(tmp_path, ops))
    assert (found.exact.operations, found.exact.bytes, found.exact.files, found.exact.order) == (
        True,
        True,
        True,
        False,
    )
    (difference,) = found.exact.differences
    assert difference == (
        f"rank 0, /data/a, lane 0, operation 3: read of 4096 B at {ops[second].offset} recorded, "
        f"read of 4096 B at {ops[first].offset} replayed"
    )
    assert found.verdict.exact == "fail"


def test_a_moved_offset(source: Capture, tmp_path: Path) -> None:
    ops = replayed_ops()
    place = next(place for place, op in enumerate(ops) if op.file_id == 1 and op.offset == 500)
    ops[place] = replace(ops[place], offset=501)
    found = compare(source, replay_of(tmp_path, ops))
    assert (found.exact.operations, found.exact.bytes, found.exact.order) == (True, True, False)
    (difference,) = found.exact.differences
    assert "/data/b, lane 0, operation 5: read of 100 B at 500 recorded, read of 100 B at 501 replayed" in difference


@pytest.mark.parametrize(("length", "result"), [(4097, 4097), (4095, 4095), (0, -5), (4096, -5), (4096, 100)])
def test_a_length_that_is_not_the_recorded_one(source: Capture, tmp_path: Path, length: int, result: int) -> None:
    """Longer, short, failed: what counts is what the call returned, whatever the row calls its length."""
    ops = replayed_ops()
    ops[0] = replace(ops[0], length=length, result=result)
    found = compare(source, replay_of(tmp_path, ops))
    assert (found.exact.operations, found.exact.bytes) == (True, False)
    assert found.exact.failed == (result < 0)
    assert found.verdict.exact == "fail"


def test_a_failed_operation_that_had_nothing_to_move(tmp_path: Path) -> None:
    source = build_capture(tmp_path, files=["/a"], ops=[read(0, length=0)], name="source")
    replay = build_capture(tmp_path, files=["/a"], ops=[read(0, length=0, result=-5)], name="replay")
    assert compare(source, source).exact.bytes
    assert not compare(source, replay).exact.bytes
    assert compare(replay, replay).exact.bytes


def test_another_file(source: Capture, tmp_path: Path) -> None:
    found = compare(source, replay_of(tmp_path, replayed_ops(), files=("/data/a", "/data/B", "/out/c")))
    assert not found.exact.files
    assert "/data/b is only recorded (1 such files)" in found.exact.differences
    assert found.verdict.exact == "fail"


def test_files_are_matched_by_path_and_not_by_number(source: Capture, tmp_path: Path) -> None:
    number = {0: 3, 1: 1, 2: 0}
    ops = [replace(op, file_id=number[op.file_id]) for op in replayed_ops()]
    found = compare(source, replay_of(tmp_path, ops, files=("/out/c", "/data/b", "/unused", "/data/a")))
    assert found.passed, found.verdict.reasons


def test_operations_on_another_rank(source: Capture, tmp_path: Path) -> None:
    ops = [replace(op, rank=1 - op.rank) if op.file_id == 2 else op for op in replayed_ops()]
    assert compare(source, replay_of(tmp_path, ops)).exact.order, "both ranks write the same"
    ops = [replace(op, rank=1) if op.file_id == 2 else op for op in replayed_ops()]
    assert not compare(source, replay_of(tmp_path, ops)).exact.operations


def test_lanes_may_change_places_with_each_other(source: Capture, tmp_path: Path) -> None:
    """Lane 1 of rank 0 runs 5 ms late: each lane's own sequence is as recorded, their interleaving is not."""
    late = 5 * MS
    ops = [
        replace(op, start_ns=op.start_ns + late, end_ns=(op.end_ns or 0) + late) if (op.rank, op.lane) == (0, 1) else op
        for op in replayed_ops()
    ]
    found = compare(source, replay_of(tmp_path, ops))
    assert found.exact.order
    assert found.exact.inversions.count == 2 * STEPS
    assert found.exact.inversions.pairs == 5 * STEPS - 1 - (STEPS - 1)
    assert found.verdict.exact == "pass"


def test_lanes_may_be_numbered_otherwise(source: Capture, tmp_path: Path) -> None:
    ops = [replace(op, lane=9 - op.lane) for op in replayed_ops()]
    assert compare(source, replay_of(tmp_path, ops)).exact.order


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
    assert any("the storage is too slow for this load" in reason for reason in found.verdict.reasons)


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


def test_only_what_a_replay_issues_is_compared(tmp_path: Path) -> None:
    """A file recorded at two layers is replayed at one."""
    rows = [
        read(0, api="MPIIO", length=8, start_ns=10),
        read(0, api="POSIX", length=8, start_ns=11),
    ]
    source = build_capture(tmp_path, files=["/a"], ops=rows, name="source")
    replay = build_capture(tmp_path, files=["/a"], ops=[replace(rows[1], result=8)], name="replay")
    found = compare(source, replay)
    assert found.exact.operations
    assert found.exact.order
    assert found.similarity.factors["bytes"].source == 8


def test_the_jitter_of_the_replays_machine_is_reported(source: Capture, tmp_path: Path) -> None:
    jitter = {"p50": 1.0, "p90": 2.0, "p99": 3.0, "max": 9.0}
    found = compare(source, replay_of(tmp_path, replayed_ops(), result={"jitter_us": jitter}))
    assert found.timing.jitter_us == jitter


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


def test_state_is_carried_over_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many row groups; one of the last operations differs."""
    monkeypatch.setattr(capture_writer, "ROW_GROUP_ROWS", 700)
    count = 5_000
    rng = np.random.default_rng(4)
    starts, lanes = np.cumsum(rng.integers(1, 2000, count)).tolist(), rng.integers(0, 3, count).tolist()
    ops = [
        read(0, lane=lane, offset=10 * place, length=10, start_ns=start, end_ns=start + 500)
        for place, (start, lane) in enumerate(zip(starts, lanes, strict=True))
    ]
    source = build_capture(tmp_path, files=["/a"], ops=ops, name="source")
    assert len(list(source.operations(0))) == 8
    assert compare(source, source).passed
    ops[-5] = replace(ops[-5], offset=3)
    found = compare(source, build_capture(tmp_path, files=["/a"], ops=ops, name="replay"))
    place = sum(lane == lanes[-5] for lane in lanes[:-5])
    assert found.exact.differences[0].startswith(f"rank 0, /a, lane {lanes[-5]}, operation {place}: read of 10 B at")


def test_operations_that_move_no_data_are_compared_in_number(tmp_path: Path) -> None:
    def made(name: str, opens: int, result: int = 0, api: str = "auto", reconstruct: bool = True) -> Capture:
        ops = [Op("open", 0, offset=-1, start_ns=i, origin="reconstructed", result=result) for i in range(opens)]
        info = CaptureInfo(
            job=Job(nprocs=1, run_time_s=1),
            ranks=(0,),
            made_by={"pace": "timed", "api": api, "reconstruct": reconstruct},
        )
        return build_capture(
            tmp_path, name=name, files=["/a"], ops=[*ops, read(0, length=8, start_ns=90, result=8)], info=info
        )

    source = made("source", 3)
    assert compare(source, made("same", 3)).exact.operations
    fewer = compare(source, made("fewer", 2)).exact
    assert not fewer.operations
    assert fewer.differences == ("rank 0, /a: 3 operations open recorded, 2 operations open replayed",)
    failed = compare(source, made("failed", 3, result=-2)).exact
    assert (failed.failed, failed.bytes) == (3, False)
    assert compare(source, made("without", 0, reconstruct=False)).exact.operations


def test_a_replay_through_an_interface_that_is_unknown_is_an_error(source: Capture, tmp_path: Path) -> None:
    """Which rows it replayed is then unknown: a comparison with all of them would blame the replay."""
    with pytest.raises(CaptureError, match="api 'gpfs'"):
        compare(source, replay_of(tmp_path, replayed_ops(), api="gpfs"))
