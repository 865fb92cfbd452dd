"""Spans of a job from files that are not profiles of a rank: what the readers of such files give to a merge."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from dxt_replay.profiler_merge.profiles.span_parts import SpanColumns

ProcessIds = Sequence[Collection[int]]
"""The ids of the processes of each rank of a job, empty where they are not known."""


@dataclass(slots=True, kw_only=True)
class MoreSpans:
    """Spans of ranks in CLOCK_REALTIME.

    loops: of a training loop, where a rank has no profile. meetings: collectives, beside what a profile has.
    """

    loops: dict[int, SpanColumns] = field(default_factory=dict)
    meetings: dict[int, SpanColumns] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
