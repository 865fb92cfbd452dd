"""Bytes that a job reads past every tracer, through mapped files and sockets; observed from outside, in /proc.

A page fault is no call, and the client of an object store reads from a socket. So a complete trace of all calls on
files can miss nearly everything that the job read. While the job runs, its processes are polled for two facts: the data
files that they have mapped and how much of each is in memory, and the bytes that each TCP connection has received.
Anything that comes and goes between two polls is missed, so all results are lower bounds. Linux only; standard library
only.
"""

from __future__ import annotations

import json
import os
import re
import socket
import struct
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from ipaddress import IPv6Address, ip_address
from pathlib import Path

_SHARE = 50
"""Pause after a poll, as a multiple of its duration: at most 2 % of one processor."""

_MAPPING = re.compile(rb"([0-9a-f]+)-([0-9a-f]+) (....) [0-9a-f]+ ([0-9a-f]+:[0-9a-f]+) (\d+) +(/.*)")
_NOT_DATA = re.compile(
    rb"\A/(dev/|proc/|sys/|usr/|etc/|lib|bin/|sbin/|var/(cache|lib|run)/|memfd:|anon_hugepage|SYSV)"
    rb"|/(site|dist)-packages/|/lib/python\d|\.so(\.[\d.]+)?\Z|\.pyc?\Z|_mmap-log-[^/]*\.darshan\Z"
    rb"|\.(marks|not_data|darshan_partial)\Z| \(deleted\)\Z"
)
"""Mapped files of the system and of programs, unnamed shared memory, and Darshan's own."""

_RINGS = {b"anon_inode:[io_uring]": "io_uring", b"/[aio]": "AIO"}
"""What a process maps that asks the kernel for reads without a call for each, and which no count of its calls holds."""

_SOCKET = re.compile(r"socket:\[(\d+)\]")
_DIAG, _DUMP, _DONE, _ERROR, _BY_FAMILY = 4, 0x301, 3, 2, 20
_HEADER, _REQUEST, _MESSAGE = struct.Struct("=IHHII"), struct.Struct("=BBBBI48s"), struct.Struct("=BBBB48sIIIII")
_INFO, _RECEIVED_AT = 2, 128
"""The attribute with `struct tcp_info`, and the offset of `tcpi_bytes_received` in it (Linux 4.1)."""


class Watch:
    """Polls processes. `programs`: the name of the program of each, by its id."""

    def __init__(self) -> None:
        self.programs: dict[int, str] = {}
        self._fed: dict[str, int] = {}
        self._hidden: set[str] = set()
        self._sizes: dict[str, int] = defaultdict(int)
        self._resident: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        self._received: dict[tuple[str, str], int] = defaultdict(int)
        self._next_s = 0.0

    def look(self, pids: Iterable[int]) -> None:
        """Poll these processes, unless the last poll was just now."""
        begin_s = time.monotonic()
        if begin_s < self._next_s:
            return
        inodes: set[int] = set()
        for pid in pids:
            program = program_of(pid)
            if program:
                self.programs[pid] = program
                with suppress(OSError, ValueError):
                    self._look_at_mappings(pid, program)
                    inodes |= self._look_at_descriptors(pid, program)
        if inodes:
            found = list(_connections())
            ours = {own for inode, own, _, _ in found if inode in inodes}
            for inode, own, peer, received in found:
                # Data that the job's processes send each other are no input.
                if inode in inodes and peer not in ours and received:
                    self._received[own, peer] = max(self._received[own, peer], received)
        self._next_s = time.monotonic() + _SHARE * (time.monotonic() - begin_s)

    def _look_at_mappings(self, pid: int, program: str) -> None:
        maps = Path(f"/proc/{pid}/maps").read_bytes()
        self._hidden |= {f"{program} by {name}" for ring, name in _RINGS.items() if ring in maps}
        if not data_mappings(maps):
            return
        for name, (size, resident) in mapped_files(Path(f"/proc/{pid}/smaps").read_bytes()).items():
            path = os.fsdecode(name)
            self._sizes[path] = max(self._sizes[path], size)
            self._resident[path][pid] = max(self._resident[path][pid], resident)

    def _look_at_descriptors(self, pid: int, program: str) -> set[int]:
        """Returns the inodes of its sockets."""
        found: set[int] = set()
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                place = os.readlink(f"/proc/{pid}/fd/{name}")
                match = _SOCKET.fullmatch(place)
                if match:
                    found.add(int(match[1]))
                elif name == "0" and is_data(os.fsencode(place)):
                    self._fed[f"{program} < {place}"] = os.stat(f"/proc/{pid}/fd/0").st_size
        return found

    def write(self, path: Path, more: Mapping[str, object]) -> None:
        """Write what was found, and `more`, to `unseen.json`, if there is anything: mapped files with their resident
        bytes, bytes received by peer, sizes of files that are a process's standard input, programs with rings."""
        peers: dict[str, int] = defaultdict(int)
        for (_, peer), received in self._received.items():
            peers[peer] += received
        found = {
            "mapped": {
                name: {"size": size, "bytes": min(sum(self._resident[name].values()), size)}
                for name, size in sorted(self._sizes.items())
            },
            "received": dict(sorted(peers.items())),
            "fed": dict(sorted(self._fed.items())),
            "hidden": sorted(self._hidden),
            **more,
        }
        if any(found.values()):
            path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8", errors="surrogateescape")


def program_of(pid: int) -> str:
    """The name of a process's program, up to 15 bytes; "" if it has ended."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").rstrip("\n")
    except OSError:
        return ""


def descendants(pid: int, *, deep: bool = True) -> Iterator[int]:
    """A process and its descendants, or its children alone, as far as their parents live."""
    yield pid
    with suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError):
                for child in Path(f"/proc/{pid}/task/{task}/children").read_text(encoding="ascii").split():
                    yield from descendants(int(child)) if deep else (int(child),)


def data_mappings(maps: bytes) -> set[bytes]:
    """Paths of the mapped files in the text of /proc/PID/maps or smaps that are neither programs nor of the system."""
    found = [match.groups() for match in map(_MAPPING.fullmatch, maps.splitlines()) if match]
    programs = {path for _, _, how, _, _, path in found if b"x" in how}
    return {path for *_, path in found if path not in programs and is_data(path)}


def is_data(path: bytes) -> bool:
    """Whether a mapped path may be one of the job's own files."""
    return path.startswith(b"/") and not path.startswith(b"//") and _NOT_DATA.search(path) is None


def mapped_files(smaps: bytes) -> Mapping[bytes, tuple[int, int]]:
    """Path -> (mapped bytes, resident bytes), from the text of /proc/PID/smaps."""
    found = dict.fromkeys(data_mappings(smaps), (0, 0))
    path = b""
    for line in smaps.splitlines():
        match = _MAPPING.fullmatch(line)
        if match is not None:
            path = match[6]
            if path in found:
                size, resident = found[path]
                found[path] = size + int(match[2], 16) - int(match[1], 16), resident
        elif b"-" in line.split(b" ", 1)[0]:
            path = b""  # a mapping without a file
        elif path in found and line.startswith(b"Rss:"):
            size, resident = found[path]
            found[path] = size, resident + 1024 * int(line.split()[1])
    return found


def _connections() -> Iterator[tuple[int, str, str, int]]:
    """All TCP sockets of this network namespace: inode, both ends as "address:port", and the bytes received. From the
    kernel's socket diagnosis; none if that is not available."""
    for family in (socket.AF_INET, socket.AF_INET6):
        with suppress(OSError, struct.error), socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _DIAG) as asked:
            asked.settimeout(1)
            body = _REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (_INFO - 1), 0, 0xFFFFFFFF, bytes(48))
            asked.send(_HEADER.pack(_HEADER.size + len(body), _BY_FAMILY, _DUMP, 1, 0) + body)
            ended = False
            while not ended:
                answer = asked.recv(1 << 18)
                at, ended = 0, not answer
                while at + _HEADER.size <= len(answer) and not ended:
                    length, kind, *_ = _HEADER.unpack_from(answer, at)
                    ended = kind in (_DONE, _ERROR) or length < _HEADER.size
                    if not ended:
                        yield from _connection(answer[at + _HEADER.size : at + length], family)
                    at += (length + 3) & ~3


def _connection(message: bytes, family: int) -> Iterator[tuple[int, str, str, int]]:
    _, _, _, _, ends, _, _, _, _, inode = _MESSAGE.unpack_from(message)
    width = 4 if family == socket.AF_INET else 16
    own, peer = (
        f"{_shown(ends[at : at + width])}:{port}"
        for at, port in zip((4, 20), struct.unpack_from(">HH", ends), strict=True)
    )
    at = _MESSAGE.size
    while at + 4 <= len(message):
        length, kind = struct.unpack_from("=HH", message, at)
        if length < 4:
            return
        if kind == _INFO and length - 4 >= _RECEIVED_AT + 8:
            (received,) = struct.unpack_from("=Q", message, at + 4 + _RECEIVED_AT)
            yield inode, own, peer, received
        at += (length + 3) & ~3


def _shown(packed: bytes) -> str:
    """An address as text. IPv4 in the form of IPv6 becomes IPv4, so that both ends of a connection look the same."""
    address = ip_address(packed)
    return str((isinstance(address, IPv6Address) and address.ipv4_mapped) or address)
