"""What the user chose for a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from replay.plan.pacing import Pacing
from replay.run.process_files import IoOptions
from replay.twin.placement import PathMap
from traces.errors import UsageError
from traces.schema import Source

COMPUTE_CHOICES = ("sleep", "spin", "skip")
"""What a replay does in place of the computation between operations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What the user chose. Nothing here is derived from the capture.

    `target`: directory that holds the staged twin.
    `compute`: one of COMPUTE_CHOICES.
    `maps`: recorded paths whose real data are read instead of the twin's.
    `cold`: drop the twin's pages from the page cache first.
    `api`: one of `traces.replay_record.API_CHOICES`.
    `reconstruct`: also replay the operations that were reconstructed from counters.
    `core`: see `replay.engine.issue.choose_core`.
    `sources`: what the replay names as its sources; empty for the capture itself.
    `force`: replace an earlier capture at the output.
    Raises: UsageError for an unknown `compute`.
    """

    target: Path
    pacing: Pacing = field(default_factory=Pacing)
    compute: str = "sleep"
    maps: tuple[PathMap, ...] = ()
    cold: bool = False
    api: str = "auto"
    reconstruct: bool = True
    io: IoOptions = field(default_factory=IoOptions)
    core: str = "auto"
    sources: tuple[Source, ...] = ()
    force: bool = False

    def __post_init__(self) -> None:
        if self.compute not in COMPUTE_CHOICES:
            raise UsageError(f"--compute {self.compute!r}: choose {', '.join(COMPUTE_CHOICES)}")
