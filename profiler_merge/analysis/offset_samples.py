"""Offsets read and written over time in the busiest files, with as many operations as a picture holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from dxt_replay.profiler_merge.analysis.collect import Begin, Collector, at_one_layer, collect
from dxt_replay.traces.layers import FileLayers
from dxt_replay.traces.measures.operation_rows import OperationRows
from dxt_replay.traces.schema import RECONSTRUCTED, WRITE
from dxt_replay.traces.stable_order import runs, stable_order
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.workers import ALONE, Workers

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
    begin = offset_collector(files, most_points=most_points)
    return collect(capture, begin, without=("lane", "step"), workers=workers).offsets()


def offset_collector(files: pa.Table, *, most_points: int) -> Begin[OffsetCollector]:
    """What makes the collector of the samples for some or all ranks. Arguments as of `file_offsets`."""
    counts = files["reads"].to_numpy() + files["writes"].to_numpy()
    busiest = [place for place in np.argsort(-counts, kind="stable")[:MOST_FILES].tolist() if counts[place]]
    operations = {int(files["file_id"][place].as_py()): int(counts[place]) for place in busiest}
    return partial(OffsetCollector, operations=operations, one_in=_one_in(operations, most_points))


def _one_in(operations: dict[int, int], most_points: int) -> dict[int, int]:
    """By file, the number of operations per kept one, so that about `most_points` are kept in total."""
    found, left = {}, most_points
    for place, (file_id, count) in enumerate(sorted(operations.items(), key=lambda item: item[1])):
        share = max(left // (len(operations) - place), 1)
        found[file_id] = -(-count // share)
        left -= min(count, share)
    return found


class OffsetCollector(Collector):
    """About one in `one_in` of the operations of some files. `operations`: of all ranks, by file."""

    STAY = ("_layers", "_number")

    takes_several_ranks = True

    def __init__(
        self, capture: Capture, layers: FileLayers, *, operations: dict[int, int], one_in: dict[int, int]
    ) -> None:
        self._layers = layers
        self._operations, self._one_in = operations, one_in
        self._seen = np.zeros(len(one_in), dtype=np.int64)
        self._limits = np.array([(1 << 32) // one_in[file_id] for file_id in operations], dtype=np.uint64)
        self._parts: list[np.ndarray] = []
        self._number = np.full(capture.files.num_rows, len(operations), dtype=np.int16)
        self._number[list(operations)] = np.arange(len(operations))

    def add(self, rows: OperationRows) -> None:
        """Add rows of one rank that follow its earlier ones, or all of several ranks."""
        rows = at_one_layer(rows, self._layers)
        number = self._number[rows.file_id]
        wanted = (number < len(self._seen)) & rows.data & (rows.origin != RECONSTRUCTED) & (rows.offset >= 0)
        found = np.flatnonzero(wanted)
        if not len(found):
            return
        found = found[stable_order(number[found])]
        number = number[found]
        first = runs(number)
        counts = np.diff(first, append=len(number))
        before = np.repeat(self._seen[number[first]] - first, counts)
        self._seen[number[first]] += counts
        spread = (np.arange(len(number)) + before).astype(np.uint64) * np.uint64(_SPREADING) % np.uint64(1 << 32)
        kept = spread < self._limits[number]
        some = found[kept]
        rank = rows.ranks[some] if len(rows.ranks) else np.full(len(some), rows.rank)
        columns: Sequence[np.ndarray] = (
            number[kept], rank, rows.start_ns[some], rows.end_ns[some], rows.offset[some], rows.length[some],
            rows.op[some] == WRITE,
        )  # fmt: skip
        self._parts.append(np.stack([column.astype(np.int64) for column in columns]))

    def merge(self, later: OffsetCollector) -> None:
        """As `Sums.merge`; `later` counted its operations from 0."""
        self._parts += later._parts

    def offsets(self) -> tuple[FileOffsets, ...]:
        """The samples of each file, in the order of `operations`."""
        number, *columns = np.concatenate([np.zeros((1 + len(COLUMNS), 0), dtype=np.int64), *self._parts], axis=1)
        return tuple(
            FileOffsets(
                file_id=file_id,
                operations=count,
                one_in=self._one_in[file_id],
                **{name: column[number == place] for name, column in zip(COLUMNS, columns, strict=True)},
            )
            for place, (file_id, count) in enumerate(self._operations.items())
        )
