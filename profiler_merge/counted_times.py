"""How long the ranks of a job spent in I/O by Darshan's own counters, which every log has: what `darshan-parser --perf`
and Darshan's job summary say.

A file that one rank opened has times of that rank. One that all opened has the sum over the ranks, and the time of the
slowest of them. The slowest rank is taken as Darshan takes it: the rank with the longest time in files of its own, and
with it the slowest rank of each shared file, as if it were the same one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dxt_replay.profiler_merge.darshan.counters import SHARED_RANK, read_counters
from dxt_replay.profiler_merge.darshan.log import DarshanLog

_MODULES = {"POSIX": ("POSIX", "POSIX"), "STDIO": ("STDIO", "STDIO"), "MPI-IO": ("MPIIO", "MPIIO")}
"""Module -> name of the interface in captures, and prefix of its counters."""


@dataclass(slots=True, kw_only=True)
class CountedTime:
    """Seconds in the I/O of one interface: of all ranks together in reads, writes (with syncs) and metadata, and of the
    slowest rank. slowest_rank: None where it is made up of several. bytes: moved, of all."""

    read_s: float = 0.0
    write_s: float = 0.0
    metadata_s: float = 0.0
    slowest_s: float = 0.0
    slowest_rank: int | None = None
    bytes: int = 0


def counted_times(
    logs: Iterable[tuple[DarshanLog, int | None]], excluded: Collection[int] = ()
) -> dict[str, dict[str, Any]]:
    """By interface, the `CountedTime` of a job as JSON. logs: each with the rank of its process, None for a log of all.

    excluded: record ids that are left out. Raises: LogError for damage.
    """
    found: dict[str, CountedTime] = {}
    own_s: dict[str, dict[int, float]] = {}
    shared_s: dict[str, dict[int, float]] = {}
    left_out = np.array(sorted(excluded), dtype=np.uint64)
    for log, process_rank in logs:
        for module, (name, prefix) in _MODULES.items():
            table = read_counters(log, module)
            if table is None:
                continue
            kept = ~np.isin(table.record_ids, left_out)
            ranks = table.ranks[kept] if process_rank is None else np.full(int(kept.sum()), process_rank)
            times = {
                what: np.maximum(table.fcounters[f"{prefix}_F_{what.upper()}_TIME"][kept], 0.0)
                for what in ("read", "write", "meta", "slowest_rank")
            }
            entry = found.setdefault(name, CountedTime())
            entry.read_s += float(times["read"].sum())
            entry.write_s += float(times["write"].sum())
            entry.metadata_s += float(times["meta"].sum())
            for moved in ("READ", "WRITTEN"):
                entry.bytes += int(np.maximum(table.counters[f"{prefix}_BYTES_{moved}"][kept], 0).sum())
            _add(own_s.setdefault(name, {}), ranks, times["read"] + times["write"] + times["meta"])
            if process_rank is None:
                slowest = table.counters[f"{prefix}_SLOWEST_RANK"][kept]
                reduced = ranks == SHARED_RANK
                _add(shared_s.setdefault(name, {}), slowest[reduced], times["slowest_rank"][reduced])
    for name, entry in found.items():
        own, shared = own_s[name], shared_s.get(name, {})
        own.pop(SHARED_RANK, None)
        longest, most = max(own.items(), key=lambda each: each[1], default=(SHARED_RANK, 0.0))
        entry.slowest_s = most + sum(shared.values())
        deciding = {rank for rank, spent in [*shared.items(), (longest, most)] if spent}
        entry.slowest_rank = deciding.pop() if len(deciding) == 1 else None
    return {name: asdict(entry) for name, entry in found.items() if entry.slowest_s or entry.bytes}


def _add(sums: dict[int, float], ranks: np.ndarray, seconds: np.ndarray) -> None:
    each, place = np.unique(ranks, return_inverse=True)
    spent = np.bincount(place, weights=seconds, minlength=len(each))
    for rank, of_rank in zip(each.tolist(), spent.tolist(), strict=True):
        sums[rank] = sums.get(rank, 0.0) + of_rank
