"""Output formats of the analysis tables: pandas for notebooks, CSV and JSON for all else, with bounded memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import IO, TYPE_CHECKING, Any

import pyarrow as pa

from dxt_replay.traces.csv_text import as_plain_text
from dxt_replay.traces.errors import MissingDependencyError

if TYPE_CHECKING:
    import pandas as pd


def to_pandas(table: pa.Table) -> pd.DataFrame:
    """The table as a DataFrame. Whole numbers stay whole: columns with nulls get pandas' nullable types.

    Raises: MissingDependencyError without pandas.
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise MissingDependencyError("pandas", "a DataFrame", "pip install 'dxt-replay[pandas]'") from error
    nullable = {pa.int32(): pd.Int32Dtype(), pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype()}
    frame = table.to_pandas()
    for field in table.schema:
        if field.type in nullable and table[field.name].null_count:
            frame[field.name] = table.select([field.name]).to_pandas(types_mapper=nullable.get)[field.name]
    return frame


def write_csv(table: pa.Table, stream: IO[bytes]) -> None:
    """Write a table as UTF-8 with its (plain) column names on the first line.

    Nulls are empty, texts are quoted where necessary, and a text that a spreadsheet would run is made plain
    (`traces.csv_text`).
    """
    from pyarrow import csv

    stream.write(",".join(table.schema.names).encode("utf-8") + b"\n")
    options = csv.WriteOptions(include_header=False, quoting_style="needed")
    for batch in table.to_batches():
        if batch.num_rows:  # pyarrow 26 writes memory that it never filled for an empty batch before others
            columns = [as_plain_text(column) for column in batch.columns]
            csv.write_csv(pa.RecordBatch.from_arrays(columns, schema=batch.schema), stream, options)


def table_of(rows: Iterable[Any], schema: pa.Schema) -> pa.Table:
    """Table of dataclasses or mappings, one row each, with the columns of `schema`."""
    plain = [row if isinstance(row, Mapping) else dataclasses.asdict(row) for row in rows]
    return pa.Table.from_pylist([{name: row[name] for name in schema.names} for row in plain], schema=schema)


def flat_table(values: Mapping[str, Any]) -> pa.Table:
    """Columns name and value (text) of nested mappings and lists: `{"a": {"b": 1}}` has the row `a.b`, `1`."""
    rows = [(name.removeprefix("."), None if value is None else str(value)) for name, value in _flat("", values)]
    names, texts = zip(*rows, strict=True) if rows else ((), ())
    return pa.table({"name": pa.array(names, pa.string()), "value": pa.array(texts, pa.string())})


def _flat(prefix: str, value: Any) -> Iterable[tuple[str, Any]]:
    if not isinstance(value, (Mapping, list, tuple)):
        yield prefix, value
        return
    for name, inner in value.items() if isinstance(value, Mapping) else enumerate(value):
        yield from _flat(f"{prefix}.{name}", inner)


def without_io(summary: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON object of a summary with null for figures of I/O: without a recording of I/O, 0 would be a claim."""
    loop = summary["loop"] or {}
    unknown = {name: None for name in loop if name.startswith(("io_", "storage_"))}
    return {
        **summary,
        **{name: dict.fromkeys(summary[name]) for name in ("operations", "bytes", "io_time_s")},
        **dict.fromkeys(("files", "in_flight_s", "other_io_s")),
        "loop": {**loop, **unknown} if loop else None,
    }
