"""Numbers of a capture as exact text: nanoseconds in a larger unit, which a float could not represent."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from dxt_replay.profiler_merge.export._row_text import Texts

TRUTH = Texts([b"false", b"true"])

MICROSECONDS = 3
SECONDS = 9
"""Digits after the point with which a unit holds whole nanoseconds."""


def decimal_text(nanoseconds: int, digits: int) -> str:
    """`nanoseconds` / 10**`digits` with all digits: 1_500 in MICROSECONDS is "1.500"."""
    whole, rest = divmod(abs(nanoseconds), 10**digits)
    return f"{'-' if nanoseconds < 0 else ''}{whole}.{rest:0{digits}d}"


def known_numbers(batch: pa.RecordBatch, column: str) -> tuple[np.ndarray, np.ndarray]:
    """A column of integers or truth values that may be null: integers (n,), 0 for null, and bool (n,), true where one
    is known."""
    values = batch.column(column)
    if values.null_count == len(values):
        return np.zeros(len(values), dtype=np.int64), np.zeros(len(values), dtype=bool)
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.int8())
    return values.fill_null(0).to_numpy(), values.is_valid().to_numpy(zero_copy_only=False)
