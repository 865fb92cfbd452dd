"""The output of `dxt-replay doctor` for people: a verdict, a table of each part, and what to do. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dxt_replay.replay.show.section import Column, Kind, Section, prose
from dxt_replay.traces.units import format_counted

if TYPE_CHECKING:
    from dxt_replay.replay.doctor import Diagnosis, Part

_COLUMNS = tuple(Column(kind=Kind.TEXT) for _ in range(3))


def doctor_sections(diagnosis: Diagnosis) -> list[Section]:
    """The verdict, and a table of the checks of each part with its remedies below."""
    checks = [check for part in diagnosis.parts for check in part.checks]
    states = [check.state.value for check in checks]
    failed, warnings = states.count("failed"), states.count("warning")
    verdict = f"failed: {format_counted(failed, 'check')} found something broken" if failed else "passed"
    doubts = f"{format_counted(warnings, 'warning')}" if warnings else "nothing to change"
    wrong = [check for check in checks if check.state.value in ("failed", "warning")]
    remedies = [f"{check.name}: {check.found}; {check.remedy}" for check in wrong]
    return [prose(verdict, [doubts, *remedies]), *map(_section, diagnosis.parts)]


def _section(part: Part) -> Section:
    rows = tuple((check.name, check.state.value, check.found) for check in part.checks)
    notes = tuple(f"{check.name}: {check.remedy}" for check in part.checks if check.remedy)
    return Section(title=part.name, columns=_COLUMNS, rows=rows, notes=notes, brief=())
