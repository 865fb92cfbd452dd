"""An HDF5 file's metadata as bytes, for chunks that lie at given offsets: no library lets its caller choose them.

The structures are those that the library writes by default (superblock version 0, symbol tables, object headers
version 1, version 1 B-trees), so that opening the file makes the requests that were recorded. Source: HDF5 File Format
Specification Version 3.0, sections II.A, III.A-D, IV.A.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from dxt_replay.replay.hdf5.compressed_chunks import largest_stored, smallest_stored
from dxt_replay.replay.hdf5.layout import SUPERBLOCK_BYTES, DatasetLayout, Hdf5Layout

_UNDEFINED = (1 << 64) - 1
_GROUP_LEAF_K, _GROUP_NODE_K, _CHUNK_K = 4, 16, 32
MAX_DATASETS = 2 * _GROUP_LEAF_K * 2 * _GROUP_NODE_K
"""Most datasets of a file: as many as one level of a group's B-tree holds."""

_ENTRIES_PER_NODE = 52
"""Children of a node, of at most 64: about as many as the library's own splitting leaves where chunks come in order."""

_HEAP_HEAD_BYTES = 32
_DEFLATE = 1
_INTEGER_SIZES = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """Everything in a file but its data: `superblock` at 0, `tail` from `tail_offset` to the end."""

    superblock: bytes
    tail: bytes
    tail_offset: int

    @property
    def file_bytes(self) -> int:
        """Size of the whole file."""
        return self.tail_offset + len(self.tail)


class _Tail:
    """Blocks after the data, each at an address that is known before it is filled."""

    def __init__(self, start: int) -> None:
        self.start = start
        self._bytes = bytearray()

    @property
    def end(self) -> int:
        """Address of the next block."""
        return self.start + len(self._bytes)

    def add(self, block: bytes) -> int:
        """Append a block, padded to 8 bytes; its address."""
        address = self.end
        self._bytes += block + bytes(-len(block) % 8)
        return address

    def getvalue(self) -> bytes:
        return bytes(self._bytes)


def metadata_of(layout: Hdf5Layout, data_bytes: int) -> Metadata:
    """The metadata of a file with this layout, all of it but the superblock after the first `data_bytes` bytes."""
    _, ends = layout.extents
    start = max(int(ends[-1]), data_bytes, SUPERBLOCK_BYTES)
    tail = _Tail(start + -start % 8)
    names = _names([dataset.name for dataset in layout.datasets])
    headers = {
        name: tail.add(_dataset_header(dataset, tail))
        for name, dataset in sorted(zip(names, layout.datasets, strict=True))
    }
    heap, name_offsets = _local_heap(list(headers), tail)
    tree = _group_tree(headers, name_offsets, tail)
    root = tail.add(_object_header([(0x0011, struct.pack("<QQ", tree, heap))]))
    blocks = tail.getvalue()
    end = tail.start + len(blocks)
    return Metadata(superblock=_superblock(root, tree, heap, end), tail=blocks, tail_offset=tail.start)


def _names(names: Sequence[str]) -> list[str]:
    """Names of the datasets in the root group: groups become part of them, and no two are equal."""
    taken: list[str] = []
    for name in names:
        plain = name.strip("/").replace("/", ".").replace("\0", "")
        plain = "data" if plain in ("", ".") else plain
        unique, number = plain, 1
        while unique in taken:
            number += 1
            unique = f"{plain}-{number}"
        taken.append(unique)
    return taken


def _superblock(root: int, tree: int, heap: int, end: int) -> bytes:
    versions = struct.pack("<8s8B", b"\x89HDF\r\n\x1a\n", 0, 0, 0, 0, 0, 8, 8, 0)
    sizes = struct.pack("<HHI", _GROUP_LEAF_K, _GROUP_NODE_K, 0)
    addresses = struct.pack("<QQQQ", 0, _UNDEFINED, end, _UNDEFINED)
    block = versions + sizes + addresses + struct.pack("<QQIIQQ", 0, root, 1, 0, tree, heap)
    return block.ljust(SUPERBLOCK_BYTES, b"\0")


def _object_header(messages: Sequence[tuple[int, bytes]]) -> bytes:
    body = b""
    for kind, data in messages:
        padded = data + bytes(-len(data) % 8)
        body += struct.pack("<HHB3x", kind, len(padded), 0) + padded
    return struct.pack("<BxHII4x", 1, len(messages), 1, len(body)) + body


def _local_heap(names: Sequence[str], tail: _Tail) -> tuple[int, dict[str, int]]:
    """Address of the heap that holds the names, and where each is in it; the empty name is at 0."""
    data = bytearray(8)
    offsets = {}
    for name in names:
        offsets[name] = len(data)
        text = name.encode("utf-8") + b"\0"
        data += text + bytes(-len(text) % 8)
    # The names follow at once, so that the library has them with its first look at the heap.
    head = struct.pack("<4sB3xQQQ", b"HEAP", 0, len(data), 1, tail.end + _HEAP_HEAD_BYTES)
    return tail.add(head + data), offsets


def _group_tree(headers: dict[str, int], name_offsets: dict[str, int], tail: _Tail) -> int:
    """Address of the root group's B-tree: one level of it over the symbol table nodes."""
    names = sorted(headers, key=lambda name: name.encode("utf-8"))
    per_node = 2 * _GROUP_LEAF_K
    children = []
    for first in range(0, len(names), per_node):
        mine = names[first : first + per_node]
        entries = b"".join(struct.pack("<QQII16x", name_offsets[name], headers[name], 0, 0) for name in mine)
        node = struct.pack("<4sBxH", b"SNOD", 1, len(mine)) + entries.ljust(40 * per_node, b"\0")
        children.append((name_offsets[mine[-1]], tail.add(node)))
    body = struct.pack("<Q", 0) + b"".join(struct.pack("<QQ", address, last) for last, address in children)
    head = struct.pack("<4sBBHQQ", b"TREE", 0, 0, len(children), _UNDEFINED, _UNDEFINED)
    return tail.add((head + body).ljust(24 + 8 * (4 * _GROUP_NODE_K + 1), b"\0"))


def _dataset_header(dataset: DatasetLayout, tail: _Tail) -> bytes:
    rank = len(dataset.shape)
    unlimited = struct.pack(f"<{rank}Q", *[_UNDEFINED] * rank) if dataset.chunk_shape else b""
    space = struct.pack(f"<BBB5x{rank}Q", 1, rank, bool(unlimited), *dataset.shape) + unlimited
    # allocated chunk by chunk, or late; the fill value is the default
    fill = struct.pack("<BBBBI", 2, 3 if dataset.chunk_shape else 2, 2, 1, 0)
    messages = [(0x0001, space), (0x0003, _datatype(dataset.type_size)), (0x0005, fill)]
    if dataset.compressed:
        messages.append((0x000B, struct.pack("<BB6xHHHHII", 1, 1, _DEFLATE, 0, 1, 1, 6, 0)))
    return _object_header([*messages, (0x0008, _data_layout(dataset, tail))])


def _datatype(size: int) -> bytes:
    """An unsigned little-endian integer where there is one of this size, else opaque bytes."""
    if size in _INTEGER_SIZES:
        return struct.pack("<B3xIHH", 0x10, size, 0, 8 * size)
    return struct.pack("<B3xI", 0x15, size)


def _data_layout(dataset: DatasetLayout, tail: _Tail) -> bytes:
    if not dataset.chunk_shape:
        return struct.pack("<BBQQ", 3, 1, int(dataset.offset[0]), int(dataset.size[0]))
    rank = len(dataset.chunk_shape)
    tree = _chunk_tree(dataset, tail)
    return struct.pack(f"<BBBQ{rank + 1}I", 3, 2, rank + 1, tree, *dataset.chunk_shape, dataset.type_size)


def _chunk_tree(dataset: DatasetLayout, tail: _Tail) -> int:
    """Address of the root of the version 1 B-tree over the dataset's chunks."""
    rank = len(dataset.chunk_shape)
    entry = np.dtype([("size", "<u4"), ("mask", "<u4"), ("offset", "<u8", (rank + 1,)), ("child", "<u8")])
    grid = [-(-extent // chunk) for extent, chunk in zip(dataset.shape, dataset.chunk_shape, strict=True)]
    scaled = np.stack(np.unravel_index(dataset.index, grid), axis=1)
    rows = np.zeros(len(dataset.index), dtype=entry)
    rows["size"], rows["child"] = dataset.size, dataset.offset
    rows["offset"][:, :rank] = scaled * np.array(dataset.chunk_shape)
    beyond = np.zeros(1, dtype=entry)
    beyond["offset"][0, :rank] = np.add(rows["offset"][-1, :rank], dataset.chunk_shape)
    level = 0
    while True:
        rows = _tree_level(rows, beyond, level, tail)
        if len(rows) == 1:
            return int(rows["child"][0])
        level += 1


def _tree_level(rows: np.ndarray, beyond: np.ndarray, level: int, tail: _Tail) -> np.ndarray:
    """Write the nodes of one level; an entry for each, the children of the next level. `beyond`: key of the end."""
    key_bytes = rows.dtype.itemsize - 8
    node_bytes = 24 + 2 * _CHUNK_K * rows.dtype.itemsize + key_bytes
    firsts = range(0, len(rows), _ENTRIES_PER_NODE)
    place = tail.end
    padded = node_bytes + -node_bytes % 8
    parents = rows[firsts.start : firsts.stop : firsts.step].copy()
    for number, first in enumerate(firsts):
        mine = rows[first : first + _ENTRIES_PER_NODE]
        after = rows[first + len(mine) : first + len(mine) + 1] if first + len(mine) < len(rows) else beyond
        left = place + (number - 1) * padded if number else _UNDEFINED
        right = place + (number + 1) * padded if number + 1 < len(firsts) else _UNDEFINED
        head = struct.pack("<4sBBHQQ", b"TREE", 1, level, len(mine), left, right)
        node = head + mine.tobytes() + after.tobytes()[:key_bytes]
        parents["child"][number] = tail.add(node.ljust(node_bytes, b"\0"))
    return parents


def can_be_made(layout: Hdf5Layout) -> str | None:
    """Why no twin of this layout can be made; None when one can."""
    if len(layout.datasets) > MAX_DATASETS:
        return f"it has {len(layout.datasets)} datasets with data, more than {MAX_DATASETS}"
    for dataset in layout.datasets:
        if dataset.compressed and dataset.size.min() < smallest_stored(dataset.chunk_bytes):
            return f"{dataset.name} has chunks that are smaller than deflate can make them"
        if dataset.compressed and dataset.size.max() > largest_stored(dataset.chunk_bytes):
            return f"{dataset.name} has compressed chunks that are larger than deflate makes them"
        if not dataset.compressed and np.any(dataset.size != dataset.chunk_bytes):
            return f"{dataset.name} has uncompressed chunks of other sizes than its chunk shape"
        grid = prod(-(-n // c) for n, c in zip(dataset.shape, dataset.chunk_shape, strict=False))
        if dataset.chunk_shape and dataset.index[-1] >= grid:
            return f"{dataset.name} has more chunks than its shape holds"
    return None
