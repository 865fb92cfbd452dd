"""Computes the width of each column of a table on a terminal. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dxt_replay.replay.show.section import Kind, Section

GAP = 2
"""Spaces between columns."""

LEAST_PATH, LEAST_TEXT = 20, 14
"""Characters that a column of paths, or of text, keeps however narrow the terminal is."""

_LEAST = {Kind.PATH: LEAST_PATH, Kind.TEXT: LEAST_TEXT}
_ELLIPSIS = "…"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a table fits a width.

    `shown`: places of the columns that are shown.
    `widths`: characters of each shown column.
    `left_out`: heads of the columns of data for which there is no room.
    """

    shown: tuple[int, ...]
    widths: tuple[int, ...]
    left_out: tuple[str, ...] = ()


def layout(section: Section, width: int) -> Layout:
    """Widths that fit `width` characters if numbers allow it: a line that is too long is better than a broken number.

    Heads are wrapped first, then bars go, then paths are shortened, then spare columns go, the last one first; then
    text continues on further lines.
    """
    columns = section.typed_columns
    shown = list(range(len(columns)))
    whole = [_widest(section, place) for place in shown]
    wide = {place: max(whole[place], len(columns[place].head)) for place in shown}
    if _total(wide) > width:
        wide = {place: max(whole[place], _longest_word(columns[place].head)) for place in shown}
    if _total(wide) > width:
        wide = {place: size for place, size in wide.items() if columns[place].kind is not Kind.BAR}
    left_out: list[str] = []
    for place in reversed([place for place in wide if columns[place].spare]):
        if _total(wide) - _slack(section, wide) > width:
            del wide[place]
            left_out.insert(0, columns[place].head)
    for kind, least in _LEAST.items():
        places = [place for place in sorted(wide, key=lambda place: -wide[place]) if columns[place].kind is kind]
        for place in places:
            excess = max(_total(wide) - width, 0)
            wide[place] = max(wide[place] - excess, min(least, wide[place]))
    return Layout(shown=tuple(wide), widths=tuple(wide.values()), left_out=tuple(left_out))


def _slack(section: Section, wide: dict[int, int]) -> int:
    """How much narrower the columns of paths and text may become."""
    columns = section.typed_columns
    return sum(max(size - _LEAST.get(columns[place].kind, size), 0) for place, size in wide.items())


def shortened(path: str, width: int) -> str:
    """A path of at most `width` characters: where it is longer an ellipsis and its end, in which file names differ."""
    return path if len(path) <= width else f"{_ELLIPSIS}{path[len(path) - width + 1 :]}"


def _total(wide: dict[int, int]) -> int:
    return sum(wide.values()) + GAP * max(len(wide) - 1, 0)


def _widest(section: Section, place: int) -> int:
    return max((len(row[place]) for row in section.rows if place < len(row)), default=0)


def _longest_word(head: str) -> int:
    return max((len(word) for word in _words(head)), default=0)


def _words(head: str) -> Sequence[str]:
    return head.split(" ")
