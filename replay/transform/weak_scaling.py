"""Adds ranks that do as much as before: copies of the recorded ranks, with their own private files. Exact."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dxt_replay.replay.transform.new_spans import copied_spans
from dxt_replay.replay.transform.rank_state import TRANSFORMED
from dxt_replay.traces.schema import (
    FILES_SCHEMA,
    HDF5_SCHEMA,
    LANES_SCHEMA,
    ORIGINS,
    RECONSTRUCTED,
    SPANS_SCHEMA,
    codes,
    dictionary_array,
)
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.store.writer import lanes_with_facts


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Copies:
    """The source rank of each copy, and the ids of its files.

    source_of: new rank -> the rank that it copies; the first ranks copy themselves.
    private: source rank -> ids of the files that only it uses, ascending.
    first_id: copied rank (not the first ones) -> id of the copy of its source's first private file; the others follow.
    files: number of files including the copies.
    """

    source_of: dict[int, int]
    private: dict[int, np.ndarray]
    first_id: dict[int, int]
    files: int

    @classmethod
    def of(cls, capture: Capture, ranks: int) -> Copies:
        """The copies that make `ranks` ranks, numbered from 0. Reads the counts of usage."""
        sources = capture.ranks
        users = np.zeros(capture.files.num_rows, dtype=np.int64)
        used = {}
        for rank in sources:
            usage = capture.usage(rank)
            other = usage["other_file_id"].to_numpy()
            used[rank] = np.unique(np.concatenate((usage["file_id"].to_numpy(), other[other >= 0])))
            users[used[rank]] += 1
        private = {rank: files[users[files] == 1] for rank, files in used.items()}
        source_of = {rank: sources[rank % len(sources)] for rank in range(ranks)}
        first_id, files = {}, capture.files.num_rows
        for rank in range(len(sources), ranks):
            first_id[rank] = files
            files += len(private[source_of[rank]])
        return cls(source_of=source_of, private=private, first_id=first_id, files=files)

    def operations(self, rank: int, table: pa.Table) -> pa.Table:
        """Operations of the source, rewritten for the rank."""
        columns = {name: table[name] for name in table.column_names}
        columns["rank"] = pa.array(np.full(table.num_rows, rank, dtype=np.int32))
        if rank in self.first_id:
            file_id = table["file_id"].to_numpy()
            new_name = table["other_file_id"]
            columns["file_id"] = pa.array(self._own(rank, file_id).astype(np.int32))
            if new_name.null_count < table.num_rows:
                own = self._own(rank, new_name.fill_null(0).to_numpy()).astype(np.int32)
                columns["other_file_id"] = pa.array(own, mask=new_name.is_null().to_numpy())
            # Operations rebuilt from counters keep this origin: a replay does not count their failures.
            origin = codes(table, "origin")
            origin = np.where(origin == RECONSTRUCTED, origin, np.maximum(origin, TRANSFORMED)).astype(np.int8)
            columns["origin"] = dictionary_array(origin, ORIGINS)
        return pa.table(columns, schema=table.schema)

    def _own(self, rank: int, file_id: np.ndarray) -> np.ndarray:
        """The ids of the rank's own copies of files, int64; shared files keep their ids."""
        private = self.private[self.source_of[rank]]
        place = np.searchsorted(private, file_id)
        mine = np.zeros(len(file_id), dtype=bool)
        if len(private):
            mine = private[np.minimum(place, len(private) - 1)] == file_id
        return np.where(mine, self.first_id[rank] + place, file_id)

    def files_table(self, files: pa.Table) -> pa.Table:
        """The files, followed by the copies."""
        tables = [files]
        for rank, first in self.first_id.items():
            mine = files.take(pa.array(self.private[self.source_of[rank]]))
            columns = {name: mine[name] for name in FILES_SCHEMA.names}
            columns["file_id"] = pa.array(np.arange(first, first + mine.num_rows, dtype=np.int32))
            columns["path"] = pa.array([copy_name(path, rank) for path in mine["path"].to_pylist()], type=pa.string())
            columns["path_bytes"] = pa.array(
                [None if path is None else path + b".rank%d" % rank for path in mine["path_bytes"].to_pylist()],
                type=pa.binary(),
            )
            record = mine["record_id"].to_numpy() ^ np.uint64((rank * 0x9E3779B97F4A7C15) % (1 << 64))
            columns["record_id"] = pa.array(record, type=pa.uint64())
            tables.append(pa.table(columns, schema=FILES_SCHEMA))
        return pa.concat_tables(tables)

    def lanes_table(self, lanes: pa.Table) -> pa.Table:
        """The lanes of all ranks; those of copies have the roles of their sources alone."""
        tables = [LANES_SCHEMA.empty_table()]
        for rank, source in self.source_of.items():
            mine = lanes.filter(pc.equal(lanes["rank"], source))
            mine = lanes_with_facts(mine, ["role"]) if rank in self.first_id else mine
            own = pa.array(np.full(mine.num_rows, rank, dtype=np.int32))
            tables.append(mine.set_column(0, LANES_SCHEMA.field("rank"), own))
        return pa.concat_tables(tables)

    def hdf5_table(self, datasets: pa.Table) -> pa.Table:
        """The HDF5 datasets, with those of copied files."""
        tables = [datasets]
        for rank in self.first_id if datasets.num_rows else ():
            private = self.private[self.source_of[rank]]
            mine = datasets.filter(pc.is_in(datasets["file_id"], pa.array(private, type=pa.int32())))
            own = self._own(rank, mine["file_id"].to_numpy()).astype(np.int32)
            tables.append(mine.set_column(0, HDF5_SCHEMA.field("file_id"), pa.array(own)))
        return pa.concat_tables(tables)

    def spans(self, rank: int, spans: pa.Table) -> pa.Table:
        """Spans of the source, rewritten for the rank (`copied_spans`)."""
        if rank in self.first_id:
            spans = copied_spans(spans)
        ranks = pa.array(np.full(spans.num_rows, rank, dtype=np.int32))
        return spans.set_column(0, SPANS_SCHEMA.field("rank"), ranks)


def copy_name(path: str, rank: int) -> str:
    """The path of a rank's copy of a file: `/data/a.h5` -> `/data/a.rank7.h5`."""
    folder, slash, name = path.rpartition("/")
    stem, dot, suffix = name.rpartition(".")
    return f"{folder}{slash}{stem}.rank{rank}.{suffix}" if dot and stem else f"{path}.rank{rank}"
