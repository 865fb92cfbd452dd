"""Finds the traced offsets that Darshan gets wrong, and repairs them if only one interpretation remains. Pure.

Darshan keeps one position per file and process. Any open sets it to 0, and read() and write() through any descriptor
advance it. While several descriptors are open, only positional calls (pread and the like) have true offsets. Calls are
known to be positional if offsets jump without a seek.

Files are repaired if every descriptor read the same, to the end: in turns, one after the other, or each in its own
thread. The proof is in the reads at the end of the file (of 0 bytes), which no single descriptor could have made where
they are. All other files that were used through simultaneously open descriptors are suspect.
"""

from __future__ import annotations

import numpy as np

from dxt_replay.profiler_merge.rebuild.counted import NOT_SEEN
from dxt_replay.profiler_merge.rebuild.rows import by_file
from dxt_replay.traces.schema import WRITE


def opened_together(files: np.ndarray) -> np.ndarray:
    """Mask of the files with several descriptors open at one time: all opens ended before the first close."""
    overlap = (files["close_start"] == NOT_SEEN) | (files["open_end"] <= files["close_start"])
    found: np.ndarray = (files["opens"] > 1) & (files["open_end"] != NOT_SEEN) & overlap
    return found


def examine_offsets(
    files: np.ndarray, traced: np.ndarray, record: np.ndarray, *, threaded: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The offsets (n,) of the traced operations (as of `rebuild`) on `files` (COUNTED of POSIX) after the repair; masks
    of the files that were repaired and are suspect, and how many operations each has (files,)."""
    offset = traced["offset"].copy()
    repaired, suspect = np.zeros((2, len(files)), dtype=bool)
    row, file = by_file(traced, record, files, "POSIX")
    row, file = row[(doubtful := opened_together(files))[file]], file[doubtful[file]]
    # Darshan advances its position when a call ends.
    order = np.lexsort((traced["start_ns"][row], traced["end_ns"][row], file))
    row, file = row[order], file[order]
    begin, end = (np.searchsorted(file, np.arange(len(files)), side=side) for side in ("left", "right"))
    for place in np.flatnonzero(end > begin).tolist():
        mine = row[begin[place] : end[place]]
        own, length, opened = offset[mine], traced["length"][mine], files["open_end"][place]
        jumps = ((own != np.append(0, (own + length)[:-1])) & (own != 0)).any()
        if jumps and not files["seeks"][place]:
            continue  # positional calls have true offsets
        if not (traced["end_ns"][mine] > opened).any() or np.count_nonzero(length) < 2:
            continue
        found = None
        all_opened = bool((traced["start_ns"][mine] >= opened).all())
        if all_opened and not files["seeks"][place] and not (traced["op"][mine] == WRITE).any():
            found = _repaired(own, length, int(files["opens"][place]), traced["thread"][mine] if threaded else None)
        suspect[place], repaired[place] = found is None, found is not None
        if found is not None:
            offset[mine] = found
    return offset, repaired, suspect, end - begin


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
