"""A table that people look at, which the terminal and the HTML page both render, and one description of each figure of
a result: its name, its place in the object of --json, and what it is.

Tables of text, a notebook's table, and titles and descriptions in `dxt_replay/schemas` are made from these
descriptions, which stand beside the words of their command (`summary.py`, `run.py` ...). Pure.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum, auto
from textwrap import shorten
from typing import Any, TypeVar

from dxt_replay.traces.text import unit_of
from dxt_replay.traces.units import (
    MIB,
    NS_PER_MS,
    NS_PER_S,
    NS_PER_US,
    format_bytes,
    format_count,
    format_counted,
    format_duration,
)

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


_TONES = {
    **dict.fromkeys(("pass", "passed", "ok", "equal", "improvement", "no change"), "good"),
    **dict.fromkeys(("fail", "failed", "different", "regression", "high"), "bad"),
    **dict.fromkeys(("warning", "inconclusive"), "doubtful"),
    **dict.fromkeys(("info", "skipped"), "neutral"),
}


def tone_of(text: str) -> str:
    """The tone of a cell or title that is a verdict or severity, or begins with one and a colon; "" for any other."""
    return _TONES.get(text.partition(":")[0].strip().lower(), "")


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


# --------------------------------------------------------------------------------------- the description of each figure

Object = Mapping[str, Any]
"""The object that --json prints of a result, or one within it."""

_PATHS = ("file", "job", "of", "program", "record")
"""Heads of columns whose cells are paths."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure with its label, or a column with its head.

    `shown`: its text, with keys of the object in braces: `{bytes.read} in {files}`. The ending of a key, or of one that
    holds it, is its unit. Null leaves the text out; `{files:?}` and `{files:-}` say so instead, and `{files:+}` leaves
    the text out for 0 too. `:share`: of a fraction, as per cent.
    `meaning`: of the first key, for the reference. `brief`: shown without --details; `spare`: left out first.
    """

    label: str
    shown: str
    meaning: str = ""
    brief: bool = False
    spare: bool = False

    @property
    def keys(self) -> list[str]:
        """The keys that it shows, with dots: `bytes.read`."""
        return [name for _, name, _, _ in string.Formatter().parse(self.shown) if name]

    def text(self, found: Object) -> str | None:
        """The text for an object; None where it is left out."""
        try:
            return _TEMPLATE.vformat(self.shown, (), found) or None
        except _LeftOutError:
            return None


def figures(lines: str) -> tuple[Figure, ...]:
    """From lines of `label | text | meaning`. `*` before a label: brief; `~`: spare."""
    made = []
    for line in filter(None, map(str.strip, lines.splitlines())):
        label, shown, meaning, *_ = (*(part.strip() for part in line.split("|")), "", "")
        brief, spare = label.startswith("*"), label.startswith("~")
        made.append(Figure(label.lstrip("*~ "), shown, meaning, brief, spare))
    return tuple(made)


def table(title: str, shown: Sequence[Figure], found: Object, said: Mapping[str, str | None] | None = None) -> Section:
    """The figures of an object as rows. `said`: by label, texts in place of those of the figures; None for no row."""
    own = said or {}
    texts = ((each.label, own[each.label] if each.label in own else each.text(found)) for each in shown)
    rows = tuple((label, text) for label, text in texts if text)
    return Section(title=title, rows=rows, prose=True, brief=tuple(each.label for each in shown if each.brief))


def beside(title: str, shown: Sequence[Figure], objects: Mapping[str, Object], **looks: Any) -> Section:
    """The figures as rows, a column for each object. `objects`: by head; `looks`: as of Section."""
    rows = ((each.label, *(each.text(found) for found in objects.values())) for each in shown)
    known = tuple(tuple(cell or "-" for cell in row) for row in rows if any(row[1:]))
    return Section(title=title, columns=("", *objects), rows=known, **looks)


def listing(
    title: str,
    shown: Sequence[Figure],
    objects: Sequence[Object],
    *,
    bar_of: Callable[[Object], float] | None = None,
    notes: Sequence[str] = (),
    brief: bool = False,
) -> Section:
    """A row for each object, at most MAX_GROUPS, and a column for each figure that any of them has.

    `bar_of`: value of the bar behind a row, of which the largest is as long as the column.
    """
    first = objects[:MAX_GROUPS]
    cells = {each: [each.text(found) for found in first] for each in shown}
    kept = [each for each in shown if any(cells[each])]
    most = max(map(bar_of, first), default=0.0) if bar_of is not None else 0.0
    rows = (
        (*(cells[each][at] or "-" for each in kept), *((bar(bar_of(found) / most, 12),) if bar_of and most else ()))
        for at, found in enumerate(first)
    )
    left = len(objects) - len(first)
    return Section(
        title=title,
        columns=(*(_column(each, first) for each in kept), *((BAR,) if most else ())),
        rows=tuple(rows),
        notes=(*((f"and {format_count(left)} more: --json has all",) if left else ()), *notes),
        brief=brief,
    )


def _column(each: Figure, objects: Sequence[Object]) -> Column:
    values = [_value(each.keys[0], found)[0] for found in objects]
    words = any(isinstance(value, str) and not re.match(r"[-+]?\d|-$", value) for value in values)
    kind = Kind.PATH if each.label in _PATHS else Kind.TEXT if words else Kind.NUMBER
    return Column(head=each.label, kind=kind, spare=each.spare)


def described(shown: Sequence[Figure]) -> Iterator[tuple[str, str, str]]:
    """Key, label and meaning of all that the figures show; the meaning is that of the first key."""
    for each in shown:
        for place, key in enumerate(each.keys):
            yield key, each.label, each.meaning if place == 0 else ""


def values_of(found: Object) -> Iterator[tuple[str, str]]:
    """Each key of an object and of those within it, with dots, and its text; without those that are null."""
    for key, value in found.items():
        if isinstance(value, Mapping):
            yield from ((f"{key}.{name}", text) for name, text in values_of(value))
        elif (text := Figure("", f"{{{key}}}").text(found)) is not None:
            yield key, text


def _value(name: str, found: Object) -> tuple[Any, str]:
    """The value of a key with dots, None if it is absent, and its unit."""
    keys, value = name.split("."), found
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None  # type: ignore[assignment]
    named = (key.partition("_per_rank")[0] for key in reversed(keys))
    units = (next((end for end in ("_per_s", "_ms") if key.endswith(end)), unit_of(key)) for key in named)
    return value, next(filter(None, units), "")


_TEXTS: Mapping[str, Callable[[Any], str]] = {
    "s": seconds,
    "_ms": lambda value: format_duration(value * NS_PER_MS),
    "us": microseconds,
    "ns": format_duration,
    "%": percent,
    "bytes": format_bytes,
    "MiB/s": mib_s,
    "_per_s": lambda value: f"{value / 1e6:{',.0f' if value > 1e8 else '.3g'}} MB/s",
    "share": share,
    "": lambda value: format_count(int(value)) if float(value).is_integer() else f"{value:g}",
}
"""Unit -> text of a value."""


class _LeftOutError(Exception):
    """A text without a value."""


class _Template(string.Formatter):
    """Writes each key with its unit."""

    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Object) -> tuple[Any, str]:
        return _value(field_name, kwargs), field_name

    def format_field(self, value: Any, format_spec: str) -> str:
        known, unit = value
        if known is None or known == "" or (format_spec == "+" and not known):
            if format_spec in ("?", "-"):
                return "not known" if format_spec == "?" else "-"
            raise _LeftOutError
        if isinstance(known, bool):
            return "yes" if known else "no"
        if isinstance(known, (str, list)):
            return known if isinstance(known, str) else ", ".join(map(str, known))
        return _TEXTS[format_spec if format_spec == "share" else unit](known)


_TEMPLATE = _Template()
