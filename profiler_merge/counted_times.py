"""Time and bytes of a job's I/O from Darshan's counters, which every log has, as in `darshan-parser --perf` and
Darshan's job summary.

A file that one rank opened has the times of that rank. A file that all opened has the sum over the ranks, and the time
of the slowest. The slowest rank is defined as in Darshan: the longest time of a rank in files of its own, plus that of
the slowest rank of each shared file, as if both were the same rank.

Interfaces are layers: PnetCDF calls MPI-IO, HDF5 calls MPI-IO or POSIX, DFS keeps its files in DAOS objects. The same
bytes and seconds are counted once in each layer, so figures of two interfaces must not be added.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from dxt_replay.profiler_merge.darshan.counters import SHARED_RANK, CounterTable, read_counters
from dxt_replay.profiler_merge.darshan.log import DarshanLog
from dxt_replay.traces.layers import OBJECT_STORES
from dxt_replay.traces.schema import Unseen
from dxt_replay.traces.unseen import LEAST_COVERAGE, OBJECTS

_TIMES = {"read_s": "READ", "write_s": "WRITE", "metadata_s": "META", "wait_s": "WAIT"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Module:
    """The counters of an interface in a module.
    reads, writes: the counters that are added up.

    bytes_in: another module with the bytes of the same requests, which counts if the log has it.
    """

    interface: str
    prefix: str
    reads: tuple[str, ...] = ("READS",)
    writes: tuple[str, ...] = ("WRITES",)
    bytes_in: str | None = None


# The bytes of PNETCDF_FILE are those of the variables and of the file's header. Non-blocking requests of DFS are among
# its reads and writes, those of MPI-IO and PnetCDF are not.
_MODULES: Mapping[str, _Module] = {
    "POSIX": _Module(interface="POSIX", prefix="POSIX"),
    "STDIO": _Module(interface="STDIO", prefix="STDIO"),
    "MPI-IO": _Module(
        interface="MPIIO",
        prefix="MPIIO",
        reads=("INDEP_READS", "COLL_READS", "SPLIT_READS", "NB_READS"),
        writes=("INDEP_WRITES", "COLL_WRITES", "SPLIT_WRITES", "NB_WRITES"),
    ),
    "H5F": _Module(interface="HDF5", prefix="H5F"),
    "H5D": _Module(interface="HDF5", prefix="H5D"),
    "PNETCDF_FILE": _Module(interface="PNETCDF", prefix="PNETCDF_FILE", bytes_in="PNETCDF_VAR"),
    "PNETCDF_VAR": _Module(
        interface="PNETCDF",
        prefix="PNETCDF_VAR",
        reads=("INDEP_READS", "COLL_READS", "NB_READS"),
        writes=("INDEP_WRITES", "COLL_WRITES", "NB_WRITES"),
    ),
    "DFS": _Module(interface="DFS", prefix="DFS", reads=("READS", "READXS"), writes=("WRITES", "WRITEXS")),
    "DAOS": _Module(
        interface="DAOS",
        prefix="DAOS",
        reads=("OBJ_FETCHES", "ARRAY_READS", "KV_GETS"),
        writes=("OBJ_UPDATES", "ARRAY_WRITES", "KV_PUTS"),
    ),
}

TRACEABLE = ("POSIX", "STDIO", "MPIIO")
"""Interfaces whose operations are traced, or rebuilt from counters."""


@dataclass(slots=True, kw_only=True)
class CountedTime:
    """The counters of one interface; None where none of the log's modules counts it.

    reads, writes: requests. bytes_read, bytes_written: moved by them.
    read_s, write_s (with syncs), metadata_s, wait_s (for non-blocking requests): seconds of all ranks together.
    slowest_s: seconds of the slowest rank. slowest_rank: None if several ranks contribute.
    """

    reads: int | None = None
    writes: int | None = None
    bytes_read: int | None = None
    bytes_written: int | None = None
    read_s: float | None = None
    write_s: float | None = None
    metadata_s: float | None = None
    wait_s: float | None = None
    slowest_s: float | None = None
    slowest_rank: int | None = None


@dataclass(slots=True)
class _Sums:
    """The sums so far of one interface.

    own_s, shared_s: rank -> seconds in files of its own, and as the slowest rank of a shared file.
    unknown: whether a shared record with time in it lacks the time of its slowest rank. uncounted: fields of bytes that
    a record lacks."""

    total: CountedTime = field(default_factory=CountedTime)
    own_s: dict[int, float] = field(default_factory=dict)
    shared_s: dict[int, float] = field(default_factory=dict)
    unknown: bool = False
    uncounted: set[str] = field(default_factory=set)

    def add(
        self, module: _Module, table: CounterTable, kept: np.ndarray, rank: int | None, *, with_bytes: bool
    ) -> None:
        """Add the `kept` records of a module. rank: of the process of the log; None for a log of all."""
        columns = {
            "reads": module.reads,
            "writes": module.writes,
            **({"bytes_read": ("BYTES_READ",), "bytes_written": ("BYTES_WRITTEN",)} if with_bytes else {}),
        }
        for name, counters in columns.items():
            for counter in counters:
                self._count(name, table.counters.get(f"{module.prefix}_{counter}"), kept)
        ranks = table.ranks[kept] if rank is None else np.full(int(kept.sum()), rank)
        spent_s = np.zeros(len(ranks))
        for name, time in _TIMES.items():
            spent_s += self._count(name, table.fcounters.get(f"{module.prefix}_F_{time}_TIME"), kept)
        _add(self.own_s, ranks, spent_s)
        reduced = ranks == SHARED_RANK
        slowest_s = table.fcounters.get(f"{module.prefix}_F_SLOWEST_RANK_TIME", np.full(len(kept), -1.0))[kept][reduced]
        self.unknown |= bool(spent_s[reduced][slowest_s < 0].any())
        if (slowest := table.counters.get(f"{module.prefix}_SLOWEST_RANK")) is not None:
            _add(self.shared_s, slowest[kept][reduced], np.maximum(slowest_s, 0))

    def _count(self, name: str, values: np.ndarray | None, kept: np.ndarray) -> np.ndarray:
        """Add a column, in which a negative value means "not counted"; returns the `kept` values."""
        found = np.zeros(int(kept.sum())) if values is None else values[kept]
        if name.startswith("bytes") and (found < 0).any():
            self.uncounted.add(name)
        if values is not None and (found >= 0).any():
            setattr(self.total, name, (getattr(self.total, name) or 0) + np.maximum(found, 0).sum().item())
        return np.maximum(found, 0)

    def result(self) -> CountedTime:
        """The sums with the slowest rank, if that is known."""
        own = {rank: spent for rank, spent in self.own_s.items() if rank != SHARED_RANK}
        longest, most = max(own.items(), key=lambda each: each[1], default=(SHARED_RANK, 0.0))
        if not self.unknown:
            self.total.slowest_s = most + sum(self.shared_s.values())
            deciding = {rank for rank, spent in [*self.shared_s.items(), (longest, most)] if spent}
            self.total.slowest_rank = deciding.pop() if len(deciding) == 1 and min(deciding) >= 0 else None
        for name in self.uncounted:
            setattr(self.total, name, None)
        return self.total


def counted_times(
    logs: Iterable[tuple[DarshanLog, int | None]],
    excluded: Collection[int] = (),
    *,
    but: Collection[str] = (),
    ranks_known: bool = True,
) -> dict[str, dict[str, Any]]:
    """By interface, the `CountedTime` of a job as JSON. logs: each with the rank of its process, None for a log of all.

    excluded: record ids of files that are left out. but: interfaces that are left out. ranks_known: whether the rank of
    each process is known.
    Raises: LogError as `read_counters`.
    """
    found: dict[str, _Sums] = {}
    left_out = np.array(sorted(excluded), dtype=np.uint64)
    for log, rank in logs:
        for name, module in _MODULES.items():
            table = None if module.interface in but else read_counters(log, name)
            if table is not None:
                kept = ~np.isin(table.record_ids if table.file_ids is None else table.file_ids, left_out)
                sums = found.setdefault(module.interface, _Sums(unknown=not ranks_known))
                sums.add(module, table, kept, rank, with_bytes=module.bytes_in not in log.modules)
    results = {name: asdict(sums.result()) for name, sums in found.items()}
    return {name: each for name, each in results.items() if any(each.values())}


def past_trace(counted: Mapping[str, Mapping[str, Any]], *, posix_bytes: int) -> tuple[Unseen, ...]:
    """I/O through DFS and DAOS, which DXT does not trace: the larger of both, since DFS calls DAOS.

    counted: from `counted_times`. posix_bytes: all bytes that POSIX counted. They may be the same bytes, as a library
    can turn calls of POSIX into calls of DFS.
    Returns: empty if nearly all bytes went through POSIX alone.
    """
    moved = {
        name: (counted[name]["bytes_read"] or 0) + (counted[name]["bytes_written"] or 0)
        for name in OBJECT_STORES
        if name in counted
    }
    name = max(moved, key=moved.__getitem__, default="")
    most = moved.get(name, 0)
    if most <= (1 - LEAST_COVERAGE) * (most + posix_bytes):
        return ()
    return (Unseen(kind=OBJECTS, name=name, bytes=most - posix_bytes if most > posix_bytes else None),)


def _add(sums: dict[int, float], ranks: np.ndarray, seconds: np.ndarray) -> None:
    each, place = np.unique(ranks, return_inverse=True)
    spent = np.bincount(place, weights=seconds, minlength=len(each))
    for rank, of_rank in zip(each.tolist(), spent.tolist(), strict=True):
        sums[rank] = sums.get(rank, 0.0) + of_rank
