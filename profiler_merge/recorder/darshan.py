"""Darshan as the tracer of a job: finds its library, sets it up, and tries it on a small process before the job.

Its configuration file is read by Darshan 3.4.0 and later; older releases know only the variables. A release ignores
unknown settings, so every job gets both. Sources: darshan-runtime/lib/darshan-config.c and its guide.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from dxt_replay.profiler_merge.recorder.tracers import (
    DARSHAN,
    LOGS,
    Tracer,
    find_below,
    folder_of_package,
    job_python,
    write_script,
)
from dxt_replay.traces.errors import LogError, RecordingError

CHECK, CONFIG, SMALL_CONFIG = "check", "darshan.conf", "darshan-small.conf"
"""Names in the folder of a recording."""

_NAME = "libdarshan.so"
_FOLDERS = ("lib", "lib64", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu")
_ROOT_VARIABLES = (
    *("DARSHAN_RUNTIME_DIR", "DARSHAN_RUNTIME_ROOT", "DARSHAN_RUNTIME_HOME", "DARSHAN_BASE_DIR", "DARSHAN_DIR"),
    *("DARSHAN_ROOT", "DARSHAN_HOME", "DARSHAN_PREFIX", "DARSHAN_PATH", "EBROOTDARSHANMINRUNTIME", "EBROOTDARSHAN"),
    "CONDA_PREFIX",
)
"""Variables in which modules of Cray, EasyBuild, Spack and sites, and conda, name the folder of an installation."""
_PATIENCE_S = 60

_MIB = 1 << 20
LEAST_DXT_MIB, MOST_DXT_MIB = 32, 64
_SMALL_DXT_MIB = 2
"""For a program that a Python program starts, such as `gzip`: Darshan clears all of its memory when a process ends."""
_SHARE_OF_MEMORY = 64
"""Share of the free memory for DXT in each process, since all processes may end at one time."""
_NAME_MEMORY_MIB = 32
_RECORDS = 65536
"""Files of a process in the counters' modules: importing TensorFlow alone opens more than Darshan's default of 1024."""

EXCLUDED_ROOTS = ("etc", "dev", "usr", "bin", "boot", "lib", "opt", "sbin", "sys", "proc", "var")
"""Top-level folders whose files Darshan leaves out by default."""
SHARED_MEMORY = "/dev/shm"
"""A file system in memory below /dev: its files are data like any other."""
_NOT_DATA = (
    r"\.py$", r"\.pyc(\.[0-9]+)?$", r"\.so($|\.)", "/site-packages/", "/dist-packages/", "/lib/python[0-9.]+/",
    r"/pyvenv\.cfg$", r"\.not_data$", "^/proc/", "^/sys/",
)  # fmt: skip
"""Python's own files, and files that describe the machine."""
STARTERS = (
    "sh|bash|dash|env|mkdir|date|ssh|mpiexec|mpirun|srun|hydra_pmi_proxy|orted|prted|orterun|prterun|timeout|nice|nohup|"
    "numactl|taskset|stdbuf|setsid|time"
)
_MOVE_NO_DATA = (
    f"{STARTERS}|uname|gcc|cc|g\\+\\+|c\\+\\+|x86_64-linux-gn.*|ld|collect2|as|cc1|cc1plus|ldconfig|nvcc|ptxas|cicc|"
    "nvidia-smi|rocm-smi|lscpu|lspci|hostname|which"
)
"""Programs that move no data of the job by themselves, and leave no logs."""

UNSET = (
    *("DARSHAN_DISABLE", "DARSHAN_LOGFILE", "DARSHAN_MOD_DISABLE", "DARSHAN_MOD_ENABLE", "DARSHAN_APP_EXCLUDE"),
    *("DARSHAN_APP_INCLUDE", "DARSHAN_RANK_EXCLUDE", "DARSHAN_RANK_INCLUDE", "DARSHAN_DXT_SMALL_IO_TRIGGER"),
    *("DARSHAN_DXT_UNALIGNED_IO_TRIGGER", "DXT_TRIGGER_CONF_PATH"),
)
"""Variables that would disable or thin out the recording, or give all processes one log."""


class Library(NamedTuple):
    """Darshan's runtime library, and where it was found, for people."""

    path: Path
    origin: str


def _run_tool(words: Sequence[str]) -> str:
    """The output of a command; "" if it does not exist, fails, or takes too long."""
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_PATIENCE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return ""
    return done.stdout if done.returncode == 0 else ""


def find_library(environment: Mapping[str, str], *, run: Callable[[Sequence[str]], str] = _run_tool) -> Library | None:
    """The first library found, None if there is none.

    In this order: LD_PRELOAD, variables of a loaded module, LD_LIBRARY_PATH, darshan-config, the environment of this
    Python, the loader's cache. `run` returns the output of a command."""
    for origin, path in _candidates(environment, run):
        if path.is_file():
            return Library(path=path.absolute(), origin=origin)
    return None


def _candidates(environment: Mapping[str, str], run: Callable[[Sequence[str]], str]) -> Iterator[tuple[str, Path]]:
    for word in re.split(r"[ :]+", environment.get("LD_PRELOAD", "")):
        if _is_darshan(word):
            yield "LD_PRELOAD", Path(word)
    prefixes = {variable: environment[variable] for variable in _ROOT_VARIABLES if environment.get(variable)}
    for folder in filter(None, environment.get("LD_LIBRARY_PATH", "").split(":")):
        yield "LD_LIBRARY_PATH", Path(folder, _NAME)
    program = shutil.which("darshan-config", path=environment.get("PATH", os.defpath))
    if program:
        prefixes[program] = str(Path(program).resolve().parent.parent)
    prefixes["this Python"] = sys.prefix
    for origin, prefix in prefixes.items():
        yield from ((origin, Path(prefix, folder, _NAME)) for folder in _FOLDERS)
    for line in run(["ldconfig", "-p"]).splitlines():
        if line.strip().startswith((f"{_NAME} ", f"{_NAME}.")):
            yield "the loader's cache (ldconfig -p)", Path(line.rpartition("=> ")[2].strip())


def _is_darshan(library: str) -> bool:
    return Path(library).name.startswith(_NAME)


def without_darshan(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment with Darshan removed from LD_PRELOAD, since this process's children do not belong to the job."""
    words = [word for word in environment.get("LD_PRELOAD", "").replace(":", " ").split() if not _is_darshan(word)]
    kept = {name: value for name, value in environment.items() if name != "LD_PRELOAD"}
    return {**kept, "LD_PRELOAD": ":".join(words)} if words else kept


def set_up(library: Library, folder: Path, command: Sequence[str], *, dxt_mib: int, include: Sequence[str]) -> Tracer:
    """Write Darshan's configuration into the recording's folder, and trace one small process with it.

    Raises: RecordingError when the library cannot be loaded, writes no log, or was built without DXT.
    """
    named = tuple(dict.fromkeys(filter(needs_include, [*include, *data_places(command), str(folder)])))
    for name, mib in ((CONFIG, dxt_mib), (SMALL_CONFIG, min(dxt_mib, _SMALL_DXT_MIB))):
        (folder / name).write_text(config_text(mib, named), encoding="utf-8", errors="surrogateescape")
    job = secrets.randbelow(2**31 - 1) + 1  # Darshan keeps a signed 32-bit number
    content = library.path.read_bytes()
    by_site = {name: path for name, path in paths_by_site(content, os.environ).items() if os.path.isdir(path)}
    ours = {name: LOGS for name in by_site if "LOG" in name}
    tracer = Tracer(
        name=DARSHAN,
        program=library.path,
        origin=library.origin,
        variables={
            "DARSHAN_ENABLE_NONMPI": "1",
            "DXT_ENABLE_IO_TRACE": "1",
            "DARSHAN_DISABLE_SHARED_REDUCTION": "1",
            "DARSHAN_CONFIG_PATH": str(folder / CONFIG),
            "DXT_RECORDING_SMALL": str(folder / SMALL_CONFIG),
            "DARSHAN_LOGPATH": LOGS,
            "DARSHAN_JOBID": "DXT_RECORDING_JOB",
            "DXT_RECORDING_JOB": str(job),
            "DARSHAN_MODMEM": str(_module_memory_mib(dxt_mib)),
            "DARSHAN_NAMEMEM": str(_NAME_MEMORY_MIB),
            **ours,
        },
        unset=UNSET,
        preload=(library.path, *_hdf5_libraries(content, command, without_darshan(os.environ))),
        patterns=("*.darshan",),
        job=job,
        data=named,
    )
    place = folder / CHECK
    printed, log = _try(tracer, place)
    if log is None:
        elsewhere = ", ".join(f"{name} ({value})" for name, value in by_site.items() if name not in ours)
        look = f". The log may lie in the folder of {elsewhere}: unset these variables, which the library follows"
        raise RecordingError(
            f"{library.path} ({library.origin}) wrote no log for a small test program ({printed})"
            f"{look * bool(elsewhere)}. Name another library with --library, or record with --with strace"
        )
    # Imported here because NumPy's threads would take the signals of the job.
    from dxt_replay.profiler_merge.darshan.log import open_log

    try:
        found = open_log(log)
    except LogError as error:
        raise RecordingError(f"the log of a small test program cannot be read: {error}") from error
    shutil.rmtree(place)
    if "DXT_POSIX" not in found.modules:
        raise RecordingError(
            f"{library.path} ({library.origin}) traced nothing of a small test program: it was built without DXT, or "
            "is older than 3.1.3. Name another library with --library, or record with --with strace"
        )
    return replace(tracer, version=found.job.metadata.get("lib_ver", ""))


def _try(tracer: Tracer, place: Path) -> tuple[str, Path | None]:
    """The last line that a small process under the tracer printed, and its log."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    (place / "checked-file").write_bytes(b"x" * 4096)
    script = write_script(place / "check.sh", tracer, logs=place, profiles=place, by_rank=False)
    words = [str(script), sys.executable, "-I", "-S", "-c", "open('checked-file', 'rb').read()"]
    try:
        done = subprocess.run(
            words, cwd=place, env=without_darshan(os.environ), stdin=subprocess.DEVNULL, capture_output=True, text=True,
            errors="replace", timeout=_PATIENCE_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error), None
    lines = [line.strip() for line in (done.stderr + done.stdout).splitlines() if line.strip()]
    return lines[-1] if lines else "which printed nothing", next(iter(find_below(place, tracer.patterns)), None)


def _hdf5_libraries(content: bytes, command: Sequence[str], environment: Mapping[str, str]) -> list[Path]:
    """The HDF5 library of the job's h5py, and its dependencies: a Darshan with HDF5 modules needs them loaded."""
    if b"H5get_libversion" not in content:
        return []
    folder = folder_of_package(job_python(command, environment), "h5py", environment)
    if folder is None:
        return []
    bundled = sorted(folder.parent.glob("h5py.libs/*.so*"), key=lambda path: (path.name.startswith("libhdf5"), path))
    return [path for path in bundled if "hdf5_" not in path.name] or [*folder.parents[2].glob("libhdf5.so")]


def data_places(command: Sequence[str]) -> list[str]:
    """Folders and files in the command, also behind `=`, and its working directory: data there are traced even if
    Darshan leaves them out by default. An output folder may not exist yet. Programs and scripts are no data."""
    words = [word.rpartition("=")[2] for word in command[1:]]
    named = [word for word in words if word.startswith("/") and len(Path(word).parts) > 2]
    programs = {word for word in named if os.path.isfile(word) and os.access(word, os.X_OK)}
    return [*(word for word in named if word not in programs and not word.endswith((".py", ".sh"))), os.getcwd()]


def needs_include(path: str) -> bool:
    """Whether Darshan leaves out the files below an absolute path."""
    return path.split("/")[1:2] != [""] and path.split("/")[1] in EXCLUDED_ROOTS


def dxt_memory_mib(available_bytes: int | None) -> int:
    """MiB of DXT for each process: a part of the free memory, 32 or 64."""
    if available_bytes is None:
        return MOST_DXT_MIB
    wanted = available_bytes // _SHARE_OF_MEMORY // _MIB // LEAST_DXT_MIB * LEAST_DXT_MIB
    return int(min(max(wanted, LEAST_DXT_MIB), MOST_DXT_MIB))


def _module_memory_mib(dxt_mib: int) -> int:
    """MiB for the modules' records, which must also hold the compressed DXT: 8 bytes of a segment of 40."""
    return (64 if dxt_mib > _SMALL_DXT_MIB else 4) + dxt_mib // 2


def config_text(dxt_mib: int, include: Iterable[str] = ()) -> str:
    """The text of DARSHAN_CONFIG_PATH. `include`: folders and files to trace although Darshan leaves them out."""
    small = dxt_mib <= _SMALL_DXT_MIB
    lines = [
        "# Written by dxt-replay record. Read by Darshan 3.4.0 and later.",
        f"MAX_RECORDS {dxt_mib * 1024} DXT_POSIX,DXT_MPIIO",
        *([] if small else [f"MAX_RECORDS {_RECORDS} POSIX,STDIO"]),
        f"MODMEM {_module_memory_mib(dxt_mib)}",
        f"NAMEMEM {1 if small else _NAME_MEMORY_MIB}",
        f"NAME_EXCLUDE {','.join(_NOT_DATA)} *",
        f"APP_EXCLUDE (^|/)({_MOVE_NO_DATA})$",
    ]
    for path in (SHARED_MEMORY, *include):
        escaped = re.sub(r"([.^$*+?()\[\]{}|\\])", r"\\\1", path.rstrip("/"))
        pattern = re.sub(r"[\s,]", ".", escaped)  # blanks and commas separate words in the file
        lines.append(f"NAME_INCLUDE ^{pattern}(/|$) *")
    return "\n".join(lines) + "\n"


def paths_by_site(library: bytes, environment: Mapping[str, str]) -> dict[str, str]:
    """Path variables whose names are built into a library with these bytes: it may put its logs there.

    A site chooses the names with `configure --with-log-path-by-env`; they take precedence over DARSHAN_LOGPATH.
    """
    words = set(re.findall(rb"(?<![A-Za-z0-9_])[A-Z_][A-Z0-9_]{2,}(?![A-Za-z0-9_])", library))
    return {
        name: value
        for name, value in environment.items()
        if value.startswith("/")
        and name.encode("utf-8", "surrogateescape") in words
        and name not in ("DARSHAN_LOGPATH", "DARSHAN_MMAP_LOGPATH", *UNSET)
    }


def to_account_for(began: Iterable[tuple[int, str]]) -> dict[str, list[int]]:
    """Program -> ids of its processes, of those that should have left a log."""
    found: dict[str, list[int]] = {}
    for pid, program in began:
        if not re.fullmatch(_MOVE_NO_DATA, program):
            found.setdefault(program, []).append(pid)
    return found
