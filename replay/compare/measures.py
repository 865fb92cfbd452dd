"""One pass over both captures of a comparison, in step by rank: the measures of each side, and their equality.

Both sides are seen as a replay sees them: `replay.plan.layers` says which rows of the source it issued. A
replay's own rows all pass, because it issued nothing else.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any

import numpy as np
import pyarrow as pa

from dxt_replay.replay.compare.exactness import Equality, Work, file_numbers
from dxt_replay.replay.plan.layers import LayerChoice
from dxt_replay.traces.measures._passes import KeyTable, add_to_curves, follow_lanes
from dxt_replay.traces.measures.access_pattern import AccessPattern
from dxt_replay.traces.measures.distribution import Distribution, DistributionCollector
from dxt_replay.traces.measures.io_totals import IoCollector, IoTotals
from dxt_replay.traces.measures.operation_rows import ROW_COLUMNS, OperationRows, read_ahead, rows_of_batch
from dxt_replay.traces.measures.span_times import union_by_rank
from dxt_replay.traces.records import LEAST_STALL_NS, is_refused
from dxt_replay.traces.row_order import few_together
from dxt_replay.traces.schema import READ, RECONSTRUCTED, WRITE, codes
from dxt_replay.traces.stable_order import runs, stable_order
from dxt_replay.traces.store.part_capture import only_ranks, pieces_of_both, work_of
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.sums import Sums
from dxt_replay.traces.units import NS_PER_MS, NS_PER_S
from dxt_replay.traces.workers import Workers

ROWS_TOGETHER = 1 << 17
"""Rows of both captures that are measured at once: of a rank with more, a row group at a time."""

MAX_SAMPLES = 1 << 20
"""Start times kept of one capture, about: 16 MiB."""

BIN_NS = 100 * NS_PER_MS
MAX_BINS = 1 << 22
"""Of the curves: almost five days."""

_RANKS_TOGETHER = 64
_NEVER = NOT_GIVEN = np.iinfo(np.int64).min
"""In `due_ns`, of an operation without a due time."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReplayedRows:
    """Reads and writes of one rank in start order, or all of several ranks. `due_ns` and `failed` (n,): of replays;
    `rows.length`: what was really transferred, 0 for a failed operation. `others`: opens, closes and the like;
    `others_failed` (m,): theirs."""

    rows: OperationRows
    due_ns: np.ndarray
    failed: np.ndarray
    others: OperationRows
    others_failed: np.ndarray


def replayed_rows(capture: Capture, layers: LayerChoice, ranks: Sequence[int]) -> Iterator[ReplayedRows]:
    """The rows that a replay issues: of one rank a batch at a time, the next one is read meanwhile; of several, all.

    Raises: CaptureError when a part is damaged.
    """
    columns = [*ROW_COLUMNS, "due_ns", "result"]
    if len(ranks) == 1:
        for batch in read_ahead(capture.operations(ranks[0], columns=columns)):
            yield _replayed(batch, layers, rows_of_batch(batch, ranks[0]))
        return
    parts = list(capture.rank_operations(ranks, columns))
    if not parts:
        return
    table = pa.Table.from_batches([batch for _, batch in parts]).combine_chunks()
    each = np.repeat([rank for rank, _ in parts], [len(batch) for _, batch in parts]).astype(np.int32)
    yield _replayed(table, layers, dataclasses.replace(rows_of_batch(table, parts[0][0]), ranks=each))


def _replayed(batch: pa.RecordBatch | pa.Table, layers: LayerChoice, rows: OperationRows) -> ReplayedRows:
    due_ns, result = (_values(batch, name) for name in ("due_ns", "result"))
    failed = np.zeros(len(rows), dtype=bool)
    given = result != NOT_GIVEN
    if given.any():
        rows = dataclasses.replace(rows, length=np.where(given, np.maximum(result, 0), rows.length))
        failed = given & (result < 0) & ~is_refused(rows.op, rows.origin, result)
    mask = layers.replayed(batch)
    data = mask & rows.data
    others = mask & ~data
    return ReplayedRows(
        rows=rows.where(data),
        due_ns=due_ns if data.all() else due_ns[data],
        failed=failed[data],
        others=rows.where(others),
        others_failed=failed[others],
    )


def _values(batch: pa.RecordBatch | pa.Table, column: str) -> np.ndarray:
    """A nullable int64 column with NOT_GIVEN for null."""
    data = batch.column(column)
    if data.null_count == len(data):
        return np.broadcast_to(NOT_GIVEN, len(data))
    values: np.ndarray = data.fill_null(NOT_GIVEN).to_numpy()
    return values


class Curves(Sums):
    """Operations in flight and bandwidth over time in bins from `origin_ns` on, from operations in any order; what lies
    beyond MAX_BINS falls into the last one.

    A difference array: an operation changes only its first and last bin, and a cumulative sum at the end fills the bins
    between. So a long operation costs no more than a short one.
    """

    def __init__(self, origin_ns: int) -> None:
        self._origin_ns = origin_ns
        # By bin, of in flight and of bytes: the share of a bin in which it changes, and the level from the next one on.
        self._changes = np.zeros((0, 4))

    def add(self, rows: OperationRows) -> None:
        """Add operations, at least one."""
        bins = min(max((int(rows.end_ns.max()) - self._origin_ns) // BIN_NS + 1, 1), MAX_BINS)
        known = len(self._changes)
        if bins > known:
            self._changes = np.pad(self._changes, ((0, min(max(bins, 2 * known), MAX_BINS) - known), (0, 0)))
        add_to_curves(self._changes, BIN_NS, self._origin_ns, rows.start_ns, rows.end_ns, rows.length)

    def merge(self, later: Curves) -> None:
        short, long = sorted((self._changes, later._changes), key=len)
        self._changes = long.copy()
        self._changes[: len(short)] += short

    def in_flight(self) -> np.ndarray:
        """Mean number of operations in flight in each bin."""
        return self._curve(0) / BIN_NS

    def bytes_per_bin(self) -> np.ndarray:
        """Bytes in each bin; an operation's bytes are spread evenly over its duration."""
        return self._curve(2)

    def _curve(self, column: int) -> np.ndarray:
        level = np.concatenate(([0.0], np.cumsum(self._changes[:, column + 1])))[:-1]
        curve: np.ndarray = self._changes[:, column] + level * BIN_NS
        return curve


class Lateness(Sums):
    """How late operations began, from rows of one rank after another, in start order, or of all of several ranks.

    The lag is begin - due. The replayer's `own` part of it counts from when the operation was due and its thread was
    free: while the operation before it still runs, slow storage delays it and not the replayer. `waited_ns`: the
    longest such delay.
    """

    STAY = ("_free_ns", "_rank")

    def __init__(self) -> None:
        self.lag, self.own = DistributionCollector(), DistributionCollector()
        self._waited_ns = [0]
        self._rank: int | None = None
        self._free_ns: dict[int, int] = {}

    def add(self, part: ReplayedRows) -> None:
        """Add rows, which continue the rank's earlier ones; recorded rows have no due time and are ignored."""
        due = part.due_ns != NOT_GIVEN
        if not due.any():
            return
        start_ns, due_ns = part.rows.start_ns[due], part.due_ns[due]
        lag_ns, own_ns = start_ns - due_ns, np.maximum(start_ns - np.maximum(due_ns, self._thread_free(part)[due]), 0)
        self.lag.add(lag_ns)
        self.own.add(own_ns)
        self._waited_ns.append(int((lag_ns - own_ns).max()))

    @property
    def waited_ns(self) -> int:
        return max(self._waited_ns)

    def _thread_free(self, part: ReplayedRows) -> np.ndarray:
        """int64 (n,): when the operation before each read or write ended on its lane."""
        lane, start, end, rank = (
            np.concatenate((getattr(part.rows, name), getattr(part.others, name)))
            for name in ("lane", "start_ns", "end_ns", "ranks")
        )
        lane = rank.astype(np.int64) << 32 | lane if len(rank) else lane
        order = np.argsort(start, kind="stable") if len(part.others) else np.arange(len(start))
        order = order[stable_order(lane[order])]
        lane, end = lane[order], end[order]
        before, first = np.append(_NEVER, end[:-1]), runs(lane)
        before[first] = _NEVER
        if not len(rank):
            if part.rows.rank != self._rank:
                self._rank, self._free_ns = part.rows.rank, {}
            last = np.append(first[1:], len(lane)) - 1
            for key, begin, until in zip(lane[first].tolist(), first.tolist(), last.tolist(), strict=True):
                before[begin] = self._free_ns.get(key, _NEVER)
                self._free_ns[key] = int(end[until])
        free = np.empty(len(lane), dtype=np.int64)
        free[order] = before
        return free[: len(part.rows)]


class LaneStarts(Sums):
    """`gaps` between the starts on each lane, and of each lane the starts number 0, `stride`, 2 `stride` ..., from rows
    of one rank after another, or of several."""

    STAY = ("_table",)

    def __init__(self, stride: int) -> None:
        self.gaps = DistributionCollector()
        self._stride = stride
        # Of the samples, and of whole lanes: the lane (rank << 32 | lane), and its start, or its number of operations.
        self._samples, self._merged = [np.empty((2, 0), dtype=np.int64)], [np.empty((2, 0), dtype=np.int64)]
        self._table = KeyTable(2)  # of the other lanes, as of `follow_lanes`

    def add(self, rows: OperationRows) -> None:
        """Add rows in start order, at least one: more of the current rank, or all rows of several ranks."""
        rank = rows.ranks.astype(np.int64) if len(rows.ranks) else np.int64(rows.rank)
        lanes = rank << 32 | rows.lane
        gaps, sampled = follow_lanes(self._table, lanes, rows.start_ns, self._stride)
        self.gaps.add(gaps)
        self._samples.append(np.stack((lanes[sampled], rows.start_ns[sampled])))

    def merge(self, later: LaneStarts) -> None:
        self.gaps.merge(later.gaps)
        self._samples += later._samples
        self._merged.append(later.operations())

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_merged": [self.operations()]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._table = KeyTable(2)

    def operations(self) -> np.ndarray:
        """int64 (2, lanes): the lanes, and how many operations each has."""
        lanes, columns = self._table.sorted()
        return np.concatenate([*self._merged, np.stack((lanes, columns[:, 0]))], axis=1)

    def samples(self) -> np.ndarray:
        """int64 (2, n): lane and start, by lane."""
        found = np.concatenate(self._samples, axis=1)
        return found[:, stable_order(found[0])]


def matched_starts(source: LaneStarts, replay: LaneStarts) -> tuple[np.ndarray, np.ndarray]:
    """Start times (ns) of the same operations in source and replay: the k-th of a lane matches the k-th.

    Lanes with different numbers of operations are left out: their k-th operations are not the same.
    """
    recorded, counts = source.operations()
    there = dict(replay.operations().T.tolist())
    same = recorded[[there.get(lane) == count for lane, count in zip(recorded.tolist(), counts.tolist(), strict=True)]]
    found = (side.samples() for side in (source, replay))
    here, other = (starts[np.isin(lanes, same)] for lanes, starts in found)
    return here, other


class Side(Sums):
    """The measures of one capture, rank by rank. `numbers`: by file_id, the file numbers that both captures share,
    below `files`; `origin_ns`: the begin of its curves.

    `operations`: of any kind; `failed`: those that returned an error; `metadata_ns`: the sum of the durations of opens,
    closes and the like, `long_metadata_ns`: of those that may have been in flight while the machine stood still.
    `transfers`: reads and writes; `reconstructed`, `reconstructed_bytes`: those of them that no trace holds.
    """

    STAY = ("capture", "layers", "numbers", "_files", "_compute", "_mine")

    def __init__(
        self, capture: Capture, layers: LayerChoice, numbers: np.ndarray, files: int, origin_ns: int, stride: int
    ) -> None:
        self.capture, self.layers, self.numbers, self._files = capture, layers, numbers, files
        self._mine, self._compute = frozenset(capture.ranks), union_by_rank(capture.spans, "compute")
        files_here = capture.files.num_rows
        self._io, self._pattern = IoCollector(files_here, self._compute), AccessPattern(files_here)
        self._latency, self.lanes = DistributionCollector(), LaneStarts(stride)
        self.lateness, self.curves = Lateness(), Curves(origin_ns)
        self._limits_ns: list[tuple[int, int, int]] = []  # of each batch
        self.failed = self.operations = self.metadata_ns = self.long_metadata_ns = 0
        self.transfers = self.reconstructed = self.reconstructed_bytes = 0

    def rows(self, rank: int) -> Iterator[OperationRows]:
        """Reads and writes of a rank, a batch at a time. Raises: CaptureError when a part is damaged."""
        return (part.rows for part in replayed_rows(self.capture, self.layers, (rank,)))

    def add_ranks(self, ranks: Sequence[int]) -> Work:
        """Measure one rank, or several that fit into memory together, and return what they did.

        Raises: CaptureError when a part is damaged.
        """
        work = Work()
        mine = [rank for rank in ranks if rank in self._mine]
        for part in replayed_rows(self.capture, self.layers, mine) if mine else ():
            self._add(part)
            for rows in (part.rows, part.others):
                numbers = self.numbers[rows.file_id]
                several = len(rows.ranks) > 0
                work.add(rows, numbers + self._files * np.searchsorted(ranks, rows.ranks) if several else numbers)
        return work

    def _add(self, part: ReplayedRows) -> None:
        rows, duration_ns, metadata_ns = part.rows, part.rows.duration_ns, part.others.duration_ns
        self.failed += int(part.failed.sum()) + int(part.others_failed.sum())
        self.operations += len(rows) + len(part.others)
        self.metadata_ns += int(metadata_ns.sum())
        self.long_metadata_ns += int(metadata_ns[metadata_ns >= LEAST_STALL_NS].sum())
        if not len(rows):
            return
        for sums in (self._io, self._pattern, self.lanes, self.curves):
            sums.add(rows)
        self._latency.add(duration_ns)
        self.lateness.add(part)
        untraced = rows.origin == RECONSTRUCTED
        self.transfers += len(rows)
        self.reconstructed += int(untraced.sum())
        self.reconstructed_bytes += int(rows.length[untraced].sum())
        self._limits_ns.append((int(rows.start_ns.min()), int(rows.start_ns.max()), int(rows.end_ns.max())))

    @property
    def limits_ns(self) -> tuple[int, int, int] | None:
        """First start, last start and last end of the reads and writes; None without any."""
        if not self._limits_ns:
            return None
        first, last, end = zip(*self._limits_ns, strict=True)
        return min(first), max(last), max(end)

    @cached_property
    def totals(self) -> IoTotals:
        """Totals of all ranks; read it after the last rank."""
        return self._io.totals()

    @cached_property
    def latency_ns(self) -> Distribution:
        """Durations of the reads and writes, ns; read it after the last rank."""
        return self._latency.distribution()

    def per_rank_s(self, total_ns: float) -> float:
        """All ranks of the job share it."""
        return total_ns / NS_PER_S / max(self.capture.info.job.nprocs, len(self.capture.ranks), 1)

    @cached_property
    def factors(self) -> dict[str, float]:
        """The ten factors of the DLIO paper, all from operations. 0 where undefined."""
        size, bandwidth, pattern = self.totals.size_bytes, self.totals.bandwidth_mib_s, self._pattern.counts
        found = {
            "io_time_s": self.per_rank_s(self.totals.total("sum_ns")),
            "bytes": self.totals.bytes_moved,
            "files": int(self.totals.files_used.sum()),
            "transfer_size_median": size.median,
            "transfer_size_mean": size.mean,
            "transfer_size_max": size.maximum,
            "bandwidth_median": bandwidth.median,
            "bandwidth_mean": bandwidth.mean,
            "sequential_pct": pattern.sequential_pct,
            "consecutive_pct": pattern.consecutive_pct,
        }
        return {name: 0 if value is None or math.isnan(value) else value for name, value in found.items()}

    @property
    def overlap_pct(self) -> float | None:
        """Share of the I/O time (union per rank) that lies inside compute-busy, over the ranks where that is known."""
        ranks = [rank for rank in self.totals.ranks if rank.rank in self._compute]
        union_ns = sum(rank.union_ns for rank in ranks)
        return 100 * sum(rank.hidden_ns for rank in ranks) / union_ns if union_ns else None


class BothSides(Sums):
    """The measures of both captures, `recorded` and `replayed`, and their `equality`.

    `layers`, `origins`: of both, what a replay issued, and the begin of its curves. `stride`: as of `LaneStarts`.
    """

    def __init__(
        self, captures: Sequence[Capture], layers: Sequence[LayerChoice], origins: Sequence[int], stride: int
    ) -> None:
        source, replay, paths = _numbers_of(captures[0].whole, captures[1].whole)
        self.recorded = Side(captures[0], layers[0], source, len(paths), origins[0], stride)
        self.replayed = Side(captures[1], layers[1], replay, len(paths), origins[1], stride)
        self.equality = Equality(paths)

    def add(self, ranks: Sequence[int], on_rows: Callable[[int], None] = lambda rows: None) -> None:
        """Measure and compare ranks, small ones together. Raises: CaptureError when a part is damaged."""
        sides = self.recorded, self.replayed
        counts = {rank: sum(side.capture.stored_rows(rank) for side in sides) for rank in ranks}
        least = (ROWS_TOGETHER * len(self.equality.paths) >> 31) + 1  # keys of files of several ranks have 31 bits
        for few in few_together(ranks, lambda rank: max(counts[rank], least), ROWS_TOGETHER):
            self.equality.add_ranks(few, *sides, *(side.add_ranks(few) for side in sides))
            on_rows(sum(counts[rank] for rank in few))


def measure_both(
    captures: tuple[Capture, Capture], layers: Sequence[LayerChoice], on_rows: Callable[[int], None], workers: Workers
) -> BothSides:
    """Both captures measured, all ranks. `on_rows` gets numbers of rows of both as they are done.

    Raises: CaptureError when a capture is damaged.
    """
    most = max(sum(map(capture.stored_rows, capture.ranks)) for capture in captures)
    origins, stride = [first_start_ns(capture) for capture in captures], -(-most // MAX_SAMPLES) or 1
    whole = BothSides(captures, layers, origins, stride)
    pieces = pieces_of_both(captures, len(captures) * workers.piece_operations)
    if len(pieces) == 1:
        whole.add(pieces[0], on_rows)
        return whole
    work = partial(_measured, captures, layers, origins, stride)
    with workers.results(work, pieces, operations=sum(map(work_of, captures)), named=_named) as results:
        for ranks, part in zip(pieces, results, strict=True):
            whole.merge(part)
            on_rows(sum(capture.stored_rows(rank) for capture in captures for rank in ranks))
    return whole


def _measured(captures: Collection[Capture], layers: Any, origins: Any, stride: int, ranks: Sequence[int]) -> BothSides:
    """Some ranks alone, perhaps in another process; the rest as of `BothSides`."""
    sides = BothSides([only_ranks(capture, ranks) for capture in captures], layers, origins, stride)
    sides.add(ranks)
    return sides


_numbers_of = lru_cache(maxsize=1)(file_numbers)  # once in each process


def _named(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}"


def first_start_ns(capture: Capture) -> int:
    """Start of the first read or write of any rank, 0 without one.

    Reads a row group or two of each rank that begins earlier than the first read or write of those before it.
    Raises: CaptureError when a part is damaged.
    """
    columns, first = ["op", "start_ns"], None
    begins = capture.index.first_starts()
    for place in range(0, len(begins), _RANKS_TOGETHER):
        few = begins[place : place + _RANKS_TOGETHER]
        ranks = [rank for begin_ns, rank in few if first is None or begin_ns < first]
        short = sorted(rank for rank in ranks if capture.index.is_single(rank))
        found = [_first_data_ns(capture.operations([rank], columns)) for rank in set(ranks) - set(short)]
        found += [_first_data_ns([batch]) for batch in capture.operations(short, columns)]
        first = min((time for time in (first, *found) if time is not None), default=None)
    return first or 0


def _first_data_ns(batches: Iterable[pa.RecordBatch]) -> int | None:
    """Start of the first read or write of a rank; None without one."""
    for batch in batches:
        data = np.isin(codes(batch, "op"), (READ, WRITE))
        if data.any():
            return int(batch.column("start_ns").to_numpy()[data.argmax()])
    return None
