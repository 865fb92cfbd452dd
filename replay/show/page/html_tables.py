"""Tables of the HTML page: sortable by their heads, every text escaped. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from replay.show.run_sections import Section
from traces.units import format_bytes, format_count, format_duration

MOST_PATH = 200
"""Characters of a path that are shown; of a longer one its end."""

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """`value`: what is sorted by, None where there is none; `text`: of a value; `total`: whether values add up."""

    head: str
    value: Callable[[Row], Any]
    text: Callable[[Any], str] = str
    total: bool = False

    @property
    def prose(self) -> bool:
        """Whether it holds text, which is left-justified."""
        return self.text is str


def _count(head: str, name: str) -> Column:
    return Column(head=head, value=lambda row: row[name], text=format_count, total=True)


def _bytes(head: str, name: str) -> Column:
    return Column(head=head, value=lambda row: row[name], text=format_bytes, total=True)


def _time(head: str, name: str, *, total: bool = True) -> Column:
    return Column(head=head, value=lambda row: row[name], text=format_duration, total=total)


def _text(head: str, name: str) -> Column:
    return Column(head=head, value=lambda row: row[name])


def _pct(head: str, part: str, *whole: str) -> Column:
    def share(row: Row) -> float | None:
        of = sum(row[name] for name in whole)
        return 100 * row[part] / of if of else None

    return Column(head=head, value=share, text=lambda value: f"{value:.1f} %")


FILES = (
    _text("file", "path"),
    _text("format", "format"),
    _bytes("size", "size_bytes"),
    _count("ranks", "ranks"),
    _count("reads", "reads"),
    _bytes("read", "bytes_read"),
    _count("writes", "writes"),
    _bytes("written", "bytes_written"),
    _time("I/O time, sum", "io_ns"),
    _text("pattern", "pattern"),
    _pct("random", "random", "reads", "writes"),
    _pct("small reads", "small_reads", "reads"),
    _bytes("read again", "reread_bytes"),
    _bytes("read by several ranks", "read_by_several_bytes"),
    _bytes("from counters", "reconstructed_bytes"),
)
"""Of `patterns.FILES_SCHEMA`."""

RANKS = (
    Column(head="rank", value=lambda row: row["rank"], text=lambda value: f"{value}"),
    _count("files", "files"),
    _count("shared files", "shared_files"),
    _count("reads", "reads"),
    _bytes("read", "bytes_read"),
    _count("writes", "writes"),
    _bytes("written", "bytes_written"),
    _time("I/O, union", "union_ns"),
    _time("I/O, sum", "io_ns"),
    _time("in compute", "io_hidden_ns"),
    _time("compute", "compute_ns"),
    _time("input wait", "input_wait_ns"),
    _time("metadata", "metadata_ns"),
    _bytes("read again", "reread_bytes"),
    _bytes("from counters", "reconstructed_bytes"),
)
"""Of `patterns.RANKS_SCHEMA`, joined with `overlap.RANKS_SCHEMA`, whose `io_ns` is `union_ns`."""

STEPS = (
    Column(head="step", value=lambda row: row["step"], text=lambda value: f"{value}"),
    Column(head="rank", value=lambda row: row["rank"], text=lambda value: f"{value}"),
    _time("began at", "start_ns", total=False),
    _time("duration", "duration_ns", total=False),
    _time("above the median", "excess_ns", total=False),
    Column(head="mostly by", value=lambda row: row["why"]),
    _time("of it", "why_excess_ns", total=False),
    _time("compute", "compute_ns", total=False),
    _time("input wait", "input_wait_ns", total=False),
    _time("I/O", "io_ns", total=False),
    _time("collective", "collective_ns", total=False),
    _time("checkpoint", "checkpoint_ns", total=False),
    _count("operations", "operations"),
)
"""Of `steps.STEPS_SCHEMA`."""

CLOCKS = (
    Column(head="rank", value=lambda row: row["rank"], text=lambda value: f"{value}"),
    Column(head="by", value=lambda row: row["method"]),
    _time("offset", "offset_ns", total=False),
    _time("known within", "interval_ns", total=False),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """All rows of a table, of which some are shown: how many they are, and the sum of each quantity, or the text of one
    where there is any."""

    rows: int
    sums: Row


def data_table(
    caption: str, columns: Sequence[Column], rows: Sequence[Row], most_rows: int, whole: Whole | None = None
) -> str:
    """A table whose heads sort it: the first `most_rows`, and how many are left; with `whole` a last row over all."""
    all_rows = [whole.sums] if whole is not None and whole.rows else rows
    shown = [column for column in columns if any(column.value(row) not in (None, 0) for row in all_rows)]
    shown = [column for column in columns if column in shown or column is columns[0]]
    heads = "".join(
        f'<th scope="col" aria-sort="none"{_class(column)}><button type="button">{escape(column.head)}</button></th>'
        for column in shown
    )
    body = "".join(f"<tr>{''.join(_cell(column, row) for column in shown)}</tr>" for row in rows[:most_rows])
    foot = f"<tfoot><tr>{_totals(shown, whole)}</tr></tfoot>" if whole is not None and whole.rows > 1 else ""
    left = (len(rows) if whole is None else whole.rows) - most_rows
    more = f'<p class="note">and {format_count(left)} more, which the totals include</p>' if left > 0 else ""
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(caption)}">'
        f'<table class="sortable"><caption>{escape(caption)}</caption><thead><tr>{heads}</tr></thead>'
        f"<tbody>{body}</tbody>{foot}</table></div>{more}"
    )


def _class(column: Column) -> str:
    return "" if column.prose else ' class="number"'


def _cell(column: Column, row: Row) -> str:
    value = column.value(row)
    if value is None:
        return f"<td{_class(column)}>-</td>"
    if column.prose:
        return f'<td class="text">{html_text(_tail(str(value)))}</td>'
    return f'<td data-v="{escape(repr(value))}">{escape(column.text(value))}</td>'


def _tail(text: str) -> str:
    return text if len(text) <= MOST_PATH else f"...{text[3 - MOST_PATH :]}"


def _totals(columns: Sequence[Column], whole: Whole) -> str:
    cells = [f'<th scope="row">all {format_count(whole.rows)}</th>']
    for column in columns[1:]:
        if column.total and column.head != "ranks":
            value = column.value(whole.sums) or 0
            cells.append(f'<td data-v="{value}">{escape(column.text(value))}</td>')
        else:
            cells.append("<td></td>")
    return "".join(cells)


def visible(text: str) -> str:
    """`text` with characters that are no letters on paper (controls, changes of direction) as escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def html_text(text: str) -> str:
    """`text`, which may be a recorded path, as HTML."""
    return escape(visible(text))


def section_table(section: Section) -> str:
    """A table of `sections`, as it is printed in the terminal."""
    heads = "".join(
        f'<th scope="col"{"" if place == 0 or section.prose else " class=number"}>{html_text(head)}</th>'
        for place, head in enumerate(section.columns)
    )
    head = f"<thead><tr>{heads}</tr></thead>" if section.columns else ""
    rows = []
    for row in section.rows:
        first = f'<th scope="row">{html_text(row[0])}</th>' if len(row) > 1 else f"<td>{html_text(row[0])}</td>"
        cells = "".join(f"<td{'' if section.prose else ' class=number'}>{_verdict(cell)}</td>" for cell in row[1:])
        rows.append(f"<tr>{first}{cells}</tr>")
    notes = "".join(f'<p class="note">{html_text(note)}</p>' for note in section.notes)
    return (
        f'<div class="facts"><h4>{html_text(section.title)}</h4><div class="scroll" role="region" tabindex="0" '
        f'aria-label="{html_text(section.title)}"><table>{head}<tbody>{"".join(rows)}</tbody></table></div>{notes}</div>'
    )


_MARKS = {"pass": "ok", "equal": "ok", "fail": "bad", "DIFFERENT": "bad", "skipped": "info"}


def _verdict(text: str) -> str:
    """The text, coloured where it is a verdict (which its word says too)."""
    mark = _MARKS.get(text)
    return f'<span class="mark {mark}">{html_text(text)}</span>' if mark else escape(text)
