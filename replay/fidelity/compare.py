"""How faithful a replay is: two captures in, one `Comparison` out. Pure; one pass over each op stream, in step by rank.

Compared are the rows that a replay undertakes (`replay.fidelity.undertaken`). Four blocks, because each is blind to
something: similarity to order and to scale, equality to time, distributions to drift and to order, timing to what was
done.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from replay.fidelity.curves import BIN_NS, relative_difference_pct
from replay.fidelity.exactness import Exactness, ExactnessCollector, FileNumbers
from replay.fidelity.side_measures import Measures
from replay.fidelity.similarity import WEAKNESS, Similarity, similarity
from replay.fidelity.timing import StepError, drift, span_kinds, span_limits, step_error
from replay.fidelity.undertaken import Undertaken
from traces.errors import UsageError
from traces.measures.distribution import Distribution
from traces.measures.lane_times import matched_starts
from traces.replay_record import ReplayRecord, replay_record
from traces.store.part_capture import part_replayed
from traces.store.reader import Capture
from traces.units import NS_PER_S, NS_PER_US

PASS, FAIL, SKIPPED = "pass", "fail", "skipped"
_JUDGED_PACES = ("timed", "steps")
_LAG_SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """What the verdict is measured by. `similarity`: at least; `elapsed_error_pct` and `drift_ppm`: at most, +-.

    Raises: UsageError for one that is no number: every comparison with it would come out the same.
    """

    similarity: float = 0.95
    elapsed_error_pct: float = 1.0
    drift_ppm: float = 20.0

    def __post_init__(self) -> None:
        if any(math.isnan(value) for value in (self.similarity, self.elapsed_error_pct, self.drift_ppm)):
            raise UsageError("a threshold of a comparison is not a number")


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
    """Of transfer sizes (bytes), gaps between starts on a lane (us) and latencies (us)."""

    transfer_size: Distance
    inter_arrival: Distance
    latency: Distance


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Elapsed: from the first to the last event; its error is replay against source / speed. None where unknown.

    `drift_interval_ppm`: 95 %. `lag_us`: begin - due of the replay; `jitter_us`: what its machine could do at best.
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
    """Share of the I/O time inside compute-busy; None without compute spans."""

    source_pct: float | None
    replay_pct: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveDifference:
    """Sum of |source - replay| over bins of `bin_s`, in per cent of the source: operations in flight, and bytes."""

    bin_s: float
    in_flight_pct: float | None
    bandwidth_pct: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """pass, fail or skipped per block, and why a block was skipped or failed."""

    similarity: str
    exact: str
    timing: str
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All that `dxt-replay compare` tells; field names are the JSON keys."""

    pace: str | None
    speed: float
    similarity: Similarity
    exact: Exactness
    distribution: Distances
    timing: Timing
    overlap: Overlap
    curves: CurveDifference
    thresholds: Thresholds
    verdict: Verdict
    passed: bool

    def as_json(self) -> dict[str, Any]:
        """Plain dictionaries, lists and numbers."""
        result = dataclasses.asdict(self)
        result["similarity"]["note"] = WEAKNESS
        return result


def compare(
    source: Capture,
    replay: Capture,
    thresholds: Thresholds = Thresholds(),
    on_rows: Callable[[int], None] = lambda rows: None,
) -> Comparison:
    """Compare a replay with what it replays. `on_rows` is told how many rows of both a finished rank had.

    Of a source of which the replay replayed a part, only that part is looked at.
    Raises: CaptureError when a capture is damaged; UsageError when the source lacks the part.
    """
    source = part_replayed(source, replay)
    numbers = FileNumbers.of(source, replay)
    record = replay_record(replay.info, replay.path / "capture.json")
    chosen = record or ReplayRecord(pace="timed")
    both = Undertaken(source, api=chosen.api, reconstruct=chosen.reconstruct), Undertaken(replay)
    recorded, replayed = Measures(both[0], numbers.source), Measures(both[1], numbers.replay)
    equality = ExactnessCollector(*both, numbers)
    for rank in sorted({*source.ranks, *replay.ranks}):
        equality.add_rank(rank, recorded.add_rank(rank), replayed.add_rank(rank))
        on_rows(source.operation_count(rank) + replay.operation_count(rank))
    pace, speed = record.pace if record is not None else None, chosen.speed
    alike = similarity(recorded.factors(), replayed.factors())
    exact = equality.exactness(failed_recorded=recorded.failed, failed_replayed=replayed.failed)
    timing = _timing(source, replay, recorded, replayed, pace, chosen)
    verdict = _verdict(alike, exact, timing, thresholds, pace, _other_speed(chosen))
    return Comparison(
        pace=pace,
        speed=speed,
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
        passed=FAIL not in (verdict.similarity, verdict.exact, verdict.timing),
    )


def _other_speed(record: ReplayRecord) -> str | None:
    """At which speed the times were replayed, None for the recorded one."""
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
    source: Capture, replay: Capture, recorded: Measures, replayed: Measures, pace: str | None, record: ReplayRecord
) -> Timing:
    speed = record.speed
    # A replay has only some kinds of spans (none with --compute skip): elapsed time must mean the same on both sides.
    kinds = span_kinds(source.spans) & span_kinds(replay.spans)
    source_ns, replay_ns = (
        _elapsed_ns(measures.limits_ns(), span_limits(capture.spans, kinds))
        for capture, measures in ((source, recorded), (replay, replayed))
    )
    kept = pace is None or pace in _JUDGED_PACES
    slope = drift(*matched_starts(recorded.lanes.starts(), replayed.lanes.starts()), speed) if kept else None
    lag = replayed.lag_ns()
    return Timing(
        source_elapsed_s=source_ns / NS_PER_S,
        replay_elapsed_s=replay_ns / NS_PER_S,
        elapsed_error_pct=100 * (replay_ns * speed - source_ns) / source_ns if source_ns else None,
        drift_ppm=slope.ppm if slope else None,
        drift_interval_ppm=(slope.low_ppm, slope.high_ppm) if slope else None,
        step_error_pct=step_error(source.spans, replay.spans, speed),
        lag_us={name: lag.quantile(share) / NS_PER_US for name, share in _LAG_SHARES.items()} if lag.count else None,
        jitter_us=record.jitter_us,
    )


def _elapsed_ns(*limits: tuple[int, int] | None) -> int:
    known = [limit for limit in limits if limit is not None]
    return max(last for _, last in known) - min(first for first, _ in known) if known else 0


def _verdict(
    alike: Similarity,
    exact: Exactness,
    timing: Timing,
    thresholds: Thresholds,
    pace: str | None,
    other_speed: str | None,
) -> Verdict:
    blocks = (
        _judge_similarity(alike, thresholds, keeps_times=pace is None or pace in _JUDGED_PACES),
        _judge_exactness(exact),
        _judge_timing(timing, thresholds, pace, other_speed),
    )
    return Verdict(
        similarity=blocks[0][0],
        exact=blocks[1][0],
        timing=blocks[2][0],
        reasons=tuple(reason for _, reasons in blocks for reason in reasons),
    )


def _judge_similarity(alike: Similarity, thresholds: Thresholds, *, keeps_times: bool) -> tuple[str, list[str]]:
    """By the paper's cosine; where times are not kept, as under pace none, by the workload's own factors."""
    cosine = alike.cosine if keeps_times else alike.workload_cosine
    if cosine is None:
        return FAIL, ["similarity: neither capture has operations, so nothing was compared"]
    if cosine >= thresholds.similarity:
        return PASS, [] if keeps_times else ["similarity: judged without I/O time and bandwidth, as the pace sets them"]
    return FAIL, [f"similarity {cosine:.4f} is below {thresholds.similarity:g}"]


def _judge_exactness(exact: Exactness) -> tuple[str, list[str]]:
    unequal = [name for name in ("operations", "bytes", "files", "order") if not getattr(exact, name)]
    return (FAIL, [f"not equal: {', '.join(unequal)}"]) if unequal else (PASS, [])


def _judge_timing(
    timing: Timing, thresholds: Thresholds, pace: str | None, other_speed: str | None
) -> tuple[str, list[str]]:
    """Elapsed time, and drift of a replay that keeps recorded times: `steps` lets the storage decide them."""
    if pace is not None and pace not in _JUDGED_PACES:
        return SKIPPED, [f"timing: pace {pace} does not keep the recorded times"]
    if other_speed is not None:
        return SKIPPED, [f"timing: replayed at {other_speed}"]
    if timing.elapsed_error_pct is None:
        return SKIPPED, ["timing: the source has no events"]
    reasons = []
    if abs(timing.elapsed_error_pct) > thresholds.elapsed_error_pct:
        allowed = thresholds.elapsed_error_pct
        reasons.append(f"elapsed time is off by {timing.elapsed_error_pct:+.2f} %, more than {allowed:g} %")
    if pace != "steps" and timing.drift_interval_ppm is not None:
        low, high = timing.drift_interval_ppm
        # A short run cannot tell a slope to 20 ppm: it fails only if the whole interval is beyond.
        if low > thresholds.drift_ppm or high < -thresholds.drift_ppm:
            reasons.append(f"clock drifts by {timing.drift_ppm:+.1f} ppm, more than {thresholds.drift_ppm:g} ppm")
    if reasons:
        return FAIL, reasons
    if pace != "steps" and timing.drift_interval_ppm is None:
        return PASS, ["timing: drift is not judged, too few operations of equal lanes to tell it"]
    return PASS, []
