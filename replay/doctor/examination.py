"""Runs all checks of `dxt-replay doctor`; those of the machine and of a target stand here.

Formats: proc(5), sysfs(5).
"""

from __future__ import annotations

import os
import resource
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from dxt_replay.replay.doctor.programs import Check, Part, State, mpi_part, program_parts, recording_part
from dxt_replay.replay.ranks.mpi import SHARED_BYTES, SHARED_BYTES_EACH, SHARED_MEMORY
from dxt_replay.replay.regress.environment import (
    ROOT,
    MachineEnvironment,
    machine_environment,
    target_environment,
    text_in,
)
from dxt_replay.replay.target.object_store import (
    REMEDIES,
    delete_object,
    keys_below,
    parse_object_url,
    put_whole,
    read_range,
)
from dxt_replay.traces.errors import MissingDependencyError, UsageError
from dxt_replay.traces.plain import plain
from dxt_replay.traces.units import format_bytes, format_count, format_duration

FEW_FILES = 4096
"""Fewer open files than this are too few for jobs with thousands of lanes: each lane of a process holds one."""

FEW_THREADS = 1024

SLOW_CLOCK_NS = 1000
"""A clock that takes longer is not read by the processor alone: the kernel is called (TSC 20 ns, HPET 1 us)."""

LATE_NS = 1_000_000
"""Lateness of wake-ups that makes replays late, too."""

PROBE_S = 1.0
PROBE_BYTES = 1 << 20
_NO_CORE = "not measured: a compiled core is missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The result of `dxt_replay.doctor`. directory: the one that was examined, or the URL of an
    object store; None without one."""

    directory: str | None
    parts: tuple[Part, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing that is needed is broken."""
        return all(check.state is not State.FAILED for part in self.parts for check in part.checks)

    def as_json(self) -> Mapping[str, Any]:
        """The object that `dxt-replay doctor --json` prints."""
        return {"passed": self.passed, **plain(self)}


def examine(target: str | Path | None) -> Diagnosis:
    """All parts, that of `target` last, a directory or the URL of an object store. Raises: UsageError if it is none."""
    if isinstance(target, Path) and not target.is_dir():
        raise UsageError(f"{target} is not a directory: name the directory that you will stage into")
    if isinstance(target, str):
        parse_object_url(target)
    machine = machine_environment()
    cores, versions = program_parts()
    load = all(check.state is not State.FAILED for check in cores.checks)
    parts = [
        cores,
        versions,
        mpi_part(),
        machine_part(machine),
        limits_part(machine.cpus),
        clocks_part(load),
        page_cache_part(machine),
        recording_part(),
    ]
    if target is not None:
        parts.append(object_part(target) if isinstance(target, str) else place_part(target, load))
    return Diagnosis(directory=None if target is None else str(target), parts=tuple(parts))


def _warning_if(bad: bool, name: str, found: str, remedy: str) -> Check:
    return Check(name, found, State.WARNING, remedy) if bad else Check(name, found)


def machine_part(machine: MachineEnvironment) -> Part:
    """Kernel, processors and memory."""
    return Part(
        "Machine",
        (
            Check("kernel", f"{machine.kernel} {machine.architecture}"),
            Check("processors", f"{format_count(machine.cpus)} usable, {machine.cpu or 'model not known'}"),
            Check("memory", format_bytes(machine.memory_bytes) if machine.memory_bytes else "not known"),
        ),
    )


def limits_part(processors: int, root: Path = ROOT) -> Part:
    """Limits of open files, threads and locked memory, and the room of /dev/shm. `root`: holds `sys`."""
    return Part("Limits", (_open_files(), _threads(), _locked_memory(root), _shared_memory(processors, root)))


def _open_files() -> Check:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found, most = ("no limit" if value == resource.RLIM_INFINITY else format_count(value) for value in (soft, hard))
    if soft != hard:
        found = f"{found}, which a replay raises up to {most}"
    remedy = "raise the hard limit (ulimit -Hn, /etc/security/limits.conf): each lane of a process holds a file open"
    return _warning_if(hard != resource.RLIM_INFINITY and hard < FEW_FILES, "open files", found, remedy)


def _threads() -> Check:
    from dxt_replay.replay.engine.limits import thread_limits

    limits = sorted(thread_limits())
    if not limits:
        return Check("threads", "no limit")
    left, limit, _ = limits[0]
    remedy = "raise it, or start more processes: each lane of a process is a thread"
    return _warning_if(left < FEW_THREADS, "threads", f"{format_count(left)} more, by {limit}", remedy)


def _locked_memory(root: Path) -> Check:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    limited = soft != resource.RLIM_INFINITY
    fabric = (root / "sys/class/infiniband").is_dir() and any((root / "sys/class/infiniband").iterdir())
    remedy = "MPI over InfiniBand registers memory: allow it without limit (ulimit -l unlimited)"
    return _warning_if(fabric and limited, "locked memory", format_bytes(soft) if limited else "no limit", remedy)


def _shared_memory(processors: int, root: Path) -> Check:
    try:
        room = os.statvfs(root / SHARED_MEMORY.lstrip("/"))
    except OSError as error:
        remedy = "mount a tmpfs there: MPI shares memory among the processes of a machine by it"
        return Check(SHARED_MEMORY, error.strerror or "absent", State.WARNING, remedy)
    free = room.f_bavail * room.f_frsize
    needed = SHARED_BYTES + processors * SHARED_BYTES_EACH
    found = f"{format_bytes(free)} free; MPI can need {format_bytes(needed)} with a process for each processor"
    remedy = "make it larger (docker run --shm-size=1g): MPI processes that find no room end with SIGBUS"
    return _warning_if(free < needed, SHARED_MEMORY, found, remedy)


def clocks_part(cores_load: bool, root: Path = ROOT) -> Part:
    """The clock of a replay, and how late this machine wakes an idle thread, which takes a second to measure.

    cores_load: whether the compiled cores can be imported; the probe is one of them.
    """
    source = text_in(root / "sys/devices/system/clocksource/clocksource0/current_clocksource")
    reads = [time.monotonic_ns() for _ in range(1000)]
    cost_ns = min(later - earlier for earlier, later in pairwise(reads) if later > earlier)  # with the cost of Python
    remedy = "choose another clock source, if available_clocksource lists one: each operation reads the clock twice"
    found = f"CLOCK_MONOTONIC, source {source or 'not known'}, read in {format_duration(cost_ns)} from Python"
    clock = _warning_if(cost_ns > SLOW_CLOCK_NS, "clock", found, remedy)
    return Part("Clocks", (clock, _jitter() if cores_load else Check("timer jitter", _NO_CORE, State.UNKNOWN)))


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
    return _warning_if(tail_ns > LATE_NS, "timer jitter", found, remedy)


def page_cache_part(machine: MachineEnvironment, root: Path = ROOT) -> Part:
    """What bounds the page cache, and who may drop it. `root`: holds `proc`."""
    limits = [
        f"{name} {format_bytes(int(text)) if text.isdigit() else text}"
        for name, text in machine.limits.items()
        if name.startswith("memory.")
    ]
    rights = "files that this user may read are dropped one by one (posix_fadvise); vm.drop_caches takes root"
    if os.access(root / "proc/sys/vm/drop_caches", os.W_OK):
        rights = "this user may drop all of it (vm.drop_caches)"
    limit = Check("limit", ", ".join(limits) or "none by a control group")
    return Part("Page cache", (limit, Check("rights", rights)))


def place_part(directory: Path, cores_load: bool) -> Part:
    """The checks of a directory. Writes and reads 1 MiB in a file without a name, or with one for a moment.

    cores_load: whether the compiled cores can be imported; one of them counts cached pages.
    """
    return Part(f"Directory {directory}", (*_file_system(directory), *_probed(directory, cores_load)))


def _file_system(directory: Path) -> Iterator[Check]:
    environment = target_environment(directory)
    if environment.file_system:
        found = f"{environment.file_system} of {environment.source}, mounted at {environment.mount_point}"
        yield Check("file system", found)
        yield Check("mount options", ", ".join(environment.options))
        if device := environment.device:
            kind = {True: ", rotational", False: ", not rotational", None: ""}[device.rotational]
            yield Check("device", f"{device.name}{f' ({device.model})' if device.model else ''}{kind}")
    else:
        yield Check("file system", "not in /proc/self/mountinfo", State.UNKNOWN)
    room = os.statvfs(directory)
    free, whole = (format_bytes(blocks * room.f_frsize) for blocks in (room.f_bavail, room.f_blocks))
    files = f"; {format_count(room.f_favail)} more files" if room.f_files else ""
    yield Check("room", f"{free} free of {whole}{files}")


def _probed(directory: Path, cores_load: bool) -> list[Check]:
    """What only a file can tell: whether it can be written, takes direct I/O, and leaves the page cache."""
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            file.write(os.urandom(PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
            return [Check("writing", "works"), _direct(file.fileno()), _dropped(file.fileno(), cores_load)]
    except OSError as error:
        remedy = "nothing can be staged here: choose a directory with room that you may write"
        return [Check("writing", f"fails: {error.strerror}", State.FAILED, remedy)]


def _direct(file: int) -> Check:
    name = "direct I/O (O_DIRECT)"
    try:
        os.close(os.open(f"/proc/self/fd/{file}", os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC))
    except OSError as error:
        return Check(name, f"refused: {error.strerror}", State.WARNING, "leave --direct out here")
    return Check(name, "works")


def _dropped(file: int, cores_load: bool) -> Check:
    """Reads the file into the page cache and drops it, as `run` does, and asks the kernel for what stayed."""
    name = "page cache is dropped"
    if not cores_load:
        return Check(name, _NO_CORE, State.UNKNOWN)
    from dxt_replay.replay.target import page_cache

    path = os.fsencode(f"/proc/self/fd/{file}")
    os.pread(file, PROBE_BYTES, 0)
    before = page_cache.resident([path]).percent
    dropped = page_cache.drop([path])
    after = page_cache.resident([path]).percent
    remedy = "reads of a twin here may come from memory: make it larger than the memory, or replay with --direct"
    if before is None or after is None:
        found = "; ".join(dropped.warnings) or "the kernel does not tell which pages are cached (mincore)"
        return Check(name, found, State.UNKNOWN, remedy)
    found = f"{before:.0f} % of a file were cached after it was read, {after:.0f} % after it was dropped"
    if dropped.kept or after > 0:
        return Check(name, "; ".join([found, *dropped.warnings]), State.WARNING, remedy)
    return Check(name, found)


def object_part(url: str) -> Part:
    """The checks of an object target: one request of each kind that `stage` and `run` send, each once.

    Writes an object of 1 MiB below the prefix and deletes it. Raises: UsageError for a URL that is none.
    """
    return Part(f"Object store {parse_object_url(url).base}", tuple(_object_store(url)))


def _object_store(url: str) -> Iterator[Check]:
    place = parse_object_url(url)
    yield Check("endpoint", place.endpoint or "of the environment (AWS_ENDPOINT_URL, AWS_REGION)")
    try:
        client = place.client()
    except (MissingDependencyError, UsageError) as error:
        yield Check("client", str(error), State.FAILED)
        return
    key = place.key(f"dxt-replay-doctor-{secrets.token_hex(8)}")
    requests: dict[str, Callable[[], object]] = {
        "PUT": lambda: put_whole(client, key, os.urandom(PROBE_BYTES)),
        "GET": lambda: read_range(client, key, 0, memoryview(bytearray(PROBE_BYTES))),
        "LIST": lambda: next(keys_below(client, place.prefix), None),
        "DELETE": lambda: delete_object(client, key),
    }
    for name, send in requests.items():
        begin = time.monotonic_ns()
        try:
            send()
        except OSError as error:
            remedy = REMEDIES.get(error.errno or 0, "nothing can be staged here: choose another target")
            if name == "DELETE":
                kept = f"{place.base}{key.removeprefix(place.prefix)}"
                remedy = f"remove {kept} yourself, which this check left; {remedy}"
            yield Check(name, f"fails: {error.strerror or error}", State.FAILED, remedy)
            if name == "PUT":
                return
        else:
            what = format_bytes(PROBE_BYTES) if name in ("PUT", "GET") else "answered"
            yield Check(name, f"{what} in {format_duration(time.monotonic_ns() - begin)}")
