"""The tables of data that both the terminal and the HTML page show: which of their columns. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

from dxt_replay.profiler_merge.analysis.tables import COLUMNS, TABLES, head_of
from dxt_replay.replay.show.cells import or_dash
from dxt_replay.replay.show.section import BAR, MAX_GROUPS, Column, Kind, Section, bar
from dxt_replay.traces.text import unit_of
from dxt_replay.traces.units import format_bytes, format_count, format_duration

Row = Mapping[str, Any]


_LOOKS: Mapping[str, tuple[Callable[[Any], str], Kind]] = {
    "int64": (format_count, Kind.NUMBER),
    "int32": (format_count, Kind.NUMBER),
    "double": ("{:.2f}".format, Kind.NUMBER),
    "bool": (lambda value: "yes" if value else "no", Kind.TEXT),
    "number": (str, Kind.NUMBER),
    "bytes": (format_bytes, Kind.NUMBER),
    "ns": (format_duration, Kind.NUMBER),
    "string": (str, Kind.TEXT),
}
"""Unit of a column, or its type where it has none -> how its values are written and laid out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataColumn:
    """One column of a table of data.

    `value`: the value in a row, by which the page sorts; None where it is not known.
    `text`: what is written of a known value.
    `total`: whether the values of different rows add up.
    `terminal`, `page`: where the column is shown; `spare`: left out where a terminal is too narrow.
    """

    head: str
    value: Callable[[Row], Any]
    text: Callable[[Any], str]
    kind: Kind = Kind.NUMBER
    total: bool = False
    terminal: bool = True
    page: bool = True
    spare: bool = False


REBUILT_NOTE = "From counters: rebuilt, not traced. Their times and order are estimates, in no other column."


def used_columns(columns: Sequence[DataColumn], rows: Sequence[Row]) -> list[DataColumn]:
    """The first column, and those in which any row has a value that is not 0."""
    return [column for column in columns if column is columns[0] or any(column.value(row) for row in rows)]


def data_section(
    title: str,
    columns: Sequence[DataColumn],
    rows: Sequence[Row],
    *,
    cost: Callable[[Row], float] | None = None,
    rows_in_all: int | None = None,
) -> Section:
    """The table for a terminal: the `MAX_GROUPS` rows that cost most, the most first, with a bar of the cost.

    `cost`: sorts the rows, None to keep their order. `rows_in_all`: number of all rows, where `rows` are the largest.
    """
    ordered = list(rows) if cost is None else sorted(rows, key=cost, reverse=True)
    shown = ordered[:MAX_GROUPS]
    used = used_columns([column for column in columns if column.terminal], shown)
    most = max((cost(row) for row in shown), default=0.0) if cost is not None else 0.0

    def cells(row: Row) -> tuple[str, ...]:
        texts = tuple(or_dash(column.value(row), column.text) for column in used)
        return (*texts, bar(cost(row) / most, 10)) if cost is not None and most else texts

    return Section(
        title=title,
        columns=(
            *(Column(head=column.head, kind=column.kind, spare=column.spare) for column in used),
            *((BAR,) if most else ()),
        ),
        rows=tuple(cells(row) for row in shown),
        notes=(
            *left_out((len(rows) if rows_in_all is None else rows_in_all) - len(shown)),
            *([REBUILT_NOTE] if any(column.head == head_of("reconstructed_bytes") for column in used) else []),
        ),
    )


def left_out(rows: int) -> tuple[str, ...]:
    """The note below a table that does not show this many rows; none for 0."""
    return (f"and {format_count(rows)} more: --csv and --json have all",) if rows > 0 else ()


def _column(name: str, head: str = "", **shown: bool) -> DataColumn:
    """A column of `analysis.tables`. `head`: where it has another one here; `shown`: as of `DataColumn`."""
    unit = "number" if name in ("rank", "lane", "step") else unit_of(name) or COLUMNS[name].type
    text, kind = _LOOKS.get(unit) or _LOOKS[COLUMNS[name].type]
    if name in ("path", "dataset"):
        kind = Kind.PATH
    shown = {"total": unit in ("int64", "bytes", "ns"), **shown}
    return DataColumn(head=head or head_of(name), value=itemgetter(name), text=text, kind=kind, **shown)


def columns_of(table: str) -> tuple[DataColumn, ...]:
    """All columns of a table of `analysis.tables`; of a file its path, and not its number too."""
    names, texts = TABLES[table].columns, TABLES[table].texts
    kept = (name for name in names if name != "file_id" or "path" not in names)
    return tuple(replace(_column(name), text=str, kind=Kind.TEXT) if name in texts else _column(name) for name in kept)


def _share(head: str, part: str, *whole: str, terminal: bool = True, page: bool = True) -> DataColumn:
    def share(row: Row) -> float | None:
        of = sum(row[name] for name in whole)
        return 100 * row[part] / of if of else None

    return DataColumn(
        head=head, value=share, text=lambda value: f"{value:.1f} %", terminal=terminal, page=page, spare=True
    )


FILES = (
    _column("path"),
    _column("format", terminal=False),
    _column("size_bytes", terminal=False),
    _column("ranks", total=False),
    *map(_column, ("reads", "bytes_read", "writes", "bytes_written")),
    _column("io_ns", "I/O time, sum"),
    _column("pattern", spare=True),
    _share("random", "random", "reads", "writes"),
    _share("small reads", "small_reads", "reads", terminal=False),
    _share("read again", "reread_bytes", "bytes_read", page=False),
    _column("reread_bytes", terminal=False),
    _column("read_by_several_bytes", terminal=False),
    _column("reconstructed_bytes"),
)
"""Of the table files. The numbers of ranks do not add up: files share ranks."""

RANK_FILES = tuple(
    _column("rank") if column.head == "ranks" else column
    for column in FILES
    if column.head not in ("size", "read by several ranks")
)
"""Of the table rank-files."""

RANKS = (
    *map(_column, ("rank", "files", "shared_files", "reads", "bytes_read", "writes", "bytes_written")),
    DataColumn(head="I/O, union", value=itemgetter("union_ns"), text=format_duration, total=True, terminal=False),
    _column("io_ns", "I/O, sum"),
    _column("io_hidden_ns", "in compute", terminal=False),
    _column("compute_ns", terminal=False),
    _column("input_wait_ns", terminal=False),
    _column("metadata_ns"),
    _column("reread_bytes", terminal=False),
    _column("reconstructed_bytes"),
)
"""Of the table ranks; on the page with columns of the table overlap, whose `io_ns` is `union_ns`."""

OVERLAP = tuple(
    _column(name)
    for name in (
        "rank", "loop_ns", "compute_ns", "input_wait_ns", "collective_ns", "checkpoint_ns", "evaluation_ns", "io_ns",
        "io_hidden_ns", "io_exposed_ns",
    )
)  # fmt: skip
"""Of the table overlap."""

STEPS = (
    *map(_column, ("step", "rank", "start_ns", "duration_ns", "excess_ns", "why", "why_excess_ns")),
    *(
        _column(name, terminal=False)
        for name in (
            "compute_ns", "input_wait_ns", "io_ns", "collective_ns", "checkpoint_ns", "evaluation_ns", "operations",
        )
    ),
)  # fmt: skip
"""Of the table steps."""

TFRECORDS = tuple(map(_column, ("path", "size_bytes", "records", "least_bytes", "mean_bytes", "most_bytes")))
"""Of the table tfrecords."""

DATASETS = (
    _column("path"),
    _column("dataset"),
    _column("type", spare=True),
    *map(_column, ("shape", "chunk", "chunk_bytes")),
    _column("filter", spare=True),
    _column("stored_bytes"),
)
"""Of the table datasets."""

CLOCKS = (
    _column("rank"),
    DataColumn(head="by", value=itemgetter("method"), text=str, kind=Kind.TEXT),
    DataColumn(head="offset", value=itemgetter("offset_ns"), text=format_duration),
    DataColumn(head="known within", value=itemgetter("interval_ns"), text=format_duration),
)
