"""Judges whether a replay did the recorded work, for which the replayer is responsible. Pure.

The speed of the storage never fails a replay: it is a measurement (`replay.fidelity.storage`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from dxt_replay.replay.fidelity.exactness import Exactness
from dxt_replay.replay.fidelity.similarity import Similarity
from dxt_replay.replay.fidelity.storage import FASTER, SAME, SLOWER, Storage
from dxt_replay.replay.options.looking import ThresholdChoices
from dxt_replay.replay.options.option import filled
from dxt_replay.traces.paces import Pace
from dxt_replay.traces.records import LATE_US, allowed_lag_us, kept_times_limit_us
from dxt_replay.traces.store.relation import Relation
from dxt_replay.traces.units import NS_PER_S, NS_PER_US, format_count, format_counted, format_duration, format_slowdown

PASS, FAIL, SKIPPED = "pass", "fail", "skipped"
KEEPS_TIMES = "timed"
"""The pace that is judged by the recorded times; under the others the storage decides the times."""
CLOSED_LOOP = tuple(pace.value for pace in Pace if pace.is_closed_loop)
"""Paces under which the storage decides how long the whole run takes."""

NOT_KEPT = "the storage could not keep the recorded times"

LEAST_RECONSTRUCTED_PCT = 1.0
"""Share of the reads and writes rebuilt from counters, in per cent, from which on the result mentions it."""


_DEFAULTS = filled(ThresholdChoices, {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """The limits of a comparison.

    `similarity`: least cosine of the workload's seven factors.
    `fail_under`: least cosine of all ten factors, three of which the storage decides; None to leave it unjudged.
    `elapsed_error_pct`: largest error, +-, of a timed replay's elapsed time; also the largest lag of the slowest
    hundredth of its operations, in per cent of the run.
    `drift_ppm`: largest drift, +-, of a timed replay.
    `storage_pct`: smallest change of the I/O time that is called faster or slower.

    Raises: UsageError for a limit that no comparison could have, such as nan.
    """

    similarity: float = _DEFAULTS["similarity"]
    fail_under: float | None = _DEFAULTS["fail_under"]
    elapsed_error_pct: float = _DEFAULTS["elapsed_error_pct"]
    drift_ppm: float = _DEFAULTS["drift_ppm"]
    storage_pct: float = _DEFAULTS["storage_pct"]

    def __post_init__(self) -> None:
        filled(ThresholdChoices, asdict(self))


THRESHOLDS = Thresholds()
"""Thresholds of every command that compares: `compare`, `demo` and `report`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The result that the replayer is responsible for.

    `verdict`: pass, fail or skipped (two different runs).
    `operations`, `bytes`: by side, `source` and `replay`.
    `reconstructed`: of the source, `operations` and `bytes` of reads and writes that were rebuilt from counters, and
    `pct`, the larger share of both, in per cent.
    `extended_steps_pct`: share of the source's training steps that no profile shows, in per cent.
    `lag_p99_us`: how late the slowest hundredth began; None where nothing was due.
    `own_lag_p99_us`: the part of that lag that was not waiting for the operation before on the same thread.
    `allowed_lag_us`: the largest own lag that counts as on time on this machine.
    """

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
class Times:
    """The times that the verdict needs; the fields are those of `replay.fidelity.compare.Timing`.

    `in_calls_us`: the sum of the durations of all calls of the replay, the most that storage can have delayed it.
    `waited_us`: the longest that an operation waited for the one before it on its thread.
    `disturbed`: a sentence where the machine stood still for too long to judge the times.
    """

    pace: str | None
    other_speed: str | None
    elapsed_error_pct: float | None
    drift_ppm: float | None
    drift_interval_ppm: tuple[float, float] | None
    recorded_elapsed_s: float
    lag_p99_us: float | None
    own_lag_p99_us: float | None
    jitter_us: Mapping[str, float] | None
    in_calls_us: float
    waited_us: float
    disturbed: str | None

    @property
    def held_to_recorded_times(self) -> bool:
        """Whether elapsed time and drift are judged; a capture without a pace stands for a timed replay."""
        return self.pace in (None, KEEPS_TIMES) and self.other_speed is None

    def delayed_by_storage(self, late_us: float) -> bool:
        """Whether calls that lasted long made the replay so late, and not the replayer."""
        on_time = (self.own_lag_p99_us or 0.0) <= allowed_lag_us(self.jitter_us)
        return on_time and max(late_us / 2, LATE_US) <= self.waited_us <= self.in_calls_us


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The verdict of each block (pass, fail or skipped), and why a block failed or was not judged."""

    similarity: str
    exact: str
    timing: str
    reasons: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether no block failed."""
        return FAIL not in (self.similarity, self.exact, self.timing)


def judge(
    alike: Similarity,
    exact: Exactness,
    times: Times,
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
    if relation is Relation.DIFFERENT:
        gate = SKIPPED if thresholds.fail_under is None else PASS
        below = _below(alike.cosine, thresholds.fail_under)
        return Verdict(similarity=FAIL if below else gate, exact=SKIPPED, timing=SKIPPED, reasons=tuple(below))
    blocks = (
        _judge_similarity(alike, thresholds, operations),
        _judge_exactness(exact, excused),
        _judge_timing(times, thresholds),
    )
    return Verdict(
        similarity=blocks[0][0],
        exact=blocks[1][0],
        timing=blocks[2][0],
        reasons=tuple(reason for _, reasons in blocks for reason in reasons),
    )


def _judge_similarity(alike: Similarity, thresholds: Thresholds, operations: int) -> tuple[str, list[str]]:
    reasons = _below(alike.cosine, thresholds.fail_under)
    if alike.workload_cosine is None and not operations:
        return FAIL, ["similarity: neither capture has operations, so nothing was compared"]
    if alike.workload_cosine is None:
        return (FAIL, reasons) if reasons else (SKIPPED, ["similarity: no operation moves data"])
    if alike.workload_cosine < thresholds.similarity:
        reasons.append(f"similarity of the workload {alike.workload_cosine:.4f} is below {thresholds.similarity:g}")
    return FAIL if reasons else PASS, reasons


def _below(cosine: float | None, fail_under: float | None) -> list[str]:
    if fail_under is None or (cosine is not None and cosine >= fail_under):
        return []
    found = "unknown" if cosine is None else f"{cosine:.4f}"
    return [f"similarity of all ten factors is {found}, not at least {fail_under:g} as --fail-under demands"]


def _judge_exactness(exact: Exactness, excused: Sequence[str]) -> tuple[str, list[str]]:
    unequal = [name for name in exact.unequal_names if name not in excused]
    return (FAIL, [f"not equal: {', '.join(unequal)}"]) if unequal else (PASS, [])


def _judge_timing(times: Times, thresholds: Thresholds) -> tuple[str, list[str]]:
    """Judge whether operations were issued when they were due; under `timed` also elapsed time and drift."""
    reasons, notes = [], []
    if times.disturbed is not None:
        return SKIPPED, [f"timing: not judged, {times.disturbed}"]
    allowed = allowed_lag_us(times.jitter_us)
    if times.own_lag_p99_us is not None and times.own_lag_p99_us > allowed:
        late, limit = (format_duration(value * NS_PER_US) for value in (times.own_lag_p99_us, allowed))
        reasons.append(
            f"1 % of the operations began {late} late or more although their thread was free, more than {limit}: this "
            "machine was too busy, or files took that long to open"
        )
    if times.held_to_recorded_times:
        judged = _judge_recorded_times(times, thresholds)
        reasons += judged[0]
        notes += judged[1]
        if times.elapsed_error_pct is None and times.lag_p99_us is None and not reasons:
            return SKIPPED, notes
    elif times.own_lag_p99_us is None:
        return SKIPPED, ["timing: the replay has no due times to judge"]
    return (FAIL, reasons) if reasons else (PASS, notes)


def _judge_recorded_times(times: Times, thresholds: Thresholds) -> tuple[list[str], list[str]]:
    """Failed checks, and checks that could not be judged or that the storage decided."""
    reasons, notes, late_us = [], [], [times.lag_p99_us or 0.0]
    if times.elapsed_error_pct is None and times.lag_p99_us is None:
        return [], ["timing: the source has no events"]
    if times.elapsed_error_pct is None:
        notes.append("timing: elapsed time is not judged, all reads and writes of the source begin at the same time")
    elif abs(times.elapsed_error_pct) > thresholds.elapsed_error_pct:
        allowed = thresholds.elapsed_error_pct
        reasons.append(f"elapsed time is off by {times.elapsed_error_pct:+.2f} %, more than {allowed:g} %")
        late_us.append(times.elapsed_error_pct / 100 * times.recorded_elapsed_s * NS_PER_S / NS_PER_US)
    limit_us = kept_times_limit_us(
        times.recorded_elapsed_s, thresholds.elapsed_error_pct, allowed_lag_us(times.jitter_us)
    )
    if (times.lag_p99_us or 0.0) > limit_us:
        late, limit = (format_duration(value * NS_PER_US) for value in (times.lag_p99_us or 0.0, limit_us))
        reasons.append(
            f"the recorded times were not kept: 1 % of the operations began {late} late or more, over the limit of "
            f"{limit}"
        )
    if times.drift_interval_ppm is None:
        notes.append("timing: drift is not judged, too few operations on equal threads to measure it")
    else:
        low, high = times.drift_interval_ppm
        # A short run cannot resolve a slope of 20 ppm: it fails only if the whole interval is beyond.
        if low > thresholds.drift_ppm or high < -thresholds.drift_ppm:
            reasons.append(
                f"start times drift by {drift_text(times.drift_ppm)}, more than {thresholds.drift_ppm:g} us/s"
            )
    if reasons and min(late_us) >= 0 and times.delayed_by_storage(max(late_us)):
        return [], [f"{NOT_KEPT}: {'; '.join(reasons)}", *notes]
    if reasons and times.waited_us > times.in_calls_us:
        in_calls = format_duration(times.in_calls_us * NS_PER_US)
        reasons.append(
            f"all calls together took {in_calls}, so this machine or the replayer was late and not the storage"
        )
    return reasons, notes


def drift_text(ppm: float | None) -> str:
    """`1000.0` -> `+1.00 ms/s`: us a second."""
    return f"{'-' if (ppm or 0.0) < 0 else '+'}{format_duration(abs(ppm or 0.0) * NS_PER_US)}/s"


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
    source, where that made each call much slower. `disturbed`: as of `Times`.
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
    basis = _basis(workload.reconstructed["pct"]) + _steps_basis(workload.extended_steps_pct) + _cost_basis(tracer)
    work += "".join(f"; {reason}" for reason in verdict.reasons if reason.startswith(NOT_KEPT))
    first = "" if disturbed is None else f"D{disturbed[1:]}, so times are not judged. "
    if verdict.passed:
        return f"{first}T{work}. {measured}{basis}"
    return f"FAILED: t{work}; but {'; '.join(verdict.reasons)}. {measured}{basis}"


def _basis(reconstructed_pct: float) -> str:
    """A sentence on the share of the result that rests on counters, not a trace; empty for hardly any."""
    if reconstructed_pct < LEAST_RECONSTRUCTED_PCT:
        return ""
    return (
        f" {reconstructed_pct:.0f} % of the recorded reads and writes were rebuilt from counters, not traced: their "
        "number and bytes are counted, while their order, places and single times are inferred."
    )


def _steps_basis(extended_pct: float) -> str:
    """A sentence on the share of steps outside the profile; empty if all were profiled."""
    if not extended_pct:
        return ""
    return (
        f" {min(extended_pct, 99.9):.3g} % of the training steps were not profiled: when they began was inferred from "
        "the reads, how long they computed from the profiled steps."
    )


def _cost_basis(tracer: str | None) -> str:
    """A sentence on the tracer's part of the recorded times; empty if it is small."""
    if tracer is None:
        return ""
    return (
        f" The recorded times include what {tracer} added to every call, so the storage of the recorded run was faster "
        "than they say."
    )


def _storage_sentence(storage: Storage, thresholds: Thresholds, disturbed: str | None = None) -> str:
    """A sentence on the speed of the storage, with the figures."""
    here, recorded = (format_duration(side * NS_PER_S) for side in (storage.io_time_s.replay, storage.io_time_s.source))
    whole = ""
    if storage.elapsed_s is not None:
        there, before = (
            format_duration(side * NS_PER_S) for side in (storage.elapsed_s.replay, storage.elapsed_s.source)
        )
        change = format_slowdown(storage.elapsed_s.ratio, 0.5)
        whole = f"; the whole run {change}, {there} instead of {before}"
    figures = f"(I/O time {here} instead of {recorded} per rank{whole})"
    was = "Storage here, from the page cache, was" if storage.from_page_cache else "Storage here was"
    if storage.verdict in (FASTER, SLOWER):
        return f"{was} {format_slowdown(storage.io_time_s.ratio)} {figures}."
    if storage.verdict == SAME:
        return f"{was} as fast, within {thresholds.storage_pct:.3g} % {figures}."
    why = "the reads and writes have no measured duration" if disturbed is None else "calls were in flight meanwhile"
    return f"How fast the storage was is unknown: {why}."
