"""All runs of an experiment to one result. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from replay.regression.health import Health
from replay.regression.interval_verdict import Judgement, Rule, Verdict, judge
from replay.regression.result_sentence import headline
from replay.regression.run_metrics import METRICS, MeasuredRun
from replay.regression.signed_rank import PairedRatio, holm, least_pairs, paired_ratio

BASELINE, CANDIDATE = "baseline", "candidate"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricComparison:
    """One metric: its values by pair, and the verdict on it.

    `p_adjusted`: by Holm's correction over all metrics that do not decide; the deciding metric keeps its own p-value.
    """

    name: str
    baseline: tuple[float, ...]
    candidate: tuple[float, ...]
    found: PairedRatio
    p_adjusted: float
    judgement: Judgement

    def as_json(self) -> dict[str, Any]:
        """The object of one metric in the JSON of `dxt-replay regress`."""
        detectable = self.found.minimum_detectable
        return {
            "baseline": list(self.baseline),
            "candidate": list(self.candidate),
            "ratio": self.found.ratio,
            "ci": [self.found.low, self.found.high],
            "p_value": self.found.p_value,
            "p_adjusted": self.p_adjusted,
            "minimum_detectable_pct": None if detectable is None else 100 * (detectable - 1),
            "verdict": self.judgement.verdict.value,
            "reason": self.judgement.reason,
            "pairs_needed": self.judgement.pairs_needed,
            "unit": METRICS[self.name].unit,
            "more_is_better": METRICS[self.name].more_is_better,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Regression:
    """The result of an experiment.

    `headline`: the verdict in one sentence.
    `primary`: the metric that decides.
    `secondary_pairs_needed`: the fewest pairs that could judge the other metrics; None where there were as many.
    `setting`: how it was made, as plain values.
    """

    headline: str
    verdict: Verdict
    reason: str
    primary: str
    rule: Rule
    metrics: Mapping[str, MetricComparison]
    secondary_pairs_needed: int | None
    runs: tuple[MeasuredRun, ...]
    health: Health
    setting: Mapping[str, Any]

    def fails(self, *, inconclusive_fails: bool = False) -> bool:
        """Whether `dxt-replay regress` exits 1: a regression, a stopped experiment, no verdict where that fails."""
        failing = (Verdict.REGRESSION, Verdict.INCONCLUSIVE) if inconclusive_fails else (Verdict.REGRESSION,)
        return self.verdict in failing or bool(self.setting.get("stopped"))

    def as_json(self) -> dict[str, Any]:
        """The object that `dxt-replay regress --json` prints. `order`: sides of the runs that count, as they ran."""
        return {
            "headline": self.headline,
            "verdict": self.verdict.value,
            "reason": self.reason,
            "primary": self.primary,
            "secondary_pairs_needed": self.secondary_pairs_needed,
            "metrics": {name: metric.as_json() for name, metric in self.metrics.items()},
            "rule": {
                "threshold_pct": self.rule.threshold_pct,
                "alpha": self.rule.alpha,
                "test": "Wilcoxon signed-rank on log ratios of pairs, exact; Holm over the metrics that do not decide",
                "text": self.rule.text,
            },
            **self.setting,
            "valid": not self.health.obstacles,
            "obstacles": list(self.health.obstacles),
            "warnings": list(self.health.warnings),
            "order": [run.side for run in self.runs if run.pair],
            "runs": [run.as_json() for run in self.runs],
        }


def compare_sides(
    runs: Sequence[MeasuredRun], *, primary: str, rule: Rule, health: Health, setting: Mapping[str, Any]
) -> Regression:
    """The result of all `runs`, in the order in which they ran. A pair that lacks a side does not count, nor does a
    metric that a run lacks."""
    counted = _whole_pairs(runs)
    sides = {
        name: (
            tuple(before.metrics[name] for before, _ in counted),
            tuple(after.metrics[name] for _, after in counted),
        )
        for name in METRICS
        if counted and all(name in run.metrics for pair in counted for run in pair)
    }
    found = {name: paired_ratio(*values, rule.alpha) for name, values in sides.items()}
    others = [name for name in found if name != primary]
    adjusted = dict(zip(others, holm([found[name].p_value for name in others]), strict=True))
    metrics = {
        name: MetricComparison(
            name=name,
            baseline=sides[name][0],
            candidate=sides[name][1],
            found=found[name],
            p_adjusted=adjusted.get(name, found[name].p_value),
            judgement=judge(found[name], rule, more_is_better=METRICS[name].more_is_better, p_value=adjusted.get(name)),
        )
        for name in sorted(found, key=lambda name: name != primary)
    }
    verdict, reason = _verdict(metrics.get(primary), primary, runs, health)
    return Regression(
        headline=headline(
            verdict, reason, found.get(primary), more_is_better=primary in METRICS and METRICS[primary].more_is_better
        ),
        verdict=verdict,
        reason=reason,
        primary=primary,
        rule=rule,
        metrics=metrics,
        secondary_pairs_needed=_secondary_pairs_needed(len(counted), len(others), rule),
        runs=tuple(runs),
        health=health,
        setting=setting,
    )


def _secondary_pairs_needed(pairs: int, metrics: int, rule: Rule) -> int | None:
    """The fewest pairs with which Holm's correction over so many metrics leaves any verdict; None where there are."""
    needed = least_pairs(rule.alpha / metrics) if metrics else 0
    return needed if pairs < needed else None


def _whole_pairs(runs: Sequence[MeasuredRun]) -> list[tuple[MeasuredRun, MeasuredRun]]:
    by_place = {(run.pair, run.side): run for run in runs if run.pair and not run.stopped}
    pairs = sorted({pair for pair, _ in by_place})
    return [
        (by_place[pair, BASELINE], by_place[pair, CANDIDATE])
        for pair in pairs
        if (pair, BASELINE) in by_place and (pair, CANDIDATE) in by_place
    ]


def _verdict(
    metric: MetricComparison | None, primary: str, runs: Sequence[MeasuredRun], health: Health
) -> tuple[Verdict, str]:
    if any(run.stopped for run in runs):
        done = len(_whole_pairs(runs))
        return Verdict.INCONCLUSIVE, f"the experiment was stopped after {done} pairs"
    if metric is None:
        return Verdict.INCONCLUSIVE, f"the runs have no {primary} to compare"
    if health.obstacles:
        return Verdict.INCONCLUSIVE, f"the comparison is not valid: {health.obstacles[0]}"
    return metric.judgement.verdict, metric.judgement.reason
