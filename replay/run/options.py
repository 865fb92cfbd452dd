"""The user's choices for a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from dxt_replay.replay.plan.pacing import Pacing
from dxt_replay.replay.run.process_files import IoOptions
from dxt_replay.replay.target.placement import PathMap
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.paces import COMPUTE_CHOICES
from dxt_replay.traces.schema import Source

MOST_TIMEOUT_S = 1e8
"""Seconds, three years: more than threading.TIMEOUT_MAX and timers of the system need to be tried with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The user's choices for a run; none is derived from the capture.

    `target`: directory that holds the staged twin; text if it is the URL of an object store.
    `compute`: one of COMPUTE_CHOICES.
    `maps`: recorded paths whose real data are read instead of the twin's.
    `cold`: drop the twin's pages from the page cache first.
    `api`: one of `traces.paces.API_CHOICES`.
    `sources`: the sources that the replay names; empty for the capture itself.
    `force`: replace an earlier capture at the output.
    `timeout_s`: end a run that takes longer (`replay.ranks.time_limit`); None for no limit.
    Raises: UsageError for an unknown `compute`, and for a limit that is not above 0.
    """

    target: str | Path
    pacing: Pacing = field(default_factory=Pacing)
    compute: str = "sleep"
    maps: tuple[PathMap, ...] = ()
    cold: bool = True
    api: str = "auto"
    io: IoOptions = field(default_factory=IoOptions)
    sources: tuple[Source, ...] = ()
    force: bool = False
    timeout_s: float | None = None

    @property
    def on_objects(self) -> bool:
        """Whether the twin is in an object store, which has no pages on this machine."""
        return bool(self.io.objects)

    def __post_init__(self) -> None:
        if self.compute not in COMPUTE_CHOICES:
            raise UsageError(f"--compute {self.compute!r}: choose {', '.join(COMPUTE_CHOICES)}")
        check_timeout(self.timeout_s)


def check_timeout(timeout_s: float | None) -> float | None:
    """The same limit in seconds. Raises: UsageError if it is not above 0, or too large for the system's timers."""
    if timeout_s is not None and not 0 < timeout_s <= MOST_TIMEOUT_S:
        raise UsageError(f"--timeout {timeout_s:g} s: give a time above 0 and below {MOST_TIMEOUT_S:g} s, such as 10m")
    return timeout_s
