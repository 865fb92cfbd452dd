"""Offsets of MPI-IO accesses, which MPI-IO does not count: those of the POSIX requests below. Pure."""

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
    """The rows, sorted by stream, with lengths and offsets of the requests below; and the number that found none.

    They are known for a stream with as many POSIX requests of the same sizes: each carried out one access. With fewer
    or larger requests, the library gathered data, and the accesses cannot be told.
    `files`: of the rows. `traced` int64 (2 files,): traced operations of each stream. The rebuilt ones are an unknown
    part of the requests. `below_files`: those of the POSIX operations `below`.
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
