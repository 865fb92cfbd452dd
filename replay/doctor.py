"""Examines this machine and a target: what works, what is missing, and what to do about it. What may crash or hang runs
in a child. Formats: proc(5), sysfs(5)."""

from __future__ import annotations

import json
import os
import platform
import resource
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from pathlib import Path
from typing import Any

from dxt_replay.profiler_merge.recorder import darshan
from dxt_replay.profiler_merge.recorder.tracers import find_strace
from dxt_replay.replay.ranks.mpi import SHARED_BYTES, SHARED_BYTES_EACH, SHARED_MEMORY
from dxt_replay.replay.regress.environment import ROOT, machine_environment, target_environment, text_in
from dxt_replay.replay.target.object_store import (
    REMEDIES,
    ObjectPlace,
    delete_object,
    keys_below,
    parse_object_url,
    put_whole,
    read_range,
)
from dxt_replay.traces.errors import MissingDependencyError, RecordingError, UsageError
from dxt_replay.traces.plain import Result, plain
from dxt_replay.traces.units import format_bytes, format_count, format_duration
from dxt_replay.traces.version import VERSION

CORES = (
    "dxt_replay.replay.engine.issue",
    "dxt_replay.replay.engine.link_free",
    "dxt_replay.replay.causal._lane_events",
    "dxt_replay.replay.simulation._simulated_storage",
    "dxt_replay.replay.target._small_files",
    "dxt_replay.traces._memoryview",
    "dxt_replay.traces.measures._passes",
    "dxt_replay.profiler_merge.darshan._overlap_lanes",
    "dxt_replay.profiler_merge.profiles._xplane",
    "dxt_replay.profiler_merge.recorder._page_faults",
)
"""The compiled modules of setup.py."""

NEEDED = ("numpy", "pyarrow", "click", "msgspec", "yaml")
"""Packages without which no capture can be looked at or replayed."""

OPTIONAL: Mapping[str, str] = {
    "mpi4py": "replays of several processes: pip install 'dxt-replay[mpich]'",
    "h5py": "HDF5 files of twins and logs: pip install 'dxt-replay[hdf5]'",
    "pandas": "tables as DataFrames: pip install 'dxt-replay[pandas]'",
    "plotly": "`figure` in Python: pip install 'dxt-replay[charts]'",
    "obstore": "targets in object stores: pip install 'dxt-replay[objects]'",
    "distributed": "`--dask`: pip install 'dxt-replay[dask]'",
}
"""Package -> what it is for, and how to get it."""

FEW_FILES, FEW_THREADS = 4096, 1024
"""Fewer are too few for jobs with thousands of lanes: each lane is a thread that holds a file open."""
SLOW_CLOCK_NS = 1000
"""A clock that takes longer is not read by the processor alone: the kernel is called (TSC 20 ns, HPET 1 us)."""
LATE_NS = 1_000_000  # Lateness of wake-ups that makes replays late, too
PROBE_S, PROBE_BYTES = 1.0, 1 << 20

_LAUNCHERS = ("PMI", "PMIX", "OMPI_", "PRTE_", "MPI_LOCAL", "PALS_", "HYDRA_", "MPIR_")
"""Beginnings of variables by which a process knows that an MPI launcher started it."""
_BUILT_WITH = {"MPI": b"PMPI_Init", "HDF5": b"H5get_libversion", "PnetCDF": b"ncmpi_inq_libvers"}
"""What Darshan can be built with -> a name of its interface that such a library holds."""
_MPI_INSTALL = "pip install 'dxt-replay[mpich]', or load the MPI module of your cluster"
_NO_CORE = "not measured: a compiled core is missing"

_MPI_LIBRARY = """
import json
try:
    from mpi4py import MPI
except (ImportError, RuntimeError) as error:
    print(json.dumps({"absent": str(error)}))
else:
    levels = {getattr(MPI, "THREAD_" + name): name for name in ("SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE")}
    found = " ".join(MPI.Get_library_version().replace(chr(0), "").strip().splitlines()[0].split())
    print(json.dumps({"library": found, "threads": levels[MPI.Query_thread()]}))
"""
_MPI_SIZE = "from mpi4py import MPI; print(MPI.COMM_WORLD.Get_size()) if MPI.COMM_WORLD.Get_rank() == 0 else None"
"""The first process of a job prints its size. Where mpiexec belongs to another MPI library, every process is a job of
one. The others are silent, because launchers mix the output of processes even within a line."""


class State(Enum):
    """How good a fact is. Only FAILED means that something needed is broken."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    UNKNOWN = "not known"


@dataclass(frozen=True, slots=True)
class Check:
    """A fact about the machine: the thing, what was seen, and what to do; empty where nothing needs to be done."""

    name: str
    found: str
    state: State = State.OK
    remedy: str = ""


Checks = Iterator[Check]


@dataclass(frozen=True, slots=True)
class Part:
    """The checks of one subject, such as MPI."""

    name: str
    checks: tuple[Check, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis(Result):
    """The result of `dxt_replay.doctor`. directory: the one that was examined, or the URL of an object store."""

    directory: str | None
    parts: tuple[Part, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing that is needed is broken."""
        return all(check.state is not State.FAILED for part in self.parts for check in part.checks)

    def as_json(self) -> Mapping[str, Any]:
        return {"passed": self.passed, **plain(self)}


def examine(target: str | Path | None) -> Diagnosis:
    """All checks, those of `target` last: a directory or the URL of an object store. Raises: UsageError for others."""
    if isinstance(target, Path) and not target.is_dir():
        raise UsageError(f"{target} is not a directory: name the directory that you will stage into")
    store = parse_object_url(target) if isinstance(target, str) else None
    tried = imported([*CORES, *NEEDED]) | imported([*OPTIONAL])
    loads = not any(tried[name] for name in CORES)
    parts: dict[str, Checks] = {
        "Compiled cores": cores(tried),
        "Versions": versions(tried),
        "MPI": mpi(),
        "Machine": machine(),
        "Limits": limits(len(os.sched_getaffinity(0))),
        "Clocks": clocks(loads),
        "Recording": tracers(os.environ, darshan.find_library(os.environ)),
    }
    if store is not None:
        parts[f"Object store {store.base}"] = object_store(store)
    elif isinstance(target, Path):
        parts[f"Directory {target}"] = place(target, loads)
    found = tuple(Part(name, tuple(checks)) for name, checks in parts.items())
    return Diagnosis(directory=None if target is None else str(target), parts=found)


def run_child(words: Sequence[str], patience_s: float = 60.0) -> tuple[str, str]:
    """Run a command without the variables of an MPI launcher: it is no process of the job that this one may be of.

    Returns its standard output, and why it failed ("" where it did not). After `patience_s` seconds it and the
    processes that it started are killed. Never raises."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_LAUNCHERS)}
    try:
        child = subprocess.Popen(
            words, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, errors="replace", start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        return "", f"{words[0]} cannot be started: {error.strerror}"
    try:
        output, complaints = child.communicate(timeout=patience_s)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        return child.communicate()[0], f"did not end within {patience_s:g} s"
    status = child.returncode
    if status < 0:
        known = {each.value: each.name for each in signal.Signals}
        return output, f"died by {known.get(-status, f'signal {-status}')}"
    last = complaints.strip().rpartition("\n")[2].strip()
    return output, (last or f"ended with status {status}") if status else ""


def imported(names: Sequence[str]) -> dict[str, str]:
    """Why each module cannot be imported: "" where it can. One process tries all; where it fails, each has a process of
    its own, which it may crash."""
    if not run_child([sys.executable, "-c", f"import {', '.join(names)}"])[1]:
        return dict.fromkeys(names, "")

    def tried(name: str) -> str:
        _, trouble = run_child([sys.executable, "-c", f"import {name}"])
        return "not installed" if trouble == f"ModuleNotFoundError: No module named '{name}'" else trouble

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return dict(zip(names, pool.map(tried, names), strict=True))


def cores(tried: Mapping[str, str]) -> Checks:
    """The compiled cores. tried: of `imported`."""
    broken = [name for name in CORES if tried[name]]
    yield Check("loaded", f"{len(CORES) - len(broken)} of {len(CORES)}")
    again = "install dxt-replay again: pip install --force-reinstall dxt-replay"
    yield from (Check(name.rpartition(".")[2], tried[name], State.FAILED, again) for name in broken)


def versions(tried: Mapping[str, str]) -> Checks:
    """The versions of Python and of the packages."""
    yield Check("dxt-replay", VERSION)
    yield Check("Python", f"{platform.python_version()} ({platform.python_implementation()})")
    for name in (*NEEDED, *OPTIONAL):
        shown, error = "PyYAML" if name == "yaml" else name, tried[name]
        found, state, remedy = "version not known", State.OK, ""
        if not error:
            with suppress(PackageNotFoundError):
                found = version(shown)
        elif name in NEEDED:
            found, state, remedy = error, State.FAILED, f"pip install {shown}"
        else:
            absent, remedy = error == "not installed", f"for {OPTIONAL[name]}"
            found, state = (f"{error} (optional)", State.OK) if absent else (error, State.WARNING)
        yield Check(shown, found, state, remedy)


def mpi(run: Callable[[Sequence[str]], tuple[str, str]] = run_child) -> Checks:
    """The MPI library with its thread level, and a job of two processes. Replays of one process need no MPI."""
    output, trouble = run([sys.executable, "-c", _MPI_LIBRARY])
    if trouble:
        remedy = "the MPI library does not start here: load the module that mpi4py was built with, or " + _MPI_INSTALL
        yield Check("library", trouble, State.FAILED, remedy)
        return
    found = json.loads(output.splitlines()[-1])
    if "absent" in found:
        yield Check("library", found["absent"], State.WARNING, f"for replays of several processes: {_MPI_INSTALL}")
        return
    yield Check("library", found["library"])
    yield Check("thread level", found["threads"])
    program = shutil.which("mpiexec")
    if program is None:
        remedy = "start replays with the launcher of your cluster (srun), or add mpiexec to PATH"
        yield Check("mpiexec", "not in PATH", State.WARNING, remedy)
        return
    output, trouble = run([program, "-n", "2", sys.executable, "-c", _MPI_SIZE])
    if trouble:
        remedy = "start replays with the launcher of your cluster; login nodes often refuse mpiexec"
        yield Check("mpiexec", f"{program}: {trouble}", State.WARNING, remedy)
    elif output.split() != ["2"]:
        seen = f"{program} started 2 processes that are no job of 2 for mpi4py"
        yield Check("mpiexec", seen, State.FAILED, "use the mpiexec that belongs to mpi4py's MPI library")
    else:
        yield Check("mpiexec", f"{program}: started 2 processes of one job")


def machine(root: Path = ROOT) -> Checks:
    """Kernel, processors and memory, with what bounds the page cache and who may drop it. `root`: holds `proc`."""
    here = machine_environment()
    yield Check("kernel", f"{here.kernel} {here.architecture}")
    yield Check("processors", f"{format_count(here.cpus)} usable, {here.cpu or 'model not known'}")
    yield Check("memory", format_bytes(here.memory_bytes) if here.memory_bytes else "not known")
    bounds = [
        f"{name} {format_bytes(int(text)) if text.isdigit() else text}"
        for name, text in here.limits.items()
        if name.startswith("memory.")
    ]
    yield Check("page cache limit", ", ".join(bounds) or "none by a control group")
    rights = "files that this user may read are dropped one by one (posix_fadvise); vm.drop_caches takes root"
    if os.access(root / "proc/sys/vm/drop_caches", os.W_OK):
        rights = "this user may drop all of it (vm.drop_caches)"
    yield Check("page cache rights", rights)


def _warning_if(bad: bool, name: str, found: str, remedy: str) -> Check:
    return Check(name, found, State.WARNING, remedy) if bad else Check(name, found)


def limits(processors: int, root: Path = ROOT) -> Checks:
    """Limits of open files, threads and locked memory, and the room of /dev/shm. `root`: holds `sys` and `dev`."""
    from dxt_replay.replay.engine.limits import thread_limits

    none = resource.RLIM_INFINITY
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found, most = ("no limit" if value == none else format_count(value) for value in (soft, hard))
    found = found if soft == hard else f"{found}, which a replay raises up to {most}"
    remedy = "raise the hard limit (ulimit -Hn, /etc/security/limits.conf): each lane of a process holds a file open"
    yield _warning_if(hard != none and hard < FEW_FILES, "open files", found, remedy)
    threads, of_what, *_ = min(thread_limits(), default=(FEW_THREADS, ""))
    found = f"{format_count(threads)} more, by {of_what}" if of_what else "no limit"
    remedy = "raise it, or start more processes: each lane of a process is a thread"
    yield _warning_if(threads < FEW_THREADS, "threads", found, remedy)
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    found, fabric = "no limit" if soft == none else format_bytes(soft), any(root.glob("sys/class/infiniband/*"))
    remedy = "MPI over InfiniBand registers memory: allow it without limit (ulimit -l unlimited)"
    yield _warning_if(soft != none and fabric, "locked memory", found, remedy)
    try:
        room = os.statvfs(root / SHARED_MEMORY.lstrip("/"))
    except OSError as error:
        remedy = "mount a tmpfs there: MPI shares memory among the processes of a machine by it"
        yield Check(SHARED_MEMORY, error.strerror or "absent", State.WARNING, remedy)
        return
    free, needed = room.f_bavail * room.f_frsize, SHARED_BYTES + processors * SHARED_BYTES_EACH
    found = f"{format_bytes(free)} free; MPI can need {format_bytes(needed)} with a process for each processor"
    remedy = "make it larger (docker run --shm-size=1g): MPI processes that find no room end with SIGBUS"
    yield _warning_if(free < needed, SHARED_MEMORY, found, remedy)


def clocks(loads: bool, root: Path = ROOT) -> Checks:
    """The clock of a replay, and how late this machine wakes an idle thread, which takes a second to measure.

    loads: whether the compiled cores can be imported; the probe is one of them."""
    source = text_in(root / "sys/devices/system/clocksource/clocksource0/current_clocksource")
    reads = [time.monotonic_ns() for _ in range(1000)]
    cost_ns = min(later - earlier for earlier, later in pairwise(reads) if later > earlier)  # with the cost of Python
    remedy = "choose another clock source, if available_clocksource lists one: each operation reads the clock twice"
    found = f"CLOCK_MONOTONIC, source {source or 'not known'}, read in {format_duration(cost_ns)} from Python"
    yield _warning_if(cost_ns > SLOW_CLOCK_NS, "clock", found, remedy)
    if not loads:
        yield Check("timer jitter", _NO_CORE, State.UNKNOWN)
        return
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
    yield _warning_if(tail_ns > LATE_NS, "timer jitter", found, remedy)


def tracers(environment: Mapping[str, str], library: darshan.Library | None) -> Checks:
    """The tracers that `record` would use: strace, and Darshan, tried on a small process, with its variables."""
    if library is None:
        remedy = (
            "without it `record` sees steps and no I/O: conda install -c conda-forge darshan-runtime, or module load "
            "darshan-runtime"
        )
        yield Check("Darshan", "libdarshan.so was not found", State.WARNING, remedy)
    else:
        yield Check("Darshan", f"{library.path} ({library.origin})")
        try:
            content = library.path.read_bytes()
            with tempfile.TemporaryDirectory(prefix="dxt-replay-doctor-") as folder:
                tracer = darshan.set_up(library, Path(folder), ["python"], dxt_mib=darshan.LEAST_DXT_MIB, include=())
        except (RecordingError, OSError) as error:
            remedy = "name another library with `record --library`, or record with --with strace"
            yield Check("Darshan traces", str(error), State.WARNING, remedy)
        else:
            built = ", ".join(name for name, word in _BUILT_WITH.items() if word in content)
            found = f"a small program, with DXT; release {tracer.version or 'not known'}"
            yield Check("Darshan traces", f"{found}, {f'with {built}' if built else 'without MPI and HDF5'}")
            if by_site := darshan.paths_by_site(content, environment):
                found = ", ".join(f"{name}={value}" for name, value in by_site.items())
                yield Check("Darshan's logs", f"this library follows {found}")
    own = [name for name in sorted(environment) if name.startswith(("DARSHAN_", "DXT_"))]
    if names := [name for name in own if not name.startswith("DXT_REPLAY")]:
        ignored = ", ".join(name for name in names if name in darshan.UNSET)
        remedy = f"`record` unsets {ignored}" if ignored else ""
        yield Check("variables", ", ".join(f"{name}={environment[name]}" for name in names), remedy=remedy)
    try:
        strace = find_strace(environment)
        yield Check("strace", f"{strace.program} {strace.version}".strip())
    except RecordingError as error:
        yield Check("strace", str(error), remedy="only `record --with strace` needs it")


def place(directory: Path, loads: bool) -> Checks:
    """A directory. Writes and reads 1 MiB in a file without a name, or with one for a moment.

    loads: whether the compiled cores can be imported; one of them counts cached pages."""
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
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            file.write(os.urandom(PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
            checks = [Check("writing", "works"), _direct(file.fileno()), _dropped(file.fileno(), loads)]
    except OSError as error:
        remedy = "nothing can be staged here: choose a directory with room that you may write"
        checks = [Check("writing", f"fails: {error.strerror}", State.FAILED, remedy)]
    yield from checks


def _direct(file: int) -> Check:
    refused = ""
    try:
        os.close(os.open(f"/proc/self/fd/{file}", os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC))
    except OSError as error:
        refused = f"refused: {error.strerror}"
    return _warning_if(bool(refused), "direct I/O (O_DIRECT)", refused or "works", "leave --api direct out here")


def _dropped(file: int, loads: bool) -> Check:
    """Reads the file into the page cache and drops it, as `run` does, and asks the kernel for what stayed."""
    name = "page cache is dropped"
    if not loads:
        return Check(name, _NO_CORE, State.UNKNOWN)
    from dxt_replay.replay.target import page_cache

    path = os.fsencode(f"/proc/self/fd/{file}")
    os.pread(file, PROBE_BYTES, 0)
    before = page_cache.resident([path]).percent
    dropped = page_cache.drop([path])
    after = page_cache.resident([path]).percent
    remedy = "reads of a twin here may come from memory: make it larger than the memory, or replay with --api direct"
    if before is None or after is None:
        found = "; ".join(dropped.warnings) or "the kernel does not tell which pages are cached (mincore)"
        return Check(name, found, State.UNKNOWN, remedy)
    found = f"{before:.0f} % of a file were cached after it was read, {after:.0f} % after it was dropped"
    return _warning_if(bool(dropped.kept) or after > 0, name, "; ".join([found, *dropped.warnings]), remedy)


def object_store(at: ObjectPlace) -> Checks:
    """An object target: one request of each kind that `stage` and `run` send, each once.

    Writes an object of 1 MiB below the prefix and deletes it."""
    yield Check("endpoint", at.endpoint or "of the environment (AWS_ENDPOINT_URL, AWS_REGION)")
    try:
        client = at.client()
    except (MissingDependencyError, UsageError) as error:
        yield Check("client", str(error), State.FAILED)
        return
    key = at.key(f"dxt-replay-doctor-{secrets.token_hex(8)}")
    requests: dict[str, Callable[[], object]] = {
        "PUT": lambda: put_whole(client, key, os.urandom(PROBE_BYTES)),
        "GET": lambda: read_range(client, key, 0, memoryview(bytearray(PROBE_BYTES))),
        "LIST": lambda: next(keys_below(client, at.prefix), None),
        "DELETE": lambda: delete_object(client, key),
    }
    for name, send in requests.items():
        begin = time.monotonic_ns()
        try:
            send()
        except OSError as error:
            remedy = REMEDIES.get(error.errno or 0, "nothing can be staged here: choose another target")
            if name == "DELETE":
                remedy = f"remove {at.base}{key.removeprefix(at.prefix)} yourself, which this check left; {remedy}"
            yield Check(name, f"fails: {error.strerror or error}", State.FAILED, remedy)
            if name == "PUT":
                return
        else:
            what = format_bytes(PROBE_BYTES) if name in ("PUT", "GET") else "answered"
            yield Check(name, f"{what} in {format_duration(time.monotonic_ns() - begin)}")
