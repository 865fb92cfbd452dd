"""The numbered files of a generated run: data sets, index files that readers load, and checkpoints, as columns."""

from __future__ import annotations

import math
import posixpath
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from dxt_replay.traces.files import record_id
from dxt_replay.traces.schema import FILES_SCHEMA, FORMATS, HDF5_SCHEMA, table_from_columns
from dxt_replay.workloads.description import Workload
from dxt_replay.workloads.files import FileSet, Hdf5Layout, absolute_folder, data_set_files, hdf5_layout
from dxt_replay.workloads.generate.checkpoints import (
    STATE_NAME,
    TF_STATE_BYTES,
    FileOperations,
    loading,
    saving,
    shards_of_rank,
)
from dxt_replay.workloads.generate.plan import RunPlan
from dxt_replay.workloads.generate.requests import FILE


class RunFiles:
    """All files of a run: those of training by number, those of the evaluation, behind each set the index files that
    the run reads, and the files of each checkpoint by rank.

    data: FILE rows of the training set and of the evaluation's, in reading order. sides: int32 (kinds, files), the
    file_id of the index files beside them. layouts: of each HDF5 data file, else empty; few distinct ones.
    Raises: UsageError where the ranks do not suffice for the model.
    """

    def __init__(self, workload: Workload, plan: RunPlan, ranks: int, block_bytes: int) -> None:
        self._workload, self._plan, self._ranks, self._block_bytes = workload, plan, ranks, block_bytes
        self._sets: tuple[FileSet, ...] = data_set_files(workload) if workload.workflow.train else ()
        self.layouts: tuple[Hdf5Layout, ...] = ()
        self.data, self.sides, begin = [], [], 0
        for each in self._sets:
            count, kinds = len(each), len(each.sides)
            files = np.zeros(count, dtype=FILE)
            files["file_id"], files["size"] = begin + np.arange(count), each.sizes
            files["sample_bytes"] = each.sample_bytes
            if workload.dataset.format == "hdf5":
                layouts = _layouts(workload, each)
                files["sample_bytes"] = [layout.sample_bytes for layout in layouts]
                files["row_chunks"] = [layout.row_chunks for layout in layouts]
                self.layouts += layouts
            self.data.append(files)
            self.sides.append(begin + np.arange(count, count * (1 + kinds), dtype=np.int32).reshape(kinds, count))
            begin += count * (1 + kinds)
        shards = [len(shards_of_rank(workload.model, ranks, rank)) for rank in range(ranks)] if plan.checkpoints else []
        # All ranks write one more file of each checkpoint of TensorFlow, which comes last.
        self._shares_state = workload.framework == "tensorflow" and any(shards)
        self._first_saved, of_shard = begin, 2 if self._shares_state else 1
        self._saved_before = np.cumsum([0, *(of_shard * each for each in shards)]).tolist()
        self._saved_files = self._saved_before[-1] + self._shares_state
        self.count = begin + len(plan.checkpoints) * self._saved_files

    def checkpoint_operations(self, rank: int, *, loads: bool) -> tuple[FileOperations, ...]:
        """The operations of a rank in any checkpoint, file by file."""
        shards = shards_of_rank(self._workload.model, self._ranks, rank)
        make = loading if loads else saving
        return tuple(each for shard in shards for each in make(self._workload, shard, self._block_bytes))

    def saved_ids(self, rank: int, number: int, operations: Sequence[FileOperations]) -> list[int]:
        """file_id of the files that these operations of a rank use, in the checkpoint `number`."""
        begin = self._first_saved + number * self._saved_files
        written = [each.name for each in self.checkpoint_operations(rank, loads=False) if each.name != STATE_NAME]
        own = {name: begin + self._saved_before[rank] + place for place, name in enumerate(written)}
        own[STATE_NAME] = begin + self._saved_files - 1
        return [own[each.name] for each in operations]

    def table(self) -> pa.Table:
        """The files as `FILES_SCHEMA`."""
        names: list[str] = []
        sizes, kinds = [np.empty(0, dtype=np.int64)], list[str]()
        own = self._workload.dataset.format
        data = own if own in ("tfrecord", "hdf5", "npz", "csv") else "other"
        for files, sides in zip(self._sets, self.sides, strict=True):
            numbers = range(len(files))
            names += [files.path(number) for number in numbers]
            names += [files.path(number) + suffix for suffix in files.sides for number in numbers]
            sizes += [files.sizes, np.full(sides.size, files.side_bytes)]
            kinds += [data] * len(files) + ["other"] * sides.size
        if self._plan.checkpoints:
            written = [
                (each.name, each.size)
                for rank in range(self._ranks)
                for each in self.checkpoint_operations(rank, loads=False)
                if each.name != STATE_NAME
            ]
            written += [(STATE_NAME, TF_STATE_BYTES)] * self._shares_state
            folder = absolute_folder(self._workload, self._workload.checkpoint.checkpoint_folder)
            for epoch, step in self._plan.checkpoints:
                names += [posixpath.join(folder, f"global_epoch{epoch}_step{step}", name) for name, _ in written]
                sizes.append(np.array([size for _, size in written], dtype=np.int64))
                kinds += ["checkpoint"] * len(written)
        columns = {
            "file_id": np.arange(len(names), dtype=np.int32),
            "record_id": np.array([record_id(name) for name in names], dtype=np.uint64),
            "path": names,
            "size": np.concatenate(sizes),
            "format": np.array([FORMATS.index(kind) for kind in kinds], dtype=np.int8),
            "mount": [""] * len(names),
            "fs_type": [""] * len(names),
        }
        return table_from_columns(columns, FILES_SCHEMA) if names else FILES_SCHEMA.empty_table()

    def hdf5_table(self) -> pa.Table:
        """The HDF5 datasets as `HDF5_SCHEMA`; no rows for other formats."""
        rows = []
        for file_id, layout in enumerate(self.layouts):
            for number, name in enumerate(layout.names):
                offsets = layout.chunk_offsets(number).tolist()
                row = {"file_id": file_id, "dataset": name, "type_size": layout.type_size, "shape": list(layout.shape)}
                row |= {"points": math.prod(layout.shape), "chunk_shape": list(layout.chunk_shape)}
                row |= {"chunk_index": list(range(len(offsets))), "chunk_offset": offsets}
                row |= {"chunk_size": [layout.chunk_bytes] * len(offsets), "chunk_mask": [0] * len(offsets)}
                rows.append({**row, "filters": list(layout.filters)})
        return pa.Table.from_pylist(rows, schema=HDF5_SCHEMA)


def _layouts(workload: Workload, files: FileSet) -> tuple[Hdf5Layout, ...]:
    shapes = [tuple(row) for row in files.dims.tolist()]
    known = {dims: hdf5_layout(workload.dataset, dims) for dims in dict.fromkeys(shapes)}
    return tuple(known[dims] for dims in shapes)
