"""A table that people look at, described once: the terminal and the HTML page both render it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum, auto
from typing import Any

from dxt_replay.traces.units import format_counted

_RECORDED = re.compile(r"(?<![\w./-])[Rr]ecorded(?![\w/-]|\.\w)")
"""The word, and no part of a path."""

WARNINGS = "Warnings"
"""Title of the section of warnings."""

MAX_GROUPS = 40
"""Rows of a long table that the terminal shows; `--json` and `--csv` have all of them."""


class Kind(Enum):
    """What a column holds, which decides its alignment and what happens when the table is too wide."""

    NUMBER = auto()
    """A quantity with its unit: right-justified, never broken, never shortened."""
    TEXT = auto()
    """Words: left-justified; long text continues on the next line, at a space."""
    PATH = auto()
    """A file name: left-justified; where it is too long its beginning is replaced by an ellipsis."""
    BAR = auto()
    """A picture of another column's number: the first to go where the table is too wide."""


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
    """A table of labels and values."""
    return Section(title=title, rows=tuple(rows), prose=True, brief=brief)


def prose(title: str, lines: Iterable[str], *, brief: bool = False) -> Section:
    """Lines of text below a title."""
    return Section(title=title, rows=tuple((line,) for line in lines), prose=True, brief=brief)


def in_brief(sections: Sequence[Section]) -> list[Section]:
    """What a command prints without --details: its first section, which is the answer, and what the others mark as
    brief; all of them if none has a mark. A warning is cut behind its fact."""
    if all(each.brief is False for each in sections[1:]):
        return list(sections)
    first, *others = sections
    short, labels, last = list[Section](), list[tuple[str, str]](), list[str]()
    for each in others:
        if each.title == WARNINGS:
            facts_alone = [f"warning: {_fact(row[0])}" for row in each.rows]
            last += facts_alone[:3]
            if len(facts_alone) > 3:
                last.append(f"and {format_counted(len(facts_alone) - 3, 'more warning')}")
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


_TONES: Mapping[str, Tone] = {
    "pass": Tone.GOOD,
    "passed": Tone.GOOD,
    "ok": Tone.GOOD,
    "equal": Tone.GOOD,
    "improvement": Tone.GOOD,
    "no change": Tone.GOOD,
    "fail": Tone.BAD,
    "failed": Tone.BAD,
    "different": Tone.BAD,
    "regression": Tone.BAD,
    "high": Tone.BAD,
    "warning": Tone.DOUBTFUL,
    "inconclusive": Tone.DOUBTFUL,
    "info": Tone.NEUTRAL,
    "skipped": Tone.NEUTRAL,
}


def tone_of(text: str) -> Tone | None:
    """The tone of a cell or title that is a verdict or severity, or begins with one and a colon; None for any other."""
    return _TONES.get(text.partition(":")[0].strip().lower())


def bar(share: float, width: int = 24) -> str:
    """A bar of `share` (0 to 1) of `width` characters, to half a character; anything above 0 shows."""
    halves = max(round(2 * width * min(share, 1.0)), 1 if share > 0 else 0)
    return "█" * (halves // 2) + "▌" * (halves % 2)
