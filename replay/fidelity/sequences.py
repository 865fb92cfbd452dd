"""Fingerprints of the operation sequences of one rank: constant state per sequence, whatever its length.

The k-th operation of a sequence contributes mix(mix(op, offset, length) + k * golden ratio), summed modulo 2**64:
equal sequences have equal sums, and different ones differ but for a chance of 2**-64. The mixer is splitmix64 (Steele,
Lea and Flood, OOPSLA 2014).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dxt_replay.traces.measures.operation_rows import OperationRows
from dxt_replay.traces.schema import OPS, READ, WRITE
from dxt_replay.traces.stable_order import runs, stable_order

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
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
        self._moves = _Sums(columns=4)
        self._others = _Sums(columns=len(OTHER_OPS))
        self._lanes = _Fingerprints()
        self._files = _Fingerprints()

    def add(self, rows: OperationRows, files: np.ndarray) -> None:
        """Add reads and writes; `files` (n,) int64 numbers their files, alike in source and replay."""
        if not len(rows):
            return
        by_file = Groups.of(stable_order(files), files)
        prints = operation_prints(rows)
        self._files.add(by_file, prints)
        self._moves.add(by_file, _moves(rows))
        self._lanes.add(lane_groups(files, rows.lane), prints)

    def add_others(self, rows: OperationRows, files: np.ndarray) -> None:
        """Add operations that move no data: only their number is compared, not their order."""
        if len(rows):
            columns = [(rows.op == OPS.index(name)).astype(np.int64) for name in OTHER_OPS]
            self._others.add(Groups.of(stable_order(files), files), columns)

    def sequences(self) -> RankSequences:
        """The sequences added so far."""
        return RankSequences(
            moves=self._moves.sums,
            lane_key=self._lanes.keys,
            lane_print=self._lanes.prints,
            file_key=self._files.keys,
            file_print=self._files.prints,
            other_key=self._others.keys,
            others=self._others.sums,
        )


def _moves(rows: OperationRows) -> tuple[np.ndarray, ...]:
    """The contribution of each row to reads, writes, bytes read and bytes written."""
    written = (rows.op == WRITE).astype(np.int64)
    return 1 - written, written, rows.length * (1 - written), rows.length * written


def operation_prints(rows: OperationRows) -> np.ndarray:
    """uint64 (n,): a number for each operation's (op, offset, length)."""
    mixed = mix_prints(rows.offset.astype(np.uint64) + _GOLDEN * (1 + rows.op.astype(np.uint64)))
    return mix_prints(mixed ^ rows.length.astype(np.uint64))


def mix_prints(value: np.ndarray) -> np.ndarray:
    """splitmix64 of each number (uint64, n)."""
    value = (value ^ (value >> np.uint64(30))) * _MIX_1
    value = (value ^ (value >> np.uint64(27))) * _MIX_2
    mixed: np.ndarray = value ^ (value >> np.uint64(31))
    return mixed


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


class _Sums:
    """Sums of int64 columns by key."""

    def __init__(self, columns: int) -> None:
        self.keys = np.empty(0, dtype=np.int64)
        self.sums = np.empty((0, columns), dtype=np.int64)

    def add(self, groups: Groups, values: Sequence[np.ndarray]) -> None:
        gaps, missing = _missing(self.keys, groups.keys)
        if len(missing):
            self.keys = np.insert(self.keys, gaps, missing)
            self.sums = np.insert(self.sums, gaps, 0, axis=0)
        place = np.searchsorted(self.keys, groups.keys)
        for column, value in enumerate(values):
            self.sums[place, column] += np.add.reduceat(value[groups.order], groups.first)


class _Fingerprints:
    """Length and fingerprint of the sequence of each key."""

    def __init__(self) -> None:
        self.keys = np.empty(0, dtype=np.int64)
        self.counts = np.empty(0, dtype=np.int64)
        self.prints = np.empty(0, dtype=np.uint64)

    def add(self, groups: Groups, prints: np.ndarray) -> None:
        gaps, missing = _missing(self.keys, groups.keys)
        if len(missing):
            self.keys = np.insert(self.keys, gaps, missing)
            self.counts = np.insert(self.counts, gaps, 0)
            self.prints = np.insert(self.prints, gaps, np.uint64(0))
        place = np.searchsorted(self.keys, groups.keys)
        sizes = groups.counts
        position = np.arange(len(groups.order)) - np.repeat(groups.first - self.counts[place], sizes)
        salted = mix_prints(prints[groups.order] + position.astype(np.uint64) * _GOLDEN)
        self.prints[place] += np.add.reduceat(salted, groups.first)
        self.counts[place] += sizes


def _missing(known: np.ndarray, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The keys that the ascending `known` lacks, and before which of its elements each belongs."""
    gaps = np.searchsorted(known, keys)
    found = gaps < len(known)
    found[found] = known[gaps[found]] == keys[found]
    return gaps[~found], keys[~found]
