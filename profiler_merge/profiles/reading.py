"""Which reader a profile needs, by its first bytes; all after this see the same table."""

from __future__ import annotations

import codecs
import gzip
import re
import zlib
from collections.abc import Sequence
from pathlib import Path

from profiler_merge.profiles.event_table import Profile
from profiler_merge.profiles.kineto.names import cycles_of
from profiler_merge.profiles.xplane import decode as xplane

_JSON = re.compile(rb'\s*\{\s*"')
_HEAD_BYTES = 4096


def is_json(path: Path) -> bool:
    """Whether a file, unpacked where it is compressed, is text in JSON; False where it cannot be read."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
        if head.startswith(b"\x1f\x8b"):
            with gzip.open(path) as packed:
                head = packed.read(_HEAD_BYTES)
    except (OSError, EOFError, zlib.error):
        return False
    return _JSON.match(head.removeprefix(codecs.BOM_UTF8)) is not None


def profile_kind(path: Path) -> str:
    """What `recognise` calls a file that is a profile: `kineto` or `xplane`."""
    return "kineto" if is_json(path) else "xplane"


def profile_files(paths: Sequence[Path]) -> list[tuple[Path, ...]]:
    """The files of each profile: PyTorch's profiler writes one a cycle of its schedule, TensorFlow's one in all."""
    kineto = [path for path in paths if is_json(path)]
    return [*((path,) for path in paths if path not in kineto), *cycles_of(kineto)]


def read_profile(files: Sequence[Path], *, skip_damaged: bool = False) -> Profile:
    """All events of one profile, as `profile_files` groups them.

    `skip_damaged`: of a PyTorch profile that is cut off, read what is there. Raises: ProfileError for files that are
    missing, damaged or without events; MissingDependencyError.
    """
    if is_json(files[0]):
        from profiler_merge.profiles.kineto.decode import read_profile as read_kineto

        return read_kineto(files, skip_damaged=skip_damaged)
    return xplane.read_profile(files[0])
