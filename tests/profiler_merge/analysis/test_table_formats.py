from __future__ import annotations

import csv
import io
import sys

import pyarrow as pa
import pytest

from dxt_replay.profiler_merge.analysis.named_tables import flat_table, table_of, to_pandas, write_csv
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
