"""Reads and writes on C streams, which no trace holds, from the counters of the STDIO module. Pure.

Their number and bytes are exact; each is of the mean size, and they are spread evenly between the first start and the
last end that the counters give. Offsets go through the file from its start, again and again where more was moved than
it has.
"""

from __future__ import annotations

import numpy as np

from profiler_merge.untraced.metadata_rows import FileOperations, MadeRows, concatenated, made_rows, no_rows
from profiler_merge.untraced.rank_counters import NOT_SEEN, CountedFiles
from profiler_merge.untraced.timeline_slots import numbered
from traces.schema import READ, WRITE


def stream_rows(files: CountedFiles, unknown_ns: np.ndarray) -> MadeRows:
    """The reads and writes of all `files`. `unknown_ns` (files,): where those of a file without times are placed."""
    if not len(files):
        return no_rows()
    reads = _one_way(
        READ, files.reads, files.bytes_read, files.max_byte_read, np.zeros_like(files.base),
        *_window(files.read_start, files.read_end, files, unknown_ns), files.read_ns,
    )  # fmt: skip
    writes = _one_way(
        WRITE, files.writes, files.bytes_written, files.max_byte_written, files.base,
        *_window(files.write_start, files.write_end, files, unknown_ns), files.write_ns,
    )  # fmt: skip
    return concatenated([reads, writes])


def stream_operations(rows: MadeRows) -> FileOperations:
    """The same reads and writes in the order of (file, start), as traced ones are given."""
    order = np.lexsort((rows.end, rows.start, rows.file))
    return FileOperations(
        file=rows.file[order],
        start=rows.start[order],
        end=rows.end[order],
        offset=rows.offset[order],
        length=rows.length[order],
        is_write=rows.op[order] == WRITE,
    )


def _window(
    start: np.ndarray, end: np.ndarray, files: CountedFiles, unknown_ns: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """When the operations took place: as recorded, else between open and close."""
    begin = np.where(start != NOT_SEEN, start, np.where(files.open_end != NOT_SEEN, files.open_end, unknown_ns))
    finish = np.where(end != NOT_SEEN, end, np.where(files.close_start != NOT_SEEN, files.close_start, begin))
    return begin, np.maximum(begin, finish)


def _one_way(
    op: int,
    counts: np.ndarray,
    moved: np.ndarray,
    last_byte: np.ndarray,
    base: np.ndarray,
    begin: np.ndarray,
    end: np.ndarray,
    spent_ns: np.ndarray,
) -> MadeRows:
    file, number = numbered(counts)
    count = np.maximum(counts, 1)
    small, larger = moved // count, moved % count
    length = small[file] + (number < larger[file])
    start_byte = base[file] + number * small[file] + np.minimum(number, larger[file])
    offset = _wrapped(start_byte, length, np.maximum(last_byte + 1, 0)[file], moved[file])
    # Each takes its share of the recorded time, or of the window where that is less; one alone is the whole window.
    width = end - begin
    each = np.where(counts > 1, np.minimum(spent_ns, width) // count, width)
    step = (width - each) / np.maximum(count - 1, 1)
    start = begin[file] + np.floor(step[file] * number).astype(np.int64)
    return made_rows(op, file, start, start + each[file], offset=offset, length=length)


def _wrapped(position: np.ndarray, length: np.ndarray, size: np.ndarray, moved: np.ndarray) -> np.ndarray:
    """Offset of each operation: `position` in what was moved in all, taken through a file of `size` bytes.

    What moved less than the file holds ended at its last byte: it was appended.
    """
    size = np.maximum(size, length)
    appended = np.maximum(size - moved, 0)
    place = np.where(moved > size, position % np.maximum(size, 1), position + appended)
    offset: np.ndarray = np.minimum(place, size - length)
    return np.maximum(offset, 0)
