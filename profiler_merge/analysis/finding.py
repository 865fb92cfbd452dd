"""One finding, and how grave it is."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from profiler_merge.analysis.thresholds import MATERIAL_PCT, SERIOUS_PCT

SEVERITIES = ("high", "warning", "info")
"""From the gravest: likely to dominate the run; worth the remedy; to be known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """`code`: one of `findings.CODES`; `severity`: of SEVERITIES. `title`, `evidence`, `threshold` and `remedy` are
    sentences for a person; `values`: the numbers of the evidence, units in the names; `files`: paths of the worst."""

    code: str
    severity: str
    title: str
    evidence: str
    threshold: str
    remedy: str
    values: Mapping[str, float] = field(default_factory=dict)
    files: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """A member of the list that `dxt-replay summary --findings --json` prints."""
        return {**dataclasses.asdict(self), "values": dict(self.values), "files": list(self.files)}


def severity_of_loss(loop_pct: float) -> str:
    """Severity of something that costs `loop_pct` per cent of the training loop."""
    if loop_pct >= SERIOUS_PCT:
        return "high"
    return "warning" if loop_pct >= MATERIAL_PCT else "info"


def percent(value: float) -> str:
    """`12.3 %`."""
    return f"{value:.1f} %" if value < 99.95 else "100 %"
