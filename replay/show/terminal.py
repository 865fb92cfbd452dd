"""Tables on standard output: 80 columns and no control sequences unless it is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from replay.show.run_sections import (
    Section,
    comparison_sections,
    merge_sections,
    repeat_sections,
    run_sections,
    summary_sections,
)
from replay.show.table_views import view_sections

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

PIPE_COLUMNS = 80


def print_summary(summary: Mapping[str, Any]) -> None:
    """Print the JSON object of `dxt-replay summary` for a person; where it has tables, those and not the totals.

    `rows_in_all`, if it is there: how many rows each table has, of which the object may hold the largest only.
    """
    tables = summary.get("tables")
    if tables:
        print_sections(
            view_sections(tables, summary.get("overlap"), summary.get("unread"), summary.get("rows_in_all", {}))
        )
    else:
        print_sections(summary_sections(summary))


def print_comparison(comparison: Mapping[str, Any]) -> None:
    """Print the JSON object of `dxt-replay compare` for a person."""
    print_sections(comparison_sections(comparison))


def print_merge(merged: Mapping[str, Any]) -> None:
    """Print the JSON object of `dxt-replay merge` for a person."""
    print_sections(merge_sections(merged))


def print_run(run: Mapping[str, Any]) -> None:
    """Print the JSON object of `dxt-replay run` for a person."""
    print_sections(run_sections(run))


def print_repeats(repeats: Mapping[str, Any]) -> None:
    """Print the JSON object of `dxt-replay run --repeat N` for a person."""
    print_sections(repeat_sections(repeats))


def print_sections(sections: Sequence[Section]) -> None:
    """Print tables below each other. Text is printed as it is: no markup, control characters escaped."""
    from rich.text import Text

    console = _console()
    # Rich would end the program itself when the reader of a pipe has gone.
    with console.capture() as printed:
        for number, section in enumerate(sections):
            if number:
                console.print()
            console.print(Text(section.title, style="bold"))
            console.print(_table(section))
            for note in section.notes:
                console.print(Text(_plain(note)))
    sys.stdout.writelines(f"{_encodable(line.rstrip())}\n" for line in printed.get().splitlines())


def _encodable(line: str) -> str:
    """The line with bars that an output which is not UTF-8 can hold too."""
    try:
        line.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return line.replace("█", "#").replace("▌", "")
    return line


def _console() -> Console:
    """A console on the present standard output, plain where that is no terminal (whatever FORCE_COLOR says)."""
    from rich.console import Console

    if sys.stdout.isatty():
        return Console(file=sys.stdout, highlight=False)
    return Console(file=sys.stdout, highlight=False, width=PIPE_COLUMNS, color_system=None, force_terminal=False)


def _table(section: Section) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=bool(section.columns), pad_edge=False, padding=(0, 2, 0, 0))
    for place in range(len(section.rows[0])):
        head = section.columns[place] if section.columns else ""
        last = place == len(section.rows[0]) - 1
        number = place > 0 and not section.prose and not (section.bars and last)
        table.add_column(head, justify="right" if number else "left", overflow="fold", no_wrap=False)
    for row in section.rows:
        table.add_row(*(Text(_plain(cell)) for cell in row))
    return table


def _plain(text: str) -> str:
    """`text` with what a terminal would obey (paths are the user's) escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)
