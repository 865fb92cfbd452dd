"""The result of an export, and what the formats share: the rows of a rank, and the text of many rows at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dxt_replay.traces.plain import plain
from dxt_replay.traces.schema import OPS_SCHEMA, VOCABULARY, codes
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
