"""The tables of the analysis by name, as `dxt-replay summary` offers them: one pass makes all that need one; and the
formats in which they are written: pandas for notebooks, CSV for all else."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from dxt_replay.profiler_merge.analysis.queries import made_by_query
from dxt_replay.profiler_merge.analysis.summary import Summary, summarise
from dxt_replay.profiler_merge.analysis.tables import GROUPS, OF_IO, TABLES
from dxt_replay.traces.csv_text import as_plain_text
from dxt_replay.traces.errors import MissingDependencyError
from dxt_replay.traces.plain import Result
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.unseen import nothing_recorded
from dxt_replay.traces.workers import ALONE, Workers

if TYPE_CHECKING:
    import pandas as pd

    from dxt_replay.profiler_merge.analysis.finding import Finding
    from dxt_replay.traces.storage_limit import Limit

CONTENTS = ("tfrecords", "datasets")
"""Tables for which the recorded files are opened."""

STORAGE_LIMIT = "storage-limit"

DEPENDENCIES = "dependencies"

MODEL = "model"

_WITH_SHARES = (
    *("findings", "overlap", "steps", "files", "ranks", "rank-files"),
    *("sizes", "darshan-sizes", "exact-sizes"),
)
"""Tables beside which the shares of compute, input wait and I/O are shown."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Views(Result):
    """The summary, and tables by name.

    `findings`: the rows of the table "findings", if that was requested.
    `shares`: `Overlap.shares`; None unless a table of the analysis was requested.
    `unread`: `Contents.unread`; None unless a table of CONTENTS was requested.
    `storage_limit`: of the training; None if it was not requested, or has no meaning.
    `model`: the causal model in numbers; None if the table MODEL was not requested, or there are no training steps.
    """

    summary: Summary
    tables: dict[str, pa.Table]
    shares: dict[str, float | None] | None
    findings: tuple[Finding, ...] = ()
    unread: Mapping[str, str] | None = None
    storage_limit: Limit | None = None
    model: Mapping[str, Any] | None = None

    def as_json(self) -> dict[str, Any]:
        """The object that `dxt-replay summary --json` prints."""
        result = self.summary.as_json()
        if self.shares is not None:
            result["overlap"] = self.shares
        if self.tables:
            result["tables"] = {name: self.rows(name) for name in self.tables}
        if self.unread is not None:
            result["unread"] = dict(self.unread)
        if self.storage_limit is not None:
            result["storage_limit"] = self.storage_limit.as_json()
        if self.model is not None:
            result["model"] = dict(self.model)
        return result

    def rows(self, name: str, most: int = 0) -> list[dict[str, Any]]:
        """The rows of a table; for "rank-files" the `most` rows that moved most."""
        if name == "findings":
            return [finding.as_json() for finding in self.findings]
        table = self.tables[name]
        if name == "rank-files" and most:
            moved = table["bytes_read"].to_numpy() + table["bytes_written"].to_numpy()
            table = table.take(pa.array(np.argsort(-moved, kind="stable")[:most]))
        rows: list[dict[str, Any]] = table.to_pylist()
        return rows


def views(
    capture: Capture,
    names: Collection[str],
    *,
    by: str | None = None,
    bin_ns: int | None = None,
    bins: int | None = None,
    locate: Callable[[str], Path] = Path,
    limit: Limit | None = None,
    dependencies: Callable[[], pa.Table] = TABLES[DEPENDENCIES].schema.empty_table,
    model: Callable[[], Mapping[str, Any] | None] = lambda: None,
    workers: Workers = ALONE,
) -> Views:
    """The summary and the tables `names` (of `tables.TABLES`). Arguments as of `summarise`, `timeline` and `contents`.

    `limit`: the storage limit, of which STORAGE_LIMIT has the points. `dependencies`: makes the table DEPENDENCIES;
    `model`: the causal model of the table MODEL.
    Raises: CaptureError when the capture is damaged; UsageError for too many bins.
    """
    made: dict[str, pa.Table] = {}
    beside: dict[str, Any] = {"shares": None}
    if any(name in _WITH_SHARES for name in names):
        from dxt_replay.profiler_merge.analysis.analyse import analyse

        found = analyse(capture, by=by, workers=workers, saved_s=None if limit is None else limit.saved_between_s)
        summary, beside["shares"] = found.summary, found.overlap.shares()
        made |= {"overlap": found.overlap.ranks, "steps": found.overlap.steps}
        made |= {name: getattr(found.patterns, name) for name in ("files", "ranks")}
        if "findings" in names:
            from dxt_replay.profiler_merge.analysis.findings import findings_of, findings_table

            beside["findings"] = findings_of(found)
            made["findings"] = findings_table(beside["findings"])
    else:
        summary = summarise(capture, by=by, workers=workers)
    if any(name in CONTENTS for name in names):
        from dxt_replay.profiler_merge.analysis.contents import contents

        inside = contents(capture, locate=locate)
        beside["unread"] = inside.unread
        made |= {name: getattr(inside, name) for name in CONTENTS}
    if "timeline" in names:
        from dxt_replay.profiler_merge.analysis.timeline import DEFAULT_BINS, timeline

        made["timeline"] = timeline(capture, bin_ns=bin_ns, bins=bins or DEFAULT_BINS, workers=workers).table
    if "rank-files" in names:
        from dxt_replay.profiler_merge.analysis.patterns import rank_files

        made["rank-files"] = rank_files(capture)
    if STORAGE_LIMIT in names:
        made[STORAGE_LIMIT] = table_of(() if limit is None else limit.points, TABLES[STORAGE_LIMIT].schema)
    if DEPENDENCIES in names:
        made[DEPENDENCIES] = dependencies()
    if MODEL in names:
        beside["model"] = model()
        made[MODEL] = flat_table(beside["model"] or {})
    made |= {name: made_by_query(capture, TABLES[name]) for name in names if TABLES[name].query}
    tables = {name: made[name] for name in names}
    if nothing_recorded(summary.coverage.unseen):  # 0 would claim that there was none
        tables = {name: _io_unknown(table) for name, table in tables.items()}
        for name in beside["shares"] or ():
            if name.startswith(("io_", "pipeline_")):
                beside["shares"][name] = None
    return Views(summary=summary, tables=tables, storage_limit=limit, **beside)


def _io_unknown(table: pa.Table) -> pa.Table:
    if "code" in table.schema.names:  # findings have files of their own
        return table
    for place, field in enumerate(table.schema):
        if field.name in OF_IO:
            table = table.set_column(place, field.with_nullable(True), pa.nulls(table.num_rows, field.type))
    return table


def summary_table(summary: Summary) -> pa.Table:
    """The breakdown if one was requested (`tables.GROUPS`), else every total as a row of name and value."""
    if summary.groups is not None:
        rows = ({**dataclasses.asdict(group), "group": str(group.group)} for group in summary.groups)
        return table_of(rows, GROUPS.schema)
    return flat_table(summary.as_json())


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
    return pa.Table.from_pylist(plain, schema=schema)


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
