"""The course of a capture over time, in bins of any width: operations, bytes, in flight, busy, compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from dxt_replay.profiler_merge.analysis.collect import Collector, at_one_layer, collect
from dxt_replay.profiler_merge.analysis.tables import TABLES
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.layers import FileLayers
from dxt_replay.traces.measures._passes import add_at
from dxt_replay.traces.measures.intervals import Intervals, group_unions
from dxt_replay.traces.measures.operation_rows import OperationRows
from dxt_replay.traces.measures.span_times import union_by_rank
from dxt_replay.traces.schema import RECONSTRUCTED, WRITE
from dxt_replay.traces.stable_order import places_in_groups
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.units import MIB, NS_PER_S, format_count
from dxt_replay.traces.workers import ALONE, Workers

ALL_RANKS = -1
"""Rank of the rows over all ranks."""

DEFAULT_BINS = 200
MOST_CELLS = 1 << 22
"""Limit of bins times ranks of a timeline: 400 MB."""

_SUMS = (
    "reads", "writes", "bytes_read", "bytes_written", "other_operations", "reconstructed", "in_flight_ns", "busy_ns",
    "in_flight_max",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Timeline:
    """`table`: the table of that name, sorted by rank and time, no bin missing. `ranks`: those of the rows,
    (ALL_RANKS,) over all."""

    bin_ns: int
    start_ns: int
    bins: int
    ranks: tuple[int, ...]
    table: pa.Table

    def matrix(self, column: str) -> np.ndarray:
        """One column as an array (ranks, bins): a heat map. Float64 with nan where the column may be null."""
        values = self.table[column].to_numpy()
        return np.asarray(values).reshape(len(self.ranks), self.bins)

    def as_json(self) -> dict[str, Any]:
        """Plain values: the bins' width and first time, and `rows` as in the table."""
        plain = {"bin_ns": self.bin_ns, "start_ns": self.start_ns, "in_flight_max_exact": True}
        return {**plain, "rows": self.table.to_pylist()}

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
    """Timeline of traced reads and writes, in one pass over the operations.

    Bins are `bin_ns` wide, or at most about `bins` have a round width (1, 2 or 5 times a power of ten nanoseconds).
    They begin at a multiple of their width, or where the window begins; operations that end after the window have bins
    of their own. Memory: 24 bytes for each read and write.
    Raises: UsageError for more than MOST_CELLS bins; CaptureError when a part is damaged.
    """
    begin, end = capture.part.from_ns, capture.part.until_ns
    span = capture.time_span_ns
    first, last = span[0] if begin is None else begin, span[1] if end is None else end
    last = max(last, first + 1)
    width = bin_ns if bin_ns is not None else round_width_ns(last - first, bins)
    if width <= 0:
        raise UsageError("a bin is at least a nanosecond wide")
    if begin is None:
        first -= first % width
    rows = capture.ranks if per_rank else (ALL_RANKS,)
    most = -(-(max(last, span[1]) - first) // width)
    if most * len(rows) > MOST_CELLS:
        raise UsageError(
            f"{format_count(most)} bins for each of {len(rows)} rows are too many: "
            "choose wider bins, a shorter time window or fewer ranks"
        )
    collector = partial(_Collector, rows=rows, first=first, last=last, width=width, bins=int(most))
    found: Timeline = collect(capture, [collector], workers=workers)[0].timeline()
    return found


class _Collector(Collector):
    """Collects a `Timeline` of at most `bins` bins for `rows`, which are ranks or ALL_RANKS."""

    STAY = ("_capture", "_layers", "_rows", "_start_ns", "_length_ns", "_width")

    def __init__(
        self, capture: Capture, layers: FileLayers, *, rows: Sequence[int], first: int, last: int, width: int, bins: int
    ) -> None:
        self._capture, self._layers, self._rows = capture, layers, rows
        self._start_ns, self._length_ns, self._width = first, last - first, width
        self.cells = np.zeros((len(_SUMS), len(rows), bins), dtype=np.int64)
        self.used = np.zeros(bins, dtype=bool)
        self.times: list[np.ndarray] = []
        """Rank, start and end of reads and writes, (3, n) each."""

    def add(self, rows: OperationRows) -> None:
        """An operation counts in the bin in which it starts. Its bytes are spread over the bins that it covers in
        proportion to time: the amount up to each instant is rounded down, so the parts add up to it."""
        rows = at_one_layer(rows, self._layers)
        ranks = rows.ranks if len(rows.ranks) else np.full(len(rows), rows.rank)
        place, start, end = self._place(ranks), rows.start_ns - self._start_ns, rows.end_ns - self._start_ns
        rebuilt, written = rows.origin == RECONSTRUCTED, rows.op == WRITE
        moved = rows.data & ~rebuilt
        kinds = {"reads": moved & ~written, "writes": moved & written}
        for name, mask in {**kinds, "other_operations": ~moved & ~rebuilt, "reconstructed": rebuilt}.items():
            self._add(name, place[mask], start[mask] // self._width, np.ones(int(mask.sum()), dtype=np.int64))
        self.used[start // self._width] = True
        start, end, place, written, length = (each[moved] for each in (start, end, place, written, rows.length))
        self.times.append(np.stack((ranks[moved], start, end)))
        which, bins = _bins(start, end, self._width)
        self.used[bins] = True
        took, length = (end - start)[which], length[which]
        begin = np.maximum(bins * self._width - start[which], 0)
        until = np.minimum((bins + 1) * self._width - start[which], took)
        part = _moved(length, took, until) - np.where(begin > 0, _moved(length, took, begin), 0)
        self._add("bytes_read", place[which], bins, part * ~written[which])
        self._add("bytes_written", place[which], bins, part * written[which])
        self._add("in_flight_ns", place[which], bins, until - begin)

    def _place(self, ranks: np.ndarray) -> np.ndarray:
        return (
            np.zeros(len(ranks), dtype=np.int64) if self._rows == (ALL_RANKS,) else np.searchsorted(self._rows, ranks)
        )

    def _add(self, name: str, place: np.ndarray, bins: np.ndarray, amounts: np.ndarray) -> None:
        add_at(self.cells[_SUMS.index(name)].reshape(-1), place * len(self.used) + bins, amounts)

    def timeline(self) -> Timeline:
        """The timeline of all that was added."""
        rank, start, end = np.concatenate((np.empty((3, 0), dtype=np.int64), *self.times), axis=1)
        lasted = end > start
        rank, start, end = rank[lasted], start[lasted], end[lasted]
        place = self._place(rank)
        busy, group = group_unions(start, end, np.unique(rank, return_inverse=True)[1])
        which, bins = _bins(busy.starts, busy.ends, self._width)
        covered = np.minimum((bins + 1) * self._width, busy.ends[which])
        covered -= np.maximum(bins * self._width, busy.starts[which])
        of_group = self._place(np.unique(rank))
        self._add("busy_ns", of_group[group[which]], bins, covered)
        count = max(-(-self._length_ns // self._width), 1 + int(np.flatnonzero(self.used).max(initial=-1)))
        peaks = self.cells[_SUMS.index("in_flight_max")]
        bounds = np.searchsorted(place, np.arange(len(self._rows) + 1))
        for row, (first, last) in enumerate(pairwise(bounds.tolist())):
            peaks[row, :count] = _peaks(start[first:last], end[first:last], self._width, count)
        cells = {name: self.cells[number, :, :count].ravel() for number, name in enumerate(_SUMS)}
        edges = self._start_ns + self._width * np.arange(count + 1, dtype=np.int64)
        mib, sharing = MIB * self._width / NS_PER_S, 1 if self._rows != (ALL_RANKS,) else len(self._capture.ranks)
        columns = {
            **{name: cells[name] for name in _SUMS},
            "rank": np.repeat(np.array(self._rows, dtype=np.int32), count),
            "start_ns": np.tile(edges[:-1], len(self._rows)),
            "read_mib_s": cells["bytes_read"] / mib,
            "write_mib_s": cells["bytes_written"] / mib,
            "in_flight_mean": cells["in_flight_ns"] / self._width,
            "io_busy_share": cells["busy_ns"] / self._width / max(sharing, 1),
            "compute_busy_share": pa.array(_compute(self._capture, self._rows, edges).ravel(), from_pandas=True),
        }
        table = pa.table(columns).select(TABLES["timeline"].columns).cast(TABLES["timeline"].schema)
        return Timeline(bin_ns=self._width, start_ns=self._start_ns, bins=count, ranks=tuple(self._rows), table=table)


def _bins(start: np.ndarray, end: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    """For each bin that each interval covers, the number of the interval and that of the bin; at least one each."""
    first = start // width
    count = np.maximum((end - 1) // width, first) - first + 1
    which = np.repeat(np.arange(len(first)), count)
    return which, first[which] + places_in_groups(count)


def _moved(length: np.ndarray, took: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Bytes that operations have moved at times from their begins."""
    part = np.minimum((length / np.maximum(took, 1) * times).astype(np.int64), length)
    return np.where(times >= took, length, part)


def _peaks(starts: np.ndarray, ends: np.ndarray, width: int, bins: int) -> np.ndarray:
    """int64 (bins,): most of these intervals, which are not empty, that share an instant of each bin.

    It is the number in flight as the bin begins, or the largest at a start within it; ends come before starts."""
    starts, ends = np.sort(starts), np.sort(ends)
    edges = width * np.arange(bins, dtype=np.int64)
    peaks = np.searchsorted(starts, edges) - np.searchsorted(ends, edges, side="right")
    at_starts = np.arange(1, len(starts) + 1) - np.searchsorted(ends, starts, side="right")
    np.maximum.at(peaks, starts // width, at_starts)
    return peaks


def round_width_ns(length_ns: int, bins: int) -> int:
    """The least 1, 2 or 5 times a power of ten of which at most `bins` cover `length_ns`."""
    least = max(-(-length_ns // max(bins, 1)), 1)
    power = 1
    while 5 * power < least:
        power *= 10
    return next(times * power for times in (1, 2, 5) if times * power >= least)


def _compute(capture: Capture, rows: Sequence[int], edges: np.ndarray) -> np.ndarray:
    """Compute-busy share of each bin, (rows, bins), the mean of the profiled ranks; nan if none is."""
    compute = union_by_rank(capture.spans, "compute")
    shares, profiled = np.zeros((len(rows), len(edges) - 1)), np.zeros(len(rows))
    for rank in np.unique(capture.spans["rank"].to_numpy()).tolist():
        if rank in capture.ranks:
            row = 0 if rows == (ALL_RANKS,) else rows.index(rank)
            profiled[row] += 1
            shares[row] += compute.get(rank, Intervals()).covered_within(edges[:-1], edges[1:]) / (edges[1] - edges[0])
    with np.errstate(invalid="ignore", divide="ignore"):
        result: np.ndarray = shares / profiled[:, None]
    return result
