"""Collects which files changed requests use, and how large these files must be, rank by rank. Pure."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dxt_replay.replay.transform.rank_work import MODELLED, TRANSFORMED, RankWork
from dxt_replay.traces.schema import COUNTERS, FILES_SCHEMA, OPS, READ


class FileSizes:
    """Takes the operations of the ranks. files: number of files."""

    def __init__(self, files: int) -> None:
        self._touched, self._ends = np.zeros(files, dtype=bool), np.zeros(files, dtype=np.int64)

    def add(self, work: RankWork) -> None:
        """Count the operations of a rank."""
        self._touched[work.file_id[np.isin(work.origin, (TRANSFORMED, MODELLED))]] = True
        moves = np.isin(work.op, (READ, OPS.index("write")))
        np.maximum.at(self._ends, work.file_id[moves], np.maximum(work.offset, 0)[moves] + work.length[moves])

    def table(self, files: pa.Table) -> pa.Table:
        """The files table. A file with changed requests loses its counters, and gets the size that the requests
        need."""
        touched = pa.array(self._touched)
        columns = {name: files[name] for name in FILES_SCHEMA.names}
        columns["size"] = pa.array(np.where(self._touched, self._ends, files["size"].to_numpy()))
        for name in ("coverage", *COUNTERS):
            nothing = pa.nulls(files.num_rows, FILES_SCHEMA.field(name).type)
            columns[name] = pc.if_else(touched, nothing, files[name])
        return pa.table(columns, schema=FILES_SCHEMA)
