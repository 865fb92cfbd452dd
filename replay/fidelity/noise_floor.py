"""The noise of each distance, from two runs of the same job, and the limits that it allows. Pure.

A replay need not be nearer to a run of the application than another run is. The floor of a measure is its worst value
over all pairs of runs. If a limit is stricter than the floor, the floor replaces it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dxt_replay.replay.fidelity.compare import Comparison
    from dxt_replay.replay.fidelity.exactness import Exactness
    from dxt_replay.replay.fidelity.storage import Change
    from dxt_replay.replay.fidelity.workload_verdict import Thresholds

SIMILARITIES = frozenset({"similarity.cosine", "similarity.workload_cosine"})
"""Measures where more is better; all others are distances."""

_RELAXED_BY = {
    "similarity": "similarity.workload_cosine",
    "fail_under": "similarity.cosine",
    "elapsed_error_pct": "timing.elapsed_error_pct",
    "drift_ppm": "timing.drift_ppm",
    "storage_pct": "storage.io_time_s",
}
"""Field of `Thresholds` -> the measure whose floor relaxes it."""

_EXACT = {name: f"exact.{name}_pct" for name in ("operations", "bytes", "files", "order")}
_ROUNDING = 1e-9
"""Relative difference that the order of a sum can make."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaxed:
    """A limit that the floor relaxed: the `asked` limit, and the `allowed` one."""

    limit: str
    asked: float
    allowed: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseFloor:
    """The worst value of each measure over pairs of runs of one job.

    pairs: the names of the captures of each pair.
    measures: name -> value, None where no pair has one; names and units are those of `measured`.
    """

    pairs: tuple[tuple[str, str], ...]
    measures: Mapping[str, float | None]

    def as_json(self) -> dict[str, Any]:
        """The object that `dxt-replay compare --floor A B --json` prints."""
        return {"pairs": [list(pair) for pair in self.pairs], "measures": dict(self.measures)}

    def allows(self, name: str, value: float | None) -> bool | None:
        """Whether a value of a measure is within the floor; None where either is not known."""
        floor = self.measures.get(name)
        if value is None or floor is None:
            return None
        slack = _ROUNDING * max(abs(floor), abs(value))
        return value >= floor - slack if name in SIMILARITIES else value <= floor + slack

    def relaxed(self, thresholds: Thresholds) -> tuple[Thresholds, tuple[Relaxed, ...]]:
        """The thresholds with no limit stricter than the floor, and those that were relaxed."""
        changed = []
        for limit, name in _RELAXED_BY.items():
            asked, floor = getattr(thresholds, limit), self.measures.get(name)
            if asked is None or floor is None:
                continue
            allowed = min(asked, floor) if name in SIMILARITIES else max(asked, floor)
            if allowed != asked:
                changed.append(Relaxed(limit=limit, asked=asked, allowed=allowed))
        return dataclasses.replace(thresholds, **{each.limit: each.allowed for each in changed}), tuple(changed)

    def excuses(self, exact: Exactness) -> tuple[str, ...]:
        """Those of operations, bytes, files and order that differ no more than between two runs.

        None when operations failed: what failed in a replay is not noise.
        """
        if exact.failed:
            return ()
        return tuple(name for name in exact.unequal_names if self.allows(_EXACT[name], _exact_pct(exact, name)))


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureBesideFloor:
    """One measure of a comparison: its `value`, the `floor`, and whether the value is `within` it; None: not known."""

    value: float | None
    floor: float | None
    within: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FloorResult:
    """Effect of a noise floor on a comparison.

    pairs: of `NoiseFloor`.
    measures: name -> the measure beside its floor.
    relaxed: the limits that the floor relaxed.
    excused: those of operations, bytes, files and order that differ no more than between two runs.
    """

    pairs: tuple[tuple[str, str], ...]
    measures: Mapping[str, MeasureBesideFloor]
    relaxed: tuple[Relaxed, ...]
    excused: tuple[str, ...]


def worst(pairs: Iterable[tuple[tuple[str, str], Comparison]]) -> NoiseFloor:
    """The floor of several pairs: their names, and the comparison of each."""
    names, found = [], []
    for pair, comparison in pairs:
        names.append(pair)
        found.append(measured(comparison))
    measures: dict[str, float | None] = {}
    for name in dict.fromkeys(name for each in found for name in each):
        known = [value for each in found if (value := each.get(name)) is not None]
        measures[name] = (min if name in SIMILARITIES else max)(known, default=None)
    return NoiseFloor(pairs=tuple(names), measures=measures)


def beside(comparison: Comparison, floor: NoiseFloor, relaxed: tuple[Relaxed, ...]) -> FloorResult:
    """Every measure of a comparison beside its floor."""
    return FloorResult(
        pairs=floor.pairs,
        measures={
            name: MeasureBesideFloor(value=value, floor=floor.measures.get(name), within=floor.allows(name, value))
            for name, value in measured(comparison).items()
        },
        relaxed=relaxed,
        excused=floor.excuses(comparison.exact),
    )


def measured(comparison: Comparison) -> dict[str, float | None]:
    """Every similarity and distance of a comparison, without sign: 0 is alike, but for SIMILARITIES, where 1 is.

    `exact.*`: `Unequal`. `factors.*`: difference in per cent of the larger side. `storage.*`: how many per cent more
    the larger side has. `overlap`: percentage points. `.wasserstein`: bytes for sizes, else us. The others as named.
    """
    alike, timing = comparison.similarity, comparison.timing
    steps = timing.step_error_pct
    overlap = comparison.overlap
    both = overlap.source_pct, overlap.replay_pct
    return {
        "similarity.cosine": alike.cosine,
        "similarity.workload_cosine": alike.workload_cosine,
        **{name: _exact_pct(comparison.exact, kind) for kind, name in _EXACT.items()},
        "exact.inversions_pct": comparison.exact.unequal.inversions_pct,
        **{f"factors.{name}": _size(factor.difference, 100, missing=0.0) for name, factor in alike.factors.items()},
        **{
            f"distribution.{of}.{kind}": getattr(getattr(comparison.distribution, of), kind)
            for of in ("transfer_size", "inter_arrival", "latency")
            for kind in ("ks", "wasserstein")
        },
        "timing.elapsed_error_pct": _size(timing.elapsed_error_pct),
        "timing.drift_ppm": _size(timing.drift_ppm),
        "timing.step_error_pct.p50": None if steps is None else steps.p50,
        "timing.step_error_pct.max": None if steps is None else steps.max,
        "overlap.difference_pct": None if None in both else abs((both[0] or 0.0) - (both[1] or 0.0)),
        "curves.in_flight_pct": comparison.curves.in_flight_pct,
        "curves.bandwidth_pct": comparison.curves.bandwidth_pct,
        **{
            f"storage.{name}": _change_pct(getattr(comparison.storage, name))
            for name in ("io_time_s", "latency_p50_us", "latency_p99_us", "bandwidth_mib_s")
        },
    }


def _size(value: float | None, scale: float = 1, missing: float | None = None) -> float | None:
    return missing if value is None else abs(scale * value)


def _exact_pct(exact: Exactness, name: str) -> float:
    found: float = getattr(exact.unequal, f"{name}_pct")
    return found


def _change_pct(change: Change | None) -> float | None:
    """By how many per cent the larger side is larger, as `Thresholds.storage_pct`."""
    if change is None or not change.ratio or not math.isfinite(change.ratio):
        return None
    return 100 * (max(change.ratio, 1 / change.ratio) - 1)
