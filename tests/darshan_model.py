"""Darshan's counters of one file, kept as the operations return, one after the other: what darshan-posix.c and its
siblings do, in plain Python, as the oracle of what is computed from counters and of what is rebuilt from them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from dxt_replay.profiler_merge.darshan.counter_layouts import NEWEST
from dxt_replay.traces.schema import APIS, OPS

ROW = np.dtype(
    [
        ("file_id", "i4"), ("op", "i1"), ("api", "i1"), ("offset", "i8"), ("length", "i8"), ("start_ns", "i8"),
        ("end_ns", "i8"),
    ]
)  # fmt: skip
"""What the model looks at of an operation. The new name of a rename has a row of its own, with the `op` len(OPS)."""

MIB = 1 << 20
SIZES = {"0_100": 100, "100_1K": 1 << 10, "1K_10K": 10 << 10, "10K_100K": 100 << 10, "100K_1M": MIB, "1M_4M": 4 * MIB,
         "4M_10M": 10 * MIB, "10M_100M": 100 * MIB, "100M_1G": 1 << 30, "1G_PLUS": 1 << 62}  # fmt: skip
BLOCK = 4096


def busy(rows: list[Any]) -> float:
    """Each call adds what lies after the end of the call that returned before it."""
    total, last = 0, None
    for row in rows:
        start = row["start_ns"] if last is None else max(row["start_ns"], last)
        total += row["end_ns"] - start
        last = row["end_ns"]
    return total / 1e9


def top(values: list[int]) -> list[tuple[int, int]]:
    """The four most common of the first 32 distinct values, 0 not shown."""
    found: Counter[int] = Counter()
    for value in values:
        if value in found or len(found) < 32:
            found[value] += 1
    shown = sorted(((count, value) for value, count in found.items() if value), reverse=True)[:4]
    return [(value, count) for count, value in shown] + [(0, 0)] * (4 - len(shown))


def sizes_and_strides(rows: list[Any]) -> tuple[list[int], list[int]]:
    """Length and stride of each read and write of rows in the order of their end; 0 for no stride."""
    last_byte = {"read": 0, "write": 0}
    strides, sizes = [], []
    for row in rows:
        op = OPS[row["op"]] if row["op"] < len(OPS) else ""
        if op == "open":
            last_byte = {"read": 0, "write": 0}
        if op not in last_byte:
            continue
        offset, length = int(row["offset"]), int(row["length"])
        strides.append(offset - last_byte[op] - 1 if last_byte[op] and offset > max(last_byte[op], 0) else 0)
        sizes.append(length)
        last_byte[op] = offset + length - 1
    return sizes, strides


def in_order_of_return(rows: list[Any]) -> list[Any]:
    """Rows sorted as Darshan counts them."""
    return sorted(rows, key=lambda row: (row["end_ns"], row["start_ns"]))


def expected(module: str, rows: list[Any]) -> dict[str, float]:
    """Counters of one file, kept as the operations return, one after the other."""
    prefix = module.replace("-", "")
    rows = in_order_of_return(rows)
    kinds = {name: [row for row in rows if row["op"] == code] for code, name in enumerate((*OPS, "renamed"))}
    values: Counter[str] = Counter()
    last_byte = {"read": 0, "write": 0}
    previous = None
    sizes, strides = sizes_and_strides(rows)
    for row in rows:
        op = OPS[row["op"]] if row["op"] < len(OPS) else ""
        if op == "open":
            last_byte = {"read": 0, "write": 0}
        if op not in last_byte:
            continue
        way, offset, length = op.upper(), int(row["offset"]), int(row["length"])
        values[f"SEQ_{way}S"] += offset > last_byte[op]
        values[f"CONSEC_{way}S"] += offset == last_byte[op] + 1
        last_byte[op] = offset + length - 1
        values["RW_SWITCHES"] += previous not in (None, op)
        previous = op
        bin_name = next(name for name, bound in SIZES.items() if length <= bound)
        values[f"SIZE_{way}_{bin_name}"] += 1
        values["FILE_NOT_ALIGNED"] += offset % BLOCK != 0
        if row["end_ns"] - row["start_ns"] > values[f"longest {way}"]:
            values[f"longest {way}"] = row["end_ns"] - row["start_ns"]
            values[f"MAX_{way}_TIME_SIZE"] = length
    found: dict[str, float] = {name: value for name, value in values.items() if not name.startswith("longest")}
    for way, ways, moved in (("READ", "READS", "READ"), ("WRITE", "WRITES", "WRITTEN")):
        own = kinds[way.lower()]
        found[ways] = len(own)
        found[f"BYTES_{moved}"] = sum(int(row["length"]) for row in own)
        found[f"MAX_BYTE_{moved}"] = max([0, *(int(row["offset"] + row["length"]) - 1 for row in own)])
        found[f"F_{way}_START_TIMESTAMP"] = min([row["start_ns"] for row in own], default=0) / 1e9
        found[f"F_{way}_END_TIMESTAMP"] = max([row["end_ns"] for row in own], default=0) / 1e9
        found[f"F_MAX_{way}_TIME"] = values[f"longest {way}"] / 1e9
    data = kinds["read"] + kinds["write"]
    found["F_READ_TIME"] = busy(kinds["read"])
    found["F_WRITE_TIME"] = busy(
        [row for row in rows if OPS.index("sync") == row["op"] or OPS.index("write") == row["op"]]
    )
    meta = [OPS.index(name) for name in ("open", "close", "stat", "seek", "rename")]
    found["F_META_TIME"] = busy([row for row in rows if row["op"] in meta])
    assumed = data if not kinds["open"] and not kinds["close"] else []
    found["OPENS"] = len(kinds["open"]) or int(bool(assumed))
    opened, closed = kinds["open"] or assumed, kinds["close"] or assumed
    found["F_OPEN_START_TIMESTAMP"] = min([row["start_ns"] for row in opened], default=0) / 1e9
    found["F_CLOSE_END_TIMESTAMP"] = max([row["end_ns"] for row in closed], default=0) / 1e9
    # an assumed open or close is a moment
    last_open = max([row["end_ns"] for row in kinds["open"]], default=0) / 1e9
    first_close = min([row["start_ns"] for row in kinds["close"]], default=0) / 1e9
    found["F_OPEN_END_TIMESTAMP"] = found["F_OPEN_START_TIMESTAMP"] if assumed else last_open
    found["F_CLOSE_START_TIMESTAMP"] = found["F_CLOSE_END_TIMESTAMP"] if assumed else first_close
    found |= {"SEEKS": len(kinds["seek"]), "STATS": len(kinds["stat"]), "RENAME_SOURCES": len(kinds["rename"])}
    found |= {"FSYNCS": len(kinds["sync"]), "FLUSHES": len(kinds["sync"]), "SYNCS": len(kinds["sync"])}
    collective = [row for row in data if row["api"] == APIS.index("MPIIO_COLL")]
    found["COLL_READS"] = sum(OPS[row["op"]] == "read" for row in collective)
    found["INDEP_WRITES"] = len(kinds["write"]) - sum(OPS[row["op"]] == "write" for row in collective)
    for name, common in (("STRIDE", top(strides)), ("ACCESS", top(sizes))):
        for place, (value, count) in enumerate(common, 1):
            found[f"{name}{place}_{name}"], found[f"{name}{place}_COUNT"] = value, count
    known = {*NEWEST[module].counters, *NEWEST[module].fcounters}
    if module == "MPI-IO":
        found |= {name.replace("SIZE_READ", "SIZE_READ_AGG").replace("SIZE_WRITE", "SIZE_WRITE_AGG"): value
                  for name, value in found.items() if name.startswith("SIZE_")}  # fmt: skip
        found["INDEP_OPENS"] = found["OPENS"]
    return {f"{prefix}_{name}": value for name, value in found.items() if f"{prefix}_{name}" in known}
