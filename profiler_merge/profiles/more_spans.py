"""Spans of a job from files that are not profiles of a rank, as their readers pass them to a merge."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from dxt_replay.profiler_merge.profiles.span_parts import SpanColumns

ProcessIds = Sequence[Collection[int]]
"""The process ids of each rank of a job, empty if they are not known."""


@dataclass(slots=True, kw_only=True)
class MoreSpans:
    """Spans of ranks in CLOCK_REALTIME.

    loops: of a training loop, for ranks without a profile.
    meetings: collectives, in addition to those of a profile.
    """

    loops: dict[int, SpanColumns] = field(default_factory=dict)
    meetings: dict[int, SpanColumns] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
