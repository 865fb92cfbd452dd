"""Places of the chunks of an HDF5 file, from its own chunk index or inferred from a trace.

A trace holds offsets and lengths at the POSIX layer; the datasets' chunk shapes come from Darshan's H5D records. A
chunk that was never read is not known, and a twin does not need it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from math import prod

import numpy as np

SUPERBLOCK_BYTES = 96
"""A superblock of version 0 with its root entry (HDF5 File Format Specification, II.A): no chunk lies there."""

_TREE_FANOUT = 64
"""Children of a full node of a version 1 chunk B-tree: twice the default K of 32."""

_GROUP_SIZES = (8, 48, SUPERBLOCK_BYTES, 328, 512, 544)
"""Lengths of the library's own requests: the signature, the superblock, a symbol table node, the first look at an
object header, a node of a group's B-tree."""

_SMALLEST_CHUNK = 64
"""Without H5D records, shorter requests count as the library's own."""

_MOST_CHUNK_BYTES = (1 << 32) - 1
_UNEXPLAINED = 0.05
"""Share of the bytes that an inferred layout may leave unexplained."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KnownDataset:
    """A dataset as a capture describes it: one row of `traces.schema.HDF5_SCHEMA`.

    `chunk_shape`: slowest dimension first, empty for a contiguous dataset, None where unknown.
    `filters`: None where unknown.
    `index`, `offset`, `size`: int64[chunks], the chunk's number in row-major order, its place and its stored size; None
    where the file could not be inspected. A contiguous dataset has one chunk.
    """

    name: str
    type_size: int
    points: int
    shape: tuple[int, ...] | None = None
    chunk_shape: tuple[int, ...] | None = None
    filters: tuple[str, ...] | None = None
    index: np.ndarray | None = None
    offset: np.ndarray | None = None
    size: np.ndarray | None = None

    @property
    def chunk_bytes(self) -> int:
        """Bytes of a chunk before its filters; 0 for a contiguous dataset and where unknown."""
        return prod(self.chunk_shape) * self.type_size if self.chunk_shape else 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DatasetLayout:
    """A dataset with its stored chunks in the order of `index`, int64[chunks] each, as in `KnownDataset`.

    `chunk_shape` is empty for a contiguous dataset, whose one extent is its data. `compressed`: what is stored has to
    pass a filter, and its size is not that of the chunk.
    """

    name: str
    type_size: int
    shape: tuple[int, ...]
    chunk_shape: tuple[int, ...]
    compressed: bool
    index: np.ndarray
    offset: np.ndarray
    size: np.ndarray

    @property
    def chunk_bytes(self) -> int:
        """Bytes of a chunk before its filters, of all data for a contiguous dataset."""
        return prod(self.chunk_shape or self.shape) * self.type_size


@dataclass(frozen=True, kw_only=True, eq=False)
class Hdf5Layout:
    """The data of one HDF5 file: extents that do not overlap. `evidence`: how it is known, for a person."""

    datasets: tuple[DatasetLayout, ...]
    evidence: str

    @cached_property
    def extents(self) -> tuple[np.ndarray, np.ndarray]:
        """int64 starts and ends (exclusive) of all stored chunks, ascending."""
        offset = np.concatenate([dataset.offset for dataset in self.datasets])
        size = np.concatenate([dataset.size for dataset in self.datasets])
        order = np.argsort(offset, kind="stable")
        return offset[order], (offset + size)[order]

    @cached_property
    def digest(self) -> str:
        """Text that is equal for layouts that need the same file."""
        found = blake2b(digest_size=16)
        for dataset in self.datasets:
            head = (dataset.name, dataset.type_size, dataset.shape, dataset.chunk_shape, dataset.compressed)
            found.update(repr(head).encode("utf-8", "backslashreplace"))
            for column in (dataset.index, dataset.offset, dataset.size):
                found.update(np.ascontiguousarray(column, dtype="<i8").tobytes())
        return found.hexdigest()

    def is_data(self, offset: np.ndarray, length: np.ndarray) -> np.ndarray:
        """bool[n]: the requests that reach for data; the others are the library's own, which it makes again.

        A request for metadata may run on into a chunk behind it; one for data begins in a chunk, or covers one.
        """
        starts, ends = self.extents
        at = np.searchsorted(starts, offset, side="right") - 1
        inside = (at >= 0) & (offset < ends[at])
        following = np.minimum(at + 1, len(starts) - 1)
        covers = (starts[following] >= offset) & (ends[following] <= offset + length)
        data: np.ndarray = (length > 0) & (inside | covers)
        return data


@dataclass(frozen=True, slots=True, kw_only=True)
class NoLayout:
    """Why a file has no layout. The twin then has plain bytes in place of an HDF5 file."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Extents:
    """Distinct requests in order of offset: int64 `offset`, `length`, and `uses`, how often each was made."""

    offset: np.ndarray
    length: np.ndarray
    uses: np.ndarray

    def where(self, mask: np.ndarray) -> _Extents:
        return _Extents(offset=self.offset[mask], length=self.length[mask], uses=self.uses[mask])

    @property
    def moved(self) -> float:
        """Sum of bytes as a Python int, since it may exceed int64."""
        return float(self.length.astype(float) @ self.uses)


def layout_of(
    offset: np.ndarray, length: np.ndarray, uses: np.ndarray, known: Sequence[KnownDataset]
) -> Hdf5Layout | NoLayout:
    """The layout of a file from the requests on it: int64[n] each, distinct (offset, length) with how often they came.

    The file's own chunk index counts before H5D records, and these before offsets and lengths alone.
    """
    order = np.lexsort((length, offset))
    moved = order[length[order] > 0]
    requests = _Extents(offset=offset[moved], length=length[moved], uses=uses[moved])
    if not len(moved):
        return NoLayout(reason="nothing was read from it")
    if any(dataset.offset is not None for dataset in known):
        return _from_index(requests, known)
    if any(dataset.chunk_shape is not None for dataset in known):
        return _from_records(requests, known)
    return _from_requests(requests)


def _from_index(requests: _Extents, known: Sequence[KnownDataset]) -> Hdf5Layout | NoLayout:
    datasets = []
    for dataset in known:
        if dataset.offset is None or dataset.size is None or dataset.index is None or not len(dataset.offset):
            continue
        order = np.argsort(dataset.index, kind="stable")
        layout = DatasetLayout(
            name=dataset.name,
            type_size=dataset.type_size,
            shape=dataset.shape or (dataset.points,),
            chunk_shape=dataset.chunk_shape or (),
            compressed=bool(dataset.filters),
            index=dataset.index[order],
            offset=dataset.offset[order],
            size=dataset.size[order],
        )
        datasets.append(layout)
    layout_or_not = _checked(datasets, "the chunk index of the file itself")
    if isinstance(layout_or_not, Hdf5Layout):
        data = layout_or_not.is_data(requests.offset, requests.length)
        others = requests.where(~data & ~_is_own(requests, _ranks(known)))
        if others.moved > requests.where(data).moved:
            return NoLayout(reason="most of what was read lies outside of its chunks: the file changed since")
    return layout_or_not


def _from_records(requests: _Extents, known: Sequence[KnownDataset]) -> Hdf5Layout | NoLayout:
    """The datasets by H5D records. Requests of exactly the size of a chunk are its chunks; if most requests have other
    sizes, the chunks are compressed."""
    chunked = [dataset for dataset in known if dataset.chunk_bytes]
    contiguous = [dataset for dataset in known if dataset.chunk_shape == ()]
    fits = np.isin(requests.length, [dataset.chunk_bytes for dataset in chunked])
    chunks = _apart(requests.where(fits & (requests.offset >= SUPERBLOCK_BYTES)))
    own = _is_own(requests, _ranks(known)) & ~fits
    rest = requests.where(~fits & ~own)
    groups = _by_size(chunked).items()
    datasets = [layout for size, group in groups for layout in _share(chunks, size, group, requests.where(own))]
    if rest.moved > _UNEXPLAINED * (chunks.moved + rest.moved):
        if contiguous:
            datasets += _regions(rest, chunks, contiguous)
        elif chunked:
            return _compressed(requests.where(~_is_own(requests, _ranks(known))), chunked)
    elif not len(chunks.offset):
        return NoLayout(reason="none of its requests has the size of a chunk")
    return _checked(datasets, "H5D records, offsets and lengths")


def _compressed(requests: _Extents, chunked: Sequence[KnownDataset]) -> Hdf5Layout | NoLayout:
    """Every request is one stored chunk, of any size up to what a filter may add."""
    largest = max(dataset.chunk_bytes for dataset in chunked)
    if requests.length.max() > largest + largest // 1000 + 64:
        return NoLayout(reason=f"a request is larger than its largest chunk, which has {largest} bytes")
    chunks = _apart(requests)
    if chunks.moved < (1 - _UNEXPLAINED) * requests.moved:
        return NoLayout(reason="requests overlap, so they are not compressed chunks")
    whole = [dataset for dataset in chunked if dataset.chunk_bytes == largest]
    nothing = chunks.where(np.zeros(len(chunks.offset), dtype=bool))
    datasets = _share(replace(chunks, length=np.full_like(chunks.length, largest)), largest, whole, nothing)
    sizes = dict(zip(chunks.offset.tolist(), chunks.length.tolist(), strict=True))
    datasets = [
        replace(dataset, compressed=True, size=np.array([sizes[offset] for offset in dataset.offset.tolist()]))
        for dataset in datasets
    ]
    return _checked(datasets, "H5D records, offsets and lengths; chunks are compressed")


def _from_requests(requests: _Extents) -> Hdf5Layout | NoLayout:
    """Without H5D records each request that is not the library's own is a chunk: of one size, or else compressed."""
    own = _is_own(requests, range(1, 6)) | (requests.length < _SMALLEST_CHUNK)
    rest = requests.where(~own & (requests.offset >= SUPERBLOCK_BYTES))
    chunks = _apart(rest)
    if not len(rest.offset):
        return NoLayout(reason="no request on it looks like one for data")
    if chunks.moved < (1 - _UNEXPLAINED) * rest.moved:
        return NoLayout(reason="requests overlap, so they do not show chunks, and the log has no H5D records")
    size = int(chunks.length.max())
    compressed = bool(chunks.length.min() < size)
    if compressed:
        size = 1 << (2 * size - 1).bit_length()
    count = len(chunks.offset)
    dataset = DatasetLayout(
        name="data",
        type_size=1,
        shape=(count * size,),
        chunk_shape=(size,),
        compressed=compressed,
        index=np.arange(count),
        offset=chunks.offset,
        size=chunks.length,
    )
    text = "a dataset of compressed chunks is assumed" if compressed else "a dataset of equal chunks is assumed"
    return _checked([dataset], f"offsets and lengths; {text}")


def _ranks(known: Sequence[KnownDataset]) -> list[int]:
    return sorted({len(dataset.chunk_shape) for dataset in known if dataset.chunk_shape})


def _node_bytes(rank: int) -> int:
    """Size of a node of the version 1 B-tree over the chunks of a dataset of so many dimensions."""
    return 24 + 8 * _TREE_FANOUT + (_TREE_FANOUT + 1) * (8 + 8 * (rank + 1))


def _is_own(requests: _Extents, ranks: Sequence[int]) -> np.ndarray:
    return np.isin(requests.length, [*_GROUP_SIZES, *map(_node_bytes, ranks)])


def _apart(requests: _Extents) -> _Extents:
    """The requests that do not overlap any other."""
    ends = requests.offset + requests.length
    reached = np.maximum.accumulate(ends) if len(ends) else ends
    touches_before = np.concatenate(([False], requests.offset[1:] < reached[:-1]))[: len(ends)]
    touches_after = np.concatenate((requests.offset[1:] < ends[:-1], [False]))[: len(ends)]
    return requests.where(~touches_before & ~touches_after)


def _by_size(chunked: Sequence[KnownDataset]) -> dict[int, list[KnownDataset]]:
    groups: dict[int, list[KnownDataset]] = {}
    for dataset in chunked:
        groups.setdefault(dataset.chunk_bytes, []).append(dataset)
    return groups


def _share(chunks: _Extents, size: int, datasets: Sequence[KnownDataset], metadata: _Extents) -> list[DatasetLayout]:
    """Assign the chunks of one size to the datasets with such chunks, in order of offset, as many as each dataset
    holds.

    The largest dataset comes first. A gap counts as chunks that were not read: as many as fit into it beside metadata.
    """
    mine = chunks.where(chunks.length == size)
    taken = np.concatenate(([0], np.cumsum(metadata.length)))[np.searchsorted(metadata.offset, mine.offset)]
    gaps = np.maximum(mine.offset[1:] - mine.offset[:-1] - size - np.diff(taken), 0) // size
    slot = np.arange(len(mine.offset)) + np.concatenate(([0], np.cumsum(gaps)))[: len(mine.offset)]
    order = sorted(datasets, key=lambda dataset: -dataset.points)
    capacity = [max(-(-dataset.points * dataset.type_size // size), 1) for dataset in order]
    owner = np.minimum(np.searchsorted(np.cumsum(capacity), slot, side="right"), len(order) - 1)
    layouts = []
    for number, dataset in enumerate(order):
        own = owner == number
        if not own.any() or not dataset.chunk_shape:
            continue
        count = int(own.sum())
        rows = max(capacity[number], count)
        layouts.append(
            DatasetLayout(
                name=dataset.name,
                type_size=dataset.type_size,
                shape=(rows * dataset.chunk_shape[0], *dataset.chunk_shape[1:]),
                chunk_shape=dataset.chunk_shape,
                compressed=False,
                index=np.arange(count),
                offset=mine.offset[own],
                size=np.full(count, size, dtype=np.int64),
            )
        )
    return layouts


def _regions(rest: _Extents, chunks: _Extents, contiguous: Sequence[KnownDataset]) -> list[DatasetLayout]:
    """Stretches of adjacent requests outside of chunks: the contiguous datasets, or parts of them."""
    at = np.searchsorted(chunks.offset, rest.offset + rest.length, side="left") - 1
    free = np.ones(len(rest.offset), dtype=bool)
    if len(chunks.offset):
        free = (at < 0) | (chunks.offset[at] + chunks.length[at] <= rest.offset)
    rest = rest.where(free & (rest.offset >= SUPERBLOCK_BYTES))
    if not len(rest.offset):
        return []
    reached = np.maximum.accumulate(rest.offset + rest.length)
    first = np.concatenate(([True], rest.offset[1:] > reached[:-1]))
    starts = rest.offset[first]
    ends = reached[np.concatenate((np.flatnonzero(first)[1:] - 1, [len(reached) - 1]))]
    names = [dataset.name for dataset in contiguous] if len(contiguous) == len(starts) else []
    return [
        DatasetLayout(
            name=names[number] if names else f"region{number}",
            type_size=1,
            shape=(end - start,),
            chunk_shape=(),
            compressed=False,
            index=np.zeros(1, dtype=np.int64),
            offset=np.array([start]),
            size=np.array([end - start]),
        )
        for number, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True))
    ]


def _checked(datasets: Sequence[DatasetLayout], evidence: str) -> Hdf5Layout | NoLayout:
    """The layout, or the reason why no file can have it."""
    kept = tuple(dataset for dataset in datasets if len(dataset.offset))
    if not kept:
        return NoLayout(reason="it has no data that was read")
    layout = Hdf5Layout(datasets=kept, evidence=evidence)
    starts, ends = layout.extents
    if starts[0] < SUPERBLOCK_BYTES or np.any(starts[1:] < ends[:-1]):
        return NoLayout(reason="its chunks overlap each other or the superblock")
    for dataset in kept:
        if dataset.chunk_shape and dataset.chunk_bytes > _MOST_CHUNK_BYTES:
            return NoLayout(reason=f"{dataset.name} has chunks of {dataset.chunk_bytes} bytes, more than HDF5 allows")
    return layout
