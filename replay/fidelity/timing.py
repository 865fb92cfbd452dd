"""Compares the times of a replay with its source: elapsed time, drift, steps. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dxt_replay.traces.measures.span_times import spans_by_rank, whole_steps
from dxt_replay.traces.schema import SPAN_KINDS, codes

DRIFT_BINS = 20
MIN_DRIFT_BINS = 5
_CONFIDENCE = 1.959963984540054
"""Two-sided 95 % of a normal distribution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """How much faster (negative) or slower the replay's clock ran, in parts per million, with its 95 % interval."""

    ppm: float
    low_ppm: float
    high_ppm: float


def drift(source_start_ns: np.ndarray, replay_start_ns: np.ndarray, speed: float = 1.0) -> Drift | None:
    """Slope of (replay start - source start / speed) over the source's time, for matched operations (int64 ns, n).

    Theil-Sen over the medians of 20 equal stretches of time, so that single late operations do not count (Sen, JASA 63,
    1968, also for the interval). None where fewer than five stretches hold operations: no slope can be measured then.
    """
    if not len(source_start_ns):
        return None
    time = (source_start_ns - source_start_ns.min()) / speed
    error = (replay_start_ns - replay_start_ns.min()) - time
    width = time.max() / DRIFT_BINS
    if width <= 0:
        return None
    place = np.minimum((time / width).astype(np.int64), DRIFT_BINS - 1)
    used = np.unique(place)
    if len(used) < MIN_DRIFT_BINS:
        return None
    times = np.array([np.median(time[place == stretch]) for stretch in used])
    errors = np.array([np.median(error[place == stretch]) for stretch in used])
    return _theil_sen(times, errors)


def _theil_sen(x: np.ndarray, y: np.ndarray) -> Drift:
    first, second = np.triu_indices(len(x), k=1)
    slopes = np.sort((y[second] - y[first]) / (x[second] - x[first])) * 1e6
    spread = _CONFIDENCE * math.sqrt(len(x) * (len(x) - 1) * (2 * len(x) + 5) / 18)
    low = max(math.floor((len(slopes) - spread) / 2), 0)
    high = min(math.ceil((len(slopes) + spread) / 2), len(slopes) - 1)
    return Drift(ppm=float(np.median(slopes)), low_ppm=float(slopes[low]), high_ppm=float(slopes[high]))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepError:
    """|replay - source| / source of the duration of the same step on the same rank, in per cent, over `steps`."""

    p50: float
    max: float
    steps: int


def step_error(source: pa.Table, replay: pa.Table, speed: float = 1.0) -> StepError | None:
    """Compare the step spans of two spans tables; None where they have none in common."""
    recorded, replayed = _step_durations(source), _step_durations(replay)
    pairs = [(recorded[key] / speed, replayed[key]) for key in recorded.keys() & replayed.keys() if recorded[key] > 0]
    if not pairs:
        return None
    expected, found = np.array(pairs, dtype=np.float64).T
    errors = 100 * np.abs(found - expected) / expected
    return StepError(p50=float(np.median(errors)), max=float(errors.max()), steps=len(errors))


def _step_durations(spans: pa.Table) -> dict[tuple[int, int], int]:
    """Duration in ns by (rank, step). Steps of a rank count as they come where a number comes twice."""
    durations: dict[tuple[int, int], int] = {}
    for rank, step, starts, ends in spans_by_rank(whole_steps(spans), "step"):
        numbered = len(np.unique(step)) == len(step)
        names = step.tolist() if numbered else range(len(step))
        durations |= {(rank, name): length for name, length in zip(names, (ends - starts).tolist(), strict=True)}
    return durations


def span_limits(spans: pa.Table, kinds: set[str]) -> tuple[int, int] | None:
    """First start and last end of the spans of `kinds` (ns); None without any."""
    chosen = np.isin(codes(spans, "kind"), [SPAN_KINDS.index(kind) for kind in kinds])
    if not chosen.any():
        return None
    return int(spans["start_ns"].to_numpy()[chosen].min()), int(spans["end_ns"].to_numpy()[chosen].max())


def span_kinds(spans: pa.Table) -> set[str]:
    """Kinds of the spans in the table."""
    return {SPAN_KINDS[code] for code in np.unique(codes(spans, "kind")).tolist()}
