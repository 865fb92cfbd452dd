"""The text of many rows at once: columns as Arrow strings, joined row by row. Null is the absence of a value."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dxt_replay.traces.schema import VOCABULARY, codes

SLICE_ROWS = 1 << 14
"""Rows that are formatted at a time, some 4 MB: all of a row group would not fit a cache."""


def names(batch: pa.RecordBatch, column: str) -> pa.StringArray:
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
