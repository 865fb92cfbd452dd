"""Nanoseconds as exact decimal text in a larger unit, which a float could not represent."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

MICROSECONDS = 3
SECONDS = 9
"""Digits after the point with which a unit holds whole nanoseconds."""


def decimal_texts(nanoseconds: np.ndarray, digits: int) -> pa.Array:
    """Text (n,) of int64 `nanoseconds` / 10**`digits` with all digits: 1_500 in MICROSECONDS is "1.500"."""
    unit = np.uint64(10**digits)
    # the view also makes the most negative number positive, which abs alone cannot
    magnitude = np.abs(np.ascontiguousarray(nanoseconds, dtype=np.int64)).view(np.uint64)
    whole = pc.cast(pa.array(magnitude // unit), pa.string())
    rest = pc.utf8_lpad(pc.cast(pa.array(magnitude % unit), pa.string()), digits, "0")
    sign = pc.if_else(pa.array(nanoseconds < 0), "-", "")
    return pc.binary_join_element_wise(pc.binary_join_element_wise(sign, whole, ""), rest, ".")


def decimal_text(nanoseconds: int, digits: int) -> str:
    """`decimal_texts` of one number."""
    whole, rest = divmod(abs(nanoseconds), 10**digits)
    return f"{'-' if nanoseconds < 0 else ''}{whole}.{rest:0{digits}d}"
