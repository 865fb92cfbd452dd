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
    R  a request, see `clients.Request`
"""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import suppress
from typing import Any

FOLDER_VARIABLE = "DXT_REPLAY_REQUESTS"
"""Names the folder for the logs. Without it nothing is recorded."""
SUFFIX = ".requests"
MARK = "# dxt-replay requests 1"
_ANCHOR_NS = 10_000_000_000
ROOT_VARIABLE = "DXT_REPLAY_ROOT"
_RANKS = (
    "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "HOROVOD_RANK", "RANK", "SLURM_PROCID",
)  # fmt: skip
"""As `recording.RANK_VARIABLES`, which the job's Python may lack."""

now_ns = time.monotonic_ns


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
        self.lock = threading.RLock()  # the garbage collector may close a connection amid a write
        self.connections = 0
        self._descriptor, self._identity = -1, (0, 0)
        self._anchored_ns = 0

    def write(self, *fields: object) -> None:
        """Append a line of these fields; without any, only open the file, so that it is known that the process uses a
        client."""
        line = "\t".join(["" if field is None else str(field) for field in fields])
        with suppress(OSError), self.lock:
            if self._descriptor < 0:
                self._open()
            if not fields:
                return
            found = os.fstat(self._descriptor)
            if (found.st_dev, found.st_ino) != self._identity:  # the program closed all descriptors
                self._open()
            if now_ns() - self._anchored_ns > _ANCHOR_NS:
                line = self._anchor() + line
            os.write(self._descriptor, (line + "\n").encode("utf-8", "backslashreplace"))

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


log = _Log()
os.register_at_fork(after_in_child=log.reset)


def name_of(address: Any) -> str:
    """address:port. IPv4 in the form of IPv6 becomes IPv4, so that both ends of a connection look the same."""
    return "%s:%d" % (address[0][7:] if address[0].startswith("::ffff:") else address[0], address[1])


def new_connection(peer: str) -> int:
    """Number of a connection that was just made, from 1 in each process."""
    with log.lock:
        log.connections += 1
        number = log.connections
    log.write("C", number, escaped(peer))
    return number
