"""Chooses the reader of a profile by its first bytes; all readers make the same table."""

from __future__ import annotations

import codecs
import gzip
import os
import re
import zlib
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path

import numpy as np
import pyarrow as pa

from dxt_replay.profiler_merge.profiles import xplane
from dxt_replay.profiler_merge.profiles.event_table import Profile, beside
from dxt_replay.profiler_merge.profiles.marks import ranks_of, read_rank
from dxt_replay.profiler_merge.recording import MAGIC

INPUT_FOLDER = "tf.data"
"""Of releases up to 0.2."""

_JSON = re.compile(rb'\s*[\[{]\s*["\[{\d]')
_HEAD_BYTES = 64 << 10
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


def first_bytes(path: Path) -> bytes:
    """The first bytes of a regular file, unpacked as far as possible; empty if it cannot be read."""
    if not path.is_file():
        return b""  # opening a FIFO would block
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
        if head.startswith(_ZSTD):
            with pa.CompressedInputStream(pa.OSFile(os.fspath(path)), "zstd") as stream:
                return bytes(stream.read(_HEAD_BYTES))
        if not head.startswith(_GZIP):
            return head
        with gzip.open(path) as packed:
            return packed.read(_HEAD_BYTES)
    except (OSError, EOFError, zlib.error, ValueError):
        return b""


def profile_kind(path: Path) -> str:
    """The kind of a profile in `sources`: `kineto` for JSON, or `xplane` for all else.

    The reader of XPlane reports what is wrong with an unknown file."""
    head = first_bytes(path)
    if head.startswith(MAGIC):
        return "marks"
    return "xplane" if _JSON.match(head.removeprefix(codecs.BOM_UTF8)) is None else "kineto"


def profile_files(paths: Sequence[Path]) -> list[tuple[Path, ...]]:
    """The files of each profile: PyTorch's profiler writes one per cycle of its schedule, TensorFlow's a single one.

    `recording()` of releases up to 0.2 had TensorFlow's profiler record the tf.data of a JAX program into INPUT_FOLDER.
    """
    kinds = {path: profile_kind(path) for path in paths}
    kineto = [path for path in paths if kinds[path] == "kineto"]
    others = [path for path in paths if kinds[path] not in ("kineto", "marks")]
    marks = ranks_of(path for path in paths if kinds[path] == "marks")
    inputs = {_recorded_in(path): path for path in others if INPUT_FOLDER in path.parts}
    loops = [path for path in others if path not in inputs.values()]
    found = [(path, inputs.pop(_recorded_in(path))) if _recorded_in(path) in inputs else (path,) for path in loops]
    cycles = []
    if kineto:
        from dxt_replay.profiler_merge.profiles.kineto import cycles_of  # msgspec takes 20 ms to import

        cycles = cycles_of(kineto)
    return [*marks, *found, *((path,) for path in inputs.values()), *cycles]


def _recorded_in(path: Path) -> Path:
    """The folder that `recording()` was given, above those of the profilers."""
    parts = path.parts
    end = min(parts.index(name) if name in parts else len(parts) - 1 for name in (INPUT_FOLDER, "plugins"))
    return Path(*parts[:end])


def read_profile(files: Sequence[Path]) -> Profile:
    """All events of the profile of one process: of one group of `profile_files`, or of several as its phases.

    A JSON profile that is cut off ends there, with a warning. Raises: ProfileError for files that are missing, damaged
    or without events; MissingDependencyError.
    """
    marks = tuple(path for path in files if profile_kind(path) == "marks")
    if marks:
        files = [path for path in files if path not in marks]
        profile = read_profile(files) if files else _nothing(marks[0])
        return replace(profile, marks=read_rank(marks))
    kinds = {profile_kind(path) for path in files}
    groups: list[tuple[Path, ...]] = profile_files(files)
    if kinds == {"kineto"}:
        folders = dict.fromkeys(path.parent for path in files)
        groups = [tuple(path for path in files if path.parent == folder) for folder in folders]
    if len(groups) == 1:
        return _read(files)
    phases = sorted(map(_read, groups), key=lambda phase: phase.epoch_start_ns or 0)
    whole = _read(files) if kinds == {"kineto"} else reduce(beside, phases)
    return replace(whole, phases=tuple(phases))


def _nothing(path: Path) -> Profile:
    """A profile without events, for a rank that has marks and no profile."""
    none = np.empty(0, dtype=np.int64)
    columns = dict.fromkeys(("line", "name", "start_ns", "duration_ns"), none)
    return Profile(path=path, hostnames=(), epoch_start_ns=0, planes=(), lines=(), names=(), stats={}, **columns)


def _read(files: Sequence[Path]) -> Profile:
    """The profile of one group."""
    if profile_kind(files[0]) == "kineto":
        from dxt_replay.profiler_merge.profiles import kineto

        return kineto.read_profile(files)
    return reduce(beside, [xplane.read_profile(each) for each in files])
