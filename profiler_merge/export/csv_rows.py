"""One row per operation as comma-separated values (RFC 4180: CRLF, quotes doubled inside quotes), UTF-8.

Not by `pyarrow.csv`, which quotes every text, decimals among them, and writes a nanosecond as 1E-9.
"""

from __future__ import annotations

from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.compute as pc

from dxt_replay.profiler_merge.export.exported import (
    SLICE_ROWS,
    Exported,
    ExportedFile,
    bytes_of,
    decimals,
    joined,
    known,
    names_of,
)
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
    dependencies = ("feeds", "follows", "follows_end") if capture.info.dependencies == "known" else ()
    stream.write(",".join((*COLUMNS, *dependencies, *(["ready_s"] if dependencies else []))).encode() + b"\r\n")
    texts = as_plain_text(pa.array(capture.paths(), type=pa.string()))
    quoted = pc.binary_join_element_wise('"', pc.replace_substring(texts, '"', '""'), '"', "")
    paths = pc.if_else(pc.match_substring_regex(texts, '[",\r\n]'), quoted, texts)
    rows = 0
    for batch in capture.operations():
        for begin in range(0, batch.num_rows, SLICE_ROWS):
            part = batch.slice(begin, SLICE_ROWS)
            column = {name: part.column(name) for name in part.schema.names}
            offset, step = column["offset"].to_numpy(), column["step"].to_numpy()
            line = joined(
                column["rank"], column["lane"], names_of(part, "op"), names_of(part, "api"),
                paths.take(column["file_id"]), known(offset, offset != -1), column["length"],
                decimals(column["start_ns"], 9), decimals(column["end_ns"], 9), known(step, step != NO_STEP),
                names_of(part, "origin"), decimals(column["due_ns"], 9), column["result"],
                paths.take(column["other_file_id"]), *(column[name] for name in dependencies),
                *([decimals(column["ready_ns"], 9)] if dependencies else []), separator=",",
            )  # fmt: skip
            stream.write(bytes_of(joined(line, "\r\n")))
            rows += part.num_rows
    return rows
