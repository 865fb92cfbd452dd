"""Compares all runs of an experiment, and gives one result. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from dxt_replay.replay.regress.health import Health
from dxt_replay.replay.regress.metrics import METRICS, MORE_IS_BETTER, MeasuredRun
from dxt_replay.replay.regress.record import Conditions, ExperimentRecord, RecordedMetric, RecordedVerdict
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
from dxt_replay.traces.plain import plain
from dxt_replay.traces.text import unit_of

BASELINE: Literal["baseline"] = "baseline"
CANDIDATE: Literal["candidate"] = "candidate"

NOISE = "The same directory twice: this is noise"

_APPLICATION = {"steps": "This training", "think": "This application"}
"""Pace -> whose time the deciding metric is."""

_OF_THE_WHOLE = ("elapsed_s", "total_s")
_STORAGE = ("io_time_s", "metadata_time_s")
"""Deciding metrics that hold more than the storage's time, and the metrics of the storage, the first that was found."""

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
        """The object of one metric in the JSON of `dxt-replay regress`."""
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
class Setting:
    """How an experiment was made.

    capture: path of the replayed capture. baseline, candidate: directories. pace, api: as requested.
    speed, compute_speed, io_speed: multiples of the recorded ones. direct: whether O_DIRECT was asked for.
    repeats: pairs of runs. warmup: runs of a side before them. seed: of their order. cache: "cold" or "as found".
    same_place: whether both sides are one directory.
    """

    capture: str
    baseline: str
    candidate: str
    pace: str
    speed: float
    compute_speed: float
    io_speed: float
    api: str
    direct: bool
    repeats: int
    warmup: int
    seed: int
    cache: str
    same_place: bool = False

    def as_json(self) -> dict[str, Any]:
        """A part of the object that `dxt-replay regress --json` prints."""
        return {**plain(self), "cache": {"policy": self.cache}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Regression:
    """The result of an experiment.

    `headline`: the verdict in one sentence, on what the application notices.
    `storage`: a sentence on what the storage itself did; empty where that decides already.
    `primary`: the metric that decides.
    `secondary_pairs_needed`: the fewest pairs that could judge the other metrics; None where there were as many.
    `test`: the statistical test, in words.
    `conditions`: what was replayed, and on which machine and file systems.
    """

    headline: str
    storage: str
    verdict: Verdict
    reason: str
    primary: str
    rule: Rule
    metrics: Mapping[str, MetricComparison]
    secondary_pairs_needed: int | None
    runs: tuple[MeasuredRun, ...]
    health: Health
    setting: Setting
    test: str
    conditions: Conditions | None = None

    def fails(self, *, inconclusive_fails: bool = False) -> bool:
        """Whether `dxt-replay regress` exits 1: a regression, a stopped experiment, no verdict where that fails."""
        inconclusive = inconclusive_fails and self.verdict is Verdict.INCONCLUSIVE
        return self.verdict is Verdict.REGRESSION or inconclusive or self.stopped

    @property
    def stopped(self) -> bool:
        """Whether the experiment ended before its last run."""
        return any(run.stopped for run in self.runs)

    @property
    def order(self) -> list[str]:
        """Sides of the runs that count, in the order in which they ran."""
        return [run.side for run in self.runs if run.pair]

    @property
    def against(self) -> ExperimentRecord | None:
        """The record whose runs are the baseline; None for an experiment in pairs."""
        return None if self.conditions is None else self.conditions.against

    @property
    def compared_with(self) -> str:
        """The other side of the comparison: the directory of the baseline, or a record."""
        return self.setting.baseline if self.against is None else f"the record {self.against.name}"

    def as_json(self) -> dict[str, Any]:
        """The object that `dxt-replay regress --json` prints."""
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
                "test": self.test,
                "text": self.rule.text,
            },
            **self.setting.as_json(),
            "stopped": self.stopped,
            "environment": None if self.conditions is None else self.conditions.environment_json(),
            "against": None if self.conditions is None else self.conditions.against_json(),
            "valid": not self.health.obstacles,
            "obstacles": list(self.health.obstacles),
            "warnings": list(self.health.warnings),
            "order": self.order,
            "runs": [run.as_json() for run in self.runs],
        }


def compare_sides(
    runs: Sequence[MeasuredRun],
    *,
    primary: str,
    rule: Rule,
    health: Health,
    setting: Setting,
    recorded: Sequence[MeasuredRun] | None = None,
    conditions: Conditions | None = None,
) -> Regression:
    """The result of all `runs`, in the order in which they ran. A pair that lacks a side does not count, nor does a
    metric that a run lacks.

    `recorded`: runs of an earlier session in place of a baseline; `runs` are then of the candidate alone.
    """
    least: Callable[[float], int | None]
    before: Sequence[MeasuredRun]
    after: Sequence[MeasuredRun]
    if recorded is None:
        by_place = {(run.side, run.pair): run for run in runs if run.counts}
        pairs = sorted(pair for side, pair in by_place if side == BASELINE and (CANDIDATE, pair) in by_place)
        before, after = ([by_place[side, pair] for pair in pairs] for side in (BASELINE, CANDIDATE))
        ratio, least, test = paired_ratio, least_pairs, _PAIRED
    else:
        before = [replace(run, side=BASELINE, pair=number, capture=None) for number, run in enumerate(recorded, 1)]
        after = [run for run in runs if run.counts]
        runs = [*before, *runs]
        ratio, least, test = unpaired_ratio, partial(least_runs, len(before)), _UNPAIRED
    both = [*before, *after] if before and after else []
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
    deciding, itself = metrics.get(primary), next((ratios[name] for name in _STORAGE if name in ratios), None)
    health = health.settled(None if deciding is None else deciding.judgement.verdict)
    verdict, reason = _verdict(deciding, primary, runs, health, min(len(before), len(after)))
    said = headline(verdict, reason, ratios.get(primary), more_is_better=primary in MORE_IS_BETTER)
    if setting.pace in _APPLICATION and verdict is not Verdict.INCONCLUSIVE:
        notices = "would not notice" if verdict is Verdict.NO_CHANGE else "would notice"
        said = f"{_APPLICATION[setting.pace]} {notices}: t{said[1:]}"
    tells = itself is not None and primary in _OF_THE_WHOLE and not setting.same_place
    return Regression(
        headline=f"{NOISE}. {said}" if setting.same_place else said,
        storage=storage_sentence(itself, rule) if itself is not None and tells else "",
        verdict=verdict,
        reason=reason,
        primary=primary,
        rule=rule,
        test=f"{test}; {_HOLM}",
        metrics=metrics,
        secondary_pairs_needed=needed if needed is not None and len(after) < needed else None,
        runs=tuple(runs),
        health=health,
        setting=setting,
        conditions=conditions,
    )


def _verdict(
    metric: MetricComparison | None, primary: str, runs: Sequence[MeasuredRun], health: Health, done: int
) -> tuple[Verdict, str]:
    """`done`: pairs, or runs against a record, that count."""
    if any(run.stopped for run in runs):
        noun = "pairs" if metric is None else metric.found.counted
        return Verdict.INCONCLUSIVE, f"the experiment was stopped after {done} {noun}"
    if metric is None:
        return Verdict.INCONCLUSIVE, f"the runs have no {primary} to compare"
    if health.obstacles:
        return Verdict.INCONCLUSIVE, f"the comparison is not valid: {health.obstacles[0]}"
    return metric.judgement.verdict, metric.judgement.reason


def record_of(result: Regression) -> ExperimentRecord:
    """The record that `dxt-replay regress --record` writes. Against a record, only the runs of this session."""
    conditions = result.conditions
    if conditions is None:
        raise ValueError("the conditions of the experiment are not known")
    against = conditions.against
    return ExperimentRecord(
        capture=conditions.capture,
        options=conditions.options,
        primary=result.primary,
        warmup=result.setting.warmup,
        seed=result.setting.seed,
        machine=conditions.machine,
        targets=conditions.targets,
        runs=tuple(run for run in result.runs if against is None or run.side == CANDIDATE),
        result=RecordedVerdict(
            headline=result.headline,
            storage=result.storage,
            verdict=result.verdict.value,
            reason=result.reason,
            threshold_pct=result.rule.threshold_pct,
            alpha=ALPHA,
            metrics={
                name: RecordedMetric(
                    ratio=metric.found.ratio,
                    low=metric.found.low,
                    high=metric.found.high,
                    p_value=metric.found.p_value,
                    verdict=metric.judgement.verdict.value,
                )
                for name, metric in result.metrics.items()
            },
            obstacles=result.health.obstacles,
            warnings=result.health.warnings,
            against=None if against is None else against.start_ns,
        ),
    )
