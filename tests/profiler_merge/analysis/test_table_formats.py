from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterator

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.profiler_merge.analysis.table_formats import flat_table, json_members, table_of, to_pandas, write_csv
from dxt_replay.traces.errors import MissingDependencyError


def test_whole_numbers_stay_whole_in_pandas() -> None:
    frame = to_pandas(
        pa.table({"a": pa.array([1, None], pa.int64()), "b": pa.array([1, 2], pa.int64()), "c": ["x", None]})
    )
    assert frame["a"].tolist()[0] == 1
    assert str(frame["a"].dtype) == "Int64"
    assert str(frame["b"].dtype) == "int64"
    assert frame["a"].isna().tolist() == [False, True]


def test_without_pandas_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'dxt-replay\[pandas\]'"):
        to_pandas(pa.table({"a": [1]}))


def test_csv_reads_back_whatever_a_path_holds() -> None:
    rows = [{"path": 'a,"b"\nc', "n": 1}, {"path": "plain", "n": None}]
    out = io.BytesIO()
    write_csv(table_of(rows, pa.schema([("path", pa.string()), ("n", pa.int64())])), out)
    read = list(csv.reader(io.StringIO(out.getvalue().decode(), newline="")))
    assert read == [["path", "n"], ['a,"b"\nc', "1"], ["plain", ""]]


def test_nested_values_become_rows() -> None:
    table = flat_table({"a": {"b": 1, "c": None}, "d": ("x", "y")})
    assert table.to_pylist() == [
        {"name": "a.b", "value": "1"},
        {"name": "a.c", "value": None},
        {"name": "d.0", "value": "x"},
        {"name": "d.1", "value": "y"},
    ]


class Streamed:
    """A table in parts of some rows."""

    def __init__(self, table: pa.Table, rows: int) -> None:
        self.schema = table.schema
        self.num_rows = table.num_rows
        self._batches = [self.schema.empty_table().to_batches(), table.to_batches(max_chunksize=rows)]

    def batches(self) -> Iterator[pa.RecordBatch]:
        for part in self._batches:
            yield from part


TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
MIXED = st.lists(
    st.fixed_dictionaries(
        {
            "n": st.none() | st.integers(-(2**63), 2**63 - 1),
            "text": st.none()
            | TEXTS
            | st.sampled_from(['a"b', "back\\slash", "\x7f", "line\nbreak", "é\U0001f600", ""]),
            "yes": st.none() | st.booleans(),
        }
    ),
    max_size=9,
)
MIXED_SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string()), ("yes", pa.bool_())])


@given(MIXED, st.integers(1, 4))
def test_json_in_pieces_is_what_json_makes_of_the_rows(rows: list[dict[str, object]], size: int) -> None:
    pieces = "".join(json_members(Streamed(table_of(rows, MIXED_SCHEMA), size), "    "))
    ordered = [{name: row[name] for name in MIXED_SCHEMA.names} for row in rows]
    expected = json.dumps({"tables": ordered}, indent=2)
    assert expected == '{\n  "tables": ' + (f"[\n{pieces}\n  ]" if rows else "[]") + "\n}"


@given(MIXED, st.integers(1, 4))
def test_csv_of_a_streamed_table_is_that_of_the_whole(rows: list[dict[str, object]], size: int) -> None:
    table = table_of(rows, MIXED_SCHEMA)
    whole, streamed = io.BytesIO(), io.BytesIO()
    write_csv(table, whole)
    write_csv(Streamed(table, size), streamed)
    assert streamed.getvalue() == whole.getvalue()
