"""A file system made for one comparison: an image on a loop device, mounted with options, and removed afterwards.

Mounts live in a mount namespace of the benchmark's own (`own_namespace`), images are unlinked as soon as a device holds
them, and devices detach with their last user. If the benchmark is killed, they vanish with its last process.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.file_systems.nfs import shown_by_nfs
from benchmarks.slowed_storage import delayed

MAKE = {
    "ext4": ("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0"),
    "xfs": ("mkfs.xfs", "-q", "-f"),
    "btrfs": ("mkfs.btrfs", "-q", "-f"),
}
"""Commands that make a file system on a device."""

IMAGE_BYTES = 1 << 30
"""Size of a device; its image is sparse."""

OVER_EXT4 = ("fuse", "nfs")
"""Kinds that present an ext4 through another layer: a FUSE passthrough, and NFS over the loopback."""

OWN_NAMESPACE = "DXT_REPLAY_OWN_MOUNTS"


class UnavailableError(Exception):
    """This machine lacks something that a file system needs; the message names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """A file system to make.

    `kind`: a key of MAKE, of OVER_EXT4, or "tmpfs".
    `make`, `options`: of mkfs and of mount.
    `read_ahead_kib`: of the device; the kernel's choice where None.
    `limits`: of the device, by the names of `slowed_storage.LIMITS`.
    `delay_us`, `delayed_calls`: of the passthrough, as in `slowed_storage.delayed`.
    """

    kind: str
    make: tuple[str, ...] = ()
    options: str = ""
    read_ahead_kib: int | None = None
    limits: Mapping[str, int] = field(default_factory=dict)
    delay_us: int = 0
    delayed_calls: str = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mounted:
    """`folder`: the root of the file system. `device`: its major:minor; None for one without a device.
    `server`: the process that uses the device for the replay; None where the replay does itself."""

    folder: Path
    device: str | None = None
    server: int | None = None


def why_unavailable(kind: str) -> str | None:
    """Why a file system of this kind cannot be made here; None if it can."""
    if os.geteuid():
        return "it needs root"
    under = "ext4" if kind in OVER_EXT4 else kind
    through = "fuse" if kind in OVER_EXT4 else kind
    for module in (through, "loop"):
        if shutil.which("modprobe"):
            subprocess.run(["modprobe", "-q", module], check=False, stderr=subprocess.DEVNULL)
    known = {line.split()[-1] for line in Path("/proc/filesystems").read_text(encoding="ascii").splitlines()}
    for needed in {through, under} - known:
        return f"this kernel has no {needed}"
    if under in MAKE and shutil.which(MAKE[under][0]) is None:
        return f"{MAKE[under][0]} is not installed"
    if under in MAKE and not Path("/dev/loop-control").exists():
        return "this kernel has no loop devices"
    return None


def own_namespace(command: Sequence[str]) -> None:
    """Run `command` in a mount namespace of its own in place of this process, unless it has one already."""
    if OWN_NAMESPACE not in os.environ:
        os.environ[OWN_NAMESPACE] = "1"
        sys.stdout.flush()
        os.execvp("unshare", ["unshare", "--mount", "--propagation", "private", "--", *command])


@contextmanager
def mounted(storage: Storage, scratch: Path) -> Iterator[Mounted]:
    """The file system of `storage`; its image is made in `scratch`. Raises: UnavailableError, CannotThrottleError."""
    why = why_unavailable(storage.kind)
    if why:
        raise UnavailableError(why)
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mounted-", dir=scratch)))
        if storage.kind == "tmpfs":
            _mount(stack, "tmpfs", "tmpfs", f"size={IMAGE_BYTES}", place)
            yield Mounted(folder=place)
            return
        kind = "ext4" if storage.kind in OVER_EXT4 else storage.kind
        device = _loop_device(scratch)
        try:
            run(*MAKE[kind], *storage.make, str(device))
            _mount(stack, kind, str(device), storage.options, place)
        finally:
            run("losetup", "--detach", str(device))  # when anyone unmounts it
        queue = Path("/sys/class/block", device.name)
        if storage.read_ahead_kib is not None:
            _set_read_ahead(queue, place, storage.read_ahead_kib)
        server = None
        if storage.kind == "nfs":
            place, server = stack.enter_context(shown_by_nfs(place))
        elif storage.kind == "fuse":
            place = stack.enter_context(delayed(place, storage.delay_us, storage.delayed_calls))
        yield Mounted(folder=place, device=(queue / "dev").read_text(encoding="ascii").strip(), server=server)


def _set_read_ahead(queue: Path, place: Path, kib: int) -> None:
    """Of the device, and of the file systems (btrfs) that have their own."""
    number = place.stat().st_dev
    own = Path(f"/sys/class/bdi/{os.major(number)}:{os.minor(number)}/read_ahead_kb")
    for setting in (queue / "queue" / "read_ahead_kb", own):
        if setting.exists():
            setting.write_text(str(kib), encoding="ascii")


def _loop_device(scratch: Path) -> Path:
    with tempfile.NamedTemporaryFile(prefix="image-", dir=scratch) as image:
        image.truncate(IMAGE_BYTES)
        # Without direct I/O the page cache of the image would hold a second copy of the data, which nothing drops.
        return Path(run("losetup", "--find", "--show", "--direct-io=on", image.name))


def _mount(stack: ExitStack, kind: str, device: str, options: str, place: Path) -> None:
    run("mount", "-t", kind, *(("-o", options) if options else ()), device, str(place))
    stack.callback(_unmount, place)


def _unmount(place: Path) -> None:
    """Unmount; lazily if it is still in use, so that it goes with its last user."""
    if subprocess.run(["umount", str(place)], check=False, capture_output=True).returncode:
        run("umount", "--lazy", str(place))


def run(*command: str) -> str:
    """Standard output of a command. Raises: UnavailableError with its message if it fails."""
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise UnavailableError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout.strip()
