"""The layer at which the operations on a file count, where several layers recorded the same bytes.

A read through MPI-IO or HDF5 appears again as the POSIX reads that carried it out: counting both counts its bytes
twice, replaying both reads them twice. Operations on C streams are no layer: Darshan does not see the calls that libc
makes inside fread (measured in its logs: disjoint bytes). Summaries and replays follow this one rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from dxt_replay.traces.schema import APIS, OPS, READ, RECONSTRUCTED, REFUSED, WRITE, codes

if TYPE_CHECKING:
    from dxt_replay.traces.store.reader import Capture

LAYERS = (("POSIX",), ("MPIIO", "MPIIO_COLL"), ("HDF5",))
"""Values of the `api` column, from the lowest layer up."""

OBJECT_STORES = ("DAOS", "DFS")
"""Interfaces of object stores, which no trace holds, from the lowest layer up: DFS keeps its files in DAOS objects."""

BESIDE = len(LAYERS)
"""The layer of an interface that stands beside LAYERS (STDIO, S3)."""

NOWHERE = BESIDE + 1
"""The layer of S3_REFUSED: what a store refused was no operation, and never counts."""

LAYER_OF_API = np.array(
    [
        NOWHERE if api == APIS[REFUSED] else next((i for i, layer in enumerate(LAYERS) if api in layer), BESIDE)
        for api in APIS
    ],
    dtype=np.int8,
)
"""int8 (apis,): index into LAYERS, BESIDE or NOWHERE, by code of the `api` column."""
_POSIX, _STREAM, _OPEN = APIS.index("POSIX"), APIS.index("STDIO"), OPS.index("open")


def lowest(moved: Mapping[str, int]) -> list[str]:
    """The interfaces that moved bytes to storage, from the bytes that each moved; no two of them count the same bytes.

    C streams, and POSIX or an object store, whichever moved more: the store may have served the calls of POSIX. If
    neither moved anything, the interface that moved most.

    lowest({"POSIX": 0, "STDIO": 9, "MPIIO": 100, "DFS": 100, "DAOS": 105})  # ["STDIO", "DAOS"]
    """
    carriers = ("POSIX", *OBJECT_STORES)
    candidates = [name for name in carriers if moved.get(name)]
    candidates = candidates or [name for name in (*carriers, "MPIIO", "HDF5", "PNETCDF") if name in moved]
    most = max(candidates, key=moved.__getitem__, default=None)
    return [name for name in moved if name in ("STDIO", most)]


def called(counted_times: Mapping[str, Mapping[str, Any]], ranks: int) -> tuple[str, Mapping[str, Any]] | None:
    """The interface that a program calls, by Darshan's counters (`counted_times`), and its figures.

    It took longest, by its slowest rank, or by the mean of the `ranks` where that is not known: a call takes at least
    as long as the calls of lower layers that carry it out.
    """

    def took_s(each: tuple[str, Mapping[str, Any]]) -> float:
        times = (each[1][name] or 0.0 for name in ("read_s", "write_s", "metadata_s", "wait_s"))
        return each[1]["slowest_s"] or sum(times) / max(ranks, 1)

    return max(counted_times.items(), key=took_s, default=None)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FileLayers:
    """The layer at which each file counts.

    of_file: int8 index into LAYERS by file_id, -1 for a file without operations at any layer.
    overlap: whether any file was recorded at more than one layer or NOWHERE, so that some operations do not count.
    refused: number of requests that an object store refused.
    on_descriptor: bool by file_id, whether its streams were made of a descriptor that POSIX opened (np.save, np.load).
    """

    of_file: np.ndarray
    overlap: bool
    refused: int = 0
    on_descriptor: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=bool))

    def counted(self, api: np.ndarray, file_id: np.ndarray) -> np.ndarray:
        """bool (n,): which operations count, from the codes of their interfaces and their files."""
        layer = LAYER_OF_API[api]
        mask: np.ndarray = (layer == BESIDE) | (layer == self.of_file[file_id])
        return mask


def file_layers(capture: Capture, *, reconstruct: bool = True, preferred: int | None = None) -> FileLayers:
    """The layer of each file, from the counts of all ranks (`Capture.usage`).

    It is the lowest layer at which traced operations moved data of the file; without traced ones, reconstructed
    operations (unless `reconstruct` is False); without data, any use. `preferred`: index of a layer that is taken
    instead wherever it was recorded. In a part of a capture, the layers follow from its interfaces but from all ranks
    and times: collective buffering moves bytes between ranks, and adjacent windows have to add up.
    Raises: CaptureError when a part is damaged, or an operation names a file that the files table lacks.
    """
    whole = capture.whole
    traced, moved, used = np.zeros((3, whole.files.num_rows, NOWHERE + 1), dtype=bool)
    refused, seen = 0, np.zeros((whole.files.num_rows, 4), dtype=bool)
    for table in whole.usages():
        op, api, file_id = codes(table, "op"), codes(table, "api"), table["file_id"].to_numpy()
        is_traced, data = codes(table, "origin") != RECONSTRUCTED, (op == READ) | (op == WRITE)
        counted = capture.api_mask[api] & (is_traced | reconstruct)
        for mark, mask in ((traced, counted & data & is_traced), (moved, counted & data), (used, counted)):
            mark[file_id[mask], LAYER_OF_API[api[mask]]] = True
        stream, opens = api == _STREAM, op == _OPEN
        seen[file_id, np.select((stream & data, stream & opens, opens & (api == _POSIX)), (0, 1, 2), 3)] = True
        refused += int(table["operations"].to_numpy()[LAYER_OF_API[api] == NOWHERE].sum())
    traced, moved, used = (found[:, :BESIDE] for found in (traced, moved, used))
    present = np.where(moved.any(axis=1, keepdims=True), moved, used)
    best = np.where(traced.any(axis=1, keepdims=True), traced, present)
    lowest = np.where(best.any(axis=1), best.argmax(axis=1), -1)
    if preferred is not None:
        lowest = np.where(present[:, preferred], preferred, lowest)
    overlap = bool((used.sum(axis=1) > 1).any()) or refused > 0
    on_descriptor = seen[:, 0] & ~seen[:, 1] & seen[:, 2]
    return FileLayers(of_file=lowest.astype(np.int8), overlap=overlap, refused=refused, on_descriptor=on_descriptor)
