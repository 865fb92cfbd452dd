"""The history of experiments: every series of records, with its headline. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dxt_replay.replay.history.record_files import FoundRecords
from dxt_replay.replay.history.series import Series, series_of
from dxt_replay.replay.regression.interval_verdict import Rule, change_text, interval_text
from dxt_replay.replay.regression.run_metrics import METRICS
from dxt_replay.traces.units import format_counted

_TEST = (
    "Mann-Whitney on the logarithms of the runs, for a change of more than the threshold, each record against all "
    "since the last change and all before against all after; Bonferroni over all looks, and over the metrics that do "
    "not decide"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """`skipped`: files of the folders that are not records, and records without a finished run."""

    rule: Rule
    series: tuple[Series, ...]
    skipped: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """The object that `dxt-replay history --json` prints."""
        return {
            "headline": " ".join(map(headline, self.series)),
            "records": sum(len(one.records) for one in self.series),
            "skipped": list(self.skipped),
            "rule": {
                "threshold_pct": self.rule.threshold_pct,
                "alpha": self.rule.alpha,
                "test": _TEST,
                "text": rule_text(self.rule),
            },
            "series": [{"headline": headline(one), **one.as_json()} for one in self.series],
        }


def make_history(found: FoundRecords, rule: Rule) -> History:
    """The history of the records."""
    measured = [record for record in found.records if any(run.metrics for run in record.counted_runs())]
    empty = [record.name for record in found.records if record not in measured]
    return History(rule=rule, series=tuple(series_of(measured, rule)), skipped=(*found.skipped, *empty))


def headline(series: Series) -> str:
    """`The elapsed time changed once in 12 records: +30.1 % (27.9 to 32.2 %) with tue.json of 2026-03-03 04:00.`"""
    meaning, changes = METRICS[series.primary].meaning, series.metrics[series.primary].changes
    records = f"{format_counted(len(series.records), 'record')} of {series.records[-1].capture.name}"
    if not changes:
        return f"No change of the {meaning} in {records}."
    last = changes[-1]
    record = series.records[last.at]
    size = change_text(last.ratio)
    if last.low is not None and last.high is not None:
        size += f" ({interval_text(last.low, last.high)})"
    times = "once" if len(changes) == 1 else f"{len(changes)} times"
    latest = "" if len(changes) == 1 else "the last time "
    verdict = "while the machine changed" if series.other_machine[last.at] else last.verdict
    return f"The {meaning} changed {times} in {records}: {latest}by {size}, {verdict}, with {record.name}."


def rule_text(rule: Rule) -> str:
    """Explain a change point, and its bound on false alarms."""
    return (
        f"At a change point the later runs differ from the earlier ones by more than {rule.threshold_pct:g} %. "
        f"If no two records differ by more than that, at most {100 * rule.alpha:g} % of histories show a change point."
    )
