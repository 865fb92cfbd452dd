"""Reads strace's output as a source of operations: `-f -ttt -T -y` in one file, or `-ff` with a file per thread."""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from pathlib import Path

from dxt_replay.profiler_merge.tracers.path_numbers import PathNumbers
from dxt_replay.profiler_merge.tracers.rank_processes import rank_processes
from dxt_replay.profiler_merge.tracers.strace.strace_lines import ANY_CALL, LINE, Call, LineReader
from dxt_replay.profiler_merge.tracers.strace.system_calls import HIDDEN, SystemCalls
from dxt_replay.profiler_merge.tracers.strace.tasks import BIRTHS, Task, Tasks, births_of
from dxt_replay.profiler_merge.tracers.text_lines import Damage, text_lines
from dxt_replay.profiler_merge.tracers.traced_job import TracedJob, TracedProcess
from dxt_replay.profiler_merge.tracers.traced_rows import TracedRows
from dxt_replay.traces.errors import LogError
from dxt_replay.traces.units import format_counted

CLOCK_NS = (-1_000_000, 0)
"""Delay of strace's clock reading after the call: 4 to 33 us as measured, sometimes more."""
_HEAD_LINES = 200
_THREAD_FILE = re.compile(r"(.*?)\.(\d+)(\.gz)?")
_WITH_PATH = re.compile(rb"(AT_FDCWD|[( ]\d+)<")
_WITHOUT_PATH = re.compile(rb"AT_FDCWD, |(read|write|close|fstat|lseek|pread64)\(\d+[,)]")
_MOVES = (b"read", b"write", b"readv", b"writev")
_RECORD = "record with `strace -f -ttt -T -y -s 0 -o run.strace COMMAND`"


@dataclass(frozen=True, slots=True)
class _Trace:
    """The files of one run of strace: one file, or one per thread with -ff. `tids`: of each file, 0 if the lines have
    it."""

    files: tuple[Path, ...]
    tids: tuple[int, ...]


@dataclass(slots=True)
class _Span:
    """First and last instant of the traces, and whether durations were recorded."""

    first_ns: int = 0
    last_ns: int = 0
    timed: bool = False

    def note(self, reader: LineReader) -> None:
        if reader.first_ns:
            self.first_ns = min(self.first_ns or reader.first_ns, reader.first_ns)
            self.last_ns = max(self.last_ns, reader.last_ns)


def is_thread_file(path: Path, others: Sequence[Path]) -> bool:
    """Whether the file name is that of a thread of the same `strace -ff` as one of `others`."""
    name = _THREAD_FILE.fullmatch(path.name)
    prefixes = {(other.parent, found[1]) for other in others if (found := _THREAD_FILE.fullmatch(other.name))}
    return name is not None and (path.parent, name[1]) in prefixes


def read_strace(files: Sequence[Path], exclude: Sequence[str] = (), include: Sequence[str] = ()) -> TracedJob:
    """The job whose processes these files trace. Memory: one block of rows, and the open files.

    `exclude`, `include`: as for `PathNumbers`.
    Raises: LogError for output that lacks data for a replay, or that cannot be read.
    """
    damage, span = Damage(), _Span()
    rows, paths = TracedRows(), PathNumbers(exclude, include)
    calls = SystemCalls(rows, paths)
    processes: list[TracedProcess] = []
    threads: list[Task] = []
    traces = _traces(files)
    unfollowed = 0
    for number, trace in enumerate(traces):
        births = births_of(_births(trace))
        made = sum(len(several) for several in births.values())
        tasks = Tasks(births, number, processes, threads)
        for call in _calls(trace, calls.wanted, damage, span):
            if isinstance(call, int):
                tasks.ended(call)
            else:
                span.timed = span.timed or call.timed
                try:
                    calls.apply(call, tasks)
                except (ValueError, IndexError):
                    damage.lines += 1
        unfollowed += 0 if tasks.followed else made
    if not processes:
        raise LogError(f"{files[0]} holds no system call that could be used: {_RECORD}")
    ranks, notes = rank_processes(processes, [trace.files[0] for trace in traces])
    return TracedJob(
        files=tuple(files),
        ranks=ranks,
        start_ns=span.first_ns,
        end_ns=span.last_ns,
        clock_ns=CLOCK_NS,
        rows=rows,
        paths=paths.paths,
        tids=[thread.tid for thread in threads],
        left_out=paths.folders() | calls.folders,
        complete=not (damage or unfollowed or any(calls.left_out[what] for what in HIDDEN.values())),
        sizes=calls.positions.greatest_sizes(),
        mapped=frozenset(calls.mapped),
        received=calls.sockets.by_peer(),
        received_of_unknown=calls.sockets.of_unknown_peers(),
        hidden=tuple(sorted(calls.hidden)),
        suspect=dict(calls.positions.suspect),
        warnings=(*damage.warnings(), *notes, *_warnings(calls, paths, span, unfollowed)),
    )


def _traces(files: Sequence[Path]) -> list[_Trace]:
    """The files by run of strace. Raises: LogError if one lacks times or paths, or no file has a line."""
    alone: list[_Trace] = []
    by_prefix: dict[tuple[Path, str], list[tuple[int, Path]]] = {}
    empty = 0
    for path in files:
        has_ids = _checked(path)
        name = _THREAD_FILE.fullmatch(path.name)
        empty += has_ids is None
        if has_ids or name is None:
            alone.append(_Trace((path,), (0,)))
        else:
            by_prefix.setdefault((path.parent, name[1]), []).append((int(name[2]), path))
    if empty == len(files):
        raise LogError(f"{files[0]} holds no line of strace: {_RECORD}")
    for _, members in sorted(by_prefix.items()):
        members.sort()
        alone.append(_Trace(tuple(path for _, path in members), tuple(tid for tid, _ in members)))
    return alone


def _checked(path: Path) -> bool | None:
    """Whether the lines of a file name their threads; None if it has no lines.

    Raises: LogError where its lines lack times (-ttt) or the paths of descriptors (-y).
    """
    found: bool | None = None
    shown = hidden = False
    for line in islice(text_lines(path, Damage()), _HEAD_LINES):
        match = LINE.fullmatch(line)
        if match is None:
            if found is None and ANY_CALL.fullmatch(line) is not None:
                raise LogError(f"{path} has no times since the epoch, so it was recorded without -ttt: {_RECORD}")
            continue
        found = bool(match[1] or match[2]) if found is None else found
        shown = shown or _WITH_PATH.search(line) is not None
        hidden = hidden or _WITHOUT_PATH.search(line) is not None
    if hidden and not shown:
        raise LogError(f"{path} does not show the paths of descriptors, so it was recorded without -y: {_RECORD}")
    return found


def _calls(trace: _Trace, wanted: Callable[[bytes], bool], damage: Damage, span: _Span) -> Iterator[Call | int]:
    """The calls of a trace in the order of their returns, and ids of ended threads."""
    readers = [LineReader(wanted, tid) for tid in trace.tids]
    streams = [_of_file(path, reader, damage) for path, reader in zip(trace.files, readers, strict=True)]
    if len(streams) == 1:
        yield from streams[0]
    else:
        yield from heapq.merge(*map(_only_calls, streams), key=attrgetter("end_ns"))
    for reader in readers:
        damage.lines += reader.damaged
        span.note(reader)


def _births(trace: _Trace) -> Iterator[Call | int]:
    """The calls that make threads, file by file."""
    for path, tid in zip(trace.files, trace.tids, strict=True):
        reader = LineReader(BIRTHS.__contains__, tid)
        for line in text_lines(path, Damage()):
            if (b"clone" in line or b"fork" in line) and (call := reader.call(line)) is not None:
                yield call


def _of_file(path: Path, reader: LineReader, damage: Damage) -> Iterator[Call | int]:
    for line in text_lines(path, damage):
        call = reader.call(line)
        if call is not None:
            yield call


def _only_calls(found: Iterator[Call | int]) -> Iterator[Call]:
    return (call for call in found if isinstance(call, Call))


def _warnings(calls: SystemCalls, paths: PathNumbers, span: _Span, unfollowed: int) -> list[str]:
    found = [*paths.warnings(), *calls.streams.warnings()]
    if not span.timed:
        found.append("recorded without -T: every operation takes no time")
    if unfollowed:
        found.append(
            f"{format_counted(unfollowed, 'thread')} or processes were started and not traced, so it was recorded "
            "without -f: what they read and wrote is missing"
        )
    positions = calls.positions
    if not any(calls.seen[name] for name in (b"lseek", b"_llseek")) and any(calls.seen[name] for name in _MOVES):
        found.append("the trace has no lseek: if -e trace= left it out, offsets are wrong behind each seek")
    found += positions.warnings()
    for what, count in sorted(calls.left_out.items()):
        if what in HIDDEN.values():
            found.append(f"{count} calls moved data through {what}: strace does not show it, and a replay lacks it")
        else:
            found.append(f"{format_counted(count, what)} left out: a capture has no such operation")
    return found
