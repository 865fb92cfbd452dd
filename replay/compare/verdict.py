"""Judges whether a replay did the recorded work, for which the replayer is responsible, and says how fast the storage
was, which is a measurement and never fails a replay. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields

from dxt_replay.replay.compare.exactness import Exactness
from dxt_replay.replay.compare.timing import Timing
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.records import LATE_US, kept_times_limit_us
from dxt_replay.traces.store.relation import Relation
from dxt_replay.traces.units import NS_PER_S, NS_PER_US, format_count, format_counted, format_duration, format_slowdown

PASS, FAIL, SKIPPED = "pass", "fail", "skipped"
FASTER, SLOWER, SAME, UNKNOWN = "faster", "slower", "same", "unknown"

NOT_KEPT = "the storage could not keep the recorded times"

LEAST_RECONSTRUCTED_PCT = 1.0
"""Share of the reads and writes rebuilt from counters, in per cent, from which on the result mentions it."""

METADATA_PCT = 5.0
"""Share of the time in calls, per cent, from which on the time in opens, closes and the like is shown and judged."""

_OPTIONS = {"fail_under": "--fail-under", "elapsed_error_pct": "--max-elapsed-error", "drift_ppm": "--max-drift"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """The limits of a comparison.

    `similarity`, `fail_under`: least cosine of the workload's seven factors, and of all ten, three of which the storage
    decides. `elapsed_error_pct`: largest error, +-, of a timed replay's elapsed time; also the largest lag of the
    slowest hundredth of its operations, in per cent of the run. `drift_ppm`: largest drift, +-. `storage_pct`: smallest
    change of the I/O time that is called faster or slower.

    Raises: UsageError for a limit that no comparison could have, such as nan.
    """

    similarity: float = 0.95
    fail_under: float | None = None
    elapsed_error_pct: float = 1.0
    drift_ppm: float = 20.0
    storage_pct: float = 5.0

    def __post_init__(self) -> None:
        for each in fields(self):
            value, most = getattr(self, each.name), 1 if each.name in ("similarity", "fail_under") else math.inf
            if value is not None and not 0 <= value <= most:
                allowed = "0 to 1" if most == 1 else "0 or more"
                raise UsageError(f"{_OPTIONS.get(each.name, each.name)} {value:g}: give {allowed}")


THRESHOLDS = Thresholds()
"""Thresholds of every command that compares: `compare`, `demo` and `report`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The result that the replayer is responsible for; `schemas/compare.json` explains it. `verdict`: pass, fail or
    skipped (two different runs)."""

    verdict: str
    pace: str | None
    operations: Mapping[str, int]
    bytes: Mapping[str, int]
    reconstructed: Mapping[str, float]
    extended_steps_pct: float
    failed: int
    lag_p99_us: float | None
    own_lag_p99_us: float | None
    allowed_lag_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One quantity of both sides. `ratio`: replay / source, None where the source's value is 0."""

    source: float
    replay: float
    ratio: float | None

    @classmethod
    def between(cls, source: float, replay: float) -> Change:
        return cls(source=source, replay=replay, ratio=replay / source if source > 0 else None)

    def is_material_beside(self, other: Change, share_pct: float) -> bool:
        """Whether it takes at least this share of both quantities' sum in either capture."""
        both = (self.source, other.source), (self.replay, other.replay)
        return any(mine and 100 * mine >= share_pct * (mine + rest) for mine, rest in both)

    def verdict(self, threshold_pct: float) -> str:
        """Of times: faster, slower, same or unknown, by the logarithm: twice as long is as far from the same as half as
        long."""
        if self.ratio is None or self.replay <= 0:
            return UNKNOWN
        limit = 1 + threshold_pct / 100
        return SLOWER if self.ratio > limit else FASTER if self.ratio < 1 / limit else SAME


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """The performance of the storage with the same operations; `schemas/compare.json` explains it. `verdict`: faster,
    slower, same (within the threshold) or unknown (no I/O time recorded), by `judged_s`. `metadata_time_s`: None where
    it takes less than METADATA_PCT in both captures. `elapsed_s`: None where the pace decides it, not the storage."""

    verdict: str
    io_time_s: Change
    metadata_time_s: Change | None
    latency_p50_us: Change | None
    latency_p99_us: Change | None
    bandwidth_mib_s: Change | None
    elapsed_s: Change | None
    resident_before_pct: float | None
    from_page_cache: bool = False

    @property
    def judged_s(self) -> Change:
        """Time of a rank in reads and writes, and in metadata operations where that is known of both sides."""
        data, metadata = self.io_time_s, self.metadata_time_s
        if metadata is None or metadata.ratio is None:
            return data
        return Change.between(data.source + metadata.source, data.replay + metadata.replay)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The verdict of each block (pass, fail or skipped), and why a block failed or was not judged."""

    similarity: str
    exact: str
    timing: str
    reasons: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return FAIL not in (self.similarity, self.exact, self.timing)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lateness:
    """What the verdict on times rests on, beside `Timing`.

    `judged`: whether elapsed time and drift are, as under `timed` at the recorded speed.
    `own_p99_us`: of the lag, the part that was not waiting for the operation before on the same thread; `allowed_us`:
    the largest that counts as on time on this machine.
    `in_calls_us`: the sum of the durations of all calls of the replay, the most that storage can have delayed it.
    `waited_us`: the longest that an operation waited for the one before it on its thread.
    `disturbed`: a sentence where the machine stood still for too long to judge the times.
    """

    judged: bool
    own_p99_us: float | None
    allowed_us: float
    in_calls_us: float
    waited_us: float
    disturbed: str | None


def judge(
    alike: Similarity,
    exact: Exactness,
    timing: Timing,
    late: Lateness,
    thresholds: Thresholds,
    relation: Relation,
    excused: Sequence[str] = (),
    *,
    operations: int,
) -> Verdict:
    """Judge all blocks; of two different runs only an explicit `fail_under`, as they need not be equal.

    `excused`: those of operations, bytes, files and order that need not be equal, as two runs of the job are not.
    `operations`: of both sides, of any kind.
    """
    similar, reasons = PASS, list[str]()
    if thresholds.fail_under is not None and (alike.cosine is None or alike.cosine < thresholds.fail_under):
        found = "unknown" if alike.cosine is None else f"{alike.cosine:.4f}"
        least = f"not at least {thresholds.fail_under:g} as --fail-under demands"
        similar, reasons = FAIL, [f"similarity of all ten factors is {found}, {least}"]
    if relation is Relation.DIFFERENT:
        similar = SKIPPED if thresholds.fail_under is None else similar
        return Verdict(similarity=similar, exact=SKIPPED, timing=SKIPPED, reasons=tuple(reasons))
    if alike.workload_cosine is None and not operations:
        similar, reasons = FAIL, ["similarity: neither capture has operations, so nothing was compared"]
    elif alike.workload_cosine is None and not reasons:
        similar, reasons = SKIPPED, ["similarity: no operation moves data"]
    elif alike.workload_cosine is not None and alike.workload_cosine < thresholds.similarity:
        below = f"similarity of the workload {alike.workload_cosine:.4f} is below {thresholds.similarity:g}"
        similar, reasons = FAIL, [*reasons, below]
    if unequal := [name for name in exact.unequal_names if name not in excused]:
        reasons.append(f"not equal: {', '.join(unequal)}")
    on_time, of_times = _judge_times(timing, late, thresholds)
    same = FAIL if unequal else PASS
    return Verdict(similarity=similar, exact=same, timing=on_time, reasons=(*reasons, *of_times))


def _judge_times(timing: Timing, late: Lateness, thresholds: Thresholds) -> tuple[str, list[str]]:
    """Judge whether operations were issued when they were due; under `timed` also elapsed time and drift."""
    if late.disturbed is not None:
        return SKIPPED, [f"timing: not judged, {late.disturbed}"]
    reasons, notes = list[str](), list[str]()
    if late.own_p99_us is not None and late.own_p99_us > late.allowed_us:
        reasons.append(
            f"1 % of the operations began {_us(late.own_p99_us)} late or more although their thread was free, more "
            f"than {_us(late.allowed_us)}: this machine was too busy, or files took that long to open"
        )
    if late.judged:
        failed, notes = _judge_recorded_times(timing, late, thresholds)
        reasons += failed
        if timing.elapsed_error_pct is None and timing.lag_us is None and not reasons:
            return SKIPPED, notes
    elif late.own_p99_us is None:
        return SKIPPED, ["timing: the replay has no due times to judge"]
    return (FAIL, reasons) if reasons else (PASS, notes)


def _judge_recorded_times(timing: Timing, late: Lateness, thresholds: Thresholds) -> tuple[list[str], list[str]]:
    """Failed checks, and checks that could not be judged or that the storage decided."""
    lag_us, error_pct, limit_pct = timing.lag_us, timing.elapsed_error_pct, thresholds.elapsed_error_pct
    if error_pct is None and lag_us is None:
        return [], ["timing: the source has no events"]
    late_us = 0.0 if lag_us is None else lag_us["p99"]
    reasons, notes, behind_us = list[str](), list[str](), [late_us]
    if error_pct is None:
        notes.append("timing: elapsed time is not judged, all reads and writes of the source begin at the same time")
    elif abs(error_pct) > limit_pct:
        reasons.append(f"elapsed time is off by {error_pct:+.2f} %, more than {limit_pct:g} %")
        behind_us.append(error_pct / 100 * timing.source_elapsed_s * NS_PER_S / NS_PER_US)
    limit_us = kept_times_limit_us(timing.source_elapsed_s, limit_pct, late.allowed_us)
    if late_us > limit_us:
        reasons.append(
            f"the recorded times were not kept: 1 % of the operations began {_us(late_us)} late or more, over the "
            f"limit of {_us(limit_us)}"
        )
    if timing.drift_interval_ppm is None:
        notes.append("timing: drift is not judged, too few operations on equal threads to measure it")
    # A short run cannot resolve a slope of 20 ppm: it fails only if the whole interval is beyond.
    elif (interval := timing.drift_interval_ppm)[0] > thresholds.drift_ppm or interval[1] < -thresholds.drift_ppm:
        reasons.append(f"start times drift by {drift_text(timing.drift_ppm)}, more than {thresholds.drift_ppm:g} us/s")
    # Calls that lasted long made the replay so late, and not the replayer.
    by_storage = max(max(behind_us) / 2, LATE_US) <= late.waited_us <= late.in_calls_us
    if reasons and min(behind_us) >= 0 and (late.own_p99_us or 0.0) <= late.allowed_us and by_storage:
        return [], [f"{NOT_KEPT}: {'; '.join(reasons)}", *notes]
    if reasons and late.waited_us > late.in_calls_us:
        reasons.append(
            f"all calls together took {_us(late.in_calls_us)}, so this machine or the replayer was late and not the "
            "storage"
        )
    return reasons, notes


def _us(microseconds: float) -> str:
    return format_duration(microseconds * NS_PER_US)


def drift_text(ppm: float | None) -> str:
    """`1000.0` -> `+1.00 ms/s`: us a second."""
    return f"{'-' if (ppm or 0.0) < 0 else '+'}{_us(abs(ppm or 0.0))}/s"


def headline(
    verdict: Verdict,
    workload: Workload,
    storage: Storage,
    exact: Exactness,
    thresholds: Thresholds,
    relation: Relation,
    *,
    excused: Sequence[str] = (),
    stopped: bool,
    tracer: str | None = None,
    disturbed: str | None = None,
) -> str:
    """The result in plain sentences.

    `excused`: as for `judge`. `stopped`: whether the replay was stopped before its end. `tracer`: what recorded the
    source, where that made each call much slower. `disturbed`: as of `Lateness`.
    """
    measured = _storage_sentence(storage, thresholds, disturbed)
    if relation is Relation.SAME:
        return "Both captures are the same recording, so the comparison says nothing about a replay."
    if relation is Relation.DIFFERENT:
        measured = measured.replace("Storage here", "Storage in the second")
        return f"Two different runs, neither a replay of the other: nothing is judged. {measured}"
    if verdict.exact == FAIL:
        why = exact.differences[0] if exact.differences else f"{format_counted(exact.failed, 'operation')} failed"
        unequal = [name for name in exact.unequal_names if name not in excused]
        cut = "was stopped before its end and so " if stopped else ""
        return f"FAILED: the replay {cut}did not do the same work ({', '.join(unequal)} differ): {why}."
    if workload.operations["source"] == workload.operations["replay"] == 0:
        return "FAILED: neither capture has operations, so nothing was compared."
    counts = " of ".join(format_count(workload.operations[side]) for side in ("replay", "source"))
    work = f"he replay did the same work: {counts} operations, same bytes, same order"
    if excused:
        work = f"he replay did {counts} operations; {', '.join(excused)} differ, but no more than between two runs"
    work += "".join(f"; {reason}" for reason in verdict.reasons if reason.startswith(NOT_KEPT))
    basis = "".join(_basis(workload, tracer))
    first = "" if disturbed is None else f"D{disturbed[1:]}, so times are not judged. "
    if verdict.passed:
        return f"{first}T{work}. {measured}{basis}"
    return f"FAILED: t{work}; but {'; '.join(verdict.reasons)}. {measured}{basis}"


def _basis(workload: Workload, tracer: str | None) -> list[str]:
    """Sentences on what the result rests on beside a trace and a profile; `tracer`: as for `headline`."""
    found = []
    if (rebuilt_pct := workload.reconstructed["pct"]) >= LEAST_RECONSTRUCTED_PCT:
        found.append(
            f" {rebuilt_pct:.0f} % of the recorded reads and writes were rebuilt from counters, not traced: their "
            "number and bytes are counted, while their order, places and single times are inferred."
        )
    if workload.extended_steps_pct:
        found.append(
            f" {min(workload.extended_steps_pct, 99.9):.3g} % of the training steps were not profiled: when they began "
            "was inferred from the reads, how long they computed from the profiled steps."
        )
    if tracer is not None:
        found.append(
            f" The recorded times include what {tracer} added to every call, so the storage of the recorded run was "
            "faster than they say."
        )
    return found


def _storage_sentence(storage: Storage, thresholds: Thresholds, disturbed: str | None) -> str:
    if storage.verdict == UNKNOWN:
        unmeasured = "the reads and writes have no measured duration"
        return f"How fast the storage was is unknown: {'calls were in flight meanwhile' if disturbed else unmeasured}."

    def both(change: Change) -> str:
        return " instead of ".join(format_duration(side * NS_PER_S) for side in (change.replay, change.source))

    run, metadata = storage.elapsed_s, storage.metadata_time_s
    calls = f"I/O time {both(storage.io_time_s)} per rank"
    if metadata is not None and metadata.ratio is None:
        calls += f", and {format_duration(metadata.replay * NS_PER_S)} in metadata operations, not known as recorded"
    elif metadata is not None:
        calls = f"per rank, reads and writes {both(storage.io_time_s)}, metadata operations {both(metadata)}"
    whole = "" if run is None else f"; the whole run {format_slowdown(run.ratio, 0.5)}, {both(run)}"
    speed = f"as fast, within {thresholds.storage_pct:.3g} %"
    if storage.verdict != SAME:
        speed = format_slowdown(storage.judged_s.ratio)
    was = "Storage here, from the page cache, was" if storage.from_page_cache else "Storage here was"
    return f"{was} {speed} ({calls}{whole})."


# The similarity of the DLIO paper (CCGrid 2021, Figure 8): ten factors, scaled by the larger side, and one cosine.
# It is scale invariant: ten times slower in every factor is still 1.0. Hence the other blocks of a comparison.

WEAKNESS = "scale invariant, so weak: a replay slower by the same ratio in every factor still scores 1"

STORAGE_FACTORS = frozenset({"io_time_s", "bandwidth_median", "bandwidth_mean"})
"""Factors that the storage and the cache decide; a replay reproduces the other seven, the workload's, anywhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """One factor of both sides. `difference`: (source - replay) / the larger, -1 to 1; None where both are 0."""

    source: float
    replay: float
    difference: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Similarity:
    """`cosine`: of the factors that are not 0 on both sides; None when all are.

    `workload_cosine`: without STORAGE_FACTORS. On faster or slower storage than the source's, a replay keeps this one.
    """

    cosine: float | None
    workload_cosine: float | None
    factors: Mapping[str, Factor]


def similarity(source: Mapping[str, float], replay: Mapping[str, float]) -> Similarity:
    """Compare two sides factor by factor; both have the same names and no negative values."""
    compared = {}
    for name, here in source.items():
        there, larger = replay[name], max(here, replay[name])
        compared[name] = Factor(source=here, replay=there, difference=(here - there) / larger if larger > 0 else None)
    workload = [factor for name, factor in compared.items() if name not in STORAGE_FACTORS]
    return Similarity(cosine=_cosine(compared.values()), workload_cosine=_cosine(workload), factors=compared)


def _cosine(compared: Iterable[Factor]) -> float | None:
    """Cosine of the two sides, each factor divided by the larger of its two values."""
    pairs = [
        (factor.source / larger, factor.replay / larger)
        for factor in compared
        if (larger := max(factor.source, factor.replay)) > 0
    ]
    if not pairs:
        return None
    product = math.fsum(a * b for a, b in pairs)
    norms = math.sqrt(math.fsum(a * a for a, _ in pairs)) * math.sqrt(math.fsum(b * b for _, b in pairs))
    return min(product / norms, 1.0) if norms > 0 else 0.0
