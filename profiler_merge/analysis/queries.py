"""A capture as relations of DuckDB, for our own tables (`analysis.tables`) and for queries of users.

    from dxt_replay.profiler_merge.analysis.queries import query

    query(capture, "SELECT path, sum(length) AS bytes FROM transfers JOIN files USING (file_id) GROUP BY path")

The relations, with the columns of `traces.schema`, times in ns from the capture's zero, and enumerations in the order
of their vocabulary:

    ops        one row per operation, in the order of rank and start. Beside the stored columns: `number`, its place in
               that order; `interface`, of `api` (POSIX, STDIO, MPIIO, HDF5, MMAP, S3); `data`, whether it is a read or
               a write that no store refused; `counted`, whether it counts towards totals: a read through MPI-IO is
               recorded again as the POSIX reads that carried it out, and counts at one layer alone (`traces.layers`)
    transfers  the traced reads and writes that count: what totals are over
    files      one row per file, by `file_id`
    spans      steps, compute, waits and other work of the training
    lanes      what is known of threads and workers

They are made from what the reader of captures checks and translates, so a capture of an older version and a part of one
(`traces.part`) have the same relations. Larger intermediate results go to a temporary directory.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from dxt_replay.profiler_merge.analysis.tables import GROUPINGS, TRANSFER_TOTALS, Table
from dxt_replay.traces.errors import DxtReplayError
from dxt_replay.traces.layers import FileLayers, file_layers
from dxt_replay.traces.part import INTERFACES
from dxt_replay.traces.schema import OPS_SCHEMA, READ, REFUSED, VOCABULARY, WRITE, codes
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.units import NS_PER_S, format_bytes

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_MEMORY = "1GB"
_MADE_FROM = ("op", "api", "origin", "file_id")
_ENUMS = {**VOCABULARY, "interface": tuple(INTERFACES)}


def query(capture: Capture, sql: str) -> pa.Table:
    """The result of a query over the relations of a capture. It reads the columns of `ops` that the query names.

    Raises: CaptureError when the capture is damaged; duckdb.Error for a query that DuckDB refuses.
    """
    every = re.search(r"(select|,|\.)\s*\*", sql, re.IGNORECASE)
    names = [name for name in OPS_SCHEMA.names if every or re.search(rf"\b{name}\b", sql)]
    with relations(capture, names) as database:
        return database.sql(sql).to_arrow_table()


@contextmanager
def relations(capture: Capture, names: Collection[str], *, keep: bool = False) -> Iterator[DuckDBPyConnection]:
    """A database with the relations of a capture, for a single query of `ops`, or with `keep` for several.

    `names`: columns of OPS_SCHEMA that are read.
    """
    import duckdb

    damage: list[DxtReplayError] = []
    with TemporaryDirectory(prefix="dxt-replay-") as scratch:
        config: dict[str, Any] = {"memory_limit": _MEMORY, "temp_directory": scratch}
        with duckdb.connect(config=config) as database:
            for name, values in _ENUMS.items():
                database.execute(f"CREATE TYPE {name}_name AS ENUM {values}")
            fields = [field for field in OPS_SCHEMA if field.name in names or field.name in _MADE_FROM]
            schema = pa.schema([*fields, *_ADDED])
            batches = _batches(capture, schema, file_layers(capture), damage)
            database.register("rows", pa.RecordBatchReader.from_batches(schema, batches))
            for name in ("files", "spans", "lanes"):
                database.register(name, getattr(capture, name))
            typed = ", ".join(f"{name}::{name}_name AS {name}" for name in schema.names if name in _ENUMS)
            kind = "TEMP TABLE" if keep else "VIEW"
            try:
                database.execute(f"CREATE {kind} ops AS SELECT * REPLACE ({typed}) FROM rows")
                database.execute(_TRANSFERS)
                yield database
            except duckdb.Error:
                if damage:  # DuckDB knows an error of the reader only as a text
                    raise damage[0] from None
                raise


_ADDED = (
    pa.field("interface", pa.dictionary(pa.int8(), pa.string())),
    pa.field("data", pa.bool_()),
    pa.field("counted", pa.bool_()),
    pa.field("number", pa.int64()),
)
_TRANSFERS = "CREATE VIEW transfers AS SELECT * FROM ops WHERE data AND counted AND origin <> 'reconstructed'"
_INTERFACE = np.array(
    [next(place for place, apis in enumerate(INTERFACES.values()) if api in apis) for api in VOCABULARY["api"]],
    dtype=np.int8,
)


def _batches(
    capture: Capture, schema: pa.Schema, layers: FileLayers, damage: list[DxtReplayError]
) -> Iterator[pa.RecordBatch]:
    """The rows of `ops`. What ends them early is kept in `damage`."""
    number, names = 0, schema.names[: -len(_ADDED)]
    try:
        for batch in capture.operations(columns=names):
            op, api, file_id = codes(batch, "op"), codes(batch, "api"), batch.column("file_id").to_numpy()
            added = (
                pa.DictionaryArray.from_arrays(_INTERFACE[api], list(INTERFACES)),
                pa.array(np.isin(op, (READ, WRITE)) & (api != REFUSED)),
                pa.array(layers.counted(api, file_id)),
                pa.array(np.arange(number, number := number + len(batch))),
            )
            yield pa.RecordBatch.from_arrays([*(batch.column(name) for name in names), *added], schema=schema)
    except DxtReplayError as error:
        damage.append(error)
        raise


def made_by_query(source: Capture | DuckDBPyConnection, table: Table) -> pa.Table:
    """A table whose description has a query, of a capture or of its relations."""
    made = query(source, table.query) if isinstance(source, Capture) else source.sql(table.query).to_arrow_table()
    return made.select(table.schema.names).cast(table.schema)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTotals:
    """One group. `group`: the rank or step as a number, the path, the format, or the sizes as text.

    `io_ns` and `io_time_s`: sum of the durations, in both units.
    """

    group: int | str
    reads: int
    writes: int
    bytes_read: int
    bytes_written: int
    io_ns: int
    io_time_s: float


def group_totals(capture: Capture, by: str) -> tuple[GroupTotals, ...]:
    """Totals of the transfers by one of `tables.GROUPINGS`, in the order of its key."""
    key, label = GROUPINGS[by]
    rows = query(
        capture,
        f"""SELECT {key} AS key, {label} AS "group", {TRANSFER_TOTALS}
        FROM transfers JOIN files USING (file_id) GROUP BY key, "group" ORDER BY key""",
    ).to_pylist()
    for row in rows:
        if by == "size":
            least, most = ((1 << max(row["key"] - 1, 0)), 1 << row["key"]) if row["key"] else (0, 1)
            one = least + 1 >= most
            row["group"] = format_bytes(least) if one else f"{format_bytes(least)} to < {format_bytes(most)}"
    return tuple(
        GroupTotals(
            io_time_s=row["io_ns"] / NS_PER_S,
            **{name: row[name] for name in ("group", "reads", "writes", "bytes_read", "bytes_written", "io_ns")},
        )
        for row in rows
    )
