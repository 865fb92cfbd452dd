"""One finding, its severity, and what is at stake. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dxt_replay.profiler_merge.analysis.thresholds import MATERIAL_PCT, NOTICEABLE_PCT, SERIOUS_PCT
from dxt_replay.traces.plain import plain

SEVERITIES = ("high", "warning", "info")
"""Severities, worst first: likely to dominate the run; worth the remedy; good to know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A problem of the job. Its fields are the columns of the table "findings".

    `code`: the name by which programs know it. `severity`: one of SEVERITIES.
    `title`, `evidence`, `threshold`, `remedy`: sentences for a person.
    `at_stake_s`: upper bound of the gain from the remedy; None where that is not known.
    `at_stake_pct`: the same in per cent of `at_stake_of`, the training loop or the run.
    `values`: the numbers of the evidence, units in the names; `files`: paths of the worst files.
    """

    code: str
    severity: str
    title: str
    evidence: str
    threshold: str
    remedy: str
    at_stake_s: float | None = None
    at_stake_pct: float | None = None
    at_stake_of: str = ""
    values: Mapping[str, float] = field(default_factory=dict)
    files: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """A member of the list that `dxt-replay summary --findings --json` prints."""
        return dict(plain(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stake:
    """Upper bound of the gain from a remedy. `whole_s`: duration of the loop or run that gains; `of`: its name."""

    seconds: float
    whole_s: float
    of: str

    @property
    def pct(self) -> float:
        """Per cent of the whole; 100 if the length of the whole is not known."""
        return min(100 * self.seconds / self.whole_s, 100.0) if self.whole_s > 0 else 100.0

    @property
    def matters(self) -> bool:
        """Whether the gain is large enough for a finding."""
        return self.seconds > 0 and self.pct >= NOTICEABLE_PCT

    @property
    def severity(self) -> str:
        """One of SEVERITIES."""
        if self.pct >= SERIOUS_PCT:
            return "high"
        return "warning" if self.pct >= MATERIAL_PCT else "info"

    def columns(self) -> dict[str, Any]:
        """The fields of a `Finding` about what is at stake."""
        return {
            "severity": self.severity,
            "at_stake_s": self.seconds,
            "at_stake_pct": self.pct,
            "at_stake_of": self.of,
        }


def percent(value: float) -> str:
    """`12.3 %`."""
    return f"{value:.1f} %" if value < 99.95 else "100 %"
