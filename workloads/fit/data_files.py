"""Finds the files of the data set: training files, evaluation files, their format and folders. Pure."""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dxt_replay.traces.schema import FORMATS
from dxt_replay.workloads.description import Format
from dxt_replay.workloads.fit.observation import Observation
from dxt_replay.workloads.fit.workload_text import Estimates

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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DataFiles:
    """The data set.

    train, evaluation: file ids, ascending. sizes: of the training files. format: DLIO's. stream: whether files are read
    from end to end in requests smaller than a file.
    """

    train: np.ndarray
    evaluation: np.ndarray
    sizes: np.ndarray
    format: Format
    stream: bool
    estimates: Estimates


def data_files(seen: Observation) -> DataFiles | None:
    """The data set of a capture; None if no step waits for a read.

    Files are grouped by folder and suffix. If there are several suffixes, the one with the most bytes is the data set.
    """
    training, evaluating = np.zeros((2, len(seen.paths)), dtype=np.int64)
    for rank in seen.looked:
        for moved, is_training in ((training, True), (evaluating, False)):
            reads = rank.reads[rank.waited(training=is_training)]
            np.add.at(moved, reads["file"], reads["length"])
    if not training.any():
        return None
    kinds = [(posixpath.dirname(path), posixpath.splitext(path)[1].lower()) for path in seen.paths]
    by_suffix: Counter[str] = Counter()
    for file in np.flatnonzero(training).tolist():
        by_suffix[kinds[file][1]] += int(training[file])
    suffix = by_suffix.most_common(1)[0][0]
    was_read = seen.uses["read"] > 0
    mine = np.array([kind[1] == suffix for kind in kinds], dtype=bool) & was_read
    large = training >= MIN_FILE_SHARE * training[mine].max(initial=0)
    train_kinds = {kinds[file] for file in np.flatnonzero(mine & large & (training > 0)).tolist()}
    other_kinds = {kinds[file] for file in np.flatnonzero(mine & (evaluating > 0) & (training == 0)).tolist()}
    in_train, in_evaluation = (
        np.array([kind in chosen for kind in kinds], dtype=bool) & was_read
        for chosen in (train_kinds, other_kinds - train_kinds)
    )
    # Files that no examined rank read are assigned to the data set by folder and suffix alone.
    train = np.flatnonzero(in_train & (large | ((training == 0) & (evaluating == 0))))
    evaluation = np.flatnonzero(in_evaluation)
    stream = suffix not in RECORDS and _is_stream(seen, train)
    name, how = _format(seen, train, suffix, stream=stream)
    number = "distinct files that were read; unread files are not known"
    estimates = {
        "dataset.format": (name, how),
        "dataset.data_folder": (_folder({kinds[file][0] for file in train.tolist()}), "where the files lie"),
        "dataset.num_files_train": (len(train), number),
        "dataset.num_files_eval": (len(evaluation), number if len(evaluation) else "no files of evaluations alone"),
    }
    for which, files in (("train", train), ("eval", evaluation)):
        folders = len({kinds[file][0] for file in files.tolist()})
        if folders > 1:
            estimates[f"dataset.num_subfolders_{which}"] = folders, "distinct folders of the files"
    return DataFiles(
        train=train,
        evaluation=evaluation,
        sizes=seen.sizes[train].astype(float),
        format=name,
        stream=stream,
        estimates=estimates,
    )


def _is_stream(seen: Observation, train: np.ndarray) -> bool:
    """Whether most reads continue the previous one in the same file, and a file takes several reads."""
    continued = total = files = 0
    for rank in seen.looked:
        reads = rank.of(train)
        reads = reads[reads["length"] > 0]
        reads = reads[np.argsort(reads["file"], kind="stable")]
        ends = reads["offset"] + reads["length"]
        follows = (reads["file"][1:] == reads["file"][:-1]) & (reads["offset"][1:] == ends[:-1])
        begins = int((reads["offset"] == 0).sum())
        continued += int(follows.sum()) + begins
        total += len(reads)
        files += begins
    return total > 0 and continued >= STREAM_SHARE * total and total >= 2 * max(files, 1)


def _format(seen: Observation, train: np.ndarray, suffix: str, *, stream: bool) -> tuple[Format, str]:
    """DLIO's format, and how it was found."""
    own = FORMATS[int(np.bincount(seen.formats[train]).argmax())]
    if own in OWN_FORMATS:
        return OWN_FORMATS[own], f"format of the files that training steps read ({own})"
    if suffix in SUFFIXES:
        return SUFFIXES[suffix], f"suffix {suffix} of the files that training steps read"
    named = f"the suffix {suffix}, which DLIO does not know," if suffix else "no suffix"
    if stream:
        return "tfrecord", f"files with {named} are read as streams from end to end"
    return "indexed_binary", f"files with {named} are read in records at offsets"


def _folder(folders: set[str]) -> str:
    """The folder below which DLIO puts its folder `train`."""
    common = posixpath.commonpath(folders) if folders else "."
    head, tail = posixpath.split(common)
    return head if tail == "train" and head else common
