"""How often each file was used through each interface, as Darshan counts: the common form of both sides. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dxt_replay.replay.plan.chosen_layers import HDF5, MPIIO, MPIIO_COLLECTIVE, POSIX, STDIO, LayerChoice
from dxt_replay.traces.schema import OPS, READ, WRITE, codes
from dxt_replay.traces.stable_order import runs, stable_order

INTERFACES = ("POSIX", "MPI-IO", "STDIO")
"""Names of the Darshan modules that count what a replay issues; by their place in a tally."""

_BINS = ("0_100", "100_1K", "1K_10K", "10K_100K", "100K_1M", "1M_4M", "4M_10M", "10M_100M", "100M_1G", "1G_PLUS")
_BOUNDS = np.array([100, 1 << 10, 10 << 10, 100 << 10, 1 << 20, 4 << 20, 10 << 20, 100 << 20, 1 << 30])
"""Largest size of each bin but the last (`DARSHAN_BUCKET_INC` in darshan-common.h)."""

_CALLS = ("open", "seek", "sync", "rename", "stat")
CALLS = tuple(f"{name}s" for name in _CALLS)
"""Calls that move no data."""
READS, WRITES = ("reads", "bytes_read"), ("writes", "bytes_written")
LAST_BYTES = ("last_byte_read", "last_byte_written")
"""Offset of the last byte of any read or write, 0 where there is none."""
SIZES = tuple(f"size_{way}_{size}" for way in ("read", "write") for size in _BINS)
AT_END = "reads_at_end"
"""Reads that returned nothing, which no counter of Darshan's shows."""
COLUMNS = (*CALLS, *READS, *WRITES, *LAST_BYTES, *SIZES, AT_END)
"""What is counted."""
_PLACE = {name: place for place, name in enumerate(COLUMNS)}
SUMMED = np.array([name not in LAST_BYTES for name in COLUMNS])
"""bool (columns,): the counts that add up; of the others the largest counts."""

_MOST_PENDING = 1 << 21

_OF_BACKEND = {POSIX: 0, STDIO: 2, MPIIO: 1, MPIIO_COLLECTIVE: 1}
_OF_OP = {**{OPS.index(name): f"{name}s" for name in _CALLS}, READ: READS[0], WRITE: WRITES[0]}
"""Back end of an operation -> interface; operation -> the column that counts it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tally:
    """The counts that are not 0, by file, then by interface and by column: int64 (n,) each.

    `keys` ascend: (file * len(INTERFACES) + interface) * len(COLUMNS) + column.
    """

    keys: np.ndarray
    values: np.ndarray

    @property
    def file(self) -> np.ndarray:
        """File id of each count."""
        files: np.ndarray = self.keys // (len(INTERFACES) * len(COLUMNS))
        return files

    @property
    def interface(self) -> np.ndarray:
        """Index into INTERFACES of each count."""
        interfaces: np.ndarray = self.keys // len(COLUMNS) % len(INTERFACES)
        return interfaces

    @property
    def column(self) -> np.ndarray:
        """Index into COLUMNS of each count."""
        columns: np.ndarray = self.keys % len(COLUMNS)
        return columns

    def where(self, mask: np.ndarray | slice) -> Tally:
        """The counts for which the boolean `mask` (n,) holds, or of a slice."""
        return Tally(keys=self.keys[mask], values=self.values[mask])

    def of(self, name: str) -> Tally:
        """The counts of one column."""
        return self.where(self.column == column(name))

    def total(self, name: str) -> int:
        """The sum of one column."""
        return int(self.of(name).values.sum())

    def values_at(self, keys: np.ndarray) -> np.ndarray:
        """The counts at `keys`, which have all of these: int64, 0 where there is none."""
        values = np.zeros(len(keys), dtype=np.int64)
        values[np.searchsorted(keys, self.keys)] = self.values
        return values


class TallyCollector:
    """Adds up a tally. Memory: 16 bytes for each count that is not 0, and as much for those to come."""

    def __init__(self) -> None:
        self._parts: list[tuple[np.ndarray, np.ndarray]] = []
        self._size = self._folded = 0

    def add(self, file: np.ndarray, interface: np.ndarray | int, column: np.ndarray | int, values: np.ndarray) -> None:
        """Add values (n,) of files, interfaces and columns (n,); of LAST_BYTES the largest counts."""
        keys = (file.astype(np.int64) * len(INTERFACES) + interface) * len(COLUMNS) + column
        self._parts.append((keys[values != 0], values[values != 0].astype(np.int64)))
        self._size += len(keys)
        if self._size > max(_MOST_PENDING, 2 * self._folded):
            self._fold()

    def tally(self) -> Tally:
        """All that was added."""
        self._fold()
        ((keys, values),) = self._parts
        return Tally(keys=keys, values=values).where(values != 0)

    def _fold(self) -> None:
        none = np.empty(0, dtype=np.int64)
        keys, values = (np.concatenate(part) for part in zip((none, none), *self._parts, strict=True))
        if len(keys):
            order = stable_order(keys)
            keys, values = keys[order], values[order]
            first = runs(keys)
            keys = keys[first]
            sums, largest = np.add.reduceat(values, first), np.maximum.reduceat(values, first)
            values = np.where(SUMMED[keys % len(COLUMNS)], sums, largest)
        self._parts = [(keys, values)]
        self._size = self._folded = len(keys)


def column(name: str) -> int:
    """The place of a name in COLUMNS."""
    return _PLACE[name]


def add_rows(tally: TallyCollector, hdf5: np.ndarray, batches: Iterable[pa.RecordBatch], layers: LayerChoice) -> None:
    """Add what a replay issues of a capture's rows.

    Batches have the columns op, api, file_id, origin, offset and length. `hdf5`: bool (files,), set where the HDF5
    library makes the requests, of which a capture does not say how many there are.
    """
    for batch in batches:
        issued = layers.replayed(batch)
        file_id, offset, length = (batch.column(name).to_numpy()[issued] for name in ("file_id", "offset", "length"))
        backend, op = layers.backends(codes(batch, "api")[issued], file_id), codes(batch, "op")[issued]
        hdf5[file_id[backend == HDF5]] = True
        for code, interface in _OF_BACKEND.items():
            for kind, counted in _OF_OP.items():
                chosen = (backend == code) & (op == kind)
                if chosen.any():
                    files = file_id[chosen]
                    tally.add(files, interface, column(counted), np.ones(len(files), dtype=np.int64))
                    if kind in (READ, WRITE):
                        _add_moved(tally, interface, kind == WRITE, files, offset[chosen], length[chosen])


def _add_moved(
    tally: TallyCollector, interface: int, written: bool, file: np.ndarray, offset: np.ndarray, length: np.ndarray
) -> None:
    """Bytes, last byte and size class of reads or writes."""
    one = np.ones(len(file), dtype=np.int64)
    tally.add(file, interface, column((WRITES if written else READS)[1]), length)
    last = np.where(offset >= 0, np.maximum(offset + length - 1, 0), 0)
    tally.add(file, interface, column(LAST_BYTES[written]), last)
    tally.add(file, interface, column(SIZES[len(_BINS) * written]) + np.searchsorted(_BOUNDS, length), one)
    if not written:
        tally.add(file, interface, column(AT_END), (length == 0).astype(np.int64))
