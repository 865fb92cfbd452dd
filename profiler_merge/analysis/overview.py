"""The contents of a page about a capture: its analyses, its course over time, and bars for a timeline."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dxt_replay.profiler_merge.analysis.analyse import Analysis, analyse
from dxt_replay.profiler_merge.analysis.bars import COLUMNS as BARS
from dxt_replay.profiler_merge.analysis.bars import MOST_BARS, Drawn, lane_bars, loop_bars
from dxt_replay.profiler_merge.analysis.finding import Finding
from dxt_replay.profiler_merge.analysis.findings import findings_of
from dxt_replay.profiler_merge.analysis.queries import made_by_query, relations
from dxt_replay.profiler_merge.analysis.steady_loop import waits_are_real
from dxt_replay.profiler_merge.analysis.tables import TABLES
from dxt_replay.profiler_merge.analysis.timeline import Timeline, timeline
from dxt_replay.traces.schema import CaptureInfo
from dxt_replay.traces.storage_limit import Limit
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.workers import ALONE, Workers

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

COURSE_BINS = 400
HEAT_BINS = 240
MOST_SHOWN_RANKS = 16

MOST_FILES = 16
MOST_POINTS = 4_000
"""Operations of all files together. A file with fewer than its share leaves the rest to the others."""

_SPREADING = 2_654_435_761
"""2**32 divided by the golden ratio: its multiples pick about every n-th operation without a period of n."""

_QUIET_SHARE = 0.001
"""Share of all bytes, and of all time in I/O and in compute, below which the beginning of a capture is quiet."""
_LEAST_QUIET_SHARE = 0.1
"""Least share of the charts' time that a quiet beginning must have to be cut off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MountTotals:
    """Files of one mount, and bytes of their traced reads and writes. `mount`: its directory; empty where unknown."""

    mount: str
    fs_type: str
    files: int
    bytes_read: int
    bytes_written: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FileOffsets:
    """A sample of one file's operations, rank after rank; int64 arrays (n,).

    written: 1 for a write, 0 for a read.
    operations: number of operations of the file, of which about one in `one_in` is in the sample.
    """

    file_id: int
    operations: int
    one_in: int
    rank: np.ndarray
    start_ns: np.ndarray
    end_ns: np.ndarray
    offset: np.ndarray
    length: np.ndarray
    written: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Overview:
    """The data of a page about one capture.

    `course`: over all ranks; `by_rank`: per rank, in wider bins.
    `lanes`, `loops`: of `shown_ranks` only: all ranks if there are few. `roles`: of their lanes, by (rank, lane), as
    far as they are known.
    `offsets`: operations of the busiest files; `mounts`: file systems, the busiest first. `sizes`: the
    table of that name.
    `quiet_until_ns`: end of a start-up with almost no I/O and compute; else the beginning of `course`.
    `paths`: of the files by file_id.
    `storage_limit`: of the training; None if it has no meaning.
    """

    name: str
    info: CaptureInfo
    analysis: Analysis
    findings: tuple[Finding, ...]
    course: Timeline
    by_rank: Timeline
    lanes: Drawn[tuple[int, int, str]]
    loops: Drawn[tuple[int, str]]
    roles: Mapping[tuple[int, int], str]
    shown_ranks: tuple[int, ...]
    offsets: tuple[FileOffsets, ...]
    mounts: tuple[MountTotals, ...]
    sizes: pa.Table
    quiet_until_ns: int
    paths: list[str]
    storage_limit: Limit | None = None

    def summary_json(self) -> dict[str, Any]:
        """The object of `dxt-replay summary --json`."""
        found = self.analysis.summary.as_json()
        return found if self.storage_limit is None else {**found, "storage_limit": self.storage_limit.as_json()}

    @property
    def waits_are_real(self) -> bool:
        """Whether the operations wait for each other as in training."""
        return waits_are_real(self.info)


def overview(
    capture: Capture, *, most_bars: int = MOST_BARS, workers: Workers = ALONE, limit: Limit | None = None
) -> Overview:
    """The data of a page about a capture, from several passes over its op stream.

    `limit`: the storage limit, from the causal model.
    """
    found = analyse(capture, workers=workers, saved_s=None if limit is None else limit.saved_between_s)
    shown = shown_ranks(found)
    course = timeline(capture, bins=COURSE_BINS, workers=workers)
    by_rank = timeline(capture, bins=HEAT_BINS, per_rank=True, workers=workers)
    with relations(capture, BARS, keep=True) as database:
        lanes = lane_bars(
            database,
            shown,
            most_bars=most_bars,
            centres_ns=moments(found, course),
            window_operations=most_bars * 3 // 16,
        )
        loops = loop_bars(database, capture.spans, shown, most_bars * 3 // 4)
        offsets = file_offsets(database, found.patterns.files, most_points=most_bars // 4)
        sizes = made_by_query(database, TABLES["sizes"])
        mounts = mount_totals(database, found.patterns.files)
    return Overview(
        name=capture.path.name,
        info=capture.info,
        analysis=found,
        findings=findings_of(found),
        course=course,
        by_rank=by_rank,
        lanes=lanes,
        loops=loops,
        roles=roles_of(capture, shown),
        shown_ranks=shown,
        offsets=offsets,
        mounts=mounts,
        sizes=sizes,
        quiet_until_ns=quiet_until_ns(course, found),
        paths=capture.paths(),
        storage_limit=limit,
    )


def quiet_until_ns(course: Timeline, analysis: Analysis) -> int:
    """Begin of the charts: after a start-up with almost no I/O and compute, but not after the first step.

    The beginning of `course` if the start-up is shorter than _LEAST_QUIET_SHARE."""
    column = {name: course.table[name].to_numpy() for name in course.table.column_names}
    moved = column["bytes_read"] + column["bytes_written"]
    quiet = course.bins
    for amount in (moved, column["io_busy_share"], np.nan_to_num(column["compute_busy_share"])):
        if amount.any():
            done = np.cumsum(amount, dtype=np.float64)
            quiet = min(quiet, int((done <= _QUIET_SHARE * done[-1]).sum()))
    until = course.start_ns + quiet * course.bin_ns
    if analysis.overlap.steps.num_rows:
        until = min(until, int(analysis.overlap.steps["start_ns"].to_numpy().min()))
    long_enough = until - course.start_ns >= _LEAST_QUIET_SHARE * course.bins * course.bin_ns
    return until if long_enough and quiet < course.bins else course.start_ns


def shown_ranks(analysis: Analysis, most: int = MOST_SHOWN_RANKS) -> tuple[int, ...]:
    """Ranks whose lanes are shown: all of them, or a half with the most I/O and a half evenly spread."""
    ranks = analysis.overlap.ranks["rank"].to_numpy().astype(np.int64)
    if len(ranks) <= most:
        return tuple(ranks.tolist())
    io_ns = analysis.overlap.ranks["io_ns"].to_numpy()
    busiest = ranks[np.argsort(-io_ns, kind="stable")[: most // 2]]
    others = np.setdiff1d(ranks, busiest)
    spread = others[np.linspace(0, len(others) - 1, most - len(busiest)).astype(np.int64)]
    return tuple(np.union1d(busiest, spread).tolist())


def roles_of(capture: Capture, ranks: Collection[int]) -> dict[tuple[int, int], str]:
    """(rank, lane) -> role of each lane of some ranks whose role is known."""
    found = capture.lanes.filter(pc.is_in(capture.lanes["rank"], pa.array(ranks, pa.int32())))
    columns = (found[name].to_pylist() for name in ("rank", "lane", "role"))
    return {(rank, lane): role for rank, lane, role in zip(*columns, strict=True) if role is not None}


def moments(analysis: Analysis, course: Timeline) -> list[tuple[str, int, int]]:
    """Stretches to show in full detail, (name, from, until) in ns: the bin that moved the most, and the slowest
    step."""
    found = []
    moved = course.table["bytes_read"].to_numpy() + course.table["bytes_written"].to_numpy()
    if len(moved) and moved.any():
        begin = course.start_ns + course.bin_ns * int(moved.argmax())
        found.append(("busiest moment", begin, begin + course.bin_ns))
    slowest = analysis.overlap.slowest(1)
    if slowest.num_rows:
        begin, duration, evaluation = (
            slowest[name][0].as_py() for name in ("start_ns", "duration_ns", "evaluation_ns")
        )
        found.append(("slowest step", begin, begin + duration + evaluation))
    return found


def mount_totals(database: DuckDBPyConnection, accessed: pa.Table) -> tuple[MountTotals, ...]:
    """Totals of each mount, the one that moved the most first. `accessed`: the table "files"."""
    database.register("accessed", accessed)
    found = database.sql("""SELECT mount, fs_type, count(*) AS files, sum(accessed.bytes_read)::BIGINT AS bytes_read,
            sum(accessed.bytes_written)::BIGINT AS bytes_written FROM accessed JOIN files USING (file_id)
        GROUP BY mount, fs_type ORDER BY sum(accessed.bytes_read + accessed.bytes_written) DESC, mount""")
    return tuple(MountTotals(**row) for row in found.to_arrow_table().to_pylist())


def file_offsets(
    database: DuckDBPyConnection, files: pa.Table, *, most_points: int = MOST_POINTS
) -> tuple[FileOffsets, ...]:
    """Traced reads and writes of the MOST_FILES files with the most of them, the most first.

    From the relations of a capture; `files`: its table of that name.
    """
    counts = files["reads"].to_numpy() + files["writes"].to_numpy()
    busiest = [place for place in np.argsort(-counts, kind="stable")[:MOST_FILES].tolist() if counts[place]]
    operations = {files["file_id"][place].as_py(): int(counts[place]) for place in busiest}
    one_in, left = {}, most_points
    for place, (file_id, count) in enumerate(sorted(operations.items(), key=lambda item: item[1])):
        share = max(left // (len(operations) - place), 1)
        one_in[file_id] = -(-count // share)
        left -= min(count, share)
    if not operations:
        return ()
    chosen = ", ".join(f"({file_id}, {(1 << 32) // one_in[file_id]})" for file_id in operations)
    found = database.sql(f"""SELECT file_id, rank, start_ns, end_ns, "offset", length, (op = 'write')::INT AS written
        FROM (SELECT file_id, rank, start_ns, end_ns, "offset", length, op, number, most,
                row_number() OVER (PARTITION BY file_id ORDER BY number) - 1 AS nth
            FROM transfers JOIN (VALUES {chosen}) AS chosen (file_id, most) USING (file_id) WHERE "offset" >= 0)
        WHERE nth * {_SPREADING} % {1 << 32} < most ORDER BY number""").to_arrow_table()
    columns = {name: found[name].to_numpy().astype(np.int64) for name in found.column_names}
    file_ids = columns.pop("file_id")
    return tuple(
        FileOffsets(
            file_id=file_id,
            operations=count,
            one_in=one_in[file_id],
            **{name: column[file_ids == file_id] for name, column in columns.items()},
        )
        for file_id, count in operations.items()
    )
