"""The history of experiments: records of the same work on the same target in order of time, and where they changed.

Tested is whether the change exceeds the margin: at each possible place, by Mann and Whitney's statistic of values that
were moved together by the margin (why: docs/explain/statistics.md). As long as all sessions lie within the margin of
each other, a series of K samples shows a change with probability alpha at most. Two looks share it, alpha / 2 / (K - 1)
for each place of each:

    forward   each sample against all samples since the last change: finds a change when it comes, and a single bad day
    backward  all samples before a place against all after it, within a stretch without changes: finds a small change
              that lasts; the place with the smallest p-value divides the stretch, and both parts are looked at again
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from dxt_replay.replay.regress.environment import hardware_changed
from dxt_replay.replay.regress.health import examine, jitter_difference
from dxt_replay.replay.regress.metrics import METRICS, MORE_IS_BETTER
from dxt_replay.replay.regress.record import ExperimentRecord, changes_since, read_record, record_in
from dxt_replay.replay.regress.statistics import ALPHA, Rule, exceeding, size_text, unpaired_ratio
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.plain import plain
from dxt_replay.traces.text import printable, unit_of
from dxt_replay.traces.units import format_counted

MOST_RECORDS = 2000
MOST_RUNS = 100_000
"""Records and runs of one history: what a gigabyte of memory holds with ease."""

_NEAREST = 500
"""Runs on each side of a change from which its size is estimated."""

_NEVER = 2.0
_TEST = (
    "Mann-Whitney on the logarithms of the runs, for a change of more than the threshold, each record against all "
    "since the last change and all before against all after; Bonferroni over all looks, and over the metrics that do "
    "not decide"
)


def change_points(samples: Sequence[np.ndarray], margin: float, alpha: float) -> list[tuple[int, float]]:
    """The changes, in order, of samples that each hold values (float64, any number of them, logarithms for ratios): the
    index of the first sample after each, and its p-value for all looks of the series together.

    Time: as the square of the number of samples. Memory: 16 bytes a pair of samples.
    """
    looks = 2 * (len(samples) - 1)
    if looks <= 0:
        return []
    sizes = np.concatenate([[0], np.cumsum([len(sample) for sample in samples])])
    sums = _exceeding(samples, sizes, margin)

    def test(begin: int, at: int, end: int) -> tuple[float, float, int]:
        """Two-sided p-value of a change at `at`, a figure that is smaller for a greater change, and the place."""
        first, second = int(sizes[at] - sizes[begin]), int(sizes[end] - sizes[at])
        if not first or not second:
            return _NEVER, 0.0, at
        most = int((sums[:, at, end] - sums[:, begin, end] - sums[:, at, at] + sums[:, begin, at]).max())
        return min(2 * exceeding(most, first, second), 1.0), -most / (first * second), at

    found, stretches = [], [(0, len(samples))]
    while stretches:
        begin, end = stretches.pop()
        ends = [begin]
        for at in range(begin + 1, end):
            p_value, _, _ = test(ends[-1], at, at + 1)
            if p_value <= alpha / looks:
                found.append((at, p_value))
                ends.append(at)
        for first, last in pairwise([*ends, end]):
            p_value, _, at = min((test(first, at, last) for at in range(first + 1, last)), default=(_NEVER, 0.0, 0))
            if p_value <= alpha / looks:
                found.append((at, p_value))
                stretches += [(first, at), (at, last)]
    return [(at, min(looks * p_value, 1.0)) for at, p_value in sorted(found)]


def _exceeding(samples: Sequence[np.ndarray], sizes: np.ndarray, margin: float) -> np.ndarray:
    """int64 (2, K + 1, K + 1): how many values of later samples exceed those of earlier ones by more than the margin,
    and the other way round; sums over rectangles of sample x sample, so that each test takes the same short time."""
    values = np.concatenate([np.asarray(sample, dtype=np.float64) for sample in samples])
    sums = np.zeros((2, len(samples) + 1, len(samples) + 1), dtype=np.int64)
    for row, sample in enumerate(samples, start=1):
        ordered = np.sort(sample)
        exceeded = np.searchsorted(ordered, values - margin, side="left")
        undercut = len(ordered) - np.searchsorted(ordered, values + margin, side="right")
        for place, counts in enumerate((exceeded, undercut)):
            sums[place, row, 1:] = np.diff(np.concatenate([[0], np.cumsum(counts)])[sizes])
    return sums.cumsum(axis=1).cumsum(axis=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A metric in one record: its median and the ratio to the record before, with their intervals; None for too few
    runs, and in the first record."""

    runs: int
    median: float
    low: float | None
    high: float | None
    change: float | None = None
    change_low: float | None = None
    change_high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change point. `at`: number of the first record after it, from 0. `ratio`: of the runs after it to those before
    it. `p_value`: corrected for all tests of this metric. `machine_changed`: whether the machine was another one
    than for the record before, or was busier or quieter: it is not a regression of the file system."""

    at: int
    ratio: float
    low: float | None
    high: float | None
    p_value: float
    verdict: str
    machine_changed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSeries:
    """`levels`: one for each record, None where it lacks the metric. `values`: its runs."""

    levels: tuple[Level | None, ...]
    changes: tuple[Change, ...]
    values: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Records of one capture, replayed with the same options on one directory, in order of time.

    differences: of each record, how its environment differs from that of the record before, and whether the machine
    was another one, busier or quieter. metrics: by name, the deciding one first. warnings: why its runs may not be
    comparable.
    """

    records: tuple[ExperimentRecord, ...]
    differences: tuple[tuple[list[str], bool], ...]
    metrics: Mapping[str, MetricSeries]
    warnings: list[str]

    @property
    def regressed(self) -> bool:
        """Whether the newest record holds a change for the worse: the last change of the metric that decides is a
        regression, and not the machine's."""
        last = next(iter(self.metrics.values())).changes[-1:]
        return any(change.verdict == "regression" and not change.machine_changed for change in last)

    @property
    def headline(self) -> str:
        """`The elapsed time changed once in 12 records of a.capture: 30.1 % slower (27.9 to 32.2 %), regression, with
        tue.json.`"""
        name, metric = next(iter(self.metrics.items()))
        records = f"{format_counted(len(self.records), 'record')} of {self.records[-1].capture.name}"
        if not metric.changes:
            return f"No change of the {METRICS[name]} in {records}."
        last = metric.changes[-1]
        size = size_text(last.ratio, last.low, last.high)
        times, latest = (f"{len(metric.changes)} times", "the last time ") if metric.changes[1:] else ("once", "")
        verdict = "while the machine changed" if last.machine_changed else last.verdict
        said = f"The {METRICS[name]} changed {times} in {records}: {latest}{size}, {verdict}"
        return f"{said}, with {self.records[last.at].name}."

    def as_json(self) -> dict[str, Any]:
        last = self.records[-1]
        return {
            "headline": self.headline,
            "capture": last.capture.name,
            "capture_digest": last.capture.digest,
            "target": last.targets["candidate"].target,
            "pace": last.options.pace,
            "cache": last.options.cache,
            "primary": next(iter(self.metrics)),
            "warnings": list(self.warnings),
            "records": [
                {
                    "record": record.name,
                    "start_ns": record.start_ns,
                    "date": record.date,
                    "host": record.machine.host,
                    "kernel": record.machine.kernel,
                    "version": record.machine.versions.get("dxt-replay", ""),
                    "verdict": record.verdict,
                    "differences": list(differences),
                    "machine_changed": machine,
                }
                for record, (differences, machine) in zip(self.records, self.differences, strict=True)
            ],
            "metrics": {
                name: {"unit": unit_of(name), "more_is_better": name in MORE_IS_BETTER, **plain(metric)}
                for name, metric in self.metrics.items()
            },
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """`skipped`: files of the folders that are not records, and records without a finished run."""

    rule: Rule
    series: tuple[Series, ...]
    skipped: tuple[str, ...]

    @property
    def regressed(self) -> bool:
        """Whether `dxt-replay history` exits 1: in a series the newest record holds a change for the worse."""
        return any(series.regressed for series in self.series)

    def as_json(self) -> dict[str, Any]:
        threshold = f"{self.rule.threshold_pct:g} %"
        return {
            "headline": " ".join(series.headline for series in self.series),
            "records": sum(len(one.records) for one in self.series),
            "skipped": list(self.skipped),
            "rule": {
                "threshold_pct": self.rule.threshold_pct,
                "alpha": ALPHA,
                "test": _TEST,
                "text": f"At a change point the later runs differ from the earlier ones by more than {threshold}. If "
                f"no two records differ by more than that, at most {100 * ALPHA:g} % of histories show a change point.",
            },
            "series": [series.as_json() for series in self.series],
        }


def make_history(places: Sequence[Path], rule: Rule) -> History:
    """The history of the records in files and folders, each of them once.

    Raises: UsageError where a place cannot be read, a record is damaged, there is none, or there are too many.
    """
    records: dict[str, ExperimentRecord] = {}
    skipped: list[str] = []
    runs = 0
    for path, given in _files(places):
        key = os.path.realpath(path)
        if key in records:
            continue
        record = read_record(path) if given else record_in(path)
        if record is None:
            skipped.append(path.name)
            continue
        records[key] = record
        runs += len(record.runs)
        if len(records) > MOST_RECORDS or runs > MOST_RUNS:
            raise UsageError(
                f"more than {MOST_RECORDS:,} records, or {MOST_RUNS:,} runs: give the latest ones, by their names"
            )
    if not records:
        named = ", ".join(printable(place) for place in places[:3])
        raise UsageError(f"no record of an experiment in {named}: `dxt-replay regress --record FILE.json` writes one")
    groups: dict[tuple[Any, ...], list[ExperimentRecord]] = {}
    for record in sorted(records.values(), key=lambda record: (record.start_ns, record.name)):
        if any(run.metrics for run in record.counted_runs()):
            work = record.capture.digest, record.options, record.targets["candidate"].target
            groups.setdefault(work, []).append(record)
        else:
            skipped.append(record.name)
    found = sorted((_series(group, rule) for group in groups.values()), key=lambda one: one.records[-1].start_ns)
    return History(rule=rule, series=tuple(found), skipped=tuple(skipped))


def _files(places: Sequence[Path]) -> Iterator[tuple[Path, bool]]:
    """(file, whether it was given by its name)."""
    for place in places:
        try:
            entries = sorted(os.listdir(place)) if place.is_dir() else None
        except (OSError, ValueError) as error:
            raise UsageError(f"cannot read {printable(place)}: {getattr(error, 'strerror', error)}") from error
        if entries is None:
            yield place, True
        for name in entries or ():
            if name.endswith(".json") and (place / name).is_file():
                yield place / name, False


def _series(records: Sequence[ExperimentRecord], rule: Rule) -> Series:
    runs = [record.counted_runs() for record in records]
    names = [name for name in METRICS if any(name in run.metrics for counted in runs for run in counted)]
    last = records[-1]
    primary = last.primary if last.primary in names else names[0]
    names.sort(key=lambda name: name != primary)
    differences: list[tuple[list[str], bool]] = [([], False)]
    for before, after in pairwise(records):
        busier = jitter_difference(before.counted_runs(), after.counted_runs())
        other = busier is not None or hardware_changed(before.machine, after.machine)
        differences.append(([*changes_since(before, after), *([busier[0]] if busier else [])], other))
    metrics = {}
    for name in names:
        values = tuple(tuple(run.metrics[name] for run in counted if name in run.metrics) for counted in runs)
        alpha = ALPHA if name == primary else ALPHA / (len(names) - 1)
        metrics[name] = _metric_series(name, values, rule, alpha, differences, decides=name == primary)
    obstacles, warnings = examine(
        [run for counted in runs for run in counted],
        threshold_pct=rule.threshold_pct,
        closed_loop=last.options.pace != "timed",
        direct=last.options.direct,
    )
    return Series(
        records=tuple(records), differences=tuple(differences), metrics=metrics, warnings=[*obstacles, *warnings]
    )


def _metric_series(
    name: str,
    values: tuple[tuple[float, ...], ...],
    rule: Rule,
    alpha: float,
    differences: Sequence[tuple[list[str], bool]],
    *,
    decides: bool,
) -> MetricSeries:
    """Records without the metric are passed over."""
    places = [place for place, found in enumerate(values) if found]
    levels: list[Level | None] = [None] * len(values)
    for earlier, place in zip([None, *places], places, strict=False):
        levels[place] = _level(values[place], () if earlier is None else values[earlier])
    samples = [np.log(values[place]) for place in places]
    points = change_points(samples, rule.margin, alpha)
    ends = [0, *(at for at, _ in points), len(samples)]
    changes = []
    for number, (at, p_value) in enumerate(points):
        before = np.concatenate(samples[ends[number] : at])[-_NEAREST:]
        after = np.concatenate(samples[at : ends[number + 2]])[:_NEAREST]
        found = unpaired_ratio(np.exp(before).tolist(), np.exp(after).tolist())
        worse = (found.ratio > 1) != (name in MORE_IS_BETTER)
        changes.append(
            Change(
                at=places[at],
                ratio=found.ratio,
                low=found.low,
                high=found.high,
                p_value=p_value,
                verdict=(("improvement", "regression") if decides else ("faster", "slower"))[worse],
                machine_changed=differences[places[at]][1],
            )
        )
    return MetricSeries(levels=tuple(levels), changes=tuple(changes), values=values)


def _level(values: tuple[float, ...], earlier: tuple[float, ...]) -> Level:
    low, high = median_interval(sorted(values), ALPHA)
    level = Level(runs=len(values), median=float(np.median(values)), low=low, high=high)
    if not earlier:
        return level
    found = unpaired_ratio(earlier[-_NEAREST:], values[:_NEAREST])
    return replace(level, change=found.ratio, change_low=found.low, change_high=found.high)


def median_interval(ordered: Sequence[float], alpha: float) -> tuple[float | None, float | None]:
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
