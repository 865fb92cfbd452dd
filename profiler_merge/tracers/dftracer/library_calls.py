"""The calls that DFTracer intercepted, as operations of a capture. They are functions of libc, not system calls.

Up to 1.0 an event has its descriptor. In 2.x it has only the file, so two descriptors of one process on a file cannot
be told apart: offsets are suspect while a file is open more than once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from dxt_replay.profiler_merge.tracers.dftracer.pfw_events import Arguments, PfwEvent, number
from dxt_replay.profiler_merge.tracers.open_files import UNKNOWN, OpenFile, Positions, open_flags
from dxt_replay.profiler_merge.tracers.path_numbers import NOT_KEPT
from dxt_replay.profiler_merge.tracers.traced_job import TracedProcess
from dxt_replay.profiler_merge.tracers.traced_rows import TracedRows
from dxt_replay.traces.schema import APIS, OPS, READ, WRITE

_POSIX, _STDIO = APIS.index("POSIX"), APIS.index("STDIO")
_OPEN, _CLOSE, _STAT, _SYNC, _SEEK = (OPS.index(op) for op in ("open", "close", "stat", "sync", "seek"))
_NO_FILE = -1
"""`TRACED_ROW.other_file` of every operation: the trace has no rename with both names."""
_CREAT, _TRUNC, _APPEND, _EXCL = 0o100, 0o1000, 0o2000, 0o200
_NAMES = {
    _CREAT: "O_CREAT", _EXCL: "O_EXCL", _TRUNC: "O_TRUNC", _APPEND: "O_APPEND", 0o10000: "O_DSYNC",
    # O_DIRECT is the first on x86 and the second on ARM, where the other one is O_DIRECTORY: no file opens with that.
    0o40000: "O_DIRECT", 0o200000: "O_DIRECT",
}  # fmt: skip
_ACCESS = ("O_RDONLY", "O_WRONLY", "O_RDWR")
"""Flags of open(2) on Linux."""
_SEEK_SET, _SEEK_CUR = 0, 1

_MOVES = {"read": READ, "readv": READ, "write": WRITE, "writev": WRITE}
_MOVES_AT = {
    "pread": READ, "pread64": READ, "preadv": READ, "preadv64": READ,
    "pwrite": WRITE, "pwrite64": WRITE, "pwritev": WRITE, "pwritev64": WRITE,
}  # fmt: skip
_STATS = ("stat", "lstat", "fstat", "__xstat", "__lxstat", "__fxstat", "fstatat", "statx")
_CHANGES = {
    "unlink": "unlink", "unlinkat": "unlink", "mkdir": "mkdir", "rmdir": "rmdir", "ftruncate": "truncate",
    "truncate": "truncate", "link": "link", "symlink": "symlink", "openat": "openat",
}  # fmt: skip
"""Calls without an operation in a capture; for an openat the trace has only the folder's name."""


@dataclass(slots=True, eq=False)
class CallingProcess:
    """A process and its open files: by descriptor, or by (interface, file) if the trace has no descriptors."""

    process: TracedProcess
    descriptors: dict[int, OpenFile] = field(default_factory=dict)
    streams: dict[tuple[int, int], list[OpenFile]] = field(default_factory=dict)
    threads: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Context:
    """One event with its context."""

    caller: CallingProcess
    thread: int
    file: int
    args: Arguments
    start_ns: int
    end_ns: int


class LibraryCalls:
    """Turns events into operations. `mapped`: files that were mapped; `left_out`: calls without an operation in a
    capture."""

    def __init__(self, rows: TracedRows) -> None:
        self._rows = rows
        self.positions = Positions()
        self.mapped: set[int] = set()
        self.left_out: Counter[str] = Counter()
        self._opened_files: set[int] = set()
        self._unsure: dict[int, list[_Context]] = {}
        self._posix: dict[str, Callable[[_Context, str], None]] = {
            **dict.fromkeys(_MOVES, self._move),
            **dict.fromkeys(_MOVES_AT, self._move_at),
            **dict.fromkeys((f"{name}{end}" for name in _STATS for end in ("", "64")), self._stat),
            **dict.fromkeys(("open", "open64", "creat", "creat64"), self._open),
            **dict.fromkeys(("lseek", "lseek64"), self._seek),
            **dict.fromkeys(("fsync", "fdatasync"), self._sync),
            **dict.fromkeys(("mmap", "mmap64"), self._mmap),
            **dict.fromkeys(_CHANGES, self._change),
            "close": self._close,
        }
        self._stdio: dict[str, Callable[[_Context, str], None]] = {
            **dict.fromkeys(("fopen", "fopen64"), self._open_stream),
            **dict.fromkeys(("fseek", "fseeko", "fseeko64"), self._seek_stream),
            "fread": self._move_stream,
            "fwrite": self._move_stream,
            "fclose": self._close_stream,
            "fflush": self._flush_stream,
        }

    def finish(self) -> None:
        """Keep the stats of files that were never opened: nothing contradicts them."""
        for file in list(self._unsure):
            self._settle(file, existed=True)

    def known(self, event: PfwEvent) -> bool:
        """Whether an event is an operation."""
        return event.name in (self._posix if event.cat == "POSIX" else self._stdio)

    def apply(self, event: PfwEvent, caller: CallingProcess, thread: int, file: int, times: tuple[int, int]) -> None:
        """Apply the effect of a call. `file`: its number."""
        if file != NOT_KEPT and event.args is not None:
            effects = self._posix if event.cat == "POSIX" else self._stdio
            effects[event.name](_Context(caller, thread, file, event.args, *times), event.name)

    def _add(
        self, at: _Context, op: int, api: int = _POSIX, offset: int = -1, length: int = 0, open_flags: int = -1
    ) -> None:
        process = at.caller.process
        process.operations += 1
        times = at.start_ns, at.end_ns
        self._rows.add((process.number, at.thread, at.file, op, api, offset, length, *times, _NO_FILE, open_flags))

    def _settle(self, file: int, *, existed: bool) -> None:
        """At the first open of a file, decide whether earlier stats, whose results the trace lacks, succeeded or
        failed."""
        self._opened_files.add(file)
        for at in self._unsure.pop(file, ()):
            if existed:
                self._add(at, _STAT)
            else:
                self.left_out["stat of a file that did not exist yet"] += 1

    # The open file of a call.

    def _opened(self, at: _Context) -> OpenFile:
        """The open file of a call, by descriptor, else the latest one of the process on the file."""
        descriptor = number(at.args.fd)
        if descriptor < 0:
            return self._latest(at, _POSIX)
        opened = at.caller.descriptors.get(descriptor)
        if opened is None or opened.file != at.file:
            opened = at.caller.descriptors[descriptor] = OpenFile(at.file, UNKNOWN, at.caller.process.number)
        return opened

    def _latest(self, at: _Context, api: int) -> OpenFile:
        several = at.caller.streams.setdefault((api, at.file), [])
        if not several:
            several.append(OpenFile(at.file, UNKNOWN, at.caller.process.number))
        return several[-1]

    def _begin(self, at: _Context, opened: OpenFile, api: int) -> None:
        at.caller.streams.setdefault((api, at.file), []).append(opened)

    def _end(self, at: _Context, api: int) -> None:
        several = at.caller.streams.get((api, at.file))
        if several:
            several.pop()

    def _transfer(self, at: _Context, opened: OpenFile, op: int, api: int, length: int) -> None:
        offset = self.positions.moved(opened, length, is_write=op == WRITE)
        if offset != UNKNOWN and len(at.caller.streams.get((api, at.file), ())) > 1:
            self.positions.suspect[at.file] += 1
        self._add(at, op, api, offset, length)

    # Calls on descriptors.

    def _open(self, at: _Context, name: str) -> None:
        descriptor = number(at.args.ret, missing=0)
        if descriptor < 0:
            return
        flags = number(at.args.flags, missing=0)
        if at.file not in self._opened_files:
            self._settle(at.file, existed=not (flags & _CREAT or name.startswith("creat")))
        if flags & (_TRUNC | _EXCL) or name.startswith("creat"):
            self.positions.truncate(at.file)
        opened = OpenFile(at.file, 0, at.caller.process.number, append=bool(flags & _APPEND))
        if at.args.ret is None:
            self._begin(at, opened, _POSIX)
        else:
            at.caller.descriptors[descriptor] = opened
        self._add(at, _OPEN, open_flags=_open_flags(name, None if at.args.flags is None else flags))

    def _close(self, at: _Context, name: str) -> None:
        if number(at.args.ret, missing=0) < 0:
            return
        if at.args.fd is None:
            self._end(at, _POSIX)
        else:
            opened = at.caller.descriptors.pop(number(at.args.fd), None)
            if opened is not None and opened.owner != at.caller.process.number:
                return
        self._add(at, _CLOSE)

    def _move(self, at: _Context, name: str) -> None:
        length = number(at.args.ret)
        if length >= 0:
            self._transfer(at, self._opened(at), _MOVES[name], _POSIX, length)

    def _move_at(self, at: _Context, name: str) -> None:
        length, offset = number(at.args.ret), number(at.args.offset)
        if length >= 0:
            op = _MOVES_AT[name]
            if op == WRITE:
                self.positions.grow(at.file, offset + length)
            self._add(at, op, _POSIX, offset, length)

    def _seek(self, at: _Context, name: str) -> None:
        position = number(at.args.ret)
        if position >= 0:
            only_asked = number(at.args.whence) == _SEEK_CUR and number(at.args.offset) == 0
            self.positions.seek(self._opened(at), position, only_asked=only_asked)
            self._add(at, _SEEK, _POSIX, position)

    def _stat(self, at: _Context, name: str) -> None:
        if at.args.ret is None and at.args.fd is None and at.file not in self._opened_files:
            self._unsure.setdefault(at.file, []).append(at)
        elif number(at.args.ret, missing=0) >= 0:
            self._add(at, _STAT)

    def _sync(self, at: _Context, name: str) -> None:
        self._add(at, _SYNC)

    def _mmap(self, at: _Context, name: str) -> None:
        self.mapped.add(at.file)

    def _change(self, at: _Context, name: str) -> None:
        self.left_out[_CHANGES[name]] += 1
        if name == "ftruncate":
            self.positions.truncate(at.file, max(number(at.args.length), 0))

    # Calls on C streams, of which the trace has only the file.

    def _open_stream(self, at: _Context, name: str) -> None:
        mode = str(at.args.mode or "r")
        if at.file not in self._opened_files:
            self._settle(at.file, existed=mode.startswith("r"))
        if mode.startswith("w"):
            self.positions.truncate(at.file)
        self._begin(at, OpenFile(at.file, 0, at.caller.process.number, append=mode.startswith("a")), _STDIO)
        self._add(at, _OPEN, _STDIO)

    def _move_stream(self, at: _Context, name: str) -> None:
        items = number(at.args.ret)
        if items >= 0:
            length = items * max(number(at.args.size), 0)
            self._transfer(at, self._latest(at, _STDIO), READ if name == "fread" else WRITE, _STDIO, length)

    def _seek_stream(self, at: _Context, name: str) -> None:
        opened, offset, whence = self._latest(at, _STDIO), number(at.args.offset), number(at.args.whence)
        if whence == _SEEK_SET:
            opened.position = max(offset, 0)
        elif whence == _SEEK_CUR and opened.position != UNKNOWN:
            opened.position = max(opened.position + offset, 0)
        else:
            opened.position = UNKNOWN
        self._add(at, _SEEK, _STDIO, opened.position)

    def _close_stream(self, at: _Context, name: str) -> None:
        self._end(at, _STDIO)
        self._add(at, _CLOSE, _STDIO)

    def _flush_stream(self, at: _Context, name: str) -> None:
        self._add(at, _SYNC, _STDIO)


def _open_flags(name: str, flags: int | None) -> int:
    """As of the schema, from the numbers of Linux; UNKNOWN for None."""
    if name.startswith("creat"):
        return open_flags(["O_CREAT", "O_WRONLY", "O_TRUNC"])
    if flags is None or flags & 3 >= len(_ACCESS):
        return UNKNOWN
    return open_flags([_ACCESS[flags & 3], *(each for bit, each in _NAMES.items() if flags & bit)])
