"""The file system of a directory: its kind and room, direct I/O, and whether it drops cached pages."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from dxt_replay.replay.doctor.check import Check, Part, State
from dxt_replay.replay.regression.target_environment import TargetEnvironment, target_environment
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.units import format_bytes, format_count

PROBE_BYTES = 1 << 20
_DROPPED = "page cache is dropped"


def require_directory(directory: Path) -> None:
    """Raises: UsageError if it is no directory."""
    if not directory.is_dir():
        raise UsageError(f"{directory} is not a directory: name the directory that you will stage into")


def place_part(directory: Path, cores_load: bool) -> Part:
    """The checks of a directory. Writes and reads 1 MiB in a file without a name, or with one for a moment.

    cores_load: whether the compiled cores can be imported; one of them counts cached pages.
    """
    return Part(
        name=f"Directory {directory}",
        checks=(
            *_kind(target_environment(directory)),
            _room(directory),
            *_probed(directory, cores_load),
        ),
    )


def _kind(environment: TargetEnvironment) -> Iterator[Check]:
    if not environment.file_system:
        yield Check(name="file system", found="not in /proc/self/mountinfo", state=State.UNKNOWN)
        return
    found = f"{environment.file_system} of {environment.source}, mounted at {environment.mount_point}"
    yield Check(name="file system", found=found)
    yield Check(name="mount options", found=", ".join(environment.options))
    if environment.device is not None:
        kinds = {True: ", rotational", False: ", not rotational", None: ""}
        model = f" ({environment.device.model})" if environment.device.model else ""
        found = f"{environment.device.name}{model}{kinds[environment.device.rotational]}"
        yield Check(name="device", found=found)


def _room(directory: Path) -> Check:
    found = os.statvfs(directory)
    free = format_bytes(found.f_bavail * found.f_frsize)
    whole = format_bytes(found.f_blocks * found.f_frsize)
    files = f"; {format_count(found.f_favail)} more files" if found.f_files else ""
    return Check(name="room", found=f"{free} free of {whole}{files}")


def _probed(directory: Path, cores_load: bool) -> Iterator[Check]:
    """What only a file can tell: whether it can be written, takes direct I/O, and leaves the page cache."""
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            file.write(os.urandom(PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
            checks = [
                Check(name="writing", found="works"),
                _direct(file.fileno()),
                _dropped(file.fileno()) if cores_load else _not_asked(),
            ]
    except OSError as error:
        remedy = "nothing can be staged here: choose a directory with room that you may write"
        yield Check(name="writing", found=f"fails: {error.strerror}", state=State.FAILED, remedy=remedy)
        return
    yield from checks


def _direct(file: int) -> Check:
    try:
        os.close(os.open(f"/proc/self/fd/{file}", os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC))
    except OSError as error:
        found = f"refused: {error.strerror}"
        return Check(name="direct I/O (O_DIRECT)", found=found, state=State.WARNING, remedy="leave --direct out here")
    return Check(name="direct I/O (O_DIRECT)", found="works")


def _not_asked() -> Check:
    return Check(name=_DROPPED, found="not measured: a compiled core is missing", state=State.UNKNOWN)


def _dropped(file: int) -> Check:
    """Reads the file into the page cache and drops it, as `run --cold` does, and asks the kernel for what stayed."""
    from dxt_replay.replay.target import page_cache

    path = os.fsencode(f"/proc/self/fd/{file}")
    os.pread(file, PROBE_BYTES, 0)
    before = page_cache.resident([path]).percent
    dropped = page_cache.drop([path])
    after = page_cache.resident([path]).percent
    remedy = "reads of a twin here may come from memory: make it larger than the memory, or replay with --direct"
    if before is None or after is None:
        found = "; ".join(dropped.warnings) or "the kernel does not tell which pages are cached (mincore)"
        return Check(name=_DROPPED, found=found, state=State.UNKNOWN, remedy=remedy)
    found = f"{before:.0f} % of a file were cached after it was read, {after:.0f} % after it was dropped"
    if dropped.kept or after > 0:
        reason = "; ".join([found, *dropped.warnings])
        return Check(name=_DROPPED, found=reason, state=State.WARNING, remedy=remedy)
    return Check(name=_DROPPED, found=found)
