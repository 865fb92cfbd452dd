"""Reads DFTracer's files as a source of operations and of spans: dlio_profiler (2023), DFTracer 1.0 and 2.x.

A line is an event in JSON. Numbers are texts in the oldest form, `ph` is a number in the newest, hashes are numbers or
hexadecimal texts. Calls are functions of libc. Up to 1.0 an event has its descriptor; in 2.x it has only the file, so
that offsets are suspect while a process has a file open more than once.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from dxt_replay.profiler_merge.profiles.span_parts import SpanColumns
from dxt_replay.profiler_merge.tracers import calls
from dxt_replay.profiler_merge.tracers.annotations import Annotations, annotated_spans
from dxt_replay.profiler_merge.tracers.calls import NOT_KEPT, POSIX, STDIO, UNKNOWN, At, Effects, OpenFile, PathNumbers
from dxt_replay.profiler_merge.tracers.traced_job import (
    MOST,
    Damage,
    TracedJob,
    TracedProcess,
    rank_processes,
    text_lines,
)
from dxt_replay.traces.errors import LogError, ProfileError
from dxt_replay.traces.schema import READ, WRITE
from dxt_replay.traces.units import format_counted

_UNSEEN = (
    "DFTracer sees calls of libc in its folders (DFTRACER_DATA_DIR) alone, and of those not all: what it misses is in "
    "no count, so that coverage is not known"
)
_NO_FOLDER = b"/unknown-working-directory"
"""Folder shown for relative paths whose folder the trace lacks."""
_MOST_RANKS = 1 << 16
"""Largest `pid` that is a rank: in the oldest form it is the rank under MPI, else a process id."""
_PLAIN = ("", "dftracer", "POSIX", "STDIO")
_FACTS = re.compile(rb'"name": ?"(FH|HH|PR|CM|start|end|fork|process_name)"')
_UNITS = {"NS": 1, "US": 1_000, "MS": 1_000_000, "S": 1_000_000_000}
_RANK = re.compile(r"Rank (\d+)")

_UNDERSTOOD = ("move", "move_at", "open", "close", "seek", "stat", "sync", "map", "change")
_CALLS: dict[str, dict[str, tuple[str, Any]]] = {
    "POSIX": {
        **{name: effect for name, effect in calls.CALLS.items() if effect[0] in _UNDERSTOOD},
        "openat": ("change", "openat"),  # the trace has only the folder's name
    },
    "STDIO": {
        **dict.fromkeys(("fopen", "fopen64"), ("open_stream", "")),
        **dict.fromkeys(("fseek", "fseeko", "fseeko64"), ("seek_stream", "")),
        **{"fread": ("move", READ), "fwrite": ("move", WRITE), "fclose": ("close", ""), "fflush": ("sync", "")},
    },
}
_CREAT = 0o100
_FLAG_NAMES = {
    _CREAT: "O_CREAT", 0o200: "O_EXCL", 0o1000: "O_TRUNC", 0o2000: "O_APPEND", 0o10000: "O_DSYNC",
    # O_DIRECT is the first on x86 and the second on ARM, where the other one is O_DIRECTORY: no file opens with that.
    0o40000: "O_DIRECT", 0o200000: "O_DIRECT",
}  # fmt: skip
"""Flags of open(2) on Linux."""
_ACCESS = {0: "O_RDONLY", 1: "O_WRONLY", 2: "O_RDWR"}
_SEEK_SET, _SEEK_CUR = 0, 1

_Value = int | str | None


class _Arguments(msgspec.Struct, gc=False):
    """The needed arguments. The file is `fhash`, else `fname`."""

    ret: _Value = None
    fd: _Value = None
    fhash: _Value = None
    fname: str | None = None
    size: _Value = None
    offset: _Value = None
    whence: _Value = None
    flags: _Value = None
    mode: _Value = None
    length: _Value = None
    name: str | None = None
    value: _Value = None
    ppid: _Value = None
    cwd: _Value = None
    hostname: str | None = None
    hhash: _Value = None


_NO_ARGUMENTS = _Arguments()


class _Event(msgspec.Struct, gc=False):
    """An event. `ts`, `dur`: in the unit of the trace, by default microseconds."""

    name: str = ""
    cat: str = ""
    id: int | str = -1
    pid: int | str = 0
    tid: int | str = 0
    ts: int | str = 0
    dur: int | str = 0
    ph: int | str = ""
    args: _Arguments | None = None


_DECODE = msgspec.json.Decoder(_Event).decode


@dataclass(slots=True, eq=False)
class _Caller:
    """A process and its open files: by descriptor, or by (interface, file) if the trace has no descriptors."""

    process: TracedProcess
    descriptors: dict[int, OpenFile] = field(default_factory=dict)
    streams: dict[tuple[int, int], list[OpenFile]] = field(default_factory=dict)
    threads: dict[int, int] = field(default_factory=dict)


def read_dftracer(files: Sequence[Path], exclude: Sequence[str] = (), include: Sequence[str] = ()) -> TracedJob:
    """The job that these files trace. Memory: one block of rows, and the annotations.

    `exclude`, `include`: as for `PathNumbers`.
    Raises: LogError for traces that lack data for a replay, or that cannot be read.
    """
    damage = Damage()
    facts = _Facts(files)
    reader = _Reader(facts, PathNumbers(exclude, include))
    for place, path in enumerate(files):
        # Looked up in this file first, because two files may use one 16-bit hash for different paths.
        reader.names_of_file = {}
        for event in _events(path, damage):
            try:
                reader.take(place, event, event.args or _NO_ARGUMENTS)
            except ValueError:
                damage.lines += 1
    reader.finish()
    if not reader.processes:
        raise LogError(f"{files[0]} holds no event: was the program run to its end?")
    if reader.data_calls and not reader.data_calls_with_size:
        raise LogError(f"{files[0]} has no sizes: record with DFTRACER_INC_METADATA=1")
    ranks, notes = rank_processes(reader.processes, files)
    effects, paths = reader.effects, reader.paths
    spans = {}
    for number, rank in enumerate(ranks):
        workers = sum(process.operations for process in rank.processes[1:])
        reads_itself = rank.own.operations >= workers
        found = annotated_spans(reader.annotations, rank.own.number, reads_itself=reads_itself)
        if found is not None:
            spans[number] = found
    return TracedJob(
        files=tuple(files),
        ranks=ranks,
        start_ns=reader.first_ns,
        end_ns=reader.last_ns,
        clock_ns=(0, facts.unit_ns),
        rows=effects.rows,
        paths=paths.paths,
        tids=reader.tids,
        left_out=paths.folders(),
        complete=False,
        sizes=effects.seen,
        mapped=frozenset(effects.mapped),
        suspect=effects.suspect,
        spans=spans,
        warnings=(
            *(_UNSEEN, *damage.warnings(), *notes, *paths.warnings()),
            *(*facts.warnings(), *reader.warnings(), *effects.warnings()),
        ),
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


def _events(path: Path, damage: Damage, wanted: re.Pattern[bytes] | None = None) -> Iterator[_Event]:
    """The events of a file in its order, which is that of completion; only of `wanted` lines if that is given.

    Damaged lines are counted in `damage`, and a file that is cut off is named there. Raises: LogError.
    """
    for line in text_lines(path, damage):
        text = line.strip(b" \t\r,")
        if text in (b"", b"[", b"]") or (wanted is not None and not wanted.search(text)):
            continue
        try:
            yield _DECODE(text)
        except (msgspec.DecodeError, UnicodeDecodeError):
            damage.lines += 1


def _number(value: _Value, missing: int = -1) -> int:
    """The number that a value is or spells; `missing` if it is neither."""
    try:
        return missing if value is None else int(value)
    except ValueError:
        return missing


class _Facts:
    """What is needed before the events of a run can be read, from a first pass over its files.

    names: path by hash. collisions: hashes that stand for several paths, as the 16 bits of DFTracer 1.0.5 do.
    forked: child -> parent, where the child writes into its parent's file under the parent's pid.
    parents: pid -> parent's pid. ranks: pid -> rank. folders: pid -> hash of its working directory.
    hosts: name of the host by hash; "" for a hash that stands for several. unit_ns: of the times.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        """Raises: LogError."""
        self.names: dict[_Value, str] = {}
        self.collisions: set[_Value] = set()
        self.forked: dict[int, int] = {}
        self.parents: dict[int, int] = {}
        self.ranks: dict[int, int] = {}
        self.folders: dict[int, _Value] = {}
        self.hosts: dict[_Value, str] = {}
        self.unit_ns = 1_000
        self._unended: dict[Path, bool] = {}
        for path in files:
            for event in _events(path, Damage(), _FACTS):
                if event.args is not None:
                    self._note(path, event, event.args)

    def _note(self, path: Path, event: _Event, args: _Arguments) -> None:
        pid, tid = _number(event.pid), _number(event.tid)
        match event.cat, event.name:
            case _, "FH" if args.value is not None and args.name is not None:
                if self.names.setdefault(args.value, args.name) != args.name:
                    self.collisions.add(args.value)
            case _, "HH" if args.value is not None and args.name is not None:
                if self.hosts.setdefault(args.value, args.name) != args.name:
                    self.hosts[args.value] = ""
            case "POSIX", "fork":
                child = _number(args.ret)
                if child > 0:
                    self.forked[child] = tid
                elif child == 0 and tid != pid:
                    self.forked.setdefault(tid, pid)
            case "dftracer", "start":
                self._unended.setdefault(path, True)
                self.parents[pid] = _number(args.ppid)
                if args.cwd is not None:
                    self.folders[pid] = args.cwd
            case "dftracer", "end":
                self._unended[path] = False
            case _, "PR" if args.name == "rank":
                self.ranks[pid] = _number(args.value)
            case _, "process_name" if args.name is not None and (found := _RANK.fullmatch(args.name)):
                self.ranks.setdefault(pid, int(found[1]))
            case _, "CM" if args.name == "time_metric":
                unit = str(args.value)
                if unit.upper() not in _UNITS:
                    raise LogError(
                        f"{path} counts its times in {unit!r}, which this release does not know: update dxt-replay"
                    )
                self.unit_ns = _UNITS[unit.upper()]

    def warnings(self) -> list[str]:
        unended = [path.name for path, is_so in self._unended.items() if is_so]
        return [f"without an end, so that the last events may be missing: {', '.join(unended[:3])}"] * bool(unended)


class _Reader:
    """One pass over the events of all files."""

    def __init__(self, facts: _Facts, paths: PathNumbers) -> None:
        self.paths, self.effects, self.annotations = paths, Effects(), Annotations()
        self.processes: list[TracedProcess] = []
        self.tids: list[int] = []
        self.first_ns = self.last_ns = 0
        self.data_calls = self.data_calls_with_size = 0
        self.names_of_file: dict[_Value, str] = {}
        self._facts = facts
        self._callers: dict[int, _Caller] = {}
        self._rank_of: dict[int, int] = {}
        self._repeated: dict[tuple[int, int], bytearray] = defaultdict(lambda: bytearray(1 << 10))
        self._relative = self._ambiguous = self._nameless = 0
        self._opened_files: set[int] = set()
        self._unsure: dict[int, list[At]] = {}

    def take(self, trace: int, event: _Event, args: _Arguments) -> None:
        """Note one event of file number `trace`. Raises: ValueError for impossible times."""
        if event.name == "FH" and args.value is not None:
            self.names_of_file[args.value] = args.name or ""
        if event.ph not in ("X", 1) or self._is_repeated(event):
            return
        start_ns = _number(event.ts) * self._facts.unit_ns
        end_ns = start_ns + max(_number(event.dur), 0) * self._facts.unit_ns
        tid = _number(event.tid)
        if not 0 < start_ns <= end_ns < MOST or abs(tid) >= 1 << 63:
            raise ValueError(event.ts)
        caller = self._caller(trace, event, start_ns)
        process = caller.process
        self.first_ns = min(self.first_ns or start_ns, start_ns)
        self.last_ns = max(self.last_ns, end_ns)
        thread = caller.threads.get(tid)
        if thread is None:
            thread = caller.threads[tid] = len(self.tids)
            # The oldest form adds other numbers to the ids of threads.
            self.tids.append(0 if isinstance(event.tid, str) else tid)
        process.host = process.host or args.hostname or self._facts.hosts.get(args.hhash, "")
        if event.cat not in _PLAIN:
            self.annotations.add(f"{event.cat}/{event.name}", process.number, tid, start_ns, end_ns)
            return
        call = _CALLS["POSIX" if event.cat == "POSIX" else "STDIO"].get(event.name)
        if call is None:
            return
        if event.name in ("read", "write", "fread", "fwrite"):
            self.data_calls += 1
            self.data_calls_with_size += args.ret is not None
        file = NOT_KEPT if event.args is None else self._file(args, process.pid)
        if file != NOT_KEPT:
            at = At(process, thread, start_ns, end_ns, POSIX if event.cat == "POSIX" else STDIO)
            self._apply(*call, caller, event, args, at, file)

    def _is_repeated(self, event: _Event) -> bool:
        """Whether an event was seen before: in the oldest form workers repeat events that their parent had not yet
        written."""
        place = _number(event.id)
        if not isinstance(event.id, str) or not 0 <= place < MOST:
            return False
        seen, at = self._repeated[_number(event.tid), place >> 10], place & 1023
        repeated, seen[at] = bool(seen[at]), 1
        return repeated

    def _caller(self, trace: int, event: _Event, start_ns: int) -> _Caller:
        pid, tid = _number(event.pid), _number(event.tid)
        old = isinstance(event.pid, str)
        own = tid if old or tid in self._facts.forked else pid
        caller = self._callers.get(own)
        if caller is None:
            process = TracedProcess(number=len(self.processes), pid=own, trace=trace, started_ns=start_ns)
            parent = None if old else self._callers.get(self._facts.forked.get(own, -1))
            caller = self._callers[own] = _Caller(process)
            if parent is not None:
                process.parent, caller.descriptors = parent.process, dict(parent.descriptors)
            if old and pid < _MOST_RANKS and pid != tid:
                self._rank_of[own] = pid
            else:
                process.rank = self._facts.ranks.get(own)
            self.processes.append(process)
        caller.process.started_ns = min(caller.process.started_ns, start_ns)
        return caller

    def _file(self, args: _Arguments, pid: int) -> int:
        path = args.fname
        if args.fhash is not None:
            path = self.names_of_file.get(args.fhash) or self._facts.names.get(args.fhash)
            self._ambiguous += args.fhash in self._facts.collisions
        if not path:
            self._nameless += 1
            return NOT_KEPT
        raw = path.encode("utf-8", "surrogateescape")
        if not raw.startswith(b"/"):
            folder = self._facts.names.get(self._facts.folders.get(pid, ""), "")
            self._relative += not folder
            raw = (folder.encode() or _NO_FOLDER) + b"/" + raw.removeprefix(b"./")
        return self.paths.number(raw)

    def finish(self) -> None:
        """Keep the stats of files that were never opened, since nothing contradicts them. Assign parents to processes:
        the first process of a rank in the oldest form, else from their start events."""
        for file in list(self._unsure):
            self._settle(file, existed=True)
        firsts: dict[int, TracedProcess] = {}
        for pid, rank in sorted(self._rank_of.items(), key=lambda each: self._callers[each[0]].process.started_ns):
            process = self._callers[pid].process
            first = firsts.setdefault(rank, process)
            process.rank, process.parent = rank, None if process is first else first
        for process in self.processes:
            parent = self._callers.get(self._facts.parents.get(process.pid, -1))
            above = None if parent is None or process.parent is not None else parent.process
            process.parent = above or process.parent
            while above is not None and above is not process:
                above = above.parent
            if above is process:  # as damage may say, and reused ids: nobody is its own ancestor
                process.parent = None

    def warnings(self) -> list[str]:
        """What is not sure of the files."""
        found = [
            (self._nameless, "left out: no file in the trace has their number"),
            (
                self._ambiguous,
                "on files of which two have one number in the trace: each is taken for the file that was named last",
            ),
            (
                self._relative,
                "on relative paths: the trace lacks the working directory, and they are shown below "
                + _NO_FOLDER.decode(),
            ),
        ]
        return [f"{format_counted(count, 'operation')} {what}" for count, what in found if count]

    def _opened(self, caller: _Caller, args: _Arguments, file: int, api: int) -> OpenFile:
        """The open file of a call: by descriptor, else the latest one of the process on the file."""
        descriptor, process = _number(args.fd), caller.process.number
        if descriptor < 0 or api == STDIO:
            several = caller.streams.setdefault((api, file), [])
            if not several:
                several.append(OpenFile(file, UNKNOWN, process))
            return several[-1]
        opened = caller.descriptors.get(descriptor)
        if opened is None or opened.file != file:
            opened = caller.descriptors[descriptor] = OpenFile(file, UNKNOWN, process)
        return opened

    def _settle(self, file: int, *, existed: bool) -> None:
        """At the first open of a file, decide whether earlier stats, whose results the trace lacks, succeeded."""
        if file in self._opened_files:
            return
        self._opened_files.add(file)
        for at in self._unsure.pop(file, ()):
            if existed:
                self.effects.add(at, calls.STAT, file)
            else:
                self.effects.left_out["stat of a file that did not exist yet"] += 1

    def _apply(
        self, effect: str, what: Any, caller: _Caller, event: _Event, args: _Arguments, at: At, file: int
    ) -> None:
        """The effect of a call, as `_CALLS` names it. Calls on C streams have only the file."""
        effects, result, offset = self.effects, _number(args.ret), _number(args.offset)
        failed = result < 0 and args.ret is not None
        match effect:
            case "open" if not failed:
                flags, is_creat = _number(args.flags, missing=0), event.name.startswith("creat")
                self._settle(file, existed=not (flags & _CREAT or is_creat))
                names = [name for bit, name in _FLAG_NAMES.items() if flags & bit]
                if is_creat:
                    names += ["O_CREAT", "O_WRONLY", "O_TRUNC"]
                elif args.flags is not None and flags & 3 in _ACCESS:
                    names.append(_ACCESS[flags & 3])
                opened = effects.open(at, file, names)
                if args.ret is None:
                    caller.streams.setdefault((POSIX, file), []).append(opened)
                else:
                    caller.descriptors[result] = opened
            case "close" if not failed and args.fd is not None and at.api == POSIX:
                closed = caller.descriptors.pop(_number(args.fd), None)
                if closed is None or closed.owner == caller.process.number:
                    effects.add(at, calls.CLOSE, file)
            case "close" if not failed:
                if several := caller.streams.get((at.api, file)):
                    several.pop()
                effects.add(at, calls.CLOSE, file)
            case "move" if result >= 0:
                length = result * max(_number(args.size), 0) if at.api == STDIO else result
                offset = effects.move(at, self._opened(caller, args, file, at.api), what, length)
                if offset != UNKNOWN and len(caller.streams.get((at.api, file), ())) > 1:
                    effects.suspect[file] += 1
            case "move_at" if result >= 0:
                own = OpenFile(file, UNKNOWN, caller.process.number)  # the call neither uses nor moves a position
                effects.move(at, own, what, result, offset)
            case "seek" if result >= 0:
                asked = _number(args.whence) == _SEEK_CUR and offset == 0
                effects.seek(at, self._opened(caller, args, file, POSIX), result, only_asked=asked)
            case "stat" if args.ret is None and args.fd is None and file not in self._opened_files:
                self._unsure.setdefault(file, []).append(at)
            case "stat" if not failed:
                effects.add(at, calls.STAT, file)
            case "sync":
                effects.add(at, calls.SYNC, file)
            case "map":
                effects.mapped.add(file)
            case "change":
                effects.left_out[what] += 1
                if event.name == "ftruncate":
                    effects.resize(file, max(_number(args.length), 0))
            case "open_stream":
                mode = str(args.mode or "r")
                self._settle(file, existed=mode.startswith("r"))
                if mode.startswith("w"):
                    effects.resize(file, 0)
                opened = effects.open(at, file, ())
                opened.append = mode.startswith("a")
                caller.streams.setdefault((STDIO, file), []).append(opened)
            case "seek_stream":
                opened, whence, position = self._opened(caller, args, file, STDIO), _number(args.whence), UNKNOWN
                if whence == _SEEK_SET:
                    position = max(offset, 0)
                elif whence == _SEEK_CUR and opened.position != UNKNOWN:
                    position = max(opened.position + offset, 0)
                effects.seek(at, opened, position)
