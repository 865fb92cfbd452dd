"""When each operation of a lane is due. Pure: arrays in, arrays out; the clock belongs to the loop (`replay.issue`).

The words: an operation is *due* when the plan wants it issued, *begins* when it is issued and *ends* when it returns.
`timed` keeps the recorded start times (open loop), `think` the recorded gaps between an operation's end and the next
one's start on the same lane (closed loop), `none` issues at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np

from traces.errors import UsageError

SLOWEST, FASTEST = 1e-6, 1e6


class Pace(Enum):
    """How a replay is paced; the value is what the command line says."""

    TIMED = "timed"
    THINK = "think"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pacing:
    """The pace, and how much faster than recorded (2.0: twice as fast; it scales gaps and compute alike).

    Raises: UsageError unless speed is between SLOWEST and FASTEST.
    """

    pace: Pace = Pace.TIMED
    speed: float = 1.0

    def __post_init__(self) -> None:
        if not SLOWEST <= self.speed <= FASTEST:
            raise UsageError(f"--speed {self.speed} is not a number between {SLOWEST:g} and {FASTEST:g}")

    def scaled_ns(self, duration_ns: np.ndarray) -> np.ndarray:
        """Durations (int64 ns) at this speed."""
        if self.speed == 1.0:
            return duration_ns
        return np.rint(duration_ns / self.speed).astype(np.int64)

    def recorded_ns(self, elapsed_ns: int) -> int:
        """How long a stretch of `elapsed_ns` recorded time takes at this speed."""
        return elapsed_ns if self.speed == 1.0 else round(elapsed_ns / self.speed)


class LaneClock:
    """Turns the recorded times of one lane, batch after batch, into the `due_ns` column that the loop expects.

    `timed`: ns from the run's start; `think`: ns after the previous item of the lane ended (for the first item, after
    the run's start); `none`: 0. `origin_ns` is the recorded time that becomes the run's start.
    """

    def __init__(self, pacing: Pacing, origin_ns: int) -> None:
        self._pacing = pacing
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
        return self._pacing.scaled_ns(np.maximum(start_ns - previous, 0))
