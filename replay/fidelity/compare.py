"""Compares two captures. Pure; one pass over each op stream, in step by rank.

The rows that a replay issues are compared (`replay.fidelity.replayed_rows`). Two results stand apart: the workload,
which the replayer is responsible for (`replay.fidelity.workload_verdict`), and the storage, which was measured
(`replay.fidelity.storage`). Each measure behind them is blind to something: similarity to order and to scale, equality
to time, distributions to drift and to order, timing to the work itself.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from dxt_replay.replay.fidelity.compared_sides import compared_sides
from dxt_replay.replay.fidelity.curves import BIN_NS, relative_difference_pct
from dxt_replay.replay.fidelity.exactness import Exactness
from dxt_replay.replay.fidelity.noise_floor import FloorResult, NoiseFloor, beside
from dxt_replay.replay.fidelity.replayed_rows import ReplayedCapture
from dxt_replay.replay.fidelity.side_measures import Measures
from dxt_replay.replay.fidelity.similarity import WEAKNESS, Similarity, similarity
from dxt_replay.replay.fidelity.storage import UNKNOWN, Change, Storage, storage_verdict
from dxt_replay.replay.fidelity.timing import StepError, drift, span_kinds, span_limits, step_error
from dxt_replay.replay.fidelity.workload_verdict import (
    CLOSED_LOOP,
    FAIL,
    KEEPS_TIMES,
    PASS,
    SKIPPED,
    THRESHOLDS,
    Thresholds,
    Times,
    Verdict,
    Workload,
    headline,
    judge,
)
from dxt_replay.traces.measures.distribution import Distribution
from dxt_replay.traces.measures.lane_times import matched_starts
from dxt_replay.traces.measures.log_waits import longest_log_wait_ns
from dxt_replay.traces.measures.span_times import TrainingTime, extended_steps
from dxt_replay.traces.records import (
    LEAST_STALL_NS,
    ReplayRecord,
    allowed_lag_us,
    disturbed,
    generated,
    machine_jitter_us,
    percentiles_us,
    replay_record,
)
from dxt_replay.traces.store.part_capture import part_replayed
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.store.relation import Relation
from dxt_replay.traces.units import NS_PER_S, NS_PER_US
from dxt_replay.traces.workers import ALONE, Workers

SLOW_TRACERS = {"strace": "strace", "dftracer": "DFTracer"}
"""`Source.kind` -> name of a tracer that takes tens of microseconds for each call; Darshan takes some three."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Distance:
    """Kolmogorov-Smirnov (0 to 1) and Wasserstein distance (in the quantity's unit; None where one side is empty)."""

    ks: float
    wasserstein: float | None

    @classmethod
    def between(cls, source: Distribution, replay: Distribution, unit: float = 1) -> Distance:
        """Distance of two distributions whose values are in 1/unit of the unit to report."""
        moved = source.wasserstein(replay)
        return cls(ks=source.ks(replay), wasserstein=None if math.isnan(moved) else moved / unit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Distances:
    """Distances of transfer sizes (bytes), of gaps between starts on a lane (us) and of latencies (us)."""

    transfer_size: Distance
    inter_arrival: Distance
    latency: Distance


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Times of both sides; None where unknown.

    `source_elapsed_s`, `replay_elapsed_s`: from the begin of the first event to the end of the last. If the recorded
        times are kept, the last read or write counts only to its begin: its duration belongs to the storage.
    `elapsed_error_pct`: of the replay against source / speed; None where the source's elapsed time is 0.
    `drift_interval_ppm`: the 95 % interval of the drift.
    `lag_us`: percentiles of begin - due in the replay.
    `jitter_us`: percentiles of the lag that the machine itself causes.
    """

    source_elapsed_s: float
    replay_elapsed_s: float
    elapsed_error_pct: float | None
    drift_ppm: float | None
    drift_interval_ppm: tuple[float, float] | None
    step_error_pct: StepError | None
    lag_us: Mapping[str, float] | None
    jitter_us: Mapping[str, float] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """Share of the I/O time that lies inside compute, per cent; None without compute spans."""

    source_pct: float | None
    replay_pct: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveDifference:
    """Sum of |source - replay| over bins of `bin_s`, in per cent of the source: operations in flight, and bytes."""

    bin_s: float
    in_flight_pct: float | None
    bandwidth_pct: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All that `dxt-replay compare` reports; field names are the JSON keys.

    `headline`: the result in plain sentences.
    `training`: duration of training in both, if the replay waits as training does; else None.
    `relation`: whether one capture replays the other.
    `workload`: the result that the replayer is responsible for.
    `storage`: the measured result, which never fails a replay.
    `thresholds`: the applied limits, including those that the noise floor relaxed.
    `generated`: as of `traces.records`, of the source; not in the JSON.
    `floor`: every measure beside the noise of two runs of the job; None without a noise floor.
    """

    headline: str
    training: TrainingTime | None
    relation: str
    pace: str | None
    speed: float
    workload: Workload
    storage: Storage
    similarity: Similarity
    exact: Exactness
    distribution: Distances
    timing: Timing
    overlap: Overlap
    curves: CurveDifference
    thresholds: Thresholds
    verdict: Verdict
    passed: bool
    floor: FloorResult | None = None
    generated: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Plain dictionaries, lists and numbers."""
        result = dataclasses.asdict(self)
        result["similarity"]["note"] = WEAKNESS
        del result["generated"]
        return result


def compare(
    source: Capture,
    replay: Capture,
    thresholds: Thresholds = THRESHOLDS,
    on_rows: Callable[[int], None] = lambda rows: None,
    *,
    relation: Relation = Relation.REPLAY,
    floor: NoiseFloor | None = None,
    workers: Workers = ALONE,
) -> Comparison:
    """Compare a replay with its source, or with the part of the source that it replayed.

    `on_rows` receives the number of rows of both captures as ranks are finished. `relation`: the result of
    `traces.store.relation.relation_of`; two different runs are compared, but not judged. `floor`: what two runs of the
    job differ by; no limit is stricter than that.
    Raises: CaptureError when a capture is damaged; UsageError when the source lacks the part.
    """
    replays = relation is not Relation.DIFFERENT
    source = part_replayed(source, replay) if replays else source
    record = replay_record(replay.info, replay.path / "capture.json") if replays else None
    both = ReplayedCapture(source, **_choices(record)), ReplayedCapture(replay)
    sides = compared_sides(*both, on_rows, workers)
    recorded, replayed = sides.recorded, sides.replayed
    exact = sides.equality.exactness(failed_recorded=recorded.failed, failed_replayed=replayed.failed)
    allowed, relaxed = (thresholds, ()) if floor is None else floor.relaxed(thresholds)
    found = _comparison((source, replay), (recorded, replayed), exact, record, allowed, relation, floor)
    return found if floor is None else dataclasses.replace(found, floor=beside(found, floor, relaxed))


def _comparison(
    captures: tuple[Capture, Capture],
    measures: tuple[Measures, Measures],
    exact: Exactness,
    record: ReplayRecord | None,
    thresholds: Thresholds,
    relation: Relation,
    floor: NoiseFloor | None,
) -> Comparison:
    """The result, from the measures of all ranks. Pairs: source and replay; `record`: the replay's own."""
    recorded, replayed = measures
    alike = similarity(recorded.factors(), replayed.factors())
    timing = _timing(captures, measures, record, relation)
    times = _times(timing, replayed, record, thresholds)
    excused = () if floor is None else floor.excuses(exact)
    verdict = judge(
        alike, exact, times, thresholds, relation, excused, operations=recorded.operations + replayed.operations
    )
    outcome = SKIPPED if relation is Relation.DIFFERENT else PASS if verdict.passed else FAIL
    workload = _workload(outcome, measures, exact, times, captures[0].spans)
    closed = times.pace in CLOSED_LOOP and times.other_speed is None and times.disturbed is None
    paced_by_storage = relation is Relation.DIFFERENT or closed
    storage = _storage(recorded, replayed, thresholds, timing if paced_by_storage else None, record)
    return Comparison(
        headline=headline(
            verdict,
            workload,
            storage,
            exact,
            thresholds,
            relation,
            excused=excused,
            stopped=captures[1].info.partial,
            disturbed=times.disturbed,
            tracer=next((SLOW_TRACERS[s.kind] for s in captures[0].info.sources if s.kind in SLOW_TRACERS), None),
        ),
        training=TrainingTime.of(
            captures[0].spans,
            captures[1].spans,
            longest_log_wait_ns(captures[0].info, captures[0].spans),
            stood_still_ns=round(record.training_stood_still_s * NS_PER_S),
        )
        if record is not None and record.pace == "steps" and not captures[1].info.partial
        else None,
        relation=relation.value,
        generated=generated(captures[0].info),
        pace=times.pace,
        speed=1.0 if record is None else record.speed,
        workload=workload,
        storage=storage,
        similarity=alike,
        exact=exact,
        distribution=_distances(recorded, replayed),
        timing=timing,
        overlap=Overlap(source_pct=recorded.overlap_pct(), replay_pct=replayed.overlap_pct()),
        curves=CurveDifference(
            bin_s=BIN_NS / NS_PER_S,
            in_flight_pct=relative_difference_pct(recorded.curves.in_flight(), replayed.curves.in_flight()),
            bandwidth_pct=relative_difference_pct(recorded.curves.bytes_per_bin(), replayed.curves.bytes_per_bin()),
        ),
        thresholds=thresholds,
        verdict=verdict,
        passed=verdict.passed,
    )


def _times(timing: Timing, replayed: Measures, record: ReplayRecord | None, thresholds: Thresholds) -> Times:
    own_lag_us = percentiles_us(replayed.lateness.own_ns())
    return Times(
        pace=None if record is None else record.pace,
        other_speed=None if record is None else _other_speed(record),
        elapsed_error_pct=timing.elapsed_error_pct,
        drift_ppm=timing.drift_ppm,
        drift_interval_ppm=timing.drift_interval_ppm,
        recorded_elapsed_s=timing.source_elapsed_s,
        lag_p99_us=(timing.lag_us or {}).get("p99"),
        own_lag_p99_us=(own_lag_us or {}).get("p99"),
        jitter_us=timing.jitter_us
        if record is None
        else machine_jitter_us(record.jitter_before_us, record.jitter_us, record.processors_pct),
        in_calls_us=replayed.in_calls_ns / NS_PER_US,
        waited_us=replayed.lateness.waited_ns / NS_PER_US,
        disturbed=None
        if record is None
        else disturbed(record.stood_still_s, timing.replay_elapsed_s, thresholds.elapsed_error_pct),
    )


def _workload(
    outcome: str, measures: tuple[Measures, Measures], exact: Exactness, times: Times, spans: pa.Table
) -> Workload:
    """`spans`: of the source."""
    recorded, replayed = measures
    return Workload(
        verdict=outcome,
        pace=times.pace,
        operations={"source": recorded.operations, "replay": replayed.operations},
        bytes={"source": recorded.totals.bytes_moved, "replay": replayed.totals.bytes_moved},
        reconstructed=_reconstructed(recorded),
        extended_steps_pct=_extended_steps_pct(spans),
        failed=exact.failed,
        lag_p99_us=times.lag_p99_us,
        own_lag_p99_us=times.own_lag_p99_us,
        allowed_lag_us=allowed_lag_us(times.jitter_us),
    )


def _reconstructed(recorded: Measures) -> dict[str, float]:
    """The object `workload.reconstructed`."""
    shares = (
        (recorded.reconstructed, recorded.transfers),
        (recorded.reconstructed_bytes, recorded.totals.bytes_moved),
    )
    return {
        "operations": recorded.reconstructed,
        "bytes": recorded.reconstructed_bytes,
        "pct": max(100 * part / whole if whole else 0.0 for part, whole in shares),
    }


def _extended_steps_pct(spans: pa.Table) -> float:
    extended, steps = extended_steps(spans)
    return 100 * extended / steps if steps else 0.0


def _storage(
    recorded: Measures,
    replayed: Measures,
    thresholds: Thresholds,
    whole_run: Timing | None,
    record: ReplayRecord | None,
) -> Storage:
    """The performance of the storage. `whole_run`: the times of the run, None if the storage does not decide them."""
    io_time, here = (measures.factors()["io_time_s"] for measures in (recorded, replayed))
    bandwidth = [measures.totals.aggregate_mib_s or 0.0 for measures in (recorded, replayed)]
    latencies = [
        Change.between(*(measures.latency_ns.quantile(share) / NS_PER_US for measures in (recorded, replayed)))
        if recorded.latency_ns.count and replayed.latency_ns.count
        else None
        for share in (0.5, 0.99)
    ]
    io_time_s = Change.between(io_time, here)
    # Any long call may have been in flight while the machine stood still.
    latency, least_here = replayed.latency_ns, here
    if record is not None and record.stood_still_s and latency.total:
        long = latency.values >= LEAST_STALL_NS
        least_here *= max(1 - float(latency.values[long] @ latency.counts[long]) / latency.total, 0.0)
    least = Change.between(io_time, least_here)
    verdicts = {storage_verdict(change, thresholds.storage_pct) for change in (least, io_time_s)}
    return Storage(
        verdict=verdicts.pop() if len(verdicts) == 1 else UNKNOWN,
        io_time_s=io_time_s,
        latency_p50_us=latencies[0],
        latency_p99_us=latencies[1],
        bandwidth_mib_s=Change.between(*bandwidth) if all(bandwidth) else None,
        elapsed_s=None if whole_run is None else Change.between(whole_run.source_elapsed_s, whole_run.replay_elapsed_s),
        resident_before_pct=None if record is None or record.cache is None else record.cache.resident_before_pct,
        from_page_cache=record is not None and record.cache is not None and record.cache.from_page_cache,
    )


def _choices(record: ReplayRecord | None) -> dict[str, Any]:
    """Which rows of its source a replay issued, as arguments of `ReplayedCapture`."""
    return {} if record is None else {"api": record.api, "reconstruct": record.reconstruct}


def _other_speed(record: ReplayRecord) -> str | None:
    """The speed at which the times were replayed; None for the recorded speed."""
    if record.compute_speed != record.speed or record.io_speed != record.speed:
        return f"compute speed {record.compute_speed:g}, I/O speed {record.io_speed:g}"
    return None if record.speed == 1 else f"speed {record.speed:g}"


def _distances(recorded: Measures, replayed: Measures) -> Distances:
    here, there = recorded.distributions(), replayed.distributions()
    return Distances(
        transfer_size=Distance.between(here["transfer_size"], there["transfer_size"]),
        inter_arrival=Distance.between(here["inter_arrival"], there["inter_arrival"], NS_PER_US),
        latency=Distance.between(here["latency"], there["latency"], NS_PER_US),
    )


def _timing(
    captures: tuple[Capture, Capture],
    measures: tuple[Measures, Measures],
    record: ReplayRecord | None,
    relation: Relation,
) -> Timing:
    source, replay = captures
    recorded, replayed = measures
    pace, speed = (record.pace, record.speed) if record is not None else (None, 1.0)
    # A replay has only some kinds of spans (none with --compute skip): elapsed time must mean the same on both sides.
    kinds = span_kinds(source.spans) & span_kinds(replay.spans)
    spans = tuple(span_limits(capture.spans, kinds) for capture in captures)
    if relation is not Relation.DIFFERENT and pace in (None, KEEPS_TIMES):
        # The duration of the last operation belongs to the storage: a timed replay must not fail because it was faster.
        source_ns, replay_ns = (_elapsed_ns(side.begins_ns(), span) for side, span in zip(measures, spans, strict=True))
    else:
        source_ns, replay_ns = (_elapsed_ns(side.limits_ns(), span) for side, span in zip(measures, spans, strict=True))
    kept = pace in (None, KEEPS_TIMES, *CLOSED_LOOP)
    slope = drift(*matched_starts(recorded.lanes.starts(), replayed.lanes.starts()), speed) if kept else None
    return Timing(
        source_elapsed_s=source_ns / NS_PER_S,
        replay_elapsed_s=replay_ns / NS_PER_S,
        elapsed_error_pct=100 * (replay_ns * speed - source_ns) / source_ns if source_ns else None,
        drift_ppm=slope.ppm if slope else None,
        drift_interval_ppm=(slope.low_ppm, slope.high_ppm) if slope else None,
        step_error_pct=step_error(source.spans, replay.spans, speed),
        lag_us=percentiles_us(replayed.lateness.lag_ns()),
        jitter_us=record.jitter_us if record is not None else None,
    )


def _elapsed_ns(*limits: tuple[int, int] | None) -> int:
    known = [limit for limit in limits if limit is not None]
    return max(last for _, last in known) - min(first for first, _ in known) if known else 0
