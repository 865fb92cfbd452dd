"""Checks that a replay did the recorded work: the same operations, bytes and files, in the same order.

Lanes run concurrently. If lanes of one rank share a file, the sequence of each lane decides, and pairs of operations
that changed places between lanes are counted. A difference names the first operation that differs.

A sequence is compared by a fingerprint, constant state whatever its length. The k-th operation contributes
mix(mix(op, offset, length) + k * golden ratio), summed modulo 2**64: equal sequences have equal sums, and different
ones differ but for a chance of 2**-64. The mixer is splitmix64 (Steele, Lea and Flood, OOPSLA 2014).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dxt_replay.traces.files import exact_paths
from dxt_replay.traces.measures._passes import KeyTable, add_sequences, mix_prints
from dxt_replay.traces.measures.operation_rows import OperationRows
from dxt_replay.traces.schema import OPS, READ, WRITE
from dxt_replay.traces.stable_order import places_in_groups, runs, stable_order
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.sums import Sums
from dxt_replay.traces.units import format_bytes, format_count

if TYPE_CHECKING:
    from dxt_replay.replay.compare.measures import Side

MAX_DIFFERENCES = 5
MAX_INVERSION_ROWS = 1 << 22
"""Operations of one rank over which inversions are counted: 150 MB."""

LANE_BITS = 32
_OTHER_OPS = tuple(name for code, name in enumerate(OPS) if code not in (READ, WRITE))
_Operation = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inversions:
    """Neighbours of different lanes on one file: `count` of `pairs` came in the other order in the replay."""

    count: int = 0
    pairs: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Unequal:
    """The unequal share, in per cent of the larger side, summed over ranks and files; 0 if all is equal.

    `order_pct`: of the sequences that a rank issued to a file; `inversions_pct`: of the pairs of `Inversions`.
    """

    operations_pct: float = 0.0
    bytes_pct: float = 0.0
    files_pct: float = 0.0
    order_pct: float = 0.0
    inversions_pct: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Exactness:
    """Equality per rank, file and direction; of opens, closes and the like in number only. `failed`: operations of the
    replay that returned an error. `unequal`: how much differs. `differences`: the first few, as text."""

    operations: bool
    bytes: bool
    files: bool
    order: bool
    failed: int
    inversions: Inversions
    differences: tuple[str, ...]
    unequal: Unequal = Unequal()

    @property
    def unequal_names(self) -> tuple[str, ...]:
        """Those of operations, bytes, files and order that are not equal."""
        return tuple(name for name in ("operations", "bytes", "files", "order") if not getattr(self, name))


def file_numbers(source: Capture, replay: Capture) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """One numbering of the files of both captures, by exact path: int64 by file_id of each, and the paths by number."""
    numbers: dict[bytes, int] = {}
    paths: list[str] = []
    columns = []
    for capture in (source, replay):
        for path, key in zip(capture.paths(), exact_paths(capture.files), strict=True):
            if numbers.setdefault(key, len(paths)) == len(paths):
                paths.append(path)
        columns.append(np.array([numbers[key] for key in exact_paths(capture.files)], dtype=np.int64))
    return columns[0], columns[1], tuple(paths)


class Sequences(NamedTuple):
    """The work of one or more ranks. All arrays ascend by their key. "File" is the file of a rank: its number, added to
    a multiple of the number of files for each rank but the first.

    `file_key`: files; `moves`: (n, 4) their reads, writes, bytes read and bytes written; `file_print`: their sequence
    over all lanes. `lane_key`: file << LANE_BITS | lane; `lane_print`: the sequence of that lane on that file.
    `other_key`: files that were opened, closed and the like; `others`: (m, len(_OTHER_OPS)) how often.
    """

    file_key: np.ndarray
    moves: np.ndarray
    file_print: np.ndarray
    lane_key: np.ndarray
    lane_print: np.ndarray
    other_key: np.ndarray
    others: np.ndarray

    def of_files(self) -> np.ndarray:
        """For each file a fingerprint of the set of its lanes' sequences, whatever the lanes are called."""
        first = runs(self.lane_key >> LANE_BITS)
        return np.add.reduceat(mix_prints(self.lane_print), first) if len(first) else self.file_print


class Work:
    """Collects `Sequences` from the rows of one rank in start order, or of several, one after the other."""

    def __init__(self) -> None:
        self._files, self._lanes = KeyTable(4 + len(OPS)), KeyTable(2)

    def add(self, rows: OperationRows, files: np.ndarray) -> None:
        """Add operations; `files` (n,) int64: as "file" of `Sequences`. Of those that move no data only the number is
        compared, not the order."""
        add_sequences(
            self._files, self._lanes, files, rows.lane, rows.op, rows.offset, rows.length, read=READ, write=WRITE
        )

    def sequences(self) -> Sequences:
        files, sums = self._files.sorted()
        lane_key, lanes = self._lanes.sorted()
        counts = sums[:, 4:]
        others = counts[:, [OPS.index(name) for name in _OTHER_OPS]]
        data, other = sums[:, 0] > 0, others.any(axis=1)
        return Sequences(
            file_key=files[data],
            moves=np.concatenate((counts[:, [READ, WRITE]], sums[:, 2:4]), axis=1)[data],
            file_print=sums[data, 1].view(np.uint64),
            lane_key=lane_key,
            lane_print=lanes[:, 1].view(np.uint64),
            other_key=files[other],
            others=others[other],
        )


class Equality(Sums):
    """Compares one rank after another, or several at once: what `Sequences` calls a file is then one of a rank.

    `paths`: of the files, by number.
    """

    STAY = ("paths",)

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = paths
        self._used = np.zeros((2, len(paths)), dtype=bool)
        # Operations, bytes, sequences and inversions: how many are apart, summed over ranks and files, and the sum of
        # the larger sides.
        self._apart, self._larger = np.zeros(4, dtype=np.int64), np.zeros(4, dtype=np.int64)
        self._in_order: list[str] = []
        self._in_moves: list[str] = []

    def add_ranks(self, ranks: Sequence[int], source: Side, replay: Side, recorded: Work, replayed: Work) -> None:
        """Compare what ranks did; reads the rows of a rank again only where something differs.

        Raises: CaptureError when a part is damaged.
        """
        here, there = recorded.sequences(), replayed.sequences()
        count = len(self.paths)
        for side, work in enumerate((here, there)):
            self._used[side, work.file_key % count] = True
            self._used[side, work.other_key % count] = True
        in_moves = [*self._compare_moves(here, there), *self._compare_others(here, there)]
        for file, text in sorted(in_moves, key=lambda each: each[0] // count)[: self._moves_left]:
            self._in_moves.append(f"rank {ranks[file // count]}, {self.paths[file % count]}: {text}")
        files, prints = _aligned(here.file_key, here.file_print, there.file_key, there.file_print)
        _, lanes = _aligned(here.file_key, here.of_files(), there.file_key, there.of_files())
        moved, alike = prints[0] != prints[1], lanes[0] == lanes[1]
        wrong = files[moved & ~alike]
        self._note(2, len(wrong), len(files))
        for place, first in zip(*np.unique(wrong // count, return_index=True), strict=True):
            if len(self._in_order) < MAX_DIFFERENCES:
                rank, file, lane = ranks[place], wrong[first] % count, _differing_lane(int(wrong[first]), here, there)
                text = first_difference(*(_operations(side, rank, file, lane) for side in (source, replay)))
                self._in_order.append(f"rank {rank}, {self.paths[file]}, lane {lane}, {text}")
        interleaved = files[moved & alike]
        for place in np.unique(interleaved // count).tolist():
            wanted = np.zeros(count, dtype=bool)
            wanted[interleaved[interleaved // count == place] % count] = True
            self._note(3, *inversions(*(_starts(side, ranks[place], wanted) for side in (source, replay))))

    def _note(self, kind: int, apart: int, larger: int) -> None:
        self._apart[kind] += apart
        self._larger[kind] += larger

    def exactness(self, *, failed_recorded: int, failed_replayed: int) -> Exactness:
        """Equality over the ranks added. A failed operation moved no bytes, also where none were to be moved."""
        source_only, replay_only = (np.flatnonzero(here & ~there) for here, there in (self._used, self._used[::-1]))
        in_files = [
            f"{self.paths[files[0]]} is only {where} ({format_count(len(files))} such files)"
            for files, where in ((source_only, "recorded"), (replay_only, "replayed"))
            if len(files)
        ]
        files_apart, files = len(source_only) + len(replay_only), int(self._used.any(axis=0).sum())
        apart, larger = (each.tolist() for each in (self._apart, self._larger))
        operations, moved, order, changed_places = map(_share_pct, apart, larger)
        return Exactness(
            operations=not apart[0],
            bytes=not apart[1] and failed_replayed <= failed_recorded,
            files=not files_apart,
            order=not apart[2],
            failed=failed_replayed,
            inversions=Inversions(count=apart[3], pairs=larger[3]),
            unequal=Unequal(
                operations_pct=operations,
                bytes_pct=moved,
                files_pct=_share_pct(files_apart, files),
                order_pct=order,
                inversions_pct=changed_places,
            ),
            differences=tuple([*in_files, *self._in_order[:1], *self._in_moves, *self._in_order[1:]][:MAX_DIFFERENCES]),
        )

    @property
    def _moves_left(self) -> int:
        return max(MAX_DIFFERENCES - len(self._in_moves), 0)

    def _compare_moves(self, source: Sequences, replay: Sequences) -> Iterator[tuple[int, str]]:
        """The file and a text, of the first that differ."""
        files, moves = _aligned(source.file_key, source.moves, replay.file_key, replay.moves)
        differs = moves[0] != moves[1]
        for kind, columns in enumerate((slice(0, 2), slice(2, 4))):
            self._note(kind, *_apart(moves[:, :, columns]))
        for place in np.flatnonzero(differs.any(axis=1))[: self._moves_left].tolist():
            for kind, name in enumerate(("reads", "writes")):
                if differs[place, kind::2].any():
                    recorded, replayed = (
                        f"{format_count(count)} {name} of {format_bytes(size)}"
                        for count, size in moves[:, place, kind::2].tolist()
                    )
                    yield int(files[place]), f"{recorded} recorded, {replayed} replayed"

    def _compare_others(self, source: Sequences, replay: Sequences) -> Iterator[tuple[int, str]]:
        """As `_compare_moves`, of the operations that move no data."""
        files, counts = _aligned(source.other_key, source.others, replay.other_key, replay.others)
        self._note(0, *_apart(counts))
        for place, kind in np.argwhere(counts[0] != counts[1])[: self._moves_left].tolist():
            recorded, replayed = (
                f"{format_count(count)} operations {_OTHER_OPS[kind]}" for count in counts[:, place, kind].tolist()
            )
            yield int(files[place]), f"{recorded} recorded, {replayed} replayed"


def _apart(counts: np.ndarray) -> tuple[int, int]:
    """Of counts of both sides, (2, files, columns): the sum of their differences, and of the larger ones."""
    return int(np.abs(counts[0] - counts[1]).sum()), int(counts.max(axis=0).sum())


def _share_pct(part: float, whole: float) -> float:
    return float(100 * part / whole) if whole else 0.0


def _aligned(
    source_keys: np.ndarray, source: np.ndarray, replay_keys: np.ndarray, replay: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """All keys of both sides, ascending, and their values as (2, n) or (2, n, columns), 0 where a side has none."""
    keys = np.union1d(source_keys, replay_keys)
    values = np.zeros((2, len(keys), *source.shape[1:]), dtype=source.dtype)
    values[0, np.searchsorted(keys, source_keys)] = source
    values[1, np.searchsorted(keys, replay_keys)] = replay
    return keys, values


def _differing_lane(file: int, source: Sequences, replay: Sequences) -> int:
    """The first lane whose sequence on `file` differs."""
    keys, prints = _aligned(source.lane_key, source.lane_print, replay.lane_key, replay.lane_print)
    differing = keys[(prints[0] != prints[1]) & (keys >> LANE_BITS == file)]
    return int(differing[0]) & ((1 << LANE_BITS) - 1)


def _operations(side: Side, rank: int, file: int, lane: int) -> Iterator[_Operation]:
    """(op, offset, length) of the reads and writes of a lane on a file."""
    for rows in side.rows(rank):
        mine = rows.where((side.numbers[rows.file_id] == file) & (rows.lane == lane))
        yield from zip(mine.op.tolist(), mine.offset.tolist(), mine.length.tolist(), strict=True)


def first_difference(recorded: Iterator[_Operation], replayed: Iterator[_Operation]) -> str:
    """The place of the first operation, of op, offset and length, in which two sequences differ, and what is there."""
    sides = enumerate(zip_longest(recorded, replayed))
    place, (here, there) = next((place, both) for place, both in sides if both[0] != both[1])
    return f"operation {place}: {_text(here)} recorded, {_text(there)} replayed"


def _text(operation: _Operation | None) -> str:
    return "nothing" if operation is None else "{0} of {2} B at {1}".format(OPS[operation[0]], *operation[1:])


def _starts(side: Side, rank: int, wanted: np.ndarray) -> np.ndarray:
    """int64 (3, n): file, lane and start_ns of the reads and writes of a rank on some files, in start order."""
    parts, size = [np.empty((3, 0), dtype=np.int64)], 0
    for rows in side.rows(rank):
        mine = rows.where(wanted[side.numbers[rows.file_id]])
        parts.append(np.stack((side.numbers[mine.file_id], mine.lane, mine.start_ns)).astype(np.int64))
        size += len(mine)
        if size >= MAX_INVERSION_ROWS:
            break
    return np.concatenate(parts, axis=1)


def inversions(source: np.ndarray, replay: np.ndarray) -> tuple[int, int]:
    """(count, pairs): how many of the neighbours on one file but different lanes the replay began in the other order.

    Each side: as of `_starts`; the k-th operation of a file and lane on one side is the k-th on the other. Those that
    only one side has are left out.
    """
    (order, keys, first, counts), (others, other_keys, other_first, other_counts) = map(_by_lane, (source, replay))
    _, here, there = np.intersect1d(keys, other_keys, assume_unique=True, return_indices=True)
    both = np.minimum(counts[here], other_counts[there])
    within = places_in_groups(both)
    row = order[np.repeat(first[here], both) + within]
    start = np.empty(source.shape[1], dtype=np.int64)
    start[row] = replay[2, others[np.repeat(other_first[there], both) + within]]
    row = np.sort(row)
    row = row[stable_order(source[0, row])]
    (file, lane), start = source[:2, row], start[row]
    pair = (file[1:] == file[:-1]) & (lane[1:] != lane[:-1])
    return int((pair & (start[1:] < start[:-1])).sum()), int(pair.sum())


def _by_lane(side: np.ndarray) -> tuple[np.ndarray, ...]:
    """The order of rows by file and lane, and of each file and lane: its key, its first row in that order, its rows."""
    order = stable_order(side[1])
    order = order[stable_order(side[0, order])]
    keys = (side[0] << LANE_BITS | side[1])[order]
    first = runs(keys)
    return order, keys[first], first, np.diff(first, append=len(order))
