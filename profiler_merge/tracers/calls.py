"""What traced calls do to descriptors, positions and files: one table for all tracers, and its effects as operations.

A position belongs to the open file description: dup and fork share it, each open makes a new one (open(2), fork(2)).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import NamedTuple

from dxt_replay.profiler_merge.tracers.traced_job import MOST, TracedProcess, TracedRows
from dxt_replay.traces.schema import APIS, OPEN_FLAGS, OPS, READ, WRITE
from dxt_replay.traces.units import format_counted

POSIX, STDIO = APIS.index("POSIX"), APIS.index("STDIO")
OPEN, CLOSE, STAT, SYNC, SEEK, RENAME = (OPS.index(op) for op in ("open", "close", "stat", "sync", "seek", "rename"))
UNKNOWN = NOT_KEPT = -1

_STATS = ("stat", "lstat", "fstat", "__xstat", "__lxstat", "__fxstat", "fstatat", "statx")
_EFFECTS: Mapping[tuple[str, int | str], Sequence[str]] = {
    ("move", READ): ("read", "readv"),
    ("move", WRITE): ("write", "writev"),
    ("move_at", READ): ("pread", "pread64", "preadv", "preadv64", "preadv2"),
    ("move_at", WRITE): ("pwrite", "pwrite64", "pwritev", "pwritev64", "pwritev2"),
    ("copy", READ): ("copy_file_range", "splice"),
    ("sendfile", READ): ("sendfile", "sendfile64"),
    ("receive", READ): ("recvfrom", "recvmsg"),
    ("open", OPEN): ("open", "open64", "openat", "openat2", "creat", "creat64"),
    ("close", CLOSE): ("close",),
    ("dup", ""): ("dup", "dup2", "dup3"),
    ("fcntl", ""): ("fcntl",),
    ("advise", ""): ("fadvise64",),
    ("seek", SEEK): ("lseek", "lseek64", "_llseek"),
    ("stat", STAT): (*_STATS, *(f"{name}64" for name in _STATS), "newfstatat"),
    ("sync", SYNC): ("fsync", "fdatasync", "sync_file_range", "syncfs"),
    ("rename", RENAME): ("rename", "renameat", "renameat2"),
    ("map", ""): ("mmap", "mmap2", "mmap64"),
    ("chdir", ""): ("chdir", "fchdir"),
    ("exec", ""): ("execve",),
    ("change", "unlink"): ("unlink", "unlinkat"),
    ("change", "mkdir"): ("mkdir", "mkdirat"),
    ("change", "rmdir"): ("rmdir",),
    ("change", "truncate"): ("truncate", "ftruncate"),
    ("change", "fallocate"): ("fallocate",),
    ("change", "link"): ("link", "linkat"),
    ("change", "symlink"): ("symlink", "symlinkat"),
    ("hidden", "io_uring"): ("io_uring_enter",),
    ("hidden", "io_submit"): ("io_submit",),
}
CALLS = {name: effect for effect, names in _EFFECTS.items() for name in names}
"""System call or function of libc -> its effect, and the operation. A `change` has none in a capture, and what `hidden`
moves no tracer shows."""

_FLAG = {name: 1 << number for number, name in enumerate(OPEN_FLAGS)}
_FLAGS_OF_NAME = {
    "O_RDONLY": _FLAG["read"], "O_WRONLY": _FLAG["write"], "O_RDWR": _FLAG["read"] | _FLAG["write"],
    "O_APPEND": _FLAG["append"], "O_CREAT": _FLAG["create"], "O_EXCL": _FLAG["exclusive"],
    "O_TRUNC": _FLAG["truncate"], "O_DIRECT": _FLAG["direct"], "O_SYNC": _FLAG["sync"], "O_DSYNC": _FLAG["sync"],
}  # fmt: skip

_SYSTEM = re.compile(
    rb"/(bin|boot|dev(?!/shm/)|etc|lib|lib32|lib64|proc|sbin|sys|usr)(/|\Z)"
    rb"|/var/(cache|db|lib|lock|log|mail|run|spool)(/|\Z)|/opt/(.*/)?(bin|etc|include|lib|lib64|libexec|share)(/|\Z)"
)
"""Folders of the system, and of programs below /opt. Anything else there (/opt/data, /var/tmp, /dev/shm) is data."""
_NO_FILE = re.compile(rb"/(dev|proc)/(?!shm/(?!(sem\.[^/]*|torch_\d+_\d+_\d+|psm_[0-9a-f]+)\Z))")
"""Devices, kernel files, named semaphores (sem_overview(7)), and what PyTorch's DataLoader and multiprocessing hand
from process to process in shared memory."""
_SOFTWARE = re.compile(
    rb"\.(py|pyc|pyi|pyd|so|egg-link)\Z|\.so\.[\d.]+\Z|/(site|dist)-packages(/|\Z)|/lib/python\d[\d.]*(/|\Z)"
    rb"|/__pycache__(/|\Z)|/pyvenv\.cfg\Z|\.(dist|egg)-info/[^/]+\Z"
)
_OF_SYSTEM, _CODE = "files of the system (/usr, /etc, /var/lib and their like)", "Python code and libraries"


class PathNumbers:
    """Numbers paths in order of appearance; NOT_KEPT for a path outside of the job, or one that a glob of `exclude`
    matches. Files of the system and of programs that match a glob of `include` are files of the job."""

    def __init__(self, exclude: Sequence[str] = (), include: Sequence[str] = ()) -> None:
        self.paths: list[bytes] = []
        self._exclude, self._include = tuple(exclude), tuple(include)
        self._numbers: dict[bytes, int | str] = {}
        self._dropped = {_OF_SYSTEM: 0, _CODE: 0}

    def number(self, path: bytes) -> int:
        """The number of an absolute path, NOT_KEPT for one that is left out."""
        known = self._numbers.get(path)
        if known is None:
            known = self._numbers[path] = self._add(path)
        if isinstance(known, str):
            self._dropped[known] += 1
            return NOT_KEPT
        return known

    def _add(self, path: bytes) -> int | str:
        """The number of a new path, or why it is left out."""
        text = path.decode("utf-8", "backslashreplace")
        if not path.startswith(b"/") or path.startswith((b"/memfd:", b"/anon_hugepage")):
            return NOT_KEPT  # a pipe, a socket, memory: not a file
        if not any(fnmatchcase(text, glob) for glob in self._include):
            if _NO_FILE.match(path):
                return NOT_KEPT
            if _SYSTEM.match(path):
                return _OF_SYSTEM
            if _SOFTWARE.search(path):
                return _CODE
        if any(fnmatchcase(text, glob) for glob in self._exclude):
            return NOT_KEPT
        self.paths.append(path)
        return len(self.paths) - 1

    def folders(self) -> frozenset[int]:
        """The numbers of paths that are folders of others."""
        parents: set[bytes] = set()
        for path in self.paths:
            while (path := path.rpartition(b"/")[0]) and path not in parents:
                parents.add(path)
        return frozenset(number for number, path in enumerate(self.paths) if path in parents)

    def warnings(self) -> list[str]:
        """What was left out."""
        parts = [f"{format_counted(count, 'operation')} on {what}" for what, count in self._dropped.items() if count]
        left_out = f"operations that load programs are left out: {'; '.join(parts)}"
        return [f"{left_out} (record --include DIR keeps files)"] if parts else []


@dataclass(slots=True, eq=False)
class OpenFile:
    """An open file description. position: the next byte, UNKNOWN until a seek tells it. owner: number of the process
    that opened it, which has `descriptors` of it. row: number of the row of its open."""

    file: int
    position: int
    owner: int
    append: bool = False
    descriptors: int = 1
    row: int = -1


class At(NamedTuple):
    """Who made a call, when, and through which interface."""

    process: TracedProcess
    thread: int
    start_ns: int
    end_ns: int
    api: int = POSIX


class Effects:
    """Operations of a trace, and what its calls did to all files.

    seen: the greatest size of each file. suspect: file -> operations whose offset may be wrong. mapped: files of which
    parts were mapped. left_out: calls without an operation in a capture. hidden: as of `TracedJob`.
    """

    def __init__(self) -> None:
        self.rows = TracedRows()
        self.seen: dict[int, int] = {}
        self.suspect: Counter[int] = Counter()
        self.mapped: set[int] = set()
        self.left_out: Counter[str] = Counter()
        self.hidden: set[str] = set()
        self._hiding: Counter[str] = Counter()
        self._sizes: dict[int, int] = {}
        self._checks = self._misses = 0

    def add(
        self, at: At, op: int, file: int, offset: int = -1, length: int = 0, other_file: int = -1, flags: int = -1
    ) -> int:
        """An operation; returns the number of its row. Raises: ValueError for an impossible one."""
        process, thread, start_ns, end_ns, api = at
        process.operations += 1
        return self.rows.add(
            (process.number, thread, file, other_file, offset, length, start_ns, end_ns, op, api, flags)
        )

    def open(self, at: At, file: int, names: Collection[str]) -> OpenFile:
        """`names`: those that open(2) gives the flags, such as O_RDWR; empty where they are not known."""
        if "O_TRUNC" in names or "O_EXCL" in names:
            self.resize(file, 0)
        flags = 0 if names else UNKNOWN
        for name in names:
            flags |= _FLAGS_OF_NAME.get(name, 0)
        row = self.add(at, OPEN, file, flags=flags)
        return OpenFile(file, 0, at.process.number, append="O_APPEND" in names, row=row)

    def move(self, at: At, opened: OpenFile, op: int, length: int, offset: int = UNKNOWN) -> int:
        """A read or write, and its offset. Without an `offset` it is at the position, which it advances."""
        if offset == UNKNOWN:
            if opened.append and op == WRITE:
                opened.position = self._sizes.get(opened.file, 0)
            offset = opened.position
            if offset == UNKNOWN:
                self.suspect[opened.file] += 1
            else:
                opened.position = offset + length
        if op == WRITE and offset != UNKNOWN and offset + length > self._sizes.get(opened.file, 0):
            self.resize(opened.file, offset + length)
        self.add(at, op, opened.file, offset, length)
        return offset

    def resize(self, file: int, size: int) -> None:
        """The file has this size now. Raises: ValueError for an impossible one."""
        if not 0 <= size < MOST:
            raise ValueError(size)
        self._sizes[file] = size
        self.seen[file] = max(size, self.seen.get(file, 0))

    def seek(self, at: At, opened: OpenFile, position: int, *, only_asked: bool = False) -> None:
        """`only_asked`: it did not move (SEEK_CUR by 0), so that its result also checks the position known here."""
        if only_asked and opened.position != UNKNOWN:
            self._checks += 1
            self._misses += opened.position != position
        opened.position = position
        self.add(at, SEEK, opened.file, position)

    def close(self, at: At, opened: OpenFile) -> None:
        """A process closed a descriptor: an operation if it was the last of the process that opened the file."""
        if at.process.number == opened.owner:
            opened.descriptors -= 1
            if not opened.descriptors:
                self.add(at, CLOSE, opened.file)

    def rename(self, at: At, old: int, new: int) -> None:
        self.resize(new, self._sizes.get(old, 0))
        self.add(at, RENAME, old, other_file=new)

    def change(self, what: str, file: int, size: int = 0) -> None:
        """A change to a file that a capture has no operation for. `size`: after a truncate."""
        self.left_out[what] += 1
        if what in ("unlink", "truncate"):
            self.resize(file, size)

    def advise_sequential(self, opened: OpenFile) -> None:
        self.rows.add_open_flags(opened.row, _FLAG["sequential"])

    def hide(self, at: At, what: str) -> None:
        """A call that moved data that the trace does not show."""
        self._hiding[what] += 1
        self.hidden.add(f"{at.process.exe.rpartition('/')[2]} by {what}")

    def warnings(self) -> list[str]:
        """Offsets that may be wrong, and what is not in the operations."""
        found = [
            f"{self._misses} of {self._checks} seeks that ask for the position contradict the reads and writes before "
            "them: the trace lacks calls, and offsets may be wrong"
        ] * bool(self._misses)
        for what, count in sorted((self.left_out + self._hiding).items()):
            if what in self._hiding:
                found.append(f"{count} calls moved data through {what}: strace does not show it, and a replay lacks it")
            else:
                found.append(f"{format_counted(count, what)} left out: a capture has no such operation")
        return found
