"""Checks that the machine can hold the threads of a process before the first one is started."""

from __future__ import annotations

import math
import os
import resource
from collections.abc import Iterator
from pathlib import Path

from dxt_replay.traces.errors import ReplayError
from dxt_replay.traces.units import format_count

SPARE = 8
"""Threads beside the lanes: the feeder, the jitter probe, those of the libraries."""

STACK_BYTES = 2 << 20
"""Address space of a thread's stack where its limit (ulimit -s) is not set (glibc, ARCH_STACK_DEFAULT_SIZE)."""


def require_threads(lanes: int) -> None:
    """Check that a thread can be started for each of `lanes`.

    Raises: ReplayError, which names the lower limit and the number of processes or machines that would be enough.
    """
    needed = lanes + SPARE
    room, limit, scope = min(thread_limits(), default=(needed, "", ""))
    if room >= needed:
        return
    places = math.ceil(lanes / max(room - SPARE, 1))
    raise ReplayError(
        f"this process needs {format_count(needed)} threads, one for each lane, and {limit} leaves room for "
        f"{format_count(room)}: raise it, replay on {format_count(places)} {scope} or more, or choose fewer ranks "
        "(--ranks); `dxt-replay doctor` lists the limits"
    )


def thread_limits() -> Iterator[tuple[int, str, str]]:
    """(threads left, name of the limit, scope of the limit: process or machine)."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        stack, _ = resource.getrlimit(resource.RLIMIT_STACK)
        stack = STACK_BYTES if stack == resource.RLIM_INFINITY else stack
        used = _number(Path("/proc/self/statm")) or 0
        free = soft - used * resource.getpagesize()
        yield max(0, free // stack), "the limit of address space (ulimit -v) with stacks of ulimit -s", "processes"
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if soft != resource.RLIM_INFINITY and os.geteuid() != 0:  # root is exempt
        yield max(0, soft - _threads_of_user()), "the limit of this user's threads (ulimit -u)", "machines"
    for group in _groups():
        most, now = _number(group / "pids.max"), _number(group / "pids.current")
        if most is not None and now is not None:
            yield max(0, most - now), f"the control group ({group}/pids.max)", "machines"
    for name in ("threads-max", "pid_max"):  # a thread takes a process id
        most = _number(Path("/proc/sys/kernel") / name)
        if most is not None:
            yield max(0, most - _threads_of_machine()), f"the kernel (kernel.{name})", "machines"
    most = _number(Path("/proc/sys/vm/max_map_count"))
    if most is not None:
        used = len(Path("/proc/self/maps").read_bytes().splitlines())
        # A stack and the guard page below it.
        yield max(0, most - used) // 2, "the kernel (vm.max_map_count)", "processes"


def _groups() -> Iterator[Path]:
    """The control groups of this process that may limit threads, with those above them."""
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
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if os.stat(f"/proc/{name}").st_uid == os.getuid():
                    mine += len(os.listdir(f"/proc/{name}/task"))
            except OSError:  # it has ended
                continue
    return mine


def _threads_of_machine() -> int:
    """Threads of all processes: the fourth field of /proc/loadavg (proc(5))."""
    try:
        return int(Path("/proc/loadavg").read_text().split()[3].partition("/")[2])
    except (OSError, ValueError, IndexError):
        return 0
