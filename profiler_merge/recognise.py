"""Recognises the tool that wrote a file by its content, so that an error can name it and a remedy.

Reads only the first 64 KiB, unpacked if they are compressed.
"""

from __future__ import annotations

import codecs
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from dxt_replay.profiler_merge.profiles.reading import first_bytes
from dxt_replay.profiler_merge.profiles.xplane import find_profiles as find_xplane
from dxt_replay.profiler_merge.sources import SOURCES, Source

_MOST_FILES = 1000
_READ_BY_NAME = re.compile(r"\.(darshan|darshan_log|pb|pt\.trace\.json)(\.gz)?\Z")
"""Names of files whose readers say what is wrong with them."""


def recognise(path: Path) -> Source | None:
    """The kind of a file; None if no pattern fits, or it cannot be read."""
    head = first_bytes(path).removeprefix(codecs.BOM_UTF8)
    return next((source for source in SOURCES if source.begins(head)), None)


def foreign(path: Path, *wanted: str) -> str | None:
    """The error for a file of another kind than `wanted`, or for a folder that holds only other kinds.

    `wanted`: kinds of `sources`, or "capture". None if the kind is wanted, or if a reader can say more: of an empty or
    damaged file, or of a folder without any known kind.
    """
    if path.is_dir():
        return _folder(path, wanted)
    source = recognise(path)
    if source is None:
        return None if _READ_BY_NAME.search(path.name) or not first_bytes(path) else _unknown(path)
    return None if source.kind in wanted else f"{path} is {source.what}: {_remedy(source)}"


def _unknown(path: Path) -> str:
    return (
        f"{path} is neither a Darshan log, a trace of strace or DFTracer, a log of requests, a profile of TensorFlow "
        "or PyTorch, nor a capture: record the job with `dxt-replay record`. If it is an archive, unpack it and give "
        "the folder"
    )


def _remedy(source: Source) -> str:
    if source.profile:
        return "give it to `dxt-replay merge` as --profile, beside the Darshan log"
    return "give it to `dxt-replay merge` as LOG, not as a profile or a capture"


def _folder(path: Path, wanted: Sequence[str]) -> str | None:
    """The error that names the most frequent kind of file below a folder; None if any file is of a wanted kind."""
    kinds: Counter[Source] = Counter()
    for file in islice(files_below(path), _MOST_FILES):
        source = recognise(file)
        if source is not None:
            if source.kind in wanted:
                return None
            kinds[source] += 1
    if not kinds:
        return None
    (source, count), *_ = kinds.most_common(1)
    return f"{path} holds {source.what} ({count} file{'s' * (count > 1)}): {_remedy(source)}"


def files_below(path: Path) -> Iterator[Path]:
    """Every file below a folder, those of one folder sorted."""
    for parent, _, names in os.walk(path):
        yield from (Path(parent) / name for name in sorted(names))


def find_profiles(path: Path) -> list[Path]:
    """Every profile below a folder, sorted, or the file itself: `*.xplane.pb[.gz]`, profiles in JSON, and marks.

    Leaves out a compressed copy beside the plain file.

    Raises: ProfileError for a path that does not exist, or a folder in it that cannot be listed.
    """
    found = find_xplane(path)
    if not path.is_dir():
        return found
    traces = {file for file in files_below(path) if file.name.endswith((".json", ".json.gz", ".marks"))}
    others = [
        trace
        for trace in traces
        if not (trace.suffix == ".gz" and trace.with_suffix("") in traces) and kind_of(trace) in ("kineto", "marks")
    ]
    return sorted([*found, *others])


def kind_of(path: Path) -> str | None:
    """The kind of a file in code; None if no pattern fits."""
    source = recognise(path)
    return None if source is None else source.kind
