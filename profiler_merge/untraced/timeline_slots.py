"""Places rows without a recorded time into the gaps between the known events of their file. Pure.

The *events* of a file are its traced operations, and the opens and closes whose times the counters give. The gap before
an event, and the one after the last, is a *slot*. Rows in a slot are placed at its beginning (if they belong to the
previous event) or at its end, in a given order, and are shortened together if the slot is too short.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dxt_replay.traces.stable_order import places_in_groups, runs

OPEN_EVENT, OPERATION, CLOSE_EVENT = range(3)
"""Kinds of event; events that start together come in this order."""

AT_BEGIN, AT_END = range(2)
"""Side of its slot at which a row is placed."""

_RANKS = 16
_OPEN_ENDED = int(np.iinfo(np.int64).min)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Events:
    """Events sorted by (file, start); int64 (n,). `of_operation`: row of each operation in here, by its number.

    Slot p < n is the gap before event p, slot n + f the one after the last event of file f. `base`, by file: the first
    event of its process, from which the events of a process are numbered.
    """

    file: np.ndarray
    start: np.ndarray
    end: np.ndarray
    kind: np.ndarray
    of_operation: np.ndarray
    of_pin: np.ndarray
    base: np.ndarray

    @classmethod
    def of(
        cls, operations: tuple[np.ndarray, ...], pins: tuple[np.ndarray, ...], process: np.ndarray | None = None
    ) -> Events:
        """From (file, start, end) of operations and (file, start, end, kind) of recorded opens and closes.

        `process`: of each file, ascending; None where all are of one.
        """
        file, start, end = (np.concatenate(pair) for pair in zip(operations, pins[:3], strict=True))
        kind = np.concatenate((np.full(len(operations[0]), OPERATION), pins[3]))
        order = np.lexsort((kind, start, file))
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        cut = len(operations[0])
        process = np.zeros(int(file.max(initial=-1)) + 1, dtype=np.int64) if process is None else process
        return cls(
            file=file[order],
            start=start[order],
            end=end[order],
            kind=kind[order],
            of_operation=place[:cut],
            of_pin=place[cut:],
            base=np.searchsorted(file[order], np.searchsorted(process, process)),
        )

    def __len__(self) -> int:
        """Number of events."""
        return len(self.file)

    def slot_after(self, event: np.ndarray) -> np.ndarray:
        """The slot that begins at the end of each event."""
        following = event + 1
        inside = following < len(self)
        same = inside & (self.file[np.minimum(following, max(len(self) - 1, 0))] == self.file[event])
        return np.where(same, following, len(self) + self.file[event])

    def order_of_events(self, event: np.ndarray) -> np.ndarray:
        """Numbers that sort events and what is laid between them; see `order_of_slots`."""
        return (3 * (event - self.base[self.file[event]]) + 2) * _RANKS

    def order_of_slots(self, slot: np.ndarray, side: np.ndarray) -> np.ndarray:
        """As `order_of_events`, for rows in slots; a rank below _RANKS may be added."""
        inside = slot < len(self)
        file = np.maximum(slot - len(self), 0)
        file[inside] = self.file[slot[inside]]
        place = np.where(inside, slot, np.searchsorted(self.file, file, side="right")) - self.base[file]
        return (3 * place + side) * _RANKS

    def bounds(self, slot: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Begin and end of slots (int64), _OPEN_ENDED for the begin of a file's first and the end of its last."""
        count = len(self)
        last_of_file = np.searchsorted(self.file, np.maximum(slot - count, 0), side="right") - 1
        before = np.where(slot < count, slot - 1, last_of_file)
        at = np.minimum(slot, count - 1)
        same = (before >= 0) & ((slot >= count) | (self.file[np.maximum(before, 0)] == self.file[at]))
        begin = np.where(same, self.end[np.maximum(before, 0)], _OPEN_ENDED)
        return begin, np.where(slot < count, self.start[at], _OPEN_ENDED)


def lay(
    events: Events, slot: np.ndarray, side: np.ndarray, rank_in_slot: np.ndarray, duration_ns: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Start and end (int64) of rows in slots. Rows of one slot do not overlap, nor do they leave it.

    `side`: AT_BEGIN or AT_END; `rank_in_slot` orders the rows of a side, those that are equal stay in their order.
    """
    if not len(slot):
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    order = np.lexsort((np.arange(len(slot)), rank_in_slot, side, slot))
    groups, first, counts = np.unique(slot[order], return_index=True, return_counts=True)
    begin, end = events.bounds(groups)
    wanted = duration_ns[order]
    total = np.add.reduceat(wanted, first)
    begin = np.where(begin == _OPEN_ENDED, end - total, begin)
    end = np.where(end == _OPEN_ENDED, begin + total, end)
    # An event that begins before the previous one has ended leaves no room.
    begin = np.minimum(begin, end)
    room = end - begin
    scale = np.minimum(1.0, room / np.maximum(total, 1))
    group = np.repeat(np.arange(len(groups)), counts)
    length = np.floor(wanted * scale[group]).astype(np.int64)
    reached = np.cumsum(length)
    before_group = (reached - length)[first]
    within = reached - length - before_group[group]
    rest = np.add.reduceat(length, first)[group] - within
    start = np.where(side[order] == AT_BEGIN, begin[group] + within, end[group] - rest)
    starts, ends = np.empty(len(slot), dtype=np.int64), np.empty(len(slot), dtype=np.int64)
    starts[order], ends[order] = start, start + length
    return starts, ends


def numbered(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For counts (n,): the index of the count of each of sum(counts) items, and its number there, from 0."""
    owner = np.repeat(np.arange(len(counts)), counts)
    first = np.cumsum(counts) - counts
    return owner, np.arange(len(owner)) - first[owner]


def number_in_group(group: np.ndarray) -> np.ndarray:
    """Number of each item within its run of equal values, from 0; `group` is sorted."""
    return places_in_groups(np.diff(np.append(runs(group), len(group))))
