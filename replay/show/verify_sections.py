"""The output of `dxt-replay verify` for people: a verdict, what was checked, and what differs. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dxt_replay.replay.show.section import Column, Kind, Section
from dxt_replay.traces.units import format_bytes, format_count, format_counted

if TYPE_CHECKING:
    from dxt_replay.replay.verify import CheckedPart, Verified, VerifiedPlace


_MOST = 20
"""Differences of each place that are listed; --json has all that were kept."""


def verified_sections(verified: Verified) -> list[Section]:
    """The tables of `dxt-replay verify`."""
    places = verified.places
    different = sum(place.different for place in places)
    verdict = f"failed: {format_counted(different, 'difference')}" if different else "passed: nothing differs"
    rows = tuple(_row(place, part) for place in places for part in place.parts)
    columns = (
        Column(head="of", kind=Kind.PATH),
        Column(head="part", kind=Kind.TEXT),
        Column(head="checked"),
        Column(head="read"),
        Column(head="different"),
        Column(head="note", kind=Kind.TEXT),
    )
    checked = Section(title=verdict, columns=columns, rows=rows)
    return [checked, *(_differences(place) for place in places if place.different)]


def _row(place: VerifiedPlace, part: CheckedPart) -> tuple[str, ...]:
    return (
        str(place.path),
        part.part,
        format_counted(part.checked, part.unit),
        format_bytes(part.bytes) if part.bytes else "",
        format_count(part.different),
        part.note,
    )


def _differences(place: VerifiedPlace) -> Section:
    shown = [each for part in place.parts for each in part.differences][:_MOST]
    rows = tuple(
        (
            each.file,
            each.what if each.offset is None else f"{each.what} from {each.offset}",
            each.expected,
            each.found,
        )
        for each in shown
    )
    left = place.different - len(shown)
    columns = (
        Column(head="file", kind=Kind.PATH),
        *(Column(head=head, kind=Kind.TEXT) for head in ("what", "expected", "found")),
    )
    notes = (f"and {format_counted(left, 'more difference')}",) if left else ()
    return Section(title=f"What differs in {place.path}", columns=columns, rows=rows, notes=notes)
