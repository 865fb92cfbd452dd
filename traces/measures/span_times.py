"""Spans of a capture as times: the union of one kind per rank, and the durations of steps."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from traces.measures.intervals import Intervals
from traces.schema import NO_STEP, RECONSTRUCTED, SPAN_KINDS, codes


def union_by_rank(spans: pa.Table, kind: str) -> dict[int, Intervals]:
    """Times in which a rank was in at least one span of `kind` (of `SPAN_KINDS`); ranks without any are absent."""
    return {rank: Intervals.union_of(starts, ends) for rank, _, starts, ends in spans_by_rank(spans, kind)}


def whole_steps(spans: pa.Table) -> pa.Table:
    """The rows that are training steps: those of kind `step` with a number. A step that the window of a part cuts has
    none (`traces.part`): it would look fast."""
    step = spans["step"].to_numpy()
    return spans.filter(pa.array((codes(spans, "kind") == SPAN_KINDS.index("step")) & (step != NO_STEP)))


def extended_steps(spans: pa.Table) -> tuple[int, int]:
    """(extended, all) steps of the rank with most extended ones: those were not profiled, but inferred from the reads
    and from the profiled steps."""
    table = whole_steps(spans)
    valid = table["origin"].is_valid()
    known = table.filter(valid)
    ranks = known["rank"].to_numpy()[codes(known, "origin") == RECONSTRUCTED]
    if not len(ranks):
        return 0, 0
    counts = np.bincount(ranks)
    most = int(np.argmax(counts))
    return int(counts[most]), int((table["rank"].to_numpy() == most).sum())


def spans_by_rank(spans: pa.Table, kind: str) -> Iterator[tuple[int, np.ndarray, np.ndarray, np.ndarray]]:
    """For each rank that has spans of `kind`: rank, and columns step, start_ns, end_ns in start order."""
    chosen = codes(spans, "kind") == SPAN_KINDS.index(kind)
    rank, step, start, end = (spans[name].to_numpy()[chosen] for name in ("rank", "step", "start_ns", "end_ns"))
    order = np.lexsort((start, rank))
    rank, step, start, end = rank[order], step[order], start[order], end[order]
    cuts = np.flatnonzero(np.diff(rank)) + 1
    for begin, stop in zip([0, *cuts.tolist()], [*cuts.tolist(), len(rank)], strict=True):
        if stop > begin:
            yield int(rank[begin]), step[begin:stop], start[begin:stop], end[begin:stop]
