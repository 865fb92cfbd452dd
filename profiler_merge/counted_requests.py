"""What Darshan's counters say of the requests of a job that no trace holds: which are small, misaligned or repeated,
and of which files and ranks. The rules are Drishti's (drishti-io, handle_darshan.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import numpy as np

from dxt_replay.profiler_merge.darshan.counters import SHARED_RANK, CounterTable, read_counters
from dxt_replay.profiler_merge.darshan.log import DarshanLog

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
    logs: Iterable[tuple[DarshanLog, int | None]], number: Callable[[int], int], excluded: Collection[int], nprocs: int
) -> dict[str, Any]:
    """By name of `_OF`: `count`, `of` (and `of_bytes`), `in_shared` (its part in files of several ranks), and `files`,
    the worst first, which `ranks` opened. And `uneven`: how many files ranks share unevenly, the worst first, and its
    slowest and fastest rank.

    logs, excluded: as of `counted_times`. number: of a file, by its record id. Raises: LogError as `read_counters`.
    """
    left_out, parts = np.array(sorted(excluded), dtype=np.uint64), []
    for log, rank in logs:
        if (table := read_counters(log, "POSIX")) is not None:
            part = _rows(table) | ({} if rank is None else {"rank": np.full(len(table.ranks), rank)})
            kept = ~np.isin(table.record_ids, left_out)
            parts.append({name: values[kept] for name, values in part.items()})
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
                "files": [number(int(files[each])) for each in worst],
            }
    if uneven := sorted(_uneven(rows), key=lambda each: each["fastest_s"] - each["slowest_s"]):
        records = [each.pop("file") for each in uneven]
        found["uneven"] = {"count": len(uneven), "files": [*map(number, records[:_WORST])], "worst": uneven[0]}
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
