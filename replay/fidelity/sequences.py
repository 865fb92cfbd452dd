"""Fingerprints of the operation sequences of one rank: constant state per sequence, whatever its length.

The k-th operation of a sequence contributes mix(mix(op, offset, length) + k * golden ratio), summed modulo 2**64:
equal sequences have equal sums, and different ones differ but for a chance of 2**-64. The mixer is splitmix64 (Steele,
Lea and Flood, OOPSLA 2014).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dxt_replay.traces.measures._passes import KeyTable, add_sequences
from dxt_replay.traces.measures.operation_rows import OperationRows
from dxt_replay.traces.schema import OPS, READ, WRITE
from dxt_replay.traces.stable_order import runs, stable_order

OTHER_OPS = tuple(name for code, name in enumerate(OPS) if code not in (READ, WRITE))
LANE_BITS = 32
"""A lane key is file << LANE_BITS | lane."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankSequences:
    """The work of one or more ranks. All arrays ascend by their key. "File" is the file of a rank: its number, added to
    a multiple of the number of files for each rank but the first.

    `file_key`: files; `moves`: (n, 4) their reads, writes, bytes read and bytes written; `file_print`: their sequence
    over all lanes. `lane_key`: file << LANE_BITS | lane; `lane_print`: the sequence of that lane on that file.
    `other_key`: files that were opened, closed and the like; `others`: (m, len(OTHER_OPS)) how often.
    """

    moves: np.ndarray
    lane_key: np.ndarray
    lane_print: np.ndarray
    file_key: np.ndarray
    file_print: np.ndarray
    other_key: np.ndarray
    others: np.ndarray

    @property
    def lane_file(self) -> np.ndarray:
        """File of each lane's sequence."""
        files: np.ndarray = self.lane_key >> LANE_BITS
        return files


class SequenceCollector:
    """Collects `RankSequences` from the rows of one rank in start order, or of several, one after the other."""

    def __init__(self) -> None:
        self._files, self._lanes = KeyTable(4 + len(OPS)), KeyTable(2)

    def add(self, rows: OperationRows, files: np.ndarray) -> None:
        """Add operations; `files` (n,) int64 numbers their files, alike in source and replay. Of those that move no
        data only the number is compared, not the order."""
        add_sequences(
            self._files, self._lanes, files, rows.lane, rows.op, rows.offset, rows.length, read=READ, write=WRITE
        )

    def sequences(self) -> RankSequences:
        """The sequences added so far."""
        files, sums = self._files.sorted()
        lane_key, lanes = self._lanes.sorted()
        counts = sums[:, 4:]
        others = counts[:, [OPS.index(name) for name in OTHER_OPS]]
        data, other = sums[:, 0] > 0, others.any(axis=1)
        return RankSequences(
            moves=np.concatenate((counts[:, [READ, WRITE]], sums[:, 2:4]), axis=1)[data],
            lane_key=lane_key,
            lane_print=lanes[:, 1].view(np.uint64),
            file_key=files[data],
            file_print=sums[data, 1].view(np.uint64),
            other_key=files[other],
            others=others[other],
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Groups:
    """Rows sorted by a key. `order`: their index; `keys`: the distinct keys, ascending; `first`: where each begins."""

    order: np.ndarray
    keys: np.ndarray
    first: np.ndarray

    @classmethod
    def of(cls, order: np.ndarray, keys: np.ndarray) -> Groups:
        ordered = keys[order]
        first = runs(ordered) if len(ordered) else np.empty(0, dtype=np.int64)
        return cls(order=order, keys=ordered[first], first=first)

    @property
    def counts(self) -> np.ndarray:
        """Rows of each key."""
        return np.diff(self.first, append=len(self.order))


def lane_groups(files: np.ndarray, lanes: np.ndarray) -> Groups:
    """Rows by file and lane: the keys are file << LANE_BITS | lane."""
    by_lane = stable_order(lanes)
    return Groups.of(by_lane[stable_order(files[by_lane])], (files << LANE_BITS) | lanes)
