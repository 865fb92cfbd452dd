"""Computes when each operation of a lane is due. Pure. Only `replay.engine.issue` reads a clock.

An operation is *due* when the plan wants it issued, *begins* when it is issued, and *ends* when it returns.
Of the paces (`traces.paces`) `timed` keeps the recorded start times (open loop), `think` the recorded gap between the
end of an operation and the start of the next one of its lane (closed loop). `steps` follows the training loop
(`replay.causal.model`). `none` issues each operation at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.paces import Pace as Pace

SLOWEST, FASTEST = 1e-6, 1e6
"""Limits of a speed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pacing:
    """The pace of a replay, and its speed: 2.0 is twice as fast as recorded.

    `speed`: of everything.
    `compute_speed`: of compute; None for `speed`.
    `io_speed`: of the gaps between the operations of a lane; None for `speed`.
    Two different speeds need a pace at which operations and compute wait for each other. Under `timed` they all follow
    one clock, and the slower of them would fall behind.
    Raises: UsageError for a speed beyond SLOWEST or FASTEST, or for different speeds where no operation waits.
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
        if not self.pace.is_closed_loop and (self.compute_speed, self.io_speed) != (None, None):
            why = (
                "keeps the recorded times: one --speed scales them all"
                if self.pace.follows_recording
                else "has no gaps"
            )
            raise UsageError(f"--compute-speed and --io-speed need --pace steps or think: pace {self.pace.value} {why}")

    @property
    def of_compute(self) -> float:
        """Speed of compute, as a multiple of the recorded one."""
        return self.speed if self.compute_speed is None else self.compute_speed

    @property
    def of_io(self) -> float:
        """Speed of the gaps between the operations of a lane, as a multiple of the recorded one."""
        return self.speed if self.io_speed is None else self.io_speed

    @property
    def is_uniform(self) -> bool:
        """Whether compute and I/O have one speed, by which the recorded time of the whole can be divided."""
        return self.of_compute == self.of_io == self.speed

    def scaled_ns(self, duration_ns: np.ndarray) -> np.ndarray:
        """Times and durations (int64 ns) at `speed`."""
        return _divided(duration_ns, self.speed)

    def compute_ns(self, duration_ns: np.ndarray) -> np.ndarray:
        """Durations of compute (int64 ns) at the speed of compute."""
        return _divided(duration_ns, self.of_compute)

    def io_ns(self, duration_ns: np.ndarray) -> np.ndarray:
        """Gaps between the operations of a lane (int64 ns) at the speed of I/O."""
        return _divided(duration_ns, self.of_io)

    def recorded_ns(self, elapsed_ns: int) -> int:
        """Duration of `elapsed_ns` of recorded time at `speed`, ns."""
        return elapsed_ns if self.speed == 1.0 else round(elapsed_ns / self.speed)


def _divided(duration_ns: np.ndarray, speed: float) -> np.ndarray:
    if speed == 1.0:
        return duration_ns
    return np.rint(duration_ns / speed).astype(np.int64)


class LaneClock:
    """Turns the recorded times of one lane, batch after batch, into the `due_ns` column that the loop expects.

    A due time is in ns from the start of the run under `timed`, in ns after the end of the lane's previous item under
    `think` (for the first item: after the start of the run), and 0 under `none`.
    `origin_ns`: the recorded time that becomes the start of the run.
    `scale`: recorded gaps (int64 ns) -> gaps to keep; None for those of I/O, `Pacing.io_ns`.
    """

    def __init__(self, pacing: Pacing, origin_ns: int, scale: Callable[[np.ndarray], np.ndarray] | None = None) -> None:
        self._pacing = pacing
        self._scale = scale or pacing.io_ns
        self._origin_ns = origin_ns
        self._previous_end_ns = origin_ns

    def due_ns(self, start_ns: np.ndarray, end_ns: np.ndarray) -> np.ndarray:
        """Due times, int64 (n,), of the lane's next items. `start_ns`, `end_ns` int64 (n,): their recorded times."""
        if self._pacing.pace is Pace.NONE or not len(start_ns):
            return np.zeros(len(start_ns), dtype=np.int64)
        if self._pacing.pace is Pace.TIMED:
            return self._pacing.scaled_ns(start_ns - self._origin_ns)
        previous = np.concatenate(([self._previous_end_ns], end_ns[:-1]))
        self._previous_end_ns = int(end_ns[-1])
        return self._scale(np.maximum(start_ns - previous, 0))
