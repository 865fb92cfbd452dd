"""The numbered files of a generated run: data sets, index files and checkpoints, as columns."""

from __future__ import annotations

import dataclasses
import math
import posixpath
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dxt_replay.traces.record_id import record_id
from dxt_replay.traces.schema import FILES_SCHEMA, FORMATS, HDF5_SCHEMA, table_from_columns
from dxt_replay.workloads.data_set_files import FileSet, absolute_folder, data_set_files
from dxt_replay.workloads.description import Workload
from dxt_replay.workloads.generate.checkpoint_files import (
    STATE_NAME,
    TF_STATE_BYTES,
    FileOperations,
    loading,
    saving,
    shards_of_rank,
)
from dxt_replay.workloads.generate.read_ahead import DataFiles
from dxt_replay.workloads.generate.request_templates import Hdf5Reads
from dxt_replay.workloads.generate.run_plan import RunPlan
from dxt_replay.workloads.hdf5_data_set import Hdf5Layout, hdf5_layout

_FORMAT_NAMES = {"tfrecord": "tfrecord", "hdf5": "hdf5", "npz": "npz", "csv": "csv"}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunFiles:
    """All files of a run: those of training by number, those of the evaluation, their index files where the run reads
    them, and the files of each checkpoint by rank.

    train, evaluation: how readers see the data files. hdf5: how HDF5 files are read; None for other formats.
    layouts: of each HDF5 data file, else empty; few distinct ones.
    first_saved: file_id of the first file of a checkpoint. saved_of_rank: int64 (ranks + 1,), files of one checkpoint
    before those of each rank. shares_state: whether all ranks write one more file of each checkpoint, TensorFlow's
    `checkpoint`, which comes last.
    """

    workload: Workload
    plan: RunPlan
    block_bytes: int
    train_set: FileSet
    evaluation_set: FileSet
    train: DataFiles
    evaluation: DataFiles
    hdf5: Hdf5Reads | None
    layouts: tuple[Hdf5Layout, ...]
    first_saved: int
    saved_of_rank: np.ndarray
    shares_state: bool

    @property
    def count(self) -> int:
        """Files of the run."""
        return self.first_saved + len(self.plan.checkpoints) * self._saved_files

    @property
    def _saved_files(self) -> int:
        """Files of one checkpoint."""
        return int(self.saved_of_rank[-1]) + self.shares_state

    def checkpoint_operations(self, rank: int, *, loads: bool) -> tuple[FileOperations, ...]:
        """The operations of a rank in any checkpoint, file by file."""
        shards = shards_of_rank(self.workload.model, len(self.saved_of_rank) - 1, rank)
        return tuple(
            each for shard in shards for each in (loading if loads else saving)(self.workload, shard, self.block_bytes)
        )

    def saved_ids(self, rank: int, number: int, operations: tuple[FileOperations, ...]) -> list[int]:
        """file_id of the files that these operations of a rank use, in the checkpoint `number`."""
        written = [each.name for each in self.checkpoint_operations(rank, loads=False) if each.name != STATE_NAME]
        begin = self.first_saved + number * self._saved_files
        own = {name: begin + int(self.saved_of_rank[rank]) + place for place, name in enumerate(written)}
        own[STATE_NAME] = begin + self._saved_files - 1
        return [own[each.name] for each in operations]

    def _saved_names(self) -> tuple[list[str], np.ndarray]:
        """Paths and sizes of all files of checkpoints."""
        folder = absolute_folder(self.workload, self.workload.checkpoint.checkpoint_folder)
        ranks = range(len(self.saved_of_rank) - 1)
        written = [
            (each.name, each.size)
            for rank in ranks
            for each in self.checkpoint_operations(rank, loads=False)
            if each.name != STATE_NAME
        ]
        written += [(STATE_NAME, TF_STATE_BYTES)] * self.shares_state
        folders = [posixpath.join(folder, f"global_epoch{epoch}_step{step}") for epoch, step in self.plan.checkpoints]
        names = [posixpath.join(folder, name) for folder in folders for name, _ in written]
        return names, np.tile(np.array([size for _, size in written], dtype=np.int64), len(folders))

    def table(self) -> pa.Table:
        """The files as `FILES_SCHEMA`."""
        names: list[str] = []
        sizes, formats = [], []
        data = FORMATS.index(_FORMAT_NAMES.get(self.workload.dataset.format, "other"))
        for files, seen in ((self.train_set, self.train), (self.evaluation_set, self.evaluation)):
            names += [files.path(number) for number in range(len(files))]
            sizes.append(files.sizes)
            formats.append(np.full(len(files), data, dtype=np.int8))
            for side in files.sides[: len(seen.side_ids)]:
                names += [files.side_path(side, number) for number in range(len(files))]
                sizes.append(side.sizes)
                formats.append(np.full(len(files), FORMATS.index("other"), dtype=np.int8))
        if self.plan.checkpoints:
            saved, saved_sizes = self._saved_names()
            names += saved
            sizes.append(saved_sizes)
            formats.append(np.full(len(saved), FORMATS.index("checkpoint"), dtype=np.int8))
        columns = {
            "file_id": np.arange(len(names), dtype=np.int32),
            "record_id": np.array([record_id(name) for name in names], dtype=np.uint64),
            "path": names,
            "size": np.concatenate(sizes),
            "format": np.concatenate(formats),
            "mount": [""] * len(names),
            "fs_type": [""] * len(names),
        }
        return table_from_columns(columns, FILES_SCHEMA) if names else FILES_SCHEMA.empty_table()

    def hdf5_table(self) -> pa.Table:
        """The HDF5 datasets as `HDF5_SCHEMA`; no rows for other formats."""
        rows = [
            {
                "file_id": file_id,
                "dataset": name,
                "type_size": layout.type_size,
                "points": math.prod(layout.shape),
                "shape": list(layout.shape),
                "chunk_shape": list(layout.chunk_shape),
                "filters": list(layout.filters),
                **_chunk_lists(layout, number),
            }
            for file_id, layout in enumerate(self.layouts)
            for number, name in enumerate(layout.names)
        ]
        return pa.Table.from_pylist(rows, schema=HDF5_SCHEMA)


def _chunk_lists(layout: Hdf5Layout, dataset: int) -> dict[str, list[int]]:
    number, offset, size = layout.chunk_columns(dataset)
    names = ("chunk_index", "chunk_offset", "chunk_size", "chunk_mask")
    columns = (number, offset, size, np.zeros_like(number))
    return {name: column.tolist() for name, column in zip(names, columns, strict=True)}


def run_files(workload: Workload, plan: RunPlan, ranks: int, block_bytes: int) -> RunFiles:
    """The files of a run. Raises: UsageError where the ranks do not suffice for the model."""
    files = data_set_files(workload)
    trains = workload.workflow.train
    sets = [files.train, files.evaluation] if trains else [_none_of(files.train), _none_of(files.evaluation)]
    layouts = _layouts(workload, sets) if workload.dataset.format == "hdf5" else ()
    begin, seen = 0, []
    for each in sets:
        seen.append(_data_files(workload, each, begin, layouts[begin : begin + len(each)]))
        begin += len(each) * (1 + len(seen[-1].side_ids))
    shards = [len(shards_of_rank(workload.model, ranks, rank)) for rank in range(ranks)] if plan.checkpoints else []
    shares_state = workload.framework == "tensorflow" and any(shards)
    each_shard = 2 if shares_state else 1
    return RunFiles(
        workload=workload,
        plan=plan,
        block_bytes=block_bytes,
        train_set=sets[0],
        evaluation_set=sets[1],
        train=seen[0],
        evaluation=seen[1],
        hdf5=_hdf5_reads(workload, layouts[0]) if layouts else None,
        layouts=layouts,
        first_saved=begin,
        saved_of_rank=np.concatenate(([0], np.cumsum(np.array(shards or [0] * ranks, dtype=np.int64) * each_shard))),
        shares_state=shares_state,
    )


def _none_of(files: FileSet) -> FileSet:
    nothing = np.empty(0, dtype=np.int64)
    return dataclasses.replace(files, dims=files.dims[:0], sample_bytes=nothing, sizes=nothing, sides=(), exact=True)


def _layouts(workload: Workload, sets: list[FileSet]) -> tuple[Hdf5Layout, ...]:
    known: dict[tuple[int, ...], Hdf5Layout] = {}
    found = []
    for dims in (tuple(row) for files in sets for row in files.dims.tolist()):
        if dims not in known:
            known[dims] = hdf5_layout(workload.dataset, dims, workload.reading)
        found.append(known[dims])
    return tuple(found)


def _data_files(workload: Workload, files: FileSet, begin: int, layouts: tuple[Hdf5Layout, ...]) -> DataFiles:
    count = len(files)
    sides = len(files.sides) if workload.dataset.format in ("indexed_binary", "mmap_indexed_binary") else 0
    ids = begin + np.arange((1 + sides) * count, dtype=np.int32).reshape(1 + sides, count)
    sample_bytes = files.sample_bytes
    row_chunks = np.zeros(count, dtype=np.int64)
    if layouts:
        sample_bytes = np.array([layout.sample_bytes for layout in layouts], dtype=np.int64)
        row_chunks = np.array([layout.row_chunks for layout in layouts], dtype=np.int64)
    return DataFiles(
        file_id=ids[0], size=files.sizes, sample_bytes=sample_bytes, row_chunks=row_chunks, side_ids=ids[1:]
    )


def _hdf5_reads(workload: Workload, layout: Hdf5Layout) -> Hdf5Reads:
    chunked = bool(layout.chunk_shape)
    _, _, sizes = layout.chunk_columns(0)
    return Hdf5Reads(
        older=workload.reading == "v2.0",
        data_offset=layout.data_offset,
        datasets=len(layout.names),
        chunk_rows=layout.chunk_shape[0] if chunked else 0,
        chunk_bytes=int(sizes[0]) if chunked else 0,
    )
