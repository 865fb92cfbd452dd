"""Compares all runs of an experiment, and gives one result. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Literal

from dxt_replay.replay.regress.health import busy_warning, examine, jitter_doubt, session_warnings
from dxt_replay.replay.regress.metrics import METRICS, MORE_IS_BETTER, MeasuredRun
from dxt_replay.replay.regress.record import ExperimentRecord, RecordedVerdict
from dxt_replay.replay.regress.statistics import (
    ALPHA,
    Judgement,
    Ratio,
    Rule,
    Verdict,
    headline,
    holm,
    judge,
    least_pairs,
    least_runs,
    paired_ratio,
    storage_sentence,
    unpaired_ratio,
)
from dxt_replay.traces.text import unit_of

BASELINE: Literal["baseline"] = "baseline"
CANDIDATE: Literal["candidate"] = "candidate"

NOISE = "The same directory twice: this is noise"

_APPLICATION = {"steps": "This training", "think": "This application"}
"""Pace -> whose time the deciding metric is."""

_OF_THE_WHOLE = ("elapsed_s", "total_s")
_STORAGE = ("io_time_s", "metadata_time_s")
"""Deciding metrics that hold more than the storage's time, and the times of the storage, which are added."""

_PAIRED = "Wilcoxon signed-rank on log ratios of pairs, exact"
_UNPAIRED = "Mann-Whitney on the logarithms of two independent samples, exact for up to 60 runs"
_HOLM = "Holm over the metrics that do not decide"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricComparison:
    """One metric: its values by pair, and the verdict on it.

    `p_adjusted`: by Holm's correction over all metrics that do not decide; the deciding metric keeps its own p-value.
    """

    name: str
    baseline: tuple[float, ...]
    candidate: tuple[float, ...]
    found: Ratio
    p_adjusted: float
    judgement: Judgement

    @property
    def minimum_detectable_pct(self) -> float | None:
        """The smallest change that 8 of 10 such experiments detect, per cent; None where that is not known."""
        detectable = self.found.minimum_detectable
        return None if detectable is None else 100 * (detectable - 1)

    def as_json(self) -> dict[str, Any]:
        return {
            "baseline": list(self.baseline),
            "candidate": list(self.candidate),
            "ratio": self.found.ratio,
            "ci": [self.found.low, self.found.high],
            "p_value": self.found.p_value,
            "p_adjusted": self.p_adjusted,
            "minimum_detectable_pct": self.minimum_detectable_pct,
            "verdict": self.judgement.verdict.value,
            "reason": self.judgement.reason,
            "pairs_needed": self.judgement.pairs_needed,
            "unit": unit_of(self.name),
            "more_is_better": self.name in MORE_IS_BETTER,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Regression:
    """The result of an experiment; `schemas/regress.json` explains the keys of its JSON.

    `runs`: in their order, after those of a record. `conditions`: the record of the experiment, without its runs;
    `against`: the record whose runs are the baseline, None for pairs. `capture`, `baseline`, `candidate`: as given.
    """

    headline: str
    storage: str
    verdict: Verdict
    reason: str
    rule: Rule
    metrics: Mapping[str, MetricComparison]
    secondary_pairs_needed: int | None
    runs: tuple[MeasuredRun, ...]
    obstacles: Sequence[str]
    warnings: Sequence[str]
    conditions: ExperimentRecord
    against: ExperimentRecord | None
    differences: Sequence[str]
    capture: str
    baseline: str
    candidate: str
    repeats: int
    same_place: bool

    @property
    def primary(self) -> str:
        """The metric that decides."""
        return self.conditions.primary

    def fails(self, *, inconclusive_fails: bool = False) -> bool:
        """Whether `dxt-replay regress` exits 1: a regression, a stopped experiment, no verdict where that fails."""
        inconclusive = inconclusive_fails and self.verdict is Verdict.INCONCLUSIVE
        return self.verdict is Verdict.REGRESSION or inconclusive or self.stopped

    @property
    def stopped(self) -> bool:
        return any(run.stopped for run in self.runs)

    @property
    def order(self) -> list[str]:
        """Sides of the runs that count, in the order in which they ran."""
        return [run.side for run in self.runs if run.pair]

    @property
    def compared_with(self) -> str:
        """The other side of the comparison: the directory of the baseline, or a record."""
        return self.baseline if self.against is None else f"the record {self.against.name}"

    def as_json(self) -> dict[str, Any]:
        conditions, against, options = self.conditions, self.against, self.conditions.options
        return {
            "headline": self.headline,
            "storage": self.storage,
            "verdict": self.verdict.value,
            "reason": self.reason,
            "primary": self.primary,
            "secondary_pairs_needed": self.secondary_pairs_needed,
            "metrics": {name: metric.as_json() for name, metric in self.metrics.items()},
            "rule": {
                "threshold_pct": self.rule.threshold_pct,
                "alpha": ALPHA,
                "test": f"{_PAIRED if against is None else _UNPAIRED}; {_HOLM}",
                "text": self.rule.text,
            },
            "capture": self.capture,
            "baseline": self.baseline,
            "candidate": self.candidate,
            "pace": options.pace,
            "speed": options.speed,
            "compute_speed": options.compute_speed,
            "io_speed": options.io_speed,
            "api": options.api,
            "direct": options.direct,
            "repeats": self.repeats,
            "warmup": conditions.warmup,
            "seed": conditions.seed,
            "cache": {"policy": options.cache},
            "same_place": self.same_place,
            "stopped": self.stopped,
            "environment": {
                "machine": asdict(conditions.machine),
                "targets": {side: asdict(target) for side, target in conditions.targets.items()},
                "capture_digest": conditions.capture.digest,
                "differences": list(self.differences),
            },
            "against": None
            if against is None
            else {"record": against.name, "start_ns": against.start_ns, "runs": len(against.counted_runs())},
            "valid": not self.obstacles,
            "obstacles": list(self.obstacles),
            "warnings": list(self.warnings),
            "order": self.order,
            "runs": [run.as_json() for run in self.runs],
        }

    def record(self) -> ExperimentRecord:
        """The record that `dxt-replay regress --record` writes. Against a record, only the runs of this session."""
        metrics = {
            name: {each: getattr(metric.found, each) for each in ("ratio", "low", "high", "p_value")}
            | {"verdict": metric.judgement.verdict.value}
            for name, metric in self.metrics.items()
        }
        result = RecordedVerdict(
            headline=self.headline,
            storage=self.storage,
            verdict=self.verdict.value,
            reason=self.reason,
            threshold_pct=self.rule.threshold_pct,
            alpha=ALPHA,
            metrics=metrics,
            obstacles=tuple(self.obstacles),
            warnings=tuple(self.warnings),
            against=None if self.against is None else self.against.start_ns,
        )
        runs = tuple(run for run in self.runs if self.against is None or run.side == CANDIDATE)
        return replace(self.conditions, runs=runs, result=result)


def compare_sides(
    runs: Sequence[MeasuredRun],
    conditions: ExperimentRecord,
    *,
    rule: Rule,
    against: ExperimentRecord | None = None,
    same_place: bool = False,
    **places: Any,
) -> Regression:
    """The result of all `runs`, in the order in which they ran. A pair that lacks a side does not count, nor does a
    metric that a run lacks.

    `against`: a record in place of a baseline; `runs` are then of the candidate alone. `same_place`: both sides are one
    directory. `places`: the other fields of the result.
    """
    recorded, counted = () if against is None else against.counted_runs(), [run for run in runs if run.counts]
    options, noun = conditions.options, "pair" if against is None else "run"
    obstacles, warnings = examine(
        [*recorded, *counted],
        threshold_pct=rule.threshold_pct,
        closed_loop=options.pace != "timed",
        direct=options.direct,
    )
    left_out = [
        f"{noun} {run.pair} is left out: its run on the {run.side} was {run.disturbed}"
        for run in runs
        if run.pair and run.disturbed
    ]
    warnings = [*left_out, *busy_warning(counted), *warnings]
    # Verdict -> why it may not be given; beside any other verdict it is a warning.
    doubts = jitter_doubt(recorded, counted)
    if same_place:
        noise = "both sides are the same directory, so the difference is noise"
        doubts = {Verdict.REGRESSION: noise, Verdict.IMPROVEMENT: noise}
    if against is None:
        by_place = {(run.side, run.pair): run for run in counted}
        pairs = sorted(pair for side, pair in by_place if side == BASELINE and (CANDIDATE, pair) in by_place)
        before, after = ([by_place[side, pair] for pair in pairs] for side in (BASELINE, CANDIDATE))
        ratio, least = paired_ratio, least_pairs
    else:
        warnings = [*session_warnings(recorded, runs, conditions.primary), *warnings]
        before = [replace(run, side=BASELINE, pair=number, capture=None) for number, run in enumerate(recorded, 1)]
        after, runs = counted, [*before, *runs]
        ratio, least = unpaired_ratio, partial(least_runs, len(before))  # type: ignore[assignment]
    primary, both = conditions.primary, [*before, *after] if before and after else []
    names = [name for name in METRICS if both and all(name in run.metrics for run in both)]
    names.sort(key=lambda name: name != primary)
    values = {name: [tuple(run.metrics[name] for run in side) for side in (before, after)] for name in names}
    ratios = {name: ratio(values[name][0], values[name][1]) for name in names}
    others = [name for name in names if name != primary]
    # The metrics that do not decide share their probability of a false alarm.
    adjusted = dict(zip(others, holm([ratios[name].p_value for name in others]), strict=True))
    metrics = {
        name: MetricComparison(
            name=name,
            baseline=values[name][0],
            candidate=values[name][1],
            found=found,
            p_adjusted=adjusted.get(name, found.p_value),
            judgement=judge(found, rule, more_is_better=name in MORE_IS_BETTER, p_value=adjusted.get(name)),
        )
        for name, found in ratios.items()
    }
    needed = least(ALPHA / len(others)) if others else 0
    deciding, present = metrics.get(primary), [name for name in _STORAGE if name in ratios]
    in_calls = [tuple(sum(run.metrics[name] for name in present) for run in side) for side in (before, after)]
    itself = ratio(in_calls[0], in_calls[1]) if present else None
    doubted = doubts.get(deciding.judgement.verdict) if deciding is not None else None
    obstacles += [doubted] if doubted else []
    warnings = [*dict.fromkeys(text for text in doubts.values() if text != doubted), *warnings]
    verdict, reason = Verdict.INCONCLUSIVE, f"the runs have no {primary} to compare"
    if any(run.stopped for run in runs):
        noun = "pairs" if deciding is None else deciding.found.counted
        reason = f"the experiment was stopped after {min(len(before), len(after))} {noun}"
    elif deciding is not None and obstacles:
        reason = f"the comparison is not valid: {obstacles[0]}"
    elif deciding is not None:
        verdict, reason = deciding.judgement.verdict, deciding.judgement.reason
    said = headline(verdict, reason, ratios.get(primary), more_is_better=primary in MORE_IS_BETTER)
    if options.pace in _APPLICATION and verdict is not Verdict.INCONCLUSIVE:
        notices = "would not notice" if verdict is Verdict.NO_CHANGE else "would notice"
        said = f"{_APPLICATION[options.pace]} {notices}: t{said[1:]}"
    tells = primary in _OF_THE_WHOLE and not same_place
    return Regression(
        headline=f"{NOISE}. {said}" if same_place else said,
        storage=storage_sentence(itself, rule) if itself is not None and tells else "",
        verdict=verdict,
        reason=reason,
        rule=rule,
        metrics=metrics,
        secondary_pairs_needed=needed if needed is not None and len(after) < needed else None,
        runs=tuple(runs),
        obstacles=obstacles,
        warnings=warnings,
        conditions=conditions,
        against=against,
        same_place=same_place,
        **places,
    )
