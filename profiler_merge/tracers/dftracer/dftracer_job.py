"""Reads DFTracer's files as a source of operations and of spans."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from dxt_replay.profiler_merge.profiles.span_parts import SpanColumns
from dxt_replay.profiler_merge.tracers.dftracer.annotations import Annotations, annotated_spans
from dxt_replay.profiler_merge.tracers.dftracer.library_calls import CallingProcess, LibraryCalls
from dxt_replay.profiler_merge.tracers.dftracer.pfw_events import PfwEvent, number, pfw_events
from dxt_replay.profiler_merge.tracers.dftracer.run_facts import RunFacts, run_facts
from dxt_replay.profiler_merge.tracers.path_numbers import NOT_KEPT, PathNumbers
from dxt_replay.profiler_merge.tracers.rank_processes import rank_processes
from dxt_replay.profiler_merge.tracers.text_lines import Damage
from dxt_replay.profiler_merge.tracers.traced_job import TracedJob, TracedProcess, TracedRank
from dxt_replay.profiler_merge.tracers.traced_rows import TracedRows
from dxt_replay.traces.errors import LogError, ProfileError
from dxt_replay.traces.units import format_counted

_NO_FOLDER = b"/unknown-working-directory"
"""Folder shown for relative paths whose folder the trace lacks."""
_MOST_RANKS = 1 << 16
"""Largest `pid` that is a rank: in the oldest form it is the rank under MPI, else a process id."""
_MOST_NS = 1 << 62
_PLAIN = ("", "dftracer", "POSIX", "STDIO")
_UNSEEN = (
    "DFTracer sees calls of libc in its folders (DFTRACER_DATA_DIR) alone, and of those not all: what it misses is in "
    "no count, so that coverage is not known"
)


def read_dftracer(files: Sequence[Path], exclude: Sequence[str] = (), include: Sequence[str] = ()) -> TracedJob:
    """The job that these files trace. Memory: one block of rows, and the annotations.

    `exclude`, `include`: as for `PathNumbers`.
    Raises: LogError for traces that lack data for a replay, or that cannot be read.
    """
    damage = Damage()
    reader = _Reader(run_facts(files), exclude, include)
    for place, path in enumerate(files):
        reader.begin_file()
        for event in pfw_events(path, damage):
            try:
                reader.take(place, event)
            except ValueError:
                damage.lines += 1
    reader.calls.finish()
    reader.adopt()
    if not reader.processes:
        raise LogError(f"{files[0]} holds no event: was the program run to its end?")
    if reader.data_calls and not reader.rows_with_size:
        raise LogError(f"{files[0]} has no sizes: record with DFTRACER_INC_METADATA=1")
    ranks, notes = rank_processes(reader.processes, files)
    calls = reader.calls
    return TracedJob(
        files=tuple(files),
        ranks=ranks,
        start_ns=reader.first_ns,
        end_ns=reader.last_ns,
        clock_ns=(0, reader.facts.unit_ns),
        rows=reader.rows,
        paths=reader.paths.paths,
        tids=reader.tids,
        left_out=reader.paths.folders(),
        complete=False,
        sizes=calls.positions.greatest_sizes(),
        mapped=frozenset(calls.mapped),
        suspect=dict(calls.positions.suspect),
        spans={
            place: spans for place, rank in enumerate(ranks) if (spans := _spans(reader.annotations, rank)) is not None
        },
        warnings=(_UNSEEN, *damage.warnings(), *notes, *reader.paths.warnings(), *reader.warnings(files)),
    )


def read_annotations(
    files: Sequence[Path], pids: Sequence[Collection[int]]
) -> tuple[dict[int, SpanColumns], list[str]]:
    """The annotated training loops in these files, by rank with the same process ids, and warnings.

    `pids`: of the processes of each rank.
    Raises: LogError as `read_dftracer`; ProfileError for traces without annotations.
    """
    job = read_dftracer(files)
    if not job.spans:
        raise ProfileError(
            f"{files[0]} is a DFTracer trace without annotations of a training loop: give it as LOG for its "
            "operations, or annotate the program (pydftracer's `ai`)"
        )
    loops: dict[int, SpanColumns] = {}
    warnings: list[str] = []
    for rank, spans in job.spans.items():
        own = job.ranks[rank].own
        places = [place for place, known in enumerate(pids) if own.pid in known]
        if len(places) == 1:
            loops[places[0]] = spans
        elif len(pids) == job.nprocs and not any(pids):
            loops[rank] = spans
        else:
            warnings.append(f"no rank was found for the annotations of process {own.pid} in DFTracer's trace")
    return loops, warnings


def _spans(annotations: Annotations, rank: TracedRank) -> SpanColumns | None:
    workers = sum(process.operations for process in rank.processes[1:])
    return annotated_spans(annotations, rank.own.number, reads_itself=rank.own.operations >= workers)


class _Reader:
    """One pass over the events of all files."""

    def __init__(self, facts: RunFacts, exclude: Sequence[str], include: Sequence[str]) -> None:
        self.facts = facts
        self.rows, self.paths = TracedRows(), PathNumbers(exclude, include)
        self.calls = LibraryCalls(self.rows)
        self.annotations = Annotations()
        self.processes: list[TracedProcess] = []
        self.first_ns = self.last_ns = 0
        self.data_calls = self.rows_with_size = 0
        self._callers: dict[int, CallingProcess] = {}
        self._rank_of: dict[int, int] = {}
        self._local: dict[int | str, str] = {}
        self._repeated: dict[int, bytearray] = {}
        self.tids: list[int] = []
        self._relative = self._ambiguous = self._nameless = 0

    def begin_file(self) -> None:
        """Begin the events of another file. Hashes of names are looked up in this file first, because two files may use
        one 16-bit hash for different paths."""
        self._local = {}

    def take(self, trace: int, event: PfwEvent) -> None:
        """Note one event of file number `trace`."""
        if event.name == "FH" and event.args is not None and event.args.value is not None:
            self._local[event.args.value] = event.args.name or ""
        if event.ph not in ("X", 1) or self._is_repeated(event):
            return
        start_ns = number(event.ts) * self.facts.unit_ns
        end_ns = start_ns + max(number(event.dur), 0) * self.facts.unit_ns
        tid = number(event.tid)
        if not 0 < start_ns <= end_ns < _MOST_NS or abs(tid) >= 1 << 63:
            raise ValueError(event.ts)
        caller = self._caller(trace, event, start_ns)
        self.first_ns = min(self.first_ns or start_ns, start_ns)
        self.last_ns = max(self.last_ns, end_ns)
        thread = caller.threads.get(tid)
        if thread is None:
            thread = caller.threads[tid] = len(self.tids)
            # The oldest form adds other numbers to the ids of threads.
            self.tids.append(0 if isinstance(event.tid, str) else tid)
        if not caller.process.host and event.args is not None:
            caller.process.host = event.args.hostname or self.facts.hosts.get(event.args.hhash, "")
        if event.cat not in _PLAIN:
            self.annotations.add(event, caller.process.number, tid, start_ns, end_ns)
        elif self.calls.known(event):
            self._call(event, caller, thread, (start_ns, end_ns))

    def _call(self, event: PfwEvent, caller: CallingProcess, thread: int, times: tuple[int, int]) -> None:
        if event.name in ("read", "write", "fread", "fwrite"):
            self.data_calls += 1
            self.rows_with_size += event.args is not None and event.args.ret is not None
        self.calls.apply(event, caller, thread, self._file(event, caller), times)

    def _is_repeated(self, event: PfwEvent) -> bool:
        """Whether an event was seen before: in the oldest form workers repeat events that their parent had not yet
        written."""
        if not isinstance(event.id, str):
            return False
        seen, place = self._repeated.setdefault(number(event.tid), bytearray()), number(event.id)
        if place < 0 or place > 1 << 30:
            return False
        if place >= len(seen):
            seen.extend(bytes(place + 1 - len(seen)))
        repeated, seen[place] = bool(seen[place]), 1
        return repeated

    def _caller(self, trace: int, event: PfwEvent, start_ns: int) -> CallingProcess:
        pid, tid = number(event.pid), number(event.tid)
        old = isinstance(event.pid, str)
        own = tid if old or tid in self.facts.forked else pid
        caller = self._callers.get(own)
        if caller is None:
            parent = self._callers.get(self.facts.forked.get(own, -1)) if not old else None
            process = TracedProcess(number=len(self.processes), pid=own, trace=trace, started_ns=start_ns)
            caller = CallingProcess(process)
            if parent is not None:
                process.parent = parent.process
                caller.descriptors = dict(parent.descriptors)
            if old and pid < _MOST_RANKS and pid != tid:
                self._rank_of[own] = pid
            elif own in self.facts.ranks:
                process.rank = self.facts.ranks[own]
            self.processes.append(process)
            self._callers[own] = caller
        caller.process.started_ns = min(caller.process.started_ns, start_ns)
        return caller

    def adopt(self) -> None:
        """Assign parents to processes: the first process of a rank in the oldest form, else from their start events."""
        firsts: dict[int, TracedProcess] = {}
        for pid, rank in self._rank_of.items():
            process = self._callers[pid].process
            known = firsts.get(rank)
            if known is None or process.started_ns < known.started_ns:
                firsts[rank] = process
        for pid, rank in self._rank_of.items():
            process = self._callers[pid].process
            process.rank = rank
            process.parent = None if process is firsts[rank] else firsts[rank]
        for process in self.processes:
            parent = self._callers.get(self.facts.parents.get(process.pid, -1))
            if process.parent is None and parent is not None and parent.process is not process:
                process.parent = parent.process

    def _file(self, event: PfwEvent, caller: CallingProcess) -> int:
        args = event.args
        if args is None:
            return NOT_KEPT
        path = args.fname
        if args.fhash is not None:
            path = self._local.get(args.fhash) or self.facts.names.get(args.fhash)
            self._ambiguous += args.fhash in self.facts.collisions
        if not path:
            self._nameless += 1
            return NOT_KEPT
        raw = path.encode("utf-8", "surrogateescape")
        if not raw.startswith(b"/"):
            folder = self.facts.names.get(self.facts.folders.get(caller.process.pid, ""), "")
            self._relative += not folder
            raw = (folder.encode() or _NO_FOLDER) + b"/" + raw.removeprefix(b"./")
        return self.paths.number(raw)

    def warnings(self, files: Sequence[Path]) -> list[str]:
        """Warnings about the trace."""
        found = []
        unended = [path.name for path in files if path in self.facts.started and path not in self.facts.ended]
        if unended:
            found.append(f"without an end, so that the last events may be missing: {', '.join(unended[:3])}")
        if self._nameless:
            found.append(
                f"{format_counted(self._nameless, 'operation')} left out: no file in the trace has their number"
            )
        if self._ambiguous:
            found.append(
                f"{format_counted(self._ambiguous, 'operation')} on files of which two have one number in the trace: "
                "each is taken for the file that was named last"
            )
        if self._relative:
            found.append(
                f"{format_counted(self._relative, 'operation')} on relative paths: the trace lacks the working "
                f"directory, and they are shown below {_NO_FOLDER.decode()}"
            )
        found += self.calls.positions.warnings()
        for what, count in sorted(self.calls.left_out.items()):
            found.append(f"{format_counted(count, what)} left out: a capture has no such operation")
        return found
