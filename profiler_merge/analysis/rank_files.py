"""What each rank does to each file, with the state of one rank at a time; rows are computed on request.

Each access is compared with the previous one of the same rank, file and direction. In Darshan's sense it is
*sequential* if it begins beyond that one's last byte, and *consecutive* if it begins directly behind it. It has at most
one further class:
- *strided*: not consecutive, and at the same distance from the previous access as that one from its own predecessor;
- *restart*: at offset 0 again, as a new pass over the file begins;
- *random*: none of consecutive, strided and restart.
A jump ahead of any size is sequential for Darshan and random here, because its place cannot be predicted. Reads of 0
bytes, at the end of a file, have no class.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import pyarrow as pa

from dxt_replay.profiler_merge.analysis.collect import at_one_layer
from dxt_replay.profiler_merge.analysis.reread import ByteLine, UniqueBytes
from dxt_replay.profiler_merge.analysis.tables import COUNTS, TABLES
from dxt_replay.traces.layers import FileLayers
from dxt_replay.traces.measures._passes import ORDER_STATE, add_at, continue_order, count_accesses
from dxt_replay.traces.measures.operation_rows import OperationRows, operation_rows
from dxt_replay.traces.schema import FORMATS, RECONSTRUCTED, WRITE, codes
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.sums import Sums

RANK_FILES_SCHEMA = TABLES["rank-files"].schema
"""`unique_bytes_read`: bytes of the file that were read at least once; `reread_bytes`: bytes read beyond that."""

USUAL_STRIPE_BYTES = 1 << 20
"""Lustre's default stripe (lfs-setstripe), and the size below which Drishti calls a request small."""

BATCH_ROWS = 1 << 14
"""Most rows of a batch of `RankFiles`: about 4 MB with paths of 100 characters."""


def block_sizes(files: pa.Table) -> np.ndarray:
    """int64 (files,): the best request size for a file's storage: its stripe, else `USUAL_STRIPE_BYTES`."""
    stripes = files["stripe_size"].fill_null(0).to_numpy()
    result: np.ndarray = np.where(stripes > 0, stripes, USUAL_STRIPE_BYTES)
    return result


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FileCounts:
    """Counts of one rank.

    `file_id` int64 (files used,), ascending; `counts`: int64 of that shape by the names of SUMMED.
    `error_bytes`: largest total error of `unique_bytes_read`, which may be too large."""

    file_id: np.ndarray
    counts: dict[str, np.ndarray]
    error_bytes: int

    @property
    def accessed(self) -> np.ndarray:
        """Mask of the files that were read or written, reconstructed rows included."""
        counts = self.counts
        mask: np.ndarray = (counts["reads"] + counts["writes"] + counts["reconstructed_bytes"]) > 0
        return mask

    @property
    def moved_bytes(self) -> np.ndarray:
        """int64: traced bytes, read and written."""
        moved: np.ndarray = self.counts["bytes_read"] + self.counts["bytes_written"]
        return moved


class RankAccesses(Sums):
    """Counts what one rank does to each file.

    Memory: 35 int64 per file of the capture, and the pieces of `UniqueBytes`, for any number of operations."""

    STAY = ("line", "_small")

    def __init__(self, files: pa.Table) -> None:
        sizes = files["size"].to_numpy()
        self.line = ByteLine(sizes)
        self._small = np.minimum(block_sizes(files), sizes)
        self._begin()

    def _begin(self) -> None:
        files = len(self._small)
        self._counts = np.zeros((files, len(COUNTS)), dtype=np.int64)
        self._order = np.zeros((2 * files, ORDER_STATE), dtype=np.int64)
        self.unique = UniqueBytes(self.line)

    def add(self, rows: OperationRows) -> None:
        """Add counted rows of the rank, in start order."""
        traced, data = rows.origin != RECONSTRUCTED, rows.data
        if not traced.all():
            self._add_reconstructed(rows.where(~traced))
        if not data.all():
            other = rows.where(traced & ~data)
            self._add("other_operations", other)
            self._add("metadata_ns", other, other.duration_ns)
        rows = rows.where(traced & data)
        written = rows.op == WRITE
        count_accesses(
            self._counts, self._order, written, rows.file_id, rows.offset, rows.length, rows.duration_ns, self._small
        )
        self.unique.add(self.line.ranges(rows.where(~written)))

    def _add_reconstructed(self, rows: OperationRows) -> None:
        data = rows.data
        metadata = rows.where(~data)
        self._add("reconstructed_operations", rows)
        self._add("reconstructed_metadata_ns", metadata, metadata.duration_ns)
        moved = rows.where(data)
        self._add("reconstructed_bytes", moved, moved.length)

    def _add(self, name: str, rows: OperationRows, amounts: np.ndarray | None = None) -> None:
        ones = np.ones(len(rows), dtype=np.int64)
        add_at(self._counts[:, COUNTS.index(name)], rows.file_id, ones if amounts is None else amounts)

    def merge(self, later: RankAccesses) -> None:
        """Add the next stretch of the same rank."""
        self._counts += later._counts
        continue_order(self._counts, self._order, later._order)
        self.unique.merge(later.unique)

    def finish(self) -> FileCounts:
        """The counts of the rank; the next row belongs to another rank."""
        used = np.flatnonzero(self._counts.any(axis=1))
        unique = self.unique.per_file()[used]
        counts = {name: self._counts[used, place] for place, name in enumerate(COUNTS)}
        counts["unique_bytes_read"] = unique
        counts["reread_bytes"] = np.maximum(counts["bytes_read"] - unique, 0)
        error_bytes = self.unique.error_bytes
        self._begin()
        return FileCounts(file_id=used, counts=counts, error_bytes=error_bytes)


class RankFiles:
    """The table of RANK_FILES_SCHEMA, by rank and file_id. It keeps no rows.

    Each use is a pass over the op stream, so the capture must still exist. `num_rows`: number of rows."""

    schema = RANK_FILES_SCHEMA

    def __init__(self, capture: Capture, layers: FileLayers, num_rows: int) -> None:
        self._capture = capture
        self._layers = layers
        self.num_rows = num_rows

    def batches(self, most_rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
        """All rows, at most `most_rows` at a time. Memory: as of `RankAccesses`, and a batch.

        Raises: CaptureError when a part is damaged.
        """
        texts = FileTexts(self._capture.files)
        for rank, found in self._ranks():
            for begin in range(0, len(found.file_id), most_rows):
                yield _batch(rank, found, slice(begin, begin + most_rows), texts)

    def table(self) -> pa.Table:
        """All rows at once; about 250 bytes of memory each, twice that while they are joined.

        Raises: CaptureError when a part is damaged.
        """
        return pa.Table.from_batches(self.batches(), schema=RANK_FILES_SCHEMA).combine_chunks()

    def largest(self, count: int) -> pa.Table:
        """The `count` rows with the most traced bytes, largest first; equal ones in the order of the table.

        Raises: CaptureError when a part is damaged.
        """
        texts = FileTexts(self._capture.files)
        kept, moved = RANK_FILES_SCHEMA.empty_table(), np.zeros(0, dtype=np.int64)
        for rank, found in self._ranks():
            more = found.moved_bytes
            place = np.argsort(-more, kind="stable")[:count]
            if len(moved) == count:
                place = place[more[place] > moved[-1]] if count else place
            if not len(place):
                continue
            kept = pa.concat_tables([kept, pa.Table.from_batches([_batch(rank, found, place, texts)])])
            moved = np.concatenate([moved, more[place]])
            order = np.argsort(-moved, kind="stable")[:count]
            kept, moved = kept.take(pa.array(order)), moved[order]
        return kept.combine_chunks()

    def _ranks(self) -> Iterator[tuple[int, FileCounts]]:
        accesses = RankAccesses(self._capture.files)
        stream = operation_rows(self._capture, without=("lane", "step"))
        for rank, batches in groupby(stream, key=lambda rows: rows.rank):
            for rows in batches:
                accesses.add(at_one_layer(rows, self._layers))
            yield rank, accesses.finish()


class FileTexts:
    """Paths and formats of a capture's files, as columns by file_id."""

    def __init__(self, files: pa.Table) -> None:
        self._paths = files["path"].combine_chunks()
        self._formats = np.array(FORMATS, dtype=object)[codes(files, "format")]

    def columns(self, file_id: np.ndarray) -> dict[str, pa.Array]:
        """`path` and `format` of each."""
        return {"path": self._paths.take(pa.array(file_id)), "format": pa.array(self._formats[file_id], pa.string())}


def _batch(rank: int, found: FileCounts, place: slice | np.ndarray, texts: FileTexts) -> pa.RecordBatch:
    file_id = found.file_id[place]
    counts = {name: column[place] for name, column in found.counts.items()}
    columns = {
        "rank": np.full(len(file_id), rank, dtype=np.int32),
        "file_id": file_id.astype(np.int32),
        **texts.columns(file_id),
        **counts,
        "pattern": pattern_names(counts),
    }
    return pa.record_batch([pa.array(columns[name]) for name in RANK_FILES_SCHEMA.names], schema=RANK_FILES_SCHEMA)


def pattern_names(counts: dict[str, np.ndarray]) -> pa.Array:
    """The kind of most accesses of each row; the first access of a file has no kind."""
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
