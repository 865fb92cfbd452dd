"""Chooses the layer and the back end through which each file is replayed.

A file recorded at several layers that pass the same bytes on (HDF5 over MPI-IO over POSIX) is replayed at one of them,
for all ranks alike: collective buffering moves bytes between ranks, so that a choice per rank would read them twice or
not at all. Operations on C streams pass none on to the POSIX rows, and are replayed beside them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from dxt_replay.replay.target.hdf5_layout import Hdf5Files, hdf5_files
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.layers import FileLayers, file_layers
from dxt_replay.traces.paces import API_CHOICES
from dxt_replay.traces.schema import APIS, OPS, RECONSTRUCTED, codes
from dxt_replay.traces.store.reader import Capture

BACKENDS = ("posix", "stdio", "mpiio", "mpiio_collective", "hdf5", "null", "s3", "mapped")
POSIX, STDIO, MPIIO, MPIIO_COLLECTIVE, HDF5, NULL, OBJECTS, MAPPED = range(len(BACKENDS))
"""Codes of a row's back end."""

_BACKENDS = {
    "POSIX": POSIX,
    "STDIO": STDIO,
    "MPIIO": MPIIO,
    "MPIIO_COLL": MPIIO,
    "HDF5": HDF5,
    "MMAP": MAPPED,
    "S3": POSIX,
    "S3_REFUSED": NULL,
}
_BACKEND_OF_API = np.array([_BACKENDS[api] for api in APIS], dtype=np.int8)
_STREAM, _COLLECTIVE = APIS.index("STDIO"), APIS.index("MPIIO_COLL")
_SYNC = OPS.index("sync")
_PREFERRED_LAYER = {"mpiio": 1, "hdf5": 2}
_NONE = np.zeros(0, dtype=bool)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerChoice:
    """`files`: the layer at which each file is replayed. `api`: of API_CHOICES.

    `reconstruct`: whether reconstructed rows are replayed. `hdf5`: bool by file, those that go through that library,
    and `chunks`, what is known of them; `collective`: bool by file, those whose collective rows can be collective
    again; all empty for none.
    """

    files: FileLayers
    api: str = "auto"
    reconstruct: bool = True
    hdf5: np.ndarray = field(default_factory=lambda: _NONE)
    chunks: Hdf5Files = field(default_factory=Hdf5Files)
    collective: np.ndarray = field(default_factory=lambda: _NONE)

    def replayed(self, batch: pa.RecordBatch | pa.Table) -> np.ndarray:
        """Boolean mask of the rows of a batch (columns op, api, file_id, origin, offset, length) that a replay issues.

        A table of `usage` has counts instead of offsets, and is without the library's own requests already.
        """
        api = codes(batch, "api")
        mask = np.ones(len(api), dtype=bool)
        if self.files.overlap:
            mask = self.files.counted(api, batch.column("file_id").to_numpy())
        if not self.reconstruct:
            mask &= codes(batch, "origin") != RECONSTRUCTED
        if self.api in ("posix", "mpiio", "s3"):
            # The flush of a stream hands data to the kernel, which these do with each write, or at no other call.
            mask &= (api != _STREAM) | (codes(batch, "op") != _SYNC)
        if self.chunks.layouts and "operations" not in batch.schema.names:
            mask &= ~self.chunks.own_rows(batch)
        return mask

    def usage(self, capture: Capture, rank: int) -> pa.Table:
        """`capture.usage(rank)` without the requests that a library makes again. Raises: CaptureError."""
        return self.chunks.data_usage(capture, rank) if self.chunks.layouts else capture.usage(rank)

    def backends(self, api: np.ndarray, file_id: np.ndarray) -> np.ndarray:
        """int8 code (n,) of the back end of replayed rows, from the codes of their api and their files."""
        if self.api in ("posix", "stdio", "s3", "null"):
            return np.full(len(api), BACKENDS.index(self.api), dtype=np.int8)
        backend = np.full(len(api), MPIIO, dtype=np.int8) if self.api == "mpiio" else _BACKEND_OF_API[api]
        if self.collective.any():
            backend = np.where((api == _COLLECTIVE) & self.collective[file_id], np.int8(MPIIO_COLLECTIVE), backend)
        if self.api == "hdf5" and self.hdf5.any():
            backend = np.where((api != _STREAM) & self.hdf5[file_id], np.int8(HDF5), backend)
        return backend


def choose_layers(capture: Capture, *, api: str = "auto", reconstruct: bool = True) -> LayerChoice:
    """By the rule of `traces.layers`, with the layer preferred that `api` names.

    Raises: CaptureError when a part is damaged, or operations and files do not fit together; UsageError for an `api`
    that is not one of API_CHOICES.
    """
    if api not in API_CHOICES:
        raise UsageError(f"--api {api!r}: choose {', '.join(API_CHOICES)}")
    chunks = hdf5_files(capture) if api == "hdf5" else Hdf5Files()
    return LayerChoice(
        files=file_layers(capture, reconstruct=reconstruct, preferred=_PREFERRED_LAYER.get(api)),
        api=api,
        reconstruct=reconstruct,
        hdf5=np.isin(np.arange(capture.files.num_rows), list(chunks.layouts)) if chunks.layouts else _NONE,
        chunks=chunks,
    )
