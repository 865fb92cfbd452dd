"""The output of `dxt-replay record` for people, after the job's own output. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dxt_replay.replay.show.merge_sections import merge_sections
from dxt_replay.replay.show.section import Section, facts, prose
from dxt_replay.traces.units import format_count

if TYPE_CHECKING:
    from dxt_replay.replay.interface.recordings import Recorded


def record_sections(recorded: Recorded) -> list[Section]:
    """The tables of `dxt-replay record`."""
    tracer = recorded.job.tracer
    rows = [
        ("tracer", f"{tracer.name} {tracer.version}".strip()),
        ("found in", f"{tracer.program} ({tracer.origin})"),
        ("exit status of the job", str(recorded.job.ended.status)),
        ("logs", f"{format_count(len(recorded.job.logs))} in {recorded.folder}"),
        ("profiles", ", ".join(map(str, recorded.profiles)) or "none"),
    ]
    sections = [facts("Recorded", rows)]
    if tracer.note:
        sections.append(prose("What this tracer costs and loses", [tracer.note]))
    if recorded.merged is not None:
        sections += merge_sections(recorded.merged)
    return sections
