"""The storages of the benchmark: one fast file system, and ways to make it slow. Each run begins with a cold one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from benchmarks.file_systems import mounted as file_systems
from benchmarks.slowed_storage import delayed, throttled

FAST = "fast"
DELAY_US, BYTES_PER_S, REQUESTS_PER_S = 10_000, 12_000_000, 60
"""Delay of each open and each read request through FUSE; limits of the device for a control group."""

READ_AHEAD_KIB = 128
"""Read-ahead of the loop device, as of a disk: some loop devices get megabytes, which few requests then fetch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """A storage. shown: a context that yields the path at which this storage shows the folder of the fast one.
    group: a context that yields the control group that a process must join, or None. Each run gets a new one, because a
    group saves up its rate."""

    name: str
    about: str
    shown: Callable[[Path], AbstractContextManager[Path]] = nullcontext
    group: Callable[[Path], AbstractContextManager[Path | None]] = lambda folder: nullcontext()


SLOW = (
    Storage(
        name="fuse",
        about=f"FUSE with libfuse's defaults, {DELAY_US / 1000:g} ms for each open and read request",
        shown=lambda folder: delayed(folder, DELAY_US, "files", "dropped"),
    ),
    Storage(
        name="bytes",
        about=f"a control group with {BYTES_PER_S / 1e6:g} MB/s",
        group=lambda folder: throttled(folder, BYTES_PER_S),
    ),
    Storage(
        name="requests",
        about=f"a control group with {REQUESTS_PER_S} requests/s",
        group=lambda folder: throttled(folder, requests_per_s=REQUESTS_PER_S),
    ),
)


@contextmanager
def fast_folder(scratch: Path) -> Iterator[tuple[Path, str]]:
    """The folder of the fast storage, and its description: an ext4 of its own, so that only data are throttled."""
    why = file_systems.why_unavailable("ext4")
    if why is None:
        with file_systems.mounted(file_systems.Storage(kind="ext4", read_ahead_kib=READ_AHEAD_KIB), scratch) as made:
            yield made.folder, "ext4 on a loop device"
        return
    place = scratch / "fast"
    place.mkdir()
    yield place, f"the disk as it is, as no file system of its own can be made: {why}"


def drop_pages(*folders: Path) -> None:
    """Write back all data below the folders, and drop them from the page cache."""
    os.sync()
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_file() and not path.is_symlink():
                descriptor = os.open(path, os.O_RDONLY)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(descriptor)
