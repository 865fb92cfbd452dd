"""Reads the spans of an input pipeline: elements per step, and batches that wait for the loop. Pure."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from dxt_replay.replay.causal.training_loop import PIPELINE, TrainingLoop
from dxt_replay.traces.schema import codes

MIN_STEPS = 40
"""Least number of steps for counting elements per step: in fewer, the filling of buffers dominates."""

PRODUCERS = ("ParallelInterleaveProduce", "InterleaveProduce")
"""Spans of tf.data that end once per element of a stage that reads files, and once per file."""


def elements_per_step(spans: pa.Table, loop: TrainingLoop, files_per_step: float) -> dict[str, float]:
    """Name of a producing span -> elements that it made per step, in the middle half of the steps.

    `spans`: of one rank. `files_per_step`: files that the rank read to the end; the last span of a file makes no
    element.
    """
    ends = loop.fetch_ends_ns
    pipeline = codes(spans, "kind") == PIPELINE
    names, end_ns = np.array(spans["name"].to_pylist(), dtype=object), spans["end_ns"].to_numpy()
    found = {}
    for name in PRODUCERS:
        mine = np.sort(end_ns[pipeline & (names == name)])
        if len(ends) < MIN_STEPS or not len(mine):
            continue
        first, last = len(ends) // 4, 3 * len(ends) // 4
        had = np.searchsorted(mine, ends[[first, last]], side="right")
        found[name] = float(had[1] - had[0]) / (last - first) - files_per_step
    return found


def batches_ahead(loop: TrainingLoop) -> int | None:
    """Largest number of finished batches that waited for the loop; None if no span shows when a batch was made."""
    if not len(loop.made_end_ns):
        return None
    had = np.searchsorted(loop.made_end_ns, loop.fetch_ends_ns, side="right")
    return int((had - np.arange(1, len(had) + 1)).max(initial=0))
