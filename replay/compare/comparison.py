"""Compares two captures. Pure; one pass over each op stream, in step by rank (`replay.compare.measures`).

Two results stand apart: the workload, which the replayer is responsible for, and the storage, which was measured. Each
measure behind them is blind to something: similarity to order and to scale, equality to time, distributions to drift
and to order, timing to the work itself.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dxt_replay.replay.compare.exactness import Exactness
from dxt_replay.replay.compare.measures import BIN_NS, Side, matched_starts, measure_both
from dxt_replay.replay.compare.noise import FloorResult, NoiseFloor, beside, check_job, check_pair, measured, worst_of
from dxt_replay.replay.compare.timing import CLOSED_LOOP, KEEPS_TIMES, OF_TRAINING, Timing, relative_difference_pct
from dxt_replay.replay.compare.verdict import (
    FAIL,
    METADATA_PCT,
    PASS,
    SKIPPED,
    THRESHOLDS,
    UNKNOWN,
    WEAKNESS,
    Change,
    Lateness,
    Similarity,
    Storage,
    Thresholds,
    Verdict,
    Workload,
    headline,
    judge,
    similarity,
)
from dxt_replay.replay.plan.layers import choose_layers
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.measures.distribution import Distribution
from dxt_replay.traces.measures.log_waits import longest_log_wait_ns
from dxt_replay.traces.measures.span_times import TrainingTime, extended_steps
from dxt_replay.traces.plain import Result
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Distances:
    """Distances of transfer sizes (bytes), of gaps between starts on a lane (us) and of latencies (us)."""

    transfer_size: Distance
    inter_arrival: Distance
    latency: Distance


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
class Comparison(Result):
    """All that `dxt-replay compare` reports; field names are the JSON keys, which `schemas/compare.json` explains.

    `thresholds`: with those that the noise floor relaxed. `generated`: as of `traces.records`, of the source; not in
    the JSON.
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
    different = relation is Relation.DIFFERENT
    source = source if different else part_replayed(source, replay)
    record = None if different else replay_record(replay.info, replay.path / "capture.json")
    issued: dict[str, Any] = {} if record is None else {"api": record.api, "reconstruct": record.reconstruct}
    both = measure_both((source, replay), (choose_layers(source, **issued), choose_layers(replay)), on_rows, workers)
    sides = recorded, replayed = both.recorded, both.replayed
    exact = both.equality.exactness(failed_recorded=recorded.failed, failed_replayed=replayed.failed)
    thresholds, relaxed, excused = (thresholds, (), ()) if floor is None else floor.relaxed(thresholds, exact)
    pace, speed = (None, 1.0) if record is None else (record.pace, record.speed)
    recorded_speed = record is None or record.speed == record.compute_speed == record.io_speed == 1
    keeps_times = pace in (None, KEEPS_TIMES)
    starts = matched_starts(recorded.lanes, replayed.lanes)
    timing = Timing.of(sides, starts, record, kept_times=not different and keeps_times)
    late = _lateness(replayed, timing, record, thresholds, judged=keeps_times and recorded_speed)
    alike = similarity(recorded.factors, replayed.factors)
    operations = recorded.operations + replayed.operations
    verdict = judge(alike, exact, timing, late, thresholds, relation, excused, operations=operations)
    workload = _workload(SKIPPED if different else PASS if verdict.passed else FAIL, sides, exact, pace, timing, late)
    closed = pace in CLOSED_LOOP and recorded_speed and late.disturbed is None
    storage = _storage(sides, thresholds, timing if different or closed else None, record)
    said = headline(
        verdict,
        workload,
        storage,
        exact,
        thresholds,
        relation,
        excused=excused,
        stopped=replay.info.partial,
        disturbed=late.disturbed,
        tracer=next((SLOW_TRACERS[each.kind] for each in source.info.sources if each.kind in SLOW_TRACERS), None),
    )
    training = None
    if record is not None and pace in OF_TRAINING and not replay.info.partial:
        still_ns, wait_ns = (
            round(record.training_stood_still_s * NS_PER_S),
            longest_log_wait_ns(source.info, source.spans),
        )
        training = TrainingTime.of(source.spans, replay.spans, wait_ns, stood_still_ns=still_ns)
    found = Comparison(
        headline=said,
        training=training,
        relation=relation.value,
        generated=generated(source.info),
        pace=pace,
        speed=speed,
        workload=workload,
        storage=storage,
        similarity=alike,
        exact=exact,
        distribution=Distances(
            transfer_size=_distance(recorded.totals.size_bytes, replayed.totals.size_bytes),
            inter_arrival=_distance(recorded.lanes.gaps.distribution(), replayed.lanes.gaps.distribution(), NS_PER_US),
            latency=_distance(recorded.latency_ns, replayed.latency_ns, NS_PER_US),
        ),
        timing=timing,
        overlap=Overlap(source_pct=recorded.overlap_pct, replay_pct=replayed.overlap_pct),
        curves=CurveDifference(
            bin_s=BIN_NS / NS_PER_S,
            in_flight_pct=relative_difference_pct(*(side.curves.in_flight() for side in sides)),
            bandwidth_pct=relative_difference_pct(*(side.curves.bytes_per_bin() for side in sides)),
        ),
        thresholds=thresholds,
        verdict=verdict,
        passed=verdict.passed,
    )
    return (
        found if floor is None else dataclasses.replace(found, floor=beside(measured(found), floor, relaxed, excused))
    )


def _distance(source: Distribution, replay: Distribution, unit: float = 1) -> Distance:
    """Of two distributions whose values are in 1/unit of the unit to report."""
    moved = source.wasserstein(replay)
    return Distance(ks=source.ks(replay), wasserstein=None if math.isnan(moved) else moved / unit)


def _lateness(
    replayed: Side, timing: Timing, record: ReplayRecord | None, thresholds: Thresholds, *, judged: bool
) -> Lateness:
    own_us = percentiles_us(replayed.lateness.own.distribution())
    jitter_us, stood_still = timing.jitter_us, None
    if record is not None:
        jitter_us = machine_jitter_us(record.jitter_before_us, record.jitter_us, record.processors_pct)
        stood_still = disturbed(record.stood_still_s, timing.replay_elapsed_s, thresholds.elapsed_error_pct)
    return Lateness(
        judged=judged,
        own_p99_us=(own_us or {}).get("p99"),
        allowed_us=allowed_lag_us(jitter_us),
        in_calls_us=(replayed.latency_ns.total + replayed.metadata_ns) / NS_PER_US,
        waited_us=replayed.lateness.waited_ns / NS_PER_US,
        disturbed=stood_still,
    )


def _workload(
    outcome: str, sides: tuple[Side, Side], exact: Exactness, pace: str | None, timing: Timing, late: Lateness
) -> Workload:
    recorded, replayed = sides
    moved = {"source": recorded.totals.bytes_moved, "replay": replayed.totals.bytes_moved}
    rebuilt = (recorded.reconstructed, recorded.transfers), (recorded.reconstructed_bytes, moved["source"])
    extended, steps = extended_steps(recorded.capture.spans)
    return Workload(
        verdict=outcome,
        pace=pace,
        operations={"source": recorded.operations, "replay": replayed.operations},
        bytes=moved,
        reconstructed={
            "operations": recorded.reconstructed,
            "bytes": recorded.reconstructed_bytes,
            "pct": max(100 * part / whole if whole else 0.0 for part, whole in rebuilt),
        },
        extended_steps_pct=100 * extended / steps if steps else 0.0,
        failed=exact.failed,
        lag_p99_us=(timing.lag_us or {}).get("p99"),
        own_lag_p99_us=late.own_p99_us,
        allowed_lag_us=late.allowed_us,
    )


def _storage(
    sides: tuple[Side, Side], thresholds: Thresholds, whole_run: Timing | None, record: ReplayRecord | None
) -> Storage:
    """The performance of the storage. `whole_run`: the times of the run, None if the storage does not decide them."""
    data = Change.between(*(side.factors["io_time_s"] for side in sides))
    metadata = Change.between(*(side.per_rank_s(side.metadata_ns) for side in sides))
    bandwidth = [side.totals.aggregate_mib_s or 0.0 for side in sides]
    measured_both, latency = all(side.latency_ns.count for side in sides), sides[1].latency_ns
    p50, p99 = (
        Change.between(*(side.latency_ns.quantile(share) / NS_PER_US for side in sides)) if measured_both else None
        for share in (0.5, 0.99)
    )
    cache = None if record is None else record.cache
    found = Storage(
        verdict=UNKNOWN,
        io_time_s=data,
        metadata_time_s=metadata if metadata.is_material_beside(data, METADATA_PCT) else None,
        latency_p50_us=p50,
        latency_p99_us=p99,
        bandwidth_mib_s=Change.between(*bandwidth) if all(bandwidth) else None,
        elapsed_s=None if whole_run is None else Change.between(whole_run.source_elapsed_s, whole_run.replay_elapsed_s),
        resident_before_pct=None if cache is None else cache.resident_before_pct,
        from_page_cache=cache is not None and cache.from_page_cache,
    )
    judged = found.judged_s
    verdicts = {judged.verdict(thresholds.storage_pct)}
    if record is not None and record.stood_still_s and judged.replay:
        # Any long call may have been in flight while the machine stood still.
        long = latency.values >= LEAST_STALL_NS
        long_ns = float(latency.values[long] @ latency.counts[long])
        if judged is not data:
            long_ns += sides[1].long_metadata_ns
        least = max(judged.replay - sides[1].per_rank_s(long_ns), 0.0)
        verdicts.add(Change.between(judged.source, least).verdict(thresholds.storage_pct))
    return dataclasses.replace(found, verdict=verdicts.pop() if len(verdicts) == 1 else UNKNOWN)


def noise_floor(pairs: Sequence[tuple[Capture, Capture]], source: Capture | None = None) -> NoiseFloor:
    """The differences of two runs of one job; the worst of all pairs counts. `source`: a capture of that job, which the
    floor is used for.

    Raises: UsageError for captures that are not different runs of one job; CaptureError.
    """
    if not pairs:
        raise UsageError("a noise floor needs two runs of the same job: give --floor A B")
    found = []
    for first, second in pairs:
        relation = check_pair(first, second)
        if source is not None:
            check_job(source, first)
            check_job(source, second)
        found.append(measured(compare(first, second, relation=relation)))
    return NoiseFloor(pairs=tuple((str(one.named), str(other.named)) for one, other in pairs), measures=worst_of(found))
