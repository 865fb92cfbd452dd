"""What the system must hold for a run, looked at before it begins: threads, open files, direct I/O."""

from __future__ import annotations

import errno
import math
import os
import resource
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from dxt_replay.traces.errors import ReplayError, TargetError
from dxt_replay.traces.units import format_count

SPARE_FILES = 16  # Descriptors for files that are open for a moment: the next part of the capture, an import
SPARE_THREADS = 8  # Threads beside the lanes: the feeder, the jitter probe, those of the libraries
STACK_BYTES = 2 << 20
"""Address space of a thread's stack where its limit (ulimit -s) is not set (glibc, ARCH_STACK_DEFAULT_SIZE)."""


def allow_open_files(count: int) -> None:
    """Raise the soft limit of open files towards the hard limit, so that `count` more files can be open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + 256  # what the program itself has open
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and wanted > soft:
        with suppress(OSError, ValueError):  # the kernel's own limit (fs.nr_open) is lower: files are closed earlier
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def require_descriptors(holders: int) -> None:
    """Check that `holders` more files can be open at once: each lane holds one, which is never closed for another.

    Raises: ReplayError when the limit (RLIMIT_NOFILE) is lower, so that operations would fail.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = len(os.listdir("/proc/self/fd")) + holders + SPARE_FILES
    if soft != resource.RLIM_INFINITY and wanted > soft:
        raise ReplayError(
            f"this process needs {wanted} open files, and the limit is {soft}: raise the limit (ulimit -n), start "
            f"{math.ceil(holders / max(soft - wanted + holders, 1))} times as many processes, or choose fewer ranks "
            "(--part ranks=A-B); `dxt-replay doctor` lists the limits"
        )


def require_threads(lanes: int) -> None:
    """Check that a thread can be started for each of `lanes`.

    Raises: ReplayError, which names the lower limit and the number of processes or machines that would be enough.
    """
    needed = lanes + SPARE_THREADS
    room, limit, scope = min(thread_limits(), default=(needed, "", ""))
    if room < needed:
        places = math.ceil(lanes / max(room - SPARE_THREADS, 1))
        raise ReplayError(
            f"this process needs {format_count(needed)} threads, one for each lane, and {limit} leaves room for "
            f"{format_count(room)}: raise it, replay on {format_count(places)} {scope} or more, or choose fewer ranks "
            "(--part ranks=A-B); `dxt-replay doctor` lists the limits"
        )


def thread_limits() -> Iterator[tuple[int, str, str]]:
    """(threads left, name of the limit, scope of the limit: process or machine)."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        stack, _ = resource.getrlimit(resource.RLIMIT_STACK)
        stack = STACK_BYTES if stack == resource.RLIM_INFINITY else stack
        free = soft - (_number(Path("/proc/self/statm")) or 0) * resource.getpagesize()
        yield max(0, free // stack), "the limit of address space (ulimit -v) with stacks of ulimit -s", "processes"
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if soft != resource.RLIM_INFINITY and os.geteuid() != 0:  # root is exempt
        yield max(0, soft - _threads_of_user()), "the limit of this user's threads (ulimit -u)", "machines"
    for group in _groups():
        most, now = _number(group / "pids.max"), _number(group / "pids.current")
        if most is not None and now is not None:
            yield max(0, most - now), f"the control group ({group}/pids.max)", "machines"
    running = _threads_of_machine()
    for name in ("threads-max", "pid_max"):  # a thread takes a process id
        most = _number(Path("/proc/sys/kernel") / name)
        if most is not None:
            yield max(0, most - running), f"the kernel (kernel.{name})", "machines"
    most = _number(Path("/proc/sys/vm/max_map_count"))
    if most is not None:
        used = len(Path("/proc/self/maps").read_bytes().splitlines())
        # A stack and the guard page below it.
        yield max(0, most - used) // 2, "the kernel (vm.max_map_count)", "processes"


def check_direct(target: Path, paths: Iterable[bytes]) -> None:
    """Try direct I/O on one file of each file system.

    `paths`: the files of the twin. Where none of them exists, an unnamed file in `target` is tried.
    Raises: TargetError where a file system does not support direct I/O.
    """
    tried: set[int] = set()
    for path in paths:
        with suppress(OSError):  # a file that the run makes
            device = os.stat(path).st_dev
            if device not in tried:
                tried.add(device)
                _try_direct(path, os.O_RDONLY)
    if not tried:
        _try_direct(os.fsencode(target), os.O_RDWR | os.O_TMPFILE)


def _try_direct(path: bytes, flags: int) -> None:
    try:
        os.close(os.open(path, flags | os.O_DIRECT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        if error.errno != errno.EINVAL:
            return  # no unnamed files here, or no permission: the run itself reports it
        raise TargetError(
            f"the file system of {os.fsdecode(path)} has no direct I/O (O_DIRECT): leave --api direct out, or choose a "
            "target on another one (`dxt-replay doctor DIR` tries it)"
        ) from error


def _groups() -> Iterator[Path]:
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "pids"):
            root = Path("/sys/fs/cgroup") / controllers
            group = root / path.lstrip("/")
            yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(root))


def _number(path: Path) -> int | None:
    """The first number of a file; None where there is none ("max"), or no such file."""
    try:
        return int(path.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None


def _threads_of_user() -> int:
    """Threads of all processes with this real user, as RLIMIT_NPROC counts them."""
    mine = 0
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):  # it has ended
            if os.stat(f"/proc/{name}").st_uid == os.getuid():
                mine += len(os.listdir(f"/proc/{name}/task"))
    return mine


def _threads_of_machine() -> int:
    """Threads of all processes: the fourth field of /proc/loadavg (proc(5))."""
    try:
        return int(Path("/proc/loadavg").read_text().split()[3].partition("/")[2])
    except (OSError, ValueError, IndexError):
        return 0
