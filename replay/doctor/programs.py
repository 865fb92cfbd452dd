"""What is installed: the compiled cores, the packages, MPI and the tracers. What may crash or hang runs in a child."""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

from dxt_replay.profiler_merge.recorder.darshan import (
    LEAST_DXT_MIB,
    UNSET,
    Library,
    find_library,
    paths_by_site,
    set_up,
)
from dxt_replay.profiler_merge.recorder.tracers import find_strace
from dxt_replay.traces.errors import RecordingError
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

_DISTRIBUTIONS = {"yaml": "PyYAML"}
"""Package -> name under which it is installed, where the two differ."""

_LAUNCHERS = ("PMI", "PMIX", "OMPI_", "PRTE_", "MPI_LOCAL", "PALS_", "HYDRA_", "MPIR_")
"""Beginnings of variables by which a process knows that an MPI launcher started it."""

_BUILT_WITH = {"MPI": b"PMPI_Init", "HDF5": b"H5get_libversion", "PnetCDF": b"ncmpi_inq_libvers"}
"""What Darshan can be built with -> a name of its interface that such a library holds."""

_MPI_INSTALL = "pip install 'dxt-replay[mpich]', or load the MPI module of your cluster"

_IMPORTS = """
import importlib, json, sys
for name in sys.argv[1:]:
    print(json.dumps({"name": name}), flush=True)
    try:
        importlib.import_module(name)
        error, absent = "", False
    except Exception as problem:
        error = f"{type(problem).__name__}: {problem}"
        absent = isinstance(problem, ModuleNotFoundError) and problem.name == name
    print(json.dumps({"name": name, "error": error, "absent": absent}), flush=True)
"""
"""Announces each module before it is imported: the last one that was announced alone is the one that crashed."""

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
_MPI_SIZE = """
from mpi4py import MPI
if MPI.COMM_WORLD.Get_rank() == 0:
    print(MPI.COMM_WORLD.Get_size())
"""
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
    """A fact about the machine.

    name: the thing. found: what was seen, for a person. remedy: what to do, empty where nothing needs to be done.
    """

    name: str
    found: str
    state: State = State.OK
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """The checks of one subject, such as MPI."""

    name: str
    checks: tuple[Check, ...]


class Ended(NamedTuple):
    """How a process ended. `output`: its standard output. `trouble`: why it failed; empty where it did not."""

    output: str
    trouble: str = ""


def run_child(words: Sequence[str], patience_s: float = 60.0) -> Ended:
    """Run a command, without the variables of an MPI launcher: it is no process of the job that this one may be of.

    After `patience_s` seconds the command and the processes that it started are killed. Never raises.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_LAUNCHERS)}
    try:
        child = subprocess.Popen(
            words, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, errors="replace", start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        return Ended("", f"{words[0]} cannot be started: {error.strerror}")
    try:
        output, complaints = child.communicate(timeout=patience_s)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        return Ended(child.communicate()[0], f"did not end within {patience_s:g} s")
    status = child.returncode
    if status < 0:
        known = {each.value: each.name for each in signal.Signals}
        return Ended(output, f"died by {known.get(-status, f'signal {-status}')}")
    lines = [line.strip() for line in complaints.splitlines() if line.strip()]
    return Ended(output, (lines[-1] if lines else f"ended with status {status}") if status else "")


def run_python(code: str, *arguments: str, patience_s: float = 60.0) -> Ended:
    """Run code in a new interpreter, as `run_child`."""
    return run_child([sys.executable, "-c", code, *arguments], patience_s)


def program_parts() -> tuple[Part, Part]:
    """The compiled cores, and the versions of Python and of the packages."""
    left = [*CORES, *NEEDED, *OPTIONAL]
    errors: dict[str, str] = {}
    absent = set()
    while left:
        ended = run_python(_IMPORTS, *left)
        lines = [json.loads(line) for line in ended.output.splitlines() if line.startswith('{"name": ')]
        errors |= {line["name"]: line["error"] for line in lines if "error" in line}
        absent |= {line["name"] for line in lines if line.get("absent")}
        left = [name for name in left if name not in errors]
        if left:  # the process ended amid the import of the first of these
            errors[left.pop(0)] = ended.trouble or "the process that imported it ended"
    again = "install dxt-replay again: pip install --force-reinstall dxt-replay"
    broken = [Check(name.rpartition(".")[2], errors[name], State.FAILED, again) for name in CORES if errors[name]]
    versions = [
        Check("dxt-replay", VERSION),
        Check("Python", f"{platform.python_version()} ({platform.python_implementation()})"),
    ]
    for name in (*NEEDED, *OPTIONAL):
        shown = _DISTRIBUTIONS.get(name, name)
        remedy = f"for {OPTIONAL[name]}" if name in OPTIONAL else f"pip install {shown}"
        if name in OPTIONAL and name in absent:
            versions.append(Check(shown, "not installed (optional)", remedy=remedy))
        elif errors[name]:
            versions.append(Check(shown, errors[name], State.WARNING if name in OPTIONAL else State.FAILED, remedy))
        else:
            versions.append(Check(shown, _version_of(shown)))
    loaded = Check("loaded", f"{len(CORES) - len(broken)} of {len(CORES)}")
    return Part("Compiled cores", (loaded, *broken)), Part("Versions", tuple(versions))


def _version_of(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "version not known"


def mpi_part(run: Callable[..., Ended] = run_python, start: Callable[..., Ended] = run_child) -> Part:
    """The MPI library with its thread level, and a job of two processes. Replays of one process need no MPI."""
    return Part("MPI", tuple(_mpi(run, start)))


def _mpi(run: Callable[..., Ended], start: Callable[..., Ended]) -> Iterator[Check]:
    ended = run(_MPI_LIBRARY)
    if ended.trouble:
        remedy = "the MPI library does not start here: load the module that mpi4py was built with, or " + _MPI_INSTALL
        yield Check("library", ended.trouble, State.FAILED, remedy)
        return
    found = json.loads(ended.output.splitlines()[-1])
    if "absent" in found:
        remedy = f"for replays of several processes: {_MPI_INSTALL}"
        yield Check("library", found["absent"], State.WARNING, remedy)
        return
    yield Check("library", found["library"])
    yield Check("thread level", found["threads"])
    program = shutil.which("mpiexec")
    if program is None:
        remedy = "start replays with the launcher of your cluster (srun), or add mpiexec to PATH"
        yield Check("mpiexec", "not in PATH", State.WARNING, remedy)
        return
    ended = start([program, "-n", "2", sys.executable, "-c", _MPI_SIZE])
    if ended.trouble:
        remedy = "start replays with the launcher of your cluster; login nodes often refuse mpiexec"
        yield Check("mpiexec", f"{program}: {ended.trouble}", State.WARNING, remedy)
    elif ended.output.split() != ["2"]:
        remedy = "use the mpiexec that belongs to mpi4py's MPI library"
        seen = f"{program} started 2 processes that are no job of 2 for mpi4py"
        yield Check("mpiexec", seen, State.FAILED, remedy)
    else:
        yield Check("mpiexec", f"{program}: started 2 processes of one job")


def recording_part(environment: Mapping[str, str] = os.environ, library: Library | None = None) -> Part:
    """The tracers that `record` would use: strace, and Darshan, tried on a small process, with its variables.

    library: examined in place of the one that is found.
    """
    return Part("Recording", tuple(_tracers(environment, library or find_library(environment))))


def _tracers(environment: Mapping[str, str], library: Library | None) -> Iterator[Check]:
    if library is None:
        remedy = (
            "without it `record` sees steps and no I/O: conda install -c conda-forge darshan-runtime, or module load "
            "darshan-runtime"
        )
        yield Check("Darshan", "libdarshan.so was not found", State.WARNING, remedy)
    else:
        yield from _darshan(library, environment)
    own = [name for name in sorted(environment) if name.startswith(("DARSHAN_", "DXT_"))]
    names = [name for name in own if not name.startswith("DXT_REPLAY")]
    if names:
        ignored = [name for name in names if name in UNSET]
        remedy = f"`record` unsets {', '.join(ignored)}" if ignored else ""
        yield Check("variables", ", ".join(f"{name}={environment[name]}" for name in names), remedy=remedy)
    try:
        strace = find_strace(environment)
    except RecordingError as error:
        yield Check("strace", str(error), remedy="only `record --with strace` needs it")
    else:
        yield Check("strace", f"{strace.program} {strace.version}".strip())


def _darshan(library: Library, environment: Mapping[str, str]) -> Iterator[Check]:
    yield Check("Darshan", f"{library.path} ({library.origin})")
    try:
        content = library.path.read_bytes()
        with tempfile.TemporaryDirectory(prefix="dxt-replay-doctor-") as folder:
            tracer = set_up(library, Path(folder), ["python"], dxt_mib=LEAST_DXT_MIB, include=())
    except (RecordingError, OSError) as error:
        remedy = "name another library with `record --library`, or record with --with strace"
        yield Check("Darshan traces", str(error), State.WARNING, remedy)
        return
    built = [name for name, word in _BUILT_WITH.items() if word in content]
    yield Check("Darshan traces", f"a small program, with DXT; release {tracer.version or 'not known'}")
    yield Check("Darshan is built", f"with {', '.join(built)}" if built else "without MPI and HDF5")
    if by_site := paths_by_site(content, environment):
        found = ", ".join(f"{name}={value}" for name, value in by_site.items())
        yield Check("Darshan's logs", f"this library follows {found}")
