"""A storage model as the flat numbers that both cores of the simulated storage read. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dxt_replay.replay.engine.items import RENAME
from dxt_replay.replay.simulation.storage_model import SCOPES, RequestTime, StorageModel
from dxt_replay.traces.schema import OPS

KIND_NAMES = ("read", "write", "open", "close", "stat", "sync", "seek", "rename")
"""Operation by the kind of its item (`replay.engine.items`)."""

SERVER, NODE, SYSTEM, METADATA = range(len(SCOPES))
"""Places in SCOPES."""

HIT, HELD_WRITE = RENAME + 1, RENAME + 2
"""Places of the times of a hit and of a write into the cache in `ModelNumbers.tables`, after the operations."""


STREAM_BYTES = 4096
"""Buffer of a C stream: what is written through one waits there until it is full, synced or closed."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModelNumbers:
    """The numbers of a model for so many ranks.

    tables: a time for each kind of operation, of a hit, and of a write into the cache.
    nodes: how many; ranks_per_node: at least 1.
    limits: for each its scope, `first`: the place of its first bucket, and `instances`, how many buckets it has.
    factors: float64 (q,), the factors of the jitter; [1.0] for none.
    file_bytes: int64 by file, how large it is.
    """

    model: StorageModel
    tables: tuple[RequestTime, ...]
    nodes: int
    ranks_per_node: int
    scopes: tuple[int, ...]
    first: tuple[int, ...]
    instances: tuple[int, ...]
    factors: np.ndarray
    file_bytes: np.ndarray

    @property
    def buckets(self) -> int:
        """Buckets of all limits."""
        return sum(self.instances)

    @classmethod
    def of(cls, model: StorageModel, ranks: int, file_bytes: np.ndarray) -> ModelNumbers:
        """The numbers of `model` for a run of `ranks` ranks."""
        assert set(KIND_NAMES) == set(OPS)
        per_node = min(model.ranks_per_node or max(ranks, 1), max(ranks, 1))
        nodes = -(-max(ranks, 1) // per_node)
        scopes = tuple(SCOPES.index(limit.each) for limit in model.limits)
        of_scope = (model.servers.count, nodes, 1, model.metadata.count)
        instances = tuple(of_scope[scope] for scope in scopes)
        factors = (1.0,) if model.jitter is None else model.jitter.quantiles
        hit = RequestTime() if model.cache is None else model.cache.hit
        held = hit if model.cache is None or model.cache.write is None else model.cache.write
        return cls(
            model=model,
            tables=(*map(model.time_of, KIND_NAMES), hit, held),
            nodes=nodes,
            ranks_per_node=per_node,
            scopes=scopes,
            first=tuple(np.concatenate(([0], np.cumsum(instances)))[: len(scopes)].astype(int).tolist()),
            instances=instances,
            factors=np.array(factors, dtype=np.float64),
            file_bytes=np.ascontiguousarray(file_bytes, dtype=np.int64),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StorageUse:
    """What a simulated storage did. Requests are what reached a server: with read-ahead, without hits.

    operations, operation_bytes, operation_ns: by kind of operation, int64, int64 and float64.
    hits, hit_bytes: reads that the cache served alone.
    requests, request_bytes: by kind, int64.
    busy_ns: float64 by bucket of all limits, how long it took to let everything through.
    turn_ns, pipe_ns: float64 by limit: how long requests waited for their turn, and longer than their own time for
        their bytes.
    slot_ns, own_ns: how long requests waited for a slot of a server, and took by themselves.
    server_ns: float64 by server, then by metadata server: time that its requests took by themselves.
    """

    operations: np.ndarray
    operation_bytes: np.ndarray
    operation_ns: np.ndarray
    hits: int
    hit_bytes: int
    requests: np.ndarray
    request_bytes: np.ndarray
    busy_ns: np.ndarray
    turn_ns: np.ndarray
    pipe_ns: np.ndarray
    slot_ns: float
    own_ns: float
    server_ns: np.ndarray

    @classmethod
    def none(cls, numbers: ModelNumbers) -> StorageUse:
        """Nothing done yet."""
        kinds, limits = len(KIND_NAMES), len(numbers.scopes)
        return cls(
            operations=np.zeros(kinds, dtype=np.int64),
            operation_bytes=np.zeros(kinds, dtype=np.int64),
            operation_ns=np.zeros(kinds),
            hits=0,
            hit_bytes=0,
            requests=np.zeros(kinds, dtype=np.int64),
            request_bytes=np.zeros(kinds, dtype=np.int64),
            busy_ns=np.zeros(numbers.buckets),
            turn_ns=np.zeros(limits),
            pipe_ns=np.zeros(limits),
            slot_ns=0.0,
            own_ns=0.0,
            server_ns=np.zeros(numbers.model.servers.count + numbers.model.metadata.count),
        )
