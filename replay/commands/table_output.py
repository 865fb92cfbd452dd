"""Writes a table of a command to a file as Parquet or comma-separated values (these also to standard output)."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dxt_replay.traces.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    from dxt_replay.profiler_merge.analysis.table_formats import StreamedTable

STANDARD_OUTPUT = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOutput:
    """Where a table goes. option: --csv or --parquet, which the user gave; path: None for standard output."""

    option: str
    path: Path | None
    force: bool

    @classmethod
    def of(cls, csv_file: str | None, parquet_file: Path | None, *, force: bool) -> TableOutput | None:
        """The chosen output; None without one. Raises: UsageError for both; TargetError if the file exists."""
        if csv_file is not None and parquet_file is not None:
            raise UsageError("--csv and --parquet write the same table: give one of them")
        if csv_file is None and parquet_file is None:
            return None
        path = None if csv_file == STANDARD_OUTPUT else Path(csv_file or parquet_file or "")
        if path is not None:
            from dxt_replay.traces.output import check_output

            check_output(path, force=force)
        return cls(option="--csv" if parquet_file is None else "--parquet", path=path, force=force)

    def write(self, table: pa.Table | StreamedTable) -> None:
        """Write the table batch by batch. Raises: TargetError when the file cannot be written."""
        from dxt_replay.profiler_merge.analysis.table_formats import write_csv, write_parquet
        from dxt_replay.traces.output import new_file

        if self.path is None:
            write_csv(table, sys.stdout.buffer)
            sys.stdout.buffer.flush()
            return
        with new_file(self.path, force=self.force) as stream:
            (write_csv if self.option == "--csv" else write_parquet)(table, stream)
