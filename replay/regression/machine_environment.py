"""Reads the description of this machine: kernel, processor, memory, limits, versions. Measures nothing."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePosixPath

from dxt_replay.replay.regression.target_environment import ROOT, text_in
from dxt_replay.traces.version import VERSION

_SETTINGS = {
    "vm.dirty_ratio": "proc/sys/vm/dirty_ratio",
    "vm.dirty_bytes": "proc/sys/vm/dirty_bytes",
    "vm.dirty_background_ratio": "proc/sys/vm/dirty_background_ratio",
    "vm.dirty_background_bytes": "proc/sys/vm/dirty_background_bytes",
    "frequency governor": "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
}
"""Name of a setting of the kernel -> the file that holds it."""

_LIMITS = {
    "": ("cpu.max", "memory.max", "memory.high", "io.max"),
    "cpu": ("cpu.cfs_quota_us",),
    "memory": ("memory.limit_in_bytes",),
    "blkio": (
        "blkio.throttle.read_bps_device",
        "blkio.throttle.write_bps_device",
        "blkio.throttle.read_iops_device",
        "blkio.throttle.write_iops_device",
    ),
}
"""Controller (none for version 2) -> files of a control group that hold limits
(Documentation/admin-guide/cgroup-v1 and cgroup-v2.rst of Linux)."""

_NO_LIMIT = 1 << 60
"""Bytes of memory from which on version 1 means no limit."""

_PACKAGES = ("pyarrow", "numpy", "mpi4py", "h5py")


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineEnvironment:
    """The machine of process 0; empty texts and 0 for what it does not say.

    host, kernel, architecture: as `uname` prints them.
    cpu: the model of its processor.
    cpus: processors that this process may use.
    memory_bytes: all of its memory.
    processes: of the replay, over all nodes.
    limits: file of the control group -> limit that holds, the nearest one.
    settings: name -> value of settings of the kernel that change I/O.
    versions: package -> version; python and dxt-replay among them.
    """

    host: str
    kernel: str
    architecture: str = ""
    cpu: str = ""
    cpus: int = 0
    memory_bytes: int = 0
    processes: int = 1
    limits: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)


def machine_environment(processes: int = 1, root: Path = ROOT) -> MachineEnvironment:
    """The environment of this process. `root`: the directory that holds `proc` and `sys`."""
    named = os.uname()
    memory = _fact(root / "proc/meminfo", "MemTotal").split()
    return MachineEnvironment(
        host=named.nodename,
        kernel=named.release,
        architecture=named.machine,
        cpu=_fact(root / "proc/cpuinfo", "model name"),
        cpus=len(os.sched_getaffinity(0)),
        memory_bytes=int(memory[0]) << 10 if memory and memory[0].isdigit() else 0,
        processes=processes,
        limits=dict(_limits(root)),
        settings={name: text for name, file in _SETTINGS.items() if (text := text_in(root / file))},
        versions=dict(_versions()),
    )


def _fact(file: Path, name: str) -> str:
    """The value of a line `name: value` of a file of /proc; empty where there is none."""
    try:
        with file.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                key, _, value = line.partition(":")
                if key.strip() == name:
                    return value.strip()
    except OSError:
        pass
    return ""


def _versions() -> Iterator[tuple[str, str]]:
    yield "dxt-replay", VERSION
    yield "python", platform.python_version()
    for package in _PACKAGES:
        try:
            yield package, version(package)
        except PackageNotFoundError:
            continue


def _limits(root: Path) -> Iterator[tuple[str, str]]:
    """Limits of the control groups of this process; those of a group bind all groups below it."""
    for line in text_in(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        for controller in controllers.split(","):
            folder = root / "sys/fs/cgroup" / controller
            for name in _LIMITS.get(controller, ()):
                for above in (PurePosixPath(group), *PurePosixPath(group).parents):
                    text = " ".join(text_in(folder / str(above).lstrip("/") / name).split())
                    if _is_limit(text):
                        yield name, text
                        break


def _is_limit(text: str) -> bool:
    first = text.partition(" ")[0]
    return first not in ("", "max", "-1") and not (text.isdigit() and int(text) >= _NO_LIMIT)
