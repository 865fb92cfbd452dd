"""The course of a capture over time, in bins of any width: operations, bytes, in flight, busy, compute."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from dxt_replay.profiler_merge.analysis.collect import Begin, Collector, at_one_layer, collect
from dxt_replay.profiler_merge.analysis.tables import TABLES
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.layers import FileLayers
from dxt_replay.traces.measures._passes import add_at
from dxt_replay.traces.measures.intervals import Intervals, StreamingUnion, group_unions
from dxt_replay.traces.measures.operation_rows import OperationRows
from dxt_replay.traces.measures.span_times import union_by_rank
from dxt_replay.traces.schema import RECONSTRUCTED, WRITE
from dxt_replay.traces.stable_order import runs
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.units import MIB, NS_PER_S, format_count
from dxt_replay.traces.workers import ALONE, Workers

ALL_RANKS = -1
"""Rank of the rows over all ranks."""

DEFAULT_BINS = 200
MOST_CELLS = 1 << 22
"""Limit of bins times ranks of a timeline: 400 MB."""

MOST_TOGETHER = 1 << 23
"""Operations of a capture whose times are kept for the exact peak in flight: 16 bytes each."""
_APART = 1 << 21
"""Operations whose peaks are exact in a larger capture; the sum of such peaks is an upper bound."""
_PIECES = 1 << 20
"""Pieces in memory at a time: an operation that covers many bins has many pieces."""

_COUNTS = (
    "reads", "writes", "bytes_read", "bytes_written", "other_operations", "reconstructed", "in_flight_ns", "busy_ns",
)  # fmt: skip

SCHEMA = TABLES["timeline"].schema
"""One row per rank and bin. An operation counts in the bin in which it starts; its bytes are spread over the bins that
it covers. `in_flight_mean` is weighted with time."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Timeline:
    """`table`: `SCHEMA`, sorted by rank and time, no bin missing. `ranks`: those of the rows, (ALL_RANKS,) over all.

    `in_flight_max_exact`: False where the peak is the sum of peaks of parts, an upper bound.
    """

    bin_ns: int
    start_ns: int
    bins: int
    ranks: tuple[int, ...]
    in_flight_max_exact: bool
    table: pa.Table

    def matrix(self, column: str) -> np.ndarray:
        """One column as an array (ranks, bins): a heat map. Float64 with nan where the column may be null."""
        values = self.table[column].to_numpy()
        return np.asarray(values).reshape(len(self.ranks), self.bins)

    def as_json(self) -> dict[str, Any]:
        """Plain values: the bins' width and first time, and `rows` as in the table."""
        return {
            "bin_ns": self.bin_ns,
            "start_ns": self.start_ns,
            "in_flight_max_exact": self.in_flight_max_exact,
            "rows": self.table.to_pylist(),
        }

    def edges_ns(self) -> np.ndarray:
        """int64 (bins + 1,): begin of each bin, and end of the last."""
        return self.start_ns + self.bin_ns * np.arange(self.bins + 1, dtype=np.int64)


def timeline(
    capture: Capture,
    *,
    bin_ns: int | None = None,
    bins: int = DEFAULT_BINS,
    per_rank: bool = False,
    workers: Workers = ALONE,
) -> Timeline:
    """Timeline of traced reads and writes.

    Bins are `bin_ns` wide, or at most about `bins` have a round width (1, 2 or 5 times a power of ten nanoseconds).

    Bins begin at a multiple of their width, or where the window begins; operations that end after the window have bins
    of their own.
    Raises: UsageError for more than MOST_CELLS bins; CaptureError when a part is damaged.
    """
    begin = timeline_collector(capture, bin_ns=bin_ns, bins=bins, per_rank=per_rank)
    return collect(capture, begin, without=("lane", "step"), workers=workers).timeline()


def timeline_collector(
    capture: Capture, *, bin_ns: int | None = None, bins: int = DEFAULT_BINS, per_rank: bool = False
) -> Begin[TimelineCollector]:
    """What makes the collector of a timeline for some or all ranks. Arguments and errors as of `timeline`."""
    begin, end = capture.part.from_ns, capture.part.until_ns
    first, last = capture.time_span_ns if begin is None or end is None else (0, 0)
    first, last = first if begin is None else begin, last if end is None else end
    last = max(last, first + 1)
    width = bin_ns if bin_ns is not None else round_width_ns(last - first, bins)
    if width <= 0:
        raise UsageError("a bin is at least a nanosecond wide")
    if begin is None:
        first -= first % width
    together = capture.operation_count() <= MOST_TOGETHER
    return partial(TimelineCollector, start_ns=first, end_ns=last, bin_ns=width, per_rank=per_rank, together=together)


def round_width_ns(length_ns: int, bins: int) -> int:
    """The least 1, 2 or 5 times a power of ten of which at most `bins` cover `length_ns`."""
    least = max(-(-length_ns // max(bins, 1)), 1)
    power = 1
    while 5 * power < least:
        power *= 10
    return next(times * power for times in (1, 2, 5) if times * power >= least)


class TimelineCollector(Collector):
    """Collects a `Timeline`. `together`: whether all times are kept for the exact peaks."""

    takes_several_ranks = True
    STAY = ("_capture", "_layers", "_union")

    def __init__(
        self,
        capture: Capture,
        layers: FileLayers,
        *,
        start_ns: int,
        end_ns: int,
        bin_ns: int,
        per_rank: bool,
        together: bool,
    ) -> None:
        self._capture, self._layers = capture, layers
        self._start_ns, self._bin_ns, self._together = start_ns, bin_ns, together
        self._ranks = capture.ranks
        self._rows = self._ranks if per_rank else (ALL_RANKS,)
        self._bins = 0
        self._cells = np.zeros((len(_COUNTS), len(self._rows), 0), dtype=np.int64)
        self._peaks = self._cells[0]
        self._reach(end_ns - start_ns)
        self._rank, self._union = -1, StreamingUnion()
        # Row, start and end of operations whose peaks are not yet known, (3, n) each.
        self._times: list[np.ndarray] = []
        self._parts = 0

    def add(self, rows: OperationRows) -> None:
        """Add rows, in start order."""
        rows = at_one_layer(rows, self._layers)
        if not len(rows):
            return
        rebuilt = rows.origin == RECONSTRUCTED
        traced = rows.data & ~rebuilt
        starts, ends = rows.start_ns - self._start_ns, rows.end_ns - self._start_ns
        self._reach(max(int(starts.max()) + 1, int(ends.max(where=traced, initial=0))))
        if not traced.all():
            row, place = self._row_of(rows), starts // self._bin_ns
            for name, mask in (("reconstructed", rebuilt), ("other_operations", ~rebuilt & ~traced)):
                self._add(name, row[mask], place[mask], np.ones(int(mask.sum()), dtype=np.int64))
            rows, starts, ends = rows.where(traced), starts[traced], ends[traced]
        if not len(rows):
            return
        self._add_operations(self._row_of(rows), starts, ends, rows)
        if len(rows.ranks):
            union, group = group_unions(starts, ends, rows.by_rank().index)
            row = self._row_of(rows)[rows.by_rank().first][group]
        else:
            if rows.rank != self._rank:
                self._rank, self._union = rows.rank, StreamingUnion()
            union = Intervals.of_ascending(*self._union.add(starts, ends))
            row = self._row_of(rows)[:1].repeat(len(union))
        for part in _pieces(union.starts, union.ends, self._bin_ns):
            self._add("busy_ns", row[part.operation], part.bin, part.end_ns - part.start_ns)

    def _row_of(self, rows: OperationRows) -> np.ndarray:
        """int64 (n,): the row of the timeline to which each operation belongs."""
        if self._rows == (ALL_RANKS,):
            return np.zeros(len(rows), dtype=np.int64)
        if not len(rows.ranks):
            return np.full(len(rows), self._ranks.index(rows.rank))
        return np.searchsorted(np.array(self._ranks), rows.ranks)

    def _add_operations(self, row: np.ndarray, starts: np.ndarray, ends: np.ndarray, rows: OperationRows) -> None:
        place, duration = starts // self._bin_ns, ends - starts
        written = rows.op == WRITE
        for name, mask in (("reads", ~written), ("writes", written)):
            self._add(name, row[mask], place[mask], np.ones(int(mask.sum()), dtype=np.int64))
        inside = ends <= (place + 1) * self._bin_ns
        self._add_moved(row, place, rows.length * inside, written, duration * inside)
        some = np.flatnonzero(~inside)
        for part in _pieces(starts[some], ends[some], self._bin_ns):
            which = some[part.operation]
            moved = _shares(rows.length[which], duration[which], part)
            self._add_moved(row[which], part.bin, moved, written[which], part.end_ns - part.start_ns)
        real = duration > 0
        self._times.append(np.stack((row[real], starts[real], ends[real])))
        if not self._together and sum(times.shape[1] for times in self._times) > _APART:
            self._find_peaks()

    def _add_moved(
        self, row: np.ndarray, place: np.ndarray, moved: np.ndarray, written: np.ndarray, duration_ns: np.ndarray
    ) -> None:
        self._add("bytes_read", row, place, moved * ~written)
        self._add("bytes_written", row, place, moved * written)
        self._add("in_flight_ns", row, place, duration_ns)

    def _add(self, name: str, row: np.ndarray, place: np.ndarray, amounts: np.ndarray) -> None:
        add_at(self._cells[_COUNTS.index(name)].reshape(-1), row * self._bins + place, amounts)

    def _reach(self, end: int) -> None:
        """Make room for times before `end`."""
        more = -(-end // self._bin_ns) - self._bins
        if more <= 0:
            return
        self._bins += more
        if self._bins * len(self._rows) > MOST_CELLS:
            raise UsageError(
                f"{format_count(self._bins)} bins for each of {len(self._rows)} rows are too many: "
                "choose wider bins, a shorter time window or fewer ranks"
            )
        self._cells = np.pad(self._cells, ((0, 0), (0, 0), (0, more)))
        self._peaks = np.pad(self._peaks, ((0, 0), (0, more)))

    def _find_peaks(self) -> None:
        """Add the peaks of the operations whose times were kept; of several such parts the sum is an upper bound."""
        if not self._times:
            return
        row, starts, ends = np.concatenate(self._times, axis=1)
        # Each row of the timeline behind the one before, so that one pass serves all.
        shift = row * (self._bins * self._bin_ns)
        self._peaks += _peaks(starts + shift, ends + shift, self._bin_ns, self._peaks.size).reshape(self._peaks.shape)
        self._times = []
        self._parts += 1

    def merge(self, later: TimelineCollector) -> None:
        """As `Sums.merge`."""
        self._reach(later._bins * self._bin_ns)
        rows = np.array([0] if self._rows == (ALL_RANKS,) else [self._ranks.index(rank) for rank in later._ranks])
        self._cells[:, rows, : later._bins] += later._cells
        if not self._together:
            later._find_peaks()
        self._peaks[rows, : later._bins] += later._peaks
        self._times += [np.stack((rows[row], starts, ends)) for row, starts, ends in later._times]
        self._parts += later._parts

    def __getstate__(self) -> dict[str, Any]:
        if not self._together:
            self._find_peaks()
        return super().__getstate__()

    def timeline(self) -> Timeline:
        """Timeline of all that was added."""
        self._find_peaks()
        edges = self._start_ns + self._bin_ns * np.arange(self._bins + 1, dtype=np.int64)
        cells = dict(zip(_COUNTS, self._cells.reshape(len(_COUNTS), -1), strict=True))
        mib = MIB * self._bin_ns / NS_PER_S
        ranks = 1 if self._rows != (ALL_RANKS,) else max(len(self._ranks), 1)
        table = pa.table(
            {
                "rank": np.repeat(np.array(self._rows, dtype=np.int32), self._bins),
                "start_ns": np.tile(edges[:-1], len(self._rows)),
                **{name: cells[name] for name in _COUNTS[:4]},
                "read_mib_s": cells["bytes_read"] / mib,
                "write_mib_s": cells["bytes_written"] / mib,
                "in_flight_mean": cells["in_flight_ns"] / self._bin_ns,
                "in_flight_max": self._peaks.ravel(),
                "io_busy_share": cells["busy_ns"] / self._bin_ns / ranks,
                "compute_busy_share": pa.array(self._compute(edges).ravel(), from_pandas=True),
                **{name: cells[name] for name in _COUNTS[4:6]},
            },
            schema=SCHEMA,
        )
        return Timeline(
            bin_ns=self._bin_ns,
            start_ns=self._start_ns,
            bins=self._bins,
            ranks=self._rows,
            in_flight_max_exact=self._parts <= 1,
            table=table,
        )

    def _compute(self, edges: np.ndarray) -> np.ndarray:
        """Compute-busy share of each bin, (rows, bins); nan if no rank is profiled."""
        spans = self._capture.spans
        compute = union_by_rank(spans, "compute")
        shares, profiled = np.zeros((len(self._rows), self._bins)), np.zeros(len(self._rows))
        for rank in np.unique(spans["rank"].to_numpy()).tolist():
            if rank in self._ranks:
                row = 0 if self._rows == (ALL_RANKS,) else self._ranks.index(rank)
                profiled[row] += 1
                shares[row] += compute.get(rank, Intervals()).covered_within(edges[:-1], edges[1:]) / self._bin_ns
        with np.errstate(invalid="ignore", divide="ignore"):
            result: np.ndarray = shares / profiled[:, None]
        return result


def _peaks(starts: np.ndarray, ends: np.ndarray, bin_ns: int, bins: int) -> np.ndarray:
    """int64 (bins,): most of these intervals, which are not empty, that share an instant of each bin.

    It is the largest number at a start within the bin, or the number in flight as the bin begins."""
    starts, ends = np.sort(starts), np.sort(ends)
    edges = bin_ns * np.arange(bins, dtype=np.int64)
    peaks = np.searchsorted(starts, edges) - np.searchsorted(ends, edges, side="right")
    at_starts = np.arange(1, len(starts) + 1) - np.searchsorted(ends, starts, side="right")
    place = starts // bin_ns
    first = runs(place)
    if len(first):
        peaks[place[first]] = np.maximum(peaks[place[first]], np.maximum.reduceat(at_starts, first))
    return peaks


class _Pieces(NamedTuple):
    """Parts (n,) of operations, each within one bin; times are relative to the operation's start."""

    operation: np.ndarray
    bin: np.ndarray
    start_ns: np.ndarray
    end_ns: np.ndarray


def _pieces(starts: np.ndarray, ends: np.ndarray, bin_ns: int) -> Iterator[_Pieces]:
    """Cut [starts[i], ends[i]) at the multiples of `bin_ns`; an empty one yields one empty piece. No time is
    negative."""
    first = starts // bin_ns
    count = np.maximum((ends - 1) // bin_ns, first) - first + 1
    total = np.cumsum(count)
    begin = 0
    while begin < len(starts):
        before = int(total[begin] - count[begin])
        stop = max(int(np.searchsorted(total, before + _PIECES, side="right")), begin + 1)
        operation = np.repeat(np.arange(begin, stop), count[begin:stop])
        number = np.arange(len(operation)) - (total - count)[operation] + before
        place = first[operation] + number
        edge = place * bin_ns - starts[operation]
        yield _Pieces(operation, place, np.maximum(edge, 0), np.minimum(edge + bin_ns, (ends - starts)[operation]))
        begin = stop


def _shares(whole: np.ndarray, length_ns: np.ndarray, part: _Pieces) -> np.ndarray:
    """int64 (n,): share of each piece in the amount of its operation, in proportion to time.

    The amount up to each instant is rounded down, so the pieces of an operation add up to its amount exactly.
    """
    per_ns = whole / np.maximum(length_ns, 1)
    until = np.where(part.end_ns >= length_ns, whole, (per_ns * part.end_ns).astype(np.int64))
    before = np.where(part.start_ns > 0, (per_ns * part.start_ns).astype(np.int64), 0)
    result: np.ndarray = np.minimum(until, whole) - np.minimum(before, whole)
    return result
