"""One row per operation as comma-separated values (RFC 4180: CRLF, quotes doubled inside quotes), UTF-8."""

from __future__ import annotations

import csv
import io
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa

from dxt_replay.profiler_merge.export._row_text import Part, Texts, row_text
from dxt_replay.profiler_merge.export.exported import Exported, ExportedFile
from dxt_replay.profiler_merge.export.numbers import SECONDS, TRUTH, known_numbers
from dxt_replay.traces.csv_text import as_plain_text
from dxt_replay.traces.output import folder_beside, new_file, refusal
from dxt_replay.traces.schema import NO_STEP, VOCABULARY, codes
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
`follows`, `follows_end` (true or false) and `ready_s` follow."""

_DEPENDENCIES = ("feeds", "follows", "follows_end", "ready_s")
_NAMES = {column: Texts([name.encode() for name in VOCABULARY[column]]) for column in ("op", "api", "origin")}

SLICE_ROWS = 1 << 14
"""Rows that are formatted at a time, some 2 MB."""


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
    paths = as_plain_text(pa.array(capture.paths(), type=pa.string()))
    # a second field: the writer quotes an empty line
    texts = Texts([_lines([(path, "")]).removesuffix(b",\r\n") for path in paths.to_pylist()])
    with_dependencies = _column_names(capture) != COLUMNS
    rows = 0
    for batch in capture.operations():
        for begin in range(0, batch.num_rows, SLICE_ROWS):
            part = batch.slice(begin, SLICE_ROWS)
            text, _ = row_text(part.num_rows, _parts(part, texts, with_dependencies))
            stream.write(text)
            rows += part.num_rows
    return rows


def _lines(rows: Any) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\r\n").writerows(rows)
    return text.getvalue().encode("utf-8")


def _parts(batch: pa.RecordBatch, paths: Texts, with_dependencies: bool) -> list[Part]:
    """The columns of a batch, as text. `paths`: by file_id, quoted where they need it."""
    new_name, is_rename = known_numbers(batch, "other_file_id")
    offset = batch.column("offset").to_numpy()
    columns = [
        Part(b"", batch.column("rank").to_numpy()),
        Part(b",", batch.column("lane").to_numpy()),
        _names(batch, "op"),
        _names(batch, "api"),
        Part(b",", batch.column("file_id").to_numpy(), texts=paths),
        *_optional(offset, offset != -1),
        Part(b",", batch.column("length").to_numpy()),
        Part(b",", batch.column("start_ns").to_numpy(), digits=SECONDS),
        Part(b",", batch.column("end_ns").to_numpy(), digits=SECONDS),
        *_optional(step := batch.column("step").to_numpy(), step != NO_STEP),
        _names(batch, "origin"),
        *_nullable(batch, "due_ns", digits=SECONDS),
        *_nullable(batch, "result"),
        Part(b","),
        Part(b"", new_name, texts=paths, present=is_rename),
    ]
    if with_dependencies:
        ends, known = known_numbers(batch, "follows_end")
        columns += [*_nullable(batch, "feeds"), *_nullable(batch, "follows")]
        columns += [Part(b","), Part(b"", ends, texts=TRUTH, present=known)]
        columns += _nullable(batch, "ready_ns", digits=SECONDS)
    return [*columns, Part(b"\r\n")]


def _names(batch: pa.RecordBatch, column: str) -> Part:
    return Part(b",", codes(batch, column), texts=_NAMES[column])


def _optional(values: np.ndarray, known: np.ndarray, digits: int = 0) -> list[Part]:
    return [Part(b","), Part(b"", values, present=known, digits=digits)]


def _nullable(batch: pa.RecordBatch, column: str, digits: int = 0) -> list[Part]:
    return _optional(*known_numbers(batch, column), digits=digits)
