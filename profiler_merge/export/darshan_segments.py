"""Operations -> records of DXT_POSIX and DXT_MPIIO, the layout that `profiler_merge.darshan.dxt` reads."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dxt_replay.traces.stable_order import places_in_groups, runs, stable_order
from dxt_replay.traces.units import NS_PER_S

MAX_RECORD_SEGMENTS = ((1 << 31) - 1 - 104) // 40
"""Darshan's own readers keep the size of a record in a C int; a file with more operations gets several records."""

PIECE_SEGMENTS = 1 << 15
"""Segments that are encoded at a time, some megabytes that stay in a cache."""

DXT_VERSIONS = {1: {"DXT_POSIX": 1, "DXT_MPIIO": 2}, 2: {"DXT_POSIX": 2, "DXT_MPIIO": 3}}
"""`--dxt-version` -> the version of each module: released tools read 1; 2 adds the pthread id."""

HOST = b"unknown"
"""Placeholder: a capture does not keep host names."""

_HEADER = np.dtype(
    [("id", "<u8"), ("rank", "<i8"), ("shared", "<i8"), ("host", "S64"), ("writes", "<i8"), ("reads", "<i8")]
)
_HEADER_WORDS = _HEADER.itemsize // 8
_FIRST_THREAD = 0x7F00_0000_0000
_THREAD_STEP = 1 << 23


def encode_segments(
    file: np.ndarray, write: np.ndarray, rows: np.ndarray, record_ids: np.ndarray, rank: int, *, threads: bool
) -> Iterator[bytes]:
    """The decompressed bytes of the DXT records of one rank's `rows` (n,) of `darshan_rows.ROW`, piece by piece.

    `file`: int (n,), ascending, index into `record_ids`; `write`: bool (n,). Within a file rows are in the order of
    their end, as Darshan records them. With `threads` a segment carries a pthread id: equal for rows of one lane.
    """
    if not len(rows):
        return
    # a record per file, or several; the writes of each come first
    record = file
    if len(file) > MAX_RECORD_SEGMENTS:
        place = places_in_groups(np.diff(runs(file), append=len(file)))
        record = file * (len(file) // MAX_RECORD_SEGMENTS + 1) + place // MAX_RECORD_SEGMENTS
    key = 2 * record + ~write
    if np.any(key[1:] < key[:-1]):
        rows = rows.take(stable_order(key))
    # records do not change places, only the rows within each
    begins = runs(record)
    headers = np.zeros(len(begins), dtype=_HEADER)
    headers["id"], headers["rank"], headers["host"] = record_ids[file[begins]], rank, HOST
    headers["writes"] = np.add.reduceat(write, begins, dtype=np.int64)
    headers["reads"] = np.diff(begins, append=len(file)) - headers["writes"]
    for begin in range(0, len(rows), PIECE_SEGMENTS):
        mine = rows[begin : begin + PIECE_SEGMENTS]
        left, right = np.searchsorted(begins, [begin, begin + len(mine)])
        yield _interleaved(headers[left:right], begins[left:right] - begin, _segments(mine, threads=threads))


def _interleaved(headers: np.ndarray, begins: np.ndarray, segments: np.ndarray) -> bytes:
    """The segments, with a header before each that `begins` names."""
    count, words = segments.shape
    before = np.searchsorted(begins, np.arange(count), side="right")
    segment_at = before * _HEADER_WORDS + np.arange(count) * words
    header_at = np.arange(len(begins)) * _HEADER_WORDS + begins * words
    out = np.empty(headers.size * _HEADER_WORDS + segments.size, dtype="<u8")
    for word in range(_HEADER_WORDS):
        out[header_at + word] = headers.view("<u8").reshape(len(headers), _HEADER_WORDS)[:, word]
    for word in range(words):
        out[segment_at + word] = segments[:, word]
    return out.tobytes()


def _segments(rows: np.ndarray, *, threads: bool) -> np.ndarray:
    """u64 (n, 4) or (n, 5): offset, length, start, end, pthread id."""
    words = np.empty((len(rows), 5 if threads else 4), dtype="<u8")
    words[:, 0] = rows["offset"].astype("<i8").view("<u8")
    words[:, 1] = rows["length"].astype("<i8").view("<u8")
    words[:, 2] = (rows["start_ns"] / NS_PER_S).view("<u8")
    words[:, 3] = (rows["end_ns"] / NS_PER_S).view("<u8")
    if threads:
        words[:, 4] = (_FIRST_THREAD + rows["lane"].astype("<i8") * _THREAD_STEP).view("<u8")
    return words
