"""Offsets read and written over time in the busiest files, with as many operations as a picture holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from dxt_replay.profiler_merge.analysis.collect import Collector, at_one_layer, collect
from dxt_replay.traces.layers import FileLayers
from dxt_replay.traces.measures.operation_rows import OperationRows
from dxt_replay.traces.schema import RECONSTRUCTED, WRITE
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.workers.workers import ALONE, Workers

MOST_FILES = 16
MOST_POINTS = 4_000
"""Operations of all files together. A file with fewer than its share leaves the rest to the others."""

COLUMNS = ("rank", "start_ns", "end_ns", "offset", "length", "written")
_SPREADING = 2_654_435_761
"""2**32 divided by the golden ratio: its multiples pick about every n-th operation without a period of n."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FileOffsets:
    """A sample of one file's operations, rank after rank; int64 arrays (n,).

    written: 1 for a write, 0 for a read.
    operations: number of operations of the file, of which about one in `one_in` is in the sample.
    """

    file_id: int
    operations: int
    one_in: int
    rank: np.ndarray
    start_ns: np.ndarray
    end_ns: np.ndarray
    offset: np.ndarray
    length: np.ndarray
    written: np.ndarray


def file_offsets(
    capture: Capture, files: pa.Table, *, most_points: int = MOST_POINTS, workers: Workers = ALONE
) -> tuple[FileOffsets, ...]:
    """Traced reads and writes of the MOST_FILES files with the most of them, the most first, in one pass.

    `files`: `patterns.FILES_SCHEMA`, of the same capture. Raises: CaptureError when a part is damaged.
    """
    counts = files["reads"].to_numpy() + files["writes"].to_numpy()
    busiest = [place for place in np.argsort(-counts, kind="stable")[:MOST_FILES].tolist() if counts[place]]
    if not busiest:
        return ()
    operations = {int(files["file_id"][place].as_py()): int(counts[place]) for place in busiest}
    one_in = _one_in(operations, most_points)
    begin = partial(_OffsetCollector, one_in=one_in)
    collector = collect(capture, begin, without=("lane", "step"), workers=workers)
    return tuple(
        FileOffsets(
            file_id=file_id,
            operations=operations[file_id],
            one_in=one_in[file_id],
            **dict(zip(COLUMNS, collector.columns(file_id), strict=True)),
        )
        for file_id in operations
    )


def _one_in(operations: dict[int, int], most_points: int) -> dict[int, int]:
    """By file, the number of operations per kept one, so that about `most_points` are kept in total."""
    found, left = {}, most_points
    for place, (file_id, count) in enumerate(sorted(operations.items(), key=lambda item: item[1])):
        share = max(left // (len(operations) - place), 1)
        found[file_id] = -(-count // share)
        left -= min(count, share)
    return found


class _OffsetCollector(Collector):
    """About one in `one_in` of the operations of some files."""

    STAY = ("_layers", "_wanted")

    def __init__(self, capture: Capture, layers: FileLayers, *, one_in: dict[int, int]) -> None:
        self._layers = layers
        self._one_in = one_in
        self._seen = dict.fromkeys(one_in, 0)
        self._parts: dict[int, list[np.ndarray]] = {file_id: [] for file_id in one_in}
        self._wanted = np.zeros(capture.files.num_rows, dtype=bool)
        self._wanted[list(one_in)] = True

    def add(self, rows: OperationRows) -> None:
        counted = at_one_layer(rows, self._layers)
        mask = self._wanted[counted.file_id] & counted.data & (counted.origin != RECONSTRUCTED) & (counted.offset >= 0)
        found = counted.where(mask)
        for file_id in np.unique(found.file_id).tolist():
            self._add(file_id, found.where(found.file_id == file_id))

    def _add(self, file_id: int, rows: OperationRows) -> None:
        number = np.arange(self._seen[file_id], self._seen[file_id] + len(rows), dtype=np.uint64)
        self._seen[file_id] += len(rows)
        spread = number * np.uint64(_SPREADING) % np.uint64(1 << 32)
        some = rows.where(spread < (1 << 32) // self._one_in[file_id])
        rank = np.full(len(some), rows.rank)
        columns: Sequence[np.ndarray] = (
            rank, some.start_ns, some.end_ns, some.offset, some.length, some.op == WRITE,
        )  # fmt: skip
        self._parts[file_id].append(np.stack([column.astype(np.int64) for column in columns]))

    def merge(self, later: _OffsetCollector) -> None:
        """As `Sums.merge`; `later` counted its operations from 0."""
        for file_id, parts in later._parts.items():
            self._parts[file_id] += parts

    def columns(self, file_id: int) -> np.ndarray:
        """int64 (columns, n), as COLUMNS."""
        none = np.zeros((len(COLUMNS), 0), dtype=np.int64)
        return np.concatenate([none, *self._parts[file_id]], axis=1)
