"""The noise of each distance, from two runs of the same job, and the limits that it allows.

A replay need not be nearer to a run of the application than another run is. The floor of a measure is its worst value
over all pairs of runs. If a limit is stricter than the floor, the floor replaces it.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.plain import Result
from dxt_replay.traces.records import replay_record
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.store.relation import Relation, relation_of

if TYPE_CHECKING:
    from dxt_replay.replay.compare.comparison import Comparison
    from dxt_replay.replay.compare.exactness import Exactness
    from dxt_replay.replay.compare.verdict import Change, Thresholds

SIMILARITIES = frozenset({"similarity.cosine", "similarity.workload_cosine"})
"""Measures where more is better; all others are distances."""

_RELAXED_BY = {
    "similarity": ("similarity.workload_cosine",),
    "fail_under": ("similarity.cosine",),
    "elapsed_error_pct": ("timing.elapsed_error_pct",),
    "drift_ppm": ("timing.drift_ppm",),
    "storage_pct": ("storage.io_time_s", "storage.metadata_time_s"),
}
"""Field of `Thresholds` -> the measures whose floors relax it."""

_ROUNDING = 1e-9
"""Relative difference that the order of a sum can make."""

_LEAST_COMMON_PATHS, _LEAST_COMMON_NAMES = 0.5, 0.9
"""Shares of the operations that two runs of one job have in common at least: by the paths of their files, or, where the
data lie in another place, by their names; any number in a name counts as the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaxed:
    """A limit that the floor relaxed: the `asked` limit, and the `allowed` one."""

    limit: str
    asked: float
    allowed: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseFloor(Result):
    """The worst value of each measure over pairs of runs of one job; None where no pair has one. Names and units are
    those of `measured`."""

    pairs: tuple[tuple[str, str], ...]
    measures: Mapping[str, float | None]

    def as_json(self) -> dict[str, Any]:
        return {"pairs": [list(pair) for pair in self.pairs], "measures": dict(self.measures)}

    def allows(self, name: str, value: float | None) -> bool | None:
        """Whether a value of a measure is within the floor; None where either is not known."""
        floor = self.measures.get(name)
        if value is None or floor is None:
            return None
        slack = _ROUNDING * max(abs(floor), abs(value))
        return value >= floor - slack if name in SIMILARITIES else value <= floor + slack

    def relaxed(
        self, thresholds: Thresholds, exact: Exactness
    ) -> tuple[Thresholds, tuple[Relaxed, ...], tuple[str, ...]]:
        """The thresholds with no limit stricter than the floor, those that were relaxed, and those of operations,
        bytes, files and order that need not be equal. What failed in a replay is not noise."""
        changed = []
        for limit, names in _RELAXED_BY.items():
            asked, floors = getattr(thresholds, limit), [self.measures.get(name) for name in names]
            if asked is not None:
                worst = min if names[0] in SIMILARITIES else max
                allowed = worst([asked, *(floor for floor in floors if floor is not None)])
                if allowed != asked:
                    changed.append(Relaxed(limit=limit, asked=asked, allowed=allowed))
        limits = dataclasses.replace(thresholds, **{each.limit: each.allowed for each in changed})
        excused = (
            name
            for name in exact.unequal_names
            if not exact.failed and self.allows(f"exact.{name}_pct", getattr(exact.unequal, f"{name}_pct"))
        )
        return limits, tuple(changed), tuple(excused)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureBesideFloor:
    """One measure of a comparison; None: not known."""

    value: float | None
    floor: float | None
    within: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FloorResult:
    """Effect of a noise floor on a comparison; `schemas/compare.json` explains it."""

    pairs: tuple[tuple[str, str], ...]
    measures: Mapping[str, MeasureBesideFloor]
    relaxed: tuple[Relaxed, ...]
    excused: tuple[str, ...]


def beside(
    found: Mapping[str, float | None], floor: NoiseFloor, relaxed: tuple[Relaxed, ...], excused: tuple[str, ...]
) -> FloorResult:
    """Every measure of a comparison (`measured`) beside its floor."""
    measures = {
        name: MeasureBesideFloor(value=value, floor=floor.measures.get(name), within=floor.allows(name, value))
        for name, value in found.items()
    }
    return FloorResult(pairs=floor.pairs, measures=measures, relaxed=relaxed, excused=excused)


def worst_of(found: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    """The worst value of each measure over several comparisons; None where none has one."""
    known = {name: [value for each in found if (value := each[name]) is not None] for name in found[0]}
    return {name: (min if name in SIMILARITIES else max)(values, default=None) for name, values in known.items()}


def measured(comparison: Comparison) -> dict[str, float | None]:
    """Every similarity and distance of a comparison, without sign: 0 is alike, but for SIMILARITIES, where 1 is.

    `exact.*`: `Unequal`. `factors.*`: difference in per cent of the larger side. `storage.*`: how many per cent more
    the larger side has. `overlap`: percentage points. `.wasserstein`: bytes for sizes, else us. The others as named.
    """
    alike, timing, storage = comparison.similarity, comparison.timing, comparison.storage
    exact, steps, overlap = comparison.exact.unequal, timing.step_error_pct, comparison.overlap
    both = overlap.source_pct, overlap.replay_pct
    distances = comparison.distribution
    return {
        "similarity.cosine": alike.cosine,
        "similarity.workload_cosine": alike.workload_cosine,
        **{f"exact.{name}": getattr(exact, name) for name in exact.__slots__},
        **{f"factors.{name}": 100 * abs(factor.difference or 0.0) for name, factor in alike.factors.items()},
        **{
            f"distribution.{of}.{kind}": getattr(getattr(distances, of), kind)
            for of in ("transfer_size", "inter_arrival", "latency")
            for kind in ("ks", "wasserstein")
        },
        "timing.elapsed_error_pct": None if timing.elapsed_error_pct is None else abs(timing.elapsed_error_pct),
        "timing.drift_ppm": None if timing.drift_ppm is None else abs(timing.drift_ppm),
        "timing.step_error_pct.p50": None if steps is None else steps.p50,
        "timing.step_error_pct.max": None if steps is None else steps.max,
        "overlap.difference_pct": None if None in both else abs((both[0] or 0.0) - (both[1] or 0.0)),
        "curves.in_flight_pct": comparison.curves.in_flight_pct,
        "curves.bandwidth_pct": comparison.curves.bandwidth_pct,
        **{
            f"storage.{name}": _change_pct(getattr(storage, name))
            for name in ("io_time_s", "metadata_time_s", "latency_p50_us", "latency_p99_us", "bandwidth_mib_s")
        },
    }


def _change_pct(change: Change | None) -> float | None:
    """By how many per cent the larger side is larger, as `Thresholds.storage_pct`."""
    if change is None or not change.ratio or not math.isfinite(change.ratio):
        return None
    return 100 * (max(change.ratio, 1 / change.ratio) - 1)


def check_paces(floor: Sequence[tuple[Capture, Capture]], replay: Capture) -> None:
    """Replays at another pace or speed say nothing about the noise of this one. Raises: UsageError; CaptureError."""
    for run in (run for pair in floor for run in pair):
        if None not in (_pace(run), _pace(replay)) and _pace(run) != _pace(replay):
            raise UsageError(
                f"{run.named} was replayed with {_pace(run)}, {replay.named} with {_pace(replay)}: a noise floor "
                "needs replays that were made alike"
            )


def check_pair(first: Capture, second: Capture) -> Relation:
    """The relation of the two runs. Raises: UsageError when they are not two runs of one job."""
    relation = relation_of(first, second)
    if relation is Relation.SAME:
        raise UsageError(f"{second.named} is the same run as {first.named}: a noise floor needs two runs")
    if relation in (Relation.REPLAY, Relation.REVERSED):
        replay, run = (second, first) if relation is Relation.REPLAY else (first, second)
        raise UsageError(
            f"{replay.named} replays {run.named}, so the two do not show noise: give two runs of the application, or "
            "two replays"
        )
    check_paces([(first, first)], second)
    if _pace(first) != _pace(second):
        replay, run = (first, second) if _pace(second) is None else (second, first)
        raise UsageError(f"{replay.named} is a replay and {run.named} is not: a noise floor needs two of a kind")
    check_job(first, second)
    return relation


def _pace(capture: Capture) -> str | None:
    record = replay_record(capture.info, capture.path / "capture.json")
    return None if record is None else f"--pace {record.pace} --speed {record.speed:g}"


def check_job(first: Capture, second: Capture) -> None:
    """Raises: UsageError when the two are not runs of one job."""
    if relation_of(first, second) is not Relation.DIFFERENT:
        return
    remedy = "a noise floor needs runs of the same job"
    if first.ranks != second.ranks:
        counts = " and ".join(f"{run.named} has {len(run.ranks)} ranks" for run in (first, second))
        raise UsageError(f"{counts}: {remedy}")
    paths = _common(first, second, str)
    names = _common(first, second, lambda path: path.rsplit("/", 1)[-1])
    if paths < _LEAST_COMMON_PATHS and names < _LEAST_COMMON_NAMES:
        share = f"{100 * names:.0f} %"
        raise UsageError(
            f"{first.named} and {second.named} have {share} of their operations on files of the same names: {remedy}"
        )


def _common(first: Capture, second: Capture, part_of: Callable[[str], str]) -> float:
    """Share of the operations of the larger side on files that both have, 0 to 1; `part_of` their paths is compared."""
    found = []
    for capture in (first, second):
        names = [re.sub(r"\d+", "0", part_of(path)) for path in capture.paths()]
        operations: Counter[str] = Counter()
        for usage in capture.usages():
            for file, count in zip(usage["file_id"].to_pylist(), usage["operations"].to_pylist(), strict=True):
                operations[names[file]] += count
        found.append(operations)
    most = max(each.total() for each in found)
    return (found[0] & found[1]).total() / most if most else 0.0
