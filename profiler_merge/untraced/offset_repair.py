"""Finds the traced offsets that Darshan gets wrong, and repairs them if only one interpretation remains. Pure.

Darshan keeps one position per file and process. Any open sets it to 0, and read() and write() through any descriptor
advance it. While several descriptors are open, only positional calls (pread and the like) have true offsets. Calls are
known to be positional if offsets jump without a seek.

Files are repaired if every descriptor read the same, to the end: in turns, one after the other, or each in its own
thread. The proof is in the reads at the end of the file (of 0 bytes), which no single descriptor could have made where
they are. All other files that were used through simultaneously open descriptors are suspect.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dxt_replay.profiler_merge.untraced.file_operations import FileOperations
from dxt_replay.profiler_merge.untraced.rank_counters import NOT_SEEN, CountedFiles


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExaminedOffsets:
    """Offsets after the repair.

    offset: int64 (n,), by operation.
    repaired, suspect: bool masks of the files.
    """

    offset: np.ndarray
    repaired: np.ndarray
    suspect: np.ndarray


def opened_together(files: CountedFiles) -> np.ndarray:
    """Mask of the files with several descriptors open at one time: all opens ended before the first close."""
    overlap = (files.close_start == NOT_SEEN) | (files.open_end <= files.close_start)
    return (files.opens > 1) & (files.open_end != NOT_SEEN) & overlap


def examine_offsets(files: CountedFiles, operations: FileOperations, thread: np.ndarray | None) -> ExaminedOffsets:
    """The offsets of one rank's operations on `files`. `thread` (n,): of each operation, None where not recorded."""
    repaired, suspect = np.zeros(len(files), dtype=bool), np.zeros(len(files), dtype=bool)
    offset = operations.offset
    # Darshan advances its position when a call ends.
    order = np.lexsort((operations.start, operations.end, operations.file))
    doubtful = _doubtful(files, operations, order)
    if doubtful.any():
        offset = offset.copy()
    for file in np.flatnonzero(doubtful).tolist():
        begin, end = np.searchsorted(operations.file, [file, file + 1])
        rows = order[begin:end]
        found = None
        all_opened = bool((operations.start[rows] >= files.open_end[file]).all())
        if all_opened and not files.seeks[file] and not operations.is_write[rows].any():
            threads = None if thread is None else thread[rows]
            found = _repaired(operations.offset[rows], operations.length[rows], int(files.opens[file]), threads)
        if found is None:
            suspect[file] = True
        else:
            repaired[file] = True
            offset[rows] = found
    return ExaminedOffsets(offset=offset, repaired=repaired, suspect=suspect)


def _doubtful(files: CountedFiles, operations: FileOperations, order: np.ndarray) -> np.ndarray:
    """Mask of the files that were used, by other than positional calls, while several of their descriptors were
    open."""
    doubtful = opened_together(files)
    if not doubtful.any():
        return doubtful
    rows = order[doubtful[operations.file[order]]]
    file, offset = operations.file[rows], operations.offset[rows]
    goes_on_at = np.roll(offset + operations.length[rows], 1)
    is_first = np.ones(len(rows), dtype=bool)
    is_first[1:] = file[1:] != file[:-1]
    goes_on_at[is_first] = 0
    count = len(files)
    jumps = np.bincount(file[(offset != goes_on_at) & (offset != 0)], minlength=count)
    after = np.bincount(file[operations.end[rows] > files.open_end[file]], minlength=count)
    moved = np.bincount(file[operations.length[rows] > 0], minlength=count)
    positional = (jumps > 0) & (files.seeks == 0)
    return doubtful & ~positional & (after > 0) & (moved > 1)


def _repaired(offset: np.ndarray, length: np.ndarray, descriptors: int, thread: np.ndarray | None) -> np.ndarray | None:
    """True offsets of one file's reads in the order of their ends; None if several interpretations are possible."""
    if len(length) % descriptors or not np.array_equal(offset, np.cumsum(length) - length):
        return None
    each = len(length) // descriptors
    if thread is not None and len(np.unique(thread)) > 1:
        owners = [np.unique(thread, return_inverse=True)[1].reshape(-1)]
    else:
        rows = np.arange(len(length))
        owners = [rows % descriptors, rows // each]
    found = []
    for owner in owners:
        by_owner = np.argsort(owner, kind="stable")
        if not np.array_equal(owner[by_owner], np.repeat(np.arange(descriptors), each)):
            continue
        sequences = length[by_owner].reshape(descriptors, each)
        if (sequences == sequences[0]).all() and _ends_at_end_of_file(sequences[0], owner):
            own = np.cumsum(sequences, axis=1) - sequences
            true = np.empty(len(length), dtype=np.int64)
            true[by_owner] = own.reshape(-1)
            found.append(true)
    return found[0] if len(found) == 1 else None


def _ends_at_end_of_file(sequence: np.ndarray, owner: np.ndarray) -> bool:
    """Whether the reads of one descriptor, which all repeat, show the end of the file at an otherwise impossible place.

    One descriptor after the other: data follow a read of 0 bytes. In turns: several reads in a row are short.
    """
    data = sequence[sequence > 0]
    if not len(data) or sequence[-1] != 0 or (sequence[: len(data)] == 0).any():
        return False
    one_by_one = bool((np.diff(owner) >= 0).all())
    return one_by_one or bool(data[-1] < data.max())
