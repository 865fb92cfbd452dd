"""Tables of the HTML page: sortable by their heads, every text escaped. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from dxt_replay.replay.show.data_tables import DataColumn, Row, used_columns
from dxt_replay.replay.show.section import Column, Kind, Section, Tone, tone_of
from dxt_replay.traces.text import printable
from dxt_replay.traces.units import format_count

MOST_PATH = 200
"""Characters of a path that are shown; of a longer one its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """All rows of a table of which some are shown. `rows`: how many there are; `sums`: the sum of each quantity, and
    of texts any one, by column."""

    rows: int
    sums: Row


def data_table(
    caption: str, columns: Sequence[DataColumn], rows: Sequence[Row], most_rows: int, whole: Whole | None = None
) -> str:
    """A table whose heads sort it: the first `most_rows`, and how many are left; with `whole` a last row over all."""
    all_rows = [whole.sums] if whole is not None and whole.rows else rows
    shown = used_columns([column for column in columns if column.page], all_rows)
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


def _class(column: DataColumn) -> str:
    return "" if column.kind is not Kind.NUMBER else ' class="number"'


def _cell(column: DataColumn, row: Row) -> str:
    value = column.value(row)
    if value is None:
        return f"<td{_class(column)}>-</td>"
    if column.kind is not Kind.NUMBER:
        return f'<td class="text">{html_text(_tail(str(value)))}</td>'
    return f'<td data-v="{escape(repr(value))}">{escape(column.text(value))}</td>'


def _tail(text: str) -> str:
    return text if len(text) <= MOST_PATH else f"...{text[3 - MOST_PATH :]}"


def _totals(columns: Sequence[DataColumn], whole: Whole) -> str:
    cells = [f'<th scope="row">all {format_count(whole.rows)}</th>']
    for column in columns[1:]:
        if column.total:
            value = column.value(whole.sums) or 0
            cells.append(f'<td data-v="{value}">{escape(column.text(value))}</td>')
        else:
            cells.append("<td></td>")
    return "".join(cells)


def html_text(text: str) -> str:
    """`text`, which may be a recorded path, as HTML."""
    return escape(printable(text))


def section_table(section: Section) -> str:
    """A `Section` as the terminal prints it."""
    columns = section.typed_columns
    heads = "".join(f'<th scope="col"{_number(column)}>{html_text(column.head)}</th>' for column in columns)
    head = f"<thead><tr>{heads}</tr></thead>" if section.columns else ""
    rows = []
    for row in section.rows:
        first = f'<th scope="row">{html_text(row[0])}</th>' if len(row) > 1 else f"<td>{html_text(row[0])}</td>"
        cells = (
            f"<td{_number(column)}>{_verdict(cell)}</td>" for column, cell in zip(columns[1:], row[1:], strict=False)
        )
        rows.append(f"<tr>{first}{''.join(cells)}</tr>")
    notes = "".join(f'<p class="note">{html_text(note)}</p>' for note in section.notes)
    return (
        f'<div class="facts"><h4>{html_text(section.title)}</h4><div class="scroll" role="region" tabindex="0" '
        f'aria-label="{html_text(section.title)}"><table>{head}<tbody>{"".join(rows)}</tbody></table></div>{notes}</div>'
    )


def _number(column: Column) -> str:
    return " class=number" if column.kind is Kind.NUMBER else ""


_MARKS = {Tone.GOOD: "ok", Tone.BAD: "bad", Tone.DOUBTFUL: "info", Tone.NEUTRAL: "info"}


def _verdict(text: str) -> str:
    """The text, coloured where it is a verdict (which its word says too)."""
    tone = tone_of(text)
    return html_text(text) if tone is None else f'<span class="mark {_MARKS[tone]}">{html_text(text)}</span>'
