"""A lane between its source and its recorder: what is read ahead, and what it tells of its progress."""

from __future__ import annotations

from typing import Any

import numpy as np

from dxt_replay.replay.engine.clock import StartGate, StopFlag
from dxt_replay.replay.engine.items import (
    MARK,
    PLAN_ROW,
    READ_AT,
    RING_BATCHES,
    SLEEP,
    Completed,
    LoopPace,
)
from dxt_replay.replay.run.feeder import FedLane, Feeder


class Ring:
    """A lane of the loop that does nothing by itself. `items_done`: as a test says."""

    done = False
    items_done = 0

    def __init__(self) -> None:
        self.queued: list[np.ndarray] = []
        self.finished = False

    def submit(self, items: np.ndarray) -> bool:
        if len(self.queued) == RING_BATCHES:
            return False
        self.queued.append(items)
        return True

    def finish(self) -> None:
        self.finished = True

    def collect(self) -> Completed | None:
        if not self.queued or self.items_done:
            return None
        items = self.queued.pop(0)
        none = np.zeros(len(items), dtype=np.int64)
        return Completed(items=items, due_ns=none, begin_ns=none, end_ns=none, result=none)


def plan_rows(due_ns: list[int], kinds: list[int] | None = None) -> np.ndarray:
    rows = np.zeros(len(due_ns), dtype=PLAN_ROW)
    rows["due_ns"], rows["kind"] = due_ns, kinds or READ_AT
    return rows


def fed(*batches: np.ndarray, record: Any = lambda done: None, record_items: int = 1) -> tuple[FedLane, Any, list[Any]]:
    ring, left = Ring(), list(batches)
    loop: Any = ring
    take = lambda: left.pop(0) if left else plan_rows([])  # noqa: E731
    return FedLane(loop, "0.0", take, record, record_items=record_items), ring, left


def reads(count: int) -> list[np.ndarray]:
    return [plan_rows([0])] * count


def test_results_are_recorded_together_and_the_rest_at_the_end() -> None:
    counts: list[int] = []
    lane, _, _ = fed(*reads(RING_BATCHES + 3), record=lambda done: counts.append(done.count), record_items=RING_BATCHES)
    lane.pump()
    lane.pump()
    lane.collect()
    assert counts == [RING_BATCHES]
    lane.collect(last=True)
    lane.collect(last=True)
    assert counts == [RING_BATCHES, 3]


def test_the_lag_is_that_of_the_next_operation() -> None:
    lane, ring, _ = fed(plan_rows([10, 20, 30]), plan_rows([40, 50]))
    lane.pump()
    gate = StartGate()
    gate.cell[0] = 100
    feeder = Feeder([lane], str.encode, gate, StopFlag(), LoopPace.ABSOLUTE, 5, 50)
    behind = []
    for ring.items_done in range(6):
        behind.append(feeder._progress(145).lag_ns)
    assert behind == [35, 25, 15, 5, 0, 0]


def test_waits_and_compute_are_not_operations_done() -> None:
    lane, ring, _ = fed(plan_rows([0] * 5, [MARK, READ_AT, SLEEP, READ_AT, MARK]))
    lane.pump()
    done = []
    for ring.items_done in range(6):
        done.append(lane.operations_done)
    assert done == [0, 0, 1, 1, 2, 2]
