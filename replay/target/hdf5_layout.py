"""Places of the chunks of the HDF5 files of a capture, from their own chunk index or inferred from the trace.

A trace holds offsets and lengths at the POSIX layer; the datasets' chunk shapes come from Darshan's H5D records. A
chunk that was never read is not known, and a twin does not need it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from math import prod
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dxt_replay.traces.schema import APIS, FORMATS, READ, WRITE, codes
from dxt_replay.traces.store.index import USAGE_COLUMNS, UsageCounter
from dxt_replay.traces.store.reader import Capture

SUPERBLOCK_BYTES = 96
"""A superblock of version 0 with its root entry (HDF5 File Format Specification, II.A): no chunk lies there."""

MAX_DATASETS = 256  # Most datasets of a twin: 32 nodes of 8, as many as one level of a group's B-tree holds
MAX_REQUESTS = 1 << 24
"""Distinct requests of a file beyond which its layout is not looked for: it would be larger than the rest of a plan."""

_TREE_FANOUT = 64  # Children of a full node of a version 1 chunk B-tree: twice the default K of 32

_GROUP_SIZES = (8, 48, SUPERBLOCK_BYTES, 328, 512, 544)
"""Lengths of the library's own requests: the signature, the superblock, a symbol table node, the first look at an
object header, a node of a group's B-tree."""

_SMALLEST_CHUNK = 64  # Without H5D records, shorter requests count as the library's own

_MOST_CHUNK_BYTES = (1 << 32) - 1
_UNEXPLAINED = 0.05  # Share of the bytes that an inferred layout may leave unexplained
_SHOWN = 5
_FOLD_ROWS = 1 << 19
_POSIX = APIS.index("POSIX")

REQUEST = np.dtype([("offset", "i8"), ("length", "i8"), ("uses", "i8")])
"""A distinct request on a file, and how often it was made."""


class NoLayoutError(Exception):
    """Why a file has no layout: its twin has plain bytes."""


Known = Mapping[str, Any]
"""A dataset as a capture describes it: a row of `traces.schema.HDF5_SCHEMA`, whose lists of chunks are int64 arrays."""


@dataclass(frozen=True, slots=True, eq=False)
class DatasetLayout:
    """A dataset with its stored chunks in the order of `index`; int64[chunks] each: their numbers in row-major order,
    places and stored sizes.

    `chunk_shape` is empty for a contiguous dataset, whose one extent is its data. `compressed`: what is stored has to
    pass a filter, and its size is not that of the chunk."""

    name: str
    type_size: int
    shape: tuple[int, ...]
    chunk_shape: tuple[int, ...]
    index: np.ndarray
    offset: np.ndarray
    size: np.ndarray
    compressed: bool = False

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
            # "noise": chunks of earlier twins could be inflated; those are made anew.
            stored = "noise" if dataset.compressed else False
            head = (dataset.name, dataset.type_size, dataset.shape, dataset.chunk_shape, stored)
            found.update(repr(head).encode("utf-8", "backslashreplace"))
            for column in (dataset.index, dataset.offset, dataset.size):
                found.update(np.ascontiguousarray(column, dtype="<i8").tobytes())
        return found.hexdigest()

    def is_data(self, offset: np.ndarray, length: np.ndarray) -> np.ndarray:
        """bool[n]: the requests that reach for data; the others are the library's own, which it makes again.

        A request for metadata may run on into a chunk behind it; one for data begins in a chunk, or covers one."""
        starts, ends = self.extents
        at = np.searchsorted(starts, offset, side="right") - 1
        inside = (at >= 0) & (offset < ends[at])
        following = np.minimum(at + 1, len(starts) - 1)
        covers = (starts[following] >= offset) & (ends[following] <= offset + length)
        data: np.ndarray = (length > 0) & (inside | covers)
        return data


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Hdf5Files:
    """`layouts`: by file_id; `plain`: the HDF5 files that have none, with the reason."""

    layouts: Mapping[int, Hdf5Layout] = field(default_factory=dict)
    plain: Mapping[int, str] = field(default_factory=dict)

    def own_rows(self, batch: pa.RecordBatch | pa.Table) -> np.ndarray:
        """bool[n]: the rows (columns op, api, file_id, offset, length) that are the library's own, for its metadata.

        Where the files are replayed through the library they are not reissued: it makes them again."""
        reads = (codes(batch, "op") == READ) & (codes(batch, "api") == _POSIX)
        own = np.zeros(len(reads), dtype=bool)
        file_id, offset, length = (batch.column(name).to_numpy() for name in ("file_id", "offset", "length"))
        for file, layout in self.layouts.items():
            mine = np.flatnonzero(reads & (file_id == file))
            own[mine] = ~layout.is_data(offset[mine], length[mine])
        return own

    def data_usage(self, capture: Capture, rank: int) -> pa.Table:
        """`capture.usage(rank)` without the library's own requests. Reads the rank's rows if it uses such a file.

        Raises: CaptureError when a part is damaged."""
        used = capture.usage(rank)
        if not np.isin(used["file_id"].to_numpy(), list(self.layouts)).any():
            return used
        counter = UsageCounter()
        for batch in capture.operations(rank, columns=USAGE_COLUMNS):
            counter.add(batch.filter(pa.array(~self.own_rows(batch))))
        return counter.table()

    def notes(self, capture: Capture) -> tuple[str, ...]:
        """One line for each file that is not opened through the library, with the reason, for `run --api hdf5`."""
        paths = capture.paths() if self.plain else ()
        some = list(self.plain.items())[:_SHOWN]
        shown = [f"{paths[file]} is not replayed as HDF5: {reason}" for file, reason in some]
        rest = len(self.plain) - _SHOWN
        return (*shown, f"and {rest} more HDF5 files are not") if rest > 0 else tuple(shown)


def hdf5_files(capture: Capture) -> Hdf5Files:
    """The layouts of the HDF5 files, from one pass over the requests of the whole capture: its parts
    share one twin. A file that is written, or not read at POSIX, has no layout.

    Raises: CaptureError when a part is damaged."""
    wanted = codes(capture.files, "format") == FORMATS.index("hdf5")
    if not wanted.any():
        return Hdf5Files()
    requests, plain = _requests(capture.whole, wanted)
    known = known_datasets(capture.hdf5)
    layouts: dict[int, Hdf5Layout] = {}
    for file, some in requests.items():
        try:
            layouts[file] = layout_of(some, known.get(file, ()))
        except NoLayoutError as reason:
            plain[file] = str(reason)
    return Hdf5Files(layouts=layouts, plain=plain)


def _requests(capture: Capture, wanted: np.ndarray) -> tuple[dict[int, np.ndarray], dict[int, str]]:
    """Distinct POSIX reads of each wanted file (REQUEST, in order); and the files that have no layout for certain."""
    keys, known, parts, new = ["file_id", "offset", "length"], 0, [], 0
    refused: dict[int, str] = {}

    def folded(tables: list[pa.Table]) -> pa.Table:
        found = pa.concat_tables(tables).group_by(keys).aggregate([("uses", "sum")]).rename_columns([*keys, "uses"])
        files, counts = np.unique(found["file_id"].to_numpy(), return_counts=True)
        refused.update(
            dict.fromkeys(files[counts > MAX_REQUESTS].tolist(), f"more than {MAX_REQUESTS} different requests")
        )
        return found.filter(pc.invert(pc.is_in(found["file_id"], value_set=pa.array(list(refused), pa.int32()))))

    ranks = [rank for rank in capture.ranks if wanted[capture.usage(rank)["file_id"].to_numpy()].any()]
    for batch in capture.operations(ranks, columns=["op", "api", *keys]):
        file_id, op = batch.column("file_id").to_numpy(), codes(batch, "op")
        mine = wanted[file_id]
        refused |= dict.fromkeys(np.unique(file_id[mine & (op == WRITE)]).tolist(), "it is written")
        mine &= (op == READ) & (codes(batch, "api") == _POSIX) & (batch.column("offset").to_numpy() >= 0)
        some = pa.Table.from_batches([batch.select(keys).filter(pa.array(mine))])
        parts.append(some.append_column("uses", pa.array(np.ones(len(some), dtype=np.int64))))
        new += len(some)
        if new >= max(known, _FOLD_ROWS):
            parts = [folded(parts)]
            known, new = len(parts[0]), 0
    table = folded(parts) if parts else None
    if not table:
        return {}, refused
    table = table.sort_by([(name, "ascending") for name in keys])
    rows = np.zeros(len(table), dtype=REQUEST)
    for name in REQUEST.names or ():
        rows[name] = table[name].to_numpy()
    files, first = np.unique(table["file_id"].to_numpy(), return_index=True)
    return dict(zip(files.tolist(), np.split(rows, first[1:]), strict=True)), refused


def known_datasets(table: pa.Table) -> dict[int, list[Known]]:
    """The rows of a capture's table of HDF5 datasets, by file_id."""
    names, found = ("chunk_index", "chunk_offset", "chunk_size"), dict[int, list[Known]]()
    arrays = [[cell.values.to_numpy() if cell.is_valid else None for cell in table[name]] for name in names]
    for row, *chunks in zip(table.drop_columns([*names, "chunk_mask"]).to_pylist(), *arrays, strict=True):
        found.setdefault(row["file_id"], []).append({**row, **dict(zip(names, chunks, strict=True))})
    return found


def _chunk_bytes(dataset: Known) -> int:
    """Bytes of a chunk before its filters; 0 for a contiguous dataset and where unknown."""
    return prod(dataset["chunk_shape"]) * int(dataset["type_size"]) if dataset["chunk_shape"] else 0


def layout_of(requests: np.ndarray, known: Sequence[Known]) -> Hdf5Layout:
    """The layout of a file from the distinct requests on it, REQUEST[n] in order of offset and length.

    The file's own chunk index counts before H5D records, and these before offsets and lengths alone.
    Raises: NoLayoutError."""
    requests = requests[requests["length"] > 0]
    if not len(requests):
        raise NoLayoutError("nothing was read from it")
    if any(dataset["chunk_offset"] is not None for dataset in known):
        return _from_index(requests, known)
    if any(dataset["chunk_shape"] is not None for dataset in known):
        return _from_records(requests, known)
    return _from_requests(requests)


def _from_index(requests: np.ndarray, known: Sequence[Known]) -> Hdf5Layout:
    datasets = []
    for each in known:
        if each["chunk_offset"] is not None and len(each["chunk_offset"]):
            order = np.argsort(each["chunk_index"], kind="stable")
            index, offset, size = (each[name][order] for name in ("chunk_index", "chunk_offset", "chunk_size"))
            shape, chunks = tuple(each["shape"] or (each["points"],)), tuple(each["chunk_shape"] or ())
            kind = each["dataset"], each["type_size"], shape, chunks
            datasets.append(DatasetLayout(*kind, index, offset, size, bool(each["filters"])))
    found = _checked(datasets, "the chunk index of the file itself")
    data = found.is_data(requests["offset"], requests["length"])
    if _moved(requests[~data & ~_is_own(requests, known)]) > _moved(requests[data]):
        raise NoLayoutError("most of what was read lies outside of its chunks: the file changed since")
    return found


def _from_records(requests: np.ndarray, known: Sequence[Known]) -> Hdf5Layout:
    """The datasets by H5D records. Requests of exactly the size of a chunk are its chunks; if most requests have other
    sizes, the chunks are compressed."""
    chunked = [dataset for dataset in known if _chunk_bytes(dataset)]
    contiguous = [dataset for dataset in known if dataset["chunk_shape"] == []]
    by_size: dict[int, list[Known]] = {}
    for dataset in chunked:
        by_size.setdefault(_chunk_bytes(dataset), []).append(dataset)
    fits = np.isin(requests["length"], list(by_size))
    chunks = _apart(requests[fits & (requests["offset"] >= SUPERBLOCK_BYTES)])
    own = _is_own(requests, known) & ~fits
    rest = requests[~fits & ~own]
    datasets = [layout for size, group in by_size.items() for layout in _share(chunks, size, group, requests[own])]
    if _moved(rest) > _UNEXPLAINED * (_moved(chunks) + _moved(rest)):
        if contiguous:
            datasets += _regions(rest, chunks, contiguous)
        elif chunked:
            return _from_requests(requests)
    elif not len(chunks):
        raise NoLayoutError("none of its requests has the size of a chunk")
    return _checked(datasets, "H5D records, offsets and lengths")


def _from_requests(requests: np.ndarray) -> Hdf5Layout:
    """Without records that fit, each request that is not the library's own is a chunk: of one size, or compressed."""
    nodes = [*_GROUP_SIZES, *map(_node_bytes, range(1, 6))]
    own = np.isin(requests["length"], nodes) | (requests["length"] < _SMALLEST_CHUNK)
    rest = requests[~own & (requests["offset"] >= SUPERBLOCK_BYTES)]
    if not len(rest):
        raise NoLayoutError("no request on it looks like one for data")
    chunks = _apart(rest)
    if _moved(chunks) < (1 - _UNEXPLAINED) * _moved(rest):
        raise NoLayoutError("requests overlap, so they do not show chunks, and no H5D record explains them")
    size, count = int(chunks["length"].max()), len(chunks)
    compressed = bool(chunks["length"].min() < size)
    if compressed:
        size = 1 << (2 * size - 1).bit_length()
    columns = (np.arange(count), chunks["offset"], chunks["length"])
    dataset = DatasetLayout("data", 1, (count * size,), (size,), *columns, compressed=compressed)
    text = "a dataset of compressed chunks is assumed" if compressed else "a dataset of equal chunks is assumed"
    return _checked([dataset], f"offsets and lengths; {text}")


def _moved(requests: np.ndarray) -> float:
    """Sum of bytes, which may exceed int64."""
    return float(requests["length"].astype(float) @ requests["uses"])


def _node_bytes(rank: int) -> int:
    """Size of a node of the version 1 B-tree over the chunks of a dataset of so many dimensions."""
    return 24 + 8 * _TREE_FANOUT + (_TREE_FANOUT + 1) * (8 + 8 * (rank + 1))


def _is_own(requests: np.ndarray, known: Sequence[Known]) -> np.ndarray:
    nodes = [_node_bytes(len(dataset["chunk_shape"])) for dataset in known if dataset["chunk_shape"]]
    return np.isin(requests["length"], [*_GROUP_SIZES, *nodes])


def _apart(requests: np.ndarray) -> np.ndarray:
    """The requests that do not overlap any other."""
    offset, ends = requests["offset"], requests["offset"] + requests["length"]
    touches = np.zeros(len(requests), dtype=bool)
    touches[1:] = offset[1:] < np.maximum.accumulate(ends)[:-1]
    touches[:-1] |= offset[1:] < ends[:-1]
    return requests[~touches]


def _share(chunks: np.ndarray, size: int, datasets: Sequence[Known], metadata: np.ndarray) -> list[DatasetLayout]:
    """Assign the chunks of one size to the datasets with such chunks, in order of offset, as many as each dataset
    holds.

    The largest dataset comes first. A gap counts as chunks that were not read: as many as fit into it beside metadata.
    """
    offset = chunks["offset"][chunks["length"] == size]
    taken = np.concatenate(([0], np.cumsum(metadata["length"])))[np.searchsorted(metadata["offset"], offset)]
    gaps = np.maximum(np.diff(offset) - size - np.diff(taken), 0) // size
    slot = np.arange(len(offset)) + np.concatenate(([0], np.cumsum(gaps)))[: len(offset)]
    order = sorted(datasets, key=lambda dataset: -dataset["points"])
    capacity = [max(-(-dataset["points"] * dataset["type_size"] // size), 1) for dataset in order]
    owner = np.minimum(np.searchsorted(np.cumsum(capacity), slot, side="right"), len(order) - 1)
    layouts = []
    for number, dataset in enumerate(order):
        own = owner == number
        if count := int(own.sum()):
            chunk = tuple(dataset["chunk_shape"])
            shape = (max(capacity[number], count) * chunk[0], *chunk[1:])
            columns = (np.arange(count), offset[own], np.full(count, size, dtype=np.int64))
            layouts.append(DatasetLayout(dataset["dataset"], dataset["type_size"], shape, chunk, *columns))
    return layouts


def _regions(rest: np.ndarray, chunks: np.ndarray, contiguous: Sequence[Known]) -> list[DatasetLayout]:
    """Stretches of adjacent requests outside of chunks: the contiguous datasets, or parts of them."""
    ends = rest["offset"] + rest["length"]
    free = rest["offset"] >= SUPERBLOCK_BYTES
    if len(chunks):
        at = np.searchsorted(chunks["offset"], ends, side="left") - 1
        free &= (at < 0) | (chunks["offset"][at] + chunks["length"][at] <= rest["offset"])
    rest = rest[free]
    if not len(rest):
        return []
    reached = np.maximum.accumulate(rest["offset"] + rest["length"])
    first = np.flatnonzero(np.concatenate(([True], rest["offset"][1:] > reached[:-1])))
    starts, ends = rest["offset"][first], reached[np.append(first[1:] - 1, len(reached) - 1)]
    names = [f"region{number}" for number in range(len(starts))]
    if len(contiguous) == len(starts):
        names = [dataset["dataset"] for dataset in contiguous]
    found = zip(names, starts.tolist(), (ends - starts).tolist(), strict=True)
    first_chunk = np.zeros(1, dtype=np.int64)
    return [
        DatasetLayout(name, 1, (size,), (), first_chunk, np.array([start]), np.array([size]))
        for name, start, size in found
    ]


def _checked(datasets: Sequence[DatasetLayout], evidence: str) -> Hdf5Layout:
    """The layout. Raises: NoLayoutError if no file can have it, or no twin of it can be made."""
    kept = tuple(dataset for dataset in datasets if len(dataset.offset))
    if not kept:
        raise NoLayoutError("it has no data that was read")
    if len(kept) > MAX_DATASETS:
        raise NoLayoutError(f"it has {len(kept)} datasets with data, more than {MAX_DATASETS}")
    layout = Hdf5Layout(datasets=kept, evidence=evidence)
    starts, ends = layout.extents
    if starts[0] < SUPERBLOCK_BYTES or np.any(starts[1:] < ends[:-1]):
        raise NoLayoutError("its chunks overlap each other or the superblock")
    for each in kept:
        if each.chunk_shape and each.chunk_bytes > _MOST_CHUNK_BYTES:
            raise NoLayoutError(f"{each.name} has chunks of {each.chunk_bytes} bytes, more than HDF5 allows")
        if not each.compressed and np.any(each.size != each.chunk_bytes):
            raise NoLayoutError(f"{each.name} has uncompressed chunks of other sizes than its chunk shape")
        grid = prod(-(-n // c) for n, c in zip(each.shape, each.chunk_shape, strict=False))
        if each.chunk_shape and each.index[-1] >= grid:
            raise NoLayoutError(f"{each.name} has more chunks than its shape holds")
    return layout
