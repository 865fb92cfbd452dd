"""The HDF5 datasets and chunks of a capture, from Darshan's H5D records, and from the files themselves if they can be
opened."""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from dxt_replay.profiler_merge.darshan.counters import CounterTable, read_counters
from dxt_replay.profiler_merge.darshan.log import DarshanLog
from dxt_replay.traces.errors import LogError, MissingDependencyError
from dxt_replay.traces.files import exact_paths
from dxt_replay.traces.schema import FORMATS, HDF5_SCHEMA, codes

_DIMENSIONS = 5
"""Most dimensions of a chunk whose extents an H5D record holds, the fastest first."""

_FILTERS = {1: "gzip", 2: "shuffle", 3: "fletcher32", 4: "szip", 5: "nbit", 6: "scaleoffset", 32000: "lzf"}
"""Filter names by the number registered with The HDF Group; other filters are shown by their number."""

MapRule = tuple[bytes, bytes]
"""(recorded prefix, directory): recorded paths below the first are read below the second."""


def hdf5_facts(
    logs: Sequence[DarshanLog], files: pa.Table, *, inspect: bool, maps: Iterable[MapRule] = ()
) -> tuple[pa.Table, list[str]]:
    """The datasets of the files of a job as `HDF5_SCHEMA`, and warnings about files that could not be opened.

    `files`: `FILES_SCHEMA`, whose rows with format hdf5 are opened if `inspect`.
    Raises: LogError for damaged records; MissingDependencyError when a file is to be opened without h5py.
    """
    rows: list[dict[str, Any]] = []
    inspected: set[int] = set()
    warnings: list[str] = []
    is_hdf5 = codes(files, "format") == FORMATS.index("hdf5")
    for file in is_hdf5.nonzero()[0].tolist() if inspect else []:
        path = exact_paths(files.slice(file, 1))[0]
        try:
            rows += [{"file_id": file, **dataset} for dataset in inspect_file(mapped_path(path, maps))]
        except LogError as error:
            warnings.append(f"--inspect: {error}; its chunks are inferred from the trace")
        else:
            inspected.add(file)
    numbers = {record: file for file, record in enumerate(files["record_id"].to_pylist())}
    recorded: dict[tuple[int, str], dict[str, Any]] = {}
    for log in logs:
        _add_records(log, numbers, recorded)
    rows += [row for (file, _), row in recorded.items() if file not in inspected]
    rows.sort(key=lambda row: row["file_id"])
    return pa.Table.from_pylist(rows, schema=HDF5_SCHEMA), warnings


def mapped_path(path: bytes, maps: Iterable[MapRule]) -> bytes:
    """The present path of a recorded one: below the directory of the longest matching prefix."""
    below = [(prefix, folder) for prefix, folder in maps if path.startswith(prefix.rstrip(b"/") + b"/")]
    if not below:
        return path
    prefix, folder = max(below, key=lambda rule: len(rule[0]))
    return os.path.join(folder, path[len(prefix.rstrip(b"/")) + 1 :])


def _add_records(log: DarshanLog, numbers: Mapping[int, int], rows: dict[tuple[int, str], dict[str, Any]]) -> None:
    """Note the H5D records of one log. One record per dataset suffices: all ranks saw the same shape."""
    records = read_counters(log, "H5D")
    if records is None:
        return
    by_name = {path: record for record, path in log.names.items()}
    for number, record in enumerate(records.record_ids.tolist()):
        file_path, _, dataset = log.names.get(record, b"").rpartition(b":")
        # version 1 has no file, but the name of the dataset contains it
        file = numbers.get(int(records.file_ids[number]) or by_name.get(file_path, 0))
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


def inspect_file(path: bytes) -> list[dict[str, Any]]:
    """All datasets of a file with data in it as rows of `HDF5_SCHEMA`, except those of variable length, external or
    virtual ones. A contiguous dataset has one chunk and an empty `chunk_shape`.

    The file is only read. Raises: LogError when it is not a regular file, cannot be opened or is not HDF5;
    MissingDependencyError without h5py.
    """
    shown = os.fsdecode(path)
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise LogError(f"{shown} is not a regular file")
    except (OSError, ValueError) as error:
        raise LogError(f"{shown}: {getattr(error, 'strerror', None) or error}") from error
    try:
        import h5py
    except ImportError as error:
        raise MissingDependencyError("h5py", "merge --inspect", "pip install 'dxt-replay[hdf5]'") from error
    try:
        with h5py.File(path, "r", locking=False) as file:
            return list(_datasets(h5py, file))
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        raise LogError(f"{shown} cannot be read as HDF5: {error}") from error


def _datasets(h5py: Any, file: Any) -> Iterator[dict[str, Any]]:
    names: list[str] = []
    file.visit(names.append)
    for name in names:
        if file.get(name, getclass=True) is not h5py.Dataset:
            continue
        dataset = file[name].id
        if not _is_inline(dataset):
            continue
        plan = dataset.get_create_plist()
        layout = plan.get_layout()
        if layout not in (h5py.h5d.CHUNKED, h5py.h5d.CONTIGUOUS):
            continue
        chunks = _chunks(dataset, plan.get_chunk()) if layout == h5py.h5d.CHUNKED else _contiguous(dataset)
        filters = [plan.get_filter(number) for number in range(plan.get_nfilters())]
        if len(chunks):
            yield {
                "dataset": "/" + name,
                "type_size": dataset.get_type().get_size(),
                "points": math.prod(dataset.shape),
                "shape": list(dataset.shape),
                "chunk_shape": list(plan.get_chunk()) if layout == h5py.h5d.CHUNKED else [],
                "filters": [_FILTERS.get(each[0], str(each[0])) for each in filters],
                **dict(zip(("chunk_index", "chunk_offset", "chunk_size", "chunk_mask"), chunks.T, strict=True)),
            }


def _is_inline(dataset: Any) -> bool:
    """Whether the points are stored in the file itself instead of as references."""
    try:
        return not dataset.dtype.hasobject
    except TypeError:  # a type that NumPy lacks
        return False


def _contiguous(dataset: Any) -> np.ndarray:
    start = dataset.get_offset()
    rows = [(0, start, dataset.get_storage_size(), 0)] if start else []
    return np.array(rows, dtype=np.int64).reshape(-1, 4)


def _chunks(dataset: Any, chunk_shape: tuple[int, ...]) -> np.ndarray:
    """int64[chunks, 4]: number, address, stored bytes and mask, in the order of the number."""
    grid = [-(-extent // chunk) for extent, chunk in zip(dataset.shape, chunk_shape, strict=True)]
    rows: list[tuple[int, int, int]] = []
    places: list[tuple[int, ...]] = []

    def note(chunk: Any) -> None:
        rows.append((chunk.byte_offset, chunk.size, chunk.filter_mask))
        places.append(chunk.chunk_offset)

    if hasattr(dataset, "chunk_iter"):
        dataset.chunk_iter(note)
    else:
        for number in range(dataset.get_num_chunks()):
            note(dataset.get_chunk_info(number))
    if not rows:
        return np.empty((0, 4), dtype=np.int64)
    scaled = np.array(places, dtype=np.int64) // np.array(chunk_shape)
    index = np.ravel_multi_index(tuple(scaled.T), grid)
    found = np.column_stack((index, np.array(rows, dtype=np.int64)))
    return found[np.argsort(index, kind="stable")]
