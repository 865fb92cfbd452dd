"""Limits, shared memory, clocks and the rights over the page cache of this machine. Formats: proc(5), sysfs(5)."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from dxt_replay.replay.doctor.check import Check, Part, State
from dxt_replay.replay.ranks.launcher import SHARED_BYTES, SHARED_BYTES_EACH, SHARED_MEMORY
from dxt_replay.replay.regression.machine_environment import MachineEnvironment
from dxt_replay.replay.regression.target_environment import ROOT, text_in
from dxt_replay.traces.units import format_bytes, format_count, format_duration

FEW_FILES = 4096
"""Fewer open files than this are too few for jobs with thousands of lanes: each lane of a process holds one."""

FEW_THREADS = 1024

SLOW_CLOCK_NS = 1000
"""A clock that takes longer is not read by the processor alone: the kernel is called (TSC 20 ns, HPET 1 us)."""

LATE_NS = 1_000_000
"""Lateness of wake-ups that makes replays late, too."""

PROBE_S = 1.0
_CLOCK_READS = 1000


def machine_part(machine: MachineEnvironment) -> Part:
    """Kernel, processors and memory."""
    return Part(
        name="Machine",
        checks=(
            Check(name="kernel", found=f"{machine.kernel} {machine.architecture}"),
            Check(name="processors", found=f"{format_count(machine.cpus)} usable, {machine.cpu or 'model not known'}"),
            Check(name="memory", found=format_bytes(machine.memory_bytes) if machine.memory_bytes else "not known"),
        ),
    )


def limits_part(processors: int, root: Path = ROOT) -> Part:
    """Limits of open files, threads and locked memory, and the room of /dev/shm. `root`: holds `sys`."""
    return Part(
        name="Limits", checks=(_open_files(), _threads(), _locked_memory(root), *_shared_memory(processors, root))
    )


def _open_files() -> Check:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = f"{_limit(soft)}, which a replay raises up to {_limit(hard)}" if soft != hard else _limit(soft)
    few = hard != resource.RLIM_INFINITY and hard < FEW_FILES
    remedy = "raise the hard limit (ulimit -Hn, /etc/security/limits.conf): each lane of a process holds a file open"
    return _bad_if(few, Check(name="open files", found=found), remedy)


def _threads() -> Check:
    from dxt_replay.replay.engine.threads import thread_limits

    limits = sorted(thread_limits())
    if not limits:
        return Check(name="threads", found="no limit")
    left, limit, _ = limits[0]
    remedy = "raise it, or start more processes: each lane of a process is a thread"
    return _bad_if(left < FEW_THREADS, Check(name="threads", found=f"{format_count(left)} more, by {limit}"), remedy)


def _locked_memory(root: Path) -> Check:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    fabric = (root / "sys/class/infiniband").is_dir() and any((root / "sys/class/infiniband").iterdir())
    found = "no limit" if soft == resource.RLIM_INFINITY else format_bytes(soft)
    remedy = "MPI over InfiniBand registers memory: allow it without limit (ulimit -l unlimited)"
    return _bad_if(fabric and soft != resource.RLIM_INFINITY, Check(name="locked memory", found=found), remedy)


def _shared_memory(processors: int, root: Path) -> Iterator[Check]:
    folder = root / SHARED_MEMORY.lstrip("/")
    try:
        room = os.statvfs(folder)
    except OSError as error:
        remedy = "mount a tmpfs there: MPI shares memory among the processes of a machine by it"
        yield Check(name=SHARED_MEMORY, found=error.strerror or "absent", state=State.WARNING, remedy=remedy)
        return
    free = room.f_bavail * room.f_frsize
    needed = SHARED_BYTES + processors * SHARED_BYTES_EACH
    found = f"{format_bytes(free)} free; MPI can need {format_bytes(needed)} with a process for each processor"
    remedy = "make it larger (docker run --shm-size=1g): MPI processes that find no room end with SIGBUS"
    yield _bad_if(free < needed, Check(name=SHARED_MEMORY, found=found), remedy)


def clocks_part(cores_load: bool, root: Path = ROOT) -> Part:
    """The clock of a replay, and how late this machine wakes an idle thread, which takes a second to measure.

    cores_load: whether the compiled cores can be imported; the probe is one of them.
    """
    source = text_in(root / "sys/devices/system/clocksource/clocksource0/current_clocksource")
    cost_ns = _clock_cost_ns()
    remedy = "choose another clock source, if available_clocksource lists one: each operation reads the clock twice"
    found = f"CLOCK_MONOTONIC, source {source or 'not known'}, read in {format_duration(cost_ns)} from Python"
    clock = _bad_if(cost_ns > SLOW_CLOCK_NS, Check(name="clock", found=found), remedy)
    return Part(name="Clocks", checks=(clock, _jitter() if cores_load else _no_jitter()))


def _clock_cost_ns() -> float:
    """The least time between two reads of the clock, ns, with the cost of Python."""
    reads = [time.monotonic_ns() for _ in range(_CLOCK_READS)]
    return min(later - earlier for earlier, later in pairwise(reads) if later > earlier)


def _jitter() -> Check:
    from dxt_replay.replay.engine.jitter import JitterProbe

    probe = JitterProbe()
    with probe.running():
        time.sleep(PROBE_S)
    late = probe.lateness_ns()
    tail_ns = late.quantile(0.99)
    found = (
        f"wake-ups are {format_duration(late.median)} late (median), {format_duration(tail_ns)} (99 %), "
        f"{format_duration(late.maximum)} (longest of {format_count(late.count)})"
    )
    remedy = "other programs use these processors, or a control group limits them: replays will be late, too"
    return _bad_if(tail_ns > LATE_NS, Check(name="timer jitter", found=found), remedy)


def _no_jitter() -> Check:
    return Check(name="timer jitter", found="not measured: a compiled core is missing", state=State.UNKNOWN)


def page_cache_part(machine: MachineEnvironment, root: Path = ROOT) -> Part:
    """What bounds the page cache, and who may drop it. `root`: holds `proc`."""
    limits = [f"{name} {_bytes(text)}" for name, text in machine.limits.items() if name.startswith("memory.")]
    bound = Check(name="limit", found=", ".join(limits) or "none by a control group")
    may_drop = os.access(root / "proc/sys/vm/drop_caches", os.W_OK)
    found = (
        "this user may drop all of it (vm.drop_caches)"
        if may_drop
        else "files that this user may read are dropped one by one (posix_fadvise); vm.drop_caches takes root"
    )
    return Part(name="Page cache", checks=(bound, Check(name="rights", found=found)))


def _bytes(text: str) -> str:
    return format_bytes(int(text)) if text.isdigit() else text


def _limit(value: int) -> str:
    return "no limit" if value == resource.RLIM_INFINITY else format_count(value)


def _bad_if(bad: bool, check: Check, remedy: str) -> Check:
    """The check as it is, or as a warning with a remedy."""
    return Check(name=check.name, found=check.found, state=State.WARNING, remedy=remedy) if bad else check
