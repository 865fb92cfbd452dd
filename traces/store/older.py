"""Translates the op streams of earlier captures, in which two columns held two facts each. Pure.

- `offset` of a rename was the file_id of the new name. Parts without the column `other_file_id` have it so.
- `follows` was 2 n for the begin of batch fetch n, and 2 n + 1 for its end. Parts without the column `follows_end` have
  it so.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dxt_replay.traces.schema import OPS, OPS_SCHEMA, codes

_RENAME = OPS.index("rename")
_SOURCES = {
    "other_file_id": {"offset": {"op"}, "other_file_id": {"op", "offset"}},
    "follows_end": {"follows_end": {"follows"}},
}
"""Column that an earlier part lacks -> column that is requested -> those that it is made from."""


def columns_to_read(requested: Sequence[str], stored: Collection[str]) -> list[str]:
    """The columns to read of a part with the columns `stored`, so that `translated` can make the requested ones."""
    needed = (
        sources.get(name, set()) for absent, sources in _SOURCES.items() if absent not in stored for name in requested
    )
    return list(dict.fromkeys([*requested, *sorted(set().union(*needed))]))


def translated(rows: pa.Table, stored: Collection[str]) -> pa.Table:
    """Rows of a part with the columns `stored`, in the types of `OPS_SCHEMA`, with the meaning that they have there.

    A new name that cannot be a file_id becomes null.
    """
    if "other_file_id" not in stored and {"op", "offset"} <= set(rows.column_names):
        renames = codes(rows, "op") == _RENAME
        if renames.any():
            offset = rows["offset"].to_numpy()
            named = renames & (offset >= 0) & (offset <= np.iinfo(np.int32).max)
            new_name = pa.array(np.where(named, offset, 0).astype(np.int32), mask=~named)
            rows = _replaced(rows, offset=pa.array(np.where(renames, -1, offset)), other_file_id=new_name)
    if "follows_end" not in stored and "follows" in rows.column_names and rows["follows"].null_count < rows.num_rows:
        moment = rows["follows"]
        is_end = pc.equal(pc.bit_wise_and(moment, pa.scalar(1, pa.int32())), 1)
        rows = _replaced(rows, follows=pc.shift_right(moment, pa.scalar(1, pa.int32())), follows_end=is_end)
    return rows


def _replaced(rows: pa.Table, **columns: pa.Array | pa.ChunkedArray) -> pa.Table:
    for name, column in columns.items():
        if name in rows.column_names:
            rows = rows.set_column(rows.schema.get_field_index(name), OPS_SCHEMA.field(name), column)
    return rows
