"""Tables on standard output: as wide as the terminal, and without control sequences unless it is one."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from textwrap import wrap

from dxt_replay.replay.show.section import Kind, Section, Tone, tone_of
from dxt_replay.replay.show.table_widths import GAP, Layout, layout, shortened
from dxt_replay.traces.text import printable

PIPE_COLUMNS = 80
"""Width of tables in a pipe, unless the environment variable COLUMNS says otherwise."""

LEAST_COLUMNS = 40

_BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:%|[num]?s|[KMGTPE]?i?B)(?:/s)?(?![\w/]))")
"""The space between a number and its unit."""

_JOINT = "\x1f"
"""Stands for that space while lines are broken: printable text has no control characters."""

_BOLD = "1"
_STYLES = {Tone.GOOD: "32", Tone.BAD: "1;31", Tone.DOUBTFUL: "33", Tone.NEUTRAL: "36", None: ""}
"""Parameters of the control sequences of ECMA-48, section 8.3.117: green, bold red, yellow, cyan."""


def print_sections(sections: Sequence[Section]) -> None:
    """Print tables below each other. Text is printed as it is: no markup, control characters escaped."""
    width, lines = columns_of_output(), list[str]()
    for number, section in enumerate(sections):
        if number:
            lines.append("")
        if section.title:
            lines += _text(section.title, width, _BOLD)
        if section.rows and not section.columns and len(section.rows[0]) == 1:
            lines += [line for row in section.rows for line in _text(row[0], width)]
        elif section.rows:
            found = layout(section, width)
            lines += _table(section, found)
            if found.left_out:
                lines += _text(f"left out for lack of room: {', '.join(found.left_out)}", width)
        lines += [line for note in section.notes for line in _text(note, width)]
    sys.stdout.writelines(f"{_encodable(line.rstrip())}\n" for line in lines)


def _text(text: str, width: int, style: str = "") -> list[str]:
    """Lines that end between words; a path that is longer than a line stays whole, so that it can be copied."""
    lines = wrapped(printable(text), width)
    return [_styled(line, style, tone_of(text) if place == 0 else None) for place, line in enumerate(lines)]


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


def _table(section: Section, found: Layout) -> list[str]:
    heads = tuple(column.head for column in section.typed_columns)
    lines = _row(section, found, heads, _BOLD) if section.columns else []
    return lines + [line for row in section.rows for line in _row(section, found, row)]


def _row(section: Section, found: Layout, row: Sequence[str], style: str = "") -> list[str]:
    """The lines of a row. A word that is too long for its column is a name, so its beginning is left out."""
    cells = []
    for place, size in zip(found.shown, found.widths, strict=True):
        plain = printable(row[place]) if place < len(row) else ""
        short = " ".join(shortened(word, size) for word in plain.split(" "))
        lines = [short] if len(short) <= size else wrapped(short, size)
        padded = str.rjust if section.typed_columns[place].kind is Kind.NUMBER else str.ljust
        cells.append([_styled(padded(line, size), style, None if style else tone_of(plain)) for line in lines])
    height = max(map(len, cells), default=0)
    for lines, size in zip(cells, found.widths, strict=True):
        place = 0 if style else len(lines)  # heads stand above the rows, which begin at the top
        lines[place:place] = [" " * size] * (height - len(lines))
    return [(" " * GAP).join(line) for line in zip(*cells, strict=True)]


def _styled(text: str, style: str, tone: Tone | None) -> str:
    """The text with control sequences on a terminal that shows colours (https://no-color.org), else as it is."""
    codes = ";".join(filter(None, (style, _STYLES[tone])))
    plain = not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") in ("dumb", "unknown")
    return text if plain or not codes else f"\x1b[{codes}m{text}\x1b[0m"
