from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dxt_replay.profiler_merge.darshan.counter_layouts import NEWEST
from dxt_replay.profiler_merge.export.darshan_counters import (
    APIS_OF_MODULE,
    UNKNOWN_ALIGNMENT,
    encode_counters,
    module_counters,
    rows_of_module,
)
from dxt_replay.profiler_merge.export.darshan_rows import RENAMED, ROW
from dxt_replay.traces.schema import APIS, OPS
from tests.darshan_model import BLOCK, expected
from tests.examples import examples

MIB = 1 << 20
NO_RECORDS = np.empty(0, dtype=np.uint64)

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
    """Rows of ROW; the other file of a rename is file 0, or what the other tests make of it."""
    rows = np.zeros(len(drawn), dtype=ROW)
    for row, (file, op, api, offset, length, start, duration) in zip(rows, drawn, strict=True):
        is_data = op in ("read", "write")
        row["file_id"], row["op"], row["api"] = file * 7, OPS.index(op), APIS.index(api)
        row["offset"], row["length"] = (offset, length) if is_data else (-1, 0)
        row["start_ns"], row["end_ns"] = start * 1_000_000_000, (start + duration) * 1_000_000_000
    return rows


@settings(max_examples=examples(300))
@given(drawn=operations, module=st.sampled_from(list(APIS_OF_MODULE)))
def test_counters_are_those_of_one_call_after_the_other(drawn: list[tuple[Any, ...]], module: str) -> None:
    mine = rows_of_module(table(drawn), module)
    found = module_counters(module, mine, np.full(mine.files, BLOCK), NO_RECORDS)
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
    found = module_counters("POSIX", mine, np.array([UNKNOWN_ALIGNMENT]), NO_RECORDS)
    for name in ("READ_START", "READ_END", "OPEN_START", "OPEN_END", "CLOSE_START", "CLOSE_END"):
        assert 0 < found[f"POSIX_F_{name}_TIMESTAMP"][0] < 1e-9
    assert found["POSIX_F_WRITE_START_TIMESTAMP"][0] == 0
    assert found["POSIX_FILE_NOT_ALIGNED"][0] == UNKNOWN_ALIGNMENT


def test_a_rename_is_counted_at_both_names() -> None:
    rows = table(
        [(0, "rename", "POSIX", 0, 0, 1, 1), (1, "stat", "POSIX", 0, 0, 1, 1), (1, "stat", "POSIX", 0, 0, 1, 1)]
    )
    record_ids = np.array([7, 8, 1 << 63, 5], dtype=np.uint64)
    rows["op"][1:], rows["other_file_id"][1:] = RENAMED, (2, 3)
    mine = rows_of_module(rows, "POSIX")
    found = module_counters("POSIX", mine, np.full(2, BLOCK), record_ids)
    assert found["POSIX_RENAME_SOURCES"].tolist() == [1, 0]
    assert found["POSIX_RENAME_TARGETS"].tolist() == [0, 2]
    assert found["POSIX_RENAMED_FROM"].view(np.uint64).tolist() == [0, 1 << 63]


@pytest.mark.parametrize("module", list(APIS_OF_MODULE))
def test_every_counter_that_is_computed_is_one_of_the_module(module: str) -> None:
    rows = table([(0, op, APIS[code], 5, 5, 1, 1) for op in OPS for code in APIS_OF_MODULE[module]])
    found = module_counters(module, rows_of_module(rows, module), np.array([BLOCK]), np.array([9], dtype=np.uint64))
    layout = NEWEST[module]
    data = encode_counters(module, np.array([9], dtype=np.uint64), 3, found)
    assert len(data) == 16 + 8 * (len(layout.counters) + len(layout.fcounters))
    assert np.frombuffer(data, "<i8", 2).tolist() == [9, 3]
    with pytest.raises(AssertionError):
        encode_counters(module, np.array([9], dtype=np.uint64), 3, {"NO_SUCH": np.array([1])})
