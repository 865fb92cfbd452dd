"""One row per operation as comma-separated values (RFC 4180: CRLF, quotes doubled inside quotes), UTF-8."""

from __future__ import annotations

import csv
import io
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dxt_replay.profiler_merge.export.decimals import SECONDS, decimal_texts
from dxt_replay.profiler_merge.export.exported import Exported, ExportedFile
from dxt_replay.traces.csv_text import as_plain_text
from dxt_replay.traces.output import folder_beside, new_file, refusal
from dxt_replay.traces.schema import NO_STEP, OPS, VOCABULARY, codes
from dxt_replay.traces.store.rank_pieces import only_ranks, rank_pieces, work_of
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.workers.workers import ALONE, Workers

COLUMNS = (
    "rank", "lane", "op", "api", "path", "offset", "length", "start_s", "end_s", "step", "origin", "due_s", "result",
    "new_path",
)  # fmt: skip
"""Times in seconds from the capture's zero with all nine digits. Empty: an unknown offset or step, due_s and result
outside of replays, new_path except for renames. Paths are those of the files table; one that a spreadsheet would run as
a formula has an apostrophe before it (`traces.csv_text`). If the dependencies of the operations are known, `feeds`,
`follows` and `ready_s` follow."""

_DEPENDENCIES = ("feeds", "follows", "ready_s")
_RENAME = OPS.index("rename")

SLICE_ROWS = 1 << 13
"""Rows that are formatted at a time: Python's strings are some twenty times larger than a row."""


def write_csv(capture: Capture, output: Path, *, force: bool = False, workers: Workers = ALONE) -> Exported:
    """Write the operations of `capture` to the file `output`, in (rank, start) order. Memory: one row group.

    Several workers write pieces beside it, which are then joined.
    Raises: CaptureError when a part is damaged; TargetError when `output` exists and not `force`, or cannot be written.
    """
    with new_file(output, force=force) as file:
        rows = stream_csv(capture, file) if workers is ALONE else _join_pieces(capture, output, file, workers)
    written = ExportedFile(path=str(output), entries=rows, bytes=output.stat().st_size)
    return Exported(format="csv", output=str(output), operations=rows, files=(written,))


def _join_pieces(capture: Capture, output: Path, stream: IO[bytes], workers: Workers) -> int:
    pieces = rank_pieces(capture, workers.piece_operations)
    if len(pieces) == 1:
        return stream_csv(capture, stream)
    rows = 0
    stream.write(_lines([_column_names(capture)]))
    with folder_beside(output) as folder:
        work = _PieceWriter(capture=capture, folder=folder, output=output)
        with workers.results(work, pieces, operations=work_of(capture)) as results:
            for path, count in results:
                with open(path, "rb") as piece:
                    shutil.copyfileobj(piece, stream, 1 << 20)
                path.unlink()
                rows += count
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class _PieceWriter:
    """Writes the rows of some ranks to a file of its own; returns the file and the number of rows."""

    capture: Capture
    folder: Path
    output: Path

    def __call__(self, ranks: tuple[int, ...]) -> tuple[Path, int]:
        path = self.folder / f"{ranks[0]}.csv"
        try:
            with open(path, "wb") as stream:
                return path, _stream_rows(only_ranks(self.capture, ranks), stream)
        except OSError as error:
            raise refusal(error, self.output) from error


def stream_csv(capture: Capture, stream: IO[bytes]) -> int:
    """`write_csv` to an open stream, whose errors are the caller's; returns the number of rows without the header."""
    stream.write(_lines([_column_names(capture)]))
    return _stream_rows(capture, stream)


def _column_names(capture: Capture) -> tuple[str, ...]:
    return (*COLUMNS, *_DEPENDENCIES) if capture.info.dependencies == "known" else COLUMNS


def _stream_rows(capture: Capture, stream: IO[bytes]) -> int:
    names = _column_names(capture)
    paths = as_plain_text(pa.array(capture.paths(), type=pa.string()))
    rows = 0
    for batch in capture.operations():
        for begin in range(0, batch.num_rows, SLICE_ROWS):
            part = batch.slice(begin, SLICE_ROWS)
            stream.write(_lines(_rows(part, paths, names)))
            rows += part.num_rows
    return rows


def _lines(rows: Any) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\r\n").writerows(rows)
    return text.getvalue().encode("utf-8")


def _rows(batch: pa.RecordBatch, paths: pa.Array, names: tuple[str, ...]) -> Iterator[tuple[Any, ...]]:
    is_rename = codes(batch, "op") == _RENAME
    renames = pa.array(is_rename)
    new_file = pc.if_else(renames, batch.column("offset"), None)
    columns = {
        "rank": batch.column("rank"),
        "lane": batch.column("lane"),
        **{name: _names(batch, name) for name in ("op", "api", "origin")},
        "path": paths.take(batch.column("file_id")),
        "offset": pc.if_else(renames, None, _known(batch.column("offset"), -1)),
        "length": batch.column("length"),
        "start_s": decimal_texts(batch.column("start_ns").to_numpy(), SECONDS),
        "end_s": decimal_texts(batch.column("end_ns").to_numpy(), SECONDS),
        "step": _known(batch.column("step"), NO_STEP),
        "due_s": _seconds(batch.column("due_ns")),
        "result": batch.column("result"),
        "new_path": paths.take(new_file),
    }
    if names != COLUMNS:
        columns |= {name: batch.column(name) for name in ("feeds", "follows")}
        columns["ready_s"] = _seconds(batch.column("ready_ns"))
    return zip(*(columns[name].to_pylist() for name in names), strict=True)


def _names(batch: pa.RecordBatch, column: str) -> pa.Array:
    return pa.array(np.array(VOCABULARY[column], dtype=object)[codes(batch, column)], type=pa.string())


def _known(column: pa.Array, unknown: int) -> pa.Array:
    return pc.if_else(pc.equal(column, unknown), None, column)


def _seconds(times_ns: pa.Array) -> pa.Array:
    return pc.if_else(times_ns.is_null(), None, decimal_texts(times_ns.fill_null(0).to_numpy(), SECONDS))
