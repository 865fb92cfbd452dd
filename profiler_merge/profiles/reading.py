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
_VIEWER = re.compile(rb'"/(host|device):[A-Z]')
_HEAD_BYTES = 64 << 10


def profile_kind(path: Path) -> str:
    """What `recognise` calls a file that is a profile: `kineto`, `tensorflow trace`, or `xplane` for all else."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
        if head.startswith(b"\x1f\x8b"):
            with gzip.open(path) as packed:
                head = packed.read(_HEAD_BYTES)
    except (OSError, EOFError, zlib.error):
        return "xplane"
    if _JSON.match(head.removeprefix(codecs.BOM_UTF8)) is None:
        return "xplane"
    return "kineto" if _VIEWER.search(head) is None else "tensorflow trace"


def profile_files(paths: Sequence[Path]) -> list[tuple[Path, ...]]:
    """The files of each profile: PyTorch's profiler writes one a cycle of its schedule, TensorFlow's one in all."""
    kineto = [path for path in paths if profile_kind(path) == "kineto"]
    return [*((path,) for path in paths if path not in kineto), *cycles_of(kineto)]


def read_profile(files: Sequence[Path], *, skip_damaged: bool = False) -> Profile:
    """All events of one profile, as `profile_files` groups them.

    `skip_damaged`: of a profile in JSON that is cut off, read what is there. Raises: ProfileError for files that are
    missing, damaged or without events; MissingDependencyError.
    """
    kind = profile_kind(files[0])
    if kind == "kineto":
        from profiler_merge.profiles.kineto.decode import read_profile as read_kineto

        return read_kineto(files, skip_damaged=skip_damaged)
    if kind == "tensorflow trace":
        from profiler_merge.profiles.trace_viewer.viewer_events import read_profile as read_viewer

        return read_viewer(files[0], skip_damaged=skip_damaged)
    return xplane.read_profile(files[0])
