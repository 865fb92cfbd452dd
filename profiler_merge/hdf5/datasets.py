"""The HDF5 datasets of a capture, from Darshan's H5D records, and from the files themselves if they can be opened."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from dxt_replay.profiler_merge.darshan.counters import CounterTable, read_counters
from dxt_replay.profiler_merge.darshan.log import DarshanLog
from dxt_replay.profiler_merge.hdf5.inspection import InspectedDataset, inspect_file
from dxt_replay.traces.errors import LogError
from dxt_replay.traces.files import exact_paths
from dxt_replay.traces.schema import FORMATS, HDF5_SCHEMA, codes

_DIMENSIONS = 5
"""Most dimensions of a chunk whose extents an H5D record holds, the fastest first."""

MapRule = tuple[bytes, bytes]
"""(recorded prefix, directory): recorded paths below the first are read below the second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hdf5Facts:
    """The datasets of a job.

    table: rows of `HDF5_SCHEMA`.
    warnings: the files that could not be opened.
    """

    table: pa.Table
    warnings: tuple[str, ...]


def hdf5_facts(
    logs: Sequence[DarshanLog], files: pa.Table, *, inspect: bool, maps: Iterable[MapRule] = ()
) -> Hdf5Facts:
    """The datasets of the files of a job. `files`: `FILES_SCHEMA`, whose rows with format hdf5 are opened if `inspect`.

    Raises: LogError for damaged records; MissingDependencyError when a file is to be opened without h5py.
    """
    rows: list[dict[str, Any]] = []
    inspected: set[int] = set()
    warnings: list[str] = []
    is_hdf5 = codes(files, "format") == FORMATS.index("hdf5")
    for file in is_hdf5.nonzero()[0].tolist() if inspect else []:
        path = exact_paths(files.slice(file, 1))[0]
        try:
            found = inspect_file(mapped_path(path, maps))
        except LogError as error:
            warnings.append(f"--inspect: {error}; its chunks are inferred from the trace")
            continue
        rows += [_inspected_row(file, dataset) for dataset in found]
        inspected.add(file)
    numbers = {record: file for file, record in enumerate(files["record_id"].to_pylist())}
    recorded: dict[tuple[int, str], dict[str, Any]] = {}
    for log in logs:
        _add_records(log, numbers, recorded)
    rows += [row for (file, _), row in recorded.items() if file not in inspected]
    rows.sort(key=lambda row: row["file_id"])
    return Hdf5Facts(table=pa.Table.from_pylist(rows, schema=HDF5_SCHEMA), warnings=tuple(warnings))


def mapped_path(path: bytes, maps: Iterable[MapRule]) -> bytes:
    """The present path of a recorded one: below the directory of the longest matching prefix."""
    below = [(prefix, folder) for prefix, folder in maps if path.startswith(prefix.rstrip(b"/") + b"/")]
    if not below:
        return path
    prefix, folder = max(below, key=lambda rule: len(rule[0]))
    return os.path.join(folder, path[len(prefix.rstrip(b"/")) + 1 :])


def _inspected_row(file: int, dataset: InspectedDataset) -> dict[str, Any]:
    points = 1
    for extent in dataset.shape:
        points *= extent
    return {
        "file_id": file,
        "dataset": dataset.name,
        "type_size": dataset.type_size,
        "points": points,
        "shape": list(dataset.shape),
        "chunk_shape": list(dataset.chunk_shape),
        "filters": list(dataset.filters),
        "chunk_index": dataset.index,
        "chunk_offset": dataset.offset,
        "chunk_size": dataset.size,
        "chunk_mask": dataset.mask,
    }


def _add_records(log: DarshanLog, numbers: Mapping[int, int], rows: dict[tuple[int, str], dict[str, Any]]) -> None:
    """Note the H5D records of one log. One record per dataset suffices: all ranks saw the same shape."""
    records = read_counters(log, "H5D")
    if records is None:
        return
    by_name = {path: record for record, path in log.names.items()}
    for number, record in enumerate(records.record_ids.tolist()):
        file_path, _, dataset = log.names.get(record, b"").rpartition(b":")
        file_record = int(records.file_ids[number]) if records.file_ids is not None else 0
        # version 1 has no file, but the name of the dataset contains it
        file = numbers.get(file_record or by_name.get(file_path, 0))
        row = _recorded_row(records, number)
        if file is not None and row is not None:
            name = dataset.decode("utf-8", "backslashreplace")
            rows.setdefault((file, name), {"file_id": file, "dataset": name, **row})


def _recorded_row(records: CounterTable, number: int) -> dict[str, Any] | None:
    """Type, points and chunk shape; None for a dataset that was opened but not used."""

    def value(counter: str) -> int:
        return int(records.counters[f"H5D_{counter}"][number])

    rank, size, points = value("DATASPACE_NDIMS"), value("DATATYPE_SIZE"), value("DATASPACE_NPOINTS")
    if size <= 0 or points <= 0:
        return None
    extents = [value(f"CHUNK_SIZE_D{d}") for d in range(1, min(rank, _DIMENSIONS) + 1)]
    chunk_shape: list[int] | None = [] if not any(extent > 0 for extent in extents) else extents[::-1]
    if rank > _DIMENSIONS and chunk_shape:
        chunk_shape = None  # the slower extents are not recorded
    if chunk_shape and min(chunk_shape) <= 0:
        chunk_shape = None
    return {"type_size": size, "points": points, "chunk_shape": chunk_shape}
