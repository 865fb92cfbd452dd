"""The course of a capture over time, in bins of any width: operations, bytes, in flight, busy, compute."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from dxt_replay.profiler_merge.analysis.collect import Begin, Collector, at_one_layer, collect
from dxt_replay.profiler_merge.analysis.in_flight import PeaksPerBin, peaks_over_ranks, pieces, shares
from dxt_replay.profiler_merge.analysis.tables import TABLES
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.layers import FileLayers
from dxt_replay.traces.measures._passes import add_at
from dxt_replay.traces.measures.intervals import Intervals, StreamingUnion
from dxt_replay.traces.measures.operation_rows import OperationRows
from dxt_replay.traces.measures.span_times import union_by_rank
from dxt_replay.traces.schema import RECONSTRUCTED, WRITE
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.units import MIB, NS_PER_S, format_count
from dxt_replay.traces.workers import ALONE, Workers

ALL_RANKS = -1
"""Rank of the rows over all ranks."""

DEFAULT_BINS = 200
MOST_CELLS = 1 << 22
"""Limit of bins times ranks of a timeline: 400 MB."""

MOST_RANKS_IN_STEP = 256
"""Limit of ranks whose streams are merged in time for the exact peak over all: 1 MB each."""

_MOST_CELLS_TOGETHER = 1 << 20
"""Limit of bins times ranks that are counted at once."""

_NO_PLACES = np.empty(0, dtype=np.int64)

_COUNTS = (
    "reads", "writes", "bytes_read", "bytes_written", "other_operations", "reconstructed", "in_flight_ns", "busy_ns",
)  # fmt: skip

SCHEMA = TABLES["timeline"].schema
"""One row per rank and bin. An operation counts in the bin in which it starts; its bytes are spread over the bins that
it covers. `in_flight_mean` is weighted with time."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Timeline:
    """`table`: `SCHEMA`, sorted by rank and time, no bin missing. `ranks`: those of the rows, (ALL_RANKS,) over all.

    `in_flight_max_exact`: False where the peak over all ranks is the sum of the ranks' peaks, an upper bound.
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
    first, last = _bounds(capture)
    width = bin_ns if bin_ns is not None else round_width_ns(last - first, bins)
    if width <= 0:
        raise UsageError("a bin is at least a nanosecond wide")
    if capture.part.from_ns is None:
        first -= first % width
    in_step = not per_rank and 1 < len(capture.ranks) <= MOST_RANKS_IN_STEP
    return partial(
        TimelineCollector, start_ns=first, end_ns=last, bin_ns=width, per_rank=per_rank, rank_peaks=not in_step
    )


def round_width_ns(length_ns: int, bins: int) -> int:
    """The least 1, 2 or 5 times a power of ten of which at most `bins` cover `length_ns`."""
    least = max(-(-length_ns // max(bins, 1)), 1)
    power = 1
    while 5 * power < least:
        power *= 10
    return next(times * power for times in (1, 2, 5) if times * power >= least)


def _bounds(capture: Capture) -> tuple[int, int]:
    begin, end = capture.part.from_ns, capture.part.until_ns
    first, last = capture.time_span_ns if begin is None or end is None else (0, 0)
    first, last = first if begin is None else begin, last if end is None else end
    return first, max(last, first + 1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Line:
    """Ranks whose times follow one another, all bins of one before those of the next.

    row: the first rank's row of the timeline. count: number of ranks, of which some may have no operations.
    places: int64 (operations,), the number of the operation's rank; empty if there is one rank.
    """

    row: int
    count: int
    places: np.ndarray


class TimelineCollector(Collector):
    """Collects a `Timeline` from rows of one rank after another.

    `rank_peaks`: whether the peaks of the ranks are collected, and added up over all ranks.
    """

    takes_several_ranks = True
    STAY = ("_capture", "_layers", "_union", "_line", "_rank_peaks")

    def __init__(
        self,
        capture: Capture,
        layers: FileLayers,
        *,
        start_ns: int,
        end_ns: int,
        bin_ns: int,
        per_rank: bool,
        rank_peaks: bool,
    ) -> None:
        self._capture = capture
        self._layers = layers
        self._start_ns = start_ns
        self._bin_ns = bin_ns
        self._ranks = capture.ranks
        self._rows = self._ranks if per_rank else (ALL_RANKS,)
        self._row = {rank: place if per_rank else 0 for place, rank in enumerate(self._ranks)}
        self._bins = -((start_ns - end_ns) // bin_ns)
        self._check()
        self._cells = {name: np.zeros((len(self._rows), self._bins), dtype=np.int64) for name in _COUNTS}
        self._peaks = np.zeros((len(self._rows), self._bins), dtype=np.int64)
        self._wants_peaks = rank_peaks
        self._rank: int | None = None
        self._union = StreamingUnion()
        self._line = _Line(row=0, count=1, places=_NO_PLACES)
        self._rank_peaks = PeaksPerBin(bin_ns)

    def add(self, rows: OperationRows) -> None:
        """Add rows, in start order."""
        rows = at_one_layer(rows, self._layers)
        if not len(rows):
            return
        traced = rows.data & (rows.origin != RECONSTRUCTED)
        starts, ends = rows.start_ns - self._start_ns, rows.end_ns - self._start_ns
        self._reach(max(int(starts.max()) + 1, int(ends.max(where=traced, initial=0))))
        line = self._line_of(rows)
        if line.count * self._bins > _MOST_CELLS_TOGETHER:
            for each in rows.each_rank():
                self.add(each)
            return
        if len(rows.ranks) or rows.rank != self._rank:
            self._finish_rank()
            self._rank, self._union = rows.rank, StreamingUnion()
        if line.count > 1:
            moved = line.places * (self._bins * self._bin_ns)
            starts, ends = starts + moved, ends + moved
        place = starts // self._bin_ns
        written = rows.op == WRITE
        if not traced.all():
            untraced = rows.origin == RECONSTRUCTED
            self._count("reconstructed", line, place[untraced])
            self._count("other_operations", line, place[~untraced & ~traced])
            some = np.flatnonzero(traced)
            starts, ends, place, written = starts[some], ends[some], place[some], written[some]
            length = rows.length[some]
        else:
            length = rows.length
        if not len(starts):
            return
        self._count("reads", line, place[~written])
        self._count("writes", line, place[written])
        self._spread(line, place, starts, ends, length, written)
        self._add_busy(line, *self._union.add(starts, ends))
        if self._wants_peaks:
            real = ends > starts
            self._rank_peaks.add(starts[real], ends[real])
        self._line = line
        if len(rows.ranks):
            self._finish_rank()

    def _line_of(self, rows: OperationRows) -> _Line:
        by_rank = rows.by_rank()
        if len(by_rank) == 1:
            return _Line(row=self._row[rows.rank], count=1, places=_NO_PLACES)
        if self._rows == (ALL_RANKS,):
            return _Line(row=0, count=len(by_rank), places=by_rank.index)
        own = np.array([self._row[rank] for rank in by_rank.ranks.tolist()])
        return _Line(row=int(own[0]), count=int(own[-1] - own[0]) + 1, places=np.repeat(own - own[0], by_rank.counts))

    def _add(self, column: str, line: _Line, place: np.ndarray, amounts: np.ndarray) -> None:
        """Add amounts to the cells at these bins of the line."""
        if self._rows == (ALL_RANKS,):
            add_at(self._cells[column][0], place % self._bins if line.count > 1 else place, amounts)
        else:
            add_at(self._cells[column].reshape(-1)[line.row * self._bins :], place, amounts)

    def _spread(
        self,
        line: _Line,
        place: np.ndarray,
        starts: np.ndarray,
        ends: np.ndarray,
        length: np.ndarray,
        written: np.ndarray,
    ) -> None:
        """Add the operations' bytes and durations to the bins that they cover. `place`: the bin of each start."""
        duration = ends - starts
        inside = ends <= (place + 1) * self._bin_ns
        self._add_moved(line, place, length * inside, written, duration * inside)
        if inside.all():
            return
        beyond = np.flatnonzero(~inside)
        length, written, duration = length[beyond], written[beyond], duration[beyond]
        for part in pieces(starts[beyond], ends[beyond], self._bin_ns):
            moved = shares(length, duration, part)
            self._add_moved(line, part.bin, moved, written[part.operation], part.end_ns - part.start_ns)

    def _add_moved(
        self, line: _Line, place: np.ndarray, moved: np.ndarray, written: np.ndarray, duration_ns: np.ndarray
    ) -> None:
        self._add("bytes_read", line, place, moved * ~written)
        self._add("bytes_written", line, place, moved * written)
        self._add("in_flight_ns", line, place, duration_ns)

    def _add_busy(self, line: _Line, starts: np.ndarray, ends: np.ndarray) -> None:
        for part in pieces(starts, ends, self._bin_ns):
            self._add("busy_ns", line, part.bin, part.end_ns - part.start_ns)

    def _count(self, column: str, line: _Line, place: np.ndarray) -> None:
        self._add(column, line, place, np.ones(len(place), dtype=np.int64))

    def _reach(self, end: int) -> None:
        """Make room for times before `end`."""
        needed = -(-end // self._bin_ns)
        if needed <= self._bins:
            return
        more = needed - self._bins
        self._bins = needed
        self._check()
        for name, cells in self._cells.items():
            self._cells[name] = np.pad(cells, ((0, 0), (0, more)))
        self._peaks = np.pad(self._peaks, ((0, 0), (0, more)))

    def _check(self) -> None:
        if self._bins * len(self._rows) > MOST_CELLS:
            raise UsageError(
                f"{format_count(self._bins)} bins for each of {len(self._rows)} rows are too many: "
                "choose wider bins, a shorter time window or fewer ranks"
            )

    def _finish_rank(self) -> None:
        if self._rank is not None and self._wants_peaks:
            row, count = self._line.row, self._line.count
            found = self._rank_peaks.peaks(count * self._bins).reshape(count, self._bins)
            if self._rows == (ALL_RANKS,):
                self._peaks[0] += found.sum(axis=0)
            else:
                self._peaks[row : row + count] += found
            self._rank_peaks = PeaksPerBin(self._bin_ns)
        self._rank = None

    def merge(self, later: TimelineCollector) -> None:
        """As `Sums.merge`."""
        self._finish_rank()
        later._finish_rank()
        self._reach(later._bins * self._bin_ns)
        rows = [0] if self._rows == (ALL_RANKS,) else [self._row[rank] for rank in later._ranks]
        for name, cells in later._cells.items():
            self._cells[name][rows, : later._bins] += cells
        peaks = later._peaks
        self._peaks[rows, : peaks.shape[1]] += peaks

    def __getstate__(self) -> dict[str, Any]:
        self._finish_rank()
        return super().__getstate__()

    def timeline(self) -> Timeline:
        """Timeline of all that was added. The peak over all ranks needs another pass.

        Raises: CaptureError when a part is damaged.
        """
        self._finish_rank()
        if not self._wants_peaks:
            bins = {"start_ns": self._start_ns, "bin_ns": self._bin_ns, "bins": self._bins}
            self._peaks[0] = peaks_over_ranks(self._capture, self._layers, **bins)
        return Timeline(
            bin_ns=self._bin_ns,
            start_ns=self._start_ns,
            bins=self._bins,
            ranks=self._rows,
            in_flight_max_exact=not self._wants_peaks or self._rows != (ALL_RANKS,) or len(self._ranks) <= 1,
            table=self._table(),
        )

    def _table(self) -> pa.Table:
        edges = self._start_ns + self._bin_ns * np.arange(self._bins + 1, dtype=np.int64)
        size = len(self._rows), self._bins
        cells = {name: column.ravel() for name, column in self._cells.items()}
        mib = MIB * self._bin_ns / NS_PER_S
        ranks = 1 if self._rows != (ALL_RANKS,) else max(len(self._ranks), 1)
        return pa.table(
            {
                "rank": np.repeat(np.array(self._rows, dtype=np.int32), self._bins),
                "start_ns": np.broadcast_to(edges[:-1], size).ravel(),
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

    def _compute(self, edges: np.ndarray) -> np.ndarray:
        """Compute-busy share of each bin, (rows, bins); nan if no rank is profiled."""
        spans = self._capture.spans
        compute = union_by_rank(spans, "compute")
        shares_ = np.zeros((len(self._rows), self._bins))
        profiled = np.zeros(len(self._rows))
        for rank in np.unique(spans["rank"].to_numpy()).tolist():
            if rank in self._row:
                profiled[self._row[rank]] += 1
                busy = compute.get(rank, Intervals())
                shares_[self._row[rank]] += busy.covered_within(edges[:-1], edges[1:]) / self._bin_ns
        with np.errstate(invalid="ignore", divide="ignore"):
            result: np.ndarray = shares_ / profiled[:, None]
        return result
