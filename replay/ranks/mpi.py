"""The processes of one replay: a single process, or those of an MPI job, through mpi4py.

mpi4py is imported when this process joins the others, the compiled core of a replay when counters are made: commands
that only ask whether a launcher started them load neither.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from dxt_replay.replay.engine.clock import ARRIVALS, COUNTER_WORDS, OWN_ARRIVALS, Counters, StopFlag
from dxt_replay.replay.ranks.death_watch import DeathWatch
from dxt_replay.traces.errors import DxtReplayError, MissingDependencyError, ReplayError, UsageError
from dxt_replay.traces.units import format_bytes
from dxt_replay.traces.workers import Workers

T = TypeVar("T")

WAIT_PERIOD_S = 0.01  # between two looks of a process that waits for process 0 to finish
POLL_S = 20e-6  # Seconds between two looks for arrivals: the delay that a relay adds to the latency of the network
_VARIABLES = ("PMI_RANK", "PMI_SIZE", "PMIX_RANK", "OMPI_COMM_WORLD_SIZE", "MPI_LOCALNRANKS", "PALS_RANKID")
"""Set by the launchers of MPICH, Intel MPI, Cray and Open MPI in the processes that they start."""

SHARED_MEMORY = "/dev/shm"
SHARED_BYTES, SHARED_BYTES_EACH = 16 << 20, 6 << 20
"""Bytes of shared memory that MPICH 4.3 was seen to need, and for each process: 2 died with 16 MiB, 8 with 32 MiB."""

_SIZE_VARIABLES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE")

LAST_WORDS_S = 0.2  # for a message that may be the last one to reach the launcher
OTHERS_WAIT_S = 2.0  # for those that do not write it: the first that dies in the start of MPI ends all
_CLOCK_ROUNDS = 30
MOST_START_S = 600  # then a process gives up waiting for the others in the start of MPI: one died before it


def is_launched(environment: Mapping[str, str] = os.environ) -> bool:
    return any(variable in environment for variable in _VARIABLES)


class NodeLeaders(NamedTuple):
    """mpi4py's communicator of the first process of each of several nodes, and whether several threads may call MPI at
    once (MPI_THREAD_MULTIPLE)."""

    channel: Any
    any_thread: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedCounters:
    """The counters that the processes of a node share. `base`: index of the first that belongs to this process alone.

    `leaders`: on the first process of each node where there are several nodes, else None.
    `free`: releases the memory and the communicator after the last use; collective.
    """

    counters: Counters
    base: int
    leaders: NodeLeaders | None = None
    free: Callable[[], None] = lambda: None


class Communicator:
    """The processes of a replay, by itself a single one. Every process must make the calls named collective."""

    rank = 0  # of this process
    size = 1  # processes

    def barrier(self) -> None:
        """Wait until all processes have called this. Collective."""

    def gather(self, value: Any) -> list[Any] | None:
        """The values of all processes by rank on process 0, None on the others. Collective."""
        return [value]

    def broadcast(self, value: Any) -> Any:
        """The value of process 0, on all processes. Collective."""
        return value

    def agree(self, error: DxtReplayError | None) -> None:
        """Raise on every process when any of them met an error, so that no process waits for one that has given up."""
        if error is not None:
            raise known_to_all(error)

    def common_start_ns(self, margin_ns: int) -> int:
        """One instant for all, `margin_ns` from now, in ns of this process's CLOCK_MONOTONIC. Collective."""
        return time.monotonic_ns() + margin_ns

    def first_on_node(self) -> bool:
        return True

    def processes_on_node(self) -> int:
        return 1

    def counters(self, own: int, common: int) -> SharedCounters:
        """Counters at zero: `common` counters that all processes of the node use, then `own` counters of this process.

        Collective, as is `SharedCounters.free`. Raises: ReplayError where processes cannot share counters.
        """
        return SharedCounters(counters=Counters.of(common + own), base=common)

    def tell_stop(self) -> None:
        """Notify the other processes that the run is to stop, without waiting for them. At most once a run."""

    def told_to_stop(self) -> bool:
        """Whether such a notice has come from another process; does not wait."""
        return False

    def arrive(self) -> Callable[[], bool]:
        """Arrive at a barrier without waiting there; the function returned says whether all have arrived. Collective.

        A process that waits in this way still notices a signal, and a notice of another process.
        """
        return lambda: True

    def end_of_notices(self) -> bool:
        """Whether any process sent a notice to stop. Receives all notices, so that a run can follow. Collective."""
        return False

    def watched(self) -> AbstractContextManager[None]:
        """While the context lasts, the death of a process is reported with its name. Collective."""
        return nullcontext()

    def unwatch(self) -> None:
        """No longer report the death of processes: they are about to be ended. Any thread may call it."""

    def absent(self) -> list[str]:
        """The other processes of this node that do not run (stopped, or held in the kernel), while `watched`."""
        return []

    def abort(self) -> None:
        raise SystemExit(1)

    def leave(self) -> None:
        """End the communication, which takes nothing more. Collective."""


Solo = Communicator


def is_known_to_all(error: DxtReplayError) -> bool:
    """Whether `agree` raised this error: all processes then know of it, and none waits for this process."""
    return getattr(error, "known_to_all", False)


def known_to_all(error: DxtReplayError) -> DxtReplayError:
    error.known_to_all = True
    return error


def together(comm: Communicator, work: Callable[[], T]) -> T:
    """Do `work` on every process, and return this process's result once all have succeeded. Collective.

    Raises: DxtReplayError on all processes when the work failed on any.
    """
    try:
        made = work()
    except DxtReplayError as error:
        comm.agree(error)
        raise
    comm.agree(None)
    return made


def first_does(comm: Communicator, work: Callable[[], T]) -> T:
    """Do `work` on process 0, and return its result on all processes. Collective.

    The other processes sleep meanwhile. If they were blocked in MPI, they would keep a processor busy and would not
    notice signals. Raises: DxtReplayError on all processes when the work failed.
    """
    error: DxtReplayError | None = None
    made: T | None = None
    try:
        made = work() if comm.rank == 0 else None
    except DxtReplayError as met:
        error = met
    all_there = comm.arrive()
    while not all_there():
        time.sleep(WAIT_PERIOD_S)
    comm.agree(error)
    found: T = comm.broadcast(made)
    return found


def share_of(ranks: Sequence[int], process: int, processes: int) -> tuple[int, ...]:
    """The recorded ranks that `process` replays. The shares are contiguous, and their sizes differ by at most one."""
    quotient, rest = divmod(len(ranks), processes)
    begin = process * quotient + min(process, rest)
    return tuple(ranks[begin : begin + quotient + (process < rest)])


@contextmanager
def _ended_after(seconds: int) -> Iterator[None]:
    """SIGALRM ends this process if the work lasts longer, even where no signal handler of Python can run."""
    if signal.getsignal(signal.SIGALRM) is not signal.SIG_DFL or signal.getitimer(signal.ITIMER_REAL)[0]:
        yield  # somebody else's alarm
        return
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


class MpiWorld(Communicator):
    """The processes of MPI_COMM_WORLD, through mpi4py; see `Communicator`.

    Raises: MissingDependencyError without mpi4py or an MPI library.
    """

    def __init__(self) -> None:
        # A signal in the start of MPI would leave its memory in /dev/shm, whose name is taken away behind it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            with _ended_after(MOST_START_S):
                from mpi4py import MPI

                MPI.COMM_WORLD.Barrier()
                _unlink_shared_memory()
        except (ImportError, RuntimeError) as error:
            raise MissingDependencyError(
                f"mpi4py with an MPI library ({error})",
                "a replay under mpiexec",
                "pip install 'dxt-replay[mpich]' (`dxt-replay doctor` shows what there is)",
            ) from error
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._mpi = MPI
        self._world = MPI.COMM_WORLD
        self._notices = self._world.Dup()  # messages of collective calls must not be mistaken for notices
        self._sent: list[Any] = []
        self._told = False
        self._node: dict[int, str] = {}
        self._watch: DeathWatch | None = None
        self.rank: int = self._world.Get_rank()
        self.size: int = self._world.Get_size()

    def barrier(self) -> None:
        self._world.Barrier()

    def gather(self, value: Any) -> list[Any] | None:
        gathered: list[Any] | None = self._world.gather(value, root=0)
        return gathered

    def broadcast(self, value: Any) -> Any:
        return self._world.bcast(value, root=0)

    def agree(self, error: DxtReplayError | None) -> None:
        messages: list[str | None] = self._world.allgather(None if error is None else str(error))
        if error is not None:
            raise known_to_all(error)
        for process, message in enumerate(messages):
            if message is not None:
                raise known_to_all(ReplayError(f"process {process}: {message}"))

    def common_start_ns(self, margin_ns: int) -> int:
        offset_ns = self._clock_offset_ns()
        self.barrier()
        start = self._world.bcast(time.monotonic_ns() + margin_ns if self.rank == 0 else None, root=0)
        return int(start) + offset_ns

    @cached_property
    def _nodes(self) -> list[str]:
        """The node of each process. Collective at its first use."""
        nodes: list[str] = self._world.allgather(node_id())
        return nodes

    def first_on_node(self) -> bool:
        return self._nodes.index(self._nodes[self.rank]) == self.rank

    def processes_on_node(self) -> int:
        return self._nodes.count(self._nodes[self.rank])

    def counters(self, own: int, common: int) -> SharedCounters:
        first = self._nodes.index(self._nodes[self.rank])
        several = len(set(self._nodes)) > 1
        node: Any = self._world.Split(color=first, key=self.rank)
        leads: Any = self._world.Split(
            color=0 if first == self.rank and several else self._mpi.UNDEFINED, key=self.rank
        )
        shared = own + (common if node.Get_rank() == 0 else 0)
        line = COUNTER_WORDS * np.dtype(np.int64).itemsize
        window: Any = self._mpi.Win.Allocate_shared(shared * line, line, comm=node)
        sizes = node.allgather(shared)
        memory, _ = window.Shared_query(0)  # the parts of a node's processes follow each other in memory
        content: Any = self._mpi.buffer.fromaddress(memory.address, sum(sizes) * line)
        cells = np.frombuffer(content, dtype=np.int64).reshape(-1, COUNTER_WORDS)
        begin = sum(sizes[: node.Get_rank()])
        cells[begin : begin + shared] = 0
        node.Barrier()
        node.Free()

        def free() -> None:
            window.Free()
            if leads != self._mpi.COMM_NULL:
                leads.Free()

        leaders = None
        if leads != self._mpi.COMM_NULL:
            leaders = NodeLeaders(channel=leads, any_thread=self._mpi.Query_thread() >= self._mpi.THREAD_MULTIPLE)
        return SharedCounters(counters=Counters(cells), base=begin + shared - own, leaders=leaders, free=free)

    def tell_stop(self) -> None:
        if not self._sent:
            others = (other for other in range(self.size) if other != self.rank)
            self._sent = [self._notices.isend(None, dest=other) for other in others]

    def told_to_stop(self) -> bool:
        # Only probe; `end_of_notices` receives the notices, because it knows their number.
        self._told = self._told or bool(self._notices.Iprobe(source=self._mpi.ANY_SOURCE))
        return self._told

    def arrive(self) -> Callable[[], bool]:
        request = self._notices.Ibarrier()
        return lambda: bool(request.Test())

    def end_of_notices(self) -> bool:
        tellers = self._world.allgather(bool(self._sent))
        for teller, told in enumerate(tellers):
            if told and teller != self.rank:
                self._notices.recv(source=teller)
        for request in self._sent:
            request.wait()
        self._sent, self._told = [], False
        return any(tellers)

    @contextmanager
    def watched(self) -> Iterator[None]:
        mine = (node_id(), os.getpid(), f"process {self.rank} of {self.size} (PID {os.getpid()})")
        everyone = self._world.allgather(mine)
        self._node = {pid: name for node, pid, name in everyone if node == mine[0]}
        if self.first_on_node():
            self._watch = DeathWatch(self._node)
        try:
            yield
        finally:
            self.unwatch()

    def unwatch(self) -> None:
        if self._watch is not None:
            self._watch.dismiss()

    def absent(self) -> list[str]:
        return [f"{name} {_NOT_RUNNING[state]}" for pid, name in self._node.items() if (state := _state(pid)) in "TtDZ"]

    def abort(self) -> None:
        self._world.Abort(2)

    def leave(self) -> None:
        self._mpi.Finalize()

    def _clock_offset_ns(self) -> int:
        """CLOCK_MONOTONIC of this process minus that of process 0: 0 on one node, else by the quickest round trip."""
        nodes = self._nodes
        if self.rank == 0:
            for other in range(1, self.size):
                if nodes[other] != nodes[0]:
                    for _ in range(_CLOCK_ROUNDS):
                        self._world.recv(source=other)
                        self._world.send(time.monotonic_ns(), dest=other)
            return 0
        if nodes[self.rank] == nodes[0]:
            return 0
        best_trip, offset = None, 0
        for _ in range(_CLOCK_ROUNDS):
            sent = time.monotonic_ns()
            self._world.send(None, dest=0)
            remote = self._world.recv(source=0)
            received = time.monotonic_ns()
            if best_trip is None or received - sent < best_trip:
                best_trip, offset = received - sent, (sent + received) // 2 - remote
        return offset


def connect(environment: Mapping[str, str] = os.environ) -> Communicator:
    """The processes of the MPI job where an MPI launcher started this process, else this process alone.

    Raises: MissingDependencyError under a launcher when mpi4py or its MPI library is absent; ReplayError when the
    launcher belongs to another MPI library, so that each process would replay everything.
    """
    if not is_launched(environment):
        return Solo()
    first = environment.get("MPI_LOCALRANKID", environment.get("PMI_RANK", "0")) == "0"
    if (words := _lack_of_shared_memory(environment)) is not None:
        if first:
            with suppress(OSError):
                os.write(2, words.encode())
        time.sleep(LAST_WORDS_S if first else OTHERS_WAIT_S)
    world = MpiWorld()
    launched = [int(environment[name]) for name in _SIZE_VARIABLES if environment.get(name, "").isdigit()]
    if launched and max(launched) != world.size:
        raise ReplayError(
            f"the launcher started {max(launched)} processes and MPI sees {world.size}: mpiexec and mpi4py are of "
            "different MPIs; use the mpiexec that belongs to mpi4py's MPI library (`dxt-replay doctor` shows both)"
        )
    return world


def _unlink_shared_memory() -> None:
    """Take away the name of MPICH's memory, which all processes have mapped by now: an abort would leave it there."""
    words = (line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines())
    for path in {word for word in words if word.startswith(f"{SHARED_MEMORY}/mpich_shm_")}:
        with suppress(OSError):  # another process was first
            os.unlink(path)


def _lack_of_shared_memory(environment: Mapping[str, str], folder: str = SHARED_MEMORY) -> str | None:
    """The warning that MPI may end with SIGBUS, which no process can report afterwards; None where there is enough."""
    counts = [
        environment[name] for name in ("MPI_LOCALNRANKS", *_SIZE_VARIABLES) if environment.get(name, "").isdigit()
    ]
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    needed = SHARED_BYTES + SHARED_BYTES_EACH * int(counts[0] if counts else 1)
    free = found.f_bavail * found.f_frsize
    if free >= needed:
        return None
    return (
        f"dxt-replay: warning: {folder} has {format_bytes(free)} free, and MPI may need {format_bytes(needed)} of "
        "it on this machine: if processes end with a bus error (SIGBUS, status 7 or 135), make it larger (docker "
        "run --shm-size=1g) or start fewer of them; `dxt-replay doctor` shows its room\n"
    )


_NOT_RUNNING = {
    "T": "is stopped (by a signal)",
    "t": "is stopped (by a debugger)",
    "D": "is held in the kernel by a call that does not return",
    "Z": "has ended",
}
"""State of a process in /proc/PID/stat (proc(5)) -> what it means for those who wait for it."""


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "Z"


def node_id() -> str:
    """A name for the node. Processes with the same name share one CLOCK_MONOTONIC, which belongs to a boot."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return boot.read_text() if boot.exists() else os.uname().nodename


@contextmanager
def rank_workers(count: int | None) -> Iterator[Workers | None]:
    """Workers for the first process of the job; None for the others, once they have worked.

    count: what the user asked for; where no job was launched, so many processes of this machine.
    Raises: UsageError for a `count` in a job, whose size is its own; as `connect`.
    """
    size = 1
    if is_launched():
        size = connect().size
    if size == 1:
        with Workers(count) as workers:
            yield workers
        return
    if count is not None:
        raise UsageError(f"--workers {count}: the {size} processes of mpiexec are the workers: leave the option out")
    from mpi4py import MPI
    from mpi4py.futures import MPICommExecutor

    if MPI.COMM_WORLD.Get_rank():
        # If one died of Ctrl-C, the launcher would kill the first process before that has removed what it wrote.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    with MPICommExecutor(MPI.COMM_WORLD, root=0) as executor:
        yield Workers(size - 1, executor=executor) if isinstance(executor, Executor) else None


class MeetingRelay:
    """Sends this node's arrivals at collectives to the other nodes, and adds theirs to the counter of the ranks here.

    The first process of each node has a relay, which calls MPI from a thread of its own.
    `ranks`: the number of ranks that meet.
    `stop`: ends the lanes of this process. A relay that fails sets it: nothing would wake the lanes any more.
    Raises: ReplayError when MPI may not be called from several threads at once.
    """

    def __init__(self, leaders: NodeLeaders, counters: Counters, ranks: int, stop: StopFlag) -> None:
        if not leaders.any_thread:
            raise ReplayError(
                "ranks on several nodes that meet at collectives need MPI_THREAD_MULTIPLE, which this MPI library did "
                "not grant: use a library that does (and MPI4PY_RC_THREAD_LEVEL=multiple), run all processes on one "
                "node, or replay with --pace think"
            )
        self._channel, self._counters, self._ranks, self._stop = leaders.channel, counters, ranks, stop
        self._sent = 0
        self._ended = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="meeting-relay", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread. Arrivals that other nodes have not sent yet are dropped."""
        self._ended.set()
        self._thread.join()

    def check(self) -> None:
        """Raises: ReplayError when the relay failed and therefore stopped the lanes of this process."""
        if self._failure is not None:
            raise ReplayError(
                f"the relay of collectives between the nodes failed ({self._failure}), so ranks would have waited for "
                "ever: the replay was ended; see the MPI library's messages, or run all processes on one node"
            ) from self._failure

    def _run(self) -> None:
        try:
            while not self._ended.is_set():
                self._send()
                while self._channel.iprobe():
                    self._counters.add(ARRIVALS, self._channel.recv(), self._ranks, time.monotonic_ns())
                time.sleep(POLL_S)
            self._send()  # a node that is done must not leave the others waiting for it
        except Exception as error:  # whatever MPI raised: the feeder thread reports it (`check`)
            self._failure = error
            self._stop.set()

    def _send(self) -> None:
        arrived = self._counters.value(OWN_ARRIVALS)
        if arrived == self._sent:
            return
        for other in range(self._channel.Get_size()):
            if other != self._channel.Get_rank():
                self._channel.send(arrived - self._sent, dest=other)
        self._sent = arrived
