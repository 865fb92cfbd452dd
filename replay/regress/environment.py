"""Reads what the kernel says of this machine and of the file system below a target, and describes how two differ.

Measures nothing. Formats: proc(5) for /proc/self/mountinfo; Documentation/ABI/stable/sysfs-block and
testing/sysfs-class-bdi of Linux; Documentation/admin-guide/cgroup-v1 and cgroup-v2.rst.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePosixPath
from typing import Any

from dxt_replay.traces.units import format_bytes
from dxt_replay.traces.version import VERSION

MOST_SETTING_BYTES = 4096
"""Bytes that are read of a file below /proc or /sys."""

ROOT = Path("/")

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
    "blkio": tuple(f"blkio.throttle.{what}_device" for what in ("read_bps", "write_bps", "read_iops", "write_iops")),
}
"""Controller (none for version 2) -> files of a control group that hold limits."""

_NO_LIMIT = 1 << 60
"""Bytes of memory from which on version 1 means no limit."""

_PACKAGES = ("pyarrow", "numpy", "mpi4py", "h5py")

_NAMES = {
    "host": "machine",
    "cpu": "processor",
    "cpus": "processors in use",
    "memory_bytes": "memory",
    "file_system": "file system",
    "mount_point": "mount point",
    "source": "mounted from",
    "read_ahead_kib": "read-ahead of the mount, KiB",
    "maps": "real data",
    "device.name": "device",
    "device.model": "model of the device",
    "device.scheduler": "I/O scheduler",
    "device.rotational": "device is rotational",
    "device.read_ahead_kib": "read-ahead of the device, KiB",
    "device.queue_requests": "requests in the queue of the device",
}
"""Field -> what a person calls it; others have their own name."""

_HARDWARE = ("host", "cpu", "cpus", "memory_bytes")
_SMALL_SHARE = 0.01
"""Memory that differs by less, as a kernel may reserve, is the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineEnvironment:
    """The machine of process 0; empty texts and 0 for what it does not say. `cpus`: that this process may use.
    `processes`: of the replay, over all nodes. `limits`: file of the control group -> the nearest limit that holds.
    `settings`: of the kernel, those that change I/O. `versions`: of python, dxt-replay and packages."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockDevice:
    """A whole disk, such as nvme0n1, as /sys describes it; None, or an empty text, for what the kernel does not say.
    `model`: of a loop device its file. `queue_requests`: that its queue holds."""

    name: str
    model: str = ""
    scheduler: str = ""
    rotational: bool | None = None
    read_ahead_kib: int | None = None
    queue_requests: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetEnvironment:
    """The file system of a target. Of an object store only `target`, its URL, and `file_system`, s3, are known.

    `maps`: `PREFIX=DIR` of real data that are read instead of the twin's. `source`: what is mounted, such as /dev/sda1
    or server:/export. `options`: of the mount and of the file system, sorted. `device`: None where there is none.
    """

    target: str
    maps: tuple[str, ...] = ()
    file_system: str = ""
    mount_point: str = ""
    source: str = ""
    options: tuple[str, ...] = ()
    read_ahead_kib: int | None = None
    device: BlockDevice | None = None


def machine_environment(processes: int = 1, root: Path = ROOT) -> MachineEnvironment:
    """The environment of this process. `root`: the directory that holds `proc` and `sys`."""
    named = os.uname()
    memory = _fact(root / "proc/meminfo", "MemTotal").split()
    versions = {"dxt-replay": VERSION, "python": platform.python_version()}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
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
        versions=versions,
    )


def _fact(file: Path, name: str) -> str:
    """The value of a line `name: value`, one of the first, of a file of /proc; empty where there is none."""
    found = re.search(rf"^{name}\s*:(.*)$", text_in(file), re.MULTILINE)
    return found[1].strip() if found else ""


def _limits(root: Path) -> Iterator[tuple[str, str]]:
    """Limits of the control groups of this process; those of a group bind all groups below it."""
    for line in text_in(root / "proc/self/cgroup").splitlines():
        controllers, _, group = line.partition(":")[2].partition(":")
        for controller in controllers.split(","):
            for name in _LIMITS.get(controller, ()):
                for above in (PurePosixPath(group), *PurePosixPath(group).parents):
                    file = root / "sys/fs/cgroup" / controller / str(above).lstrip("/") / name
                    text = " ".join(text_in(file).split())
                    first = text.partition(" ")[0]
                    if first not in ("", "max", "-1") and not (text.isdigit() and int(text) >= _NO_LIMIT):
                        yield name, text
                        break


def target_environment(target: str | Path, maps: tuple[str, ...] = (), root: Path = ROOT) -> TargetEnvironment:
    """The environment of `target`. `root`: the directory that holds `proc` and `sys`."""
    if isinstance(target, str):
        return TargetEnvironment(target=target, maps=maps, file_system=target.partition("://")[0])
    place = Path(os.path.realpath(target))
    absolute = os.fsencode(os.path.abspath(target)).decode("utf-8", "backslashreplace")
    point, found = "", None  # the longest mount point above the target, the last one mounted there
    try:
        lines = (root / "proc/self/mountinfo").read_bytes().decode("utf-8", "backslashreplace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        before, _, after = line.partition(" - ")
        mount, of_system = before.split(" "), after.split(" ")
        if len(mount) < 6 or len(of_system) < 3 or not place.is_relative_to(above := _unescaped(mount[4])):
            continue
        if len(above) >= len(point):
            point, found = above, (mount, of_system)
    if found is None:
        return TargetEnvironment(target=absolute, maps=maps)
    mount, of_system = found
    source, options = _unescaped(of_system[1]), {*mount[5].split(","), *" ".join(of_system[2:]).split(",")}
    return TargetEnvironment(
        target=absolute,
        maps=maps,
        file_system=of_system[0],
        mount_point=point,
        source=source,
        options=tuple(sorted(_unescaped(option) for option in options if option)),
        read_ahead_kib=number_in(root / "sys/class/bdi" / mount[2] / "read_ahead_kb"),
        device=_block_device(mount[2], source, root),
    )


def _unescaped(text: str) -> str:
    r"""Spaces, tabs, line breaks and backslashes are octal in mountinfo: `\040`."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


def _block_device(numbers: str, source: str, root: Path) -> BlockDevice | None:
    """`numbers`: `MAJOR:MINOR` of the mount."""
    if numbers.startswith("0:"):  # btrfs and others number themselves; their source is the device
        try:
            device = os.stat(source).st_rdev if source.startswith("/dev/") else 0
        except OSError:
            return None
        numbers = f"{os.major(device)}:{os.minor(device)}"
    place = Path(os.path.realpath(root / "sys/dev/block" / numbers))
    if (place / "partition").exists():
        place = place.parent
    if numbers == "0:0" or not (place / "queue").is_dir():
        return None
    scheduler = text_in(place / "queue/scheduler")
    chosen = re.search(r"\[(.+?)\]", scheduler)
    rotational = number_in(place / "queue/rotational")
    return BlockDevice(
        name=place.name,
        model=text_in(place / "device/model") or text_in(place / "loop/backing_file"),
        scheduler=chosen[1] if chosen else scheduler,
        rotational=None if rotational is None else bool(rotational),
        read_ahead_kib=number_in(place / "queue/read_ahead_kb"),
        queue_requests=number_in(place / "queue/nr_requests"),
    )


def text_in(file: Path) -> str:
    """The text of a small file of the kernel, without white space around; empty where it cannot be read."""
    try:
        with file.open("rb") as stream:
            return stream.read(MOST_SETTING_BYTES).decode("utf-8", "replace").strip()
    except OSError:
        return ""


def number_in(file: Path) -> int | None:
    """The whole number in a small file of the kernel; None where there is none."""
    try:
        return int(text_in(file))
    except ValueError:
        return None


def machine_changes(before: MachineEnvironment, after: MachineEnvironment) -> list[str]:
    """`kernel 6.1.0 -> 6.8.0` and the like."""
    return list(_changes(asdict(before), asdict(after)))


def hardware_changed(before: MachineEnvironment, after: MachineEnvironment) -> bool:
    """Whether the host, its processors or its memory differ. Kernel and limits do not count, because they may be the
    reason why the file systems changed."""
    earlier, later = ({name: getattr(each, name) for name in _HARDWARE} for each in (before, after))
    return any(True for _ in _changes(earlier, later))


def target_changes(before: TargetEnvironment, after: TargetEnvironment) -> list[str]:
    """The same of the file system, its mount and its device; `mount option noatime added` and the like."""
    known, found = asdict(before), asdict(after)
    if before.device is None or after.device is None or before.device.name != after.device.name:
        known["device"], found["device"] = ({"name": one.device and one.device.name} for one in (before, after))
    earlier, later = set(known.pop("options")), set(found.pop("options"))
    options = [f"mount option {option} added" for option in sorted(later - earlier)]
    options += [f"mount option {option} removed" for option in sorted(earlier - later)]
    return [*_changes(known, found), *options]


def _changes(before: Mapping[str, Any], after: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """`above`: the group of fields within."""
    for name in dict.fromkeys((*before, *after)):
        earlier, later = before.get(name), after.get(name)
        if isinstance(earlier, Mapping) or isinstance(later, Mapping):
            yield from _changes(earlier or {}, later or {}, f"{name}.")
            continue
        alike = name == "memory_bytes" and earlier and later and abs(later - earlier) < _SMALL_SHARE * earlier
        if earlier == later or (not earlier and not later) or alike:
            continue
        shown = {"versions.": name, "settings.": name, "limits.": f"limit {name}"}.get(above)
        shown = shown or _NAMES.get(f"{above}{name}", name)
        yield f"{shown} {_text(name, earlier)} -> {_text(name, later)}"


def _text(name: str, value: Any) -> str:
    if value is None or value in ("", (), []):
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (tuple, list)):
        return ", ".join(map(str, value))
    return format_bytes(value) if name == "memory_bytes" else str(value)
