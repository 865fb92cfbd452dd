"""The items of the lanes of a capture as its causal model gives them, for tests that schedule them by themselves."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dxt_replay.replay.causal.causal_items import RankCounters
from dxt_replay.replay.causal.paced_ranks import Steps, rank_batches
from dxt_replay.replay.plan.pacing import Pacing
from dxt_replay.replay.plan.plan_row import OPERATION_ROW, PLAN_ROW
from dxt_replay.traces.store.reader import Capture


def lane_items(
    capture: Capture, steps: Steps, rank: int, counters: RankCounters, pacing: Pacing
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Lane, items, and the length of each item in bytes, of the lanes of a rank."""
    causal = steps.lanes(rank, counters, pacing)
    parts: dict[int, list[np.ndarray]] = {}
    for batch in rank_batches(capture, rank, steps.surveys[rank].layers):
        rows = np.zeros(len(batch.lane), dtype=PLAN_ROW)
        rows.view(OPERATION_ROW)["length"] = batch.length
        for lane, items, _ in causal.split(rows, batch):
            parts.setdefault(lane, []).append(items)
    for lane, made in parts.items():
        items = np.concatenate(made)
        yield lane, items, items.view(OPERATION_ROW)["length"]
