"""The record of a finished experiment. Pure."""

from __future__ import annotations

from dxt_replay.replay.regression.comparison import CANDIDATE, Regression
from dxt_replay.replay.regression.experiment_record import ExperimentRecord, RecordedMetric, RecordedVerdict


def record_of(result: Regression) -> ExperimentRecord:
    """The record that `dxt-replay regress --record` writes. Against a record, only the runs of this session."""
    conditions = result.conditions
    if conditions is None:
        raise ValueError("the conditions of the experiment are not known")
    against = conditions.against
    runs = result.runs if against is None else tuple(run for run in result.runs if run.side == CANDIDATE)
    return ExperimentRecord(
        capture=conditions.capture,
        options=conditions.options,
        primary=result.primary,
        warmup=result.setting.warmup,
        seed=result.setting.seed,
        machine=conditions.machine,
        targets=conditions.targets,
        runs=runs,
        result=RecordedVerdict(
            headline=result.headline,
            verdict=result.verdict.value,
            reason=result.reason,
            threshold_pct=result.rule.threshold_pct,
            alpha=result.rule.alpha,
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
