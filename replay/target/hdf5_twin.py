"""Twins of HDF5 files: real HDF5 files with chunks at the recorded places and of the recorded stored sizes.

So a request at a recorded offset finds the recorded chunk, through the library or past it. All bytes but the metadata
are the same noise as in a plain file. That of compressed chunks cannot be inflated: a replay reads chunks as they are
stored.

The metadata are written here, because no library lets its caller choose where chunks lie. The structures are those that
the library writes by default (superblock version 0, symbol tables, object headers version 1, version 1 B-trees), so
that opening the file makes the requests that were recorded. Source: HDF5 File Format Specification Version 3.0,
sections II.A, III.A-D, IV.A.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from dxt_replay.replay.target.content import Content
from dxt_replay.replay.target.hdf5_layout import SUPERBLOCK_BYTES, DatasetLayout, Hdf5Layout

_UNDEFINED = (1 << 64) - 1
_GROUP_LEAF_K, _GROUP_NODE_K, _CHUNK_K = 4, 16, 32

_ENTRIES_PER_NODE = 52
"""Children of a node, of at most 64: about as many as the library's own splitting leaves where chunks come in order."""

_HEAP_HEAD_BYTES = 32
_DEFLATE = 1
_INTEGER_SIZES = (1, 2, 4, 8)


def hdf5_bytes(layout: Hdf5Layout, data_bytes: int) -> int:
    """Size of the whole file: the bytes that its accesses need, and the metadata."""
    _, (offset, tail) = _metadata(layout, data_bytes)
    return offset + len(tail)


def hdf5_content(record_id: int, size: int, layout: Hdf5Layout | None, data_bytes: int) -> Content:
    """The content of a staged file of `size` bytes. `data_bytes`: bytes that accesses to a real HDF5 file need."""
    inserts = () if layout is None else _metadata(layout, data_bytes)
    return Content(record_id=record_id, size=size, inserts=inserts)


class _Tail:
    """Blocks after the data, each at an address that is known before it is filled."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.bytes = bytearray()

    @property
    def end(self) -> int:
        """Address of the next block."""
        return self.start + len(self.bytes)

    def add(self, block: bytes) -> int:
        """Append a block, padded to 8 bytes; its address."""
        address = self.end
        self.bytes += block + bytes(-len(block) % 8)
        return address


def _metadata(layout: Hdf5Layout, data_bytes: int) -> tuple[tuple[int, bytes], tuple[int, bytes]]:
    """(offset, bytes) of the superblock, and of all other metadata, which end the file: they follow its first
    `data_bytes` bytes."""
    start = max(int(layout.extents[1][-1]), data_bytes, SUPERBLOCK_BYTES)
    tail = _Tail(start + -start % 8)
    names = _names([dataset.name for dataset in layout.datasets])
    headers = {
        name: tail.add(_dataset_header(dataset, tail))
        for name, dataset in sorted(zip(names, layout.datasets, strict=True))
    }
    heap, name_offsets = _local_heap(list(headers), tail)
    tree = _group_tree(headers, name_offsets, tail)
    root = tail.add(_object_header([(0x0011, struct.pack("<QQ", tree, heap))]))
    versions = struct.pack("<8s8B", b"\x89HDF\r\n\x1a\n", 0, 0, 0, 0, 0, 8, 8, 0)
    sizes = struct.pack("<HHI", _GROUP_LEAF_K, _GROUP_NODE_K, 0)
    addresses = struct.pack("<QQQQ", 0, _UNDEFINED, tail.end, _UNDEFINED)
    superblock = versions + sizes + addresses + struct.pack("<QQIIQQ", 0, root, 1, 0, tree, heap)
    return (0, superblock.ljust(SUPERBLOCK_BYTES, b"\0")), (tail.start, bytes(tail.bytes))


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
    body = struct.pack("<Q", 0)
    firsts = range(0, len(names), per_node)
    for first in firsts:
        mine = names[first : first + per_node]
        entries = b"".join(struct.pack("<QQII16x", name_offsets[name], headers[name], 0, 0) for name in mine)
        node = struct.pack("<4sBxH", b"SNOD", 1, len(mine)) + entries.ljust(40 * per_node, b"\0")
        body += struct.pack("<QQ", tail.add(node), name_offsets[mine[-1]])
    head = struct.pack("<4sBBHQQ", b"TREE", 0, 0, len(firsts), _UNDEFINED, _UNDEFINED)
    return tail.add((head + body).ljust(24 + 8 * (4 * _GROUP_NODE_K + 1), b"\0"))


def _dataset_header(dataset: DatasetLayout, tail: _Tail) -> bytes:
    rank, chunked = len(dataset.shape), bool(dataset.chunk_shape)
    unlimited = struct.pack(f"<{rank}Q", *[_UNDEFINED] * rank) if chunked else b""
    space = struct.pack(f"<BBB5x{rank}Q", 1, rank, chunked, *dataset.shape) + unlimited
    # An unsigned little-endian integer where there is one of this size, else opaque bytes.
    kind = struct.pack("<B3xI", 0x15, dataset.type_size)
    if dataset.type_size in _INTEGER_SIZES:
        kind = struct.pack("<B3xIHH", 0x10, dataset.type_size, 0, 8 * dataset.type_size)
    # Allocated chunk by chunk, or late; the fill value is the default.
    fill = struct.pack("<BBBBI", 2, 3 if chunked else 2, 2, 1, 0)
    messages = [(0x0001, space), (0x0003, kind), (0x0005, fill)]
    if dataset.compressed:
        messages.append((0x000B, struct.pack("<BB6xHHHHII", 1, 1, _DEFLATE, 0, 1, 1, 6, 0)))
    if chunked:
        sizes = (*dataset.chunk_shape, dataset.type_size)
        place = struct.pack(f"<BBBQ{len(sizes)}I", 3, 2, len(sizes), _chunk_tree(dataset, tail), *sizes)
    else:
        place = struct.pack("<BBQQ", 3, 1, int(dataset.offset[0]), int(dataset.size[0]))
    return _object_header([*messages, (0x0008, place)])


def _chunk_tree(dataset: DatasetLayout, tail: _Tail) -> int:
    """Address of the root of the version 1 B-tree over the dataset's chunks, whose levels are written from below."""
    rank = len(dataset.chunk_shape)
    entry = np.dtype([("size", "<u4"), ("mask", "<u4"), ("offset", "<u8", (rank + 1,)), ("child", "<u8")])
    grid = [-(-extent // chunk) for extent, chunk in zip(dataset.shape, dataset.chunk_shape, strict=True)]
    scaled = np.stack(np.unravel_index(dataset.index, grid), axis=1)
    rows = np.zeros(len(dataset.index), dtype=entry)
    rows["size"], rows["child"] = dataset.size, dataset.offset
    rows["offset"][:, :rank] = scaled * np.array(dataset.chunk_shape)
    beyond = np.zeros(1, dtype=entry)  # the key of the end
    beyond["offset"][0, :rank] = np.add(rows["offset"][-1, :rank], dataset.chunk_shape)
    key_bytes = entry.itemsize - 8
    node_bytes = 24 + 2 * _CHUNK_K * entry.itemsize + key_bytes
    padded, level = node_bytes + -node_bytes % 8, 0
    while level == 0 or len(rows) > 1:
        place, firsts = tail.end, range(0, len(rows), _ENTRIES_PER_NODE)
        parents = rows[::_ENTRIES_PER_NODE].copy()
        following = np.concatenate((rows, beyond))
        for number, first in enumerate(firsts):
            mine = rows[first : first + _ENTRIES_PER_NODE]
            after = following[first + len(mine) : first + len(mine) + 1]
            left = place + (number - 1) * padded if number else _UNDEFINED
            right = place + (number + 1) * padded if number + 1 < len(firsts) else _UNDEFINED
            head = struct.pack("<4sBBHQQ", b"TREE", 1, level, len(mine), left, right)
            node = head + mine.tobytes() + after.tobytes()[:key_bytes]
            parents["child"][number] = tail.add(node.ljust(node_bytes, b"\0"))
        rows, level = parents, level + 1
    return int(rows["child"][0])
