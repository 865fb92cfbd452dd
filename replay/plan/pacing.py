"""The user's choices for a run, and when each operation is due by them. Pure: only the issue loop has a clock.

An operation is *due* when the plan wants it issued, *begins* when it is issued, and *ends* when it returns.
Of the paces (`traces.paces`) `timed` keeps the recorded start times (open loop), `think` the recorded gap between the
end of an operation and the start of the next one of its lane (closed loop). `steps` follows the training loop
(`replay.causal.model`). `none` issues each operation at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dxt_replay.replay.target.placement import PathMap
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.paces import Pace as Pace
from dxt_replay.traces.schema import Source
from dxt_replay.traces.store.reader import Capture

SLOWEST, FASTEST = 1e-6, 1e6  # Limits of a speed
MOST_TIMEOUT_S = 1e8  # three years: threading.TIMEOUT_MAX and timers of the system need not be tried with more


@dataclass(frozen=True, slots=True, kw_only=True)
class Pacing:
    """The pace of a replay, and its speed: 2.0 is twice as fast as recorded. `compute_speed`: of compute, if another.

    Raises: UsageError for a speed beyond SLOWEST or FASTEST.
    """

    pace: Pace = Pace.TIMED
    speed: float = 1.0
    compute_speed: float | None = None

    def __post_init__(self) -> None:
        for name, speed in (("--speed", self.speed), ("--compute-speed", self.of_compute)):
            if not SLOWEST <= speed <= FASTEST:
                raise UsageError(f"{name} {speed} is not a number between {SLOWEST:g} and {FASTEST:g}")

    @property
    def of_compute(self) -> float:
        return self.speed if self.compute_speed is None else self.compute_speed

    def compute_ns(self, duration_ns: np.ndarray) -> np.ndarray:
        """Durations of compute (int64 ns) in the replay."""
        return _divided(duration_ns, self.of_compute)

    def io_ns(self, duration_ns: np.ndarray) -> np.ndarray:
        """Times, and gaps between the operations of a lane (int64 ns), in the replay."""
        return _divided(duration_ns, self.speed)

    def recorded_ns(self, elapsed_ns: int) -> int:
        """Duration of `elapsed_ns` of recorded time in the replay, ns."""
        return elapsed_ns if self.speed == 1.0 else round(elapsed_ns / self.speed)


def _divided(duration_ns: np.ndarray, speed: float) -> np.ndarray:
    return duration_ns if speed == 1.0 else np.rint(duration_ns / speed).astype(np.int64)


def due_ns(
    pacing: Pacing,
    start_ns: np.ndarray,
    end_ns: np.ndarray,
    origin_ns: int,
    previous_end_ns: int,
    scale: Callable[[np.ndarray], np.ndarray] | None = None,
) -> np.ndarray:
    """Due times, int64 (n,), of a lane's next items from their recorded times, int64 (n,).

    They are in ns from the start of the run under `timed`, in ns after the end of the lane's previous item under
    `think` (for the first item: after the start of the run), and 0 under `none`.
    `origin_ns`: the recorded time that becomes the start of the run; `previous_end_ns`: the recorded end of the lane's
    previous item, at first `origin_ns`. `scale`: recorded gaps -> gaps to keep; None for `Pacing.io_ns`.
    """
    if pacing.pace is Pace.NONE or not len(start_ns):
        return np.zeros(len(start_ns), dtype=np.int64)
    if pacing.pace is Pace.TIMED:
        return pacing.io_ns(start_ns - origin_ns)
    previous = np.concatenate(([previous_end_ns], end_ns[:-1]))
    return (scale or pacing.io_ns)(np.maximum(start_ns - previous, 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The user's choices for a run; none is derived from the capture.

    `target`: directory that holds the staged twin; text if it is the URL of an object store.
    `compute`: one of `traces.paces.COMPUTE_CHOICES`; `api`: one of API_CHOICES there.
    `maps`: recorded paths whose real data are read instead of the twin's.
    `cold`: drop the twin's pages from the page cache first.
    `direct`: past the page cache. `hints`: name -> value of the MPI-IO hints.
    `sources`: the sources that the replay names; empty for the capture itself.
    `force`: replace an earlier capture at the output.
    `timeout_s`: end a run that takes longer (`replay.ranks.stopping`); None for no limit.
    """

    target: str | Path
    pacing: Pacing = field(default_factory=Pacing)
    compute: str = "sleep"
    maps: tuple[PathMap, ...] = ()
    cold: bool = True
    api: str = "auto"
    direct: bool = False
    hints: Mapping[str, str] | None = None
    sources: tuple[Source, ...] = ()
    force: bool = False
    timeout_s: float | None = None

    @property
    def on_objects(self) -> bool:
        return isinstance(self.target, str)

    def __post_init__(self) -> None:
        check_timeout(self.timeout_s)


def check_timeout(timeout_s: float | None) -> float | None:
    """The same limit in seconds. Raises: UsageError if it is not above 0, or too large for the system's timers."""
    if timeout_s is not None and not 0 < timeout_s <= MOST_TIMEOUT_S:
        raise UsageError(f"--timeout {timeout_s:g} s: give a time above 0 and below {MOST_TIMEOUT_S:g} s, such as 10m")
    return timeout_s


def mpi_hints(capture: Capture) -> dict[str, str]:
    """The hints of MPI-IO that the job's Darshan logs carry: `h=name=value;name=value` in their metadata
    (darshan-runtime's documentation, DARSHAN_LOGHINTS)."""
    pairs = (text.partition("=") for text in capture.info.job.metadata.get("h", "").split(";"))
    return {name.strip(): value.strip() for name, equals, value in pairs if equals and name.strip()}
