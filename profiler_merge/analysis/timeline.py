"""The course of a capture over time, in bins of any width: operations, bytes, in flight, busy, compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from dxt_replay.profiler_merge.analysis.queries import relations
from dxt_replay.profiler_merge.analysis.tables import TABLES
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.measures.intervals import Intervals
from dxt_replay.traces.measures.span_times import union_by_rank
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.units import MIB, NS_PER_S, format_count

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

ALL_RANKS = -1
"""Rank of the rows over all ranks."""

DEFAULT_BINS = 200
MOST_CELLS = 1 << 22
"""Limit of bins times ranks of a timeline: 400 MB."""

COLUMNS = ("rank", "length", "start_ns", "end_ns")
"""Columns of the relation `ops` that it is made of, beside those that it always has."""

_QUERY = """WITH mine AS MATERIALIZED (SELECT {row} AS row, rank, number, start_ns - {begin} AS s,
        end_ns - {begin} AS e, op, length, data AND origin <> 'reconstructed' AS moved,
        origin = 'reconstructed' AS rebuilt FROM ops WHERE counted),
    cells AS (SELECT row, unnest(range((
        SELECT (greatest({length}, max(s) + 1, max(e) FILTER (moved)) - 1) // {width} + 1 FROM mine))) AS bin
        FROM (SELECT unnest({rows}) AS row)),
    begun AS (SELECT row, s // {width} AS bin, count(*) FILTER (moved AND op = 'read') AS reads,
        count(*) FILTER (moved AND op = 'write') AS writes,
        count(*) FILTER (NOT moved AND NOT rebuilt) AS other_operations,
        count(*) FILTER (rebuilt) AS reconstructed FROM mine GROUP BY ALL),
    pieces AS (SELECT row, op, bin, length, took, length / greatest(took, 1) AS per_ns,
        greatest(bin * {width} - s, 0) AS first, least((bin + 1) * {width} - s, took) AS last
        FROM (SELECT *, e - s AS took,
            unnest(range(s // {width}, greatest((e - 1) // {width}, s // {width}) + 1)) AS bin FROM mine WHERE moved)),
    moved AS (SELECT row, bin, sum(part) FILTER (op = 'read') AS bytes_read, sum(part) FILTER (op = 'write')
        AS bytes_written, sum(last - first) AS in_flight_ns FROM (SELECT *,
            least(if(last >= took, length, trunc(per_ns * last)::BIGINT), length)
            - least(if(first > 0, trunc(per_ns * first)::BIGINT, 0), length) AS part FROM pieces) GROUP BY ALL),
    covered AS (SELECT row, greatest(s, reached) AS s, e FROM (SELECT *, coalesce(max(e) OVER (PARTITION BY rank
        ORDER BY number ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), s) AS reached FROM mine WHERE moved)
        WHERE e > greatest(s, reached)),
    busy AS (SELECT row, bin, sum(least((bin + 1) * {width}, e) - greatest(bin * {width}, s)) AS busy_ns
        FROM (SELECT *, unnest(range(s // {width}, (e - 1) // {width} + 1)) AS bin FROM covered) GROUP BY ALL),
    changes AS (SELECT row, s AS moment, 1 AS change FROM mine WHERE moved AND e > s
        UNION ALL SELECT row, e, -1 FROM mine WHERE moved AND e > s UNION ALL SELECT row, bin * {width}, 0 FROM cells),
    peaks AS (SELECT row, moment // {width} AS bin, max(level) FILTER (change >= 0) AS in_flight_max
        FROM (SELECT *, sum(change) OVER (PARTITION BY row ORDER BY moment, change ROWS UNBOUNDED PRECEDING) AS level
            FROM changes) GROUP BY ALL)
    SELECT row, bin, {sums} FROM cells LEFT JOIN begun USING (row, bin) LEFT JOIN moved USING (row, bin)
        LEFT JOIN busy USING (row, bin) LEFT JOIN peaks USING (row, bin) ORDER BY row, bin"""
"""An operation counts in the bin in which it starts. Its bytes are spread over the bins that it covers in proportion
to time: the amount up to each instant is rounded down, so the parts add up to it. At an instant ends come before
starts."""

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
    capture: Capture, *, bin_ns: int | None = None, bins: int = DEFAULT_BINS, per_rank: bool = False
) -> Timeline:
    """Timeline of traced reads and writes.

    Bins are `bin_ns` wide, or at most about `bins` have a round width (1, 2 or 5 times a power of ten nanoseconds).
    They begin at a multiple of their width, or where the window begins; operations that end after the window have bins
    of their own. Raises: UsageError for more than MOST_CELLS bins; CaptureError when a part is damaged.
    """
    with relations(capture, COLUMNS) as database:
        return timeline_of(database, capture, bin_ns=bin_ns, bins=bins, per_rank=per_rank)


def timeline_of(
    database: DuckDBPyConnection,
    capture: Capture,
    *,
    bin_ns: int | None = None,
    bins: int = DEFAULT_BINS,
    per_rank: bool = False,
) -> Timeline:
    """As `timeline`, from the relations of the capture."""
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
    sql = _QUERY.format(
        row="rank" if per_rank else ALL_RANKS,
        rows=list(rows),
        begin=first,
        length=last - first,
        width=width,
        sums=", ".join(f"coalesce({name}, 0)::BIGINT AS {name}" for name in _SUMS),
    )
    found = database.sql(sql).to_arrow_table()
    cells = {name: found[name].to_numpy() for name in found.column_names}
    edges = first + width * np.arange(len(found) // max(len(rows), 1) + 1, dtype=np.int64)
    mib = MIB * width / NS_PER_S
    sharing = 1 if per_rank else max(len(capture.ranks), 1)
    columns = {
        **{name: cells[name] for name in _SUMS},
        "rank": cells["row"],
        "start_ns": first + width * cells["bin"],
        "read_mib_s": cells["bytes_read"] / mib,
        "write_mib_s": cells["bytes_written"] / mib,
        "in_flight_mean": cells["in_flight_ns"] / width,
        "io_busy_share": cells["busy_ns"] / width / sharing,
        "compute_busy_share": pa.array(_compute(capture, rows, edges).ravel(), from_pandas=True),
    }
    table = pa.table(columns).select(TABLES["timeline"].columns).cast(TABLES["timeline"].schema)
    return Timeline(bin_ns=width, start_ns=first, bins=len(edges) - 1, ranks=rows, table=table)


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
