"""What a merge is given, sorted by content: Darshan logs, traces, profiles; all else is refused by name."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dxt_replay.profiler_merge.darshan.job_logs import find_logs
from dxt_replay.profiler_merge.recognise import (
    DARSHAN,
    DFTRACER,
    HOROVOD,
    PROFILES,
    SPANS,
    STRACE,
    TRACES,
    find_profiles,
    foreign,
    kind_of,
)
from dxt_replay.traces.errors import LogError, ProfileError


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenFiles:
    """The sources of a merge.

    tool: which one recorded the `operations`; None where profiles are all that there is. profiles: of the ranks.
    spans: files that hold spans and are not profiles.
    """

    tool: str | None
    operations: tuple[Path, ...]
    profiles: tuple[Path, ...]
    spans: tuple[Path, ...]


def find_recordings(path: Path) -> list[Path]:
    """The recordings that a path stands for: a folder for the Darshan logs in it, else for its traces, else profiles.

    Raises: LogError for a folder without any, with what it holds instead.
    """
    try:
        return find_logs(path)
    except LogError as error:
        traces = [file for file in files_below(path) if kind_of(file) in TRACES]
        profiles = [] if traces else find_profiles(path)
        if any(kind_of(file) in PROFILES for file in profiles):
            return profiles
        if not traces:
            raise LogError(foreign(path, DARSHAN) or str(error)) from error
        empty = [file for file in files_below(path) if file not in traces and _is_empty_thread(file, traces)]
        return sorted([*traces, *empty])


def given_files(files: Sequence[Path], profiles: Sequence[Path]) -> GivenFiles:
    """Sort what was given; a profile among `files` counts as one of the `profiles`.

    Raises: LogError, ProfileError for what cannot be used here, or operations that two tools recorded.
    """
    for path in profiles:
        if (text := foreign(path, *PROFILES, *SPANS)) is not None:
            raise ProfileError(text)
    kinds = {path: kind_of(path) for path in files}
    own = [path for path in files if kinds[path] in (*PROFILES, HOROVOD)]
    traces = [path for path in files if kinds[path] in TRACES]
    for path in files:
        if kinds[path] is None and _is_empty_thread(path, traces):
            kinds[path] = STRACE
        elif (text := foreign(path, DARSHAN, *PROFILES, HOROVOD, *TRACES)) is not None:
            raise LogError(text)
    operations = [path for path in files if path not in own]
    tools = {kinds[path] or DARSHAN: path for path in operations}
    given = [(path, kind_of(path)) for path in (*profiles, *own)]
    given_kinds = {kind for _, kind in given}
    if not operations and (DFTRACER in given_kinds or given_kinds.isdisjoint(PROFILES)):
        raise LogError(str(foreign(files[0], DARSHAN, *TRACES)))
    if len(tools) > 1:
        (one, first), (other, second), *_ = tools.items()
        raise LogError(
            f"{first} was recorded by {_NAMES[one]} and {second} by {_NAMES[other]}: a capture has the operations of "
            "one of them. Leave the other out, or give DFTracer's traces as --profile for their annotations"
        )
    return GivenFiles(
        tool=next(iter(tools), None),
        operations=tuple(operations),
        profiles=tuple(path for path, kind in given if kind not in SPANS),
        spans=tuple(path for path, kind in given if kind in SPANS),
    )


_NAMES = {DARSHAN: "Darshan", STRACE: "strace", DFTRACER: "DFTracer"}


def _is_empty_thread(path: Path, traces: Sequence[Path]) -> bool:
    """Whether a file is of a thread, under `strace -ff`, that made no call."""
    if not traces or not path.is_file() or path.stat().st_size >= 100:
        return False
    from dxt_replay.profiler_merge.tracers.strace.strace_job import is_thread_file

    return is_thread_file(path, traces)


def files_below(path: Path) -> list[Path]:
    """Every file below a folder, sorted."""
    return sorted(Path(parent) / name for parent, _, names in os.walk(path) for name in names)
