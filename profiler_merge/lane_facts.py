"""What recordings know of their lanes, as rows of `traces.schema.LANES_SCHEMA`. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dxt_replay.traces.schema import LANES_SCHEMA, ROLES, table_from_columns

MAIN, THREAD, WORKER = (ROLES.index(name) for name in ("main", "thread", "worker"))


@dataclass(frozen=True, slots=True)
class LaneFacts:
    """Facts of one lane; None where they are not known. `role`: code of ROLES."""

    host: str | None = None
    pid: int | None = None
    thread: int | None = None
    role: int | None = None


def lane_rows(rank: np.ndarray, lane: np.ndarray, facts: Sequence[LaneFacts]) -> pa.Table:
    """`LANES_SCHEMA` of the lanes, int (n,) each, with their facts."""
    role = [-1 if each.role is None else each.role for each in facts]
    columns = {
        "rank": rank,
        "lane": lane,
        **{name: [getattr(each, name) for each in facts] for name in ("host", "pid", "thread")},
        "role": np.ma.masked_less(np.array(role, dtype=np.int8), 0),
    }
    return table_from_columns(columns, LANES_SCHEMA)
