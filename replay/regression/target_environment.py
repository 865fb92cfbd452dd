"""Reads the kernel's description of the file system and device below a directory: mount, options, queue.

Formats: proc(5) for /proc/self/mountinfo; Documentation/ABI/stable/sysfs-block and testing/sysfs-class-bdi of Linux.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

MOST_SETTING_BYTES = 4096
"""Bytes that are read of a file below /proc or /sys."""

ROOT = Path("/")


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockDevice:
    """A block device, as /sys describes it; None, or an empty text, for what the kernel does not say.

    name: of the whole disk, such as nvme0n1.
    model: what its maker calls it; of a loop device its file.
    scheduler: the I/O scheduler in use.
    rotational: whether it says that it has a spindle.
    read_ahead_kib: its read-ahead, KiB.
    queue_requests: requests that its queue holds.
    """

    name: str
    model: str = ""
    scheduler: str = ""
    rotational: bool | None = None
    read_ahead_kib: int | None = None
    queue_requests: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetEnvironment:
    """The file system of a target. Of an object store only `target` and `file_system`, s3, are known.

    target: the directory, absolute; or the URL.
    maps: `PREFIX=DIR` of real data that are read instead of the twin's.
    file_system: its type, such as ext4; empty where it is not known.
    mount_point, source: where it is mounted, and from what, such as /dev/sda1 or server:/export.
    options: mount options, of the mount and of the file system, sorted.
    read_ahead_kib: of the mount, KiB (of network file systems too).
    device: the block device below; None where there is none.
    """

    target: str
    maps: tuple[str, ...] = ()
    file_system: str = ""
    mount_point: str = ""
    source: str = ""
    options: tuple[str, ...] = ()
    read_ahead_kib: int | None = None
    device: BlockDevice | None = None


def target_environment(target: str | Path, maps: tuple[str, ...] = (), root: Path = ROOT) -> TargetEnvironment:
    """The environment of `target`. `root`: the directory that holds `proc` and `sys`."""
    if isinstance(target, str):
        return TargetEnvironment(target=target, maps=maps, file_system=target.partition("://")[0])
    resolved = Path(os.path.realpath(target))
    absolute = os.fsencode(os.path.abspath(target)).decode("utf-8", "backslashreplace")
    mount = _mount_of(resolved, root)
    if mount is None:
        return TargetEnvironment(target=absolute, maps=maps)
    return TargetEnvironment(
        target=absolute,
        maps=maps,
        file_system=mount.kind,
        mount_point=mount.point,
        source=mount.source,
        options=mount.options,
        read_ahead_kib=number_in(root / "sys/class/bdi" / mount.device / "read_ahead_kb"),
        device=_block_device(mount, root),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mount:
    """A line of mountinfo. `device`: `MAJOR:MINOR`."""

    point: str
    kind: str
    source: str
    device: str
    options: tuple[str, ...]


def _mount_of(place: Path, root: Path) -> _Mount | None:
    """The mount that holds an absolute path: the longest mount point above it, the last one mounted there."""
    try:
        lines = (root / "proc/self/mountinfo").read_bytes().decode("utf-8", "backslashreplace").splitlines()
    except OSError:
        return None
    found: _Mount | None = None
    for mount in filter(None, map(_parsed, lines)):
        if place.is_relative_to(mount.point) and (found is None or len(mount.point) >= len(found.point)):
            found = mount
    return found


def _parsed(line: str) -> _Mount | None:
    before, _, after = line.partition(" - ")
    fields, of_system = before.split(" "), after.split(" ")
    if len(fields) < 6 or len(of_system) < 3:
        return None
    options = {*fields[5].split(","), *" ".join(of_system[2:]).split(",")}
    return _Mount(
        point=_unescaped(fields[4]),
        kind=of_system[0],
        source=_unescaped(of_system[1]),
        device=fields[2],
        options=tuple(sorted(_unescaped(option) for option in options if option)),
    )


def _unescaped(text: str) -> str:
    r"""Spaces, tabs, line breaks and backslashes are octal in mountinfo: `\040`."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


def _block_device(mount: _Mount, root: Path) -> BlockDevice | None:
    numbers = mount.device
    if numbers.startswith("0:"):  # btrfs and others number themselves; their source is the device
        try:
            device = os.stat(mount.source).st_rdev if mount.source.startswith("/dev/") else 0
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
