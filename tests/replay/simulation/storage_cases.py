"""What the tests of the simulated storage share: a device, its page cache, three files, lanes of operations, a run."""

from __future__ import annotations

import numpy as np

from dxt_replay.replay.causal.events import EventLane, LaneTimes, run_lanes
from dxt_replay.replay.engine.items import operation_rows
from dxt_replay.replay.simulation._simulated_storage import SimulatedStorage
from dxt_replay.replay.simulation.model import PageCache, RequestTime, StorageModel
from dxt_replay.traces.schema import OPS

US, MS, KIB, MIB = 1_000, 1_000_000, 1 << 10, 1 << 20
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


def ends(storage, *lanes, ranks=None, **options):
    """When each item of each lane ends; lane i belongs to rank i unless `ranks` says otherwise."""
    ranks = ranks or list(range(len(lanes)))
    placed = [
        EventLane(items=rows, times=LaneTimes.room(len(rows)), rank=rank)
        for rows, rank in zip(lanes, ranks, strict=True)
    ]
    service = SimulatedStorage(storage, ranks=max(ranks) + 1, file_bytes=FILES, **options)
    run_lanes(placed, service)
    return [lane.times.end_ns.tolist() for lane in placed], service.use


def read(length=MIB, offset=0, file=0, due=0):
    return operations(("read", file, offset, length, due))


def time_ns(table: RequestTime, size: int, in_flight: int = 1) -> float:
    """The time of a request inside of a table: linear in its size, and between the numbers of requests in flight."""
    rows = [np.interp(size, table.sizes, row) for row in table.time_ns]
    return float(np.interp(in_flight, table.in_flight, rows))
