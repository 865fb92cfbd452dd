"""The timed issue loop in Python, and the choice between the Python core and the compiled core.

`PythonLane` specifies the loop and runs every back end. `replay.engine._issue.CompiledLane` does the same for POSIX,
STDIO and null without the interpreter lock. A process has a table of files (`make_files`), and a lane (`make_lane`)
for each recorded thread. A lane's `run` is the body of a thread; the feeder thread calls its other methods.

All times are in ns of CLOCK_MONOTONIC from the start of the run, t0. A lane does three things with each item, in order:
1. Prepare: open the file at its first use, and make room for the data. This is not part of the latency. When it takes
   long, the item begins late. `replay.engine.lane_files` describes the operations other than read and write.
2. Wait until the item is due. A late item begins at once. Shortly before a read that was waited for, its buffer is
   touched: an application uses the data of a read before the next read, so its buffer is in the cache.
3. Issue: begin is the last time of the clock before the call, end is the first time after it.
"""

from __future__ import annotations

import errno
import os
import resource
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dxt_replay.replay.engine.backends.base import Backend, FileFailure, FileSlot, PythonFiles
from dxt_replay.replay.engine.backends.null import NullBackend
from dxt_replay.replay.engine.backends.posix import DirectPosixBackend, PosixBackend
from dxt_replay.replay.engine.backends.stdio import StdioBackend
from dxt_replay.replay.engine.clock import (
    STOPPED,
    WINDOW_NS,
    Clock,
    MonotonicClock,
    StartGate,
    StopFlag,
    fine_timer_slack,
    sleep_near,
    wait_until,
)
from dxt_replay.replay.engine.items import (
    ADD,
    MARK,
    READ_AT,
    RING_BATCHES,
    SLEEP,
    WAIT,
    WRITE_AT,
    Batch,
    Completed,
    LoopPace,
)
from dxt_replay.replay.engine.lane_files import LaneFiles
from dxt_replay.replay.engine.wait_counters import Counters
from dxt_replay.traces.errors import ReplayError, UsageError

FEED_POLL_NS, FEED_POLLS_NS = 50_000, 32_000_000
"""Least ns between two looks of a lane without items, and after how many ns a compiled lane sleeps until it is woken.
Until then it looks again after an eighth of the time that it has waited: hundreds of lanes that looked every 50 us
would leave the feeder no processor."""

GATE_POLL_NS = 5_000_000
"""ns between two looks of a Python lane for the start, which is set tens of ms before it comes."""

COUNTER_POLL_NS = 50_000
"""ns between two looks of a Python lane at a counter that it waits for. A compiled lane is woken."""

CORE_VARIABLE = "DXT_REPLAY_CORE"
"""Environment variable that chooses the core: auto, compiled or python."""

SLOW_LOOP = "which issues operations late and holds back other lanes"
"""End of the warnings about the Python core."""


class FileTable(Protocol):
    """The files of a process, which its lanes share. `PythonFiles` describes which of them are held open."""

    @property
    def core(self) -> str:
        """The core in which its lanes run: compiled or python."""

    def __len__(self) -> int: ...

    def prepare_payload(self, length: int) -> None:
        """Make the data for writes of up to `length` bytes now, and not when the writes are due."""

    def close_all(self) -> None:
        """Close every file that no lane holds now; each other file when its lane gives it back."""

    def failures(self) -> list[FileFailure]:
        """Opens and closes that failed so far, in the order of the slots."""


class Lane(Protocol):
    """The operations of one thread. `run` has a thread of its own; the feeder thread calls all other methods."""

    def submit(self, batch: Batch) -> bool:
        """Queue a batch. Returns False when RING_BATCHES are queued or not collected yet. Never blocks."""

    def finish(self) -> None:
        """Say that no more batches will come."""

    def collect(self) -> Completed | None:
        """The results of the next batch that is finished or, after a stop, begun; None when there is none yet.

        Raises: in the Python lane, an exception of a back end other than OSError, after all results are collected.
        """

    def run(self) -> None:
        """Wait for the start, then do all items. Returns after `finish` or a stop. Call it once."""

    @property
    def done(self) -> bool:
        """Whether `run` has ended. Once it has, the next None of `collect` means that there are no more results."""

    @property
    def items_done(self) -> int:
        """Items done so far, to show progress."""

    @property
    def opening(self) -> int:
        """What the lane does before its next item: NO_OPEN, OPENS or AWAITS_OPEN (`replay.engine.backends.base`)."""

    @property
    def last_end_ns(self) -> int:
        """When the last item ended, in ns of CLOCK_MONOTONIC; before the first one, the start of the run."""

    @property
    def starved_ns(self) -> int:
        """Time in ns in which an item was due but the feeder had not queued it yet."""

    @property
    def not_direct(self) -> int:
        """Writes of a direct back end that were not of whole blocks, and so went through the page cache."""


class PythonLane:
    """The specification of a lane, for any back end. An item costs 2 to 5 us and needs the interpreter lock.

    This lane reads the clock again before each call. The compiled lane needs only some ns between two items, and takes
    the end of the previous item instead.
    """

    def __init__(
        self,
        files: PythonFiles,
        *,
        pace: LoopPace,
        start: StartGate,
        stop: StopFlag,
        counters: Counters | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._counters = counters or Counters.of(0)
        self._pace = pace
        self._start = start
        self._stop = stop
        self._clock = clock or MonotonicClock()
        self._files = LaneFiles(files, self._clock, stop)
        self._queue: deque[Batch] = deque()
        self._finished: deque[Completed] = deque()
        self._uncollected = 0
        self._no_more = False
        self._failure: BaseException | None = None
        self._previous_end = 0
        self.began = False
        self.done = False
        self.items_done = 0
        self.starved_ns = 0

    def submit(self, batch: Batch) -> bool:
        """See `Lane`."""
        if self._no_more:
            raise RuntimeError("a batch was submitted after finish()")
        if self._uncollected == RING_BATCHES:
            return False
        self._uncollected += 1
        self._queue.append(batch)
        return True

    def finish(self) -> None:
        """See `Lane`."""
        self._no_more = True

    def collect(self) -> Completed | None:
        """See `Lane`."""
        done = self.done
        if self._finished:
            self._uncollected -= 1
            return self._finished.popleft()
        if done and self._failure is not None:
            raise self._failure
        return None

    def run(self) -> None:
        """See `Lane`."""
        if self.began:
            raise RuntimeError("a lane runs once")
        self.began = True
        try:
            with fine_timer_slack():
                self._run()
        except BaseException as error:  # a bug in a back end, or the end of the program: `collect` raises it
            self._failure = error
        finally:
            self._files.release()
            self.done = True

    @property
    def opening(self) -> int:
        """See `Lane`."""
        return self._files.opening

    @property
    def last_end_ns(self) -> int:
        """See `Lane`."""
        return self._previous_end

    @property
    def not_direct(self) -> int:
        """See `Lane`."""
        return self._files.not_direct

    def _run(self) -> None:
        clock, stop = self._clock, self._stop
        while not self._start.t0_ns:
            if stop.is_set():
                return
            clock.sleep_until(clock.now() + GATE_POLL_NS)
        self._previous_end = self._start.t0_ns
        while not stop.is_set() and (batch := self._next_batch()) is not None:
            self._issue(batch)

    def _next_batch(self) -> Batch | None:
        waiting_since = None
        while True:
            no_more = self._no_more  # read before the queue: a batch is queued before finish()
            if self._queue:
                break
            if no_more or self._stop.is_set():
                return None
            now = self._clock.now()
            waiting_since = now if waiting_since is None else waiting_since
            self._clock.sleep_until(now + max(FEED_POLL_NS, min(now - waiting_since, FEED_POLLS_NS) >> 3))
        batch = self._queue.popleft()
        if waiting_since is not None:
            could_begin = max(waiting_since, self._due(int(batch.due_ns[0])))
            self.starved_ns += max(0, self._clock.now() - could_begin)
        return batch

    def _due(self, due_ns: int) -> int:
        if self._pace is LoopPace.NONE:
            return self._previous_end
        return due_ns + (self._start.t0_ns if self._pace is LoopPace.ABSOLUTE else self._previous_end)

    def _issue(self, batch: Batch) -> None:
        """Do the items of a batch, until a stop."""
        clock, files, stop, t0 = self._clock, self._files, self._stop, self._start.t0_ns
        rows: list[tuple[int, int, int, int]] = []
        items = (batch.kind, batch.slot, batch.offset, batch.length, batch.due_ns)
        try:
            for kind, slot, offset, length, due_ns in zip(*(column.tolist() for column in items), strict=True):
                if stop.is_set():
                    break
                error = files.prepare(kind, slot, offset, length) if kind < SLEEP else 0
                if error == STOPPED:
                    break
                due = self._due(due_ns)
                begin = clock.now()
                if due - begin > WINDOW_NS and kind == READ_AT and not error and files.moves_data:
                    begin = sleep_near(clock, due, begin, stop)
                    if begin != STOPPED:
                        files.consume(kind, offset, length)
                        begin = clock.now()
                if begin != STOPPED and begin < due:
                    begin = wait_until(clock, due, begin, stop)
                if begin == STOPPED:
                    break
                if kind <= WRITE_AT:
                    result = -error if error else files.transfer(kind, offset, length)
                    end = clock.now()
                    files.after_transfer(kind, offset, length, error)
                elif kind < SLEEP:
                    begin, end, result = files.call(kind, slot, offset, error)
                elif kind >= WAIT and not 0 <= slot < len(self._counters):
                    result, end = -errno.EINVAL, begin
                elif kind == WAIT:
                    looked = self._await(slot, length, begin)
                    if looked == STOPPED:
                        break
                    # Not the time at which this lane woke up: the next item is due from the end of the wait.
                    result, end = 0, max(begin, min(self._counters.reached_ns(slot, length, offset), looked))
                elif kind == ADD:
                    self._counters.add(slot, length, offset, begin)
                    result, end = 0, clock.now()
                else:
                    # Compute is due at the end of the item before: a late wake-up does not make it longer.
                    late = begin - due if self._pace is LoopPace.THINK else 0
                    result, end = 0, self._compute(kind, begin, length - late)
                    if end == STOPPED:
                        break
                if self._pace is LoopPace.NONE:
                    due = begin
                rows.append((due - t0, begin - t0, end - t0, result))
                self._previous_end = end
                self.items_done += 1
        finally:
            table = np.array(rows, dtype=np.int64).reshape(len(rows), 4).T.copy()
            self._finished.append(
                Completed(batch=batch, due_ns=table[0], begin_ns=table[1], end_ns=table[2], result=table[3])
            )

    def _await(self, counter: int, least: int, begin: int) -> int:
        """Wait for a counter to be at least `least`: spin, then poll. Returns the time in ns, or STOPPED."""
        while True:
            enough = self._counters.value(counter) >= least
            now = self._clock.now()  # after the look: the wait must not end before the addition
            if enough:
                return now
            if self._stop.is_set():
                return STOPPED
            if now - begin >= WINDOW_NS:
                self._clock.sleep_until(now + COUNTER_POLL_NS)

    def _compute(self, kind: int, begin: int, length: int) -> int:
        """End of a SLEEP, SPIN or MARK item, or STOPPED."""
        if kind == MARK or length <= 0:
            return begin
        if kind == SLEEP:
            return wait_until(self._clock, begin + length, begin, self._stop)
        now = begin
        while now < begin + length:
            if self._stop.is_set():
                return STOPPED
            now = self._clock.now()
        return now


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """What runs the lanes.

    `name`: compiled or python.
    `warning`: what the slower core means; None where the caller asked for it, and for the compiled core.
    """

    name: str
    warning: str | None = None


def choose_core(wanted: str = "auto") -> Core:
    """The core that runs POSIX, STDIO and null lanes and the jitter probe: compiled where it is installed.

    `wanted`: auto, compiled or python; the environment's DXT_REPLAY_CORE decides in place of auto.
    Raises: UsageError for another word; ReplayError when compiled is asked for and not installed.
    """
    by_variable = os.environ.get(CORE_VARIABLE) if wanted == "auto" else None
    wanted = by_variable or wanted
    if wanted not in ("auto", "compiled", "python"):
        raise UsageError(f"unknown core {wanted!r}: {CORE_VARIABLE} is auto, compiled or python")
    if wanted == "python":
        warning = f"{CORE_VARIABLE}=python chose the Python issue loop, {SLOW_LOOP}: unset it"
        return Core(name="python", warning=warning if by_variable else None)
    try:
        import dxt_replay.replay.engine._issue  # noqa: F401
    except ImportError as error:
        if wanted == "compiled":
            raise ReplayError(
                f"the compiled issue loop is not installed ({error}): install again with a C compiler present"
            ) from error
        return Core(
            name="python",
            warning=f"the compiled issue loop is not installed, so the Python one ran, {SLOW_LOOP}: install again "
            "with a C compiler present",
        )
    return Core(name="compiled")


def make_files(
    slots: Sequence[FileSlot], *, backend: Backend | Sequence[Backend] | None = None, core: str = "auto"
) -> FileTable:
    """The table of files of a process, which also decides the core of its lanes.

    `backend`: one back end for all slots, or one for each slot; None for POSIX.
    The core is compiled if `runs_compiled` is true of all back ends and either all or no POSIX back ends are direct.
    Raises the soft limit of open files towards the hard limit where there are more slots.
    Raises: as `choose_core`; ValueError when the numbers of back ends and slots differ.
    """
    chosen = choose_core(core)
    allow_open_files(len(slots))
    one = () if isinstance(backend, Sequence) else (backend or PosixBackend(),)
    each = list(backend) if isinstance(backend, Sequence) else [*one] * len(slots)
    kinds = {*one, *each}
    posix = {type(kind) for kind in kinds if isinstance(kind, PosixBackend)}
    if chosen.name == "compiled" and len(posix) <= 1 and all(map(runs_compiled, kinds)):
        from dxt_replay.replay.engine._issue import CompiledFiles

        return CompiledFiles(slots, backends=[kind.name for kind in each], direct=DirectPosixBackend in posix)
    return PythonFiles(slots, each)


def runs_compiled(backend: Backend) -> bool:
    """Whether the compiled core has this back end: POSIX (direct too), STDIO or null."""
    return type(backend) in (PosixBackend, DirectPosixBackend, StdioBackend, NullBackend)


def make_lane(
    files: FileTable, *, pace: LoopPace, start: StartGate, stop: StopFlag, counters: Counters | None = None
) -> Lane:
    """A lane that uses `files`, in the core of that table. `counters`: those of its WAIT and ADD items."""
    if isinstance(files, PythonFiles):
        return PythonLane(files, pace=pace, start=start, stop=stop, counters=counters)
    from dxt_replay.replay.engine._issue import CompiledFiles, CompiledLane

    if not isinstance(files, CompiledFiles):
        raise TypeError(f"{type(files).__name__} does not come from make_files")
    return CompiledLane(files, pace=pace, start=start, stop=stop, counters=None if counters is None else counters.cells)


def core_of(lane: Lane) -> str:
    """The core of a lane: compiled or python."""
    return "python" if isinstance(lane, PythonLane) else "compiled"


def allow_open_files(count: int) -> None:
    """Raise the soft limit of open files towards the hard limit, so that `count` more files can be open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + 256  # what the program itself has open
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and wanted > soft:
        with suppress(OSError, ValueError):  # the kernel's own limit (fs.nr_open) is lower: files are closed earlier
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
