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
"""What stands for the computation between the operations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What the user chose; nothing in it is derived from the capture.

    `compute`: of COMPUTE_CHOICES.
    `cold`: drop the twin's pages from the page cache first.
    `api`: of `traces.replay_record.API_CHOICES`.
    `reconstruct`: replay the operations that the capture reconstructed from counters too.
    `core`: see `replay.engine.issue.choose_core`.
    `sources`: what the replay names as its source; the capture itself where empty.
    `force`: replace an earlier capture at the output.
    Raises: UsageError for another compute.
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
