"""A table that people look at, which the terminal and the HTML page both render, and the texts of its values. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum, auto
from textwrap import shorten
from typing import Any, TypeVar

from dxt_replay.traces.units import MIB, NS_PER_S, NS_PER_US, format_bytes, format_counted, format_duration

_Value = TypeVar("_Value")

_RECORDED = re.compile(r"(?<![\w./-])[Rr]ecorded(?![\w/-]|\.\w)")
"""The word, and no part of a path."""

WARNINGS, UNSEEN = "Warnings", "What could not be seen"
"""Titles of sections of warnings."""

MOST_WARNING = 70
"""Characters of a warning in brief."""

MAX_GROUPS = 40
"""Rows of a long table that the terminal shows; `--json` and `-o FILE.csv` have all of them."""


class Kind(Enum):
    """What a column holds, which decides its alignment and what happens when the table is too wide.

    NUMBER: a quantity with its unit, right-justified, never broken nor shortened. TEXT: continues on the next line.
    PATH: loses its beginning. BAR: a picture of another column's number, the first to go.
    """

    NUMBER = auto()
    TEXT = auto()
    PATH = auto()
    BAR = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """The head of a column, with its unit where the cells do not carry one, and what its cells hold.

    `spare`: whether the column is left out where the table is too wide.
    """

    head: str = ""
    kind: Kind = Kind.NUMBER
    spare: bool = False


PATH = Column(head="file", kind=Kind.PATH)
BAR = Column(kind=Kind.BAR)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A table with a title above and lines of text below.

    `columns`: a plain name stands for a column of numbers, in the first place for one of text; none at all for rows of
    a label and a value. `prose`: cells without a column hold text. `notes`: lines below the table. `brief`: what of it
    is shown without --details: all, nothing, or the rows with these labels, without the title if it has no columns.
    """

    title: str
    rows: tuple[tuple[str, ...], ...]
    columns: tuple[str | Column, ...] = ()
    prose: bool = False
    notes: tuple[str, ...] = ()
    brief: bool | tuple[str, ...] = False

    @property
    def typed_columns(self) -> tuple[Column, ...]:
        """The columns with their kinds, as many as the rows have cells."""
        width = max((len(row) for row in self.rows), default=len(self.columns))
        named = (*self.columns, *("" for _ in range(width - len(self.columns))))
        return tuple(
            column
            if isinstance(column, Column)
            else Column(head=column, kind=Kind.TEXT if place == 0 or self.prose else Kind.NUMBER)
            for place, column in enumerate(named)
        )


def facts(title: str, rows: Iterable[tuple[str, str]], brief: bool | tuple[str, ...] = False) -> Section:
    return Section(title=title, rows=tuple(rows), prose=True, brief=brief)


def prose(title: str, lines: Iterable[str], *, brief: bool = False) -> Section:
    return Section(title=title, rows=tuple((line,) for line in lines), prose=True, brief=brief)


def in_brief(sections: Sequence[Section]) -> list[Section]:
    """What a command prints without --details: its first section, which is the answer, and what the others mark as
    brief; all of them if none has a mark. A warning is cut behind its fact."""
    if all(each.brief is False for each in sections[1:]):
        return list(sections)
    first, *others = sections
    short, labels, last = list[Section](), list[tuple[str, str]](), list[str]()
    for each in others:
        if each.title in (WARNINGS, UNSEEN):
            last += [f"warning: {shorten(_fact(row[0]), MOST_WARNING, placeholder=' ...')}" for row in each.rows[:2]]
            if len(each.rows) > 2:
                last.append(f"and {format_counted(len(each.rows) - 2, 'more warning')}")
        elif each.brief is True:
            short.append(replace(each, notes=()))
        elif each.brief:
            rows = tuple(row for row in each.rows if row[0] in each.brief)
            if each.columns and rows:
                short.append(replace(each, rows=rows, notes=()))
            else:
                labels += [(row[0], row[1]) for row in rows]
    table = [facts("", labels)] if labels else []
    return [first, *table, *(each for each in short if each.rows), prose("", [*last, "--details shows the rest."])]


def _fact(warning: str) -> str:
    """A warning up to the colon before its reasons and names. One or two words before a colon, such as `rank 0`, are
    its subject: the fact follows."""
    parts = warning.split(": ")
    said = next((n for n in range(1, len(parts)) if len(": ".join(parts[:n]).split()) > 2), len(parts))
    return ": ".join(parts[:said])


def of_generated(sections: Iterable[Section], generated: str | None) -> list[Section]:
    """The sections of a result, which begin with `generated` and call nothing recorded if that is given.

    `generated`: as of `traces.records`.
    """
    shown = [section for section in sections if section.rows]
    if generated is None or not shown:
        return shown
    if shown[0].title or shown[0].columns:
        shown.insert(0, prose("", []))
    shown = [_renamed(section) for section in shown]
    shown[0] = replace(shown[0], rows=((generated,), *shown[0].rows))
    return shown


def _renamed(part: Any) -> Any:
    if isinstance(part, str):
        return _RECORDED.sub(lambda found: "Generated" if found[0] == "Recorded" else "generated", part)
    if isinstance(part, tuple):
        return tuple(map(_renamed, part))
    if isinstance(part, (Section, Column)):
        return replace(part, **{each.name: _renamed(getattr(part, each.name)) for each in fields(part)})
    return part


class Tone(Enum):
    """Whether a word is a good result, a bad one, a doubtful one or neither."""

    GOOD = auto()
    BAD = auto()
    DOUBTFUL = auto()
    NEUTRAL = auto()


_WORDS_OF = {
    Tone.GOOD: ("pass", "passed", "ok", "equal", "improvement", "no change"),
    Tone.BAD: ("fail", "failed", "different", "regression", "high"),
    Tone.DOUBTFUL: ("warning", "inconclusive"),
    Tone.NEUTRAL: ("info", "skipped"),
}
_TONES = {word: tone for tone, words in _WORDS_OF.items() for word in words}


def tone_of(text: str) -> Tone | None:
    """The tone of a cell or title that is a verdict or severity, or begins with one and a colon; None for any other."""
    return _TONES.get(text.partition(":")[0].strip().lower())


def bar(share: float, width: int = 24) -> str:
    """A bar of `share` (0 to 1) of `width` characters, to half a character; anything above 0 shows."""
    halves = max(round(2 * width * min(share, 1.0)), 1 if share > 0 else 0)
    return "█" * (halves // 2) + "▌" * (halves % 2)


def or_dash(value: _Value | None, text: Callable[[_Value], str]) -> str:
    """The text of a value; `-` for None."""
    return "-" if value is None else text(value)


def seconds(value: float) -> str:
    """A duration in seconds: `0.0015` -> `1.50 ms`."""
    return format_duration(value * NS_PER_S)


def microseconds(value: float) -> str:
    """A duration in microseconds: `1500` -> `1.50 ms`."""
    return format_duration(value * NS_PER_US)


def mib_s(value: float) -> str:
    """A bandwidth in MiB per second: `0.5` -> `512 KiB/s`."""
    return f"{format_bytes(value * MIB)}/s"


def percent(value: float) -> str:
    """A share in per cent: `12.34` -> `12.3 %`."""
    return f"{value:.1f} %"


def share(value: float | None) -> str:
    """A fraction in per cent: `0.1234` -> `12.34 %`; `-` for None."""
    return or_dash(value, lambda part: f"{100 * part:.2f} %")


def recorded_training(recorded_s: float, wait_s: float | None, ratio: float | None) -> str:
    """The recorded time of a training without the waits that the recording made (`wait_s`), and the ratio to it."""
    text = f"recorded {seconds(recorded_s - (wait_s or 0.0))}"
    if wait_s:
        text += f", without {seconds(wait_s)} of waits for Darshan's logs"
    return text if ratio is None else f"{text} (x {ratio:.2f})"
