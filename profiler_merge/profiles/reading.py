"""Chooses the reader of a profile by its first bytes; all readers make the same table."""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np

from dxt_replay.profiler_merge.profiles import kineto, xplane
from dxt_replay.profiler_merge.profiles.event_table import Profile, beside
from dxt_replay.profiler_merge.profiles.marks import ranks_of, read_rank
from dxt_replay.profiler_merge.recording import MAGIC
from dxt_replay.traces.gzip_blocks import ExpansionError, unpacked_blocks

_JSON = re.compile(rb'\s*[\[{]\s*["\[{\d]')
_HEAD_BYTES = 64 << 10


def first_bytes(path: Path) -> bytes:
    """The first bytes of a regular file, unpacked as far as possible; empty if it cannot be read."""
    if not path.is_file():
        return b""  # opening a FIFO would block
    try:
        head = b""
        with path.open("rb") as file:
            for block in unpacked_blocks(file, _HEAD_BYTES):
                head += block
                if len(head) >= _HEAD_BYTES:
                    break
        return head[:_HEAD_BYTES]
    except (OSError, EOFError, ExpansionError):
        return b""


def profile_kind(path: Path) -> str:
    """The kind of a profile in `sources`: `kineto` for JSON, or `xplane` for all else.

    The reader of XPlane reports what is wrong with an unknown file."""
    head = first_bytes(path)
    if head.startswith(MAGIC):
        return "marks"
    return "xplane" if _JSON.match(head.removeprefix(codecs.BOM_UTF8)) is None else "kineto"


def profile_files(paths: Sequence[Path]) -> list[tuple[Path, ...]]:
    """The files of each profile: PyTorch's profiler writes one per cycle of its schedule, TensorFlow's a single one."""
    kinds = {path: profile_kind(path) for path in paths}
    files = [path for path in paths if kinds[path] == "kineto"]
    marks = ranks_of(path for path in paths if kinds[path] == "marks")
    return [*marks, *((path,) for path in paths if kinds[path] == "xplane"), *kineto.cycles_of(files)]


def read_profile(files: Sequence[Path]) -> Profile:
    """All events of the profile of one process: of one group of `profile_files`, or of several as its phases.

    A JSON profile that is cut off ends there, with a warning. Raises: ProfileError for files that are missing, damaged
    or without events.
    """
    marks = tuple(path for path in files if profile_kind(path) == "marks")
    if marks:
        files = [path for path in files if path not in marks]
        none = np.empty(0, dtype=np.int64)
        columns: dict[str, Any] = dict.fromkeys(("line", "name", "start_ns", "duration_ns"), none)
        columns |= dict.fromkeys(("hostnames", "planes", "lines", "names"), ())
        nothing = Profile(path=marks[0], epoch_start_ns=0, stats={}, **columns)
        return replace(read_profile(files) if files else nothing, marks=read_rank(marks))

    def begin(phase: Profile) -> int:
        return phase.epoch_start_ns or 0

    if profile_kind(files[0]) == "kineto":
        whole = kineto.read_profile(files)
        folders: dict[Path, list[Path]] = {}
        for path in files:
            folders.setdefault(path.parent, []).append(path)
        phases = [kineto.read_profile(group) for group in folders.values()] if len(folders) > 1 else []
    else:
        phases = [xplane.read_profile(path) for path in files]
        whole = reduce(beside, sorted(phases, key=begin))
    phases.sort(key=begin)
    return replace(whole, phases=tuple(phases)) if len(phases) > 1 else whole
