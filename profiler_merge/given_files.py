"""Sorts the inputs of a merge by content: recordings, profiles, spans beside them; refuses all else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dxt_replay.profiler_merge.darshan.jobs import find_logs
from dxt_replay.profiler_merge.recognise import files_below, find_profiles, foreign, kind_of
from dxt_replay.profiler_merge.request_hooks.log import SUFFIX
from dxt_replay.profiler_merge.sources import (
    BY_KIND,
    DARSHAN,
    PROFILES,
    RECORDINGS,
    SPANS,
    Source,
    reader,
)
from dxt_replay.traces.errors import LogError, ProfileError

_EMPTY_BYTES = 100
"""Smallest size of a file that must tell its kind: a smaller one may be of a thread that made no call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenFiles:
    """The sources of a merge.

    recorder: the recorder of the `operations`; None if there are only profiles.
    requests: logs of requests to object stores beside the `operations`, all of one kind.
    profiles: of the ranks.
    spans: files that hold spans and are not profiles.
    """

    recorder: Source | None
    operations: tuple[Path, ...]
    requests: tuple[Path, ...]
    profiles: tuple[Path, ...]
    spans: tuple[Path, ...]


def find_recordings(path: Path) -> list[Path]:
    """The recordings at a path: the Darshan logs in a folder, else its traces, else its profiles.

    Raises: LogError for a folder without any; the message names its contents.
    """
    try:
        logs = find_logs(path)
        return [*logs, *sorted(file for file in files_below(path) if file.suffix == SUFFIX)]
    except LogError as error:
        files = sorted(files_below(path))
        kinds = {file: kind_of(file) for file in files}
        traces = [file for file in files if kinds[file] in RECORDINGS]
        profiles = [] if traces else find_profiles(path)
        if any(kind_of(file) in PROFILES for file in profiles):
            return profiles
        if not traces:
            raise LogError(foreign(path, DARSHAN) or str(error)) from error
        return [file for file in files if file in traces or _recorder_of(file, kinds) is not None]


def given_files(files: Sequence[Path], profiles: Sequence[Path]) -> GivenFiles:
    """Sort the inputs; a profile among `files` counts as one of the `profiles`.

    Raises: LogError, ProfileError for a file that cannot be used here, or if two tools recorded operations.
    """
    for path in profiles:
        if (text := foreign(path, *PROFILES, *SPANS)) is not None:
            raise ProfileError(text)
    kinds = {path: kind_of(path) for path in files}
    own = [path for path in files if kinds[path] in PROFILES]
    operations = [path for path in files if path not in own]
    kinds |= {path: kinds[path] or _recorder_of(path, kinds) for path in operations}
    for path in operations:
        if kinds[path] not in RECORDINGS and (text := foreign(path, *RECORDINGS, *PROFILES)) is not None:
            raise LogError(text)
    # If no reader knows a file, the reader of Darshan logs reports its fault.
    recorders = {kinds[path] or DARSHAN: path for path in operations}
    given = [(path, kind_of(path)) for path in (*profiles, *own)]
    if not operations and any(kind in SPANS for _, kind in given):
        raise LogError(str(foreign(files[0], *RECORDINGS)))
    beside_others = {kind: path for kind, path in recorders.items() if BY_KIND[kind].requests}
    if 0 < len(beside_others) < len(recorders):
        recorders = {kind: path for kind, path in recorders.items() if kind not in beside_others}
    if len(recorders) > 1:
        (one, first), (other, second), *_ = recorders.items()
        raise LogError(
            f"{first} was recorded by {BY_KIND[one].tool} and {second} by {BY_KIND[other].tool}: a capture has the "
            "operations of one of them. Leave the other out, or give DFTracer's traces as --profile for their "
            "annotations"
        )
    return GivenFiles(
        recorder=next((BY_KIND[kind] for kind in recorders), None),
        operations=tuple(path for path in operations if (kinds[path] or DARSHAN) in recorders),
        requests=tuple(path for path in operations if (kinds[path] or DARSHAN) not in recorders),
        profiles=tuple(path for path, kind in given if kind not in SPANS),
        spans=tuple(path for path, kind in given if kind in SPANS),
    )


def _recorder_of(path: Path, kinds: dict[Path, str | None]) -> str | None:
    """The kind of the traces to which a small file without marks of its own belongs."""
    if kinds[path] is not None or not path.is_file() or path.stat().st_size >= _EMPTY_BYTES:
        return None
    for source in (BY_KIND[kind] for kind in RECORDINGS if BY_KIND[kind].belongs):
        others = [other for other, kind in kinds.items() if kind == source.kind]
        if others and reader(source.belongs)(path, others):
            return source.kind
    return None
