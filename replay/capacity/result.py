"""The result of a search for the capacity of a storage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dxt_replay.traces.plain import plain
from dxt_replay.traces.storage_limit import NO_DOUBT, Doubt

STORAGE, MACHINE, NOTHING, MEMORY = "storage", "machine", "nothing", "memory"
"""What limits the number of ranks: the storage; the machine that replays; nothing up to the most that were tried; or
unknown, because files were in memory before a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRun:
    """One replay with a number of ranks.

    utilisation_pct: accelerator utilisation, for a benchmark by its own rule. training_s: of the training loop.
    mib_s: bytes read and written, over the whole replay. latency_us: of all operations, by percentile.
    processors_pct: share of the machine's processor time that the replay took. storage: False for a run without I/O.
    """

    ranks: int
    utilisation_pct: float
    training_s: float | None
    mib_s: float
    latency_us: Mapping[str, float] | None
    processors_pct: float | None
    storage: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRun:
    """Accelerator utilisation of a number of ranks on a storage model, in per cent."""

    ranks: int
    utilisation_pct: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The number of ranks that keep their accelerators busy on a storage.

    limit_pct: accelerator utilisation that each run must reach. most: largest number of ranks to try.
    ranks: the largest number up to which every run reached `limit_pct`. interval: the bounds of `ranks`, both
    included; they differ if runs contradict each other. limited_by: STORAGE, MACHINE, NOTHING or MEMORY.
    free_utilisation_pct: on infinitely fast storage. simulated: on a storage model, by number of ranks, if one was
    given; `simulated_ranks` is its prediction of `ranks`. runs: in their order.
    doubt: how far the replays may be believed.
    """

    capture: Path
    target: str | Path
    limit_pct: float
    most: int
    ranks: int
    interval: tuple[int, int]
    limited_by: str
    free_utilisation_pct: float
    simulated_ranks: int | None
    simulated: Sequence[SimulatedRun]
    runs: Sequence[LoadRun]
    warnings: tuple[str, ...] = ()
    doubt: Doubt = NO_DOUBT

    def as_json(self) -> dict[str, Any]:
        """The object that `dxt-replay capacity --json` prints."""
        return dict(plain(self))
