"""The effect of each system call on descriptors, positions and files, and its operations in a capture.

Calls and arguments are those of the manual pages, section 2, in the form that strace prints with -y.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence

from dxt_replay.profiler_merge.tracers.open_files import STANDARD_STREAM, UNKNOWN, OpenFile, Positions, open_flags
from dxt_replay.profiler_merge.tracers.path_numbers import NOT_KEPT, PathNumbers
from dxt_replay.profiler_merge.tracers.strace.sockets import Sockets
from dxt_replay.profiler_merge.tracers.strace.strace_lines import Call, unescape
from dxt_replay.profiler_merge.tracers.strace.tasks import BIRTHS, Task, Tasks
from dxt_replay.profiler_merge.tracers.traced_rows import TracedRows
from dxt_replay.traces.file_rows import without_dots
from dxt_replay.traces.schema import APIS, OPEN_FLAGS, OPS, READ, WRITE
from dxt_replay.traces.unseen import StreamTotals

POSIX = APIS.index("POSIX")
_SEQUENTIAL = 1 << OPEN_FLAGS.index("sequential")
OPEN, CLOSE, STAT, SYNC, SEEK, RENAME = (OPS.index(op) for op in ("open", "close", "stat", "sync", "seek", "rename"))

_DESCRIPTOR = re.compile(rb"\s*(\d+)<((?:[^>\\]|\\.)*)>(\(deleted\))?")
_DEVICE = re.compile(rb"<(char|block) [\d:]+\Z")
"""Suffix of a path with -yy, up to the first bracket; a bracket in the path itself is escaped."""
_NUMBER = re.compile(rb"\s*(\d+)")
_FOLDER = re.compile(rb"\s*(?:AT_FDCWD|\d+)<((?:[^>\\]|\\.)*)>(?:\(deleted\))?,\s*")
_TEXT = re.compile(rb'\s*"((?:[^"\\]|\\.)*)"')
_SIZE = re.compile(rb"(?:st|stx)_size=(\d+)")
_REGULAR = re.compile(rb"(?:st|stx)_mode=S_IFREG")
_FLAGS = re.compile(rb"\b(O_[A-Z_|0-9a-z]+)")
_OTHER_OFFSET = re.compile(rb",\s*(NULL|\[(\d+)\](?: => \[\d+\])?)")

_AT_POSITION = {b"read": READ, b"readv": READ, b"write": WRITE, b"writev": WRITE}
_AT_OFFSET = {
    b"pread64": (READ, -1), b"pwrite64": (WRITE, -1), b"preadv": (READ, -1), b"pwritev": (WRITE, -1),
    b"preadv2": (READ, -2), b"pwritev2": (WRITE, -2),
}  # fmt: skip
"""Call -> operation, and the index from the end of the argument with the offset."""

NOT_REPLAYED = {
    b"unlink": "unlink", b"unlinkat": "unlink", b"mkdir": "mkdir", b"mkdirat": "mkdir", b"rmdir": "rmdir",
    b"truncate": "truncate", b"ftruncate": "truncate", b"fallocate": "fallocate", b"link": "link",
    b"linkat": "link", b"symlink": "symlink", b"symlinkat": "symlink",
}  # fmt: skip
"""Calls that change files and have no operation in a capture."""
_LAST_STREAM = 2
"""Standard error: the last of the descriptors with which a program is started."""
HIDDEN = {b"io_uring_enter": "io_uring", b"io_submit": "io_submit"}
"""Calls that move data that the trace does not show."""


class SystemCalls:
    """Turns calls into operations.

    seen: calls of each name. mapped: files of which parts were mapped. folders: opened files that are folders.
    sockets: bytes received on them.
    streams: totals of standard streams. hidden: as of `TracedJob`.
    """

    def __init__(self, rows: TracedRows, paths: PathNumbers) -> None:
        self._rows, self._paths = rows, paths
        self.positions = Positions()
        self.seen: Counter[bytes] = Counter()
        self.left_out: Counter[str] = Counter()
        self.mapped: set[int] = set()
        self.hidden: set[str] = set()
        self.folders: set[int] = set()
        self.sockets = Sockets()
        self.streams = StreamTotals()
        self._numbers: dict[bytes, int] = {}
        self._renamed: set[int] = set()
        self._effects: dict[bytes, Callable[[Task, Call], None]] = {
            **dict.fromkeys(_AT_POSITION, self._move),
            **dict.fromkeys(_AT_OFFSET, self._move_at),
            **dict.fromkeys((b"recvfrom", b"recvmsg"), self._receive),
            **dict.fromkeys((b"open", b"openat", b"openat2", b"creat"), self._open),
            **dict.fromkeys((b"dup", b"dup2", b"dup3"), self._dup),
            **dict.fromkeys((b"fsync", b"fdatasync", b"sync_file_range", b"syncfs"), self._sync),
            **dict.fromkeys((b"stat", b"lstat", b"fstat", b"newfstatat", b"fstatat64", b"statx"), self._stat),
            **dict.fromkeys((b"stat64", b"lstat64", b"fstat64"), self._stat),
            **dict.fromkeys((b"rename", b"renameat", b"renameat2"), self._rename),
            **dict.fromkeys((b"chdir", b"fchdir"), self._chdir),
            **dict.fromkeys(NOT_REPLAYED, self._not_replayed),
            **dict.fromkeys(HIDDEN, self._hidden),
            b"close": self._close, b"lseek": self._seek, b"_llseek": self._seek, b"fcntl": self._fcntl,
            b"fadvise64": self._advise,
            b"mmap": self._mmap, b"mmap2": self._mmap, b"sendfile": self._sendfile, b"sendfile64": self._sendfile,
            b"copy_file_range": self._copy, b"splice": self._copy, b"execve": self._exec,
        }  # fmt: skip

    def wanted(self, name: bytes) -> bool:
        """Whether calls of this name have a meaning here."""
        return name in self._effects or name in BIRTHS

    def apply(self, call: Call, tasks: Tasks) -> None:
        """Apply the effect of a call. Calls come in the order of their returns."""
        task = tasks.of(call)
        self.seen[call.name] += 1
        if call.name in BIRTHS:
            tasks.born(call)
        elif call.result >= 0:
            self._effects[call.name](task, call)

    # The file of a descriptor or a name.

    def _number(self, shown: bytes) -> int:
        """The file of a path as strace shows it."""
        number = self._numbers.get(shown)
        if number is None:
            is_device = _DEVICE.search(shown) is not None
            path = unescape(shown).removesuffix(b" (deleted)")
            number = self._numbers[shown] = NOT_KEPT if is_device else self._paths.number(path)
        elif number == NOT_KEPT:
            self._paths.number(unescape(shown))
        return number

    def _opened(self, task: Task, arguments: bytes) -> OpenFile | None:
        """The file of the descriptor that is the first argument; None where it is not a file of the job."""
        found = _DESCRIPTOR.match(arguments)
        if found is None:
            return None
        descriptor = int(found[1])
        if descriptor <= _LAST_STREAM:
            # The job did not open this: it was started with it, by a shell that may have put a file there.
            task.descriptors.setdefault(descriptor, STANDARD_STREAM)
        opened = task.descriptors.get(descriptor)
        number = NOT_KEPT if opened is STANDARD_STREAM else self._number(found[2])
        if number == NOT_KEPT:
            return None
        if opened is None or (opened.file != number and number not in self._renamed):
            # Open since before the trace, or by a call that the trace lacks.
            opened = task.descriptors[descriptor] = OpenFile(number, UNKNOWN, task.process.number)
        opened.file = number
        return opened

    def _moving(self, task: Task, arguments: bytes, moved: int) -> OpenFile | None:
        """As `_opened` for a call that moved bytes; counts those of a standard stream."""
        opened = self._opened(task, arguments)
        if opened is None and _is_stream(task, arguments):
            self.streams.add(1, moved)
        return opened

    def _named(self, task: Task, arguments: bytes, start: int = 0) -> tuple[int, int]:
        """The file in a name argument, which a folder may precede, and the index behind the name."""
        folder = _FOLDER.match(arguments, start)
        base = task.cwd if folder is None else unescape(folder[1])
        text = _TEXT.match(arguments, start if folder is None else folder.end())
        if text is None:
            return NOT_KEPT, start
        name = unescape(text[1])
        if not name and folder is not None:
            opened = self._opened(task, arguments[start:])
            return (NOT_KEPT if opened is None else opened.file), text.end()
        if folder is not None and b"AT_FDCWD" in arguments[start : folder.start(1)]:
            task.cwd = base
        path = _joined(base, name)
        return (NOT_KEPT if path is None else self._paths.number(path)), text.end()

    def _add(
        self,
        task: Task,
        call: Call,
        op: int,
        file: int,
        offset: int = -1,
        length: int = 0,
        other_file: int = -1,
        open_flags: int = -1,
    ) -> int:
        """Returns the number of the row."""
        task.process.operations += 1
        times = call.start_ns, call.end_ns
        return self._rows.add(
            (task.process.number, task.number, file, op, POSIX, offset, length, *times, other_file, open_flags)
        )

    # The calls.

    def _move(self, task: Task, call: Call) -> None:
        opened, op = self._moving(task, call.arguments, call.result), _AT_POSITION[call.name]
        if opened is not None:
            offset = self.positions.moved(opened, call.result, is_write=op == WRITE)
            self._add(task, call, op, opened.file, offset, call.result)
        else:
            self.sockets.note(call.arguments, call.result if op == READ else 0)

    def _receive(self, task: Task, call: Call) -> None:
        if b"MSG_PEEK" not in call.arguments:  # peeked data are received again later
            self.sockets.note(call.arguments, call.result)

    def _move_at(self, task: Task, call: Call) -> None:
        opened = self._moving(task, call.arguments, call.result)
        if opened is None:
            return
        op, place = _AT_OFFSET[call.name]
        offset = int(call.arguments.rsplit(b",", -place)[place])
        if offset == -1:
            offset = self.positions.moved(opened, call.result, is_write=op == WRITE)
        elif op == WRITE:
            self.positions.grow(opened.file, offset + call.result)
        self._add(task, call, op, opened.file, offset, call.result)

    def _open(self, task: Task, call: Call) -> None:
        flags = _FLAGS.search(call.arguments)
        words = flags[1].split(b"|") if flags else []
        if call.path is not None and (b"O_DIRECTORY" in words or b"O_PATH" in words):
            self._numbers[call.path] = NOT_KEPT
        number = NOT_KEPT if call.path is None else self._number(call.path)
        if number == NOT_KEPT:
            task.descriptors.pop(call.result, None)
            return
        if b"O_TRUNC" in words or b"O_EXCL" in words or call.name == b"creat":
            self.positions.truncate(number)
        row = self._add(task, call, OPEN, number, open_flags=_open_flags(call.name, words))
        append = b"O_APPEND" in words
        task.descriptors[call.result] = OpenFile(number, 0, task.process.number, append=append, row=row)

    def _close(self, task: Task, call: Call) -> None:
        opened = self._opened(task, call.arguments)
        descriptor = _NUMBER.match(call.arguments)
        if descriptor is not None:
            task.descriptors.pop(int(descriptor[1]), None)
        if opened is None:
            self.sockets.note(call.arguments, 0)
        elif opened.closed_by(task.process.number):
            self._add(task, call, CLOSE, opened.file)

    def _seek(self, task: Task, call: Call) -> None:
        opened = self._opened(task, call.arguments)
        if opened is not None:
            only_asked = re.search(rb",\s*0,\s*SEEK_CUR", call.arguments) is not None
            self.positions.seek(opened, call.result, only_asked=only_asked)
            self._add(task, call, SEEK, opened.file, call.result)

    def _dup(self, task: Task, call: Call) -> None:
        opened = self._opened(task, call.arguments)
        if _is_stream(task, call.arguments):
            task.descriptors[call.result] = STANDARD_STREAM
        elif opened is None:
            task.descriptors.pop(call.result, None)
        else:
            task.descriptors[call.result] = opened
            opened.descriptors += task.process.number == opened.owner

    def _fcntl(self, task: Task, call: Call) -> None:
        if b"F_DUPFD" in call.arguments:
            self._dup(task, call)
        elif b"F_SETFL" in call.arguments and (opened := self._opened(task, call.arguments)) is not None:
            opened.append = b"O_APPEND" in call.arguments

    def _sync(self, task: Task, call: Call) -> None:
        opened = self._opened(task, call.arguments)
        if opened is not None:
            self._add(task, call, SYNC, opened.file)

    def _stat(self, task: Task, call: Call) -> None:
        if not _REGULAR.search(call.arguments):
            found = _NUMBER.match(call.arguments)
            if b"S_IFDIR" in call.arguments and found is not None and int(found[1]) in task.descriptors:
                self.folders.add(task.descriptors[int(found[1])].file)  # opened like a file, as `shutil.rmtree` does
            return
        opened = self._opened(task, call.arguments) if call.name.startswith(b"fstat") else None
        number = self._named(task, call.arguments)[0] if opened is None else opened.file
        if number == NOT_KEPT:
            return
        size = _SIZE.search(call.arguments)
        if size is not None:
            self.positions.truncate(number, int(size[1]))
        self._add(task, call, STAT, number)

    def _rename(self, task: Task, call: Call) -> None:
        old, end = self._named(task, call.arguments)
        comma = call.arguments.find(b",", end)
        new, _ = self._named(task, call.arguments, comma + 1)
        if NOT_KEPT in (old, new) or comma < 0:
            return
        self._renamed.add(new)
        self.positions.truncate(new, self.positions.sizes.get(old, 0))
        self._add(task, call, RENAME, old, other_file=new)

    def _chdir(self, task: Task, call: Call) -> None:
        folder, text = _DESCRIPTOR.match(call.arguments), _TEXT.match(call.arguments)
        if folder is not None:
            task.cwd = unescape(folder[2])
        elif text is not None:
            task.cwd = _joined(task.cwd, unescape(text[1])) or b""

    def _exec(self, task: Task, call: Call) -> None:
        found = _TEXT.match(call.arguments)
        if found is not None:
            task.process.exe = unescape(found[1]).decode("utf-8", "backslashreplace")
            task.process.executed = True

    def _advise(self, task: Task, call: Call) -> None:
        if call.arguments.endswith(b"POSIX_FADV_SEQUENTIAL"):
            opened = self._opened(task, call.arguments)
            if opened is not None:
                self._rows.add_open_flags(opened.row, _SEQUENTIAL)

    def _mmap(self, task: Task, call: Call) -> None:
        parts = call.arguments.split(b", ", 4)
        if len(parts) == 5 and b"MAP_ANON" not in parts[3]:
            opened = self._opened(task, parts[4])
            if opened is not None:
                self.mapped.add(opened.file)

    def _sendfile(self, task: Task, call: Call) -> None:
        parts = call.arguments.split(b", ", 1)
        if len(parts) == 2:
            self._part(task, call, parts[1], READ)
            self._part(task, call, parts[0], WRITE)

    def _copy(self, task: Task, call: Call) -> None:
        source = _DESCRIPTOR.match(call.arguments)
        if source is None:
            return
        self._part(task, call, call.arguments, READ)
        rest = _OTHER_OFFSET.match(call.arguments, source.end())
        if rest is not None:
            self._part(task, call, call.arguments[rest.end() + 1 :], WRITE)

    def _part(self, task: Task, call: Call, arguments: bytes, op: int) -> None:
        """The read or write of a call that does both; an offset may follow the descriptor."""
        opened, found = self._moving(task, arguments, call.result), _DESCRIPTOR.match(arguments)
        if opened is None or found is None:
            return
        own = _OTHER_OFFSET.match(arguments, found.end())
        if own is None or own[2] is None:
            offset = self.positions.moved(opened, call.result, is_write=op == WRITE)
        else:
            offset = int(own[2])
            if op == WRITE:
                self.positions.grow(opened.file, offset + call.result)
        self._add(task, call, op, opened.file, offset, call.result)

    def _not_replayed(self, task: Task, call: Call) -> None:
        opened = self._opened(task, call.arguments)
        number = self._named(task, call.arguments)[0] if opened is None else opened.file
        if number != NOT_KEPT:
            what = NOT_REPLAYED[call.name]
            self.left_out[what] += 1
            if what == "unlink":
                self.positions.truncate(number)
            elif what == "truncate":
                self.positions.truncate(number, int(call.arguments.rsplit(b",", 1)[1]))

    def _hidden(self, task: Task, call: Call) -> None:
        self.left_out[HIDDEN[call.name]] += 1
        self.hidden.add(f"{task.process.exe.rpartition('/')[2]} by {HIDDEN[call.name]}")


def _is_stream(task: Task, arguments: bytes) -> bool:
    """Whether the descriptor in the first argument is a standard stream; call after `_opened`."""
    found = _NUMBER.match(arguments)
    return found is not None and task.descriptors.get(int(found[1])) is STANDARD_STREAM


def _joined(folder: bytes, name: bytes) -> bytes | None:
    """An absolute path without `.` and `..`; None if the folder is needed and unknown."""
    if not name.startswith(b"/"):
        if not folder.startswith(b"/"):
            return None
        name = folder + b"/" + name
    return without_dots(name)


def _open_flags(call: bytes, words: Sequence[bytes]) -> int:
    names = [word.decode("ascii", "replace") for word in words]
    return open_flags(["O_CREAT", "O_WRONLY", "O_TRUNC"] if call == b"creat" else names)
