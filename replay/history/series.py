"""Groups records of the same work on the same target into series, with the level of each and the changes. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dxt_replay.replay.history.change_points import change_points
from dxt_replay.replay.regression.against_record import jitter_difference
from dxt_replay.replay.regression.environment_changes import hardware_changed, machine_changes, target_changes
from dxt_replay.replay.regression.experiment_record import ExperimentRecord
from dxt_replay.replay.regression.health import examine
from dxt_replay.replay.regression.interval_verdict import Rule
from dxt_replay.replay.regression.rank_sum import unpaired_ratio
from dxt_replay.replay.regression.run_metrics import METRICS
from dxt_replay.traces.plain import plain
from dxt_replay.traces.text import unit_of

_NEAREST = 500
"""Runs on each side of a change from which its size is estimated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A metric in one record.

    low, high: the interval of its median; None for too few runs. change: ratio to the record before, with its interval;
    None for the first record, and without an interval for too few runs.
    """

    runs: int
    median: float
    low: float | None
    high: float | None
    change: float | None = None
    change_low: float | None = None
    change_high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change point.

    at: number of the first record after it, from 0. ratio: of the runs after it to those before it, with its interval.
    p_value: corrected for all tests of this metric. verdict: regression or improvement, of a
        metric that does not decide slower or faster.
    """

    at: int
    ratio: float
    low: float | None
    high: float | None
    p_value: float
    verdict: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSeries:
    """`levels`: one for each record, None where it lacks the metric. `values`: its runs."""

    levels: tuple[Level | None, ...]
    changes: tuple[Change, ...]
    values: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Records of one capture, replayed with the same options on one directory, in order of time.

    differences: of each record, how its environment differs from that of the record before.
    other_machine: of each record, whether the machine was another one than for the record before, or was busier or
    quieter: a change point there is not a regression of the file system.
    warnings: why its runs may not be comparable.
    """

    records: tuple[ExperimentRecord, ...]
    differences: tuple[tuple[str, ...], ...]
    other_machine: tuple[bool, ...]
    primary: str
    metrics: Mapping[str, MetricSeries]
    warnings: tuple[str, ...]

    @property
    def regressed(self) -> bool:
        """Whether the last change of the metric that decides is a regression, and not the machine's."""
        last = self.metrics[self.primary].changes[-1:]
        return any(change.verdict == "regression" and not self.other_machine[change.at] for change in last)

    def as_json(self) -> dict[str, Any]:
        """One of `series` in the JSON of `dxt-replay history`."""
        last = self.records[-1]
        return {
            "capture": last.capture.name,
            "capture_digest": last.capture.digest,
            "target": last.targets["candidate"].target,
            "pace": last.options.pace,
            "cache": last.options.cache,
            "primary": self.primary,
            "warnings": list(self.warnings),
            "records": [
                {
                    "record": record.name,
                    "start_ns": record.start_ns,
                    "date": record.date,
                    "host": record.machine.host,
                    "kernel": record.machine.kernel,
                    "version": record.version,
                    "verdict": record.result.verdict,
                    "differences": list(differences),
                    "machine_changed": machine,
                }
                for record, differences, machine in zip(self.records, self.differences, self.other_machine, strict=True)
            ],
            "metrics": {
                name: {
                    "unit": unit_of(name),
                    "more_is_better": METRICS[name].more_is_better,
                    "levels": plain(metric.levels),
                    "changes": [
                        {**plain(change), "machine_changed": self.other_machine[change.at]} for change in metric.changes
                    ],
                    "values": plain(metric.values),
                }
                for name, metric in self.metrics.items()
            },
        }


def series_of(records: Sequence[ExperimentRecord], rule: Rule) -> list[Series]:
    """The series of records in order of time, the one with the latest record last."""
    groups: dict[tuple[Any, ...], list[ExperimentRecord]] = {}
    for record in records:
        key = (record.capture.digest, record.options, record.targets["candidate"].target)
        groups.setdefault(key, []).append(record)
    found = (_series(group, rule) for group in groups.values())
    return sorted(found, key=lambda series: series.records[-1].start_ns)


def _series(records: Sequence[ExperimentRecord], rule: Rule) -> Series:
    runs = [record.counted_runs() for record in records]
    names = [name for name in METRICS if any(name in run.metrics for counted in runs for run in counted)]
    primary = records[-1].primary if records[-1].primary in names else names[0]
    names.sort(key=lambda name: name != primary)
    others = max(len(names) - 1, 1)
    metrics = {}
    for name in names:
        values = tuple(tuple(run.metrics[name] for run in counted if name in run.metrics) for counted in runs)
        alpha = rule.alpha if name == primary else rule.alpha / others
        metrics[name] = _metric_series(name, values, rule, alpha, decides=name == primary)
    last = records[-1]
    health = examine(
        [run for counted in runs for run in counted],
        threshold_pct=rule.threshold_pct,
        closed_loop=last.options.pace != "timed",
        direct=last.options.direct,
    )
    before = [None, *records[:-1]]
    return Series(
        records=tuple(records),
        differences=tuple(_differences(one, other) for one, other in zip(before, records, strict=True)),
        other_machine=tuple(_other_machine(one, other) for one, other in zip(before, records, strict=True)),
        primary=primary,
        metrics=metrics,
        warnings=(*health.obstacles, *health.warnings),
    )


def _differences(before: ExperimentRecord | None, record: ExperimentRecord) -> tuple[str, ...]:
    if before is None:
        return ()
    of_target = target_changes(before.targets["candidate"], record.targets["candidate"])
    busier = jitter_difference(before.counted_runs(), record.counted_runs())
    return (*machine_changes(before.machine, record.machine), *of_target, *([busier] if busier else []))


def _other_machine(before: ExperimentRecord | None, record: ExperimentRecord) -> bool:
    if before is None:
        return False
    busier = jitter_difference(before.counted_runs(), record.counted_runs())
    return busier is not None or hardware_changed(before.machine, record.machine)


def _metric_series(
    name: str, values: tuple[tuple[float, ...], ...], rule: Rule, alpha: float, *, decides: bool
) -> MetricSeries:
    """Records without the metric are passed over."""
    places = [place for place, found in enumerate(values) if found]
    samples = [np.log(values[place]) for place in places]
    levels: list[Level | None] = [None] * len(values)
    earlier: tuple[float, ...] = ()
    for place in places:
        levels[place] = _level(values[place], earlier, rule.alpha)
        earlier = values[place]
    points = change_points(samples, rule.margin, alpha)
    ends = [0, *(point.at for point in points), len(samples)]
    changes = []
    for number, point in enumerate(points):
        before = np.concatenate(samples[ends[number] : point.at])[-_NEAREST:]
        after = np.concatenate(samples[point.at : ends[number + 2]])[:_NEAREST]
        found = unpaired_ratio(np.exp(before).tolist(), np.exp(after).tolist(), rule.alpha)
        worse = (found.ratio > 1) != METRICS[name].more_is_better
        changes.append(
            Change(
                at=places[point.at],
                ratio=found.ratio,
                low=found.low,
                high=found.high,
                p_value=point.p_value,
                verdict=("regression", "improvement", "slower", "faster")[2 * (not decides) + (not worse)],
            )
        )
    return MetricSeries(levels=tuple(levels), changes=tuple(changes), values=values)


def _level(values: tuple[float, ...], earlier: tuple[float, ...], alpha: float) -> Level:
    low, high = _median_interval(sorted(values), alpha)
    found = unpaired_ratio(earlier[-_NEAREST:], values[:_NEAREST], alpha) if earlier else None
    return Level(
        runs=len(values),
        median=float(np.median(values)),
        low=low,
        high=high,
        change=None if found is None else found.ratio,
        change_low=None if found is None else found.low,
        change_high=None if found is None else found.high,
    )


def _median_interval(ordered: Sequence[float], alpha: float) -> tuple[float | None, float | None]:
    """Values between which the median lies with probability 1 - alpha at least, by the sign test: no distribution is
    assumed (Hollander, Wolfe and Chicken, section 3.6)."""
    count, tail, cut = len(ordered), 0.0, 0
    while cut < count // 2:
        chosen = math.lgamma(count + 1) - math.lgamma(cut + 1) - math.lgamma(count - cut + 1)
        tail += math.exp(chosen - count * math.log(2))
        if tail > alpha / 2:
            break
        cut += 1
    return (ordered[cut - 1], ordered[count - cut]) if cut else (None, None)
