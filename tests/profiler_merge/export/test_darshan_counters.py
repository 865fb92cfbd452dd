from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiler_merge.darshan.counter_layouts import NEWEST
from profiler_merge.export.darshan_counters import (
    APIS_OF_MODULE,
    UNKNOWN_ALIGNMENT,
    encode_counters,
    module_counters,
    rows_of_module,
)
from profiler_merge.export.darshan_rows import RENAMED, ROW
from traces.schema import APIS, OPS

MIB = 1 << 20
SIZES = {"0_100": 100, "100_1K": 1 << 10, "1K_10K": 10 << 10, "10K_100K": 100 << 10, "100K_1M": MIB, "1M_4M": 4 * MIB,
         "4M_10M": 10 * MIB, "10M_100M": 100 * MIB, "100M_1G": 1 << 30, "1G_PLUS": 1 << 62}  # fmt: skip
BLOCK = 4096

numbers = st.sampled_from([0, 1, 2, 99, 100, 101, 512, 1024, 4096, 8192, 102_400, MIB, MIB + 1, 1 << 31]) | st.integers(
    0, 40
)
operations = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from(OPS),
        st.sampled_from(APIS[:4]),
        numbers,
        numbers,
        st.integers(-3, 30),
        st.integers(0, 6),
    ),
    max_size=50,
)


def table(drawn: list[tuple[Any, ...]]) -> np.ndarray:
    """Rows of ROW; a rename's offset is what the other tests make of it."""
    rows = np.zeros(len(drawn), dtype=ROW)
    for row, (file, op, api, offset, length, start, duration) in zip(rows, drawn, strict=True):
        is_data = op in ("read", "write")
        row["file_id"], row["op"], row["api"] = file * 7, OPS.index(op), APIS.index(api)
        row["offset"], row["length"] = (offset, length) if is_data else (-1, 0)
        row["start_ns"], row["end_ns"] = start * 1_000_000_000, (start + duration) * 1_000_000_000
    return rows


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


def expected(module: str, rows: list[Any]) -> dict[str, float]:
    """Counters of one file, kept as the operations return, one after the other."""
    prefix = module.replace("-", "")
    rows = sorted(rows, key=lambda row: (row["end_ns"], row["start_ns"]))
    kinds = {name: [row for row in rows if row["op"] == code] for code, name in enumerate((*OPS, "renamed"))}
    values: Counter[str] = Counter()
    last_byte = {"read": 0, "write": 0}
    previous = None
    strides, sizes = [], []
    for row in rows:
        op = OPS[row["op"]] if row["op"] < len(OPS) else ""
        if op == "open":
            last_byte = {"read": 0, "write": 0}
        if op not in last_byte:
            continue
        way, offset, length = op.upper(), int(row["offset"]), int(row["length"])
        values[f"SEQ_{way}S"] += offset > last_byte[op]
        values[f"CONSEC_{way}S"] += offset == last_byte[op] + 1
        strides.append(offset - last_byte[op] - 1 if last_byte[op] and offset > max(last_byte[op], 0) else 0)
        sizes.append(length)
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


@settings(max_examples=300)
@given(drawn=operations, module=st.sampled_from(list(APIS_OF_MODULE)))
def test_counters_are_those_of_one_call_after_the_other(drawn: list[tuple[Any, ...]], module: str) -> None:
    mine = rows_of_module(table(drawn), module)
    found = module_counters(module, mine, np.full(mine.files, BLOCK))
    assert set(mine.file_ids.tolist()) == {row[0] * 7 for row in drawn if APIS.index(row[2]) in APIS_OF_MODULE[module]}
    for place, file_id in enumerate(mine.file_ids.tolist()):
        rows = [row for row in mine.rows if row["file_id"] == file_id]
        for name, value in expected(module, rows).items():
            if name in found:
                assert found[name][place] == pytest.approx(value, rel=1e-12), name
            else:
                assert value == 0, name


def test_what_happened_at_time_zero_is_not_never() -> None:
    mine = rows_of_module(table([(0, "read", "POSIX", 0, 5, 0, 0)]), "POSIX")
    found = module_counters("POSIX", mine, np.array([UNKNOWN_ALIGNMENT]))
    for name in ("READ_START", "READ_END", "OPEN_START", "OPEN_END", "CLOSE_START", "CLOSE_END"):
        assert 0 < found[f"POSIX_F_{name}_TIMESTAMP"][0] < 1e-9
    assert found["POSIX_F_WRITE_START_TIMESTAMP"][0] == 0
    assert found["POSIX_FILE_NOT_ALIGNED"][0] == UNKNOWN_ALIGNMENT


def test_a_rename_is_counted_at_both_names() -> None:
    rows = table(
        [(0, "rename", "POSIX", 0, 0, 1, 1), (1, "stat", "POSIX", 0, 0, 1, 1), (1, "stat", "POSIX", 0, 0, 1, 1)]
    )
    old = np.array([1 << 63, 5], dtype=np.uint64)
    rows["op"][1:], rows["offset"][1:] = RENAMED, old.view(np.int64)
    mine = rows_of_module(rows, "POSIX")
    found = module_counters("POSIX", mine, np.full(2, BLOCK))
    assert found["POSIX_RENAME_SOURCES"].tolist() == [1, 0]
    assert found["POSIX_RENAME_TARGETS"].tolist() == [0, 2]
    assert found["POSIX_RENAMED_FROM"].view(np.uint64).tolist() == [0, 1 << 63]


@pytest.mark.parametrize("module", list(APIS_OF_MODULE))
def test_every_counter_that_is_computed_is_one_of_the_module(module: str) -> None:
    rows = table([(0, op, APIS[code], 5, 5, 1, 1) for op in OPS for code in APIS_OF_MODULE[module]])
    found = module_counters(module, rows_of_module(rows, module), np.array([BLOCK]))
    layout = NEWEST[module]
    data = encode_counters(module, np.array([9], dtype=np.uint64), 3, found)
    assert len(data) == 16 + 8 * (len(layout.counters) + len(layout.fcounters))
    assert np.frombuffer(data, "<i8", 2).tolist() == [9, 3]
    with pytest.raises(AssertionError):
        encode_counters(module, np.array([9], dtype=np.uint64), 3, {"NO_SUCH": np.array([1])})
