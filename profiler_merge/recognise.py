"""Recognises the tool that wrote a file by its content, so that an error can name it and a remedy.

Reads only the first 64 KiB, unpacked if they are compressed.
"""

from __future__ import annotations

import codecs
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dxt_replay.profiler_merge.profiles.reading import first_bytes
from dxt_replay.profiler_merge.profiles.xplane.decode import find_profiles as find_xplane
from dxt_replay.profiler_merge.sources import BESIDE, RECORDER, SOURCES, Source

_MOST_FILES = 1000


def recognise(path: Path) -> Source | None:
    """The kind of a file; None if no pattern fits, or it cannot be read."""
    head = first_bytes(path).removeprefix(codecs.BOM_UTF8)
    by_suffix = next((source for source in SOURCES if path.suffix in source.suffixes), None)
    found = next((source for source in SOURCES if source.begins(head)), by_suffix)
    return RECORDER if found is not None and found.kind == "parquet" and _is_wisio(path) else found


def _is_wisio(path: Path) -> bool:
    """Whether a Parquet file has the columns in which WisIO stores Recorder's traces."""
    try:
        return {"func_id", "acc_pat", "tstart"} <= set(pq.read_schema(path).names)
    except (OSError, pa.ArrowException):
        return False


def foreign(path: Path, *wanted: str) -> str | None:
    """The error for a file recognised as another kind than `wanted`, or for a folder that holds only other kinds.

    `wanted`: kinds of `sources`, or "capture". None if the kind is wanted, or unknown.
    """
    if path.is_dir():
        return _folder(path, wanted)
    source = recognise(path)
    if source is None or source.kind in wanted:
        return None
    return f"{path} is {source.what}: {source.remedy}"


def _folder(path: Path, wanted: Sequence[str]) -> str | None:
    """The error that names the most frequent kind of file below a folder; None if any file is of a wanted kind."""
    kinds: Counter[Source] = Counter()
    for file in _files_below(path):
        source = recognise(file)
        if source is not None:
            if source.kind in wanted:
                return None
            kinds[source] += 1
    if not kinds:
        return None
    (source, count), *_ = kinds.most_common(1)
    return f"{path} holds {source.what} ({count} file{'s' * (count > 1)}): {source.remedy}"


def _files_below(path: Path) -> list[Path]:
    found: list[Path] = []
    for parent, _, names in os.walk(path):
        found += [Path(parent) / name for name in sorted(names)]
        if len(found) >= _MOST_FILES:
            break
    return found[:_MOST_FILES]


def find_profiles(path: Path) -> list[Path]:
    """Every profile below a folder, sorted, or the file itself: `*.xplane.pb[.gz]`, and profiles in JSON.

    Leaves out a compressed copy beside the plain file, and TensorFlow's JSON beside its .xplane.pb.

    Raises: ProfileError for a path that does not exist, or a folder in it that cannot be listed.
    """
    found = find_xplane(path)
    if not path.is_dir():
        return found
    traces = {
        Path(parent) / name
        for parent, _, names in os.walk(path)
        for name in names
        if name.endswith((".json", ".json.gz", ".marks"))
    }
    with_xplane = {file.parent for file in found}
    others = [
        trace
        for trace in traces
        if not (trace.suffix == ".gz" and trace.with_suffix("") in traces)
        and (kind := kind_of(trace)) in BESIDE
        and not (kind == "tensorflow trace" and trace.parent in with_xplane)
    ]
    return sorted([*found, *others])


def kind_of(path: Path) -> str | None:
    """The kind of a file in code; None if no pattern fits."""
    source = recognise(path)
    return None if source is None else source.kind
