"""Darshan's settings for a Python training job: its configuration file and its variables. Pure.

The file is read by Darshan 3.4.0 and later; older releases know only the variables. A release ignores unknown settings,
so every job gets both. Sources: darshan-runtime/lib/darshan-config.c and the guide of darshan-runtime.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

MIB = 1 << 20
LEAST_DXT_MIB, MOST_DXT_MIB = 32, 64
SMALL_DXT_MIB = 2
"""For a program that a Python program starts, such as `gzip`: Darshan clears all of its memory when a process ends."""

SHARE_OF_MEMORY = 64
"""Share of the free memory for DXT in each process, since all processes may end at one time."""

NAME_MEMORY_MIB = 32
RECORDS = 65536
"""Files of a process in the counters' modules: importing TensorFlow alone opens more than Darshan's default of 1024."""

EXCLUDED_ROOTS = ("etc", "dev", "usr", "bin", "boot", "lib", "opt", "sbin", "sys", "proc", "var")
"""Top-level folders whose files Darshan leaves out by default."""

SHARED_MEMORY = "/dev/shm"
"""A file system in memory below /dev: its files are data like any other."""

_NOT_DATA = (
    r"\.py$",
    r"\.pyc(\.[0-9]+)?$",
    r"\.so($|\.)",
    r"/site-packages/",
    r"/dist-packages/",
    r"/lib/python[0-9.]+/",
    r"/pyvenv\.cfg$",
    r"\.not_data$",
    r"^/proc/",
    r"^/sys/",
)
"""Python's own files, and files that describe the machine."""

STARTERS = (
    "sh|bash|dash|env|mkdir|date|ssh|mpiexec|mpirun|srun|hydra_pmi_proxy|orted|prted|orterun|prterun|timeout|nice|nohup|"
    "numactl|taskset|stdbuf|setsid|time"
)
_TOOLS = (
    "uname|gcc|cc|g\\+\\+|c\\+\\+|x86_64-linux-gn.*|ld|collect2|as|cc1|cc1plus|ldconfig|nvcc|ptxas|cicc|nvidia-smi|rocm-smi|lscpu|"
    "lspci|hostname|which"
)
_MOVE_NO_DATA = f"{STARTERS}|{_TOOLS}"
"""Programs that move no data of the job by themselves, and leave no logs."""


def to_account_for(began: Iterable[tuple[int, str]]) -> dict[str, list[int]]:
    """Program -> ids of its processes, of those that should have left a log."""
    found: dict[str, list[int]] = {}
    for pid, program in began:
        if not re.fullmatch(_MOVE_NO_DATA, program):
            found.setdefault(program, []).append(pid)
    return found


def dxt_memory_mib(available_bytes: int | None) -> int:
    """MiB of DXT for each process: a part of the free memory, 32 or 64."""
    if available_bytes is None:
        return LEAST_DXT_MIB * 2
    wanted = available_bytes // SHARE_OF_MEMORY // MIB // LEAST_DXT_MIB * LEAST_DXT_MIB
    return int(min(max(wanted, LEAST_DXT_MIB), MOST_DXT_MIB))


def module_memory_mib(dxt_mib: int) -> int:
    """MiB for the modules' records, which must also hold the compressed DXT: 8 bytes of a segment of 40."""
    return (64 if dxt_mib > SMALL_DXT_MIB else 4) + dxt_mib // 2


def config_text(dxt_mib: int, include: Iterable[str] = ()) -> str:
    """The text of DARSHAN_CONFIG_PATH. `include`: folders and files to trace although Darshan leaves them out."""
    small = dxt_mib <= SMALL_DXT_MIB
    lines = [
        "# Written by dxt-replay record. Read by Darshan 3.4.0 and later.",
        f"MAX_RECORDS {dxt_mib * 1024} DXT_POSIX,DXT_MPIIO",
        *([] if small else [f"MAX_RECORDS {RECORDS} POSIX,STDIO"]),
        f"MODMEM {module_memory_mib(dxt_mib)}",
        f"NAMEMEM {1 if small else NAME_MEMORY_MIB}",
        f"NAME_EXCLUDE {','.join(_NOT_DATA)} *",
        f"APP_EXCLUDE (^|/)({_MOVE_NO_DATA})$",
    ]
    lines += [f"NAME_INCLUDE ^{_pattern(path)}(/|$) *" for path in (SHARED_MEMORY, *include)]
    return "\n".join(lines) + "\n"


def variables(*, config: str, small: str, logs: str, job: int, dxt_mib: int) -> dict[str, str]:
    """The environment of each process: a log for each of them, under one job id.

    `logs`: the folder for logs. `config`, `small`: files of `config_text`, as `python_start` chooses.
    """
    return {
        "DARSHAN_ENABLE_NONMPI": "1",
        "DXT_ENABLE_IO_TRACE": "1",
        "DARSHAN_DISABLE_SHARED_REDUCTION": "1",
        "DARSHAN_CONFIG_PATH": config,
        "DXT_RECORDING_SMALL": small,
        "DARSHAN_LOGPATH": logs,
        "DARSHAN_JOBID": "DXT_RECORDING_JOB",
        "DXT_RECORDING_JOB": str(job),
        "DARSHAN_MODMEM": str(module_memory_mib(dxt_mib)),
        "DARSHAN_NAMEMEM": str(NAME_MEMORY_MIB),
    }


UNSET = (
    "DARSHAN_DISABLE",
    "DARSHAN_LOGFILE",
    "DARSHAN_MOD_DISABLE",
    "DARSHAN_MOD_ENABLE",
    "DARSHAN_APP_EXCLUDE",
    "DARSHAN_APP_INCLUDE",
    "DARSHAN_RANK_EXCLUDE",
    "DARSHAN_RANK_INCLUDE",
    "DARSHAN_DXT_SMALL_IO_TRIGGER",
    "DARSHAN_DXT_UNALIGNED_IO_TRIGGER",
    "DXT_TRIGGER_CONF_PATH",
)
"""Variables that would disable or thin out the recording, or give all processes one log."""


_OTHER_FOLDERS = ("DARSHAN_LOGPATH", "DARSHAN_MMAP_LOGPATH")


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
        and name not in (*_OTHER_FOLDERS, *UNSET)
    }


def needs_include(path: str) -> bool:
    """Whether Darshan leaves out the files below an absolute path."""
    return path.split("/")[1:2] != [""] and path.split("/")[1] in EXCLUDED_ROOTS


def _pattern(path: str) -> str:
    """A regular expression of the C library for a path. Blanks and commas separate words in the file, so any character
    matches there."""
    return re.sub(r"[\s,]", ".", re.sub(r"([.^$*+?()\[\]{}|\\])", r"\\\1", path.rstrip("/")))
