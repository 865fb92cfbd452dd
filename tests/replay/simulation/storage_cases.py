"""What the tests of the simulated storage share: a device, its page cache, three files, and lanes of operations."""

from __future__ import annotations

import numpy as np

from dxt_replay.replay.plan.plan_row import operation_rows
from dxt_replay.replay.simulation.storage_model import (
    PageCache,
    RequestTime,
    StorageModel,
)
from dxt_replay.traces.schema import OPS

US, MS, KIB, MIB = 1_000, 1_000_000, 1 << 10, 1 << 20
READ, WRITE = OPS.index("read"), OPS.index("write")
FILES = np.array([10 * MIB, 100 * KIB, 5000], dtype=np.int64)
CACHE = PageCache(size=4 * MIB, hit=RequestTime.affine(100))
DEVICE = {"operations": {"read": RequestTime.affine(10 * US), "write": RequestTime.affine(50 * US)}}


def operations(*each):
    """Items from (name, file, offset, length, think time)."""
    op, file, offset, length, due = zip(*each, strict=True)
    rows = operation_rows(
        op=np.array([OPS.index(name) for name in op]),
        api=0,
        origin=0,
        slot=np.zeros(len(op), dtype=np.int64),
        file_id=np.array(file),
        step=0,
        offset=np.array(offset),
        length=np.array(length),
    )
    rows["due_ns"] = due
    return rows


def model(**keys):
    return StorageModel(name="x", **keys)
