"""Writes `index.parquet`: each writer of parts notes its own stretches, and the process that completes the capture
joins them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dxt_replay.traces.schema import FILE_METADATA, INDEX_SCHEMA
from dxt_replay.traces.store.digests import DOCUMENT, file_digest
from dxt_replay.traces.store.index import INDEX_NAME, OPS_FOLDER, stretches
from dxt_replay.traces.store.usage import UsageCounter

_NOTED = pa.schema([field for field in INDEX_SCHEMA if field.name not in ("part_bytes", "digest")])
"""Fields of a stretch that are known before its part is closed."""

_USAGE = _NOTED.field("usage").type
NOTES = "index-of-*.parquet"
"""Names of the files in `ops/` in which writers of parts note their stretches, until the capture is complete."""

_TOGETHER = 1 << 16
"""Stretches and counts that are kept until they are written; a reader of one rank's counts reads as many."""


class IndexWriter:
    """Notes the stretches of the parts that one writer makes, in a file beside them.

    Memory: the counts of the current rank, and 64 Ki stretches and counts. Raises: OSError, ArrowException when the
    disk refuses.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sink: pa.OSFile | None = None
        self._writer: pq.ParquetWriter | None = None
        self._waiting: list[pa.Table] = []
        self._size = 0
        self._counter = UsageCounter()
        self._digests: dict[str, str] = {}
        self.file: Path | None = None

    def add(self, part: str, row_group: int, rows: pa.Table, *, whole: bool) -> None:
        """Note a row group of a part. `whole`: no more rows of its last rank follow.

        A row group with several ranks is whole: none of them continues from an earlier row group.
        """
        rank, start, end = (rows[name].to_numpy() for name in ("rank", "start_ns", "end_ns"))
        columns = stretches(rank, start, end, np.array([len(rank)]), np.array([row_group]), part)
        ranks = columns["rank"].astype(np.int32)
        self._counter.add(rows)
        usage = pa.nulls(len(ranks), _USAGE)
        if whole:
            usage = _lists(self._counter.table(), ranks)
            self._counter = UsageCounter()
        noted = {name: pa.array(columns[name]) for name in columns if name != "begin"}
        noted |= {"part": pa.repeat(part, len(ranks)), "usage": usage}
        self._waiting.append(pa.table([noted[name].cast(_NOTED.field(name).type) for name in _NOTED.names], _NOTED))
        self._size += len(ranks) + len(usage.flatten())
        if self._size >= _TOGETHER:
            self._flush()

    def part_closed(self, part: str, digest: str) -> None:
        """Note the SHA-256 of a complete part."""
        self._digests[part] = digest

    def close(self) -> None:
        """Write the pending notes, and the footer."""
        try:
            self._flush()
            if self._writer is not None:
                self._writer.add_key_value_metadata(self._digests)
                self._writer.close()
        finally:
            if self._sink is not None:
                self._sink.close()  # pyarrow leaves open what it cannot write

    def _flush(self) -> None:
        if not self._waiting:
            return
        noted = pa.concat_tables(self._waiting)
        if self._writer is None:
            self.file = self._folder / NOTES.replace("*.parquet", noted["part"][0].as_py())
            self._sink = pa.OSFile(os.fspath(self.file), "wb")
            self._writer = pq.ParquetWriter(self._sink, _NOTED, compression="zstd", write_page_checksum=True)
        self._writer.write_table(noted)
        self._waiting, self._size = [], 0


def write_index(directory: Path, tables: Mapping[str, str]) -> str:
    """Join the notes of a capture's writers into `index.parquet`; without any notes an existing index stays.

    tables: digests of the other tables; the capture's id is computed from these and from those of the parts. Returns:
    the SHA-256 of the index. Raises: OSError, ArrowException when the disk refuses.
    """
    folder, index = directory / OPS_FOLDER, directory / INDEX_NAME
    noted = sorted(folder.glob(NOTES))
    if not noted and index.exists():
        return file_digest(index)
    every = {name: digest for name, digest in tables.items() if name not in (INDEX_NAME, DOCUMENT)}
    with pq.ParquetWriter(index, INDEX_SCHEMA, compression="zstd", write_page_checksum=True) as writer:
        for path in noted:
            with pq.ParquetFile(path) as file:
                told = {name.decode(): value.decode() for name, value in file.metadata.metadata.items()}
                digests = {name: value for name, value in told.items() if name.endswith(".parquet")}
                every |= digests
                for group in range(file.num_row_groups):
                    writer.write_table(_closed(file.read_row_group(group), digests, folder))
        identity = hashlib.sha256(repr(sorted(every.items())).encode()).hexdigest()
        writer.add_key_value_metadata({**FILE_METADATA, "dxt_replay.capture_id": identity})
    for path in noted:
        path.unlink()
    return file_digest(index)


def _closed(noted: pa.Table, digests: dict[str, str], folder: Path) -> pa.Table:
    """The rows of the index, completed for closed parts."""
    parts = noted["part"].to_pylist()
    size = {part: (folder / part).stat().st_size for part in set(parts)}
    found = {name: noted[name] for name in _NOTED.names}
    found["part_bytes"] = pa.array([size[part] for part in parts], pa.int64())
    found["digest"] = pa.array([digests[part] for part in parts], pa.string())
    return pa.table([found[name] for name in INDEX_SCHEMA.names], INDEX_SCHEMA)


def _lists(usage: pa.Table, ranks: np.ndarray) -> pa.ListArray:
    """Counts sorted by rank as a list array, one list per rank."""
    ends = np.searchsorted(usage["rank"].to_numpy(), ranks, side="right")
    offsets = pa.array(np.concatenate(([0], ends)), pa.int32())
    values = usage.drop_columns("rank").combine_chunks().to_struct_array()
    values = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    return pa.ListArray.from_arrays(offsets, values.cast(_USAGE.value_type), type=_USAGE)
