"""Finds the files of the data set: training files, evaluation files, their format and folders. Pure."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from dxt_replay.traces.schema import FORMATS, READ
from dxt_replay.traces.units import format_counted
from dxt_replay.workloads.description import Format
from dxt_replay.workloads.fit.estimate import Estimate, estimate
from dxt_replay.workloads.fit.observation import Observation

OWN_FORMATS: Mapping[str, Format] = {"tfrecord": "tfrecord", "hdf5": "hdf5", "npz": "npz", "csv": "csv"}
"""Format of a capture's file -> DLIO's name for it."""

SUFFIXES: Mapping[str, Format] = {".npy": "npy", ".jpg": "jpeg", ".jpeg": "jpeg", ".png": "png"}
"""Suffix of a file name -> DLIO's format, for files whose format the capture does not know."""

RECORDS = (".h5", ".hdf5", ".npz", ".npy")
"""Suffixes of files in which a library seeks: these are never treated as streams."""

MIN_FILE_SHARE = 0.02
"""Least share of the bytes of the most-read file that a file of the data set carries."""

STREAM_SHARE = 0.9
"""Share of a file's reads that continue the previous one, from which the file counts as a stream."""

_DLIO_NAME = re.compile(r"^(?P<prefix>.*)_\d+_of_(?P<files>\d+)\.[a-z0-9_]+$")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DataFiles:
    """The data set.

    train, evaluation: file ids, ascending. format: DLIO's. stream: whether files are read from end to end in requests
    smaller than a file. left_out: files that the loop reads too, of other kinds.
    files: training files, by their names where these hold the number.
    """

    train: np.ndarray
    evaluation: np.ndarray
    format: Format
    stream: bool
    left_out: np.ndarray
    files: int
    estimates: tuple[Estimate, ...]


def data_files(seen: Observation) -> DataFiles | None:
    """The data set of a capture; None if no step waits for a read.

    Files are grouped by folder and suffix. If there are several suffixes, the one with the most bytes is the data set.
    """
    files = len(seen.paths)
    training, evaluating = (_bytes(seen, files, training=flag) for flag in (True, False))
    kinds = _kinds(seen.paths)
    if not training.any():
        return None
    by_suffix: Counter[str] = Counter()
    for file_id in np.flatnonzero(training).tolist():
        by_suffix[kinds[file_id][1]] += int(training[file_id])
    suffix = by_suffix.most_common(1)[0][0]
    is_read = np.zeros(files, dtype=bool)
    is_read[seen.uses.file_id[(seen.uses.op == READ) & (seen.uses.bytes > 0)]] = True
    mine = np.array([kind[1] == suffix for kind in kinds], dtype=bool) & is_read
    large = training >= MIN_FILE_SHARE * training[mine].max(initial=0)
    train_kinds = {kinds[file_id] for file_id in np.flatnonzero(mine & large & (training > 0)).tolist()}
    evaluation_kinds = {
        kinds[file_id] for file_id in np.flatnonzero(mine & (evaluating > 0) & (training == 0)).tolist()
    } - train_kinds
    in_train = np.array([kind in train_kinds for kind in kinds], dtype=bool) & is_read
    # Files that no examined rank read are assigned to the data set by folder and suffix alone.
    train = np.flatnonzero(in_train & (large | ((training == 0) & (evaluating == 0))))
    evaluation = np.flatnonzero(np.array([kind in evaluation_kinds for kind in kinds], dtype=bool) & is_read)
    left_out = np.setdiff1d(np.flatnonzero(training + evaluating), np.concatenate((train, evaluation)))
    stream = suffix not in RECORDS and _is_stream(seen, train)
    what = _format(seen, train, suffix, stream)
    return DataFiles(
        train=train,
        evaluation=evaluation,
        format=what[0],
        stream=stream,
        left_out=left_out,
        files=_number(seen, train)[0],
        estimates=(_format_estimate(*what, len(left_out)), *_folders(seen, train, evaluation)),
    )


def _format_estimate(name: Format, found: str, error: str, left_out: int) -> Estimate:
    others = f"the loop also reads {format_counted(left_out, 'file')} of other kinds" if left_out else ""
    return estimate("dataset.format", name, found, error, others)


def _bytes(seen: Observation, files: int, *, training: bool) -> np.ndarray:
    """int64 (files,): bytes that the examined ranks read for training steps, or for evaluations."""
    found = np.zeros(files, dtype=np.int64)
    for rank in seen.looked:
        chosen = rank.of_training if training else (rank.fetch >= 0) & ~rank.of_training
        np.add.at(found, rank.file_id[chosen], rank.length[chosen])
    return found


def _kinds(paths: tuple[str, ...]) -> list[tuple[str, str]]:
    """Folder and suffix of each file."""
    return [(os.path.dirname(path), os.path.splitext(path)[1].lower()) for path in paths]


def _is_stream(seen: Observation, train: np.ndarray) -> bool:
    """Whether most reads continue the previous one in the same file, and a file takes several reads."""
    continued = total = files = 0
    for rank in seen.looked:
        chosen = np.isin(rank.file_id, train) & (rank.length > 0)
        file_id, offset, length = rank.file_id[chosen], rank.offset[chosen], rank.length[chosen]
        order = np.argsort(file_id, kind="stable")
        file_id, offset, length = file_id[order], offset[order], length[order]
        follows = (file_id[1:] == file_id[:-1]) & (offset[1:] == offset[:-1] + length[:-1])
        begins = offset == 0
        continued += int(follows.sum()) + int(begins.sum())
        total += len(file_id)
        files += int(begins.sum())
    return total > 0 and continued >= STREAM_SHARE * total and total >= 2 * max(files, 1)


def _format(seen: Observation, train: np.ndarray, suffix: str, stream: bool) -> tuple[Format, str, str]:
    """DLIO's format, how it was found, and which files do not fit."""
    own = FORMATS[int(np.bincount(seen.formats[train]).argmax())]
    if own in OWN_FORMATS:
        return OWN_FORMATS[own], f"format of the files that training steps read ({own})", ""
    if suffix in SUFFIXES:
        return SUFFIXES[suffix], f"suffix {suffix} of the files that training steps read", ""
    named = f"the suffix {suffix}" if suffix else "no suffix"
    if stream:
        return "tfrecord", "files are read as streams from end to end", f"they have {named}, which DLIO does not know"
    return (
        "indexed_binary",
        "records are read at offsets inside the files",
        f"they have {named}; DLIO opens the file for each record, and reads two index files beside it",
    )


def _folders(seen: Observation, train: np.ndarray, evaluation: np.ndarray) -> Iterator[Estimate]:
    """Numbers of files and sub-folders, the folder, and the prefix of the names that DLIO gave."""
    for name, ids in (("train", train), ("eval", evaluation)):
        yield estimate(f"dataset.num_files_{name}", *_number(seen, ids))
        folders = {os.path.dirname(seen.paths[file_id]) for file_id in ids.tolist()}
        if len(folders) > 1:
            yield estimate(f"dataset.num_subfolders_{name}", len(folders), "distinct folders of the files")
        if name == "train":
            yield estimate("dataset.data_folder", _folder(folders), "where the files lie")
            matched = _dlio_names(seen, ids)
            prefixes = {match["prefix"] for match in matched if match}
            if len(prefixes) == 1 and all(matched):
                yield estimate("dataset.file_prefix", prefixes.pop(), "names of the files")


def _dlio_names(seen: Observation, ids: np.ndarray) -> list[re.Match[str] | None]:
    return [_DLIO_NAME.match(os.path.basename(seen.paths[file_id])) for file_id in ids.tolist()]


def _number(seen: Observation, ids: np.ndarray) -> tuple[int, str, str]:
    """Total number of files when only some were read, how it was found, and what is not known."""
    matched = _dlio_names(seen, ids)
    named = {match["files"] for match in matched if match}
    if len(named) == 1 and all(matched):
        number = int(named.pop())
        return number, f"names of the files (of_{number})", f"{len(ids)} of them were read" * (len(ids) != number)
    if not len(ids):
        return 0, "no files of evaluations alone", ""
    return len(ids), "distinct files that were read", "unread files are not known"


def _folder(folders: set[str]) -> str:
    """The folder below which DLIO puts its folder `train`."""
    common = os.path.commonpath(folders) if folders else "."
    head, tail = os.path.split(common)
    return head if tail == "train" and head else common
