"""Checks that a replay did the recorded work: the same operations, bytes and files, in the same order.

Lanes run concurrently. If lanes of one rank share a file, the sequence of each lane decides, and pairs of operations
that changed places between lanes are counted. A difference names the first operation that differs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dxt_replay.replay.fidelity.replayed_rows import ReplayedCapture
from dxt_replay.replay.fidelity.sequences import LANE_BITS, OTHER_OPS, RankSequences, lane_groups
from dxt_replay.traces.files import exact_paths
from dxt_replay.traces.measures._passes import mix_prints
from dxt_replay.traces.measures.operation_rows import OperationRows
from dxt_replay.traces.schema import OPS
from dxt_replay.traces.stable_order import places_in_groups, stable_order
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.sums import Sums
from dxt_replay.traces.units import format_bytes, format_count

MAX_DIFFERENCES = 5
MAX_INVERSION_ROWS = 1 << 22
"""Operations of one rank over which inversions are counted: 150 MB."""

_Starts = tuple[np.ndarray, np.ndarray, np.ndarray]


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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FileNumbers:
    """One numbering of the files of both captures, by path: int64 arrays by file_id, and the paths by number."""

    source: np.ndarray
    replay: np.ndarray
    paths: tuple[str, ...]

    @classmethod
    def of(cls, source: Capture, replay: Capture) -> FileNumbers:
        """Files with the same exact path get the same number, whatever their file_id."""
        numbers: dict[bytes, int] = {}
        paths: list[str] = []
        columns = []
        for capture in (source, replay):
            column = []
            for path, key in zip(capture.paths(), exact_paths(capture.files), strict=True):
                if key not in numbers:
                    numbers[key] = len(paths)
                    paths.append(path)
                column.append(numbers[key])
            columns.append(np.array(column, dtype=np.int64))
        return cls(source=columns[0], replay=columns[1], paths=tuple(paths))


class ExactnessCollector(Sums):
    """Compares one rank after another, or several at once: what `RankSequences` calls a file is then one of a rank."""

    STAY = ("_source", "_replay", "_numbers")

    def __init__(self, source: ReplayedCapture, replay: ReplayedCapture, numbers: FileNumbers) -> None:
        self._source, self._replay, self._numbers = source, replay, numbers
        self._operations = self._bytes = self._order = True
        self._used = np.zeros((2, len(numbers.paths)), dtype=bool)
        self._count = self._pairs = 0
        self._sequences = self._wrong_sequences = 0
        # For each rank and file: the excess of one side, and the larger side. Operations, bytes.
        self._apart = np.zeros(2)
        self._larger = np.zeros(2)
        self._in_order: list[str] = []
        self._in_moves: list[str] = []

    def add_ranks(self, ranks: Sequence[int], source: RankSequences, replay: RankSequences) -> None:
        """Compare what ranks did; reads the rows of a rank again only where something differs.

        Raises: CaptureError when a part is damaged.
        """
        count = len(self._numbers.paths)
        for side, sequences in enumerate((source, replay)):
            self._used[side, sequences.file_key % count] = True
            self._used[side, sequences.other_key % count] = True
        in_moves = [*self._compare_moves(source, replay), *self._compare_others(source, replay)]
        for file, text in sorted(in_moves, key=lambda each: each[0] // count)[: self._moves_left]:
            self._in_moves.append(f"rank {ranks[file // count]}, {self._numbers.paths[file % count]}: {text}")
        files, prints = _aligned((source.file_key, source.file_print), (replay.file_key, replay.file_print))
        _, lanes = _aligned(_lanes_together(source), _lanes_together(replay))
        moved = prints[0] != prints[1]
        wrong = files[moved & (lanes[0] != lanes[1])]
        self._sequences += len(files)
        self._wrong_sequences += len(wrong)
        self._order &= not len(wrong)
        for place, first in zip(*np.unique(wrong // count, return_index=True), strict=True):
            if len(self._in_order) >= MAX_DIFFERENCES:
                break
            self._in_order.append(
                self._first_difference(ranks[place], place * count, int(wrong[first]), source, replay)
            )
        interleaved = files[moved & (lanes[0] == lanes[1])]
        for place in np.unique(interleaved // count).tolist():
            found, pairs = self._inversions(ranks[place], interleaved[interleaved // count == place] % count)
            self._count += found
            self._pairs += pairs

    def merge(self, later: ExactnessCollector) -> None:
        """As `Sums.merge`."""
        self._operations &= later._operations
        self._bytes &= later._bytes
        self._order &= later._order
        self._used |= later._used
        self._count += later._count
        self._pairs += later._pairs
        self._sequences += later._sequences
        self._wrong_sequences += later._wrong_sequences
        self._apart += later._apart
        self._larger += later._larger
        self._in_order += later._in_order
        self._in_moves += later._in_moves

    def exactness(self, *, failed_recorded: int, failed_replayed: int) -> Exactness:
        """Equality over the ranks added. A failed operation moved no bytes, also where none were to be moved."""
        source_only, replay_only = (np.flatnonzero(here & ~there) for here, there in (self._used, self._used[::-1]))
        in_files = [
            f"{self._numbers.paths[files[0]]} is only {where} ({format_count(len(files))} such files)"
            for files, where in ((source_only, "recorded"), (replay_only, "replayed"))
            if len(files)
        ]
        return Exactness(
            operations=self._operations,
            bytes=self._bytes and failed_replayed <= failed_recorded,
            files=not len(source_only) and not len(replay_only),
            order=self._order,
            failed=failed_replayed,
            inversions=Inversions(count=self._count, pairs=self._pairs),
            unequal=Unequal(
                operations_pct=_share_pct(self._apart[0], self._larger[0]),
                bytes_pct=_share_pct(self._apart[1], self._larger[1]),
                files_pct=_share_pct(len(source_only) + len(replay_only), int(self._used.any(axis=0).sum())),
                order_pct=_share_pct(self._wrong_sequences, self._sequences),
                inversions_pct=_share_pct(self._count, self._pairs),
            ),
            differences=tuple([*in_files, *self._in_order[:1], *self._in_moves, *self._in_order[1:]][:MAX_DIFFERENCES]),
        )

    @property
    def _moves_left(self) -> int:
        """Number of further places to describe; one place may have a difference in each direction."""
        return max(MAX_DIFFERENCES - len(self._in_moves), 0)

    def _compare_moves(self, source: RankSequences, replay: RankSequences) -> Iterator[tuple[int, str]]:
        """The file and a text, of the first that differ."""
        files, moves = _aligned((source.file_key, source.moves), (replay.file_key, replay.moves))
        differs = moves[0] != moves[1]
        for kind, columns in enumerate((slice(0, 2), slice(2, 4))):
            self._note_apart(kind, moves[:, :, columns])
        self._operations &= not differs[:, :2].any()
        self._bytes &= not differs[:, 2:].any()
        for place in np.flatnonzero(differs.any(axis=1))[: self._moves_left].tolist():
            for kind, name in enumerate(("reads", "writes")):
                if differs[place, kind::2].any():
                    recorded, replayed = (
                        f"{format_count(count)} {name} of {format_bytes(size)}"
                        for count, size in moves[:, place, kind::2].tolist()
                    )
                    yield int(files[place]), f"{recorded} recorded, {replayed} replayed"

    def _note_apart(self, kind: int, counts: np.ndarray) -> None:
        """Counts of both sides, (2, files, columns)."""
        self._apart[kind] += np.abs(counts[0] - counts[1]).sum()
        self._larger[kind] += counts.max(axis=0).sum()

    def _compare_others(self, source: RankSequences, replay: RankSequences) -> Iterator[tuple[int, str]]:
        """As `_compare_moves`, of the operations that move no data."""
        files, counts = _aligned((source.other_key, source.others), (replay.other_key, replay.others))
        differs = counts[0] != counts[1]
        self._note_apart(0, counts)
        self._operations &= not differs.any()
        for place, kind in np.argwhere(differs)[: self._moves_left].tolist():
            recorded, replayed = (
                f"{format_count(count)} operations {OTHER_OPS[kind]}" for count in counts[:, place, kind].tolist()
            )
            yield int(files[place]), f"{recorded} recorded, {replayed} replayed"

    def _first_difference(self, rank: int, first: int, key: int, source: RankSequences, replay: RankSequences) -> str:
        """`key`: a file of the rank, whose files begin at `first`."""
        lane, file = _differing_lane(key, source, replay), key - first
        recorded = self._file_rows(self._source, self._numbers.source, rank, file, lane)
        replayed = self._file_rows(self._replay, self._numbers.replay, rank, file, lane)
        place, here, there = first_difference(recorded, replayed)
        where = f"rank {rank}, {self._numbers.paths[file]}, lane {lane}, operation {place}"
        return f"{where}: {here} recorded, {there} replayed"

    def _file_rows(
        self, replayed: ReplayedCapture, numbers: np.ndarray, rank: int, file: int, lane: int
    ) -> Iterator[OperationRows]:
        for part in replayed.rows(rank):
            yield part.rows.where((numbers[part.rows.file_id] == file) & (part.rows.lane == lane))

    def _inversions(self, rank: int, files: np.ndarray) -> tuple[int, int]:
        sides = []
        wanted = np.zeros(len(self._numbers.paths), dtype=bool)
        wanted[files] = True
        for replayed, numbers in ((self._source, self._numbers.source), (self._replay, self._numbers.replay)):
            parts, size = [], 0
            for part in replayed.rows(rank):
                rows = part.rows.where(wanted[numbers[part.rows.file_id]])
                parts.append((numbers[rows.file_id], rows.lane, rows.start_ns))
                size += len(rows)
                if size >= MAX_INVERSION_ROWS:
                    break
            file, lane, start_ns = (np.concatenate(columns) for columns in zip(*parts, strict=True))
            sides.append((file, lane, start_ns))
        return inversions(sides[0], sides[1])


def first_difference(recorded: Iterator[OperationRows], replayed: Iterator[OperationRows]) -> tuple[int, str, str]:
    """Compare two sequences in step: the place of the first difference, and what is there on either side as text.

    Raises: ValueError when they do not differ.
    """
    sides = (_Described(recorded), _Described(replayed))
    place = 0
    while True:
        columns = [side.columns() for side in sides]
        common = min(len(side) for side in columns)
        different = (columns[0][:common] != columns[1][:common]).any(axis=1)
        if different.any():
            at = int(different.argmax())
            return place + at, _text(columns[0], at), _text(columns[1], at)
        if not common:
            if not len(columns[0]) and not len(columns[1]):
                raise ValueError("the sequences are equal")
            return place, _text(columns[0], 0), _text(columns[1], 0)
        place += common
        for side in sides:
            side.drop(common)


class _Described:
    """The operations of a stream of rows as an (n, 3) array of op, offset, length, refilled as it is used up."""

    def __init__(self, rows: Iterator[OperationRows]) -> None:
        self._rows = rows
        self._columns = np.empty((0, 3), dtype=np.int64)

    def columns(self) -> np.ndarray:
        while not len(self._columns) and (rows := next(self._rows, None)) is not None:
            self._columns = np.stack((rows.op, rows.offset, rows.length), axis=1).astype(np.int64)
        return self._columns

    def drop(self, count: int) -> None:
        self._columns = self._columns[count:]


def _share_pct(part: float, whole: float) -> float:
    return float(100 * part / whole) if whole else 0.0


def _text(columns: np.ndarray, place: int) -> str:
    if place >= len(columns):
        return "nothing"
    op, offset, length = columns[place].tolist()
    return f"{OPS[op]} of {length} B at {offset}"


def inversions(source: _Starts, replay: _Starts) -> tuple[int, int]:
    """(count, pairs): how many of the neighbours on one file but different lanes the replay began in the other order.

    Each side: columns file, lane, start_ns of one rank in start order; the k-th operation of a file and lane on one
    side is the k-th on the other. Those that only one side has are left out.
    """
    (file, lane, _), (_, _, replay_start) = source, replay
    there = _same_in_replay(source, replay)
    here = np.flatnonzero(there >= 0)
    here = here[stable_order(file[here])]
    file, lane, start = file[here], lane[here], replay_start[there[here]]
    pair = (file[1:] == file[:-1]) & (lane[1:] != lane[:-1])
    return int((pair & (start[1:] < start[:-1])).sum()), int(pair.sum())


def _same_in_replay(source: _Starts, replay: _Starts) -> np.ndarray:
    """int64 (n,): for each row of the source the row of the replay that is the same operation, -1 for none."""
    recorded, replayed = (lane_groups(file, lane) for file, lane, _ in (source, replay))
    _, here, there = np.intersect1d(recorded.keys, replayed.keys, assume_unique=True, return_indices=True)
    counts = np.minimum(recorded.counts[here], replayed.counts[there])
    within = places_in_groups(counts)
    rows = np.full(len(source[0]), -1, dtype=np.int64)
    rows[recorded.order[np.repeat(recorded.first[here], counts) + within]] = replayed.order[
        np.repeat(replayed.first[there], counts) + within
    ]
    return rows


def _aligned(
    source: tuple[np.ndarray, np.ndarray], replay: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """All keys of both sides, ascending, and their values as (2, n) or (2, n, columns), 0 where a side has none."""
    keys = np.union1d(source[0], replay[0])
    values = np.zeros((2, len(keys), *source[1].shape[1:]), dtype=source[1].dtype)
    for side, (own, value) in enumerate((source, replay)):
        values[side, np.searchsorted(keys, own)] = value
    return keys, values


def _lanes_together(sequences: RankSequences) -> tuple[np.ndarray, np.ndarray]:
    """For each file a fingerprint of the set of its lanes' sequences, whatever the lanes are called."""
    if not len(sequences.lane_key):
        return sequences.file_key, sequences.file_print
    first = np.flatnonzero(np.diff(sequences.lane_file, prepend=-1))
    return sequences.file_key, np.add.reduceat(mix_prints(sequences.lane_print), first)


def _differing_lane(file: int, source: RankSequences, replay: RankSequences) -> int:
    """The first lane whose sequence on `file` differs."""
    keys, prints = _aligned((source.lane_key, source.lane_print), (replay.lane_key, replay.lane_print))
    differing = keys[(prints[0] != prints[1]) & (keys >> LANE_BITS == file)]
    return int(differing[0]) & ((1 << LANE_BITS) - 1)
