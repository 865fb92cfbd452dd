"""The interface of all tracers that recorded operations, as a merge uses it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dxt_replay.profiler_merge.profiles.span_parts import SpanColumns
from dxt_replay.profiler_merge.tracers.traced_rows import TracedRows


@dataclass(slots=True, kw_only=True, eq=False)
class TracedProcess:
    """A process in a trace.

    number: its index among all processes. pid: from the trace.
    attached: whether its beginning was not traced, so that `pid` may be the id of any of its threads.
    trace: number of its trace, if each trace of a job has processes of its own.
    host: the machine, "" if the trace does not say it.
    parent: the process that forked it, None if that was not traced.
    exe: the program that it ran last, "" if no exec was traced.
    executed: whether it ran a program of its own. operations: on files that are kept.
    rank: from the trace, None if it has none.
    """

    number: int
    pid: int
    trace: int
    started_ns: int
    parent: TracedProcess | None = None
    exe: str = ""
    executed: bool = False
    operations: int = 0
    rank: int | None = None
    host: str = ""
    attached: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TracedRank:
    """A rank: its own process first, then its workers and other children, by start."""

    processes: tuple[TracedProcess, ...]

    @property
    def own(self) -> TracedProcess:
        return self.processes[0]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TracedJob:
    """A job in a tracer's files.

    files: the traces themselves.
    start_ns, end_ns: CLOCK_REALTIME of the first and the last instant in the trace.
    clock_ns: offset from its times to CLOCK_REALTIME, as (least, most).
    paths: exact path by number of the file. sizes: the greatest size seen, by number.
    mapped: files with parts mapped into memory, whose reads are page faults, which no trace holds.
    received: bytes received through sockets from outside the job, by "address:port".
    received_of_unknown: bytes received through sockets from unknown senders.
    hidden: the processes that moved data through calls that the trace does not show ("cp by io_uring").
    suspect: file -> operations whose offset may be wrong.
    left_out: files of `paths` without a kept operation, such as folders of others.
    spans: of a rank, in CLOCK_REALTIME, if the program was annotated.
    complete: whether the trace surely holds all I/O.
    tids: the kernel's id of each thread, by the number that `rows` gives it; below 1 if the trace does not say it.
    """

    files: tuple[Path, ...]
    ranks: tuple[TracedRank, ...]
    start_ns: int
    end_ns: int
    clock_ns: tuple[int, int]
    rows: TracedRows
    paths: Sequence[bytes]
    complete: bool
    tids: Sequence[int]
    sizes: Mapping[int, int] = field(default_factory=dict)
    mapped: frozenset[int] = frozenset()
    received: Mapping[str, int] = field(default_factory=dict)
    received_of_unknown: int = 0
    hidden: tuple[str, ...] = ()
    suspect: Mapping[int, int] = field(default_factory=dict)
    left_out: frozenset[int] = frozenset()
    spans: Mapping[int, SpanColumns] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def nprocs(self) -> int:
        return len(self.ranks)

    def of_rank(self, rank: int) -> tuple[np.ndarray, list[tuple[TracedProcess, int]]]:
        """The operations of a rank and its workers, as `TRACED_ROW` in order of start; `thread` counts from 0. Then the
        process and the id (as in `tids`) of each of these threads.

        The threads of the rank's own process come first, then those of its workers, each by first appearance.
        """
        processes = self.ranks[rank].processes
        rows = self.rows.of_processes([process.number for process in processes])
        if self.left_out:
            rows = rows[~np.isin(rows["file"], list(self.left_out))]
        place = np.zeros(1 + max(process.number for process in processes), dtype=np.int32)
        place[[process.number for process in processes]] = np.arange(len(processes))
        threads, first, of_row = np.unique(rows["thread"], return_index=True, return_inverse=True)
        order = np.lexsort((first, place[rows["process"][first]]))
        lane = np.empty(len(threads), dtype=np.int32)
        lane[order] = np.arange(len(threads), dtype=np.int32)
        rows["thread"] = lane[of_row.reshape(-1)]
        own = place[rows["process"][first[order]]].tolist()
        known = [
            (processes[which], self.tids[thread]) for which, thread in zip(own, threads[order].tolist(), strict=True)
        ]
        return rows, known
