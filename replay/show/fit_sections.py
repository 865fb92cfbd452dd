"""What `dxt-replay fit` prints for a person, from the object that `--json` prints. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dxt_replay.replay.show.section import Section, facts, prose
from dxt_replay.traces.units import format_bytes, format_count


def fit_sections(fitted: Mapping[str, Any]) -> list[Section]:
    """The keys, what may be off in them, and what is not expressed. The evidence of each key stands in the file."""
    doubts = [f"{name}: {key['error']}" for name, key in fitted["keys"].items() if key["error"]]
    near = fitted["closeness"]
    sections = [
        *([] if near is None else _closeness(near)),
        facts("Description", ((name, _text(key["value"])) for name, key in fitted["keys"].items())),
        prose("What does not fit, or is not known", doubts),
        Section(
            title="Not expressed",
            columns=("because", "operations", "bytes", "share of operations", "share of bytes"),
            rows=tuple(_not_expressed(each, fitted) for each in fitted["not_expressed"]),
        ),
        prose("Notes", fitted["notes"]),
        prose("", [f"Wrote {fitted['output']}"]),
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


def _not_expressed(each: Mapping[str, Any], fitted: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        each["reason"],
        format_count(each["operations"]),
        format_bytes(each["bytes"]),
        *(_share(each[name], fitted[name]) for name in ("operations", "bytes")),
    )


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.3g} %" if whole else "-"
