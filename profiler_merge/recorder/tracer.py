"""A tracer as the recorder uses it: how to start the processes of a job under it, and its cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

DARSHAN, STRACE, DFTRACER, REQUESTS, MARKS = "darshan", "strace", "dftracer", "requests", "marks"
TRACERS = (DARSHAN, STRACE, DFTRACER, REQUESTS, MARKS)

LOGS = "$logs"
"""Placeholder in `variables` and `prefix` for the folder into which a process writes its logs."""

OF_RANK = "${rank:+rank$rank-}"
"""Placeholder there for a file name's begin that names the rank; empty without ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracer:
    """A tracer that was found on this machine.

    name: one of TRACERS.
    program: the library or the program.
    origin: where it was found, for people.
    version: the one that it states, "" if it states none.
    variables: environment of every process of the job; LOGS and OF_RANK as above.
    unset: variables that would spoil the recording.
    preload: libraries to load into every process.
    prefix: words of the shell before the job's program; LOGS and OF_RANK as above.
    patterns: globs of the logs below the folder.
    note: the tracer's costs and losses, for people; "" if there are none.
    """

    name: str
    program: Path
    origin: str
    version: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()
    preload: tuple[Path, ...] = ()
    prefix: str = ""
    patterns: tuple[str, ...]
    note: str = ""
