"""The output of `dxt-replay fit` for people, with how near it is. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dxt_replay.replay.show.section import Section, facts, prose
from dxt_replay.traces.units import format_bytes, format_count

if TYPE_CHECKING:
    from dxt_replay.replay.interface.descriptions import FittedWorkload
    from dxt_replay.workloads.fit.estimate import Unexpressed
    from dxt_replay.workloads.fit.fitted import Fit


def fit_sections(fitted: FittedWorkload) -> list[Section]:
    """The keys, what may be off in them, and what is not expressed. The evidence of each key stands in the file."""
    found = fitted.found
    doubts = [f"{each.key}: {each.error}" for each in found.estimates if each.error]
    sections = [
        *([] if fitted.closeness is None else _closeness(fitted.closeness.as_json())),
        facts("Description", ((each.key, _text(each.value)) for each in found.estimates)),
        prose("What does not fit, or is not known", doubts),
        Section(
            title="Not expressed",
            columns=("because", "operations", "bytes", "share of operations", "share of bytes"),
            rows=tuple(_not_expressed(each, found) for each in found.unexpressed),
        ),
        prose("Notes", found.notes),
        prose("", [f"Wrote {fitted.output}"]),
    ]
    return [section for section in sections if section.rows]


def _closeness(near: Mapping[str, Any]) -> list[Section]:
    return [
        Section(
            title="What the description generates",
            columns=("", "capture", "generated", "difference"),
            rows=tuple((name, *measure["text"]) for name, measure in near["measures"].items()),
            notes=tuple(near["summary"]),
        )
    ]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _not_expressed(each: Unexpressed, found: Fit) -> tuple[str, ...]:
    return (
        each.reason,
        format_count(each.operations),
        format_bytes(each.bytes),
        _share(each.operations, found.operations),
        _share(each.bytes, found.bytes),
    )


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.3g} %" if whole else "-"
