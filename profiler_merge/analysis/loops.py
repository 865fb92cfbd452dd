"""The activity of each rank, from its spans: sets of times by kind, and where the time of each step went. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from traces.measures.intervals import Intervals
from traces.schema import NO_STEP, READING_WAITS, SPAN_KINDS, codes

_NO_STEPS = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankLoop:
    """The spans of one rank as sets of times.

    step, start_ns, end_ns: int64 (steps,), in order.
    wait, collective, checkpoint, compute: disjoint; an instant belongs to the first of the four that it is in.
    pipeline: input being produced, by other threads or by the loop itself (a wait of READING_WAITS).
    """

    step: np.ndarray = field(default_factory=lambda: _NO_STEPS)
    start_ns: np.ndarray = field(default_factory=lambda: _NO_STEPS)
    end_ns: np.ndarray = field(default_factory=lambda: _NO_STEPS)
    wait: Intervals = field(default_factory=Intervals)
    collective: Intervals = field(default_factory=Intervals)
    checkpoint: Intervals = field(default_factory=Intervals)
    compute: Intervals = field(default_factory=Intervals)
    pipeline: Intervals = field(default_factory=Intervals)

    @property
    def loop_ns(self) -> int:
        """From the start of the first step to the end of the last; 0 without steps."""
        return int(self.end_ns.max() - self.start_ns.min()) if len(self.step) else 0

    @property
    def steps_ns(self) -> np.ndarray:
        """Duration of each step."""
        durations: np.ndarray = self.end_ns - self.start_ns
        return durations


def rank_loops(spans: pa.Table) -> dict[int, RankLoop]:
    """The loop of each rank that has spans; the loops of other ranks are not known."""
    rank = spans["rank"].to_numpy()
    order = np.argsort(rank, kind="stable")
    columns = {name: spans[name].to_numpy()[order] for name in ("rank", "step", "start_ns", "end_ns")}
    kind = codes(spans, "kind")[order]
    produced = _produced(spans)[order]
    found = {}
    for number in np.unique(rank).tolist():
        rows = slice(*np.searchsorted(columns["rank"], [number, number + 1]).tolist())
        found[number] = _loop(
            kind[rows],
            columns["step"][rows].astype(np.int64),
            columns["start_ns"][rows],
            columns["end_ns"][rows],
            produced[rows],
        )
    return found


def _produced(spans: pa.Table) -> np.ndarray:
    """Mask of the spans in which input was produced: pipeline work, and waits in which the loop itself read."""
    kind = codes(spans, "kind")
    reading = pc.is_in(spans["name"], pa.array(READING_WAITS)).to_numpy()
    produced: np.ndarray = (kind == SPAN_KINDS.index("input_wait")) & reading
    return produced | (kind == SPAN_KINDS.index("pipeline"))


def _loop(kind: np.ndarray, step: np.ndarray, start: np.ndarray, end: np.ndarray, produced: np.ndarray) -> RankLoop:
    def times(mask: np.ndarray) -> Intervals:
        return Intervals.union_of(start[mask], end[mask])

    steps = np.flatnonzero((kind == SPAN_KINDS.index("step")) & (step != NO_STEP))
    steps = steps[np.argsort(start[steps], kind="stable")]
    wait, collective, checkpoint, compute = (
        times(kind == SPAN_KINDS.index(name)) for name in ("input_wait", "collective", "checkpoint", "compute")
    )
    collective = collective.minus(wait)
    checkpoint = checkpoint.minus(wait).minus(collective)
    return RankLoop(
        step=step[steps],
        start_ns=start[steps],
        end_ns=end[steps],
        wait=wait,
        collective=collective,
        checkpoint=checkpoint,
        compute=compute.minus(wait).minus(collective).minus(checkpoint),
        pipeline=times(produced),
    )
