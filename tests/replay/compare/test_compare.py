"""`compare` of a small recorded run with replays of it: other work is caught, times that were not kept fail, and the
storage's share is named as such; what two runs of the job differ by is noise, and no limit is stricter than that.
`tests/golden` has the text of each result."""

import json
from collections.abc import Mapping
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from dxt_replay.replay.compare import measures
from dxt_replay.replay.compare.comparison import compare, noise_floor
from dxt_replay.replay.compare.exactness import MAX_DIFFERENCES
from dxt_replay.replay.compare.noise import check_paces, measured, worst_of
from dxt_replay.replay.compare.verdict import Thresholds
from dxt_replay.traces.errors import CaptureError, UsageError
from dxt_replay.traces.schema import CaptureInfo, Job, Source
from dxt_replay.traces.store.reader import open_capture
from dxt_replay.traces.store.writer import write_capture_info
from tests.capture_builder import Op, Span, build_capture, read, write

MS, S = 1_000_000, 1_000_000_000
FILES = ("/data/a", "/data/b", "/out/c")
STEPS = 40


def recorded():
    """Two ranks, two lanes each, 40 steps in 8 s: both lanes read file a, lane 0 reads b, and writes c now and then."""
    ops = []
    for rank, step in product(range(2), range(STEPS)):
        at, begin = (step * 200 + rank) * MS, step * 5
        for k in range(5):
            place, start = 4096 * (begin + k), at + k * 4 * MS
            ops.append(read(0, rank=rank, lane=k % 2, offset=place, length=4096, start_ns=start, end_ns=start + MS))
        start = at + 30 * MS
        ops.append(read(1, rank=rank, offset=100 * step, length=100, start_ns=start, end_ns=start + MS))
        if step % 10 == 9:
            start, size = at + 40 * MS, 10**6
            ops.append(write(2, rank=rank, offset=size * step, length=size, start_ns=start, end_ns=start + 10 * MS))
    return ops


def spans(scale=1.0):
    found = []
    for rank, step in product(range(2), range(STEPS)):
        begin, end = int(step * 200 * MS * scale), int((step * 200 + 190) * MS * scale)
        found.append(Span("step", rank=rank, start_ns=begin, end_ns=end, step=step))
        found.append(Span("compute", rank=rank, start_ns=begin + 10 * MS, end_ns=end - 10 * MS, step=step))
    return found


def info(**made_by):
    return CaptureInfo(job=Job(nprocs=2, run_time_s=8), ranks=(0, 1), made_by=made_by)


def replayed_ops(late_ns=20_000):
    """What a good replay leaves: as recorded, 20 us late, with due times and results."""
    times = lambda op: {"start_ns": op.start_ns + late_ns, "end_ns": op.end_ns + late_ns, "due_ns": op.start_ns}  # noqa: E731
    return [replace(op, **times(op), result=op.length) for op in recorded()]


@pytest.fixture
def source(tmp_path):
    return build_capture(tmp_path, files=FILES, ops=recorded(), spans=spans(), info=info(), name="source")


def replay_of(tmp_path, ops, *, files=FILES, span_list=None, **made_by):
    span_list = spans() if span_list is None else span_list
    about = info(**{"pace": "timed", "speed": 1.0, **made_by})
    return build_capture(tmp_path, files=files, ops=ops, spans=span_list, info=about, name="replay")


def test_a_capture_compared_with_itself_is_perfect(source):
    found = compare(source, source)
    assert found.passed
    assert found.similarity.cosine == pytest.approx(1)
    apart = {name: value for name, value in measured(found).items() if not name.startswith("similarity.")}
    assert {name: value for name, value in apart.items() if value} == {}
    assert [name for name, value in apart.items() if value is None] == ["storage.metadata_time_s"]
    assert (found.timing.drift_interval_ppm, found.timing.step_error_pct.steps) == ((0, 0), 2 * STEPS)
    assert (found.exact.differences, found.exact.inversions.count, found.verdict.reasons) == ((), 0, ())


# ------------------------------------------------------------------------------------------------------------ the work


def changed(place, **fields):
    return lambda ops: [replace(op, **fields) if k == place % len(ops) else op for k, op in enumerate(ops)]


def without(*places):
    return lambda ops: [op for place, op in enumerate(ops) if place not in places and place - len(ops) not in places]


def swapped(first):
    """Two operations of a lane on a file change places."""
    return lambda ops: changed(first + 2, offset=ops[first].offset)(changed(first, offset=ops[first + 2].offset)(ops))


def renumbered(ops):
    numbers = {0: 3, 1: 1, 2: 0}
    return [replace(op, file_id=numbers[op.file_id], lane=9 - op.lane) for op in ops]


def by_rank(rank_of):
    return lambda ops: [replace(op, rank=rank_of(op.rank)) if op.file_id == 2 else op for op in ops]


ALL = ("operations", "bytes", "files", "order")
LEFT_OUT = ("operations", "bytes", "order")


@pytest.mark.parametrize(
    ("change", "files", "unequal", "said"),
    [
        (without(), FILES, (), ""),
        (without(7), FILES, LEFT_OUT, "lane 1, operation 2: read of 4096 B"),
        (without(7), FILES, LEFT_OUT, "200 reads of 800 KiB recorded, 199"),
        (swapped(7), FILES, ("order",), "rank 0, /data/a, lane 1, operation 2: read of 4096 B at 24576 recorded, read"),
        (changed(5, offset=77), FILES, ("order",), "read of 100 B at 0 recorded, read of 100 B at 77 replayed"),
        # Longer, short, failed: what counts is what the call returned, whatever the row calls its length.
        (changed(0, length=4097, result=4097), FILES, ("bytes", "order"), "read of 4097 B at 0 replayed"),
        (changed(0, length=4096, result=100), FILES, ("bytes", "order"), "read of 100 B at 0 replayed"),
        (changed(0, length=0, result=-5), FILES, ("bytes", "order"), "read of 0 B at 0 replayed"),
        (without(), ("/data/a", "/data/B", "/out/c"), ALL, "/data/b is only recorded (1 such files)"),
        # Files are matched by path and not by number, and lanes may be numbered otherwise.
        (renumbered, ("/out/c", "/data/b", "/unused", "/data/a"), (), ""),
        (by_rank(lambda rank: 1 - rank), FILES, (), ""),  # both ranks write the same
        (by_rank(lambda rank: 1), FILES, LEFT_OUT, "write"),
    ],
)
def test_other_work_is_told(source, tmp_path, change, files, unequal, said):
    ops = change(replayed_ops())
    found = compare(source, replay_of(tmp_path, ops, files=files))
    assert (found.exact.unequal_names, found.exact.failed) == (unequal, sum(op.result < 0 for op in ops))
    assert (found.verdict.exact, found.passed) == (("fail", False) if unequal else ("pass", True))
    assert said in "; ".join(found.exact.differences)
    assert bool(found.exact.differences) is bool(unequal)


def test_lanes_may_change_places_with_each_other(source, tmp_path):
    """Lane 1 of rank 0 runs 5 ms late: each lane's own sequence is as recorded, their interleaving is not."""
    late = [5 * MS if (op.rank, op.lane) == (0, 1) else 0 for op in recorded()]
    ops = [
        replace(op, start_ns=op.start_ns + by, end_ns=op.end_ns + by)
        for op, by in zip(replayed_ops(), late, strict=True)
    ]
    found = compare(source, replay_of(tmp_path, ops))
    assert (found.exact.order, found.verdict.exact) == (True, "pass")
    assert (found.exact.inversions.count, found.exact.inversions.pairs) == (2 * STEPS, 4 * STEPS)


def test_only_what_a_replay_issues_is_compared(tmp_path):
    """A file recorded at two layers is replayed at one."""
    rows = [read(0, api="MPIIO", length=8, start_ns=10), read(0, api="POSIX", length=8, start_ns=11)]
    source = build_capture(tmp_path, files=["/a"], ops=rows, name="source")
    found = compare(source, build_capture(tmp_path, files=["/a"], ops=[replace(rows[1], result=8)], name="replay"))
    assert (found.exact.operations, found.exact.order, found.similarity.factors["bytes"].source) == (True, True, 8)


def test_state_is_carried_over_row_groups(tmp_path):
    """Many row groups; one of the last operations differs."""
    count, rng = 5_000, np.random.default_rng(4)
    starts, lanes = np.cumsum(rng.integers(1, 2000, count)).tolist(), rng.integers(0, 3, count).tolist()
    ops = [
        read(0, lane=lane, offset=10 * place, length=10, start_ns=start, end_ns=start + 500)
        for place, (start, lane) in enumerate(zip(starts, lanes, strict=True))
    ]
    source = build_capture(tmp_path, files=["/a"], ops=ops, name="source", row_group_rows=700)
    assert compare(source, source).passed
    ops = changed(-5, offset=3)(ops)
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
def test_operations_that_move_no_data_are_compared_in_number(tmp_path, opens, made_by, result, equal, failed, said):
    def made(name, opens, result, **made_by):
        ops = [Op("open", 0, offset=-1, start_ns=i, origin="reconstructed", result=result) for i in range(opens)]
        about = replace(info(pace="timed", **made_by), ranks=(0,))
        ops.append(read(0, length=8, start_ns=90, result=8))
        return build_capture(tmp_path, name=name, files=["/a"], ops=ops, info=about)

    exact = compare(made("source", 3, 0), made("replay", opens, result, **made_by)).exact
    assert (exact.operations, exact.failed, exact.bytes) == (equal, failed, not failed)
    assert exact.differences == ((said,) if said else ())


@pytest.mark.parametrize("replayed", [2, 1])
def test_captures_with_metadata_alone_are_compared_by_their_operations(tmp_path, replayed):
    """No read or write has a similarity: it is not judged, and fails nothing."""
    ops = [Op("stat", 0, start_ns=place * MS, due_ns=place * MS, result=0) for place in range(2)]
    looked = [replace(op, due_ns=None, result=None) for op in ops]
    source = build_capture(tmp_path, ops=looked, files=["/data/a"], name="looked")
    found = compare(source, replay_of(tmp_path, ops[:replayed], files=("/data/a",), span_list=[]))
    same = "The replay did the same work: 2 of 2 operations"
    assert found.headline.startswith(same if replayed == 2 else "FAILED: the replay did not do the same work")
    assert (found.passed, found.verdict.similarity) == (replayed == 2, "skipped")


def test_only_the_first_differences_are_described(tmp_path):
    files = [f"/data/{number}" for number in range(40)]
    ops = [
        made(file_id, rank=rank, length=10, start_ns=1000 * file_id)
        for rank, file_id, made in product(range(3), range(len(files)), (read, write))
    ]
    source = build_capture(tmp_path, files=files, ops=ops, name="source")
    found = compare(source, build_capture(tmp_path, files=files, ops=[*ops, *ops], name="replay")).exact
    assert (found.operations, len(found.differences)) == (False, MAX_DIFFERENCES)


def test_nothing_and_something(source, tmp_path):
    empty = build_capture(tmp_path, name="empty")
    for one, other, verdicts in ((empty, empty, "skipped"), (empty, source, "fail"), (source, empty, "fail")):
        found = compare(one, other)
        assert (found.passed, found.verdict.similarity) == (False, "fail")
        assert (found.verdict.timing if one is other else found.verdict.exact) == verdicts
        json.dumps(found.as_json(), allow_nan=False)
    with pytest.raises(CaptureError, match="api 'gpfs'"):  # which rows it replayed is unknown
        compare(source, replay_of(tmp_path, replayed_ops(), api="gpfs"))
    failed, whole = (
        build_capture(tmp_path, files=["/a"], ops=[read(0, length=0, result=result)], name=f"result{result}")
        for result in (-5, None)
    )
    assert [compare(*both).exact.bytes for both in ((whole, whole), (whole, failed), (failed, failed))] == [1, 0, 1]


def test_a_replay_that_was_stopped_is_named_so(source, tmp_path):
    whole = replay_of(tmp_path, replayed_ops()[:9])
    assert compare(source, whole).headline.startswith("FAILED: the replay did not do the same work")
    write_capture_info(whole.path, replace(whole.info, partial=True))
    cut = compare(source, open_capture(whole.path))
    assert cut.headline.startswith("FAILED: the replay was stopped before its end and so did not do the same work")


# ----------------------------------------------------------------------------------------------------------- the times


def stretched(factor, *, due=True, kept=True):
    """All times as long by this factor. `kept`: what was due stays; else it stretches too, as under a closed loop."""

    def change(ops):
        found = []
        for op in ops:
            start, end = round(op.start_ns * factor), round(op.end_ns * factor)
            wanted = (op.due_ns if kept else start - 20_000) if due else None
            found.append(replace(op, start_ns=start, end_ns=end, due_ns=wanted))
        return found

    return change


def longer(ops):
    return [replace(op, end_ns=op.start_ns + 3 * (op.end_ns - op.start_ns)) for op in ops]


def in_bursts(ops):
    """Each operation starts with its half second: counts, bytes and order hold, gaps and curves do not."""
    starts = [op.start_ns // (S // 2) * (S // 2) + place for place, op in enumerate(ops)]
    return [replace(op, start_ns=start, end_ns=start + MS) for op, start in zip(ops, starts, strict=True)]


def late(ops):
    return replayed_ops(late_ns=5 * MS)


JITTER = {"p50": 1.0, "p90": 2.0, "p99": 3.0, "max": 9.0}
QUIET = {"result": {"jitter_us": JITTER}}
PASSES = {"verdict.timing": "pass", "verdict.exact": "pass", "verdict.similarity": "pass", "passed": True}
FAILS = {**PASSES, "verdict.timing": "fail", "passed": False}
SLOW = {**PASSES, "workload.verdict": "pass", "storage.verdict": "slower", "storage.io_time_s.ratio": 1.55}


@pytest.mark.parametrize(
    ("change", "scale", "made_by", "expected", "said"),
    [
        (without(), 1, {}, {**PASSES, "timing.lag_us.p99": 20, "timing.drift_ppm": 0}, "as fast"),
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
        *((late, 1, {"pace": pace, **QUIET}, {**FAILS, "workload.allowed_lag_us": 1000},
           "although their thread was free") for pace in ("timed", "steps", "think", "none")),
        (late, 1, {"result": {"jitter_us": {**JITTER, "p99": 600.0}}}, PASSES, ""),  # the machine's own
    ],
)  # fmt: skip
def test_times_that_were_not_kept_fail_and_slow_storage_does_not(
    source, tmp_path, change, scale, made_by, expected, said
):
    found = compare(source, replay_of(tmp_path, change(replayed_ops()), span_list=spans(scale), **made_by))
    for name, value in expected.items():
        known = found
        for key in name.split("."):
            known = known[key] if isinstance(known, Mapping) else getattr(known, key)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            value = pytest.approx(value, rel=0.04, abs=0.5)
        assert known == value, (name, found.headline)
    assert said in found.headline


def test_drift_is_that_of_a_sample_of_the_starts_of_lanes_that_did_as_many_operations(source, tmp_path, monkeypatch):
    monkeypatch.setattr(measures, "MAX_SAMPLES", 70)  # each seventh operation of a lane
    for change in (without(), without(0)):
        replay = replay_of(tmp_path, change(stretched(1 + 100e-6)(replayed_ops())))
        assert compare(source, replay).timing.drift_ppm == pytest.approx(100, rel=0.02)


def test_elapsed_time_means_the_same_on_both_sides(source, tmp_path):
    """A replay without spans: then the source's spans do not count either."""
    found = compare(source, replay_of(tmp_path, replayed_ops(), span_list=[]))
    assert found.timing.elapsed_error_pct == pytest.approx(0)
    assert found.timing.source_elapsed_s < STEPS * 0.2 - 0.01
    assert (found.overlap.replay_pct, found.timing.step_error_pct) == (None, None)


def one_file(tmp_path, times, replayed, **made_by):
    """(start, end) of the reads of a file, ms, and those of their replay."""
    ops = [read(0, offset=k, length=1, start_ns=a * MS, end_ns=b * MS) for k, (a, b) in enumerate(times)]
    source = build_capture(tmp_path, files=["/a"], ops=ops, name="source", info=info())
    done = [
        replace(op, start_ns=a * MS, end_ns=b * MS, due_ns=op.start_ns, result=1)
        for op, (a, b) in zip(ops, replayed, strict=True)
    ]
    return compare(source, replay_of(tmp_path, done, files=("/a",), span_list=[], **made_by))


@pytest.mark.parametrize("latency_ms", [1, 900])
def test_the_duration_of_the_last_operation_is_the_storages(tmp_path, latency_ms):
    """A timed replay at storage that was faster or slower in the end did all its work on time."""
    times, replayed = [(0, 1), (1000, 1100)], [(0, 1), (1000, 1000 + latency_ms)]
    found = one_file(tmp_path, times, replayed)
    assert (found.timing.source_elapsed_s, found.timing.replay_elapsed_s, found.timing.elapsed_error_pct) == (1, 1, 0)
    assert found.passed, found.verdict.reasons
    drift = "timing: drift is not judged, too few operations on equal threads to measure it"
    assert (found.timing.drift_ppm, found.verdict.reasons) == (None, (drift,))
    waiting = one_file(tmp_path / "think", times, replayed, pace="think").storage.elapsed_s
    assert waiting.replay == pytest.approx(1 + latency_ms / 1e3), "here the storage decides it"


@pytest.mark.parametrize(("late_ms", "verdict"), [(0, "pass"), (50, "fail")])
def test_a_single_read_is_judged_by_its_lag_and_not_by_its_duration(tmp_path, late_ms, verdict):
    found = one_file(tmp_path, [(0, 100)], [(late_ms, late_ms + 1)])
    assert (found.timing.elapsed_error_pct, found.verdict.timing) == (None, verdict), found.verdict.reasons


def one_thread(tmp_path, took_ms, replayed_ms, stop_ms=0, **made_by):
    """An operation each 100 ms, and its replay, in which the machine stood still before the fiftieth."""
    replayed, free = [], 0
    for k in range(100):
        start = max(100 * k, free + stop_ms * (k == 50))
        free = start + replayed_ms(k)
        replayed.append((start, free))
    return one_file(tmp_path, [(100 * k, 100 * k + took_ms) for k in range(100)], replayed, **made_by)


def test_storage_that_cannot_follow_the_recorded_times_is_blamed_for_no_more_than_its_calls_took(tmp_path):
    found = one_thread(tmp_path / "slow", 90, lambda k: 70 if k else 2_000)
    assert (found.workload.own_lag_p99_us, found.workload.lag_p99_us) == (0, pytest.approx(1.9e6, rel=0.05))
    assert "; the storage could not keep the recorded times: " in found.headline
    assert (found.passed, found.verdict.timing) == (True, "pass")
    # All that was due in 2 s in which a machine stood still begins at once afterwards; each call takes 1 ms.
    found = one_thread(tmp_path / "still", 1, lambda k: 1, 2_000)
    assert (found.passed, "could not keep" in found.headline) == (False, False)
    said = "all calls together took 100 ms, so this machine or the replayer was late and not the storage"
    assert said in found.verdict.reasons
    known = one_thread(tmp_path / "known", 1, lambda k: 1, 2_000, result={"stood_still_s": 2.0})
    assert known.headline.startswith("Disturbed: stood still for 2.0 s, so times are not judged. The replay did")
    assert (known.passed, known.verdict.timing) == (True, "skipped")


# --------------------------------------------------------------------------------------------- limits, and what is said


def test_thresholds_are_the_callers(source, tmp_path):
    replay = replay_of(tmp_path, longer(replayed_ops()))
    for limits, verdict in (({}, "pass"), ({"fail_under": 0.5}, "pass"), ({"fail_under": 0.99}, "fail")):
        found = compare(source, replay, Thresholds(**limits))
        assert (found.verdict.similarity, found.passed) == (verdict, verdict == "pass")
    assert compare(source, replay, Thresholds(storage_pct=250)).storage.verdict == "same"
    slow = replay_of(tmp_path / "slow", stretched(1.05, due=False)(replayed_ops()), span_list=spans(1.05))
    for elapsed, drift, verdict in ((6, 60_000, "pass"), (4, 60_000, "fail"), (6, 40_000, "fail")):
        assert compare(source, slow, Thresholds(elapsed_error_pct=elapsed, drift_ppm=drift)).verdict.timing == verdict
    with pytest.raises(UsageError, match="--max-drift nan: give 0 or more"):
        Thresholds(drift_ppm=float("nan"))


@pytest.mark.parametrize(
    ("kind", "rebuilt", "inferred_steps", "said"),
    [
        ("darshan", 0, 0, ""),
        ("darshan", 1, 0, "25 % of the recorded reads and writes were rebuilt from counters"),
        ("darshan", 4, 0, "100 % of the recorded reads and writes were rebuilt from counters"),
        ("darshan", 0, 3, "75 % of the training steps were not profiled"),
        ("strace", 0, 0, "include what strace added to every call"),
        ("dftracer", 0, 0, "include what DFTracer added to every call"),
    ],
)
def test_the_headline_says_what_it_rests_on(kind, rebuilt, inferred_steps, said, tmp_path):
    origins = {True: "reconstructed", False: "traced"}
    ops = [read(0, offset=100 * i, length=100, start_ns=i * MS, origin=origins[i < rebuilt]) for i in range(4)]
    steps = [Span("step", i * MS, (i + 1) * MS, step=i, origin=origins[i < inferred_steps]) for i in range(4)]
    sources = (Source(name="job.log", sha256="0", kind=kind),)
    about = CaptureInfo(job=Job(nprocs=1, run_time_s=0.01), ranks=(0,), sources=sources)
    source = build_capture(tmp_path, files=["/data"], ops=ops, spans=steps, name="source", info=about)
    replay = build_capture(tmp_path, files=["/data"], ops=ops, spans=steps, name="replay", replay_of=source)
    found = compare(source, replay)
    assert said in found.headline
    for word in ("rebuilt from counters", "were not profiled", "added to every call"):
        assert (word in found.headline) == (word in said)
    assert found.workload.reconstructed == {"operations": rebuilt, "bytes": 100 * rebuilt, "pct": 25.0 * rebuilt}
    assert found.workload.extended_steps_pct == 25.0 * inferred_steps


# ----------------------------------------------------------------------------------------------------------- the noise


def another_run(tmp_path, change=without(), scale=1.0, **choices):  # noqa: B008
    """A second run of the application."""
    about = replace(info(), job=Job(nprocs=2, run_time_s=9))
    given = {"files": FILES, "ops": change(recorded()), "spans": spans(scale), "name": "again", **choices}
    return build_capture(tmp_path, info=about, **given)


def lasting(by_ms):
    return lambda ops: [replace(op, end_ns=op.end_ns + by_ms * MS) for op in ops]


def slower(scale):
    return stretched(scale, due=False)


@pytest.mark.parametrize(
    ("again", "change", "scale", "limits", "passes", "excused"),
    [
        # A replay 3 % too slow passes where two runs are 5 % apart, and fails where they are 2 % apart.
        (slower(1.05), slower(1.03), (1.05, 1.03), {}, True, ()),
        (slower(1.02), slower(1.03), (1.02, 1.03), {}, False, ()),
        (lasting(40), lasting(10), (1, 1), {"fail_under": 0.99}, True, ()),
        # What two runs do in another order may come in another order; operations that are left out are no noise.
        (swapped(0), swapped(6), (1, 1), {}, True, ("order",)),
        (swapped(0), lambda ops: [op for op in swapped(6)(ops) if op.file_id != 1], (1, 1), {}, False, ("order",)),
        # Failed operations are never noise.
        (without(-1, -2, -3, -4, -5), without(-1), (1, 1), {}, True, LEFT_OUT),
        (without(-1, -2, -3, -4, -5), changed(-1, result=-5), (1, 1), {}, False, ()),
    ],
)
def test_no_limit_is_stricter_than_what_two_runs_differ_by(
    source, tmp_path, again, change, scale, limits, passes, excused
):
    floor = noise_floor([(source, another_run(tmp_path, again, scale[0]))], source)
    replay = replay_of(tmp_path, change(replayed_ops()), span_list=spans(scale[1]))
    asked = Thresholds(**limits)
    assert not compare(source, replay, asked).passed
    found = compare(source, replay, asked, floor=floor)
    assert found.passed is passes, found.headline
    assert found.floor.excused == excused or not passes
    for each in found.floor.relaxed:
        assert getattr(found.thresholds, each.limit) == each.allowed != each.asked == getattr(asked, each.limit)
    assert found.floor.measures.keys() == floor.measures.keys() == measured(found).keys()
    assert len([each for each in found.floor.measures.values() if each.within is not None]) > 30


def test_the_worst_of_several_pairs_counts(source, tmp_path):
    runs = [another_run(tmp_path, slower(scale), scale, name=f"run{scale}") for scale in (1.02, 1.01)]
    floor = noise_floor([(source, run) for run in runs], source)
    assert floor.measures == worst_of([noise_floor([(source, run)]).measures for run in runs])
    assert floor.pairs == tuple((str(source.path), str(run.path)) for run in runs)
    name, alike = "timing.drift_ppm", "similarity.cosine"
    assert worst_of([{alike: 0.9, name: 3.0}, {alike: 0.8, name: None}]) == {alike: 0.8, name: 3.0}
    assert floor.allows(name, None) is None


def test_two_replays_are_a_pair_and_those_that_show_no_noise_of_this_job_are_refused(source, tmp_path):
    def replayed(name, pace="timed"):
        about = info(pace=pace, speed=1.0, result={"name": name})
        given = {"files": FILES, "ops": replayed_ops(), "spans": spans(), "name": name}
        return build_capture(tmp_path, info=about, replay_of=source, **given)

    timed, other, third, fast = map(replayed, ("one", "other", "third", "fast"), ("timed",) * 3 + ("none",))
    check_paces([(timed, other)], third)
    assert compare(source, third, floor=noise_floor([(timed, other)], source)).passed
    elsewhere = {"files": ("/x/a", "/x/b", "/y/c")}
    job = {"files": ("/x/image.npz", "/x/list", "/y/model")}
    other = another_run(tmp_path, **job, name="job")
    half = another_run(tmp_path, lambda ops: [op for op in ops if op.start_ns < 5 * S], name="half", **elsewhere)
    for first, second, words in (
        (source, source, "is the same run as"),
        (source, timed, "replays"),
        (timed, source, "replays"),
        (timed, fast, "replays that were made alike"),
        (source, other, "0 % of their operations on files of the same names"),
        (timed, other, "is a replay and"),
        (source, half, r"6\d % of their operations"),
    ):
        with pytest.raises(UsageError, match=words):
            noise_floor([(first, second)])
    noise_floor([(source, another_run(tmp_path, name="elsewhere", **elsewhere))])
    with pytest.raises(UsageError, match="of their operations"):
        noise_floor([(other, another_run(tmp_path, **job))], source)
    with pytest.raises(UsageError, match="made alike"):
        check_paces([(timed, timed)], fast)


@pytest.mark.parametrize(
    ("opens_ms", "verdict", "row", "said"),
    [
        ((1, 2), "same", None, "was as fast, within 5 % (I/O time 280 ms instead of 280 ms per rank; the whole run "),
        ((100, 1000), "slower", "100 ms 1.000 s 10.0 times slower", "was 3.4 times slower (per rank, reads and writes "
         "280 ms instead of 280 ms, metadata operations 1.000 s instead of 100 ms; the whole run 10 % slower, 8.789 s"),
        ((500, 20), "faster", "500 ms 20.0 ms 25.0 times faster", ", metadata operations 20.0 ms instead of 500 ms; "),
        ((0, 700), "same", "- 700 ms -", " per rank, and 700 ms in metadata operations, not known as recorded; "),
    ],
)  # fmt: skip
def test_time_in_opens_has_a_row_where_it_matters_and_its_part_in_the_answer(
    tmp_path, say, opens_ms, verdict, row, said
):
    def made(name, open_ms, scale, **about):
        ops = [Op("open", 0, start_ns=-2 * S, end_ns=-2 * S + 2 * open_ms * MS, lane=7), *recorded()]
        return build_capture(tmp_path, files=FILES, ops=ops, spans=spans(scale), info=info(), name=name, **about)

    source = made("source", opens_ms[0], 1)
    replay = made("replay", opens_ms[1], 1.1, replay_of=source)
    made_by = {**replay.info.made_by, "pace": "steps", "speed": 1.0}
    write_capture_info(replay.path, replace(replay.info, made_by=made_by))
    text, found = (say(f"compare {source.path} {replay.path}{option}") for option in ("", " --json"))
    assert text.startswith("Training takes 8.789 s here; recorded 7.990 s (x 1.10).")
    assert "training 7.990 s 8.789 s 10 % slower" in text
    assert said in text
    assert (f"metadata operations, per rank {row}" in text) == (found["storage"]["metadata_time_s"] is not None)
    assert (found["storage"]["verdict"], "metadata operations, per" in text) == (verdict, row is not None)
