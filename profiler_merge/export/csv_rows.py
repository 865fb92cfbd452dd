"""One row per operation as comma-separated values (RFC 4180: CRLF, quotes doubled inside quotes), UTF-8."""

from __future__ import annotations

from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.compute as pc

from dxt_replay.profiler_merge.export.exported import Exported, ExportedFile
from dxt_replay.profiler_merge.export.row_text import SLICE_ROWS, bytes_of, decimals, joined, known, names
from dxt_replay.traces.csv_text import as_plain_text
from dxt_replay.traces.output import new_file
from dxt_replay.traces.schema import NO_STEP
from dxt_replay.traces.store.reader import Capture

COLUMNS = (
    "rank", "lane", "op", "api", "path", "offset", "length", "start_s", "end_s", "step", "origin", "due_s", "result",
    "new_path",
)  # fmt: skip
"""Times in seconds from the capture's zero with all nine digits. Empty: an unknown offset or step, due_s and result
outside of replays, new_path except for renames. Paths are those of the files table; one that a spreadsheet would run as
a formula has an apostrophe before it (`traces.csv_text`). If the dependencies of the operations are known, `feeds`,
`follows`, `follows_end` (true or false) and `ready_s` follow."""

_DEPENDENCIES = ("feeds", "follows", "follows_end", "ready_s")
_SECONDS = 9


def write_csv(capture: Capture, output: Path, *, force: bool = False) -> Exported:
    """Write the operations of `capture` to the file `output`, in (rank, start) order. Memory: one row group.

    Raises: CaptureError when a part is damaged; TargetError when `output` exists and not `force`, or cannot be written.
    """
    with new_file(output, force=force) as file:
        rows = stream_csv(capture, file)
    written = ExportedFile(path=str(output), entries=rows, bytes=output.stat().st_size)
    return Exported(format="csv", output=str(output), operations=rows, files=(written,))


def stream_csv(capture: Capture, stream: IO[bytes]) -> int:
    """`write_csv` to an open stream, whose errors are the caller's; returns the number of rows without the header."""
    dependencies = capture.info.dependencies == "known"
    stream.write(",".join(COLUMNS + _DEPENDENCIES if dependencies else COLUMNS).encode() + b"\r\n")
    paths = _quoted(as_plain_text(pa.array(capture.paths(), type=pa.string())))
    rows = 0
    for batch in capture.operations():
        for begin in range(0, batch.num_rows, SLICE_ROWS):
            part = batch.slice(begin, SLICE_ROWS)
            stream.write(bytes_of(_lines(part, paths, dependencies)))
            rows += part.num_rows
    return rows


def _quoted(texts: pa.StringArray) -> pa.StringArray:
    inside = pc.binary_join_element_wise('"', pc.replace_substring(texts, '"', '""'), '"', "")
    return pc.if_else(pc.match_substring_regex(texts, '[",\r\n]'), inside, texts)


def _lines(batch: pa.RecordBatch, paths: pa.StringArray, dependencies: bool) -> pa.StringArray:
    offset, step = (batch.column(name).to_numpy() for name in ("offset", "step"))
    columns: list[pa.Array | str] = [
        str(batch.column("rank")[0]),  # a batch holds one rank
        batch.column("lane"),
        names(batch, "op"),
        names(batch, "api"),
        paths.take(batch.column("file_id")),
        known(offset, offset != -1),
        batch.column("length"),
        decimals(batch.column("start_ns"), _SECONDS),
        decimals(batch.column("end_ns"), _SECONDS),
        known(step, step != NO_STEP),
        names(batch, "origin"),
        decimals(batch.column("due_ns"), _SECONDS),
        batch.column("result"),
        paths.take(batch.column("other_file_id")),
    ]
    if dependencies:
        columns += [batch.column(name) for name in ("feeds", "follows", "follows_end")]
        columns.append(decimals(batch.column("ready_ns"), _SECONDS))
    return joined(joined(*columns, separator=","), "\r\n")
