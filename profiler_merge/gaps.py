"""Differences between a capture's trace and its counters: missing and surplus operations."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from dxt_replay.profiler_merge.darshan.job_logs import JobLogs
from dxt_replay.profiler_merge.process_rows import RowTotals
from dxt_replay.traces.errors import LogError
from dxt_replay.traces.schema import Coverage, Unseen
from dxt_replay.traces.unseen import OBJECTS, recording_of

MOST_TRACED = 2.0
"""Factor by which the operations of a damaged trace may exceed the counters, which can be incomplete too."""


def refuse_rubbish(job: JobLogs, coverage: Coverage, files: pa.Table) -> None:
    """Raises: LogError if what is left of a damaged log contradicts its counters, in total or for one of `files`."""
    most = max(coverage.bytes or 0.0, coverage.operations or 0.0)
    of_file = pc.max(files["coverage"]).as_py() or 0.0
    if max(most, of_file) <= MOST_TRACED:
        return
    where = ""
    if most <= MOST_TRACED:
        where = f" of {files['path'][pc.index(files['coverage'], of_file).as_py()].as_py()}"
        most = of_file
    raise LogError(
        f"{job.first.path} is damaged beyond use: its trace holds {most:.3g} times what its counters saw{where}; "
        "merge an undamaged copy of the log"
    )


def gap_warnings(
    job: JobLogs, rows: RowTotals, coverage: Coverage, unseen: Sequence[Unseen], *, traced: int
) -> list[str]:
    """Warnings about operations that are rebuilt or missing. `traced`: number of operations in the trace."""
    warnings = []
    if rows.left_out:
        ((path, _),) = rows.left_out.most_common(1)
        others = f" and {len(rows.left_out) - 1} more files" if len(rows.left_out) > 1 else ""
        warnings.append(
            f"{rows.left_out.total():,} opens, closes, stats and syncs of {path}{others} are too many to "
            "rebuild: the capture has the reads and writes, and a replay omits the rest"
        )
    warnings += rows.rebuilt.warnings()
    if not traced:
        if any("DXT_POSIX" in process.log.damage for process in job.processes):
            return warnings
        if any(each.kind == OBJECTS for each in unseen):
            return warnings  # `unseen_warnings` names what DXT would not trace either
        if coverage.operations is None and recording_of(job.first.path) is not None and not job.damage:
            # `record` tries DXT before it starts the job, so DXT was on
            return [*warnings, "the job read and wrote no file through calls: a replay has nothing to read or write"]
        rest = "rests on counters alone" if rows.rebuilt.operations else "has no reads and writes at POSIX"
        warnings.append(
            f"no DXT in this log: a replay {rest}; record with DXT_ENABLE_IO_TRACE=1 in the environment of every "
            "process"
        )
        return warnings
    for share, what in zip(coverage.traceable, ("bytes", "operations"), strict=True):
        if share is not None and share < 1:
            warnings.append(f"the trace is partial: it holds {share:.1%} of the {what} that the counters saw")
            break
    return warnings
