"""What each lane is executing and since when; names the call that hangs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from dxt_replay.replay.engine.files import FileSlot
from dxt_replay.replay.engine.items import NO_OPEN, OPENS, SLEEP, WAIT, LoopPace
from dxt_replay.replay.plan.plan_row import OPERATION_ROW
from dxt_replay.traces.schema import OPS
from dxt_replay.traces.text import printable
from dxt_replay.traces.units import format_count, ns_to_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The item that a lane is executing.

    `lane`: name of the lane, RANK.LANE.
    `in_call`: whether the lane is in a call: of an operation that was due, or of the open before one.
    `awaits`: whether it waits until other lanes have done something.
    `since_ns`: time since it began the item, ns.
    `item`: description of the item for the user.
    """

    lane: str
    in_call: bool
    awaits: bool = False
    since_ns: int
    item: str

    def __str__(self) -> str:
        rank, _, lane = self.lane.partition(".")
        return f"rank {rank}, lane {lane} has been in {self.item} for {ns_to_seconds(self.since_ns):.1f} s"


def standing_of(
    lane: str,
    row: np.ndarray,
    slots: Sequence[FileSlot],
    *,
    opening: int,
    last_end_ns: int,
    now_ns: int,
    t0_ns: int,
    pace: LoopPace,
) -> Standing:
    """The standing of a lane whose next item is `row` (a `PLAN_ROW`) and whose previous item ended at `last_end_ns`.

    All times in ns of CLOCK_MONOTONIC. `opening`: see `Lane.opening`.
    """
    if opening != NO_OPEN:
        item = f"the open before {_operation(row, slots)}" if opening == OPENS else "a wait for another lane's open"
        return Standing(lane=lane, in_call=opening == OPENS, since_ns=max(0, now_ns - last_end_ns), item=item)
    counted_from_ns = {LoopPace.ABSOLUTE: t0_ns, LoopPace.THINK: last_end_ns}
    begun_ns = last_end_ns if pace is LoopPace.NONE else max(last_end_ns, counted_from_ns[pace] + int(row["due_ns"]))
    kind = int(row["kind"])
    item = _operation(row, slots) if kind < SLEEP else "a wait for other lanes" if kind == WAIT else "its compute"
    return Standing(
        lane=lane,
        in_call=kind < SLEEP and now_ns > begun_ns,
        awaits=kind == WAIT,
        since_ns=max(0, now_ns - begun_ns),
        item=item,
    )


def _operation(row: np.ndarray, slots: Sequence[FileSlot]) -> str:
    operation = row.view(OPERATION_ROW)
    op = OPS[int(operation["op"])]
    what = f"its {op} of {printable(slots[int(operation['slot'])].path)}"
    if op not in ("read", "write"):
        return what
    return f"{what} (offset {int(operation['offset'])}, {format_count(int(operation['length']))} bytes)"


def hung(standings: Iterable[Standing | None]) -> tuple[int, str] | None:
    """Duration of the longest running operation, ns, and a sentence about it; None without one."""
    calls = sorted((found for found in standings if found is not None and found.in_call), key=lambda at: -at.since_ns)
    if not calls:
        return None
    others = f", and {format_count(len(calls) - 1)} other lanes are in one" if len(calls) > 1 else ""
    return calls[0].since_ns, f"{calls[0]}{others}"


def stuck(standings: Sequence[Standing | None], for_ns: int) -> str | None:
    """A sentence if all lanes have waited for each other for `for_ns`, so that none of them can ever go on; else None.

    standings: of all lanes of the run that have not ended; None for one that its feeder has not filled.
    """
    if not standings or not all(at is not None and at.awaits and at.since_ns >= for_ns for at in standings):
        return None
    return (
        f"{format_count(len(standings))} lanes wait for each other: the causal model contradicts itself. "
        "Replay with --pace timed or think, which need no model"
    )
