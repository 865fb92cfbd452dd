"""What of a capture is replayed, and by which back end.

A file recorded at several layers that pass the same bytes on (HDF5 over MPI-IO over POSIX) is replayed at one of them,
for all ranks alike: collective buffering moves bytes between ranks, so that a choice per rank would read them twice or
not at all. Operations on C streams pass none on to the POSIX rows, and are replayed beside them.

A collective call waits until all processes of the run make it. So each process must replay one rank, the ranks must
have the same number of collective operations on the file, and, because calls on different files wait for each other
too, all ranks must make all of them in the same order, on one thread. Then the k-th call of every process is the same,
and no call waits for a later one. Otherwise the operations are replayed as independent ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from dxt_replay.replay.target.hdf5_layout import Hdf5Files, hdf5_files
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.layers import FileLayers, file_layers
from dxt_replay.traces.paces import API_CHOICES
from dxt_replay.traces.schema import APIS, OPS, READ, RECONSTRUCTED, WRITE, codes
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.units import format_count

if TYPE_CHECKING:
    from dxt_replay.replay.engine.files import Backend
    from dxt_replay.replay.plan.pacing import RunOptions
    from dxt_replay.replay.ranks.mpi import Communicator

_KNOWN = ("posix", "stdio", "mpiio", "mpiio_collective", "hdf5", "null", "s3", "mapped")
POSIX, STDIO, MPIIO, MPIIO_COLLECTIVE, HDF5, NULL, OBJECTS, MAPPED = range(len(_KNOWN))
BACKENDS = (*_KNOWN, *(api for api in API_CHOICES if api not in ("auto", *_KNOWN)))
"""Names of the back ends, by the code of a row. An API_CHOICE beyond those known here is the name of its module."""

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
_SYNC, RENAME, DELETE = (OPS.index(name) for name in ("sync", "rename", "delete"))
_PREFERRED_LAYER = {"mpiio": 1, "hdf5": 2}
_NONE = np.zeros(0, dtype=bool)


def backend_of(code: int, options: RunOptions) -> str | Backend:
    """The back end of a code (`replay.engine.files.Backends`): a native one by its name, or what the function
    `back_end(name, options)` of its module in `replay.engine.backends` makes.

    Raises: DxtReplayError if it is not available; UsageError for one that `--api direct` does not fit.
    """
    name = BACKENDS[code]
    if options.direct and code not in (POSIX, NULL):
        raise UsageError(f"--api direct is for POSIX operations; this replay uses {name} too")
    if code in (POSIX, STDIO, NULL, MAPPED):
        return "direct" if options.direct and code == POSIX else name
    home = {"mpiio_collective": "mpiio", "s3": "objects"}.get(name, name)
    made: Backend = import_module(f"dxt_replay.replay.engine.backends.{home}").back_end(name, options)
    return made


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
        # The flush of a stream hands data to the kernel, which others do with each write, or at no other call.
        flushes = (api == _STREAM) & (codes(batch, "op") == _SYNC)
        if self.api in ("posix", "mpiio", "s3"):
            mask &= ~flushes
        elif self.api != "stdio" and self.files.on_descriptor.any():
            mask &= ~(flushes & self.files.on_descriptor[batch.column("file_id").to_numpy()])
        if self.chunks.layouts and "operations" not in batch.schema.names:
            mask &= ~self.chunks.own_rows(batch)
        return mask

    def backends(self, api: np.ndarray, file_id: np.ndarray) -> np.ndarray:
        """int8 code (n,) of the back end of replayed rows, from the codes of their api and their files."""
        if self.api not in ("auto", "mpiio", "hdf5"):
            return np.full(len(api), BACKENDS.index(self.api), dtype=np.int8)
        backend = np.full(len(api), MPIIO, dtype=np.int8) if self.api == "mpiio" else _BACKEND_OF_API[api]
        if self.collective.any():
            backend = np.where((api == _COLLECTIVE) & self.collective[file_id], np.int8(MPIIO_COLLECTIVE), backend)
        if self.api != "mpiio" and self.files.on_descriptor.any():  # a stream of its own would open the file once more
            backend = np.where((api == _STREAM) & self.files.on_descriptor[file_id], np.int8(POSIX), backend)
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


# --------------------------------------------------------------------------------------------------- the work of a rank

SLOT_USE = np.dtype([("file_id", np.int32), ("backend", np.int8), ("uses", np.int64)])
"""A file, the code of a back end through which a rank uses it, and the operations on the file through that."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankSurvey:
    """The work of one rank in a replay.

    `lane_operations`: lane -> operations to replay, ascending by lane; lanes without any are left out.
    `reads`, `writes`: ids of the files that are read, or written, ascending (int32). A rename writes the files of both
        names.
    `slots`: `SLOT_USE` of each file and back end, ascending.
    `lane_backends`: lane -> codes of the back ends that it needs.
    `operations`, `left_out`: recorded operations to replay, of all lanes, and the others.
    """

    rank: int
    lane_operations: Mapping[int, int]
    reads: np.ndarray
    writes: np.ndarray
    slots: np.ndarray
    lane_backends: Mapping[int, frozenset[int]]
    layers: LayerChoice
    operations: int
    left_out: int

    @property
    def lanes(self) -> tuple[int, ...]:
        return tuple(self.lane_operations)


def survey_rank(capture: Capture, rank: int, layers: LayerChoice) -> RankSurvey:
    """Survey a rank by the counts that the capture keeps of it (`Capture.usage`), without reading its operations.

    Raises: CaptureError when a part is damaged.
    """
    everything = capture.usage(rank)
    used = layers.chunks.data_usage(capture, rank) if layers.chunks.layouts else everything
    replayed = layers.replayed(used)
    used = used if replayed.all() else used.filter(pa.array(replayed))
    op, file_id, lane = codes(used, "op"), used["file_id"].to_numpy(), used["lane"].to_numpy()
    number, new_name = used["operations"].to_numpy(), used["other_file_id"].to_numpy()
    backend = layers.backends(codes(used, "api"), file_id)
    renames = op == RENAME
    # A rename is a use of the files of both names.
    files = np.concatenate((file_id, new_name[renames]))
    keys = files.astype(np.int64) * len(BACKENDS) + np.concatenate((backend, backend[renames]))
    keys, uses = _sums(keys, np.concatenate((number, number[renames])))
    slots = np.empty(len(keys), dtype=SLOT_USE)
    slots["file_id"], slots["backend"], slots["uses"] = keys // len(BACKENDS), keys % len(BACKENDS), uses
    lanes, operations = _sums(lane, number)
    written = (op == WRITE) | (op == DELETE) | renames
    return RankSurvey(
        rank=rank,
        lane_operations=dict(zip(lanes.tolist(), operations.tolist(), strict=True)),
        reads=np.unique(file_id[op == READ]),
        writes=np.unique(np.concatenate((file_id[written], new_name[renames]))),
        slots=slots,
        lane_backends={one: frozenset(np.unique(backend[lane == one]).tolist()) for one in lanes.tolist()},
        layers=layers,
        operations=int(operations.sum()),
        left_out=int(everything["operations"].to_numpy().sum() - operations.sum()),
    )


def _sums(keys: np.ndarray, number: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct keys, ascending, and the sum of `number` for each of them (int64)."""
    found, index = np.unique(keys, return_inverse=True)
    return found, np.bincount(index, weights=number, minlength=len(found)).astype(np.int64)


def spans_by_rank(spans: pa.Table, ranks: Iterable[int]) -> dict[int, pa.Table]:
    """Rank -> its spans in the order of `spans` (rows of `SPANS_SCHEMA`), for each of `ranks`, found in one pass."""
    of_row = spans["rank"].to_numpy()
    if (np.diff(of_row) < 0).any():
        order = np.argsort(of_row, kind="stable")
        spans, of_row = spans.take(pa.array(order)), of_row[order]
    limits = {rank: np.searchsorted(of_row, (rank, rank + 1)).tolist() for rank in ranks}
    return {rank: spans.slice(first, until - first) for rank, (first, until) in limits.items()}


# ---------------------------------------------------------------------------------------------- collective operations


def choose_collectives(
    capture: Capture, surveys: Sequence[RankSurvey], layers: LayerChoice, comm: Communicator
) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Bool by file, those whose operations are to be collective, and those that some rank writes; and why others are
    not. All processes agree on it. Reads the op stream only where a rank has collective operations.

    Raises: CaptureError when a part is damaged.
    """
    counts: dict[int, int] = {}
    for survey in surveys:
        used = capture.usage(survey.rank)
        mask = _collective_rows(used, layers)
        for file, count in zip(used["file_id"].to_numpy()[mask], used["operations"].to_numpy()[mask], strict=True):
            counts[int(file)] = counts.get(int(file), 0) + int(count)
    writes = counts.keys() & {file for survey in surveys for file in survey.writes.tolist()}
    every = comm.broadcast(comm.gather((len(surveys), counts, writes)))
    chosen, written = np.zeros((2, capture.files.num_rows), dtype=bool)
    used_files = sorted({file for _, counts, _ in every for file in counts})
    if not used_files:
        return chosen, written, ()
    if any(ranks != 1 for ranks, _, _ in every):
        return chosen, written, (_independent(len(used_files), "not each process replays one rank"),)
    for file in used_files:
        chosen[file] = len({counts.get(file, 0) for _, counts, _ in every}) == 1
        written[file] = any(file in writes for _, _, writes in every)
    warnings: tuple[str, ...] = ()
    if incomplete := len(used_files) - int(chosen.sum()):
        warnings = (_independent(incomplete, "the ranks have different numbers of them"),)
    if chosen.any():
        orders = comm.broadcast(comm.gather([_order(capture, survey, layers, chosen) for survey in surveys]))
        found = [order for process in orders for order in process]
        if any(lanes > 1 for lanes, _ in found) or len({digest for _, digest in found}) > 1:
            why = "the ranks make them in different orders or on several threads"
            warnings = (*warnings, _independent(int(chosen.sum()), why))
            chosen = np.zeros_like(chosen)
    return chosen, written, warnings


def _collective_rows(rows: pa.RecordBatch | pa.Table, layers: LayerChoice) -> np.ndarray:
    api, op = codes(rows, "api"), codes(rows, "op")
    mask: np.ndarray = layers.replayed(rows) & (api == _COLLECTIVE) & ((op == READ) | (op == WRITE))
    return mask & (layers.backends(api, rows.column("file_id").to_numpy()) == MPIIO)


def _order(capture: Capture, survey: RankSurvey, layers: LayerChoice, files: np.ndarray) -> tuple[int, bytes]:
    """The number of lanes with collective calls of a rank on `files`, and a digest of the order of the calls."""
    lanes: set[int] = set()
    digest = hashlib.sha256()
    for batch in capture.operations(survey.rank, columns=["lane", "op", "api", "origin", "file_id"]):
        file_id = batch.column("file_id").to_numpy()
        mask = _collective_rows(batch, layers) & files[file_id]
        lanes.update(np.unique(batch.column("lane").to_numpy()[mask]).tolist())
        digest.update(np.stack((file_id[mask], codes(batch, "op")[mask]), axis=1).astype(np.int64).tobytes())
    return len(lanes), digest.digest()


def _independent(files: int, why: str) -> str:
    return f"collective operations on {format_count(files)} files are replayed as independent ones: {why}"
