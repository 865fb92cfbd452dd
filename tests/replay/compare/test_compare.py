"""`compare` of a small recorded run with replays of it: other work is caught, times that were not kept fail, and the
storage's share is named as such. `tests/golden` has the text of each result."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dxt_replay.replay.compare.comparison import compare
from dxt_replay.replay.compare.exactness import MAX_DIFFERENCES
from dxt_replay.replay.compare.verdict import Thresholds
from dxt_replay.traces.errors import CaptureError, UsageError
from dxt_replay.traces.schema import CaptureInfo, Job, Source
from dxt_replay.traces.store.reader import Capture, open_capture
from dxt_replay.traces.store.writer import write_capture_info
from tests.capture_builder import Op, Span, build_capture, read, write
from tests.replay.compare.comparing import FILES, MS, STEPS, S, info, replay_of, replayed_ops, source_fixture, spans  # noqa: F401

Change = Callable[[list[Op]], list[Op]]


def test_a_capture_compared_with_itself_is_perfect_and_measured_as_a_summary_does(source: Capture) -> None:
    from dxt_replay.profiler_merge.analysis.summary import summarise

    found, summary = compare(source, source), summarise(source)
    assert found.passed
    assert found.similarity.cosine == pytest.approx(1)
    assert all(not factor.difference for factor in found.similarity.factors.values())
    assert (found.exact.unequal_names, found.exact.inversions.count, found.exact.differences) == ((), 0, ())
    for distance in (found.distribution.transfer_size, found.distribution.inter_arrival, found.distribution.latency):
        assert (distance.ks, distance.wasserstein) == (0, 0)
    timing = found.timing
    assert (timing.elapsed_error_pct, timing.drift_ppm, timing.drift_interval_ppm) == (0, 0, (0, 0))
    assert timing.step_error_pct is not None
    assert (timing.step_error_pct.max, timing.step_error_pct.steps) == (0, 2 * STEPS)
    assert (found.curves.in_flight_pct, found.curves.bandwidth_pct, found.verdict.reasons) == (0, 0, ())
    factors = {name: factor.source for name, factor in found.similarity.factors.items()}
    assert factors["io_time_s"] == pytest.approx(summary.io_time_s.sum_per_rank_mean)
    assert (factors["bytes"], factors["files"]) == (summary.bytes.read + summary.bytes.written, summary.files)
    assert factors["transfer_size_median"] == summary.transfer_size_bytes.median
    assert factors["bandwidth_mean"] == pytest.approx(summary.bandwidth_per_op_mib_s.mean)
    assert factors["sequential_pct"] == pytest.approx(summary.sequential_pct)
    assert found.overlap.source_pct == found.overlap.replay_pct == pytest.approx(summary.compute.io_hidden_pct)


# ------------------------------------------------------------------------------------------------------------ the work


def changed(place: int, **fields: Any) -> Change:
    return lambda ops: [replace(op, **fields) if k == place else op for k, op in enumerate(ops)]


def swapped(ops: list[Op]) -> list[Op]:
    """Two operations of a lane on a file, the fourth and the fifth, that changed places."""
    first, second = [place for place, op in enumerate(ops) if op.file_id == 0 and op.lane == 0][3:5]
    return changed(second, offset=ops[first].offset)(changed(first, offset=ops[second].offset)(ops))


OTHER_NUMBERS = {0: 3, 1: 1, 2: 0}
ALL = ("operations", "bytes", "files", "order")


@pytest.mark.parametrize(
    ("change", "files", "unequal", "said"),
    [
        (lambda ops: ops, FILES, (), ""),
        (lambda ops: ops[:7] + ops[8:], FILES, ("operations", "bytes", "order"), "lane 1, operation 2: read of 4096 B"),
        (lambda ops: ops[:7] + ops[8:], FILES, ("operations", "bytes", "order"), "200 reads of 800 KiB recorded, 199"),
        (swapped, FILES, ("order",), "rank 0, /data/a, lane 0, operation 3: read of 4096 B at 20480 recorded, read of"),
        (changed(5, offset=77), FILES, ("order",), "read of 100 B at 0 recorded, read of 100 B at 77 replayed"),
        # Longer, short, failed: what counts is what the call returned, whatever the row calls its length.
        (changed(0, length=4097, result=4097), FILES, ("bytes", "order"), "read of 4097 B at 0 replayed"),
        (changed(0, length=4096, result=100), FILES, ("bytes", "order"), "read of 100 B at 0 replayed"),
        (changed(0, length=0, result=-5), FILES, ("bytes", "order"), "read of 0 B at 0 replayed"),
        (lambda ops: ops, ("/data/a", "/data/B", "/out/c"), ALL, "/data/b is only recorded (1 such files)"),
        # Files are matched by path and not by number, and lanes may be numbered otherwise.
        (
            lambda ops: [replace(op, file_id=OTHER_NUMBERS[op.file_id], lane=9 - op.lane) for op in ops],
            ("/out/c", "/data/b", "/unused", "/data/a"),
            (),
            "",
        ),
        # Both ranks write the same.
        (lambda ops: [replace(op, rank=1 - op.rank) if op.file_id == 2 else op for op in ops], FILES, (), ""),
        (lambda ops: [replace(op, rank=1) if op.file_id == 2 else op for op in ops], FILES, ALL[:2] + ALL[3:], "write"),
    ],
)
def test_other_work_is_told(
    source: Capture, tmp_path: Path, change: Change, files: tuple[str, ...], unequal: tuple[str, ...], said: str
) -> None:
    found = compare(source, replay_of(tmp_path, change(replayed_ops()), files=files))
    assert found.exact.unequal_names == unequal
    assert (found.verdict.exact, found.passed) == (("fail", False) if unequal else ("pass", True))
    assert said in "; ".join(found.exact.differences)
    assert bool(found.exact.differences) is bool(unequal)


def test_lanes_may_change_places_with_each_other(source: Capture, tmp_path: Path) -> None:
    """Lane 1 of rank 0 runs 5 ms late: each lane's own sequence is as recorded, their interleaving is not."""
    late = 5 * MS
    ops = [
        replace(op, start_ns=op.start_ns + late, end_ns=(op.end_ns or 0) + late) if (op.rank, op.lane) == (0, 1) else op
        for op in replayed_ops()
    ]
    found = compare(source, replay_of(tmp_path, ops))
    assert (found.exact.order, found.verdict.exact) == (True, "pass")
    assert (found.exact.inversions.count, found.exact.inversions.pairs) == (2 * STEPS, 4 * STEPS)


def test_only_what_a_replay_issues_is_compared(tmp_path: Path) -> None:
    """A file recorded at two layers is replayed at one."""
    rows = [read(0, api="MPIIO", length=8, start_ns=10), read(0, api="POSIX", length=8, start_ns=11)]
    source = build_capture(tmp_path, files=["/a"], ops=rows, name="source")
    found = compare(source, build_capture(tmp_path, files=["/a"], ops=[replace(rows[1], result=8)], name="replay"))
    assert (found.exact.operations, found.exact.order) == (True, True)
    assert found.similarity.factors["bytes"].source == 8


def test_state_is_carried_over_row_groups(tmp_path: Path) -> None:
    """Many row groups; one of the last operations differs."""
    count, rng = 5_000, np.random.default_rng(4)
    starts, lanes = np.cumsum(rng.integers(1, 2000, count)).tolist(), rng.integers(0, 3, count).tolist()
    ops = [
        read(0, lane=lane, offset=10 * place, length=10, start_ns=start, end_ns=start + 500)
        for place, (start, lane) in enumerate(zip(starts, lanes, strict=True))
    ]
    source = build_capture(tmp_path, files=["/a"], ops=ops, name="source", row_group_rows=700)
    assert compare(source, source).passed
    ops[-5] = replace(ops[-5], offset=3)
    found = compare(source, build_capture(tmp_path, files=["/a"], ops=ops, name="replay", row_group_rows=700))
    place = sum(lane == lanes[-5] for lane in lanes[:-5])
    assert found.exact.differences[0].startswith(f"rank 0, /a, lane {lanes[-5]}, operation {place}: read of 10 B at")


@pytest.mark.parametrize(
    ("opens", "made_by", "result", "equal", "failed", "said"),
    [
        (3, {}, 0, True, 0, ""),
        (2, {}, 0, False, 0, "rank 0, /a: 3 operations open recorded, 2 operations open replayed"),
        (3, {}, -5, True, 3, ""),
        (3, {}, -2, True, 0, ""),  # an inferred open that finds nothing is not a failure
        (0, {"reconstruct": False}, 0, True, 0, ""),
    ],
)
def test_operations_that_move_no_data_are_compared_in_number(
    tmp_path: Path, opens: int, made_by: dict[str, Any], result: int, equal: bool, failed: int, said: str
) -> None:
    def made(name: str, opens: int, result: int, **made_by: Any) -> Capture:
        ops = [Op("open", 0, offset=-1, start_ns=i, origin="reconstructed", result=result) for i in range(opens)]
        about = replace(info(pace="timed", **made_by), ranks=(0,))
        ops.append(read(0, length=8, start_ns=90, result=8))
        return build_capture(tmp_path, name=name, files=["/a"], ops=ops, info=about)

    exact = compare(made("source", 3, 0), made("replay", opens, result, **made_by)).exact
    assert (exact.operations, exact.failed, exact.bytes) == (equal, failed, not failed)
    assert exact.differences == ((said,) if said else ())


@pytest.mark.parametrize("replayed", [2, 1])
def test_captures_with_metadata_alone_are_compared_by_their_operations(tmp_path: Path, replayed: int) -> None:
    """No read or write has a similarity: it is not judged, and fails nothing."""
    ops = [Op("stat", 0, start_ns=place * MS, due_ns=place * MS, result=0) for place in range(2)]
    recorded = [replace(op, due_ns=None, result=None) for op in ops]
    source = build_capture(tmp_path, ops=recorded, files=["/data/a"], name="looked")
    found = compare(source, replay_of(tmp_path, ops[:replayed], files=("/data/a",), span_list=[]))
    same = "The replay did the same work: 2 of 2 operations"
    assert found.headline.startswith(same if replayed == 2 else "FAILED: the replay did not do the same work")
    assert (found.passed, found.verdict.similarity) == (replayed == 2, "skipped")


def test_only_the_first_differences_are_described(tmp_path: Path) -> None:
    files = [f"/data/{number}" for number in range(40)]
    ops = [
        made(file_id, rank=rank, length=10, start_ns=1000 * file_id)
        for rank in range(3)
        for file_id in range(len(files))
        for made in (read, write)
    ]
    source = build_capture(tmp_path, files=files, ops=ops, name="source")
    found = compare(source, build_capture(tmp_path, files=files, ops=[*ops, *ops], name="replay")).exact
    assert (found.operations, len(found.differences)) == (False, MAX_DIFFERENCES)


def test_nothing_and_something(source: Capture, tmp_path: Path) -> None:
    empty = build_capture(tmp_path, name="empty")
    for one, other, verdicts in ((empty, empty, "skipped"), (empty, source, "fail"), (source, empty, "fail")):
        found = compare(one, other)
        assert (found.passed, found.verdict.similarity) == (False, "fail")
        assert (found.verdict.timing if one is other else found.verdict.exact) == verdicts
        json.dumps(found.as_json(), allow_nan=False)
    with pytest.raises(CaptureError, match="api 'gpfs'"):  # which rows it replayed is unknown
        compare(source, replay_of(tmp_path, replayed_ops(), api="gpfs"))
    failed = build_capture(tmp_path, files=["/a"], ops=[read(0, length=0, result=-5)], name="failed")
    whole = build_capture(tmp_path, files=["/a"], ops=[read(0, length=0)], name="whole")
    assert [compare(*both).exact.bytes for both in ((whole, whole), (whole, failed), (failed, failed))] == [1, 0, 1]


# ----------------------------------------------------------------------------------------------------------- the times


def stretched(factor: float, *, due: bool = True, kept: bool = True) -> Change:
    """All times as long by this factor. `kept`: what was due stays; else it stretches too, as under a closed loop."""

    def change(ops: list[Op]) -> list[Op]:
        found = []
        for op in ops:
            start, end = round(op.start_ns * factor), round((op.end_ns or 0) * factor)
            wanted = (op.due_ns if kept else start - 20_000) if due else None
            found.append(replace(op, start_ns=start, end_ns=end, due_ns=wanted))
        return found

    return change


def longer(ops: list[Op]) -> list[Op]:
    return [replace(op, end_ns=op.start_ns + 3 * ((op.end_ns or 0) - op.start_ns)) for op in ops]


def in_bursts(ops: list[Op]) -> list[Op]:
    """Each operation starts with its half second: counts, bytes and order hold, gaps and curves do not."""
    starts = [op.start_ns // (S // 2) * (S // 2) + place for place, op in enumerate(ops)]
    return [replace(op, start_ns=start, end_ns=start + MS) for op, start in zip(ops, starts, strict=True)]


def late_by(late_ns: int) -> Change:
    return lambda ops: replayed_ops(late_ns=late_ns)


JITTER = {"p50": 1.0, "p90": 2.0, "p99": 3.0, "max": 9.0}
QUIET = {"result": {"jitter_us": JITTER}}
PASSES = {"verdict.timing": "pass", "verdict.exact": "pass", "verdict.similarity": "pass", "passed": True}
FAILS = {**PASSES, "verdict.timing": "fail", "passed": False}
SLOW = {**PASSES, "workload.verdict": "pass", "storage.verdict": "slower", "storage.io_time_s.ratio": 1.55}


@pytest.mark.parametrize(
    ("change", "scale", "made_by", "expected", "said"),
    [
        (lambda ops: ops, 1, {}, {**PASSES, "timing.lag_us.p99": 20, "timing.drift_ppm": 0}, "as fast"),
        (stretched(1.05, due=False), 1.05, {}, {**FAILS, "timing.elapsed_error_pct": 5, "timing.step_error_pct.p50": 5,
                                                "distribution.inter_arrival.ks": 0.5}, "elapsed time is off by +5.0"),
        (longer, 1, {}, {**PASSES, "distribution.latency.ks": 1, "similarity.factors.io_time_s.difference": -2 / 3,
                         "distribution.latency.wasserstein": 2 * 280 / 244 * 1000, "curves.in_flight_pct": 200,
                         "storage.io_time_s.ratio": 3}, "3.0 times slower"),
        # 100 ppm are 0.8 ms in these 8 s: elapsed time and distributions do not see it.
        (stretched(1 + 10e-6), 1, {}, {**PASSES, "timing.drift_ppm": 10}, ""),
        (stretched(1 + 100e-6), 1, {}, {**FAILS, "timing.drift_ppm": 100}, "start times drift by +100 us/s"),
        (stretched(1 - 100e-6), 1, {}, {**FAILS, "timing.drift_ppm": -100}, "start times drift by -100 us/s"),
        (in_bursts, 1, {}, {"distribution.inter_arrival.ks": 0.5, "verdict.exact": "pass"}, ""),
        # Recorded times are not judged where they were not kept; errors are relative to the speed.
        (stretched(0.5), 0.5, {"pace": "none"}, {**PASSES, "verdict.reasons": ()}, ""),
        (stretched(0.5), 0.5, {"pace": "think"}, {**PASSES, "verdict.reasons": ()}, ""),
        (stretched(0.5), 0.5, {"speed": 2.0}, {**PASSES, "timing.elapsed_error_pct": 0, "timing.drift_ppm": 0,
                                               "timing.step_error_pct.max": 0}, ""),
        # Slower storage is a result and not a failure; without waiting there is no run to compare.
        (stretched(1.55, kept=False), 1.55, {"pace": "steps"}, {**SLOW, "storage.elapsed_s.ratio": 1.55}, "55 % sl"),
        (stretched(1.55, kept=False), 1.55, {"pace": "think"}, {**SLOW, "storage.elapsed_s.ratio": 1.55}, "55 % sl"),
        (stretched(1.55, kept=False), 1.55, {"pace": "none"}, {**SLOW, "storage.elapsed_s": None}, "55 % slower"),
        (stretched(1.55), 1.55, {}, {**FAILS, "storage.elapsed_s": None}, "FAILED: the replay did the same work: 488"),
        # 5 ms after both the due time and the end of the operation before, where an idle thread woke within 3 us.
        *((late_by(5 * MS), 1, {"pace": pace, **QUIET}, {**FAILS, "workload.allowed_lag_us": 1000},
           "although their thread was free") for pace in ("timed", "steps", "think", "none")),
        (late_by(5 * MS), 1, {"result": {"jitter_us": {**JITTER, "p99": 600.0}}}, PASSES, ""),  # the machine's own
    ],
)  # fmt: skip
def test_times_that_were_not_kept_fail_and_slow_storage_does_not(
    source: Capture, tmp_path: Path, change: Change, scale: float, made_by: Any, expected: Mapping[str, Any], said: str
) -> None:
    found = compare(source, replay_of(tmp_path, change(replayed_ops()), span_list=spans(scale), **made_by))
    for name, value in expected.items():
        known: Any = found
        for key in name.split("."):
            known = known[key] if isinstance(known, Mapping) else getattr(known, key)
        same = (
            value if isinstance(value, (str, bool, tuple)) or value is None else pytest.approx(value, rel=0.04, abs=0.5)
        )
        assert known == same, (name, found.headline)
    assert said in found.headline


def test_elapsed_time_means_the_same_on_both_sides(source: Capture, tmp_path: Path) -> None:
    """A replay without spans: then the source's spans do not count either."""
    found = compare(source, replay_of(tmp_path, replayed_ops(), span_list=[]))
    assert found.timing.elapsed_error_pct == pytest.approx(0)
    assert found.timing.source_elapsed_s < STEPS * 0.2 - 0.01
    assert (found.overlap.replay_pct, found.timing.step_error_pct) == (None, None)


def test_drift_that_cannot_be_told_is_said(tmp_path: Path) -> None:
    source = build_capture(tmp_path, files=["/a"], ops=[read(0, start_ns=k, length=1) for k in (0, S)])
    found = compare(source, source)
    assert (found.timing.drift_ppm, found.verdict.timing) == (None, "pass")
    assert found.verdict.reasons == ("timing: drift is not judged, too few operations on equal threads to measure it",)


@pytest.mark.parametrize("latency_ms", [1, 900])
def test_the_duration_of_the_last_operation_is_the_storages(tmp_path: Path, latency_ms: int) -> None:
    """A timed replay at storage that was faster or slower in the end did all its work on time."""

    def ops(last_ms: int) -> list[Op]:
        return [
            read(0, offset=k, length=1, start_ns=k * S, end_ns=k * S + ms * MS) for k, ms in enumerate((1, last_ms))
        ]

    source = build_capture(tmp_path, files=["/a"], ops=ops(100), name="source", info=info())
    done = [replace(op, due_ns=op.start_ns, result=1) for op in ops(latency_ms)]
    found = compare(source, replay_of(tmp_path, done, files=("/a",), span_list=[]))
    assert (found.timing.source_elapsed_s, found.timing.replay_elapsed_s, found.timing.elapsed_error_pct) == (1, 1, 0)
    assert found.passed, found.verdict.reasons
    waiting = compare(source, replay_of(tmp_path / "think", done, files=("/a",), span_list=[], pace="think"))
    assert waiting.storage.elapsed_s is not None
    assert waiting.storage.elapsed_s.replay == pytest.approx(1 + latency_ms / 1e3), "here the storage decides it"


@pytest.mark.parametrize(("late_ns", "verdict"), [(0, "pass"), (50 * MS, "fail")])
def test_a_single_read_is_judged_by_its_lag_and_not_by_its_duration(tmp_path: Path, late_ns: int, verdict: str) -> None:
    one = read(0, length=1, start_ns=0, end_ns=100 * MS)
    source = build_capture(tmp_path, files=["/a"], ops=[one], name="source", info=info())
    done = replace(one, start_ns=late_ns, end_ns=late_ns + MS, due_ns=0, result=1)
    found = compare(source, replay_of(tmp_path, [done], files=("/a",), span_list=[]))
    assert (found.timing.elapsed_error_pct, found.verdict.timing) == (None, verdict), found.verdict.reasons


def one_thread(
    tmp_path: Path, took_ms: int, replayed_ms: Callable[[int], int], stop_ms: int = 0, **made_by: Any
) -> Any:
    """An operation each 100 ms, and its replay, in which the machine stood still before the fiftieth."""
    ops = [read(0, offset=k, length=1, start_ns=100 * MS * k, end_ns=(100 * k + took_ms) * MS) for k in range(100)]
    source = build_capture(tmp_path, files=["/a"], ops=ops, name="source", info=info())
    late, free = [], 0
    for k, op in enumerate(ops):
        start = max(op.start_ns, free + stop_ms * MS * (k == 50))
        free = start + replayed_ms(k) * MS
        late.append(replace(op, start_ns=start, end_ns=free, due_ns=op.start_ns, result=1))
    return compare(source, replay_of(tmp_path, late, files=("/a",), span_list=[], **made_by))


def test_storage_that_cannot_follow_the_recorded_times_is_named(tmp_path: Path) -> None:
    found = one_thread(tmp_path, 90, lambda k: 70 if k else 2_000)
    assert found.workload.own_lag_p99_us == 0
    assert found.workload.lag_p99_us == pytest.approx(1.9e6, rel=0.05)
    assert "; the storage could not keep the recorded times: " in found.headline
    assert (found.passed, found.verdict.timing) == (True, "pass")


def test_storage_is_blamed_for_no_more_than_its_calls_took(tmp_path: Path) -> None:
    """All that was due in 2 s in which a machine stood still begins at once afterwards; each call takes 1 ms."""
    found = one_thread(tmp_path, 1, lambda k: 1, 2_000)
    assert (found.passed, "could not keep" in found.headline) == (False, False)
    said = "all calls together took 100 ms, so this machine or the replayer was late and not the storage"
    assert said in found.verdict.reasons
    known = one_thread(tmp_path / "known", 1, lambda k: 1, 2_000, result={"stood_still_s": 2.0})
    assert known.headline.startswith("Disturbed: stood still for 2.0 s, so times are not judged. The replay did")
    assert (known.passed, known.verdict.timing) == (True, "skipped")


# --------------------------------------------------------------------------------------------- limits, and what is said


def test_thresholds_are_the_callers(source: Capture, tmp_path: Path) -> None:
    replay = replay_of(tmp_path, longer(replayed_ops()))
    for limits, verdict in (({}, "pass"), ({"fail_under": 0.5}, "pass"), ({"fail_under": 0.99}, "fail")):
        found = compare(source, replay, Thresholds(**limits))
        assert (found.verdict.similarity, found.passed) == (verdict, verdict == "pass")
    assert compare(source, replay, Thresholds(storage_pct=250)).storage.verdict == "same"
    slow = replay_of(tmp_path / "slow", stretched(1.05, due=False)(replayed_ops()), span_list=spans(1.05))
    for elapsed, drift, verdict in ((6, 60_000, "pass"), (4, 60_000, "fail"), (6, 40_000, "fail")):
        assert compare(source, slow, Thresholds(elapsed_error_pct=elapsed, drift_ppm=drift)).verdict.timing == verdict


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


ORIGINS = [["traced"] * 4, ["reconstructed", *["traced"] * 3], ["reconstructed"] * 4]


@pytest.mark.parametrize(
    ("kind", "origins", "inferred_steps", "said"),
    [
        ("darshan", ORIGINS[0], 0, []),
        ("darshan", ORIGINS[1], 0, ["25 % of the recorded reads and writes were rebuilt from counters"]),
        ("darshan", ORIGINS[2], 0, ["100 % of the recorded reads and writes were rebuilt from counters"]),
        ("darshan", ORIGINS[0], 3, ["75 % of the training steps were not profiled"]),
        ("strace", ORIGINS[0], 0, ["include what strace added to every call"]),
        ("dftracer", ORIGINS[0], 0, ["include what DFTracer added to every call"]),
    ],
)
def test_the_headline_says_what_it_rests_on(
    kind: str, origins: list[str], inferred_steps: int, said: list[str], tmp_path: Path
) -> None:
    ops = [
        read(0, offset=100 * i, length=100, start_ns=i * MS, end_ns=i * MS + MS // 2, origin=origin)
        for i, origin in enumerate(origins)
    ]
    steps = [
        Span("step", i * MS, (i + 1) * MS, step=i, origin="reconstructed" if i < inferred_steps else "traced")
        for i in range(4)
    ]
    job = Job(nprocs=1, run_time_s=0.01)
    about = CaptureInfo(job=job, ranks=(0,), sources=(Source(name="job.log", sha256="0", kind=kind),))
    source = build_capture(tmp_path, files=["/data"], ops=ops, spans=steps, name="source", info=about)
    replay = build_capture(tmp_path, files=["/data"], ops=ops, spans=steps, name="replay", replay_of=source)
    found = compare(source, replay)
    words = ("rebuilt from counters", "were not profiled", "added to every call")
    assert [word in found.headline for word in words] == [any(word in each for each in said) for word in words]
    assert all(each in found.headline for each in said)
    rebuilt = origins.count("reconstructed")
    assert found.workload.reconstructed == {"operations": rebuilt, "bytes": 100 * rebuilt, "pct": 25.0 * rebuilt}
    assert found.workload.extended_steps_pct == 25.0 * inferred_steps


def test_a_replay_that_was_stopped_is_named_so(source: Capture, tmp_path: Path) -> None:
    whole = replay_of(tmp_path, replayed_ops()[:9])
    assert compare(source, whole).headline.startswith("FAILED: the replay did not do the same work")
    write_capture_info(whole.path, replace(whole.info, partial=True))
    cut = compare(source, open_capture(whole.path))
    assert cut.headline.startswith("FAILED: the replay was stopped before its end and so did not do the same work")
