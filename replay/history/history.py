"""The history of experiments: reads the records that a user named, and puts every series with its headline."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dxt_replay.replay.history.series import Series, series_of
from dxt_replay.replay.regression.experiment_record import ExperimentRecord, is_record, read_record
from dxt_replay.replay.regression.interval_verdict import Rule, change_text, interval_text
from dxt_replay.replay.regression.run_metrics import METRICS
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.text import printable
from dxt_replay.traces.units import format_counted

MOST_RECORDS = 2000
MOST_RUNS = 100_000
"""Records and runs of one history: what a gigabyte of memory holds with ease."""

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


def make_history(places: Sequence[Path], rule: Rule) -> History:
    """The history of the records in files and folders. Raises: UsageError."""
    records, skipped = find_records(places)
    measured = [record for record in records if any(run.metrics for run in record.counted_runs())]
    empty = [record.name for record in records if record not in measured]
    return History(rule=rule, series=tuple(series_of(measured, rule)), skipped=(*skipped, *empty))


def find_records(places: Sequence[Path]) -> tuple[list[ExperimentRecord], list[str]]:
    """Every record once, in order of time, and the names of the .json files of folders that are none.

    Raises: UsageError where a place cannot be read, a record is damaged, there is none, or there are too many.
    """
    found: dict[str, ExperimentRecord] = {}
    skipped, runs = [], 0
    for path, given in _files(places):
        key = os.path.realpath(path)
        if key in found:
            continue
        if not given and not is_record(path):
            skipped.append(path.name)
            continue
        found[key] = read_record(path)
        runs += len(found[key].runs)
        if len(found) > MOST_RECORDS or runs > MOST_RUNS:
            raise UsageError(
                f"more than {MOST_RECORDS:,} records, or {MOST_RUNS:,} runs: give the latest ones, by their names"
            )
    if not found:
        named = ", ".join(printable(place) for place in places[:3])
        raise UsageError(f"no record of an experiment in {named}: `dxt-replay regress --record FILE.json` writes one")
    return sorted(found.values(), key=lambda record: (record.start_ns, record.name)), skipped


def _files(places: Sequence[Path]) -> Iterator[tuple[Path, bool]]:
    """(file, whether it was given by its name)."""
    for place in places:
        try:
            entries = sorted(os.listdir(place)) if place.is_dir() else None
        except (OSError, ValueError) as error:
            raise UsageError(f"cannot read {printable(place)}: {getattr(error, 'strerror', error)}") from error
        if entries is None:
            yield place, True
        else:
            yield from (
                (place / name, False) for name in entries if name.endswith(".json") and (place / name).is_file()
            )


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
