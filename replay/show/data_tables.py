"""The tables of data that both the terminal and the HTML page show: their columns, each described once. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from dxt_replay.replay.show.section import BAR, MAX_GROUPS, Column, Kind, Section, bar
from dxt_replay.traces.units import format_bytes, format_count, format_duration

Row = Mapping[str, Any]


class Unit(Enum):
    """What the values of a column are, which decides how they are written."""

    COUNT = "count"
    BYTES = "bytes"
    NANOSECONDS = "ns"
    PERCENT = "%"
    NUMBER = "number"
    TEXT = "text"
    PATH = "path"


_TEXTS: Mapping[Unit, Callable[[Any], str]] = {
    Unit.COUNT: format_count,
    Unit.BYTES: format_bytes,
    Unit.NANOSECONDS: format_duration,
    Unit.PERCENT: lambda value: f"{value:.1f} %",
    Unit.NUMBER: str,
    Unit.TEXT: str,
    Unit.PATH: str,
}

_KINDS = {Unit.TEXT: Kind.TEXT, Unit.PATH: Kind.PATH}


@dataclass(frozen=True, slots=True, kw_only=True)
class DataColumn:
    """One column of a table of data.

    `value`: the value in a row, by which the page sorts; None where it is not known.
    `total`: whether the values of different rows add up.
    `terminal`, `page`: where the column is shown; `spare`: left out where a terminal is too narrow.
    """

    head: str
    value: Callable[[Row], Any]
    unit: Unit
    total: bool = False
    terminal: bool = True
    page: bool = True
    spare: bool = False

    def text(self, value: Any) -> str:
        """A value with its unit; `-` for None."""
        return "-" if value is None else _TEXTS[self.unit](value)

    @property
    def kind(self) -> Kind:
        """How the column is laid out."""
        return _KINDS.get(self.unit, Kind.NUMBER)


REBUILT = "from counters"
"""Head of the columns of what was rebuilt from counters."""

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
        texts = tuple(column.text(column.value(row)) for column in used)
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
            *([REBUILT_NOTE] if any(column.head == REBUILT for column in used) else []),
        ),
    )


def left_out(rows: int) -> tuple[str, ...]:
    """The note below a table that does not show this many rows; none for 0."""
    return (f"and {format_count(rows)} more: --csv and --json have all",) if rows > 0 else ()


def _count(head: str, name: str, *, terminal: bool = True) -> DataColumn:
    return DataColumn(head=head, value=lambda row: row[name], unit=Unit.COUNT, total=True, terminal=terminal)


def _bytes(head: str, name: str, *, terminal: bool = True) -> DataColumn:
    return DataColumn(head=head, value=lambda row: row[name], unit=Unit.BYTES, total=True, terminal=terminal)


def _time(head: str, name: str, *, total: bool = True, terminal: bool = True) -> DataColumn:
    return DataColumn(head=head, value=lambda row: row[name], unit=Unit.NANOSECONDS, total=total, terminal=terminal)


def _number(head: str, name: str) -> DataColumn:
    return DataColumn(head=head, value=lambda row: row[name], unit=Unit.NUMBER)


def _text(head: str, name: str, unit: Unit = Unit.TEXT, *, terminal: bool = True, spare: bool = False) -> DataColumn:
    return DataColumn(head=head, value=lambda row: row[name], unit=unit, terminal=terminal, spare=spare)


def _share(head: str, part: str, *whole: str, terminal: bool = True, page: bool = True) -> DataColumn:
    def share(row: Row) -> float | None:
        of = sum(row[name] for name in whole)
        return 100 * row[part] / of if of else None

    return DataColumn(head=head, value=share, unit=Unit.PERCENT, terminal=terminal, page=page, spare=True)


FILES = (
    _text("file", "path", Unit.PATH),
    _text("format", "format", terminal=False),
    _bytes("size", "size_bytes", terminal=False),
    DataColumn(head="ranks", value=lambda row: row["ranks"], unit=Unit.COUNT),
    _count("reads", "reads"),
    _bytes("read", "bytes_read"),
    _count("writes", "writes"),
    _bytes("written", "bytes_written"),
    _time("I/O time, sum", "io_ns"),
    _text("pattern", "pattern", spare=True),
    _share("random", "random", "reads", "writes"),
    _share("small reads", "small_reads", "reads", terminal=False),
    _share("read again", "reread_bytes", "bytes_read", page=False),
    _bytes("read again", "reread_bytes", terminal=False),
    _bytes("read by several ranks", "read_by_several_bytes", terminal=False),
    _bytes(REBUILT, "reconstructed_bytes"),
)
"""Columns of `patterns.FILES_SCHEMA`. The numbers of ranks do not add up: files share ranks."""

RANK_FILES = tuple(
    _number("rank", "rank") if column.head == "ranks" else column
    for column in FILES
    if column.head not in ("size", "read by several ranks")
)
"""Columns of `rank_files.RANK_FILES_SCHEMA`."""

RANKS = (
    _number("rank", "rank"),
    _count("files", "files"),
    _count("shared files", "shared_files"),
    _count("reads", "reads"),
    _bytes("read", "bytes_read"),
    _count("writes", "writes"),
    _bytes("written", "bytes_written"),
    _time("I/O, union", "union_ns", terminal=False),
    _time("I/O, sum", "io_ns"),
    _time("in compute", "io_hidden_ns", terminal=False),
    _time("compute", "compute_ns", terminal=False),
    _time("input wait", "input_wait_ns", terminal=False),
    _time("metadata", "metadata_ns"),
    _bytes("read again", "reread_bytes", terminal=False),
    _bytes(REBUILT, "reconstructed_bytes"),
)
"""Columns of `patterns.RANKS_SCHEMA`; on the page with those of `overlap.RANKS_SCHEMA`, whose `io_ns` is `union_ns`."""

OVERLAP = (
    _number("rank", "rank"),
    _time("loop", "loop_ns"),
    _time("compute", "compute_ns"),
    _time("input wait", "input_wait_ns"),
    _time("collective", "collective_ns"),
    _time("checkpoint", "checkpoint_ns"),
    _time("evaluation", "evaluation_ns"),
    _time("I/O", "io_ns"),
    _time("inside compute", "io_hidden_ns"),
    _time("outside", "io_exposed_ns"),
)
"""Columns of `overlap.RANKS_SCHEMA`."""

STEPS = (
    _number("step", "step"),
    _number("rank", "rank"),
    _time("began at", "start_ns", total=False),
    _time("duration", "duration_ns", total=False),
    _time("above the median", "excess_ns", total=False),
    _text("most of that in", "why"),
    _time("how much", "why_excess_ns", total=False),
    _time("compute", "compute_ns", total=False, terminal=False),
    _time("input wait", "input_wait_ns", total=False, terminal=False),
    _time("I/O", "io_ns", total=False, terminal=False),
    _time("collective", "collective_ns", total=False, terminal=False),
    _time("checkpoint", "checkpoint_ns", total=False, terminal=False),
    _time("evaluation", "evaluation_ns", total=False, terminal=False),
    _count("operations", "operations", terminal=False),
)
"""Columns of `step_times.STEPS_SCHEMA`."""

TFRECORDS = (
    _text("file", "path", Unit.PATH),
    _bytes("size", "size_bytes"),
    _count("records", "records"),
    _bytes("least", "least_bytes"),
    _bytes("mean", "mean_bytes"),
    _bytes("most", "most_bytes"),
)
"""Columns of `contents.TFRECORDS_SCHEMA`."""

DATASETS = (
    _text("file", "path", Unit.PATH),
    _text("dataset", "dataset", Unit.PATH),
    _text("type", "type", spare=True),
    _text("shape", "shape"),
    _text("chunk", "chunk"),
    _bytes("chunk size", "chunk_bytes"),
    _text("filter", "filter", spare=True),
    _bytes("stored", "stored_bytes"),
)
"""Columns of `contents.DATASETS_SCHEMA`."""

CLOCKS = (
    _number("rank", "rank"),
    _text("by", "method"),
    _time("offset", "offset_ns", total=False),
    _time("known within", "interval_ns", total=False),
)
