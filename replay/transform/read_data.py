"""What a capture reads as its data set: which files, how their requests are, and where HDF5 chunks are known."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dxt_replay.replay.plan.chosen_layers import LayerChoice
from dxt_replay.replay.transform.hdf5_chunks import ChunkedFile
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.schema import FORMATS, OPS, READ, WRITE, codes
from dxt_replay.traces.store.reader import Capture

MODAL_SHARE = 0.9
"""Share of a file's bytes that requests of one length must move, for that to be its request size."""

MOST_LENGTHS = 4096
"""Lengths of requests of one file that are counted, the first ones: a file with more has no request size."""

_HDF5 = FORMATS.index("hdf5")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DataSet:
    """The files that a job reads and does not write; arrays by file id.

    files: bool. hdf5: bool, those of HDF5. read_bytes: int64.
    request_bytes: int64, length of the requests that move nearly all bytes of a file, or of its HDF5 chunks; 0 where
    there is no such length.
    """

    files: np.ndarray
    hdf5: np.ndarray
    read_bytes: np.ndarray
    request_bytes: np.ndarray

    def chunked(self, capture: Capture) -> tuple[ChunkedFile, ...]:
        """The files that are read in HDF5 chunks of one length. Raises: UsageError without any, with the reason."""
        found = self.files & self.hdf5
        if not (found & (self.read_bytes > 0)).any():
            raise UsageError(
                "--chunk changes the chunks of HDF5 data, and this capture reads no HDF5 file: for a stream of other "
                "data use --transfer-size"
            )
        known = self.known_chunks()
        if not known:
            paths = capture.paths()
            largest = int(np.where(found, self.read_bytes, 0).argmax())
            raise UsageError(
                f"--chunk: the reads of {paths[largest]} have many lengths, so its chunks are not known: they are "
                "compressed, or the data set is contiguous"
            )
        return known

    def known_chunks(self) -> tuple[ChunkedFile, ...]:
        """The files that are read in HDF5 chunks of one length."""
        known = np.flatnonzero(self.files & self.hdf5 & (self.request_bytes > 0))
        return tuple(ChunkedFile(file_id=at, chunk_bytes=int(self.request_bytes[at])) for at in known.tolist())

    def streams(self) -> np.ndarray:
        """bool by file: the files whose requests a transfer size governs. Raises: UsageError without any."""
        found: np.ndarray = self.files & ~self.hdf5
        if not (found & (self.read_bytes > 0)).any():
            chunks = " The requests of HDF5 data have the size of its chunks: use --chunk." if self.hdf5.any() else ""
            raise UsageError(f"--transfer-size changes reads of streams, and this capture has none.{chunks}")
        return found


def data_set_of(capture: Capture, layers: LayerChoice) -> DataSet:
    """The data set, from the counts and, for the lengths, one pass over the operations.

    Raises: CaptureError when a part is damaged.
    """
    files = capture.files.num_rows
    read, written = np.zeros((2, files), dtype=bool)
    lengths: dict[int, dict[int, int]] = {}
    moved = np.zeros(files, dtype=np.int64)
    for batch in capture.operations(columns=["op", "api", "file_id", "offset", "length", "origin"]):
        op, file_id, length = codes(batch, "op"), batch.column("file_id").to_numpy(), batch.column("length").to_numpy()
        written[file_id[np.isin(op, (WRITE, OPS.index("rename")))]] = True
        mine = layers.replayed(batch) & (op == READ) & (length > 0)
        read[file_id[mine]] = True
        np.add.at(moved, file_id[mine], length[mine])
        pairs, counts = np.unique(np.stack((file_id[mine], length[mine])), axis=1, return_counts=True)
        for (name, size), count in zip(pairs.T.tolist(), counts.tolist(), strict=True):
            of_file = lengths.setdefault(name, {})
            if size in of_file or len(of_file) < MOST_LENGTHS:
                of_file[size] = of_file.get(size, 0) + count * size
    request = np.zeros(files, dtype=np.int64)
    for name, of_file in lengths.items():
        size = max(of_file, key=lambda each, of_file=of_file: of_file[each])  # type: ignore[misc]
        request[name] = size if of_file[size] >= MODAL_SHARE * moved[name] else 0
    for name, sizes in _chunk_sizes(capture).items():
        seen = sizes & lengths.get(name, {}).keys()
        if seen:
            request[name] = max(seen, key=lengths[name].__getitem__)
    return DataSet(
        files=read & ~written,
        hdf5=codes(capture.files, "format") == _HDF5,
        read_bytes=moved,
        request_bytes=request,
    )


def _chunk_sizes(capture: Capture) -> dict[int, set[int]]:
    """By file the sizes of its uncompressed chunks, as far as the source knows its HDF5 data sets."""
    found: dict[int, set[int]] = {}
    for row in capture.hdf5.to_pylist():
        if row["chunk_shape"] and not row["filters"]:
            found.setdefault(row["file_id"], set()).add(math.prod(row["chunk_shape"]) * row["type_size"])
    return found
