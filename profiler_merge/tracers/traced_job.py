"""The interface of all tracers that recorded operations: what the reader of a trace returns, and a merge uses."""

from __future__ import annotations

import os
import tempfile
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np

from dxt_replay.profiler_merge.profiles.span_parts import SpanColumns

TRACED_ROW = np.dtype(
    [
        ("process", np.int32),
        ("thread", np.int32),
        ("file", np.int32),
        ("op", np.int8),
        ("api", np.int8),
        ("offset", np.int64),
        ("length", np.int64),
        ("start_ns", np.int64),
        ("end_ns", np.int64),
        ("other_file", np.int32),
        ("open_flags", np.int16),
    ]
)
"""One operation. `process`, `thread`, `file`: numbers that the reader assigns. `other_file`: number of a rename's new
name, else -1. `open_flags`: -1 where they are not known. Times are CLOCK_REALTIME; the rest is as in
`traces.schema.OPS_SCHEMA`."""

_BLOCK_ROWS = 1 << 16
_MOST = 1 << 62
"""Limit that all offsets, lengths and times stay below."""


class TracedRows:
    """Takes operations one at a time, in the order of a trace, and returns those of processes.

    One block of rows is in memory; the others are in a temporary file without a name, which ends with the object.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the object)
        self._pending: list[tuple[int, ...]] = []
        self._pieces: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self._bytes = 0
        self._flushed = 0

    def add(self, row: tuple[int, ...]) -> int:
        """Keep one operation; values in the order of TRACED_ROW. Returns its number.

        Raises: ValueError for an impossible one."""
        if not (-1 <= row[5] < _MOST and 0 <= row[6] < _MOST and 0 <= row[7] <= row[8] < _MOST):
            raise ValueError(row)
        if len(self._pending) >= _BLOCK_ROWS:
            self._flush()
        self._pending.append(row)
        return self._flushed + len(self._pending) - 1

    def add_open_flags(self, number: int, flags: int) -> None:
        """Add flags to the open with this number, unless it is already written."""
        place = number - self._flushed
        if place >= 0:
            row = self._pending[place]
            self._pending[place] = (*row[:-1], max(row[-1], 0) | flags)

    def of_processes(self, processes: Collection[int]) -> np.ndarray:
        """All operations of these processes as TRACED_ROW (n,), by start, the longest first where several start."""
        self._flush()
        places = sorted(place for process in processes for place in self._pieces.get(process, ()))
        rows = np.empty(sum(size for _, size in places) // TRACED_ROW.itemsize, dtype=TRACED_ROW)
        bytes_of_rows, filled = rows.view(np.uint8).data, 0
        for at, size in places:
            os.preadv(self._file.fileno(), [bytes_of_rows[filled : filled + size]], at)
            filled += size
        # The sort is stable, so rows with equal times stay in the order of the trace.
        order = np.lexsort((-rows["end_ns"], rows["start_ns"]))
        return rows if bool((order[1:] > order[:-1]).all()) else rows[order]

    def _flush(self) -> None:
        if not self._pending:
            return
        rows = np.array(self._pending, dtype=TRACED_ROW)
        self._flushed += len(self._pending)
        self._pending.clear()
        rows = rows[np.argsort(rows["process"], kind="stable")]
        self._file.write(rows.tobytes())
        self._file.flush()
        cuts = [0, *(np.flatnonzero(np.diff(rows["process"])) + 1).tolist(), len(rows)]
        for first, last in pairwise(cuts):
            size = (last - first) * TRACED_ROW.itemsize
            self._pieces[int(rows["process"][first])].append((self._bytes + first * TRACED_ROW.itemsize, size))
        self._bytes += len(rows) * TRACED_ROW.itemsize


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
        own = place[rows["process"][first]]
        order = np.lexsort((first, own))
        lane = np.empty(len(threads), dtype=np.int32)
        lane[order] = np.arange(len(threads), dtype=np.int32)
        rows["thread"] = lane[of_row.reshape(-1)]
        return rows, [(processes[own[each]], self.tids[threads[each]]) for each in order.tolist()]
