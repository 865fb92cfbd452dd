"""Notes on a job's files from the rows of some ranks: numbers, sizes, names, counts.

They are made beside the rows, and added to the job's `FileTable` in rank order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from dxt_replay.traces.row_order import distinct
from dxt_replay.traces.schema import OFFSETS
from dxt_replay.traces.stable_order import stable_order

AS_RECORDED, REPAIRED, SUSPECT = range(len(OFFSETS))
"""Codes of `traces.schema.OFFSETS`."""

NO_FILE = -1
"""Number of no file."""

_FIRST_OWN = -2
"""Number of a worker's first new file: it numbers them -2, -3 and so on, and the parent replaces these."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FilesOfRows:
    """The files of some rows: `files` int32 (m,), each once; `of_row` int64 (n,): index into them of each row."""

    files: np.ndarray
    of_row: np.ndarray

    @property
    def file_id(self) -> np.ndarray:
        """int32 (n,): the file of each row."""
        return self.files[self.of_row]

    def select(self, rows: np.ndarray | slice) -> FilesOfRows:
        """The rows of a boolean mask, an index array or a slice, over the same files."""
        return FilesOfRows(files=self.files, of_row=self.of_row[rows])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KnownFiles:
    """Files that have numbers already: record ids uint64 (n,) by number, the same sorted, and the number of each sorted
    id, int32 (n,)."""

    by_number: np.ndarray
    record_id: np.ndarray
    number: np.ndarray

    @classmethod
    def numbered(cls, record_id: np.ndarray) -> KnownFiles:
        """Files by their number: record ids, each once."""
        order = np.argsort(record_id)
        return cls(by_number=record_id, record_id=record_id[order], number=order.astype(np.int32))

    def find(self, record_id: np.ndarray) -> np.ndarray:
        """int32: the number of each file, -1 if it has none."""
        if not len(self.record_id):
            return np.full(len(record_id), -1, dtype=np.int32)
        place = np.minimum(np.searchsorted(self.record_id, record_id), len(self.record_id) - 1)
        return np.where(self.record_id[place] == record_id, self.number[place], np.int32(-1))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reached:
    """Ends of the accesses to files: numbers (m,), and bytes, int64 (m,)."""

    files: np.ndarray
    ends: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class Renamed:
    """A file got a new name; the new file is as large as the old one is then."""

    file: int
    target: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Traced:
    """Traced operations of (rank, file) pairs at the layer to which the counters are compared; all (n,)."""

    ranks: np.ndarray
    files: np.ndarray
    operations: np.ndarray
    bytes: np.ndarray


@dataclass(slots=True, kw_only=True)
class FileNotes:
    """Numbers the files of rows, and collects facts about them.

    A file that is not among the `known` ones gets a negative number, which `FileTable.add` replaces.
    own: record ids of those, in order of appearance. sizes: facts about sizes, in that order.
    names: paths of record ids that no log names.
    offsets: operations by file, for files whose offsets are REPAIRED or SUSPECT.
    """

    known: KnownFiles
    own: dict[int, int] = field(default_factory=dict)
    sizes: list[Reached | Renamed] = field(default_factory=list)
    traced: list[Traced] = field(default_factory=list)
    names: dict[int, bytes] = field(default_factory=dict)
    offsets: dict[int, dict[int, int]] = field(default_factory=lambda: {REPAIRED: {}, SUSPECT: {}})

    def number(self, record_id: np.ndarray) -> FilesOfRows:
        """The file of each record id (uint64), new ones numbered in order of appearance."""
        unique, first, inverse = distinct(record_id)
        ids = self.known.find(unique)
        new = np.flatnonzero(ids < 0)
        for position in new[np.argsort(first[new])].tolist():
            ids[position] = self.own.setdefault(int(unique[position]), _FIRST_OWN - len(self.own))
        return FilesOfRows(files=ids, of_row=inverse)

    def number_by_rank(self, parts: Sequence[tuple[np.ndarray, np.ndarray]]) -> list[FilesOfRows]:
        """As `number`, for (place of the rank, record id) of several kinds of rows, whose places ascend.

        The rows of a rank come before those of the next one, and in the order of the kinds.
        """
        places = np.concatenate([place for place, _ in parts])
        records = np.concatenate([record_id for _, record_id in parts])
        order = stable_order(places)
        found = self.number(records[order])
        of_row = np.empty(len(order), dtype=np.int64)
        of_row[order] = found.of_row
        cuts = np.cumsum([len(place) for place, _ in parts])[:-1]
        return [FilesOfRows(files=found.files, of_row=each) for each in np.split(of_row, cuts)]

    def record(self, file_id: int) -> int:
        """The record id of a file."""
        if file_id <= _FIRST_OWN:
            return next(record for record, number in self.own.items() if number == file_id)
        return int(self.known.by_number[file_id])

    def note_names(self, names: Mapping[int, bytes]) -> None:
        """Note paths of record ids that no log names."""
        self.names |= names

    def note_offsets(self, state: int, file_id: np.ndarray, operations: np.ndarray) -> None:
        """Note the operations of files whose offsets were REPAIRED or are SUSPECT."""
        of_file = self.offsets[state]
        for file, count in zip(file_id.tolist(), operations.tolist(), strict=True):
            of_file[file] = of_file.get(file, 0) + count

    def note_renamed(self, file_id: int, target_id: int) -> None:
        """Note that a file got a new name and is as large as the old one."""
        self.sizes.append(Renamed(file=file_id, target=target_id))

    def note_sizes(self, rows: FilesOfRows, offset: np.ndarray, length: np.ndarray) -> None:
        """Extend the files to hold these accesses; an offset of -1 is unknown and counts as 0."""
        ends = np.zeros(len(rows.files), dtype=np.int64)
        np.maximum.at(ends, rows.of_row, np.where(length > 0, np.maximum(offset, 0) + length, 0))
        self.sizes.append(Reached(files=rows.files[ends > 0], ends=ends[ends > 0]))

    def note_traced(self, rank: np.ndarray, rows: FilesOfRows, length: np.ndarray) -> None:
        """Count traced operations by rank, at the layer to which the counters are compared."""
        if not len(rank):
            return
        pairs, _, of_row = distinct(rank.astype(np.int64) * len(rows.files) + rows.of_row)
        operations, moved = np.bincount(of_row), np.bincount(of_row, weights=length)
        ranks, files = pairs // len(rows.files), rows.files[pairs % len(rows.files)]
        self.traced.append(Traced(ranks=ranks, files=files, operations=operations, bytes=moved))
