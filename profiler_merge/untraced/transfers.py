"""Darshan's counters of reads and writes of files: their number, sizes and order. Pure.

A *stream* is one direction of one file: stream 2 * i holds the reads of file i, stream 2 * i + 1 its writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from dxt_replay.profiler_merge.darshan.counters import CounterTable

BOUNDS = np.array([100, 1 << 10, 10 << 10, 100 << 10, 1 << 20, 4 << 20, 10 << 20, 100 << 20, 1 << 30], dtype=np.int64)
"""Largest size of each bin of Darshan's histograms but the last."""

LOWEST = np.append(0, BOUNDS + 1)
"""Smallest size of each bin."""

BINS = len(LOWEST)
TOP = 4

SIZES = ("0_100", "100_1K", "1K_10K", "10K_100K", "100K_1M", "1M_4M", "4M_10M", "10M_100M", "100M_1G", "1G_PLUS")
WAYS = (("READ", "READS", "READ"), ("WRITE", "WRITES", "WRITTEN"))
_MOST = 1 << 56
UNORDERED = -1
"""Value of `consec` and `seq` if the interface does not count the order of accesses."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Transfers:
    """Counters of n files; int64.

    By stream (2 n,): `count`, `moved` bytes, `end` (one past the highest byte), `consec` and `seq` (or UNORDERED),
    `sizes` (2 n, BINS). By file (n, TOP), of both directions together: `access` and `access_count`, `stride` and
    `stride_count`.
    """

    count: np.ndarray
    moved: np.ndarray
    end: np.ndarray
    consec: np.ndarray
    seq: np.ndarray
    sizes: np.ndarray
    access: np.ndarray
    access_count: np.ndarray
    stride: np.ndarray
    stride_count: np.ndarray

    def __len__(self) -> int:
        """Number of files."""
        return len(self.access)

    def select(self, files: np.ndarray) -> Transfers:
        """Those of an index array of files."""
        streams = np.stack((2 * files, 2 * files + 1), axis=1).ravel()
        return Transfers(
            **{
                each.name: getattr(self, each.name)[files if each.name in _BY_FILE else streams]
                for each in fields(Transfers)
            }
        )


_BY_FILE = ("access", "access_count", "stride", "stride_count")


def joined_transfers(parts: Sequence[Transfers]) -> Transfers:
    """The files of all parts, one after the other."""
    if len(parts) == 1:
        return parts[0]
    return Transfers(
        **{each.name: np.concatenate([getattr(part, each.name) for part in parts]) for each in fields(Transfers)}
    )


def transfers_of(table: CounterTable, module: str, kept: np.ndarray) -> Transfers:
    """The transfers of the `kept` records (bool mask) of POSIX or STDIO. STDIO counts no order and no sizes."""
    rows = int(kept.sum())

    def column(name: str) -> np.ndarray:
        values = table.counters.get(f"{module}_{name}")
        return np.zeros(rows, dtype=np.int64) if values is None else np.clip(values[kept], 0, _MOST)

    def by_stream(*names: str) -> np.ndarray:
        return np.stack([column(name) for name in names], axis=1).ravel()

    def top(name: str, what: str) -> np.ndarray:
        return np.stack([column(f"{name}{place + 1}_{what}") for place in range(TOP)], axis=1)

    sizes = np.stack([column(f"SIZE_{way}_{size}") for way, *_ in WAYS for size in SIZES], axis=1)
    moved = by_stream(*(f"BYTES_{done}" for *_, done in WAYS))
    last = by_stream(*(f"MAX_BYTE_{done}" for *_, done in WAYS))
    unordered = np.full(len(moved), UNORDERED)
    return Transfers(
        count=by_stream(*(ways for _, ways, _ in WAYS)),
        moved=moved,
        # Reads of 0 bytes behind the end of a file have offsets, too.
        end=np.where((moved > 0) | (last > 0), last + 1, 0),
        consec=by_stream(*(f"CONSEC_{ways}" for _, ways, _ in WAYS)) if module == "POSIX" else unordered,
        seq=by_stream(*(f"SEQ_{ways}" for _, ways, _ in WAYS)) if module == "POSIX" else unordered,
        sizes=sizes.reshape(-1, BINS),
        access=top("ACCESS", "ACCESS"),
        access_count=top("ACCESS", "COUNT"),
        stride=top("STRIDE", "STRIDE"),
        stride_count=top("STRIDE", "COUNT"),
    )


def counted_again(
    file: np.ndarray,
    is_write: np.ndarray,
    offset: np.ndarray,
    length: np.ndarray,
    opened: np.ndarray,
    wanted: Transfers,
) -> Transfers:
    """The same counters, recounted for known accesses (n,) to the files of `wanted`, sorted by file and in their order.

    `opened`: number of opens before each access; Darshan resets its position at each. ACCESS and STRIDE are counted for
    the values of `wanted`.
    """
    streams = 2 * len(wanted)
    stream = 2 * file + is_write
    order = np.argsort(stream, kind="stable")
    opened, file = opened[order], file[order]
    stream, offset, length = stream[order], offset[order], length[order]
    before = np.zeros(len(stream), dtype=np.int64)
    same = (stream[1:] == stream[:-1]) & (opened[1:] == opened[:-1])
    before[1:] = np.where(same, offset[:-1] + length[:-1] - 1, 0)
    end, moved = np.zeros(streams, dtype=np.int64), np.zeros(streams, dtype=np.int64)
    np.maximum.at(end, stream, offset + length)
    np.add.at(moved, stream, length)
    bins = np.bincount(stream * BINS + np.searchsorted(BOUNDS, length), minlength=streams * BINS)
    jumped = offset - before - 1
    return Transfers(
        count=np.bincount(stream, minlength=streams),
        moved=moved,
        end=end,
        consec=np.bincount(stream[jumped == 0], minlength=streams),
        seq=np.bincount(stream[jumped >= 0], minlength=streams),
        sizes=bins.reshape(streams, BINS),
        access=wanted.access,
        access_count=_having(wanted.access, file, length),
        stride=wanted.stride,
        # Darshan counts no stride after an open, or after an access of only the first byte.
        stride_count=_having(wanted.stride, file, np.where(before > 0, jumped, 0)),
    )


def _having(values: np.ndarray, file: np.ndarray, found: np.ndarray) -> np.ndarray:
    """Number of `found` (n,) values equal to each of the values (files, TOP) of their file; 0 for a value that is 0."""
    counts = [np.bincount(file[found == values[file, place]], minlength=len(values)) for place in range(TOP)]
    return np.where(values > 0, np.stack(counts, axis=1), 0)
