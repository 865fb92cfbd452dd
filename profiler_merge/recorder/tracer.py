"""What a tracer is to the recorder: how the processes of a job are started under it, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

DARSHAN, STRACE, DFTRACER = "darshan", "strace", "dftracer"
TRACERS = (DARSHAN, STRACE, DFTRACER)

LOGS = "$logs"
"""Stands in `variables` and `prefix` for the folder that a process writes its logs into."""

OF_RANK = "${rank:+rank$rank-}"
"""Stands there for the beginning of a file's name that names the rank, empty where there are no ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracer:
    """A tracer that was found on this machine.

    name: one of TRACERS.
    program: the library or the program.
    origin: where it was found, for people.
    version: as it says itself, "" where it does not.
    variables: environment of every process of the job; LOGS and OF_RANK as above.
    unset: variables that would spoil the recording.
    preload: libraries to load into every process.
    python_path: folder that every Python process of the job finds its modules in first.
    prefix: words of the shell before the job's program; LOGS and OF_RANK as above.
    patterns: globs of the logs below the folder.
    note: what the tracer costs and loses, for people; "" where there is nothing to say.
    """

    name: str
    program: Path
    origin: str
    version: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()
    preload: tuple[Path, ...] = ()
    python_path: Path | None = None
    prefix: str = ""
    patterns: tuple[str, ...]
    note: str = ""
