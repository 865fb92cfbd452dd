"""Page faults of a job on mapped files, from the kernel: which page, which thread, when, and how long it waited.

Software events of perf_event_open(2) on the job's processes: the kernel writes a record for each fault into a ring of
each processor. It needs no root where `kernel.perf_event_paranoid` is 2 or less; at 2 without privileges, faults inside
system calls are missing. A thread of the recorder empties the rings. Standard library only, as `watch`.
"""

from __future__ import annotations

import ctypes
import errno
import json
import mmap
import os
import platform
import resource
import select
import shutil
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import BinaryIO

from dxt_replay.profiler_merge.recorder._page_faults import FaultDecoder
from dxt_replay.profiler_merge.recorder.watch import is_data

_SYSTEM_CALL = {"x86_64": 298, "aarch64": 241, "ppc64le": 319, "riscv64": 241, "s390x": 331}
_FAULTS, _FAULTS_MIN, _FAULTS_MAJ, _DUMMY = 2, 5, 6, 9
"""The kernel counts the first at the begin of a fault, and one of the next two at its end."""
_SAMPLE = 2 | 4 | 8 | 64
"""PERF_SAMPLE_TID, TIME, ADDR, ID: the record that `_page_faults` expects."""
_DISABLED, _INHERIT, _NO_KERNEL, _WATERMARK, _ID_ALL, _CLOCK = (1 << bit for bit in (0, 1, 5, 14, 18, 25))
_MAPPINGS = sum(1 << bit for bit in (8, 9, 13, 17, 23, 24))
"""attr.mmap, comm, task, mmap_data, mmap2, comm_exec."""
_SWITCHES = 1 << 26
"""attr.context_switch: tells which faults slept. It slows down all that a job does on a processor, workers by 5 %."""
_MOST_SWITCH_EVENTS = 4096
_ENABLE, _SET_OUTPUT, _GET_ID = 0x2400, 0x2405, 0x80082407
_CLOSE_ON_EXEC = 8
_RING_PAGES = (512, 128, 32)
"""Pages of a ring, tried in turn: users may lock 128 for each processor (`kernel.perf_event_mlock_kb`)."""
_PAUSE_MS, _FIRST_PAUSE_MS = 100, 20
"""Between two looks. Begins of faults, 0.4 us each, and switches are recorded once a look finds a data file mapped."""
_SETTLED_NS = 5_000_000
"""Records younger than this may still be overtaken by those of another processor."""


class PageFaults:
    """Collects the faults of the processes that the calling thread starts from now on.

    Raises: OSError where the kernel does not allow it."""

    def __init__(self) -> None:
        self._fds: list[int] = []
        self._minor: dict[int, int] = {}
        self._rings: list[mmap.mmap] = []
        self._out: BinaryIO | None = None
        self._begins: list[int] = []
        major: list[int] = []
        begins: list[int] = []
        try:
            for processor in range(os.cpu_count() or 1):
                for ids, found in zip((major, begins), self._open(processor), strict=False):
                    ids.append(found)
        except OSError:
            self.close()
            raise
        self._decoder = FaultDecoder(major, begins, is_data)

    def _open(self, processor: int) -> list[int]:
        """The ring of a processor. Returns the ids of its events of faults that wait, and of begins, which are not
        enabled yet; none if it is not in use."""
        try:
            minor = self._minor[processor] = _event(_FAULTS_MIN, processor, _MAPPINGS)
        except OSError as error:
            if error.errno == errno.ENODEV:
                return []
            raise
        self._fds.append(minor)
        for pages in _RING_PAGES:
            try:
                self._rings.append(mmap.mmap(minor, (1 + pages) * mmap.PAGESIZE))
                break
            except OSError as error:
                if pages == _RING_PAGES[-1] or error.errno != errno.EPERM:
                    raise
        numbers = []
        for config, flags in ((_FAULTS_MAJ, 0), (_FAULTS, _DISABLED)):
            fd, number = _event(config, processor, flags), ctypes.c_uint64()
            self._fds.append(fd)
            _ioctl(fd, _SET_OUTPUT, ctypes.c_long(minor))
            _ioctl(fd, _GET_ID, ctypes.byref(number))
            numbers.append(number.value)
        self._begins.append(fd)
        return numbers

    @contextmanager
    def collected(self, path: Path) -> Iterator[list[tuple[int, str]]]:
        """Write the faults to `path` while the context lasts; no file if no data file was mapped.

        Yields a list that has, after the context, the id and the program of each process that began."""
        began: list[tuple[int, str]] = []
        begin_ns, stop = _realtime_ahead_ns(), threading.Event()
        body = path.with_name(path.name + ".part")
        with body.open("wb") as self._out:
            thread = threading.Thread(target=self._collect, args=(stop,), daemon=True)
            thread.start()
            try:
                yield began
            finally:
                stop.set()
                thread.join()
                self._take(time.monotonic_ns() + 1)
                began += [(pid, program.decode("utf-8", "replace")) for pid, program in self._decoder.began]
                self.close()
        if self._decoder.files:
            head = {
                "files": [os.fsdecode(name) for name in self._decoder.files],
                "sizes": [os.stat(name).st_size if os.path.exists(name) else 0 for name in self._decoder.files],
                "programs": sorted(self._decoder.programs),
                "lost": self._decoder.lost,
                "realtime_ahead_ns": [begin_ns, _realtime_ahead_ns()],
            }
            with path.open("wb") as whole, body.open("rb") as rows:
                whole.write(json.dumps(head).encode("ascii") + b"\n")
                shutil.copyfileobj(rows, whole, 1 << 20)
        body.unlink()

    def _collect(self, stop: threading.Event) -> None:
        poll = select.poll()
        for fd in self._fds:
            poll.register(fd, select.POLLIN)
        while not stop.is_set():
            for fd, event in poll.poll(_FIRST_PAUSE_MS if self._begins else _PAUSE_MS):
                if event & (select.POLLHUP | select.POLLERR):
                    poll.unregister(fd)
            self._take(time.monotonic_ns() - _SETTLED_NS)

    def _record_switches(self) -> None:
        """Have switches of the threads that there are recorded, and of all that they start."""
        folders = (f"/proc/{pid}/task" for pid, _ in self._decoder.began)
        threads = [int(each) for folder in folders if os.path.isdir(folder) for each in os.listdir(folder)]
        if len(threads) * len(self._minor) > _MOST_SWITCH_EVENTS:
            return
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 2 * _MOST_SWITCH_EVENTS)), hard))
        for thread in threads:
            for processor, minor in self._minor.items():
                with suppress(OSError):  # it has ended
                    self._fds.append(_event(_DUMMY, processor, _SWITCHES, thread))
                    _ioctl(self._fds[-1], _SET_OUTPUT, ctypes.c_long(minor))

    def _take(self, until_ns: int) -> None:
        for ring in self._rings:
            self._decoder.drain(ring, mmap.PAGESIZE)
        self._decoder.decode(until_ns)
        assert self._out is not None
        self._out.write(self._decoder.take_rows())
        if self._begins and len(self._decoder.files) > len(self._decoder.programs):
            for fd in self._begins:
                _ioctl(fd, _ENABLE, ctypes.c_long(0))
            self._begins = []
            with suppress(OSError):
                self._record_switches()

    def close(self) -> None:
        for ring in self._rings:
            ring.close()
        for fd in self._fds:
            os.close(fd)
        self._rings, self._fds, self._minor = [], [], {}


def collected_faults(path: Path) -> AbstractContextManager[list[tuple[int, str]]]:
    """As `PageFaults.collected`; the list stays empty where the kernel does not allow it."""
    try:
        return PageFaults().collected(path)
    except OSError:
        return nullcontext([])


def _event(config: int, processor: int, flags: int, thread: int = 0) -> int:
    """A software event of a thread, 0 for the calling one, and its children on one processor: every occurrence,
    CLOCK_MONOTONIC."""
    number = _SYSTEM_CALL.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, "perf_event_open")
    flags |= _INHERIT | _ID_ALL | _CLOCK | _WATERMARK
    for each in (flags, flags | _NO_KERNEL):
        attributes = bytearray(112)
        struct.pack_into("=IIQQQQQI", attributes, 0, 1, len(attributes), config, 1, _SAMPLE, 0, each, 1 << 16)
        struct.pack_into("=i", attributes, 92, time.CLOCK_MONOTONIC)
        libc = ctypes.CDLL(None, use_errno=True)
        fd = libc.syscall(number, bytes(attributes), thread, processor, -1, _CLOSE_ON_EXEC)
        if fd >= 0:
            return int(fd)
    raise OSError(ctypes.get_errno(), "perf_event_open")


def _ioctl(fd: int, request: int, argument: object) -> None:
    if ctypes.CDLL(None, use_errno=True).ioctl(fd, ctypes.c_ulong(request), argument) < 0:
        raise OSError(ctypes.get_errno(), "ioctl")


def _realtime_ahead_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_REALTIME) - time.monotonic_ns()
