"""One point of a figure: generated, changed, and simulated on a described file system."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dxt_replay
from benchmarks.paper_figures.sweeps import Sweep


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a point.
    io_s: sum of the durations of a rank's operations, mean over ranks. reads: of all ranks.

    stored_s: time of elapsed_s that infinitely fast storage would save.
    """

    at: str
    elapsed_s: float
    stored_s: float
    io_s: float
    reads: int
    gib: float


def outcomes(sweep: Sweep, folder: Path, storage: str | Path | None = None) -> list[Outcome]:
    """All points of a panel, simulated on `storage`, or on the panel's own. Captures lie in `folder` for a while."""
    found: list[Outcome] = []
    base, made = folder / "base.capture", None
    for at in sweep.points:
        change = sweep.change(at)
        if made != change.overrides:
            overrides = [*sweep.overrides, *change.overrides]
            dxt_replay.generate(sweep.source, sweep.ranks, base, overrides=overrides, force=True)
            made = change.overrides
        capture = base
        if change.transform:
            capture = folder / "point.capture"
            dxt_replay.transform(base, capture, force=True, **change.transform)
        found.append(simulated(capture, at, storage or sweep.storage))
    return found


def simulated(capture: Path, at: str, storage: str | Path) -> Outcome:
    """The result of simulating a capture on `storage`."""
    found = dxt_replay.simulate(capture, storage, runs=1).prediction.as_json()
    operations: dict[str, Any] = found["requests"]["by_operation"]
    reads = operations.get("read", {"operations": 0, "bytes": 0})
    io_us = sum(each["operations"] * each["mean_us"] for each in operations.values())
    return Outcome(
        at=at,
        elapsed_s=found["elapsed_s"],
        stored_s=max(0.0, found["elapsed_s"] - found["free_storage_s"]),
        io_s=io_us / 1e6 / found["ranks"],
        reads=reads["operations"],
        gib=reads["bytes"] / (1 << 30),
    )
