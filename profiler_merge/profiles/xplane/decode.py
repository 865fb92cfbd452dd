"""Reads XPlane files into a `Profile`, without TensorFlow and protobuf: a compiled core reads the bytes."""

from __future__ import annotations

import errno
import mmap
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dxt_replay.profiler_merge.profiles.event_table import ACCELERATOR, STATS, Profile, ProfileLine
from dxt_replay.profiler_merge.profiles.xplane.columns import assemble
from dxt_replay.profiler_merge.profiles.xplane.wire_format import DamageError, Decoder
from dxt_replay.traces.errors import MissingDependencyError, ProfileError
from dxt_replay.traces.gzip_blocks import ExpansionError, unpacked_blocks

__all__ = ["Profile", "ProfileLine", "find_profiles", "read_profile"]

SUFFIXES = (".xplane.pb", ".xplane.pb.gz")
MAX_BYTES = (1 << 31) - 1
"""Protobuf's limit for one message, so also for an unpacked profile."""

_WANTED = tuple(key.encode() for key in STATS)


def find_profiles(directory: Path) -> list[Path]:
    """Every `*.xplane.pb[.gz]` below `directory` (or the file itself), sorted; several runs are all listed.

    A compressed copy beside the plain file is left out.
    Raises: ProfileError for a path that does not exist, or a folder in it that cannot be listed.
    """
    directory = Path(directory)
    if directory.is_file():
        return [directory]
    if not directory.is_dir():
        raise ProfileError(
            f"{directory} does not exist: give the profiler's log directory, an .xplane.pb file of TensorFlow or JAX, "
            "or a .pt.trace.json file of PyTorch"
        )
    found = {
        Path(parent) / name
        for parent, _, names in os.walk(directory, onerror=_refuse)
        for name in names
        if name.endswith(SUFFIXES)
    }
    return sorted(path for path in found if path.suffix != ".gz" or path.with_suffix("") not in found)


def _refuse(error: OSError) -> None:
    raise ProfileError(f"{error.filename} cannot be listed: {error.strerror}") from error


def _compiled_core() -> Decoder:
    """The compiled decoder. Raises: MissingDependencyError for a checkout that is not compiled."""
    try:
        from dxt_replay.profiler_merge.profiles.xplane.compiled import decode
    except ImportError as error:
        raise MissingDependencyError(
            "the compiled decoder of dxt-replay",
            "reading a TensorFlow profile",
            "install with a C compiler present (pip install --force-reinstall --no-deps dxt-replay), "
            "or in a checkout run python setup.py build_ext --inplace",
        ) from error
    return decode


def read_profile(path: Path, *, decoder: Decoder | None = None) -> Profile:
    """All events of one .xplane.pb or .xplane.pb.gz file. A plain file is memory mapped.

    `decoder`: another core than the compiled one. Damage that turns one valid number into another (a flipped bit of
    a duration) leaves no trace in the format and cannot be seen; damage that looks like a field of a later version
    is counted in `skipped_fields`.

    Raises: ProfileError for a file that is missing, damaged, cut off or without events; MissingDependencyError where
    the core is not compiled.
    """
    path = Path(path)
    decode = decoder or _compiled_core()
    with _opened(path) as buffer:
        try:
            planes, hostnames, skipped = decode(buffer, _is_wanted_plane, _WANTED)
            return assemble(path, planes, hostnames, skipped)
        except DamageError as error:
            raise ProfileError(
                f"{path} is damaged, cut off or not an XPlane profile: {error}. Copy or record it again"
            ) from error


@contextmanager
def _opened(path: Path) -> Iterator[memoryview]:
    """The bytes of the profile, unpacked. Raises: ProfileError."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise ProfileError(f"{path} is not a file: give the .xplane.pb file itself")
        if status.st_size == 0:
            raise ProfileError(f"{path} is empty: the profiler did not finish writing it; record again")
        if status.st_size > MAX_BYTES:
            raise ProfileError(f"{path} is larger than 2 GiB, which no XPlane profile can be")
        with path.open("rb") as file:
            if file.read(2) == b"\x1f\x8b":
                yield memoryview(_unpacked(path))
                return
            try:
                # Left to the garbage collector: an error's traceback may still hold parts of the view.
                data: bytes | mmap.mmap = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except OSError as error:
                if error.errno != errno.ENODEV:  # FUSE without a page cache maps no file
                    raise
                data = path.read_bytes()
            yield memoryview(data)
    except OSError as error:
        raise ProfileError(f"{path} cannot be read: {error.strerror or error}") from error


def _unpacked(path: Path) -> bytearray:
    data = bytearray()
    try:
        with path.open("rb") as file:
            for block in unpacked_blocks(file, 1 << 20):
                data += block
                if len(data) > MAX_BYTES:
                    raise ProfileError(f"{path} unpacks to more than 2 GiB, which no XPlane profile can be")
    except ExpansionError as error:
        raise ProfileError(f"{path} is not a profile: {error}") from error
    except EOFError as error:
        raise ProfileError(f"{path} is a damaged gzip file ({error}): copy it again") from error
    return data


def _is_wanted_plane(name: bytes) -> bool:
    return name.startswith(b"/host:") or ACCELERATOR.fullmatch(name.decode("utf-8", "replace")) is not None
