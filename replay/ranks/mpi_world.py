"""The processes of an MPI job as a `Communicator`, through mpi4py, which is imported when this process joins them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from dxt_replay.replay.engine.wait_counters import COUNTER_WORDS, Counters
from dxt_replay.replay.ranks.comm import Communicator, NodeLeaders, SharedCounters, Solo, known_to_all
from dxt_replay.replay.ranks.death_watch import DeathWatch
from dxt_replay.replay.ranks.launcher import SHARED_BYTES, SHARED_BYTES_EACH, SHARED_MEMORY, is_launched
from dxt_replay.traces.errors import DxtReplayError, MissingDependencyError, ReplayError
from dxt_replay.traces.units import format_bytes

_SIZE_VARIABLES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE")

LAST_WORDS_S, OTHERS_WAIT_S = 0.2, 2.0
"""How long a message that may be the last one is given to reach the launcher, and how long the processes that do not
write it wait for the one that does: the first that dies in the start of MPI ends all."""

_CLOCK_ROUNDS = 30

MOST_START_S = 600
"""Seconds after which a process gives up waiting for the others in the start of MPI: one of them died before it."""


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


class MpiWorld:
    """The processes of MPI_COMM_WORLD, through mpi4py; see `Communicator`.

    Raises: MissingDependencyError without mpi4py or an MPI library.
    """

    def __init__(self) -> None:
        first = os.environ.get("MPI_LOCALRANKID") or os.environ.get("PMI_RANK") or "0"
        self._cleaner = DeathWatch({os.getpid(): ""} if first == "0" else {})
        try:
            with _ended_after(MOST_START_S):
                from mpi4py import MPI
        except (ImportError, RuntimeError) as error:
            raise MissingDependencyError(
                f"mpi4py with an MPI library ({error})",
                "a replay under mpiexec",
                "pip install 'dxt-replay[mpich]' (`dxt-replay doctor` shows what there is)",
            ) from error
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

    def first_on_node(self) -> bool:
        nodes = self._world.allgather(node_id())
        return nodes.index(nodes[self.rank]) == self.rank

    def processes_on_node(self) -> int:
        return self._world.allgather(node_id()).count(node_id())

    def counters(self, own: int, common: int) -> SharedCounters:
        nodes = self._world.allgather(node_id())
        first = nodes.index(nodes[self.rank])
        several = len(set(nodes)) > 1
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
        self._cleaner.dismiss()

    def _clock_offset_ns(self) -> int:
        """CLOCK_MONOTONIC of this process minus that of process 0: 0 on one node, else by the quickest round trip."""
        nodes = self._world.allgather(node_id())
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
    """The state of a process as a letter, Z where it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "Z"


def node_id() -> str:
    """A name for the node. Processes with the same name share one CLOCK_MONOTONIC, which belongs to a boot."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return boot.read_text() if boot.exists() else os.uname().nodename
