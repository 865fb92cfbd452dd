"""A generated capture beside a recorded run, as a table, as `generate --check` prints it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from dxt_replay.replay.show.section import Section, prose
from dxt_replay.traces.units import format_bytes, format_count

if TYPE_CHECKING:
    from dxt_replay.replay.fidelity.run_check import Measure
    from dxt_replay.replay.interface.generating import CheckedWorkload

_LABELS = {
    "files": "files",
    "opens": "opens",
    "reads": "reads",
    "bytes_read": "bytes read",
    "writes": "writes",
    "bytes_written": "bytes written",
    "syncs": "syncs",
    "sizes": "distinct request sizes",
    "requests": "files with equal offsets and lengths",
    "order": "files with equal order",
}


def check_sections(found: CheckedWorkload) -> list[Section]:
    """The result in one sentence, all measures by kind of file, the first differences, and what bounds the result."""
    rows: list[tuple[str, ...]] = [("ranks", *_cells(found.check.ranks, format_count))]
    for kind, measures in found.check.kinds.items():
        rows += _rows(kind, measures)
    sections = [
        prose("", [_headline(found)]),
        Section(title="File by file", columns=("", "generated", "run", ""), rows=tuple(rows)),
        prose("First differences", found.check.differences),
        prose("Notes", found.check.notes),
    ]
    return [section for section in sections if section.rows]


def _headline(found: CheckedWorkload) -> str:
    workload, check = found.generated.workload, found.check
    who = f"{found.run}: what {workload.source.name} generates (reading {workload.reading})"
    every = [check.ranks, *(each for kind in check.kinds.values() for each in kind.values())]
    unknown = any(each.equal is None for each in every)
    if not check.equal:
        documented = workload.reading == "documented"
        other = " DLIO's code differs from its documentation: try --reading head or v2.0." if documented else ""
        return f"different: {who} differs from what the run did.{other}"
    if unknown:
        return f"equal in all that the trace shows: {who} is what the run did. Notes name what it does not show."
    return f"equal: {who} is what the run did, request by request."


def _rows(kind: str, measures: Mapping[str, Measure]) -> Iterator[tuple[str, ...]]:
    for name, label in _LABELS.items():
        if measures[name].generated or measures[name].run:
            text = format_bytes if name.startswith("bytes") else format_count
            yield f"{kind}: {label}", *_cells(measures[name], text)


def _cells(measure: Measure, text: Callable[[int], str]) -> tuple[str, str, str]:
    equal = measure.equal
    verdict = "equal" if equal else "not known" if equal is None else "different"
    if measure.not_known:
        verdict += f" ({format_count(measure.not_known)} not known)" if equal is False else ""
    return text(measure.generated), text(measure.run), verdict
