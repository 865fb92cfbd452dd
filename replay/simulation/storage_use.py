"""Use of a simulated storage."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

KIND_NAMES = ("read", "write", "open", "close", "stat", "sync", "seek", "rename", "list", "delete")
"""Operation by the kind of its item (`replay.engine.items`)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StorageUse:
    """Use of a simulated storage. Requests are those that reached a server: with read-ahead, without hits.

    operations, operation_bytes, operation_ns: by kind of operation, int64, int64 and float64.
    hits, hit_bytes: reads that the cache served alone.
    requests, request_bytes: by kind, int64.
    busy_ns: for each limit float64 by what has one of its own, how long it took to let everything through.
    turn_ns, pipe_ns: float64 by limit: how long requests waited for their turn, and longer than their own time for
        their bytes.
    server_ns, metadata_ns: float64 by server: time that its requests took by themselves.
    """

    operations: np.ndarray
    operation_bytes: np.ndarray
    operation_ns: np.ndarray
    hits: int
    hit_bytes: int
    requests: np.ndarray
    request_bytes: np.ndarray
    busy_ns: tuple[np.ndarray, ...]
    turn_ns: np.ndarray
    pipe_ns: np.ndarray
    server_ns: np.ndarray
    metadata_ns: np.ndarray
