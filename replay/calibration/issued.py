"""Issues requests through the replay's issue loop, one lane for each request in flight, and times them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from dxt_replay.replay.calibration.scratch import refused
from dxt_replay.replay.engine.clock import StartGate, StopFlag
from dxt_replay.replay.engine.issue import Files, Lane
from dxt_replay.replay.engine.items import BATCH_ITEMS, RING_BATCHES, LoopPace, loop_items
from dxt_replay.traces.units import NS_PER_MS

MAX_ITEMS = BATCH_ITEMS * RING_BATCHES
"""Most items of a lane."""

_AHEAD_NS = 12 * NS_PER_MS
"""Time until the start of the lanes, in which they wake and open their first files."""

_LOOK_S = 0.002


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LaneItems:
    """The items of one lane, see `loop_items`: arrays (n,), n up to MAX_ITEMS; a number stands for all n."""

    kind: np.ndarray | int
    slot: np.ndarray | int
    offset: np.ndarray | int = 0
    length: np.ndarray | int = 0
    pause_ns: int = 0
    count: int

    def batches(self) -> list[np.ndarray]:
        """The items in batches, `PLAN_ROW`."""
        items = loop_items(
            self.kind, self.slot, self.count, place=self.offset, amount=self.length, due_ns=self.pause_ns
        )
        return [items[at : at + BATCH_ITEMS] for at in range(0, self.count, BATCH_ITEMS)]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Issued:
    """The completed items of all lanes, in the order of their ends. Arrays (n,).

    kind: uint8. begin_ns, end_ns: int64, from the start of the lanes. length: int64, requested bytes.
    """

    kind: np.ndarray
    begin_ns: np.ndarray
    end_ns: np.ndarray
    length: np.ndarray

    def __len__(self) -> int:
        return len(self.kind)

    def of_kind(self, kind: int) -> Issued:
        """Only the items of one kind."""
        chosen = self.kind == kind
        columns = (self.kind, self.begin_ns, self.end_ns, self.length)
        return Issued(**dict(zip(self.__dataclass_fields__, (column[chosen] for column in columns), strict=True)))

    @property
    def latency_ns(self) -> np.ndarray:
        """Duration of each item, int64 (n,)."""
        return self.end_ns - self.begin_ns


def issue(files: Files, lanes: Sequence[LaneItems], *, seconds: float, doing: str, least: int = 0) -> Issued:
    """Let each lane issue its items for `seconds`, and at least `least` of them; then wait for those in flight.

    doing: for the error, such as "read below /scratch".
    Raises: TargetError where the file system refuses an item; KeyboardInterrupt and the like after the lanes ended.
    """
    gate, stop = StartGate(), StopFlag()
    # Pauses begin with the end of the item before, as under the pace `think`; without any, that is a closed loop.
    made = [Lane(files, pace=LoopPace.THINK, start=gate, stop=stop) for _ in lanes]
    threads = []
    try:
        for lane, items in zip(made, lanes, strict=True):
            for batch in items.batches():
                lane.submit(batch)
            lane.finish()
            threads.append(threading.Thread(target=lane.run, name="calibration", daemon=True))
            threads[-1].start()
        begin_ns = time.monotonic_ns() + _AHEAD_NS
        gate.open(begin_ns)
        until = begin_ns / 1e9 + seconds
        while any(thread.is_alive() for thread in threads) and (
            time.monotonic() < until or any(lane.items_done < least for lane in made)
        ):
            time.sleep(_LOOK_S)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    done = [completed for lane in made for completed in iter(lane.collect, None)]
    results = _joined(completed.result for completed in done)
    if len(results) and results.min() < 0:
        error = OSError(-int(results.min()), "")
        raise refused(error, doing) from error
    end_ns = _joined(completed.end_ns for completed in done)
    order = np.argsort(end_ns, kind="stable")
    return Issued(
        kind=_joined(completed.items["kind"][: completed.count] for completed in done)[order],
        begin_ns=_joined(completed.begin_ns for completed in done)[order],
        end_ns=end_ns[order],
        length=_joined(completed.items["_amount"][: completed.count] for completed in done)[order],
    )


def _joined(arrays: Iterable[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.empty(0, dtype=np.int64), *arrays])
