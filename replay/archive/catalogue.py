"""A line for each job of an archive: what it was, what it moved, and what storage costs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from dxt_replay.profiler_merge.analysis.steady_loop import waits_are_real
from dxt_replay.profiler_merge.analysis.summary import Summary, summarise
from dxt_replay.profiler_merge.analysis.table_formats import to_pandas
from dxt_replay.profiler_merge.darshan.job_groups import program_of
from dxt_replay.profiler_merge.merge import merge
from dxt_replay.replay.archive.archive_jobs import CAPTURE_SUFFIX, ArchiveJob, ArchiveJobs
from dxt_replay.replay.causal.storage_limit import NoStorageLimitError, storage_limit
from dxt_replay.traces.errors import DxtReplayError, UsageError
from dxt_replay.traces.store.reader import Capture, open_capture
from dxt_replay.traces.units import NS_PER_S
from dxt_replay.traces.unseen import nothing_recorded
from dxt_replay.traces.workers.workers import Workers

if TYPE_CHECKING:
    import pandas as pd

CATALOGUE_SCHEMA = pa.schema(
    [
        ("name", pa.string()),
        ("job_id", pa.int64()),
        ("start", pa.timestamp("s", tz="UTC")),
        ("program", pa.string()),
        ("ranks", pa.int64()),
        ("run_time_s", pa.float64()),
        ("files", pa.int64()),
        ("reads", pa.int64()),
        ("writes", pa.int64()),
        ("metadata_operations", pa.int64()),
        ("bytes_read", pa.int64()),
        ("bytes_written", pa.int64()),
        ("traced_pct", pa.float64()),
        ("io_s", pa.float64()),
        ("io_pct", pa.float64()),
        ("bandwidth_mib_s", pa.float64()),
        ("median_transfer_bytes", pa.float64()),
        ("steps", pa.int64()),
        ("step_s", pa.float64()),
        ("compute_pct", pa.float64()),
        ("input_wait_pct", pa.float64()),
        ("storage_limit_pct", pa.float64()),
        ("partial", pa.bool_()),
        ("warnings", pa.int64()),
        ("error", pa.string()),
    ]
)
"""A row per job. Operations and bytes are those of the trace and those rebuilt from counters together; `traced_pct`
says how much of the counted bytes was traced. `io_s` (the mean of the ranks), `io_pct` (of the run time), the bandwidth
and the transfer size are of traced operations, null without any; what speaks of steps is null without a profile.
`error`: why the job could not be read; everything but its name is then null."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """The jobs of an archive. table: of CATALOGUE_SCHEMA. helpers: logs of processes that only looked like a part of a
    job, which have no row."""

    table: pa.Table
    helpers: int

    @property
    def failed(self) -> int:
        """Jobs that could not be read."""
        return int(pc.sum(pc.is_valid(self.table["error"])).as_py() or 0)

    def sorted_by(self, order: str) -> Catalogue:
        """Sorted by COLUMN, or COLUMN:asc or COLUMN:desc; without a direction numbers begin with the largest and texts
        and times with the least. Nulls come last. Raises: UsageError for another column.
        """
        name, direction = check_order(order)
        kind = CATALOGUE_SCHEMA.field(name).type
        number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
        down = direction == "desc" or (not direction and number)
        keys = [(name, "descending" if down else "ascending"), ("name", "ascending")]
        places = pc.sort_indices(self.table, sort_keys=keys[: 1 + (name != "name")])
        return Catalogue(table=self.table.take(places), helpers=self.helpers)

    def frame(self) -> pd.DataFrame:
        """The table as a DataFrame. Raises: MissingDependencyError without pandas."""
        return to_pandas(self.table)

    def as_json(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        return {"helpers": self.helpers, "jobs": [_plain(row) for row in self.table.to_pylist()]}


def check_order(order: str) -> tuple[str, str]:
    """Column and direction ("", asc or desc) of what `Catalogue.sorted_by` takes. Raises: UsageError."""
    name, colon, direction = order.partition(":")
    if name not in CATALOGUE_SCHEMA.names or direction not in (("asc", "desc") if colon else ("",)):
        raise UsageError(f"--sort {order}: give one of {', '.join(CATALOGUE_SCHEMA.names)}, or with :asc or :desc")
    return name, direction


def catalogue(
    archive: ArchiveJobs,
    workers: Workers,
    on_job: Callable[[Mapping[str, Any]], None] = lambda row: None,
    named: Callable[[str], str] = str,
) -> Catalogue:
    """The line of each job; logs are merged into a temporary directory for it, one job at a time for each worker.

    `named`: the text of an error, or a path, as the user knows the paths in it.
    Raises: WorkerError. A job that cannot be read is a row with its error.
    """
    rows = []
    with (
        TemporaryDirectory(prefix="dxt-replay-") as folder,  # not in the worker, which may end at any time
        workers.results(_Line(folder=Path(folder)), archive.jobs, operations=archive.operations, named=str) as results,
    ):
        for row in results:
            on_job(row)
            rows.append({**row, "error": named(row["error"])} if "error" in row else row)
    rows += [{"name": named(str(path)), "error": named(why)} for path, why in sorted(archive.unread.items())]
    return Catalogue(table=_table(rows), helpers=archive.helpers)


def _table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    columns = [pa.array([row.get(field.name) for row in rows], field.type) for field in CATALOGUE_SCHEMA]
    return pa.Table.from_arrays(columns, schema=CATALOGUE_SCHEMA)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    folder: Path

    def __call__(self, job: ArchiveJob) -> dict[str, Any]:
        try:
            if not job.logs:
                return {"name": job.name, **line_of(open_capture(job.path))}
            here = self.folder if self.folder.is_dir() else None  # a worker on another machine has one of its own
            with TemporaryDirectory(dir=here) as place:
                capture = Path(place, f"job{CAPTURE_SUFFIX}")
                merge(job.logs, [], capture)
                return {"name": job.name, **line_of(open_capture(capture, named=job.path))}
        except (DxtReplayError, OSError) as error:
            return {"name": job.name, "error": str(error)}


def line_of(capture: Capture) -> dict[str, Any]:
    """The row of a capture, without its name. Raises: CaptureError when the capture is damaged."""
    found = summarise(capture)
    info = capture.info
    traced = found.operations.read + found.operations.write > 0
    recorded = not nothing_recorded(found.coverage.unseen)
    return {
        "job_id": info.job.job_id,
        "start": datetime.fromtimestamp(info.job.start_ns // NS_PER_S, timezone.utc) if info.job.start_ns > 0 else None,
        "program": program_of(info.job.exe.strip()) or None,
        "ranks": len(capture.ranks),
        "run_time_s": info.job.run_time_s or None,
        **(_counts(capture, found) if recorded else {}),
        "traced_pct": None if found.coverage.bytes is None else 100 * found.coverage.bytes,
        "partial": info.partial,
        "warnings": len(info.warnings),
        **(_of_io(found) if traced else {}),
        **_of_steps(capture, found),
    }


def _counts(capture: Capture, found: Summary) -> dict[str, int]:
    rebuilt = found.reconstructed
    return {
        "files": capture.files.num_rows,
        "reads": found.operations.read + rebuilt.read,
        "writes": found.operations.write + rebuilt.write,
        "metadata_operations": found.operations.other + rebuilt.other,
        "bytes_read": found.bytes.read + rebuilt.bytes_read,
        "bytes_written": found.bytes.written + rebuilt.bytes_written,
    }


def _of_io(found: Summary) -> dict[str, Any]:
    io_s, run_time_s = found.io_time_s.union_per_rank_mean, found.job.run_time_s
    return {
        "io_s": io_s,
        "io_pct": 100 * io_s / run_time_s if run_time_s else None,
        "bandwidth_mib_s": found.aggregate_bandwidth_mib_s,
        "median_transfer_bytes": found.transfer_size_bytes.median,
    }


def _of_steps(capture: Capture, found: Summary) -> dict[str, Any]:
    if not found.steps.count:
        return {"steps": 0}
    loop = found.loop
    return {
        "steps": found.steps.count,
        "step_s": found.steps.mean_s,
        "compute_pct": None if loop is None else loop.compute_pct,
        "input_wait_pct": None if loop is None else loop.input_wait_pct,
        "storage_limit_pct": _limit_pct(capture),
    }


def _limit_pct(capture: Capture) -> float | None:
    if not waits_are_real(capture.info):
        return None
    try:
        return storage_limit(capture).limit_pct
    except NoStorageLimitError:
        return None


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in row.items()}
