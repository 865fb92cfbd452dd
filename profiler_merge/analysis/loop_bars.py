"""The training loop of each rank over time, from its spans, as bars for a picture."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dxt_replay.profiler_merge.analysis.bars import KEYS, Bars, apart_at, pair_keys, resolution_key, resolution_ns
from dxt_replay.profiler_merge.analysis.loops import RankLoop, rank_loops

KINDS = ("step", "compute", "input wait", "collective", "checkpoint", "evaluation", "pipeline")
"""Kinds of bars. All but step and pipeline are disjoint on a rank, as in `RankLoop`."""

MOST_BARS = 12_000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoopBars:
    """Bars of all training loops.

    tracks: bars by rank and kind. `operations` of a bar are the spans joined in it; the `offset` of a bar that is a
        single step is the step's number.
    resolution_ns: as of `LaneBars`.
    """

    resolution_ns: int
    tracks: dict[tuple[int, str], Bars]

    @property
    def bars(self) -> int:
        """Bars."""
        return sum(len(bars) for bars in self.tracks.values())


def loop_bars(spans: pa.Table, ranks: Collection[int], most_bars: int = MOST_BARS) -> LoopBars:
    """Bars of the spans of `ranks` (`SPANS_SCHEMA`), at most about `most_bars`."""
    single = {
        (rank, kind): bars
        for rank, loop in rank_loops(spans).items()
        if rank in ranks
        for kind, bars in _single(loop).items()
        if len(bars)
    }
    counts = np.zeros(KEYS, dtype=np.int64)
    for bars in single.values():
        counts += np.bincount(pair_keys(bars.start_ns, bars.end_ns), minlength=KEYS)
    key = resolution_key(counts, len(single), most_bars)
    return LoopBars(
        resolution_ns=resolution_ns(key),
        tracks={track: bars.joined(apart_at(bars.start_ns, bars.end_ns, key)) for track, bars in single.items()},
    )


def _single(loop: RankLoop) -> dict[str, Bars]:
    times = (loop.compute, loop.wait, loop.collective, loop.checkpoint, loop.evaluation, loop.pipeline)
    found = {
        kind: Bars.single({"start_ns": part.starts, "end_ns": part.ends})
        for kind, part in zip(KINDS[1:], times, strict=True)
    }
    return {KINDS[0]: Bars.single({"start_ns": loop.start_ns, "end_ns": loop.end_ns, "offset": loop.step}), **found}
