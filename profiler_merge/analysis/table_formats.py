"""Output formats of the analysis tables: pandas for notebooks, CSV and JSON for all else, with bounded memory."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from dxt_replay.traces.csv_text import as_plain_text
from dxt_replay.traces.errors import MissingDependencyError

if TYPE_CHECKING:
    import pandas as pd


_NOT_AS_IT_IS_IN_JSON = r"[^ !#-\[\]-~]"
"""Characters that `json.dumps` writes as an escape."""


class StreamedTable(Protocol):
    """A table that is read on request, some thousand rows at a time."""

    schema: pa.Schema
    num_rows: int

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows, in order. Raises: CaptureError when a part of the capture is damaged."""


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


def write_csv(table: pa.Table | StreamedTable, stream: IO[bytes]) -> None:
    """Write a table as UTF-8 with its (plain) column names on the first line.

    Nulls are empty, texts are quoted where necessary, and a text that a spreadsheet would run is made plain
    (`traces.csv_text`).

    Memory: one batch of a streamed table.
    """
    from pyarrow import csv

    stream.write(",".join(table.schema.names).encode("utf-8") + b"\n")
    options = csv.WriteOptions(include_header=False, quoting_style="needed")
    for batch in table.to_batches() if isinstance(table, pa.Table) else table.batches():
        if batch.num_rows:  # pyarrow 26 writes memory that it never filled for an empty batch before others
            columns = [as_plain_text(column) for column in batch.columns]
            csv.write_csv(pa.RecordBatch.from_arrays(columns, schema=batch.schema), stream, options)


def write_parquet(table: pa.Table | StreamedTable, stream: IO[bytes]) -> None:
    """Write a table as Parquet. Memory: one batch of a streamed table."""
    import pyarrow.parquet as pq

    with pq.ParquetWriter(stream, table.schema, compression="zstd") as writer:
        for batch in table.to_batches() if isinstance(table, pa.Table) else table.batches():
            writer.write_batch(batch)


def json_members(table: StreamedTable, indent: str) -> Iterator[str]:
    """The rows as members of a JSON list, without its brackets, in pieces.

    The text is that of `json.dumps` of dictionaries with indent=2, each line behind `indent`.

    Columns are integers, booleans or texts. No row is a Python object: a piece is made of columns.
    """
    between = ""
    for batch in table.batches():
        if batch.num_rows:
            yield f"{between}{_json_piece(batch, indent)}"
            between = ",\n"


def _json_piece(batch: pa.RecordBatch, indent: str) -> str:
    parts: list[Any] = []
    before = f"{indent}{{\n"
    for field, column in zip(batch.schema, batch.columns, strict=True):
        parts += [f"{before}{indent}  {json.dumps(field.name)}: ", _json_values(column)]
        before = ",\n"
    rows = pc.binary_join_element_wise(*parts, f"\n{indent}}}", "")
    together = pa.ListArray.from_arrays(pa.array([0, len(rows)], pa.int32()), rows)
    text: str = pc.binary_join(together, ",\n")[0].as_py()
    return text


def _json_values(column: pa.Array) -> pa.Array:
    """Each value as JSON text. Raises: TypeError for other types than integers, booleans and texts."""
    if pa.types.is_integer(column.type) or pa.types.is_boolean(column.type):
        return column.cast(pa.string()).fill_null("null")
    if not pa.types.is_string(column.type):
        raise TypeError(f"a column of {column.type} is not written as JSON in pieces")
    escaped = pc.match_substring_regex(column, _NOT_AS_IT_IS_IN_JSON).fill_null(False)
    quoted = pc.binary_join_element_wise('"', column, '"', "")
    if pc.any(escaped).as_py():
        texts = [json.dumps(text) for text in column.filter(escaped).to_pylist()]
        quoted = pc.replace_with_mask(quoted, escaped, pa.array(texts, pa.string()))
    return quoted.fill_null("null")


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
