"""The output of `dxt-replay fit` for people. Pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from dxt_replay.replay.show.section import Section, facts, prose

if TYPE_CHECKING:
    from dxt_replay.replay.interface.descriptions import FittedWorkload


def fit_sections(fitted: FittedWorkload) -> list[Section]:
    """How near the description is, its keys, and notes. The evidence of each key stands in the file."""
    sections = [
        prose("", [fitted.closeness]),
        facts("Description", ((key, _text(value)) for key, (value, _) in fitted.keys.items())),
        prose("Notes", fitted.notes),
        prose("", [f"Wrote {fitted.output}"]),
    ]
    return [section for section in sections if section.rows]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
