"""One description of each figure of a result: its name, its place in the object of --json, and what it is.

Tables of text, a notebook's table, and titles and descriptions in `dxt_replay/schemas` are made from these
descriptions, which stand beside the words of their command (`summary.py`, `run.py` ...).
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dxt_replay.replay.show.section import (
    BAR,
    MAX_GROUPS,
    Column,
    Kind,
    Section,
    bar,
    mib_s,
    microseconds,
    percent,
    seconds,
    share,
)
from dxt_replay.traces.text import unit_of
from dxt_replay.traces.units import NS_PER_MS, format_bytes, format_count, format_duration

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
    return value, next((unit for key in reversed(keys) if (unit := _unit(key))), "")


def _unit(key: str) -> str:
    key = key.partition("_per_rank")[0]
    return next((end for end in ("_per_s", "_ms") if key.endswith(end)), unit_of(key))


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
