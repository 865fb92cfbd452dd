"""What Darshan's counters, which every log has, say of a whole job: time and bytes of its I/O, as in `darshan-parser
--perf`, and which of its requests are small, misaligned or repeated, by the rules of Drishti (drishti-io,
handle_darshan.py).

A file that one rank opened has the times of that rank. A file that all opened has the sum over the ranks, and the time
of the slowest. The slowest rank is defined as in Darshan: the longest time of a rank in files of its own, plus that of
the slowest rank of each shared file, as if both were the same rank.

Interfaces are layers: PnetCDF calls MPI-IO, HDF5 calls MPI-IO or POSIX, DFS keeps its files in DAOS objects. The same
bytes and seconds are counted once in each layer, so figures of two interfaces must not be added.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from dxt_replay.profiler_merge.darshan.counters import SHARED_RANK, CounterTable, read_counters
from dxt_replay.profiler_merge.darshan.log import DarshanLog
from dxt_replay.traces.layers import OBJECT_STORES
from dxt_replay.traces.schema import Unseen
from dxt_replay.traces.unseen import LEAST_COVERAGE, OBJECTS

TRACEABLE = ("POSIX", "STDIO", "MPIIO")
"""Interfaces whose operations are traced, or rebuilt from counters."""

_MODULES = {
    "POSIX": ("POSIX", "POSIX", "READS", "WRITES"),
    "STDIO": ("STDIO", "STDIO", "READS", "WRITES"),
    "MPI-IO": (
        *("MPIIO", "MPIIO"),
        *("INDEP_READS COLL_READS SPLIT_READS NB_READS", "INDEP_WRITES COLL_WRITES SPLIT_WRITES NB_WRITES"),
    ),
    "H5F": ("HDF5", "H5F", "READS", "WRITES"),
    "H5D": ("HDF5", "H5D", "READS", "WRITES"),
    "PNETCDF_FILE": ("PNETCDF", "PNETCDF_FILE", "READS", "WRITES"),
    "PNETCDF_VAR": (
        *("PNETCDF", "PNETCDF_VAR"),
        *("INDEP_READS COLL_READS NB_READS", "INDEP_WRITES COLL_WRITES NB_WRITES"),
    ),
    "DFS": ("DFS", "DFS", "READS READXS", "WRITES WRITEXS"),
    "DAOS": ("DAOS", "DAOS", "OBJ_FETCHES ARRAY_READS KV_GETS", "OBJ_UPDATES ARRAY_WRITES KV_PUTS"),
}
"""Module -> interface, prefix of its counters, those of reads, those of writes. Non-blocking requests of DFS are among
its reads and writes, those of MPI-IO and PnetCDF are not."""

_BYTES_IN = {"PNETCDF_FILE": "PNETCDF_VAR"}
"""Module -> another one with the bytes of the same requests (and of the file's header), which counts if it is there."""

_TIMES = {"read_s": "READ", "write_s": "WRITE", "metadata_s": "META", "wait_s": "WAIT"}
_FIELDS = ("reads", "writes", "bytes_read", "bytes_written", *_TIMES, "slowest_s", "slowest_rank")


def counted_times(
    logs: Iterable[tuple[DarshanLog, int | None]],
    excluded: Collection[int] = (),
    *,
    but: Collection[str] = (),
    ranks_known: bool = True,
) -> dict[str, dict[str, Any]]:
    """By interface: `reads` and `writes` (requests), `bytes_read`, `bytes_written`; `read_s`, `write_s` (with syncs),
    `metadata_s` and `wait_s` (for non-blocking requests), seconds of all ranks together; `slowest_s`, seconds of the
    slowest rank, and `slowest_rank`, None if several ranks contribute. None where nothing counts it.

    logs: each with the rank of its process, None for a log of all. excluded: record ids of files that are left out.
    but: interfaces that are left out. ranks_known: whether the rank of each process is known.
    Raises: LogError as `read_counters`.
    """
    totals: dict[str, dict[str, Any]] = {}
    own_s, shared_s = dict[str, Counter[int]](), dict[str, Counter[int]]()
    unknown, uncounted = set[str](), set[tuple[str, str]]()
    for log, rank in logs:
        for name, (interface, prefix, reads, writes) in _MODULES.items():
            table = None if interface in but else read_counters(log, name, excluded)
            if table is None:
                continue
            total = totals.setdefault(interface, dict.fromkeys(_FIELDS))

            def count(what: str, values: np.ndarray | None, total: dict[str, Any] = total, key: str = interface) -> Any:
                """Add a column, in which a negative value means "not counted"."""
                if values is None:
                    return 0
                if what.startswith("bytes") and (values < 0).any():
                    uncounted.add((key, what))
                if (values >= 0).any():
                    total[what] = (total[what] or 0) + np.maximum(values, 0).sum().item()
                return np.maximum(values, 0)

            columns = {"reads": reads, "writes": writes}
            if _BYTES_IN.get(name) not in log.modules:
                columns |= {"bytes_read": "BYTES_READ", "bytes_written": "BYTES_WRITTEN"}
            for what, counters in columns.items():
                for counter in counters.split():
                    count(what, table.counters.get(f"{prefix}_{counter}"))
            ranks = table.ranks if rank is None else np.full(len(table.ranks), rank)
            spent = np.zeros(len(ranks))
            for what, time in _TIMES.items():
                spent += count(what, table.fcounters.get(f"{prefix}_F_{time}_TIME"))
            reduced = ranks == SHARED_RANK
            _add(own_s.setdefault(interface, Counter()), ranks[~reduced], spent[~reduced])
            slowest_s = table.fcounters.get(f"{prefix}_F_SLOWEST_RANK_TIME", np.full(len(ranks), -1.0))[reduced]
            if not ranks_known or spent[reduced][slowest_s < 0].any():
                unknown.add(interface)
            slowest = table.counters.get(f"{prefix}_SLOWEST_RANK", ranks)[reduced]
            _add(shared_s.setdefault(interface, Counter()), slowest, np.maximum(slowest_s, 0))
    for interface, total in totals.items():
        longest, most = max(own_s[interface].items(), key=lambda each: each[1], default=(SHARED_RANK, 0.0))
        if interface not in unknown:
            total["slowest_s"] = most + sum(shared_s[interface].values())
            deciding = {rank for rank, spent in [*shared_s[interface].items(), (longest, most)] if spent}
            if len(deciding) == 1 and min(deciding) >= 0:
                total["slowest_rank"] = deciding.pop()
        total.update({what: None for name, what in uncounted if name == interface})
    return {name: each for name, each in totals.items() if any(each.values())}


def _add(sums: Counter[int], ranks: np.ndarray, seconds: np.ndarray) -> None:
    each, place = np.unique(ranks, return_inverse=True)
    sums.update(dict(zip(each.tolist(), np.bincount(place, seconds, len(each)).tolist(), strict=True)))


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


_WORST = 5
_SHARED_UNEVEN, _UNEVEN = 0.15, 0.3
"""Least difference of two ranks: as a share of what all did to a file that all opened, and of what the larger one did.
Drishti, imbalance_stragglers and imbalance_size."""

_SMALL = ("0_100", "100_1K", "1K_10K", "10K_100K", "100K_1M")
"""Darshan's bins of sizes up to 1 MiB, which the last one includes."""

_OF = {
    "small_reads": ("reads", "bytes_read"), "small_writes": ("writes", "bytes_written"), "misaligned": ("requests",),
    "misaligned_in_memory": ("requests",), "read_again": ("bytes_read",), "one_shared": ("bytes",),
}  # fmt: skip
"""What is counted -> of what it is a part, and the bytes of that."""

Rows = dict[str, np.ndarray]


def counted_requests(
    logs: Iterable[tuple[DarshanLog, int | None]],
    number: Callable[[np.ndarray], np.ndarray],
    excluded: Collection[int],
    nprocs: int,
) -> dict[str, Any]:
    """By name of `_OF`: `count`, `of` (and `of_bytes`), `in_shared` (its part in files of several ranks), and `files`,
    the worst first, which `ranks` opened. And `uneven`: how many files ranks share unevenly, the worst first, and its
    slowest and fastest rank.

    logs, excluded: as of `counted_times`. number: of files, by their record ids. Raises: LogError as `read_counters`.
    """
    parts = []
    for log, rank in logs:
        if (table := read_counters(log, "POSIX", excluded)) is not None:
            parts.append(_rows(table) | ({} if rank is None else {"rank": np.full(len(table.ranks), rank)}))
    rows = {name: np.concatenate([part[name] for part in parts]) for name in (parts or [{}])[0]}
    if not rows or not len(rows["file"]):
        return {}
    files, place = np.unique(rows["file"], return_inverse=True)
    ranks = np.bincount(np.unique(np.stack([place, rows["rank"]]), axis=1)[0], minlength=len(files))
    ranks[place[rows["rank"] == SHARED_RANK]] = nprocs
    sums = {
        name: np.bincount(place, values, len(files)) for name, values in rows.items() if name not in ("file", "rank")
    }
    reach = np.zeros(len(files))
    np.maximum.at(reach, place, rows["reach"])
    sums["read_again"] = np.maximum(sums["bytes_read"] - reach, 0)
    in_shared = sums["bytes"] * (ranks > 1)
    sums["one_shared"] = np.where(np.arange(len(files)) == in_shared.argmax(), in_shared, 0)
    found: dict[str, Any] = {}
    for name, (of, *of_bytes) in _OF.items():
        worst = [each for each in np.argsort(-sums[name], kind="stable")[:_WORST] if sums[name][each] > 0]
        if worst:
            found[name] = {
                "count": int(sums[name].sum()),
                "of": int(sums[of].sum()),
                "of_bytes": int(sums[of_bytes[0]].sum()) if of_bytes else None,
                "in_shared": int(sums[name][ranks > 1].sum()),
                "ranks": int(ranks[worst[0]]),
                "files": number(files[worst]).tolist(),
            }
    if uneven := sorted(_uneven(rows), key=lambda each: each["fastest_s"] - each["slowest_s"]):
        records = np.array([each.pop("file") for each in uneven], dtype=np.uint64)
        found["uneven"] = {"count": len(uneven), "files": number(records[:_WORST]).tolist(), "worst": uneven[0]}
    return found


def _rows(table: CounterTable) -> Rows:
    def of(*names: str) -> np.ndarray:
        return np.sum([np.maximum(table.counters[f"POSIX_{name}"], 0) for name in names], axis=0)

    reads, times = of("READS"), ("READ", "WRITE", "META")
    extremes = {
        f"{who}_{what}": values[f"POSIX_{name}"]
        for who in ("slowest", "fastest")
        for what, values, name in (
            ("rank", table.counters, f"{who.upper()}_RANK"),
            ("s", table.fcounters, f"F_{who.upper()}_RANK_TIME"),
            ("bytes", table.counters, f"{who.upper()}_RANK_BYTES"),
        )
    }
    return {
        "file": table.record_ids, "rank": table.ranks,
        "reads": reads, "writes": of("WRITES"), "requests": of("READS", "WRITES"),
        **{f"small_{way.lower()}s": of(*(f"SIZE_{way}_{size}" for size in _SMALL)) for way in ("READ", "WRITE")},
        "misaligned": of("FILE_NOT_ALIGNED"), "misaligned_in_memory": of("MEM_NOT_ALIGNED"),
        "bytes_read": of("BYTES_READ"), "bytes_written": of("BYTES_WRITTEN"),
        "bytes": of("BYTES_READ", "BYTES_WRITTEN"),
        "reach": np.where(reads > 0, table.counters["POSIX_MAX_BYTE_READ"] + 1, 0),
        "seconds": np.sum([np.maximum(table.fcounters[f"POSIX_F_{what}_TIME"], 0) for what in times], axis=0),
        **extremes,
    }  # fmt: skip


def _uneven(rows: Rows) -> Iterator[dict[str, Any]]:
    """The slowest and the fastest rank of each file that they share unevenly."""
    shared = rows["rank"] == SHARED_RANK
    apart = np.abs(rows["slowest_bytes"] - rows["fastest_bytes"]) > _SHARED_UNEVEN * rows["bytes"]
    apart |= np.abs(rows["slowest_s"] - rows["fastest_s"]) > _SHARED_UNEVEN * rows["seconds"]
    names = [f"{who}_{what}" for who in ("slowest", "fastest") for what in ("rank", "s", "bytes")]
    for place in np.flatnonzero(shared & apart & (rows["bytes"] > 0)).tolist():
        found = {name: rows[name][place].item() for name in names}
        yield {"file": int(rows["file"][place]), "of_bytes": int(rows["bytes"][place]), **found}
    order = np.flatnonzero(~shared)[np.argsort(rows["file"][~shared], kind="stable")]
    for group in np.split(order, np.flatnonzero(np.diff(rows["file"][order])) + 1):
        moved = [rows[name][group] for name in ("bytes_read", "bytes_written")]
        if len(group) > 1 and any(each.max() - each.min() > _UNEVEN * each.max() for each in moved):
            seconds = rows["seconds"][group]
            ends = [group[seconds.argmax()], group[seconds.argmin()]]
            values = [rows[name][place].item() for place in ends for name in ("rank", "seconds", "bytes")]
            found = dict(zip(names, values, strict=True))
            yield {"file": int(rows["file"][group[0]]), "of_bytes": int(rows["bytes"][group].sum()), **found}
