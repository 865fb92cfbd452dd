"""The threads and processes in a trace of system calls, as clone and fork make them (clone(2))."""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from dxt_replay.profiler_merge.tracers.open_files import Descriptors
from dxt_replay.profiler_merge.tracers.strace.strace_lines import Call
from dxt_replay.profiler_merge.tracers.traced_job import TracedProcess

BIRTHS = frozenset((b"clone", b"clone3", b"fork", b"vfork"))
_FLAGS = re.compile(rb"flags=([A-Z_|]+)")


@dataclass(frozen=True, slots=True)
class Birth:
    """A thread made by another one. `shares`: the table of descriptors; `thread`: also the process."""

    parent: int
    shares: bool
    thread: bool


@dataclass(slots=True, eq=False)
class Task:
    """A thread that runs. `number`: among all threads of the job. `tid`: its id, 0 where unknown. `cwd`: its working
    directory, b"" where unknown."""

    number: int
    tid: int
    process: TracedProcess
    descriptors: Descriptors
    cwd: bytes = b""


def births_of(calls: Iterable[Call | int]) -> dict[int, deque[Birth]]:
    """Child -> its births in order, since an id can be reused. `calls`: those of BIRTHS."""
    births: dict[int, deque[Birth]] = defaultdict(deque)
    for call in calls:
        if isinstance(call, Call) and call.result > 0:
            found = _FLAGS.search(call.arguments)
            flags = found[1].split(b"|") if found else []
            thread = b"CLONE_THREAD" in flags
            births[call.result].append(Birth(parent=call.tid, shares=thread or b"CLONE_FILES" in flags, thread=thread))
    return births


@dataclass(slots=True)
class Tasks:
    """The threads of one trace by id. `processes` and `threads`: lists for all traces of the job, which grow.

    followed: whether calls or the end of a thread were seen that another one made.
    """

    births: dict[int, deque[Birth]]
    trace: int
    processes: list[TracedProcess]
    threads: list[Task]
    followed: bool = False
    _alive: dict[int, Task] = field(default_factory=dict)
    _attached: Task | None = None

    def of(self, call: Call) -> Task:
        """The thread of a call. Its first calls may come before the return of the clone that made it."""
        task = self._alive.get(call.tid)
        self.followed = self.followed or call.tid in self.births
        return self._begin(call.tid, call) if task is None else task

    def born(self, call: Call) -> None:
        """Note the return of a clone: the new thread gets the current state of its parent, unless it was seen
        already."""
        if call.result > 0 and call.result not in self._alive and self.births.get(call.result):
            self._begin(call.result, call)

    def ended(self, tid: int) -> None:
        """Note the end of a thread: its id may be reused."""
        self.followed = self.followed or tid in self.births
        self._alive.pop(tid, None)

    def _begin(self, tid: int, call: Call) -> Task:
        births = self.births.get(tid)
        birth = births.popleft() if births else None
        parent = None if birth is None else self._alive.get(birth.parent)
        if birth is None or parent is None:
            task = self._root(tid, call)
        elif birth.thread:
            task = Task(len(self.threads), tid, parent.process, parent.descriptors, parent.cwd)
        else:
            table = parent.descriptors if birth.shares else dict(parent.descriptors)
            task = Task(len(self.threads), tid, self._process(tid, call, parent.process), table, parent.cwd)
        self.threads.append(task)
        self._alive[tid] = task
        return task

    def _root(self, tid: int, call: Call) -> Task:
        """A thread that no traced thread made: the command itself, or one of a process to which strace attached."""
        if call.name == b"execve":
            return Task(len(self.threads), tid, self._process(tid, call, None), {})
        if self._attached is None:
            self._attached = Task(len(self.threads), tid, self._process(tid, call, None), {})
            self._attached.process.attached = True
            return self._attached
        return Task(len(self.threads), tid, self._attached.process, self._attached.descriptors, self._attached.cwd)

    def _process(self, tid: int, call: Call, parent: TracedProcess | None) -> TracedProcess:
        process = TracedProcess(
            number=len(self.processes),
            pid=tid,
            trace=self.trace,
            started_ns=call.start_ns,
            parent=parent,
            exe="" if parent is None else parent.exe,
        )
        self.processes.append(process)
        return process
