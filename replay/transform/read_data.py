"""Describes the data set that a capture reads: files, request sizes, the cost of a request, HDF5 chunks, and memory."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dxt_replay.replay.plan.layers import LayerChoice
from dxt_replay.replay.transform.changes import Changes
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.row_order import distinct_rows
from dxt_replay.traces.schema import FORMATS, OPS, READ, WRITE, codes
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.units import format_bytes, format_count

MODAL_SHARE = 0.9
"""Share of a file's bytes that requests of one length must move, for that to be its request size."""

MOST_LENGTHS = 4096
"""Lengths of requests of one file that are counted, the first ones: a file with more has no request size."""

BYTES_PER_OPERATION = 300
"""Memory for each operation while all are changed and scheduled: about what docs/scale.md has as measured, half as much
again."""

_HDF5 = FORMATS.index("hdf5")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCost:
    """The cost of a read, from the recorded reads of the same capture: latency + bytes / bandwidth.

    A changed request keeps the recorded time of its bytes, plus one latency. So an unchanged request keeps its cost, a
    merged request saves latencies, and a slow byte stays slow.
    latency_ns: of a request of no bytes.
    ns_per_byte: of each byte.
    requests: number of requests in the fit.
    """

    latency_ns: float
    ns_per_byte: float
    requests: int

    def of_bytes(self, duration_ns: np.ndarray) -> np.ndarray:
        """float64 (n,): time of the bytes of recorded requests, ns, without the latency."""
        beyond: np.ndarray = np.maximum(duration_ns - self.latency_ns, 0.0)
        return beyond


class CostFit:
    """Sums over requests for a least-squares line, in constant memory for a whole capture."""

    def __init__(self) -> None:
        self._sums = np.zeros(5)
        self._shortest = math.inf

    def add(self, length: np.ndarray, duration_ns: np.ndarray) -> None:
        """Count these requests. `length`: bytes (n,). `duration_ns`: int64 (n,)."""
        x, y = length.astype(np.float64), duration_ns.astype(np.float64)
        self._sums += (len(x), x.sum(), (x * x).sum(), y.sum(), (x * y).sum())
        self._shortest = min(self._shortest, float(y.min(initial=math.inf)))

    def cost(self) -> RequestCost:
        """The line; neither latency nor time per byte is negative.

        Requests of a single length cannot separate the two: then the shortest duration is the latency.
        """
        count, sum_x, sum_xx, sum_y, sum_xy = self._sums.tolist()
        if not count:
            return RequestCost(latency_ns=0.0, ns_per_byte=0.0, requests=0)
        spread = sum_xx - sum_x * sum_x / count
        if spread <= 1e-9 * max(sum_xx, 1.0):
            latency = self._shortest if sum_x else sum_y / count
            slope = max((sum_y - count * latency) / sum_x, 0.0) if sum_x else 0.0
            return RequestCost(latency_ns=latency, ns_per_byte=slope, requests=int(count))
        slope = (sum_xy - sum_x * sum_y / count) / spread
        latency = (sum_y - slope * sum_x) / count
        if slope < 0:
            slope, latency = 0.0, sum_y / count
        elif latency < 0:
            slope, latency = sum_xy / sum_xx, 0.0
        return RequestCost(latency_ns=latency, ns_per_byte=slope, requests=int(count))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DataSet:
    """The files that a job reads and does not write; arrays by file id.

    files: bool. hdf5: bool, those of HDF5. read_bytes: int64.
    request_bytes: int64, length of the requests that move nearly all bytes of a file, or of its HDF5 chunks; 0 where
    there is no such length.
    cost: of a read of any file.
    """

    files: np.ndarray
    hdf5: np.ndarray
    read_bytes: np.ndarray
    request_bytes: np.ndarray
    cost: RequestCost

    @property
    def chunk_bytes(self) -> dict[int, int]:
        """File id -> bytes of a chunk, for files that are read in HDF5 chunks of one length."""
        known = np.flatnonzero(self.files & self.hdf5 & (self.request_bytes > 0)).tolist()
        return {file_id: int(self.request_bytes[file_id]) for file_id in known}

    @property
    def streams(self) -> np.ndarray:
        """bool by file: files that are read as streams, to which a transfer size applies."""
        found: np.ndarray = self.files & ~self.hdf5
        return found

    def check_chunks(self, capture: Capture) -> None:
        """Raises: UsageError with the reason if no file is read in HDF5 chunks of one length."""
        found = self.files & self.hdf5
        if not (found & (self.read_bytes > 0)).any():
            raise UsageError(
                "--chunk changes the chunks of HDF5 data, and this capture reads no HDF5 file: for a stream of other "
                "data use --transfer-size"
            )
        if not self.chunk_bytes:
            largest = capture.paths()[int(np.where(found, self.read_bytes, 0).argmax())]
            raise UsageError(
                f"--chunk: the reads of {largest} have many lengths, so its chunks are not known: they are "
                "compressed, or the data set is contiguous"
            )

    def check_streams(self) -> None:
        """Raises: UsageError if no stream is read."""
        if not (self.streams & (self.read_bytes > 0)).any():
            chunks = " The requests of HDF5 data have the size of its chunks: use --chunk." if self.hdf5.any() else ""
            raise UsageError(f"--transfer-size changes reads of streams, and this capture has none.{chunks}")

    def check_not_compressed(self, capture: Capture) -> None:
        """Raises: UsageError if the data are already compressed."""
        earlier = [each["changes"] for each in capture.info.made_by.get("transforms", [])]
        hdf5 = self.files & self.hdf5
        filters = {name for row in capture.hdf5.to_pylist() if hdf5[row["file_id"]] for name in row["filters"] or ()}
        if any("compression" in changes for changes in earlier) or filters:
            by = f"by {', '.join(sorted(filters))}" if filters else "by an earlier transform"
            raise UsageError(f"--compression: the data of {capture.named} are compressed already, {by}")


def data_set_of(capture: Capture, layers: LayerChoice) -> DataSet:
    """Derive the data set from the counts, and lengths and costs from one pass over the operations.

    Raises: CaptureError when a part is damaged.
    """
    files = capture.files.num_rows
    read, written = np.zeros((2, files), dtype=bool)
    lengths: dict[int, dict[int, int]] = {}
    moved = np.zeros(files, dtype=np.int64)
    fit = CostFit()
    columns = ["op", "api", "file_id", "offset", "length", "origin", "start_ns", "end_ns"]
    for batch in capture.operations(columns=columns):
        op, file_id, length = codes(batch, "op"), batch.column("file_id").to_numpy(), batch.column("length").to_numpy()
        written[file_id[np.isin(op, (WRITE, OPS.index("rename")))]] = True
        reads = layers.replayed(batch) & (op == READ)
        lasted = batch.column("end_ns").to_numpy() - batch.column("start_ns").to_numpy()
        fit.add(length[reads], lasted[reads])
        mine = reads & (length > 0)
        read[file_id[mine]] = True
        np.add.at(moved, file_id[mine], length[mine])
        pairs = distinct_rows(file_id[mine], length[mine])
        for (name, size), count in zip(pairs.values.tolist(), np.bincount(pairs.inverse).tolist(), strict=True):
            of_file = lengths.setdefault(name, {})
            if size in of_file or len(of_file) < MOST_LENGTHS:
                of_file[size] = of_file.get(size, 0) + count * size
    request = np.zeros(files, dtype=np.int64)
    for name, of_file in lengths.items():
        size = max(of_file, key=of_file.__getitem__)
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
        cost=fit.cost(),
    )


def _chunk_sizes(capture: Capture) -> dict[int, set[int]]:
    """File id -> sizes of its uncompressed chunks, if the source knows its HDF5 data sets."""
    found: dict[int, set[int]] = {}
    for row in capture.hdf5.to_pylist():
        if row["chunk_shape"] and not row["filters"]:
            found.setdefault(row["file_id"], set()).add(math.prod(row["chunk_shape"]) * row["type_size"])
    return found


def most_operations(capture: Capture, changes: Changes, data: DataSet) -> int:
    """Estimated operations that are in memory together, those of the capture and changed ones."""
    count = capture.operation_count()
    if changes.transfer_bytes is not None:
        count += int(data.read_bytes[data.streams].sum()) // changes.transfer_bytes
    if changes.chunk_bytes is not None:
        count += int(data.read_bytes[list(data.chunk_bytes)].sum()) // changes.chunk_bytes
    return count


def check_memory(capture: Capture, changes: Changes, data: DataSet, available: int | None) -> None:
    """Raises: UsageError if the operations need more than the bytes `available`; None: not known."""
    operations = most_operations(capture, changes, data)
    needed = operations * BYTES_PER_OPERATION
    if available is not None and needed > available:
        raise UsageError(
            f"a transformation holds all operations in memory: some {format_bytes(needed)} for the "
            f"{format_count(operations)} operations of {capture.named}, and {format_bytes(available)} are available. "
            "Use a machine with more memory, or change fewer ranks or steps with dxt_replay.part"
        )
