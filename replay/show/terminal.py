"""Tables on standard output: as wide as the terminal, and without control sequences unless it is one."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from textwrap import wrap
from typing import TYPE_CHECKING

from dxt_replay.replay.show.section import Kind, Section, Tone, tone_of
from dxt_replay.replay.show.table_widths import GAP, Layout, layout, shortened
from dxt_replay.traces.text import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

PIPE_COLUMNS = 80
"""Width of tables in a pipe, unless the environment variable COLUMNS says otherwise."""

LEAST_COLUMNS = 40

_NO_LIMIT = 1 << 16
"""Width that rich is given: lines are laid out before, and none is broken again."""

_BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:%|[num]?s|[KMGTPE]?i?B)(?:/s)?(?![\w/]))")
"""The space between a number and its unit."""

_JOINT = "\x1f"
"""Stands for that space while lines are broken: printable text has no control characters."""

_STYLES = {Tone.GOOD: "green", Tone.BAD: "bold red", Tone.DOUBTFUL: "yellow", Tone.NEUTRAL: "cyan"}


def print_sections(sections: Sequence[Section]) -> None:
    """Print tables below each other. Text is printed as it is: no markup, control characters escaped."""
    console, width = _console(), columns_of_output()
    # Rich would end the program itself when the reader of a pipe has gone.
    with console.capture() as printed:
        for number, section in enumerate(sections):
            if number:
                console.print()
            if section.title:
                _print_text(console, width, section.title, "bold")
            if section.rows and not section.columns and len(section.rows[0]) == 1:
                for row in section.rows:
                    _print_text(console, width, row[0])
            elif section.rows:
                found = layout(section, width)
                console.print(_table(section, found))
                if found.left_out:
                    _print_text(console, width, f"left out for lack of room: {', '.join(found.left_out)}")
            for note in section.notes:
                _print_text(console, width, note)
    sys.stdout.writelines(f"{_encodable(line.rstrip())}\n" for line in printed.get().splitlines())


def _print_text(console: Console, width: int, text: str, style: str = "") -> None:
    """Lines that end between words; a path that is longer than a line stays whole, so that it can be copied."""
    for place, line in enumerate(wrapped(printable(text), width)):
        console.print(_line(line, style, tone_of(text) if place == 0 else None))


def wrapped(text: str, width: int) -> list[str]:
    """Lines of at most `width` characters that end between words, and never between a number and its unit."""
    joined = _BEFORE_UNIT.sub(_JOINT, text)
    lines = wrap(joined, width, break_long_words=False, break_on_hyphens=False)
    return [line.replace(_JOINT, " ") for line in lines]


def _encodable(line: str) -> str:
    """The line with bars and ellipses that an output which is not UTF-8 can hold too."""
    try:
        line.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return line.replace("█", "#").replace("▌", "").replace("…", ".")
    return line


def columns_of_output() -> int:
    """Width of standard output: COLUMNS where it is set, else the terminal's own, else `PIPE_COLUMNS`."""
    asked = os.environ.get("COLUMNS", "")
    if asked.isdigit() and int(asked) > 0:
        return max(int(asked), LEAST_COLUMNS)
    try:
        return max(os.get_terminal_size(sys.stdout.fileno()).columns, LEAST_COLUMNS)
    except (OSError, ValueError):
        return PIPE_COLUMNS


def _console() -> Console:
    """A console on the present standard output, plain where that is not a terminal (whatever FORCE_COLOR says)."""
    from rich.console import Console

    if sys.stdout.isatty():
        return Console(file=sys.stdout, highlight=False, width=_NO_LIMIT)
    return Console(file=sys.stdout, highlight=False, width=_NO_LIMIT, color_system=None, force_terminal=False)


def _table(section: Section, found: Layout) -> Table:
    from rich.table import Table

    columns = section.typed_columns
    table = Table(box=None, show_header=bool(section.columns), pad_edge=False, padding=(0, GAP, 0, 0))
    table.width = sum(found.widths) + GAP * (len(found.widths) - 1)
    for place, size in zip(found.shown, found.widths, strict=True):
        number = columns[place].kind is Kind.NUMBER
        table.add_column(columns[place].head, justify="right" if number else "left", overflow="fold", width=size)
    for row in section.rows:
        table.add_row(
            *(
                _cell(row[place] if place < len(row) else "", size)
                for place, size in zip(found.shown, found.widths, strict=True)
            )
        )
    return table


def _cell(text: str, width: int) -> Text:
    """One cell. A word that is too long for its column is a name, so its beginning is left out."""
    plain = printable(text)
    short = " ".join(shortened(word, width) for word in plain.split(" "))
    return _line(short if len(short) <= width else "\n".join(wrapped(short, width)), "", tone_of(plain))


def _line(text: str, style: str, tone: Tone | None) -> Text:
    from rich.text import Text

    return Text(text, style=f"{style} {_STYLES[tone]}".strip() if tone is not None else style)
