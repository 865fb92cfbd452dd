"""How often each file was used through each interface, as Darshan counts: the common form of both sides. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from replay.plan.chosen_layers import HDF5, MPIIO, MPIIO_COLLECTIVE, POSIX, STDIO, LayerChoice
from traces.schema import OPS, READ, WRITE, codes

INTERFACES = ("POSIX", "MPI-IO", "STDIO")
"""Names of the Darshan modules that count what a replay issues; the first dimension of a tally."""

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
"""What is counted; the last dimension of a tally."""
_PLACE = {name: place for place, name in enumerate(COLUMNS)}
SUMMED = np.array([name not in LAST_BYTES for name in COLUMNS])

_INTERFACE_OF_BACKEND = {
    POSIX: INTERFACES.index("POSIX"),
    STDIO: INTERFACES.index("STDIO"),
    MPIIO: INTERFACES.index("MPI-IO"),
    MPIIO_COLLECTIVE: INTERFACES.index("MPI-IO"),
}


def empty_tally(files: int) -> np.ndarray:
    """int64 (len(INTERFACES), files, len(COLUMNS)) of zeros."""
    return np.zeros((len(INTERFACES), files, len(COLUMNS)), dtype=np.int64)


def column(name: str) -> int:
    """The place of a name in COLUMNS."""
    return _PLACE[name]


def add_rows(tally: np.ndarray, hdf5: np.ndarray, batches: Iterable[pa.RecordBatch], layers: LayerChoice) -> None:
    """Add what a replay issues of a capture's rows.

    Batches have the columns op, api, file_id, origin, offset and length. `hdf5`: bool (files,), set where the HDF5
    library makes the requests, of which a capture does not say how many there are.
    """
    for batch in batches:
        issued = layers.replayed(batch)
        file_id = batch.column("file_id").to_numpy()[issued]
        backend = layers.backends(codes(batch, "api")[issued], file_id)
        op = codes(batch, "op")[issued]
        offset, length = (batch.column(name).to_numpy()[issued] for name in ("offset", "length"))
        hdf5[file_id[backend == HDF5]] = True
        for code, interface in _INTERFACE_OF_BACKEND.items():
            chosen = backend == code
            if chosen.any():
                _add(tally[interface], op[chosen], file_id[chosen], offset[chosen], length[chosen])


def _add(table: np.ndarray, op: np.ndarray, file_id: np.ndarray, offset: np.ndarray, length: np.ndarray) -> None:
    for name in _CALLS:
        np.add.at(table[:, column(f"{name}s")], file_id[op == OPS.index(name)], 1)
    np.add.at(table[:, column(AT_END)], file_id[(op == READ) & (length == 0)], 1)
    for code, (count, moved), last, way in ((READ, READS, *_way(0)), (WRITE, WRITES, *_way(1))):
        chosen = op == code
        files, sizes = file_id[chosen], length[chosen]
        np.add.at(table[:, column(count)], files, 1)
        np.add.at(table[:, column(moved)], files, sizes)
        known = offset[chosen] >= 0
        np.maximum.at(table[:, column(last)], files[known], (offset[chosen] + sizes - 1)[known])
        first = column(f"size_{way}_{_BINS[0]}")
        np.add.at(table, (files, first + np.searchsorted(_BOUNDS, sizes)), 1)


def _way(place: int) -> tuple[str, str]:
    return LAST_BYTES[place], ("read", "write")[place]
