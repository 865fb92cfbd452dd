"""Sorts the inputs of a merge by content: recordings, profiles, spans beside them; refuses all else.

A file's kind is recognised by its first 64 KiB, unpacked if they are compressed, so that an error can name the tool
that wrote it and a remedy.
"""

from __future__ import annotations

import codecs
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from dxt_replay.profiler_merge.darshan.jobs import find_logs
from dxt_replay.profiler_merge.profiles.reading import first_bytes
from dxt_replay.profiler_merge.profiles.xplane import SUFFIXES as XPLANE
from dxt_replay.profiler_merge.request_hooks.log import SUFFIX
from dxt_replay.profiler_merge.sources import BY_KIND, DARSHAN, PROFILES, RECORDINGS, SOURCES, SPANS, Source, reader
from dxt_replay.traces.errors import LogError, ProfileError

_EMPTY_BYTES = 100
"""Smallest size of a file that must tell its kind: a smaller one may be of a thread that made no call."""

_MOST_FILES = 1000
_PROFILES = (*XPLANE, ".json", ".json.gz", ".marks")
_READ_BY_NAME = re.compile(r"\.(darshan|darshan_log|pb|pt\.trace\.json)(\.gz)?\Z")
"""Names of files whose readers say what is wrong with them."""


def kind_of(path: Path) -> str | None:
    """The kind of a file in `sources`; None if no pattern fits, or it cannot be read."""
    head = first_bytes(path).removeprefix(codecs.BOM_UTF8)
    return next((source.kind for source in SOURCES if source.begins(head)), None)


def foreign(path: Path, *wanted: str) -> str | None:
    """The error for a file of another kind than `wanted`, or for a folder that holds only other kinds.

    `wanted`: kinds of `sources`, or "capture". None if a kind is wanted, or if a reader can say more: of an empty or
    damaged file, or of a folder without any known kind.
    """
    if path.is_dir():
        kinds = Counter(filter(None, map(kind_of, islice(files_below(path), _MOST_FILES))))
    else:
        kinds = Counter(filter(None, [kind_of(path)]))
        if not kinds and first_bytes(path) and not _READ_BY_NAME.search(path.name):
            return (
                f"{path} is neither a Darshan log, a trace of strace or DFTracer, a log of requests, a profile of "
                "TensorFlow or PyTorch, nor a capture: record the job with `dxt-replay record`. If it is an archive, "
                "unpack it and give the folder"
            )
    if not kinds or kinds.keys() & set(wanted):
        return None
    ((kind, count),) = kinds.most_common(1)
    source, is_in = BY_KIND[kind], f"holds {BY_KIND[kind].what} ({count} file{'s' * (count > 1)})"
    remedy = "give it to `dxt-replay merge` as LOG, not as a profile or a capture"
    if source.profile:
        remedy = "give it to `dxt-replay merge` as --profile, beside the Darshan log"
    return f"{path} {is_in if path.is_dir() else f'is {source.what}'}: {remedy}"


def files_below(path: Path) -> Iterator[Path]:
    """Every file below a folder, those of one folder sorted."""
    for parent, _, names in os.walk(path):
        yield from (Path(parent) / name for name in sorted(names))


def find_profiles(path: Path) -> list[Path]:
    """Every profile below a folder, sorted, or the file itself: `*.xplane.pb[.gz]`, profiles in JSON, and marks.

    Leaves out a compressed copy beside the plain file.

    Raises: ProfileError for a path that does not exist, or a folder in it that cannot be listed.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise ProfileError(
            f"{path} does not exist: give the profiler's log directory, an .xplane.pb file of TensorFlow or JAX, or a "
            ".pt.trace.json file of PyTorch"
        )

    def refuse(error: OSError) -> None:
        raise ProfileError(f"{error.filename} cannot be listed: {error.strerror}") from error

    walked = os.walk(path, onerror=refuse)
    named = {Path(parent) / name for parent, _, names in walked for name in names if name.endswith(_PROFILES)}
    plain = (file for file in named if file.suffix != ".gz" or file.with_suffix("") not in named)
    return sorted(file for file in plain if file.name.endswith(XPLANE) or kind_of(file) in ("kineto", "marks"))


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
