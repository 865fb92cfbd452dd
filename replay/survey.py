"""Before the run: at which layer each file is replayed, and which lanes and files a rank has.

A file recorded at several layers that pass the same bytes on (HDF5 over MPI-IO over POSIX) is replayed at one of them,
for all ranks alike: collective buffering moves bytes between ranks, so that a choice per rank would read them twice or
not at all. Operations on C streams pass none on to the POSIX rows, and are replayed beside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from traces.errors import CaptureError
from traces.ops import APIS, READ, WRITE, codes
from traces.store import Capture

LAYERS = (("POSIX",), ("MPIIO", "MPIIO_COLL"), ("HDF5",))
"""From the lowest up: the first that a file has rows of is the one that it is replayed at."""

_BESIDE = len(LAYERS)
_LAYER_OF_API = np.array(
    [next((i for i, layer in enumerate(LAYERS) if api in layer), _BESIDE) for api in APIS], dtype=np.int8
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerChoice:
    """`of_file`: int8 index into LAYERS by file_id, -1 for a file without reads and writes at any of them."""

    of_file: np.ndarray

    def undertaken(self, batch: pa.RecordBatch) -> np.ndarray:
        """Boolean mask of the rows of a batch (columns op, api, file_id) that a replay issues."""
        op = codes(batch, "op")
        layer = _LAYER_OF_API[codes(batch, "api")]
        chosen = (layer == _BESIDE) | (layer == self.of_file[batch.column("file_id").to_numpy()])
        mask: np.ndarray = ((op == READ) | (op == WRITE)) & chosen
        return mask


def choose_layers(capture: Capture) -> LayerChoice:
    """Read three narrow columns of all rows once.

    Raises: CaptureError when a part is damaged, or operations and files do not fit together.
    """
    files = capture.files.num_rows
    present = np.zeros((files, len(LAYERS) + 1), dtype=bool)
    for batch in capture.operations(columns=["op", "api", "file_id"]):
        op, layer = codes(batch, "op"), _LAYER_OF_API[codes(batch, "api")]
        file_id = batch.column("file_id").to_numpy()
        if len(file_id) and not 0 <= file_id.min() <= file_id.max() < files:
            raise CaptureError(f"{capture.path}: operations name a file that files.parquet lacks: merge again")
        cell = file_id.astype(np.int64) * present.shape[1] + layer
        data = (op == READ) | (op == WRITE)
        present |= np.bincount(cell[data], minlength=present.size).reshape(present.shape) > 0
    at_a_layer = present[:, :_BESIDE]
    return LayerChoice(of_file=np.where(at_a_layer.any(axis=1), at_a_layer.argmax(axis=1), -1).astype(np.int8))


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSurvey:
    """What one rank does. `lane_operations`: lane -> operations to replay, ascending by lane; `uses`: the same by file.

    `reads`, `writes`: the files that it does so to. `left_out`: its operations that are not replayed, because their
    file is replayed at another layer or because they are neither read nor write.
    """

    rank: int
    lane_operations: Mapping[int, int]
    uses: Mapping[int, int]
    reads: frozenset[int]
    writes: frozenset[int]
    layers: LayerChoice
    operations: int
    left_out: int

    @property
    def lanes(self) -> tuple[int, ...]:
        """The lanes that have anything to replay, ascending."""
        return tuple(self.lane_operations)


def survey_rank(capture: Capture, rank: int, layers: LayerChoice) -> RankSurvey:
    """Read four narrow columns of a rank's rows once. Memory: a table of counts.

    Raises: CaptureError when a part is damaged.
    """
    files = capture.files.num_rows
    counts = np.zeros((2, files), dtype=np.int64)
    by_lane = np.zeros(0, dtype=np.int64)
    total = 0
    for batch in capture.operations(rank, columns=["lane", "op", "api", "file_id"]):
        mine = layers.undertaken(batch)
        total += len(mine)
        file_id = batch.column("file_id").to_numpy()
        for direction, op in enumerate((READ, WRITE)):
            counts[direction] += np.bincount(file_id[mine & (codes(batch, "op") == op)], minlength=files)
        found = np.bincount(batch.column("lane").to_numpy()[mine], minlength=len(by_lane))
        found[: len(by_lane)] += by_lane
        by_lane = found
    uses = counts.sum(axis=0)
    operations = int(uses.sum())
    return RankSurvey(
        rank=rank,
        lane_operations={lane: int(by_lane[lane]) for lane in np.flatnonzero(by_lane).tolist()},
        uses={file: int(uses[file]) for file in np.flatnonzero(uses).tolist()},
        reads=frozenset(np.flatnonzero(counts[0]).tolist()),
        writes=frozenset(np.flatnonzero(counts[1]).tolist()),
        layers=layers,
        operations=operations,
        left_out=total - operations,
    )
