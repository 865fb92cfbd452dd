"""Reads strace's output as a source of operations: `-f -ttt -T -y` in one file, or `-ff` with a file per thread.

Lines as strace 4.26 to 6.11 writes them: `[pid N] ` or `N ` first or neither (-ff); `<unfinished ...>` and
`<... NAME resumed>` where several threads mix; then `= 4</path>`, `= -1 ENOENT (...)` or `= ?`, and ` <0.000012>` with
-T. Arguments are those of the manual's section 2.
"""

from __future__ import annotations

import heapq
import re
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from dxt_replay.profiler_merge.tracers.calls import (
    CALLS,
    NOT_KEPT,
    STAT,
    SYNC,
    UNKNOWN,
    At,
    Effects,
    OpenFile,
    PathNumbers,
)
from dxt_replay.profiler_merge.tracers.traced_job import Damage, TracedJob, TracedProcess, rank_processes, text_lines
from dxt_replay.traces.errors import LogError
from dxt_replay.traces.files import without_dots
from dxt_replay.traces.schema import READ, WRITE
from dxt_replay.traces.units import format_counted
from dxt_replay.traces.unseen import StreamTotals

CLOCK_NS = (-1_000_000, 0)
"""Delay of strace's clock reading after the call: 4 to 33 us as measured, sometimes more."""
_HEAD_LINES = 200
_RECORD = "record with `strace -f -ttt -T -y -s 0 -o run.strace COMMAND`"
_THREAD_FILE = re.compile(r"(.*?)\.(\d+)(\.gz)?")

_LINE = re.compile(
    rb"(?:\[pid +(\d+)\] +|(\d+) +)?(\d{9,10})\.(\d{3,9}) (?:(\w+)\(|<\.\.\. (\w+) resumed>)(.*)", re.DOTALL
)
_ANY_CALL = re.compile(rb"(?:\[pid +\d+\] +|\d+ +)?(?:[\d:.]+ )?(?:\w+\(|<\.\.\. \w+ resumed>).*")
"""Also without a time, or with a time of the day."""
_ENDED = re.compile(rb"(?:\[pid +(\d+)\] +|(\d+) +)?[\d.]+ \+\+\+ ")
_NO_CALL = re.compile(rb"\s*\Z|(?:\[pid +\d+\] +|\d+ +)?[\d.]* ?--- |strace: ")
"""An empty line, a signal, a message."""
_TAIL = re.compile(
    rb"(.*)\) += (0x[0-9a-f]{1,16}|-?\d{1,18}|\?)(?:<((?:[^>\\]|\\.)*)>)?(.*?)(?: <(\d{1,8})\.(\d{1,9})>)?", re.DOTALL
)
_UNFINISHED = re.compile(rb" *<unfinished \.\.\.>\Z")
_SCALE = [10 ** (9 - digits) for digits in range(10)]
"""Nanoseconds of the last digit, by the number of decimals."""
_ESCAPE = re.compile(rb"\\([0-7]{1,3}|.)")
_LETTERS = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"v": b"\v", b"f": b"\f"}

_WITH_PATH = re.compile(rb"(AT_FDCWD|[( ]\d+)<")
_WITHOUT_PATH = re.compile(rb"AT_FDCWD, |(read|write|close|fstat|lseek|pread64)\(\d+[,)]")
_DESCRIPTOR = re.compile(rb"\s*(\d+)<((?:[^>\\]|\\.)*)>(\(deleted\))?")
_DEVICE = re.compile(rb"<(char|block) [\d:]+\Z")
"""Suffix of a path with -yy, up to the first bracket; a bracket in the path itself is escaped."""
_NUMBER = re.compile(rb"\s*(\d+)")
_FOLDER = re.compile(rb"\s*(AT_FDCWD|\d+)<((?:[^>\\]|\\.)*)>(?:\(deleted\))?,\s*")
_TEXT = re.compile(rb'\s*"((?:[^"\\]|\\.)*)"')
_SIZE = re.compile(rb"(?:st|stx)_size=(\d+)")
_REGULAR = re.compile(rb"(?:st|stx)_mode=S_IFREG")
_FLAGS = re.compile(rb"\b(O_[A-Z_|0-9a-z]+)")
_ONLY_ASKED = re.compile(rb",\s*0,\s*SEEK_CUR")
_OTHER_OFFSET = re.compile(rb",\s*(NULL|\[(\d+)\](?: => \[\d+\])?)")
_OFFSET_PLACE = {b"preadv2": -2, b"pwritev2": -2}
"""Index from the end of the argument with the offset, where it is not the last."""
_SOCKET = re.compile(rb"\s*\d+<((?:TCP|TCPv6|socket):\[.*?\])>")
_ENDS = re.compile(r"TCP(?:v6)?:\[(.+)->(.+)\]")
_BRACKETS = re.compile(r"\[(?:::ffff:(?=[\d.]+\]))?(.*)\]")

_BIRTHS = frozenset((b"clone", b"clone3", b"fork", b"vfork"))
_EFFECTS = {name.encode(): effect for name, effect in CALLS.items()}
_WANTED = _BIRTHS | _EFFECTS.keys()
_OF_DESCRIPTORS = ("move", "move_at", "close", "seek", "sync", "change")
"""Effects on the file of the descriptor that comes first, if one does."""
_BIRTH_FLAGS = re.compile(rb"flags=([A-Z_|]+)")
_LAST_STREAM = 2
"""Standard error: the last of the descriptors with which a program is started."""
_STREAM = OpenFile(UNKNOWN, UNKNOWN, owner=-1)
"""Marks a descriptor with which the job was started as standard input, output or error: it is no storage."""
_Births = Mapping[int, deque[tuple[int, bool, bool]]]


class _Call(NamedTuple):
    """A completed system call. path: of the descriptor that is the result. timed: whether its duration was recorded.

    The end of a thread is a call without a name."""

    tid: int
    name: bytes
    arguments: bytes
    result: int
    path: bytes | None
    start_ns: int
    end_ns: int
    timed: bool


@dataclass(slots=True, eq=False)
class _Task:
    """A thread that runs. `number`: among all threads of the job. `cwd`: b"" where unknown."""

    number: int
    process: TracedProcess
    descriptors: dict[int, OpenFile]
    cwd: bytes = b""


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
    damage = Damage()
    reader = _Reader(PathNumbers(exclude, include))
    traces = _traces(files)
    unfollowed, times = 0, (0, 0)
    for number, trace in enumerate(traces):
        reader.begin_trace(number, _births(trace))
        made = sum(map(len, reader.births.values()))
        streams = [_Calls(text_lines(path, damage), tid, damage) for path, tid in trace]
        # -ff: the calls of the files of threads in the order of their returns.
        of_files = [(call for call in stream if call.name) for stream in streams]
        for call in streams[0] if len(streams) == 1 else heapq.merge(*of_files, key=attrgetter("end_ns")):
            try:
                reader.take(call)
            except (ValueError, IndexError):
                damage.lines += 1
        for each in streams:
            times = min(times[0] or each.first_ns, each.first_ns or times[0]), max(times[1], each.last_ns)
        unfollowed += 0 if reader.followed else made
    if not reader.processes:
        raise LogError(f"{files[0]} holds no system call that could be used: {_RECORD}")
    ranks, notes = rank_processes(reader.processes, [trace[0][0] for trace in traces])
    received, of_unknown = _received(reader.sockets)
    effects, paths = reader.effects, reader.paths
    return TracedJob(
        files=tuple(files),
        ranks=ranks,
        start_ns=times[0],
        end_ns=times[1],
        clock_ns=CLOCK_NS,
        rows=effects.rows,
        paths=paths.paths,
        tids=reader.tids,
        left_out=paths.folders() | reader.folders,
        complete=not (damage.warnings() or unfollowed or effects.hidden),
        sizes=effects.seen,
        mapped=frozenset(effects.mapped),
        received=received,
        received_of_unknown=of_unknown,
        hidden=tuple(sorted(effects.hidden)),
        suspect=effects.suspect,
        warnings=(*damage.warnings(), *notes, *paths.warnings(), *reader.warnings(unfollowed), *effects.warnings()),
    )


def _traces(files: Sequence[Path]) -> list[list[tuple[Path, int]]]:
    """The files of each run of strace with their threads, 0 where the lines name them; -ff writes one per thread.

    Raises: LogError if one lacks times or paths, or no file has a line.
    """
    alone: list[list[tuple[Path, int]]] = []
    by_prefix: dict[tuple[Path, str], list[tuple[int, Path]]] = defaultdict(list)
    empty = 0
    for path in files:
        has_ids = _checked(path)
        name = _THREAD_FILE.fullmatch(path.name)
        empty += has_ids is None
        if has_ids or name is None:
            alone.append([(path, 0)])
        else:
            by_prefix[path.parent, name[1]].append((int(name[2]), path))
    if empty == len(files):
        raise LogError(f"{files[0]} holds no line of strace: {_RECORD}")
    return alone + [[(path, tid) for tid, path in sorted(by_prefix[prefix])] for prefix in sorted(by_prefix)]


def _checked(path: Path) -> bool | None:
    """Whether the lines of a file name their threads; None if it has no lines.

    Raises: LogError where its lines lack times (-ttt) or the paths of descriptors (-y).
    """
    found: bool | None = None
    shown = hidden = False
    for line in islice(text_lines(path, Damage()), _HEAD_LINES):
        match = _LINE.fullmatch(line)
        if match is None:
            if found is None and _ANY_CALL.fullmatch(line) is not None:
                raise LogError(f"{path} has no times since the epoch, so it was recorded without -ttt: {_RECORD}")
            continue
        found = bool(match[1] or match[2]) if found is None else found
        shown = shown or _WITH_PATH.search(line) is not None
        hidden = hidden or _WITHOUT_PATH.search(line) is not None
    if hidden and not shown:
        raise LogError(f"{path} does not show the paths of descriptors, so it was recorded without -y: {_RECORD}")
    return found


class _Calls:
    """The calls of a file in the order of their returns, and the ends of threads: joins both halves of interrupted
    calls, skips those without an effect. `tid`: thread of lines that name none. Counts damaged lines."""

    def __init__(self, lines: Iterable[bytes], tid: int, damage: Damage) -> None:
        self._lines, self._tid, self._damage = lines, tid, damage
        self._open: dict[int, tuple[bytes, int, bytes]] = {}
        self.first_ns = self.last_ns = 0

    def __iter__(self) -> Iterator[_Call]:
        return (call for line in self._lines if (call := self._call(line)) is not None)

    def _call(self, line: bytes) -> _Call | None:
        found = _LINE.fullmatch(line)
        if found is None:
            ended = _ENDED.match(line)
            if ended is not None:
                return _Call(int(ended[1] or ended[2] or self._tid), b"", b"", 0, None, 0, 0, False)
            self._damage.lines += _NO_CALL.match(line) is None
            return None
        before, after, seconds, fraction, name, resumed, rest = found.groups()
        tid = int(before or after or self._tid)
        start_ns = self.last_ns = int(seconds + fraction) * _SCALE[len(fraction)]
        self.first_ns = self.first_ns or start_ns
        if resumed is not None:
            name = resumed
            began = self._open.pop(tid, None)
            if began is None or began[0] != name:  # it began before the trace, or before a lost stretch
                self._damage.lines += began is not None and name in _WANTED
                return None
            _, start_ns, first = began
            rest = first + rest
        if name not in _WANTED:
            return None
        if rest.endswith(b"<unfinished ...>"):
            self._open[tid] = (name, start_ns, _UNFINISHED.sub(b"", rest))
            return None
        tail = _TAIL.fullmatch(rest)
        if tail is None:
            self._damage.lines += 1
            return None
        arguments, result, path, _, seconds, fraction = tail.groups()
        if result == b"?":
            return None
        value = int(result, 16) if result.startswith(b"0x") else int(result)
        end_ns = start_ns if seconds is None else start_ns + int(seconds + fraction) * _SCALE[len(fraction)]
        return _Call(tid, name, arguments, value, path, start_ns, end_ns, seconds is not None)


def _births(trace: Sequence[tuple[Path, int]]) -> _Births:
    """Child -> its births in order, since an id can be reused: parent, whether it shares the table of descriptors, and
    whether it is a thread of the same process. The child's first call may come before the return of the clone."""
    births: dict[int, deque[tuple[int, bool, bool]]] = defaultdict(deque)
    for path, tid in trace:
        lines = (line for line in text_lines(path, Damage()) if b"clone" in line or b"fork" in line)
        for call in _Calls(lines, tid, Damage()):
            if call.name in _BIRTHS and call.result > 0:
                found = _BIRTH_FLAGS.search(call.arguments)
                flags = found[1].split(b"|") if found else []
                is_thread = b"CLONE_THREAD" in flags
                births[call.result].append((call.tid, is_thread or b"CLONE_FILES" in flags, is_thread))
    return births


class _Reader:
    """Translates the calls of all traces of a job. `births`, `followed`: of the current one."""

    def __init__(self, paths: PathNumbers) -> None:
        self.paths, self.effects = paths, Effects()
        self.processes: list[TracedProcess] = []
        self.tids: list[int] = []
        self.folders: set[int] = set()
        self.sockets: Counter[bytes] = Counter()
        self._streams = StreamTotals()
        self._seen: set[bytes] = set()
        self._timed = False
        self._numbers: dict[bytes, int] = {}
        self._renamed: set[int] = set()

    def begin_trace(self, number: int, births: _Births) -> None:
        self._trace, self.births, self.followed = number, births, False
        self._alive: dict[int, _Task] = {}
        self._attached: _Task | None = None

    def warnings(self, unfollowed: int) -> list[str]:
        """`unfollowed`: threads of traces that followed none."""
        found = self._streams.warnings()
        if not self._timed:
            found.append("recorded without -T: every operation takes no time")
        if unfollowed:
            found.append(
                f"{format_counted(unfollowed, 'thread')} or processes were started and not traced, so it was recorded "
                "without -f: what they read and wrote is missing"
            )
        if not self._seen & {b"lseek", b"_llseek"} and self._seen & {b"read", b"write", b"readv", b"writev"}:
            found.append("the trace has no lseek: if -e trace= left it out, offsets are wrong behind each seek")
        return found

    def take(self, call: _Call) -> None:
        """Apply a call, or the end of a thread, whose id may be reused. Raises: ValueError, IndexError for damage."""
        self.followed = self.followed or call.tid in self.births
        if not call.name:
            self._alive.pop(call.tid, None)
            return
        self._timed = self._timed or call.timed
        task = self._alive.get(call.tid) or self._begin(call.tid, call)
        self._seen.add(call.name)
        if call.name not in _BIRTHS:
            if call.result >= 0:
                self._apply(task, call, *_EFFECTS[call.name])
        elif call.result > 0 and call.result not in self._alive and self.births.get(call.result):
            self._begin(call.result, call)  # with the current state of its parent, unless it was seen already

    def _begin(self, tid: int, call: _Call) -> _Task:
        """The thread begins: one that another made, a traced command, or one of a process to which strace attached."""
        births = self.births.get(tid)
        parent_tid, shares, is_thread = births.popleft() if births else (0, False, False)
        parent, descriptors = self._alive.get(parent_tid), {}
        attaches = parent is None and call.name != b"execve"
        if attaches:
            parent, shares, is_thread = self._attached, True, self._attached is not None
        if parent is not None:
            descriptors = parent.descriptors if shares else dict(parent.descriptors)
        if is_thread and parent is not None:
            process = parent.process
        else:
            above = None if parent is None else parent.process
            process = TracedProcess(
                number=len(self.processes), pid=tid, trace=self._trace, started_ns=call.start_ns, parent=above,
                exe="" if above is None else above.exe, attached=attaches,
            )  # fmt: skip
            self.processes.append(process)
        task = self._alive[tid] = _Task(len(self.tids), process, descriptors, b"" if parent is None else parent.cwd)
        if attaches and self._attached is None:
            self._attached = task
        self.tids.append(tid)
        return task

    # The file of a descriptor or a name.

    def _number(self, shown: bytes) -> int:
        """The file of a path as strace shows it."""
        number = self._numbers.get(shown)
        if number is None:
            path = _unescaped(shown).removesuffix(b" (deleted)")
            number = self._numbers[shown] = NOT_KEPT if _DEVICE.search(shown) else self.paths.number(path)
        elif number == NOT_KEPT:
            self.paths.number(_unescaped(shown).removesuffix(b" (deleted)"))  # counts it
        return number

    def _opened(self, task: _Task, arguments: bytes) -> OpenFile | None:
        """The file of the descriptor that is the first argument; None where it is not a file of the job."""
        found = _DESCRIPTOR.match(arguments)
        if found is None:
            return None
        descriptor = int(found[1])
        if descriptor <= _LAST_STREAM:
            # The job did not open this: it was started with it, by a shell that may have put a file there.
            task.descriptors.setdefault(descriptor, _STREAM)
        opened = task.descriptors.get(descriptor)
        number = NOT_KEPT if opened is _STREAM else self._number(found[2])
        if number == NOT_KEPT:
            return None
        if opened is None or (opened.file != number and number not in self._renamed):
            # Open since before the trace, or by a call that the trace lacks.
            opened = task.descriptors[descriptor] = OpenFile(number, UNKNOWN, task.process.number)
        opened.file = number
        return opened

    def _named(self, task: _Task, arguments: bytes, start: int = 0) -> tuple[int, int]:
        """The file in a name argument, which a folder may precede, and the index behind the name."""
        folder = _FOLDER.match(arguments, start)
        base = task.cwd if folder is None else _unescaped(folder[2])
        text = _TEXT.match(arguments, start if folder is None else folder.end())
        if text is None:
            return NOT_KEPT, start
        name = _unescaped(text[1])
        if not name and folder is not None:
            opened = self._opened(task, arguments[start:])
            return (NOT_KEPT if opened is None else opened.file), text.end()
        if folder is not None and folder[1] == b"AT_FDCWD":
            task.cwd = base
        path = _joined(base, name)
        return (self.paths.number(path) if path else NOT_KEPT), text.end()

    # The calls.

    def _apply(self, task: _Task, call: _Call, effect: str, what: Any) -> None:
        """The effect of a call, as `CALLS` names it."""
        arguments, result, effects = call.arguments, call.result, self.effects
        at = At(task.process, task.number, call.start_ns, call.end_ns)
        opened = self._opened(task, arguments) if effect in _OF_DESCRIPTORS else None
        match effect:
            case "move" | "move_at" if opened is not None:
                place = _OFFSET_PLACE.get(call.name, -1)
                offset = UNKNOWN if effect == "move" else int(arguments.rsplit(b",", -place)[place])
                effects.move(at, opened, what, result, offset)
            case "move" | "move_at":
                self._count_stream(task, arguments, result)
                self._note_socket(arguments, result if what == READ else 0)
            case "open":
                self._open(task, call, at)
            case "close":
                descriptor = _NUMBER.match(arguments)
                if descriptor is not None:
                    task.descriptors.pop(int(descriptor[1]), None)
                if opened is None:
                    self._note_socket(arguments, 0)
                else:
                    effects.close(at, opened)
            case "seek" if opened is not None:
                effects.seek(at, opened, result, only_asked=_ONLY_ASKED.search(arguments) is not None)
            case "stat":
                self._stat(task, call, at)
            case "map":
                parts = arguments.split(b", ", 4)
                if len(parts) == 5 and b"MAP_ANON" not in parts[3] and (mapped := self._opened(task, parts[4])):
                    effects.mapped.add(mapped.file)
            case "receive" if b"MSG_PEEK" not in arguments:  # peeked data are received again later
                self._note_socket(arguments, result)
            case "fcntl" if b"F_SETFL" in arguments and (changed := self._opened(task, arguments)):
                changed.append = b"O_APPEND" in arguments
            case "dup" | "fcntl" if effect == "dup" or b"F_DUPFD" in arguments:
                copied = self._opened(task, arguments)
                if self._is_stream(task, arguments):
                    task.descriptors[result] = _STREAM
                elif copied is None:
                    task.descriptors.pop(result, None)
                else:
                    task.descriptors[result] = copied
                    copied.descriptors += task.process.number == copied.owner
            case "sync" if opened is not None:
                effects.add(at, SYNC, opened.file)
            case "advise" if arguments.endswith(b"POSIX_FADV_SEQUENTIAL") and (read := self._opened(task, arguments)):
                effects.advise_sequential(read)
            case "rename":
                old, end = self._named(task, arguments)
                comma = arguments.find(b",", end)
                new, _ = self._named(task, arguments, comma + 1)
                if NOT_KEPT not in (old, new) and comma >= 0:
                    self._renamed.add(new)
                    effects.rename(at, old, new)
            case "copy" if (source := _DESCRIPTOR.match(arguments)) is not None:
                self._part(task, call, at, arguments, READ)
                rest = _OTHER_OFFSET.match(arguments, source.end())
                if rest is not None:
                    self._part(task, call, at, arguments[rest.end() + 1 :], WRITE)
            case "sendfile" if b", " in arguments:
                target, _, origin = arguments.partition(b", ")
                self._part(task, call, at, origin, READ)
                self._part(task, call, at, target, WRITE)
            case "chdir":
                folder, text = _DESCRIPTOR.match(arguments), _TEXT.match(arguments)
                if folder is not None:
                    task.cwd = _unescaped(folder[2])
                elif text is not None:
                    task.cwd = _joined(task.cwd, _unescaped(text[1]))
            case "exec" if (program := _TEXT.match(arguments)) is not None:
                task.process.exe = _unescaped(program[1]).decode("utf-8", "backslashreplace")
                task.process.executed = True
            case "change":
                number = self._named(task, arguments)[0] if opened is None else opened.file
                if number != NOT_KEPT:
                    effects.change(what, number, int(arguments.rsplit(b",", 1)[1]) if what == "truncate" else 0)
            case "hidden":
                effects.hide(at, what)

    def _open(self, task: _Task, call: _Call, at: At) -> None:
        flags = _FLAGS.search(call.arguments)
        names = flags[1].decode("ascii", "replace").split("|") if flags else []
        if call.name == b"creat":
            names = ["O_CREAT", "O_WRONLY", "O_TRUNC"]
        if call.path is not None and ("O_DIRECTORY" in names or "O_PATH" in names):
            self._numbers[call.path] = NOT_KEPT
        number = NOT_KEPT if call.path is None else self._number(call.path)
        if number == NOT_KEPT:
            task.descriptors.pop(call.result, None)
        else:
            task.descriptors[call.result] = self.effects.open(at, number, names)

    def _stat(self, task: _Task, call: _Call, at: At) -> None:
        if not _REGULAR.search(call.arguments):
            found = _NUMBER.match(call.arguments)
            if b"S_IFDIR" in call.arguments and found is not None and int(found[1]) in task.descriptors:
                self.folders.add(task.descriptors[int(found[1])].file)  # opened like a file, as `shutil.rmtree` does
            return
        opened = self._opened(task, call.arguments) if call.name.startswith(b"fstat") else None
        number = self._named(task, call.arguments)[0] if opened is None else opened.file
        if number != NOT_KEPT:
            if (size := _SIZE.search(call.arguments)) is not None:
                self.effects.resize(number, int(size[1]))
            self.effects.add(at, STAT, number)

    def _part(self, task: _Task, call: _Call, at: At, arguments: bytes, op: int) -> None:
        """The read or write of a call that does both; an offset may follow the descriptor."""
        opened, found = self._opened(task, arguments), _DESCRIPTOR.match(arguments)
        if opened is None or found is None:
            self._count_stream(task, arguments, call.result)
            return
        own = _OTHER_OFFSET.match(arguments, found.end())
        offset = UNKNOWN if own is None or own[2] is None else int(own[2])
        self.effects.move(at, opened, op, call.result, offset)

    def _is_stream(self, task: _Task, arguments: bytes) -> bool:
        """Whether the descriptor in the first argument is a standard stream; call after `_opened`."""
        found = _NUMBER.match(arguments)
        return found is not None and task.descriptors.get(int(found[1])) is _STREAM

    def _count_stream(self, task: _Task, arguments: bytes, moved: int) -> None:
        if self._is_stream(task, arguments):
            self._streams.add(1, moved)

    def _note_socket(self, arguments: bytes, received: int) -> None:
        """Also of calls that receive nothing, because they show which ends of connections are the job's own."""
        found = _SOCKET.match(arguments)
        if found is not None:
            self.sockets[found[1]] += received


def _received(sockets: Mapping[bytes, int]) -> tuple[dict[str, int], int]:
    """Bytes by "address:port" of the peer, without what processes of the job sent each other, and the bytes on sockets
    whose ends the trace does not show. strace -yy shows both ends of a connection, -y the number of the socket."""
    found, of_unknown = [], 0
    for shown, received in sockets.items():
        ends = _ENDS.fullmatch(shown.decode("ascii", "backslashreplace"))
        if ends is None:
            of_unknown += received
        else:
            found.append((_BRACKETS.sub(r"\1", ends[1]), _BRACKETS.sub(r"\1", ends[2]), received))
    ours = {own for own, _, _ in found}
    peers: Counter[str] = Counter()
    for _, peer, received in found:
        if peer not in ours and received:
            peers[peer] += received
    return dict(sorted(peers.items())), of_unknown


def _joined(folder: bytes, name: bytes) -> bytes:
    """An absolute path without `.` and `..`; b"" if the folder is needed and unknown."""
    path = name if name.startswith(b"/") else folder + b"/" + name
    return without_dots(path) if name.startswith(b"/") or folder.startswith(b"/") else b""


def _unescaped(text: bytes) -> bytes:
    """The bytes that a quoted text or a path of strace stands for."""

    def byte(match: re.Match[bytes]) -> bytes:
        found = match[1]
        return bytes([int(found, 8) & 255]) if found[:1].isdigit() else _LETTERS.get(found, found)

    return _ESCAPE.sub(byte, text) if b"\\" in text else text
