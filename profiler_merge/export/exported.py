"""The result of an export, what the formats share (the rows of a rank, and the text of many rows at once), and CSV.

CSV is RFC 4180 (CRLF, quotes doubled inside quotes) in UTF-8. Not by `pyarrow.csv`, which quotes every text, decimals
among them, and writes a nanosecond as 1E-9.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dxt_replay.traces.csv_text import as_plain_text
from dxt_replay.traces.output import new_file
from dxt_replay.traces.plain import plain
from dxt_replay.traces.schema import NO_STEP, OPS_SCHEMA, VOCABULARY, codes
from dxt_replay.traces.store.reader import Capture

SLICE_ROWS = 1 << 14
"""Rows that are formatted at a time, some 4 MB: all of a row group would not fit a cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedFile:
    """One written file: events, rows or actions in it, and its size."""

    path: str
    entries: int
    bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A whole export.

    operations: number of operations in it.
    left_out: reason -> number of operations left out for it.
    notes: sentences for the user on what the format could not keep.
    """

    format: str
    output: str
    operations: int
    left_out: Mapping[str, int] = field(default_factory=dict)
    files: tuple[ExportedFile, ...]
    notes: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The object that `dxt-replay export --json` prints."""
        return dict(plain(self))


def rank_columns(capture: Capture, rank: int, names: list[str]) -> dict[str, np.ndarray]:
    """Columns of all operations of a rank, in start order: enumerated ones as codes, nulls as 0, or -1 for a file."""
    batches = list(capture.operations(rank, columns=names))
    rows = pa.Table.from_batches(batches) if batches else OPS_SCHEMA.empty_table()
    return {
        name: codes(rows, name)
        if name in VOCABULARY
        else pc.fill_null(rows[name], -1 if name == "other_file_id" else 0).to_numpy()
        for name in names
    }


def names_of(batch: pa.RecordBatch, column: str) -> pa.StringArray:
    """The names of an enumerated column."""
    return pa.array(VOCABULARY[column], type=pa.string()).take(pa.array(codes(batch, column)))


def known(values: np.ndarray, mask: np.ndarray) -> pa.Array:
    """`values` (n,), null where not `mask`."""
    return pa.array(values, mask=~mask)


def decimals(column: pa.Array | np.ndarray, digits: int) -> pa.StringArray:
    """int64 nanoseconds / 10**`digits` with all digits, since a float would round: 1_500 with three is "1.500"."""
    column = pa.array(column, type=pa.int64())
    if column.null_count == len(column):
        return column.cast(pa.string())
    numbers = column.fill_null(0).to_numpy()
    # unsigned: the most negative number has no positive one of its type
    whole, rest = np.divmod(np.abs(numbers).view(np.uint64), np.uint64(10**digits))
    parts = [pa.array(whole).cast(pa.string()), pc.utf8_lpad(pa.array(rest).cast(pa.string()), digits, "0")]
    text = pc.binary_join_element_wise(*parts, ".")
    if (numbers < 0).any():
        text = pc.binary_join_element_wise(pc.if_else(pa.array(numbers < 0), "-", ""), text, "")
    return pc.if_else(column.is_valid(), text, None) if column.null_count else text


def joined(*parts: pa.Array | str, separator: str = "") -> pa.StringArray:
    """The parts of each row, one after the other; null is empty. At least one part is an array."""
    strings = [part if isinstance(part, str) else part.cast(pa.string()) for part in parts]
    return pc.binary_join_element_wise(*strings, separator, null_handling="replace", null_replacement="")


def if_known(before: str, column: pa.Array, after: str = "") -> Sequence[pa.StringArray]:
    """What `joined` shows of a value that may be absent, with the text around it; nothing if all are."""
    if column.null_count == len(column):
        return ()
    return (pc.binary_join_element_wise(before, column.cast(pa.string()), after, ""),)


def bytes_of(text: pa.StringArray) -> memoryview:
    """The rows without anything between them."""
    _, offsets, data = text.buffers()
    if not len(text):
        return memoryview(b"")
    edges = np.frombuffer(offsets, dtype=np.int32)
    return memoryview(data)[edges[text.offset] : edges[text.offset + len(text)]]


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
