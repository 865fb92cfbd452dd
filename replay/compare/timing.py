"""Compares the times of a replay with its source: elapsed time, drift, steps, lag. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from dxt_replay.traces.measures.span_times import spans_by_rank, whole_steps
from dxt_replay.traces.paces import Pace
from dxt_replay.traces.records import ReplayRecord, percentiles_us
from dxt_replay.traces.schema import codes
from dxt_replay.traces.units import NS_PER_S

if TYPE_CHECKING:
    from dxt_replay.replay.compare.measures import Side

KEEPS_TIMES = "timed"
"""The pace that is judged by the recorded times; under the others the storage decides the times."""
CLOSED_LOOP = tuple(pace.value for pace in Pace if pace.is_closed_loop)
"""Paces under which the storage decides how long the whole run takes."""

OF_TRAINING = tuple(pace.value for pace in Pace if pace.follows_training)

DRIFT_BINS = 20
MIN_DRIFT_BINS = 5
_CONFIDENCE = 1.959963984540054
"""Two-sided 95 % of a normal distribution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepError:
    """|replay - source| / source of the duration of the same step on the same rank, in per cent, over `steps`."""

    p50: float
    max: float
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Times of both sides; None where unknown.

    `source_elapsed_s`, `replay_elapsed_s`: from the begin of the first event to the end of the last. If the recorded
    times are kept, the last read or write counts only to its begin: its duration belongs to the storage.
    `elapsed_error_pct`: of the replay against source / speed. `lag_us`: of begin - due in the replay; `jitter_us`: that
    the machine itself causes.
    """

    source_elapsed_s: float
    replay_elapsed_s: float
    elapsed_error_pct: float | None
    drift_ppm: float | None
    drift_interval_ppm: tuple[float, float] | None
    step_error_pct: StepError | None
    lag_us: Mapping[str, float] | None
    jitter_us: Mapping[str, float] | None

    @classmethod
    def of(
        cls,
        sides: tuple[Side, Side],
        starts: tuple[np.ndarray, np.ndarray],
        record: ReplayRecord | None,
        *,
        kept_times: bool,
    ) -> Timing:
        """`sides`: source and replay. `starts`: those of the same operations. `kept_times`: whether the pace is that of
        the recorded times, which a capture without a pace stands for too."""
        pace, speed = (record.pace, record.speed) if record is not None else (None, 1.0)
        tables = [side.capture.spans for side in sides]
        # A replay has only some kinds of spans: elapsed time must mean the same on both sides.
        kinds = np.intersect1d(codes(tables[0], "kind"), codes(tables[1], "kind"))
        source_ns, replay_ns = (
            _elapsed_ns(side.limits_ns, spans.filter(np.isin(codes(spans, "kind"), kinds)), to_begin=kept_times)
            for side, spans in zip(sides, tables, strict=True)
        )
        slope = drift(*starts, speed) if pace in (None, KEEPS_TIMES, *CLOSED_LOOP) else None
        return cls(
            source_elapsed_s=source_ns / NS_PER_S,
            replay_elapsed_s=replay_ns / NS_PER_S,
            elapsed_error_pct=100 * (replay_ns * speed - source_ns) / source_ns if source_ns else None,
            drift_ppm=slope[0] if slope else None,
            drift_interval_ppm=slope[1:] if slope else None,
            step_error_pct=step_error(tables[0], tables[1], speed),
            lag_us=percentiles_us(sides[1].lateness.lag.distribution()),
            jitter_us=record.jitter_us if record is not None else None,
        )


def _elapsed_ns(limits: tuple[int, int, int] | None, spans: pa.Table, *, to_begin: bool) -> int:
    """`limits`: first start, last start and last end. `to_begin`: the duration of the last operation belongs to the
    storage, and a timed replay must not fail because it was faster."""
    known = [] if limits is None else [(limits[0], limits[1 if to_begin else 2])]
    if spans.num_rows:
        known.append((int(spans["start_ns"].to_numpy().min()), int(spans["end_ns"].to_numpy().max())))
    return max(last for _, last in known) - min(first for first, _ in known) if known else 0


def drift(
    source_start_ns: np.ndarray, replay_start_ns: np.ndarray, speed: float = 1.0
) -> tuple[float, float, float] | None:
    """Slope of (replay start - source start / speed) over the source's time, for matched operations (int64 ns, n): how
    much faster (negative) or slower the replay's clock ran, in parts per million, and its 95 % interval.

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
    x = np.array([np.median(time[place == stretch]) for stretch in used])
    y = np.array([np.median(error[place == stretch]) for stretch in used])
    first, second = np.triu_indices(len(x), k=1)
    slopes = np.sort((y[second] - y[first]) / (x[second] - x[first])) * 1e6
    spread = _CONFIDENCE * math.sqrt(len(x) * (len(x) - 1) * (2 * len(x) + 5) / 18)
    low = max(math.floor((len(slopes) - spread) / 2), 0)
    high = min(math.ceil((len(slopes) + spread) / 2), len(slopes) - 1)
    return float(np.median(slopes)), float(slopes[low]), float(slopes[high])


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


def relative_difference_pct(source: np.ndarray, replay: np.ndarray) -> float | None:
    """Sum of |source - replay| over the bins of two curves, in per cent of the source's; None where that is 0."""
    bins = max(len(source), len(replay))
    here, there = (np.pad(curve, (0, bins - len(curve))) for curve in (source, replay))
    total = here.sum()
    return float(100 * np.abs(here - there).sum() / total) if total > 0 else None
