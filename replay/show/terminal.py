"""Tables on standard output: as wide as the terminal, and without control sequences unless it is one.

rich would draw the tables too, but it breaks a number from its unit, shortens a path at its end, in which file names
differ, and takes 0.05 s to import: what it would replace here are some 60 lines.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from textwrap import wrap

from dxt_replay.replay.show.section import Kind, Section, tone_of
from dxt_replay.traces.text import printable

PIPE_COLUMNS = 80
"""Width of tables in a pipe, unless the environment variable COLUMNS says otherwise."""

LEAST_COLUMNS = 40

_GAP = 2
_LEAST = {Kind.PATH: 20, Kind.TEXT: 14}
"""Characters that a column of paths, or of text, keeps however narrow the terminal is."""

_BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:%|[num]?s|[KMGTPE]?i?B)(?:/s)?(?![\w/]))")
_JOINT = "\x1f"
"""Stands for the space between a number and its unit while lines are broken: printable text has no such character."""

_BOLD = "1"
_STYLES = {"good": "32", "bad": "1;31", "doubtful": "33", "neutral": "36", "": ""}
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
            lines += _table(section, width)
        lines += [line for note in section.notes for line in _text(note, width)]
    sys.stdout.writelines(f"{_encodable(line.rstrip())}\n" for line in lines)


def columns_of_output() -> int:
    """Width of standard output: COLUMNS where it is set, else the terminal's own, else `PIPE_COLUMNS`."""
    asked = os.environ.get("COLUMNS", "")
    if asked.isdigit() and int(asked) > 0:
        return max(int(asked), LEAST_COLUMNS)
    try:
        return max(os.get_terminal_size(sys.stdout.fileno()).columns, LEAST_COLUMNS)
    except (OSError, ValueError):
        return PIPE_COLUMNS


def wrapped(text: str, width: int) -> list[str]:
    """Lines of at most `width` characters that end between words, and never between a number and its unit. A path that
    is longer than a line stays whole, so that it can be copied."""
    lines = wrap(_BEFORE_UNIT.sub(_JOINT, text), width, break_long_words=False, break_on_hyphens=False)
    return [line.replace(_JOINT, " ") for line in lines]


def _text(text: str, width: int, style: str = "") -> list[str]:
    lines = wrapped(printable(text), width)
    return [_styled(line, style, tone_of(text) if place == 0 else "") for place, line in enumerate(lines)]


def _encodable(line: str) -> str:
    """The line with bars and ellipses that an output which is not UTF-8 can hold too."""
    try:
        line.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return line.replace("█", "#").replace("▌", "").replace("…", ".")
    return line


def _table(section: Section, width: int) -> list[str]:
    """The head and the rows, and the heads of columns for which there is no room.

    A line that is too long is better than a broken number. Heads are wrapped first, then bars go, then paths are
    shortened, then spare columns go, the last one first; then text continues on further lines.
    """
    columns = section.typed_columns
    rows = [[printable(cell) for cell in row] for row in section.rows]
    whole = [max((len(row[at]) for row in rows if at < len(row)), default=0) for at in range(len(columns))]
    wide = {at: max(whole[at], len(columns[at].head)) for at in range(len(columns))}

    def excess() -> int:
        return sum(wide.values()) + _GAP * max(len(wide) - 1, 0) - width

    if excess() > 0:
        wide = {at: max(whole[at], *map(len, columns[at].head.split(" "))) for at in wide}
    if excess() > 0:
        wide = {at: size for at, size in wide.items() if columns[at].kind is not Kind.BAR}
    left_out = list[str]()
    for at in reversed([at for at in wide if columns[at].spare]):
        slack = sum(max(size - _LEAST.get(columns[each].kind, size), 0) for each, size in wide.items())
        if excess() > slack:
            del wide[at]
            left_out.insert(0, columns[at].head)
    for kind, least in _LEAST.items():
        for at in sorted((at for at in wide if columns[at].kind is kind), key=lambda at: -wide[at]):
            wide[at] = max(wide[at] - max(excess(), 0), min(least, wide[at]))
    lines = _row(section, wide, tuple(column.head for column in columns), _BOLD) if section.columns else []
    lines += [line for row in rows for line in _row(section, wide, row)]
    return lines + (_text(f"left out for lack of room: {', '.join(left_out)}", width) if left_out else [])


def _row(section: Section, wide: dict[int, int], row: Sequence[str], style: str = "") -> list[str]:
    """The lines of a row. A word that is too long for its column is a name, so its beginning is left out."""
    cells = []
    for at, size in wide.items():
        plain = row[at] if at < len(row) else ""
        words = (word if len(word) <= size else f"…{word[len(word) - size + 1 :]}" for word in plain.split(" "))
        short = " ".join(words)
        lines = [short] if len(short) <= size else wrapped(short, size)
        padded = str.rjust if section.typed_columns[at].kind is Kind.NUMBER else str.ljust
        cells.append([_styled(padded(line, size), style, "" if style else tone_of(plain)) for line in lines])
    height = max(map(len, cells), default=0)
    for lines, size in zip(cells, wide.values(), strict=True):
        place = 0 if style else len(lines)  # heads stand above the rows, which begin at the top
        lines[place:place] = [" " * size] * (height - len(lines))
    return [(" " * _GAP).join(line) for line in zip(*cells, strict=True)]


def _styled(text: str, style: str, tone: str) -> str:
    """The text with control sequences on a terminal that shows colours (https://no-color.org), else as it is."""
    codes = ";".join(filter(None, (style, _STYLES[tone])))
    plain = not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") in ("dumb", "unknown")
    return text if plain or not codes else f"\x1b[{codes}m{text}\x1b[0m"
