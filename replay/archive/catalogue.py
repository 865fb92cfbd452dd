"""Makes a table with a row for each job of an archive: its program, the bytes it moved, and the cost of its storage."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
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
from dxt_replay.profiler_merge.merge import merge
from dxt_replay.replay.archive.archive_jobs import CAPTURE_SUFFIX, ArchiveJob, ArchiveJobs
from dxt_replay.replay.causal.storage_limit import NoStorageLimitError, storage_limit
from dxt_replay.traces.errors import DxtReplayError, UsageError
from dxt_replay.traces.plain import plain
from dxt_replay.traces.store.reader import Capture, open_capture
from dxt_replay.traces.text import program_of
from dxt_replay.traces.units import NS_PER_S
from dxt_replay.traces.unseen import nothing_recorded
from dxt_replay.traces.workers.workers import Workers

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, kw_only=True)
class CataloguedJob:
    """One job of the table.

    Operations and bytes: of the trace and those rebuilt from counters together. traced_pct: traced share of the counted
    bytes. io_s (mean of the ranks), io_pct (of the run time), bandwidth and transfer size: of traced operations, None
    without any. step_s and the shares of the training loop: None without a profile.
    error: why the job could not be read; all fields but its name are then None.
    """

    name: str
    job_id: int | None = None
    start: datetime | None = None
    program: str | None = None
    ranks: int | None = None
    run_time_s: float | None = None
    files: int | None = None
    reads: int | None = None
    writes: int | None = None
    metadata_operations: int | None = None
    bytes_read: int | None = None
    bytes_written: int | None = None
    traced_pct: float | None = None
    io_s: float | None = None
    io_pct: float | None = None
    bandwidth_mib_s: float | None = None
    median_transfer_bytes: float | None = None
    steps: int | None = None
    step_s: float | None = None
    compute_pct: float | None = None
    input_wait_pct: float | None = None
    storage_limit_pct: float | None = None
    partial: bool | None = None
    warnings: int | None = None
    error: str | None = None


_ARROW = {
    "str": pa.string(),
    "int": pa.int64(),
    "float": pa.float64(),
    "bool": pa.bool_(),
    "datetime": pa.timestamp("s", tz="UTC"),
}
"""Type of a field of `CataloguedJob` -> that of its column."""

CATALOGUE_SCHEMA = pa.schema(
    [(each.name, _ARROW[str(each.type).removesuffix(" | None")]) for each in dataclasses.fields(CataloguedJob)]
)
"""A row per job: the fields of `CataloguedJob`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """The jobs of an archive. table: of CATALOGUE_SCHEMA. helpers: number of logs of short processes beside a job, such
    as `uname`, which have no row."""

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

    @property
    def jobs(self) -> list[CataloguedJob]:
        """The rows of the table."""
        return [CataloguedJob(**row) for row in self.table.to_pylist()]

    def as_json(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        return {"helpers": self.helpers, "jobs": plain(self.jobs)}


def check_order(order: str) -> tuple[str, str]:
    """Column and direction ("", asc or desc) of what `Catalogue.sorted_by` takes. Raises: UsageError."""
    name, colon, direction = order.partition(":")
    if name not in CATALOGUE_SCHEMA.names or direction not in (("asc", "desc") if colon else ("",)):
        raise UsageError(f"--sort {order}: give one of {', '.join(CATALOGUE_SCHEMA.names)}, or with :asc or :desc")
    return name, direction


def catalogue(
    archive: ArchiveJobs,
    workers: Workers,
    on_job: Callable[[CataloguedJob], None] = lambda job: None,
) -> Catalogue:
    """The row of each job. Each worker merges the logs of one job at a time into a temporary directory.

    Raises: WorkerError. A job that cannot be read is a row with its error.
    """
    jobs: list[CataloguedJob] = []
    with (
        TemporaryDirectory(prefix="dxt-replay-") as folder,  # not in the worker, which may end at any time
        workers.results(_Line(folder=Path(folder)), archive.jobs, operations=archive.operations, named=str) as results,
    ):
        for job in results:
            on_job(job)
            jobs.append(job)
    unread = sorted(archive.unread.items())
    jobs += [CataloguedJob(name=str(path), error=why) for path, why in unread]
    table = pa.Table.from_pylist(list(map(dataclasses.asdict, jobs)), schema=CATALOGUE_SCHEMA)
    return Catalogue(table=table, helpers=archive.helpers)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    folder: Path

    def __call__(self, job: ArchiveJob) -> CataloguedJob:
        try:
            if not job.logs:
                return catalogued(job.name, open_capture(job.path))
            here = self.folder if self.folder.is_dir() else None  # a worker on another machine has one of its own
            with TemporaryDirectory(dir=here) as place:
                capture = Path(place, f"job{CAPTURE_SUFFIX}")
                merge(job.logs, [], capture)
                return catalogued(job.name, open_capture(capture, named=job.path))
        except (DxtReplayError, OSError) as error:
            return CataloguedJob(name=job.name, error=str(error))


def catalogued(name: str, capture: Capture) -> CataloguedJob:
    """The row of a capture. Raises: CaptureError when the capture is damaged."""
    found = summarise(capture)
    info = capture.info
    traced = found.operations.read + found.operations.write > 0
    recorded = not nothing_recorded(found.coverage.unseen)
    return CataloguedJob(
        name=name,
        job_id=info.job.job_id,
        start=datetime.fromtimestamp(info.job.start_ns // NS_PER_S, timezone.utc) if info.job.start_ns > 0 else None,
        program=program_of(info.job.exe.strip()) or None,
        ranks=len(capture.ranks),
        run_time_s=info.job.run_time_s or None,
        traced_pct=None if found.coverage.bytes is None else 100 * found.coverage.bytes,
        partial=info.partial,
        warnings=len(info.warnings),
        **(_counts(capture, found) if recorded else {}),
        **(_of_io(found) if traced else {}),
        **_of_steps(capture, found),
    )


def _counts(capture: Capture, found: Summary) -> dict[str, Any]:
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
