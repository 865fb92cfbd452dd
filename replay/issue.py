"""The timed issue loop: what a lane does with its operations, in Python; and the choice of core.

`PythonLane` specifies the loop and runs every back end; `replay._issue.CompiledLane` does the same for POSIX and
null without the interpreter lock. One process has one table of files (`make_files`) and a lane (`make_lane`) for
each recorded thread; a lane's `run` is the body of a thread, and one feeder thread calls the rest of it.

All stamps are CLOCK_MONOTONIC, as ns from the run's start t0. For each item, in order:
1. prepare: open the file at its first use and make room for the data. This is outside of the latency; when it
   takes long, the item begins late.
2. wait until the item is due. One that is late already begins at once. Shortly before a read that was waited for, its
   buffer is touched: an application uses the data of one read before the next, so its buffer is in the cache.
3. begin = the last read of the clock before the call; the call; end = the clock directly after it.
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

from replay.backends.base import MAX_TRANSFER_BYTES, NO_FILE, Backend, FileFailure, FileSlot, PythonFiles
from replay.backends.null import NullBackend
from replay.backends.posix import PosixBackend
from replay.clock import (
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
from replay.counters import Counters
from replay.items import ADD, MARK, READ, RING_BATCHES, SLEEP, WAIT, WRITE, Batch, Completed, Pace
from traces.errors import ReplayError, UsageError

FEED_POLL_NS = 50_000
GATE_POLL_NS = 200_000
COUNTER_POLL_NS = 50_000
"""How often a Python lane looks at a counter that it waits for; a compiled one is woken."""

CONSUMED_BYTES = 1 << 19
"""Of a read's buffer, touched before it is due: about what a core's own cache holds, and done within the window."""

CACHE_LINE_BYTES = 64

END_OF_FILE_READ_BYTES = 4096
"""Asked of a read that is recorded with length 0 at the end of its file."""

CORE_VARIABLE = "DXT_REPLAY_CORE"


class FileTable(Protocol):
    """The files of one process, shared by its lanes; what it holds open is described in `PythonFiles`."""

    @property
    def core(self) -> str:
        """compiled or python: in what the lanes over it run."""

    def __len__(self) -> int: ...

    def close_all(self) -> None:
        """Close every file that no lane holds; the others when their lane gives them back."""

    def failures(self) -> list[FileFailure]:
        """Opens and closes that failed so far, by slot."""


class Lane(Protocol):
    """One thread's operations. `run` in a thread of its own, everything else from the one feeder thread."""

    def submit(self, batch: Batch) -> bool:
        """Queue a batch; False when RING_BATCHES are queued or not collected. Never blocks."""

    def finish(self) -> None:
        """No more batches will come."""

    def collect(self) -> Completed | None:
        """The next batch that is finished or, after a stop, begun; None when it is not there (yet).

        Raises: in the Python lane, what a back end raised beside OSError, once all that was done is collected.
        """

    def run(self) -> None:
        """Wait for the start, then do all items. Returns after `finish` or a stop. May be called once."""

    @property
    def done(self) -> bool:
        """`run` has ended; what `collect` has not returned by its next None, it will never."""

    @property
    def items_done(self) -> int:
        """Items done so far, for a display of progress."""

    @property
    def starved_ns(self) -> int:
        """Time in which the lane had nothing queued although its next item was due: the feeder's fault."""


class PythonLane:
    """The specification of a lane, over any back end. Needs 2 to 5 us per item; holds the interpreter lock.

    Reads the clock anew before each call, where the compiled lane, which spends some ns between two items, takes
    the previous item's end.
    """

    def __init__(
        self,
        files: PythonFiles,
        *,
        pace: Pace,
        start: StartGate,
        stop: StopFlag,
        counters: Counters | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._files = files
        self._counters = counters or Counters(np.zeros(0, dtype=np.int64))
        self._backend = files.backend
        self._pace = pace
        self._start = start
        self._stop = stop
        self._clock = clock or MonotonicClock()
        self._queue: deque[Batch] = deque()
        self._finished: deque[Completed] = deque()
        self._uncollected = 0
        self._no_more = False
        self._failure: BaseException | None = None
        self._previous_end = 0
        self._held = -1
        self._uses = 0
        self._file = NO_FILE
        self._buffer = memoryview(bytearray())
        self._ready = 0
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
        except BaseException as error:  # a bug in a back end, or the end of the program: the feeder must see it
            self._failure = error
        finally:
            self._release_file()
            self.done = True

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
            self._clock.sleep_until(now + FEED_POLL_NS)
        batch = self._queue.popleft()
        if waiting_since is not None:
            could_begin = max(waiting_since, self._due(int(batch.due_ns[0])))
            self.starved_ns += max(0, self._clock.now() - could_begin)
        return batch

    def _due(self, due_ns: int) -> int:
        if self._pace is Pace.NONE:
            return self._previous_end
        return due_ns + (self._start.t0_ns if self._pace is Pace.ABSOLUTE else self._previous_end)

    def _issue(self, batch: Batch) -> None:
        """Do the items of a batch, or those before a stop."""
        clock, stop, t0 = self._clock, self._stop, self._start.t0_ns
        rows: list[tuple[int, int, int, int]] = []
        items = (batch.kind, batch.slot, batch.offset, batch.length, batch.due_ns)
        try:
            for kind, slot, offset, length, due_ns in zip(*(column.tolist() for column in items), strict=True):
                if stop.is_set():
                    break
                error = self._prepare(kind, slot, offset, length) if kind <= WRITE else 0
                due = self._due(due_ns)
                begin = clock.now()
                if due - begin > WINDOW_NS and kind == READ and not error and self._backend.moves_data:
                    begin = sleep_near(clock, due, begin, stop)
                    if begin != STOPPED:
                        self._consume(self._asked(kind, offset, length))
                        begin = clock.now()
                if begin != STOPPED and begin < due:
                    begin = wait_until(clock, due, begin, stop)
                if begin == STOPPED:
                    break
                if self._pace is Pace.NONE:
                    due = begin
                if kind <= WRITE:
                    result = -error if error else self._transfer(kind, offset, length)
                    end = clock.now()
                elif kind >= WAIT and not 0 <= slot < len(self._counters):
                    result, end = -errno.EINVAL, begin
                elif kind == WAIT:
                    result, end = 0, self._await(slot, length, begin)
                    if end == STOPPED:
                        break
                elif kind == ADD:
                    self._counters.add(slot, length, offset)
                    result, end = 0, clock.now()
                else:
                    result, end = 0, self._compute(kind, begin, length)
                    if end == STOPPED:
                        break
                rows.append((due - t0, begin - t0, end - t0, result))
                self._previous_end = end
                self.items_done += 1
                if kind <= WRITE:
                    self._uses += 1
                    if self._uses == self._file.left:
                        self._release_file()
        finally:
            table = np.array(rows, dtype=np.int64).reshape(len(rows), 4).T.copy()
            self._finished.append(
                Completed(batch=batch, due_ns=table[0], begin_ns=table[1], end_ns=table[2], result=table[3])
            )

    def _await(self, counter: int, least: int, begin: int) -> int:
        """When a counter was seen to be at least `least`, or STOPPED: looks all the time at first, then polls."""
        while True:
            enough = self._counters.value(counter) >= least
            now = self._clock.now()  # after the look: an end before the addition that it waited for would be a lie
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

    def _release_file(self) -> None:
        """Give the held file back; when all its uses are done, this closes it."""
        self._files.release(self._held, self._uses)
        self._held, self._uses, self._file = -1, 0, NO_FILE

    def _prepare(self, kind: int, slot: int, offset: int, length: int) -> int:
        """Hold the item's file and make room for its data; errno that refuses it, 0 for none."""
        if slot != self._held:
            self._release_file()
            self._held, self._file = slot, self._files.hold(slot)
        if self._file.error:
            return self._file.error
        if offset < 0 or length < 0:
            return errno.EINVAL
        if not self._backend.moves_data:
            return 0
        asked = self._asked(kind, offset, length)
        try:
            if kind == WRITE:
                self._files.payload(asked)
            else:
                self._make_room(asked, self._file.size - offset)
        except MemoryError:
            return errno.ENOMEM
        return 0

    def _make_room(self, asked: int, available: int) -> None:
        """Grow the read buffer, and touch what the read can fill: page faults are no part of a latency."""
        if asked > len(self._buffer):
            self._ready = 0
            self._buffer = memoryview(bytearray())  # the old one goes first: both need not fit
            self._buffer = np.empty(1 << max(asked - 1, 4095).bit_length(), dtype=np.uint8).data
        reach = min(asked, available)
        if reach > self._ready:
            np.asarray(self._buffer)[self._ready : reach] = 0
            self._ready = reach

    def _consume(self, asked: int) -> None:
        """Write to each cache line that the next read fills first, as an application that just used its data would."""
        np.asarray(self._buffer)[: min(asked, self._ready, CONSUMED_BYTES) : CACHE_LINE_BYTES] += 1

    def _asked(self, kind: int, offset: int, length: int) -> int:
        """Bytes to ask for."""
        if not self._backend.moves_data:
            return length
        if kind == READ and length == 0 and 0 <= self._file.size <= offset:
            return END_OF_FILE_READ_BYTES
        return min(length, MAX_TRANSFER_BYTES)

    def _transfer(self, kind: int, offset: int, length: int) -> int:
        """One request to the back end; bytes or -errno."""
        handle, asked = self._file.handle, self._asked(kind, offset, length)
        try:
            if kind == READ:
                return self._backend.read(handle, offset, asked, self._buffer)
            data = self._files.payload(asked) if self._backend.moves_data else self._buffer
            return self._backend.write(handle, offset, asked, data)
        except OSError as error:
            return -(error.errno or errno.EIO)


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """`name`: compiled or python. `warning`: what to tell the user, None when this is the best there is."""

    name: str
    warning: str | None = None


def choose_core(wanted: str = "auto") -> Core:
    """The core that runs POSIX and null lanes and the jitter probe: compiled where it is installed.

    `wanted`: auto, compiled or python; the environment's DXT_REPLAY_CORE decides in place of auto.
    Raises: UsageError for another word; ReplayError when compiled is asked for and not installed.
    """
    wanted = os.environ.get(CORE_VARIABLE) or "auto" if wanted == "auto" else wanted
    if wanted not in ("auto", "compiled", "python"):
        raise UsageError(f"there is no core {wanted!r}: {CORE_VARIABLE} is auto, compiled or python")
    if wanted == "python":
        return Core(name="python")
    try:
        import replay._issue  # noqa: F401
    except ImportError as error:
        if wanted == "compiled":
            raise ReplayError(
                f"the compiled issue loop is not installed ({error}): install again with a C compiler present"
            ) from error
        return Core(
            name="python",
            warning="the compiled issue loop is not installed, the Python loop issues late and holds back other "
            "lanes: install again with a C compiler present",
        )
    return Core(name="compiled")


def make_files(slots: Sequence[FileSlot], *, backend: Backend | None = None, core: str = "auto") -> FileTable:
    """The table of a process's files; `backend` None is POSIX. It fixes the core of the lanes made over it.

    A back end other than PosixBackend and NullBackend always runs in Python lanes. Raises the process's soft limit
    of open files towards its hard limit when there are more slots.
    Raises: as `choose_core`.
    """
    chosen = choose_core(core)
    allow_open_files(len(slots))
    backend = PosixBackend() if backend is None else backend
    if chosen.name == "compiled" and type(backend) in (PosixBackend, NullBackend):
        from replay._issue import CompiledFiles

        return CompiledFiles(slots, moves_data=backend.moves_data)
    return PythonFiles(slots, backend)


def make_lane(
    files: FileTable, *, pace: Pace, start: StartGate, stop: StopFlag, counters: Counters | None = None
) -> Lane:
    """A lane over `files`, in the core of the table. `counters`: what its WAIT and ADD items name."""
    if isinstance(files, PythonFiles):
        return PythonLane(files, pace=pace, start=start, stop=stop, counters=counters)
    from replay._issue import CompiledFiles, CompiledLane

    if not isinstance(files, CompiledFiles):
        raise TypeError(f"{type(files).__name__} does not come from make_files")
    return CompiledLane(files, pace=pace, start=start, stop=stop, counters=None if counters is None else counters.cells)


def allow_open_files(count: int) -> None:
    """Raise the process's soft limit of open files towards its hard limit, to hold `count` beside its own."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + 256  # what the program itself has open
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and wanted > soft:
        with suppress(OSError, ValueError):  # the kernel's own limit (fs.nr_open) is lower: files are closed earlier
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
