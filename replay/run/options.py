"""What the user chose for a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from replay.plan.lane_plan import PlanOptions
from replay.run.process_files import IoOptions
from replay.twin.placement import PathMap
from traces.schema import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What the user chose. `cold`: drop the twin's pages first. `api`: see `traces.replay_record.API_CHOICES`.

    `reconstruct`: whether what the capture reconstructed from counters is replayed too. `sources`: what the replay
    names as its source, the capture itself where empty. `force`: replace an earlier capture at the output.
    """

    target: Path
    plan: PlanOptions
    maps: tuple[PathMap, ...] = ()
    cold: bool = False
    api: str = "auto"
    reconstruct: bool = True
    io: IoOptions = field(default_factory=IoOptions)
    core: str = "auto"
    sources: tuple[Source, ...] = ()
    force: bool = False
