"""When each operation of a lane is due. Pure: arrays in, arrays out; the clock belongs to `replay.engine.issue`.

The words: an operation is *due* when the plan wants it issued, *begins* when it is issued and *ends* when it returns.
`timed` keeps the recorded start times (open loop), `think` the recorded gaps between an operation's end and the next
one's start on the same lane (closed loop), `steps` follows the training loop (`replay.causal.model`), `none` issues at
once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import numpy as np

from traces.errors import UsageError

SLOWEST, FASTEST = 1e-6, 1e6


class Pace(Enum):
    """How a replay is paced; the value is what the command line says."""

    TIMED = "timed"
    THINK = "think"
    STEPS = "steps"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pacing:
    """The pace, and how much faster than recorded (2.0: twice as fast): `speed` for all, or compute and I/O gaps apart.

    `compute_speed` and `io_speed` (None: `speed`) need a pace whose compute and operations follow from each other:
    under `timed` each has its time of day, and one that runs at another speed would leave the others behind.
    Raises: UsageError for a speed that is not between SLOWEST and FASTEST, or apart under `timed` or `none`.
    """

    pace: Pace = Pace.TIMED
    speed: float = 1.0
    compute_speed: float | None = None
    io_speed: float | None = None

    def __post_init__(self) -> None:
        for name, speed in (
            ("--speed", self.speed),
            ("--compute-speed", self.compute_speed),
            ("--io-speed", self.io_speed),
        ):
            if speed is not None and not SLOWEST <= speed <= FASTEST:
                raise UsageError(f"{name} {speed} is not a number between {SLOWEST:g} and {FASTEST:g}")
        if self.pace in (Pace.TIMED, Pace.NONE) and (self.compute_speed, self.io_speed) != (None, None):
            why = "keeps the recorded times: one --speed scales them all" if self.pace is Pace.TIMED else "has no gaps"
            raise UsageError(f"--compute-speed and --io-speed need --pace steps or think: pace {self.pace.value} {why}")

    @property
    def of_compute(self) -> float:
        """How much faster than recorded compute is."""
        return self.speed if self.compute_speed is None else self.compute_speed

    @property
    def of_io(self) -> float:
        """How much faster than recorded the gaps between the operations of a lane are."""
        return self.speed if self.io_speed is None else self.io_speed

    @property
    def is_uniform(self) -> bool:
        """Whether compute and I/O gaps have one speed, so that recorded times divided by it are to be expected."""
        return self.of_compute == self.of_io == self.speed

    def scaled_ns(self, duration_ns: np.ndarray) -> np.ndarray:
        """Times and durations (int64 ns) at `speed`."""
        return _divided(duration_ns, self.speed)

    def compute_ns(self, duration_ns: np.ndarray) -> np.ndarray:
        """Durations of compute (int64 ns) at its speed."""
        return _divided(duration_ns, self.of_compute)

    def io_ns(self, duration_ns: np.ndarray) -> np.ndarray:
        """Gaps between the operations of a lane (int64 ns) at their speed."""
        return _divided(duration_ns, self.of_io)

    def recorded_ns(self, elapsed_ns: int) -> int:
        """How long a stretch of `elapsed_ns` recorded time takes at `speed`."""
        return elapsed_ns if self.speed == 1.0 else round(elapsed_ns / self.speed)


def _divided(duration_ns: np.ndarray, speed: float) -> np.ndarray:
    if speed == 1.0:
        return duration_ns
    return np.rint(duration_ns / speed).astype(np.int64)


class LaneClock:
    """Turns the recorded times of one lane, batch after batch, into the `due_ns` column that the loop expects.

    `timed`: ns from the run's start; `think`: ns after the previous item of the lane ended (for the first item, after
    the run's start); `none`: 0. `origin_ns` is the recorded time that becomes the run's start. `scale`: what makes of a
    recorded gap one to be kept; that of I/O lanes when None.
    """

    def __init__(self, pacing: Pacing, origin_ns: int, scale: Callable[[np.ndarray], np.ndarray] | None = None) -> None:
        self._pacing = pacing
        self._scale = scale or pacing.io_ns
        self._origin_ns = origin_ns
        self._previous_end_ns = origin_ns

    def due_ns(self, start_ns: np.ndarray, end_ns: np.ndarray) -> np.ndarray:
        """int64 due column for items with these recorded times, which continue the lane's earlier batches."""
        if self._pacing.pace is Pace.NONE or not len(start_ns):
            return np.zeros(len(start_ns), dtype=np.int64)
        if self._pacing.pace is Pace.TIMED:
            return self._pacing.scaled_ns(start_ns - self._origin_ns)
        previous = np.concatenate(([self._previous_end_ns], end_ns[:-1]))
        self._previous_end_ns = int(end_ns[-1])
        return self._scale(np.maximum(start_ns - previous, 0))
