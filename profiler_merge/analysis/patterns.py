"""How each rank accesses each file: the order of its requests, what it reads again, and its time in metadata."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from profiler_merge.analysis.access_order import AccessOrder
from profiler_merge.analysis.filters import EVERYTHING, Filters
from profiler_merge.analysis.reread import ByteLine, UniqueBytes
from profiler_merge.analysis.selection import Selection, collect
from profiler_merge.analysis.spreading import add_at
from traces.operation_rows import OperationRows
from traces.ops import FORMATS, TRACED, WRITE, codes
from traces.store import Capture

COUNTS = (
    "reads", "writes", "bytes_read", "bytes_written", "io_ns", "sequential", "consecutive", "strided", "restarts",
    "random", "small_reads", "small_writes", "other_operations", "metadata_ns", "reconstructed_operations",
    "reconstructed_metadata_ns", "reconstructed_bytes",
)  # fmt: skip
"""What is counted per rank and file. `io_ns`: sum of the durations of traced reads and writes; `sequential` and
`consecutive`: Darshan's definitions, without its reset at an open; `strided`, `restarts` and `random` are explained in
`access_order`. `small_reads`, `small_writes`: that moved less than a stripe of the file (`block_sizes`), and less than
the file. `metadata_ns`: sum of the durations of traced opens, closes, stats, syncs and seeks
(`other_operations`). `reconstructed_*`: of rows from counters, which are in nothing else."""

USUAL_STRIPE_BYTES = 1 << 20
"""Lustre's default stripe (lfs-setstripe), and the size below which Drishti calls a request small."""

RANK_FILES_SCHEMA = pa.schema(
    [
        pa.field("rank", pa.int32()),
        pa.field("file_id", pa.int32()),
        pa.field("path", pa.string()),
        pa.field("format", pa.string()),
        *(pa.field(name, pa.int64()) for name in COUNTS),
        pa.field("unique_bytes_read", pa.int64()),
        pa.field("reread_bytes", pa.int64()),
        pa.field("pattern", pa.string()),
    ]
)
"""One row per rank and file that it accessed. `unique_bytes_read`: bytes of the file that were read at least once,
`reread_bytes`: bytes read beyond that. `pattern`: what most of the accesses are: consecutive, strided, sequential (
forward with gaps), random; null below 2 accesses."""

FILES_SCHEMA = pa.schema(
    [
        pa.field("file_id", pa.int32()),
        pa.field("path", pa.string()),
        pa.field("format", pa.string()),
        pa.field("size_bytes", pa.int64()),
        pa.field("ranks", pa.int64()),
        *(pa.field(name, pa.int64()) for name in COUNTS),
        pa.field("unique_bytes_read", pa.int64()),
        pa.field("reread_bytes", pa.int64()),
        pa.field("read_by_several_bytes", pa.int64()),
        pa.field("pattern", pa.string()),
    ]
)
"""One row per file that was accessed; counts are over the ranks. `ranks`: that read or wrote it. `reread_bytes`: read
again by a rank that had read them; `read_by_several_bytes`: read by another rank too (first reads of the ranks, less
`unique_bytes_read`, which is over all ranks)."""

RANKS_SCHEMA = pa.schema(
    [
        pa.field("rank", pa.int32()),
        pa.field("files", pa.int64()),
        pa.field("shared_files", pa.int64()),
        *(pa.field(name, pa.int64()) for name in COUNTS),
        pa.field("unique_bytes_read", pa.int64()),
        pa.field("reread_bytes", pa.int64()),
    ]
)
"""One row per rank looked at. `files`: that it read or wrote; `shared_files`: those that another rank did too."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Patterns:
    """`rank_files`, `files`, `ranks`: the tables of those schemas.

    `reread_error_bytes`: by how much `unique_bytes_read` may be too large in all (0 while a rank's reads form fewer
    than two million separate pieces).
    """

    rank_files: pa.Table
    files: pa.Table
    ranks: pa.Table
    reread_error_bytes: int

    def imbalance_pct(self, quantity: str) -> float | None:
        """(max - min) / max of a column of `ranks`, in per cent, as Drishti has it; None without any of it."""
        values = self.ranks[quantity].to_numpy()
        return 100 * float(values.max() - values.min()) / float(values.max()) if len(values) and values.max() else None


def block_sizes(files: pa.Table) -> np.ndarray:
    """int64 (files,): the request size that a file's storage wants: its stripe, else `USUAL_STRIPE_BYTES`."""
    stripes = files["stripe_size"].fill_null(0).to_numpy()
    result: np.ndarray = np.where(stripes > 0, stripes, USUAL_STRIPE_BYTES)
    return result


def patterns(capture: Capture, filters: Filters = EVERYTHING) -> Patterns:
    """Access patterns of the counted reads and writes. Raises: CaptureError when a part is damaged."""
    return collect(
        capture, filters, lambda selection: PatternCollector(capture, selection), without=("lane", "step")
    ).patterns()


class PatternCollector:
    """Collects `Patterns` from selected rows of one rank after another; memory grows with ranks times files used."""

    def __init__(self, capture: Capture, selection: Selection) -> None:
        self._selection = selection
        self._ranks = selection.ranks(capture)
        self._table = capture.files
        self._files = capture.files.num_rows
        self._sizes = capture.files["size"].to_numpy()
        self._small = np.minimum(block_sizes(capture.files), self._sizes)
        self._rank: int | None = None
        self._counts = np.zeros((len(COUNTS), self._files), dtype=np.int64)
        self._order = AccessOrder(self._files)
        self._line = ByteLine(self._sizes)
        self._unique = UniqueBytes(self._line)
        self._unique_over_ranks = UniqueBytes(self._line)
        self._done: list[dict[str, np.ndarray]] = []
        self._error = 0

    def add(self, rows: OperationRows) -> None:
        """Add selected rows, in start order."""
        rows = self._selection.counted(rows)
        if rows.rank != self._rank:
            self._finish_rank()
            self._rank = rows.rank
        traced, data = rows.origin == TRACED, rows.data
        if not traced.all():
            self._add_reconstructed(rows.where(~traced))
        if not data.all():
            other = rows.where(traced & ~data)
            self._add("other_operations", other)
            self._add("metadata_ns", other, other.duration_ns)
        self._add_data(rows.where(traced & data))

    def _add_data(self, rows: OperationRows) -> None:
        written = rows.op == WRITE
        read = rows.where(~written)
        for name, length, part in (("read", "bytes_read", read), ("write", "bytes_written", rows.where(written))):
            self._add(f"{name}s", part)
            self._add(length, part, part.length)
            self._add(f"small_{name}s", part.where((part.length > 0) & (part.length < self._small[part.file_id])))
        self._add("io_ns", rows, rows.duration_ns)
        for name, mask, part in self._order.classes(rows):
            self._counts[COUNTS.index(name)] += np.bincount(part.file_id[mask], minlength=self._files)
        ranges = self._line.ranges(read)
        self._unique.add(ranges)
        self._unique_over_ranks.add(ranges)

    def _add_reconstructed(self, rows: OperationRows) -> None:
        data = rows.data
        metadata = rows.where(~data)
        self._add("reconstructed_operations", rows)
        self._add("reconstructed_metadata_ns", metadata, metadata.duration_ns)
        moved = rows.where(data)
        self._add("reconstructed_bytes", moved, moved.length)

    def _add(self, name: str, rows: OperationRows, amounts: np.ndarray | None = None) -> None:
        if not len(rows):
            return
        counts = self._counts[COUNTS.index(name)]
        if amounts is None:
            counts += np.bincount(rows.file_id, minlength=self._files)
        else:
            add_at(counts, rows.file_id, amounts)

    def _finish_rank(self) -> None:
        if self._rank is None:
            return
        used = np.flatnonzero(self._counts.any(axis=0))
        unique = self._unique.per_file()[used]
        self._error += self._unique.error_bytes
        counts = {name: self._counts[place][used] for place, name in enumerate(COUNTS)}
        self._done.append(
            {
                "rank": np.full(len(used), self._rank, dtype=np.int32),
                "file_id": used.astype(np.int32),
                **counts,
                "unique_bytes_read": unique,
                "reread_bytes": np.maximum(counts["bytes_read"] - unique, 0),
            }
        )
        self._rank = None
        self._counts[:] = 0
        self._order = AccessOrder(self._files)
        self._unique = UniqueBytes(self._line)

    def patterns(self) -> Patterns:
        """Patterns of all that was added."""
        self._finish_rank()
        names = [name for name in RANK_FILES_SCHEMA.names if name not in ("path", "format", "pattern")]
        rows = {
            name: np.concatenate([part[name] for part in self._done]) if self._done else np.zeros(0, dtype=np.int64)
            for name in names
        }
        return Patterns(
            rank_files=self._rank_files(rows),
            files=self._files_table(rows),
            ranks=self._ranks_table(rows),
            reread_error_bytes=self._error,
        )

    def _names(self, file_id: np.ndarray) -> dict[str, pa.Array]:
        paths = self._table["path"].combine_chunks()
        formats = np.array(FORMATS, dtype=object)[codes(self._table, "format")]
        return {"path": paths.take(pa.array(file_id)), "format": pa.array(formats[file_id], pa.string())}

    def _rank_files(self, rows: dict[str, np.ndarray]) -> pa.Table:
        return pa.table({**rows, **self._names(rows["file_id"]), "pattern": _pattern(rows)}, schema=RANK_FILES_SCHEMA)

    def _files_table(self, rows: dict[str, np.ndarray]) -> pa.Table:
        used, place = np.unique(rows["file_id"], return_inverse=True)
        summed = _summed(rows, place, len(used), (*COUNTS, "unique_bytes_read", "reread_bytes"))
        first_reads = summed.pop("unique_bytes_read")
        unique = self._unique_over_ranks.per_file()[used]
        accessed = _accessed(rows)
        return pa.table(
            {
                "file_id": used.astype(np.int32),
                **self._names(used),
                "size_bytes": self._sizes[used],
                "ranks": np.bincount(place[accessed], minlength=len(used)),
                **summed,
                "unique_bytes_read": unique,
                "read_by_several_bytes": np.maximum(first_reads - unique, 0),
                "pattern": _pattern(summed),
            },
            schema=FILES_SCHEMA,
        )

    def _ranks_table(self, rows: dict[str, np.ndarray]) -> pa.Table:
        ranks = np.array(self._ranks, dtype=np.int32)
        place = np.searchsorted(ranks, rows["rank"])
        accessed = _accessed(rows)
        users = np.bincount(rows["file_id"][accessed], minlength=self._files)
        shared = accessed & (users[rows["file_id"]] > 1)
        return pa.table(
            {
                "rank": ranks,
                "files": np.bincount(place[accessed], minlength=len(ranks)),
                "shared_files": np.bincount(place[shared], minlength=len(ranks)),
                **_summed(rows, place, len(ranks), (*COUNTS, "unique_bytes_read", "reread_bytes")),
            },
            schema=RANKS_SCHEMA,
        )


def _accessed(rows: dict[str, np.ndarray]) -> np.ndarray:
    """Mask of the rows with a read or write, also a reconstructed one."""
    accessed: np.ndarray = (rows["reads"] + rows["writes"] + rows["reconstructed_bytes"]) > 0
    return accessed


def _summed(rows: dict[str, np.ndarray], place: np.ndarray, groups: int, names: Iterable[str]) -> dict[str, np.ndarray]:
    sums = {name: np.zeros(groups, dtype=np.int64) for name in names}
    for name, total in sums.items():
        np.add.at(total, place, rows[name])
    return sums


def _pattern(counts: dict[str, np.ndarray]) -> pa.Array:
    """What most accesses of each row are; the first access of a file is of no kind."""
    forward = counts["sequential"] - counts["consecutive"]
    kinds = {
        "consecutive": counts["consecutive"],
        "strided": counts["strided"],
        "random": counts["random"],
        "sequential": np.maximum(forward - counts["strided"], 0),
    }
    names = np.array([None, *kinds], dtype=object)
    amounts = np.stack(list(kinds.values()))
    return pa.array(names[np.where(amounts.any(axis=0), amounts.argmax(axis=0) + 1, 0)], pa.string())
