"""What the reader of a trace returns: a job's operations, the processes that are its ranks, what is not shown."""

from __future__ import annotations

import re
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import numpy as np

from dxt_replay.profiler_merge.profiles.marks import ranks_of, read_process, trained
from dxt_replay.profiler_merge.profiles.span_parts import SpanColumns
from dxt_replay.traces.errors import LogError
from dxt_replay.traces.gzip_blocks import ExpansionError, unpacked_blocks
from dxt_replay.traces.unseen import recording_of

TRACED_ROW = np.dtype(
    [(name, np.int32) for name in ("process", "thread", "file", "other_file")]
    + [(name, np.int64) for name in ("offset", "length", "start_ns", "end_ns")]
    + [("op", np.int8), ("api", np.int8), ("open_flags", np.int16)]
)
"""One operation. `process`, `thread`, `file`: numbers that the reader assigns. `other_file`: number of a rename's new
name, else -1. `open_flags`: -1 where they are not known. Times are CLOCK_REALTIME; the rest is as in
`traces.schema.OPS_SCHEMA`."""

MOST = 1 << 62
"""Limit that all offsets, lengths and times stay below."""
_BLOCK_ROWS = 1 << 16
_BLOCK_BYTES = _LONGEST_LINE = 1 << 20

_LAUNCHER = re.compile(
    r"(mpiexec|mpirun|orterun|orted|prterun|prted|prun|srun|jsrun|aprun|hydra_\w+|pmi_proxy|slurmstepd|palsd|torchrun"
    r"|horovodrun|accelerate|deepspeed)([.\-]\w+)?"
)
_RANK_IN_NAME = re.compile(r"rank[-_.]?(\d+)|[-_.](\d+)[-_]of[-_]\d+", re.IGNORECASE)


class TracedRows:
    """Takes operations in the order of a trace; one block of them is in memory, the others are in an unnamed file."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the object)
        self._pending: list[tuple[int, ...]] = []
        self._flushed = 0
        self._by_process: tuple[np.ndarray, np.ndarray] | None = None

    def add(self, row: tuple[int, ...]) -> int:
        """Keep an operation (TRACED_ROW). Returns its number. Raises: ValueError for an impossible one."""
        if not (-1 <= row[4] < MOST and 0 <= row[5] < MOST and 0 <= row[6] <= row[7] < MOST):
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
        if not self._flushed:
            return np.empty(0, dtype=TRACED_ROW)
        rows = np.memmap(self._file, dtype=TRACED_ROW, mode="r", shape=(self._flushed,))
        if self._by_process is None:
            order = np.argsort(rows["process"], kind="stable")
            self._by_process = order, rows["process"][order]
        order, process = self._by_process
        cuts = [slice(*np.searchsorted(process, (each, each + 1))) for each in processes]
        found = rows[np.sort(np.concatenate([order[cut] for cut in cuts]))]
        # The sort is stable, so rows with equal times stay in the order of the trace.
        order = np.lexsort((-found["end_ns"], found["start_ns"]))
        return np.asarray(found if (order[1:] > order[:-1]).all() else found[order])

    def _flush(self) -> None:
        np.array(self._pending, dtype=TRACED_ROW).tofile(self._file)
        self._flushed += len(self._pending)
        self._pending.clear()


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
    tids: the kernel's id of each thread, by its number in the rows; below 1 if the trace does not say it.
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


# A trace has only the tree of processes. Each traced command is a rank, together with its descendants. If it starts
# ranks itself (mpiexec, torchrun), the programs below the launcher are the ranks.


def rank_processes(
    processes: Sequence[TracedProcess], names: Sequence[Path]
) -> tuple[tuple[TracedRank, ...], list[str]]:
    """The ranks in order, and warnings. `names`: the first file of each trace, by `TracedProcess.trace`.

    The processes of a recording that marked a training loop are its ranks, if there are several, and have the ranks in
    their marks. Else the order is that of the rank numbers in the trace; without them, of `rank0`, `0-of-8` ... in the
    file names; without those, of the starts.
    """
    folders = dict.fromkeys(filter(None, map(recording_of, names)))
    marks = [read_process(files[0]) for each in folders for files in ranks_of(sorted(each.glob("profile/*.marks")))]
    loops = {each.pid: each.rank if each.rank >= 0 else None for each in marks}
    marked = [process for process in processes if process.pid in loops]
    # Programs that a script runs one after the other are of one rank, that of the longest training.
    times = {each.pid: trained(each) for each in marks} if len(marked) > 1 and {*loops.values()} == {None} else {}
    _, _, begin, end = max(times.values(), default=(False, 0, 0, 0))
    apart = [each for each in marked if times and (times[each.pid][3] <= begin or times[each.pid][2] >= end)]
    children: dict[int, list[TracedProcess]] = {process.number: [] for process in processes}
    for process in processes:
        if process.parent is not None:
            children[process.parent.number].append(process)

    def tree(first: TracedProcess) -> list[TracedProcess]:
        """A process and all below it, by start."""
        found = [first]
        for process in found:
            found += children[process.number]
        return [first, *sorted(found[1:], key=lambda process: (process.started_ns, process.number))]

    firsts = [process for process in marked if process not in apart]
    if len(marked) < 2:
        firsts = []
        for root in processes:
            firsts += [] if root.parent is not None else _below_launchers(tree(root), tree)
    firsts.sort(key=lambda process: (process.started_ns, process.pid))
    numbers = [loops[process.pid] if len(marked) > 1 else process.rank for process in firsts]
    if None in numbers:
        found = [_RANK_IN_NAME.search(names[process.trace].name) for process in firsts]
        numbers = [int(each[1] or each[2]) if each else None for each in found]
    known = [number for number in numbers if number is not None]
    is_numbered = len(set(known)) == len(firsts)
    if is_numbered:
        firsts = [firsts[place] for place in sorted(range(len(firsts)), key=known.__getitem__)]
    beside = [process for each in apart for process in tree(each)]
    trees = ([*tree(first), *(beside if times.get(first.pid, ())[2:] == (begin, end) else ())] for first in firsts)
    ranks = tuple(TracedRank(processes=tuple(dict.fromkeys(each))) for each in trees)

    warnings = []
    kept = {process.number for rank in ranks for process in rank.processes}
    lost = sum(process.operations for process in processes if process.number not in kept)
    if lost:
        warnings.append(f"{lost} operations of launchers, and of programs beside the ranks, are left out")
    if is_numbered and sorted(known) != list(range(len(ranks))):
        shown = ", ".join(map(str, sorted(known)[:8])) + (" ..." if len(known) > 8 else "")
        warnings.append(
            f"there are traces of rank {shown} alone: they become ranks 0 to {len(ranks) - 1} of the capture, which "
            "lacks the other ranks"
        )
    if len(ranks) > 1 and not is_numbered:
        warnings.append(
            "the trace does not number its ranks, so they are numbered by start time. Put rank0, rank1 ... into the "
            "names of the files to number them"
        )
    return ranks, warnings


def _below_launchers(
    processes: list[TracedProcess], tree: Callable[[TracedProcess], list[TracedProcess]]
) -> list[TracedProcess]:
    """The ranks below the launchers of a tree: of the first programs below each, those of the program that works most.
    The root alone if the tree has no launcher."""

    def launches(process: TracedProcess) -> bool:
        return process.executed and _LAUNCHER.fullmatch(PurePosixPath(process.exe).name) is not None

    if not any(map(launches, processes)):
        return processes[:1]
    found = []
    for process in processes:
        above = process.parent
        while above is not None and not above.executed:
            above = above.parent
        if process.executed and not launches(process) and above is not None and launches(above):
            found.append(process)
    work: Counter[str] = Counter()
    for process in found:
        work[process.exe] += 1 + sum(each.operations for each in tree(process))
    return [process for process in found if process.exe == work.most_common(1)[0][0]]


# The lines of a tracer's text file, plain or gzipped, in bounded memory, complete or cut off.


@dataclass(slots=True)
class Damage:
    """Number of damaged lines, and names of files that end too early (`cut`) or whose compressed data do not match
    their checksum, which follows the data (`damaged`)."""

    lines: int = 0
    cut: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)

    def warnings(self) -> list[str]:
        """One sentence for each kind of damage."""
        found = []
        if self.cut:
            found.append(f"the end of {', '.join(self.cut)} is cut off: later events are not in the capture")
        if self.damaged:
            found.append(
                f"the compressed data of {', '.join(self.damaged)} do not match their checksum: events after the "
                "damage are not in the capture, and events before it may be wrong"
            )
        if self.lines:
            found.append(f"{self.lines} damaged line{'s' * (self.lines > 1)} left out")
        return found


def text_lines(path: Path, damage: Damage) -> Iterator[bytes]:
    """Each line without its end. What is cut off, or damaged in a gzip member, is noted in `damage` instead of raised.

    Raises: LogError for a file that cannot be read, or expands beyond all measure."""
    rest = b""
    try:
        with path.open("rb") as file:
            try:
                for block in unpacked_blocks(file, _BLOCK_BYTES):
                    *lines, rest = (rest + block).split(b"\n")
                    yield from lines
                    if len(rest) > _LONGEST_LINE:
                        damage.lines += 1
                        rest = b""
            except EOFError as error:
                (damage.damaged if isinstance(error.__cause__, zlib.error) else damage.cut).append(path.name)
            if rest:
                yield rest
    except ExpansionError as error:
        raise LogError(f"{path} is not a trace: {error}") from error
    except OSError as error:
        raise LogError(f"{path} cannot be read: {error.strerror or error}") from error
