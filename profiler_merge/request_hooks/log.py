"""The log of a process's requests: one file, to which each request is appended when its answer has ended.

Each line is one write(2), so that a process that is killed loses only the requests under way. A line has fields between
tabs, and its first field says what it is (docs/objects.md):

    # dxt-replay requests 1
    P  process id, parent's process id, the launcher's rank or nothing, name of the machine, id of the process that the
       job or the rank began with
    A  CLOCK_REALTIME, CLOCK_MONOTONIC: the same instant on both clocks, at the begin and every ANCHOR_NS
    C  number of a new connection, address:port of its peer
    E  host:port of a server to which a client sends requests whose connections it does not show
    S  address:port of both ends of a closed connection of any client, the own one first, and the bytes it received
    R  a request, see `Request`
"""

from __future__ import annotations

import os
import socket
import threading
import time
from typing import Any

FOLDER_VARIABLE = "DXT_REPLAY_REQUESTS"
"""Names the folder for the logs. Without it nothing is recorded."""
SUFFIX = ".requests"
MARK = "# dxt-replay requests 1"
ANCHOR_NS = 10_000_000_000
ROOT_VARIABLE = "DXT_REPLAY_ROOT"
_RANKS = (
    "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "HOROVOD_RANK", "RANK", "SLURM_PROCID",
)  # fmt: skip
"""As `anchor.RANK_VARIABLES`, which the job's Python may lack."""

now_ns = time.monotonic_ns


class Request:
    """A request, from its start until `end`. Every value that is not known stays None.

    name: the API's name, such as GetObject. path: bucket/key. offset, length: bytes of the object that it moved.
    received: bytes of the answer's body. size: of the whole object. first_ns: when the answer began.
    status: HTTP status, 0 if no answer came or the client's error names none. connection: its number in this process.
    upload: number of the multipart upload, the same in all processes, and `part` in it. source: bucket/key that a copy
    reads.
    """

    __slots__ = (
        "_ended",
        "connection",
        "end_ns",
        "first_ns",
        "length",
        "name",
        "offset",
        "part",
        "path",
        "received",
        "size",
        "source",
        "start_ns",
        "status",
        "thread",
        "upload",
    )  # fmt: skip

    def __init__(self, name: str, path: str) -> None:
        self.name, self.path = name, path
        self.offset: int | None = None
        self.length: int | None = None
        self.received = 0
        self.size: int | None = None
        self.first_ns: int | None = None
        self.end_ns = 0
        self.status: int | None = None
        self.connection: int | None = None
        self.upload: int | None = None
        self.part: int | None = None
        self.source: str | None = None
        self._ended = False
        self.thread = threading.get_native_id()
        self.start_ns = now_ns()

    def end(self, at_ns: int | None = None) -> None:
        """Write it down; once, whatever comes later."""
        if self._ended:
            return
        self._ended = True
        self.end_ns = now_ns() if at_ns is None else at_ns
        fields = (
            "R", self.name, escaped(self.path), self.offset, self.length, self.received, self.size, self.start_ns,
            self.first_ns, self.end_ns, self.status, self.connection, self.thread, self.upload, self.part,
            None if self.source is None else escaped(self.source),
        )  # fmt: skip
        _log.write("\t".join(["" if field is None else str(field) for field in fields]))


def escaped(text: str) -> str:
    """A text without tabs and ends of lines; `urllib.parse.unquote` reads it."""
    if text.isprintable() and "%" not in text:
        return text
    return "".join(c if c.isprintable() and c != "%" else "".join("%%%02X" % b for b in c.encode()) for c in text)


class _Log:
    """The file of this process, opened by the first line. An error of the file system ends the recording, not the
    job."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget the file. A forked child must not write into that of its parent."""
        self._lock = threading.RLock()  # the garbage collector may close a connection amid a write
        self._descriptor = -1
        self._identity = (0, 0)
        self._anchored_ns = 0
        self.connections = 0
        self.endpoints: set = set()

    def write(self, line: str) -> None:
        """Append a line."""
        try:
            with self._lock:
                if self._descriptor < 0:
                    self._open()
                found = os.fstat(self._descriptor)
                if (found.st_dev, found.st_ino) != self._identity:  # the program closed all descriptors
                    self._open()
                if now_ns() - self._anchored_ns > ANCHOR_NS:
                    line = self._anchor() + line
                os.write(self._descriptor, (line + "\n").encode("utf-8", "backslashreplace"))
        except OSError:
            pass

    def begin(self) -> None:
        """Open the file, so that it is known when the process uses a client, even if only its children do."""
        try:
            with self._lock:
                if self._descriptor < 0:
                    self._open()
        except OSError:
            pass

    def _open(self) -> None:
        folder, host = os.environ[FOLDER_VARIABLE], socket.gethostname()
        name = "%s.%d.%d%s" % (host, os.getpid(), now_ns(), SUFFIX)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._descriptor = os.open(os.path.join(folder, name), flags, 0o644)
        found = os.fstat(self._descriptor)
        self._identity = (found.st_dev, found.st_ino)
        rank = next((os.environ[each] for each in _RANKS if os.environ.get(each, "").isdigit()), "")
        root = os.environ.get(ROOT_VARIABLE) or os.getpid()
        begin = "%s\nP\t%d\t%d\t%s\t%s\t%s\n" % (MARK, os.getpid(), os.getppid(), rank, escaped(host), root)
        os.write(self._descriptor, (begin + self._anchor()).encode())

    def _anchor(self) -> str:
        before, wall, after = now_ns(), time.time_ns(), now_ns()
        self._anchored_ns = after
        return "A\t%d\t%d\n" % (wall, (before + after) // 2)


_log = _Log()
begin = _log.begin
os.register_at_fork(after_in_child=_log.reset)


def name_of(address: Any) -> str:
    """address:port. IPv4 in the form of IPv6 becomes IPv4, so that both ends of a connection look the same."""
    return "%s:%d" % (address[0][7:] if address[0].startswith("::ffff:") else address[0], address[1])


def new_connection(peer: str) -> int:
    """Number of a connection that was just made, from 1 in each process."""
    with _log._lock:
        _log.connections += 1
        number = _log.connections
    _log.write("C\t%d\t%s" % (number, escaped(peer)))
    return number


def note_endpoint(server: str) -> None:
    """Note a server of a client that does not show its connections."""
    if server not in _log.endpoints:
        _log.endpoints.add(server)
        _log.write("E\t%s" % escaped(server))


def note_received(own: str, peer: str, received: int) -> None:
    """Note the bytes that a connection had received when it was closed."""
    _log.write("S\t%s\t%s\t%d" % (escaped(own), escaped(peer), received))
