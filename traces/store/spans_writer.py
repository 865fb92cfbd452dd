"""Writing `spans.parquet` rank by rank, for captures with more spans than memory should hold."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dxt_replay.traces.errors import TargetError, exhausted
from dxt_replay.traces.schema import BY_RANK_AND_START, FILE_METADATA, SPANS_SCHEMA


class SpansWriter:
    """Writes the spans of a capture; tables come sorted by (rank, start_ns), each after those before it.

    A context manager. Raises: TargetError when the disk refuses.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / "spans.parquet"
        self._sink: pa.OSFile | None = None
        self._writer: pq.ParquetWriter | None = None
        self.rows = 0

    def write(self, spans: pa.Table) -> None:
        """Append rows of `SPANS_SCHEMA`."""
        try:
            if self._writer is None:
                sorting = pq.SortingColumn.from_ordering(SPANS_SCHEMA, BY_RANK_AND_START)
                options: dict[str, Any] = {"compression": "zstd", "write_page_checksum": True}
                self._sink = pa.OSFile(os.fspath(self._path), "wb")
                self._writer = pq.ParquetWriter(self._sink, SPANS_SCHEMA, sorting_columns=sorting, **options)
                self._writer.add_key_value_metadata(FILE_METADATA)
            self._writer.write_table(spans.cast(SPANS_SCHEMA))
        except (OSError, pa.ArrowException) as error:
            raise self._refusal(error) from error
        self.rows += spans.num_rows

    def _refusal(self, error: Exception) -> TargetError:
        if self._sink is not None:
            self._sink.close()  # pyarrow leaves open what it cannot write
        remedy = exhausted(error) or "free space there, or choose another place"
        return TargetError(f"cannot write {self._path}: {error}; {remedy}")

    def __enter__(self) -> SpansWriter:
        self.write(SPANS_SCHEMA.empty_table())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        writer, self._writer = self._writer, None
        if writer is None:
            return
        try:
            writer.close()
            assert self._sink is not None
            self._sink.close()
        except (OSError, pa.ArrowException) as refused:
            if kind is None:
                raise self._refusal(refused) from refused
