"""The chunk index of an HDF5 file that can still be opened when a capture is made."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dxt_replay.traces.errors import LogError, MissingDependencyError

_FILTERS = {1: "gzip", 2: "shuffle", 3: "fletcher32", 4: "szip", 5: "nbit", 6: "scaleoffset", 32000: "lzf"}
"""Filter names by the number registered with The HDF Group; other filters are shown by their number."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class InspectedDataset:
    """A dataset whose data lie in the file.

    chunk_shape: empty for a contiguous dataset, which has one chunk.
    index: int64 (chunks,), number of each chunk in row-major order, ascending.
    offset, size: int64 (chunks,), its address in the file and its stored bytes.
    mask: int64 (chunks,), mask of the filters that it skipped.
    """

    name: str
    type_size: int
    shape: tuple[int, ...]
    chunk_shape: tuple[int, ...]
    filters: tuple[str, ...]
    index: np.ndarray
    offset: np.ndarray
    size: np.ndarray
    mask: np.ndarray


def inspect_file(path: bytes) -> list[InspectedDataset]:
    """All datasets of a file with data in it, except those of variable length, external or virtual ones.

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


def _datasets(h5py: Any, file: Any) -> Iterator[InspectedDataset]:
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
        if len(chunks):
            yield InspectedDataset(
                name="/" + name,
                type_size=dataset.get_type().get_size(),
                shape=tuple(dataset.shape),
                chunk_shape=plan.get_chunk() if layout == h5py.h5d.CHUNKED else (),
                filters=tuple(_filter_name(plan.get_filter(i)) for i in range(plan.get_nfilters())),
                index=chunks[:, 0],
                offset=chunks[:, 1],
                size=chunks[:, 2],
                mask=chunks[:, 3],
            )


def _is_inline(dataset: Any) -> bool:
    """Whether the points are stored in the file itself instead of as references."""
    try:
        return not dataset.dtype.hasobject
    except TypeError:  # a type that NumPy lacks
        return False


def _filter_name(found: tuple[Any, ...]) -> str:
    return _FILTERS.get(found[0], str(found[0]))


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
