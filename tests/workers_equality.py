"""What tests of passes over captures share: results as plain values, and captures of several ranks."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from tests.capture_builder import Op, Span


def plain(value: Any) -> Any:
    """A result as dictionaries, lists and text in which every bit of a number shows."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, pa.Table):
        return plain({name: value[name].to_pylist() for name in value.column_names})
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, float):
        return value.hex()
    if hasattr(value, "num_rows"):
        return value.num_rows
    return value if value is None or isinstance(value, (str, int, bool)) else repr(value)


TIMES = st.integers(0, 3_000_000)

ONE = st.builds(
    Op,
    op=st.sampled_from(["read", "read", "write", "open", "close", "stat"]),
    file_id=st.integers(0, 3),
    offset=st.integers(0, 3).map(lambda block: 4096 * block),
    length=st.sampled_from([0, 100, 4096, 5000]),
    start_ns=TIMES,
    rank=st.integers(0, 4),
    lane=st.integers(0, 1),
    api=st.sampled_from(["POSIX", "POSIX", "MPIIO", "STDIO"]),
    origin=st.sampled_from(["traced", "traced", "traced", "reconstructed"]),
)

OPERATIONS = st.lists(ONE, max_size=40)
"""Operations of up to five ranks on four shared files; they last a microsecond."""

SPANS = [
    Span(kind, start_ns=1_000_000 * step + begin, end_ns=1_000_000 * step + end, rank=rank, step=step)
    for rank in (0, 2)
    for step in (0, 1)
    for kind, begin, end in (("step", 0, 900_000), ("compute", 300_000, 700_000), ("input_wait", 0, 200_000))
]
"""Two steps of two of the ranks."""
