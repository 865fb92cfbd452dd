"""What `dxt-replay record` prints for a person, after the job's own output. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dxt_replay.replay.show.merge_sections import merge_sections
from dxt_replay.replay.show.section import Section, facts, prose
from dxt_replay.traces.units import format_count


def record_sections(recorded: Mapping[str, Any]) -> list[Section]:
    """The tables of `dxt-replay record`, from its JSON object."""
    tracer = recorded["tracer"]
    rows = [
        ("tracer", f"{tracer['name']} {tracer['version']}".strip()),
        ("found in", f"{tracer['program']} ({tracer['found_in']})"),
        ("exit status of the job", str(recorded["exit_status"])),
        ("logs", f"{format_count(recorded['logs'])} in {recorded['folder']}"),
        ("profiles", ", ".join(recorded["profiles"]) or "none"),
    ]
    sections = [facts("Recorded", rows)]
    if tracer["note"]:
        sections.append(prose("What this tracer costs and loses", [tracer["note"]]))
    if recorded["merge"] is not None:
        sections += merge_sections(recorded["merge"])
    return sections
