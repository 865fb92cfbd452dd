"""What a capture lacks, and what it has too much of: its trace, seen against the counters."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from profiler_merge.darshan.job_logs import JobLogs
from profiler_merge.process_rows import RowTotals
from traces.errors import LogError
from traces.schema import Coverage

MOST_TRACED = 2.0
"""Times of what was counted that a damaged trace may hold: counters can be incomplete too."""


def refuse_rubbish(job: JobLogs, coverage: Coverage, files: pa.Table) -> None:
    """Raises: LogError where what is left of a damaged trace contradicts the counters, in all or of one of `files`."""
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


def gap_warnings(rows: RowTotals, coverage: Coverage, *, traced: int) -> list[str]:
    """Warnings about operations that are rebuilt or missing. `traced`: how many operations the trace holds."""
    warnings = []
    if rows.left_out:
        warnings.append(f"{rows.left_out} operations of the counters are too many to reconstruct: a replay omits them")
    warnings += rows.rebuilt.warnings()
    if not traced:
        rest = "rests on counters alone" if rows.rebuilt.operations else "has no reads and writes at POSIX"
        warnings.append(
            f"no DXT in this log: a replay {rest}; record with DXT_ENABLE_IO_TRACE=1 in the environment of every "
            "process"
        )
        return warnings
    for share, what in ((coverage.bytes, "bytes"), (coverage.operations, "operations")):
        if share is not None and share < 1:
            warnings.append(f"the trace is partial: it holds {share:.1%} of the {what} that the counters saw")
            break
    return warnings
