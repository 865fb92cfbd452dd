"""Where in its file MPI-IO moved data, which it does not count: at the places of the POSIX requests below it. Pure."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dxt_replay.profiler_merge.untraced.file_operations import FileOperations, MadeRows
from dxt_replay.profiler_merge.untraced.rank_counters import CountedFiles
from dxt_replay.profiler_merge.untraced.traced_operations import FilePlaces
from dxt_replay.traces.schema import WRITE


def at_offsets_below(
    files: CountedFiles, rows: MadeRows, traced: np.ndarray, below_files: CountedFiles, below: FileOperations
) -> tuple[MadeRows, int]:
    """The rows, sorted by stream, with the lengths and offsets of the requests below; and how many found none.

    That is known of a stream for which POSIX made as many requests, of the same sizes: each carried out one of them.
    With fewer or larger ones data were gathered on their way, and who asked for which is not known.
    `files`: of the rows. `traced` int64 (2 files,): operations of each stream that the trace holds; what is rebuilt
    beside them is some of the requests, and nobody knows which. `below_files`: those of the POSIX operations `below`.
    """
    streams = 2 * len(files)
    place, known = FilePlaces(files).find(below_files.process[below.file], below_files.record_id[below.file])
    stream_below = np.where(known, 2 * place + below.is_write, streams)
    order = np.argsort(stream_below, kind="stable")[: int(known.sum())]
    stream_below, length, offset = stream_below[order], below.length[order], below.offset[order]
    stream = 2 * rows.file + (rows.op == WRITE)
    count = np.bincount(stream, minlength=streams)
    same = (count == np.bincount(stream_below, minlength=streams)) & (traced == 0)
    mine, theirs = same[stream], same[stream_below]
    differ = _in_order(stream[mine], rows.length[mine]) != _in_order(stream_below[theirs], length[theirs])
    same[np.sort(stream[mine])[differ]] = False
    mine, theirs = same[stream], same[stream_below]
    offsets, lengths = rows.offset.copy(), rows.length.copy()
    offsets[mine], lengths[mine] = offset[theirs], length[theirs]
    return replace(rows, offset=offsets, length=lengths), int(np.count_nonzero(~mine))


def _in_order(stream: np.ndarray, length: np.ndarray) -> np.ndarray:
    """The lengths by stream and size."""
    return length[np.lexsort((length, stream))]
