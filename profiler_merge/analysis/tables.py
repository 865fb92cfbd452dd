"""The faces that all tables of the analysis share: pandas for notebooks, comma-separated values for everything else."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import IO, TYPE_CHECKING, Any

import pyarrow as pa

from traces.errors import MissingDependencyError

if TYPE_CHECKING:
    import pandas as pd


def to_pandas(table: pa.Table) -> pd.DataFrame:
    """The table as a DataFrame: whole numbers stay whole, with pandas' nullable types where there are nulls.

    Raises: MissingDependencyError without pandas.
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise MissingDependencyError("pandas", "a DataFrame", "pip install pandas") from error
    nullable = {pa.int32(): pd.Int32Dtype(), pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype()}
    frame = table.to_pandas()
    for field in table.schema:
        if field.type in nullable and table[field.name].null_count:
            frame[field.name] = table.select([field.name]).to_pandas(types_mapper=nullable.get)[field.name]
    return frame


def write_csv(table: pa.Table, stream: IO[bytes]) -> None:
    """Write a table as UTF-8 with its (plain) column names on the first line; nulls are empty, texts are quoted where
    they have to be."""
    from pyarrow import csv

    stream.write(",".join(table.column_names).encode("utf-8") + b"\n")
    csv.write_csv(table, stream, csv.WriteOptions(include_header=False, quoting_style="needed"))


def table_of(rows: Iterable[Any], schema: pa.Schema) -> pa.Table:
    """Table of dataclasses or mappings, one row each, with the columns of `schema`."""
    plain = [row if isinstance(row, Mapping) else dataclasses.asdict(row) for row in rows]
    return pa.Table.from_pylist([{name: row[name] for name in schema.names} for row in plain], schema=schema)


def flat_table(values: Mapping[str, Any]) -> pa.Table:
    """Columns name and value (text) of nested mappings and lists: `{"a": {"b": 1}}` has the row `a.b`, `1`."""
    names, texts = [], []
    for name, value in _flat("", values):
        names.append(name)
        texts.append(None if value is None else str(value))
    return pa.table({"name": pa.array(names, pa.string()), "value": pa.array(texts, pa.string())})


def _flat(prefix: str, value: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _flat(f"{prefix}.{name}" if prefix else str(name), inner)
    elif isinstance(value, (list, tuple)):
        for number, inner in enumerate(value):
            yield from _flat(f"{prefix}.{number}", inner)
    else:
        yield prefix, value
