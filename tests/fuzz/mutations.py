"""Changed inputs, from random bytes to changes of the structure below compression, checksums and lengths.

An input is a folder of files: name -> bytes. The end of a name says what a file is.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import random
import re
import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dxt_replay.profiler_merge.darshan.log import CONTAINERS
from tests.xplane_writer import varint

Files = Mapping[str, bytes]

INTEGERS = (0, 1, -1, 2, 7, 127, 128, 255, 65535, 1 << 20, (1 << 24) - 1, 1 << 24,
            (1 << 31) - 1, 1 << 31, (1 << 32) - 1, (1 << 53) + 1,
            (1 << 61) + 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 64, -(1 << 31), -(1 << 63), 10**25)  # fmt: skip
TEXTS = ("", "/", "..", "/../x", "\0", "\n", "\x1b[31m", "=1+1", "é\u202e", "'\"<b>", "a" * 300, "1e999", "nan", "-1",
         "99999999999999999999", "0x10", "true", "null", "~", "[]", "{}", "1:2", "3d", "!!python/object:x")  # fmt: skip
_TYPES = (pa.int8(), pa.int32(), pa.int64(), pa.uint64(), pa.float64(), pa.string(), pa.binary(), pa.bool_())
_TOKEN = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|[A-Za-z_/][\w./-]*|[^\w\s]")


@dataclass(frozen=True, slots=True)
class Mutant:
    """A changed input. `sealed`: a checksum covers the change, so the input is refused or its answer is the old one."""

    files: Files
    sealed: bool = False


def mutated(rng: random.Random, files: Files, other: Files, changeable: re.Pattern[str]) -> Mutant:
    """One to three changes of one file. `other`: an input to take pieces from. `changeable`: names that may change."""
    name = rng.choice([each for each in sorted(files) if changeable.search(each)])
    data = files[name]
    if rng.random() < 0.15 and (place := _sealed_place(rng, name, data)) is not None:
        damaged = bytearray(data)
        damaged[place] ^= 1 << rng.randrange(8)
        return Mutant({**files, name: bytes(damaged)}, sealed=True)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        data = _changed(rng, name, data, other.get(name, data))
    return Mutant({**files, name: data})


def _sealed_place(rng: random.Random, name: str, data: bytes) -> int | None:
    """A byte that a checksum covers; None where there is none."""
    begin, end = 0, len(data)
    if name.endswith(".parquet"):
        begin, end = 4, len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    elif name.endswith(".darshan"):
        container = CONTAINERS.get(data[:4].decode("latin-1"))
        begin = container.header_bytes if container is not None and data[16] in (0, 1) else end
    elif not name.endswith(".gz"):
        return None
    return rng.randrange(begin, end) if begin < end else None


def _changed(rng: random.Random, name: str, data: bytes, other: bytes) -> bytes:
    if rng.random() < 0.2:
        return changed_bytes(rng, data, other)
    for ending, change in _BY_ENDING.items():
        if name.endswith(ending):
            return change(rng, data, name)
    return changed_text(rng, data)


def changed_bytes(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """Bits flipped, bytes replaced, pieces lost, doubled, moved or taken from elsewhere, the end cut off."""
    changed = bytearray(data)
    place = rng.randrange(len(changed) + 1)
    size = rng.choice((1, 1, 2, 4, 8, 30))
    kind = rng.randrange(6)
    if kind == 0 and changed:
        changed[place % len(changed)] ^= 1 << rng.randrange(8)
    elif kind == 1:
        changed[place : place + size] = rng.randbytes(size)
    elif kind == 2:
        del changed[place : place + size]
    elif kind == 3:
        changed[place:place] = changed[place : place + rng.choice((1, 8, 40, 200))]
    elif kind == 4:
        begin = rng.randrange(len(other) + 1)
        changed[place : place + size] = other[begin : begin + size * 4]
    else:
        number = rng.choice(INTEGERS) % (1 << 64)
        width = rng.choice((1, 2, 4, 8))
        changed[place : place + width] = (number % (1 << 8 * width)).to_bytes(width, rng.choice(("little", "big")))
    return bytes(changed[:place] if rng.random() < 0.05 else changed)


def changed_text(rng: random.Random, data: bytes, name: str = "") -> bytes:
    """A word or number replaced, or a line lost, doubled, moved or indented."""
    if rng.random() < 0.6:
        found = list(_TOKEN.finditer(data))
        if found:
            token = rng.choice(found)
            new = rng.choice(
                (str(rng.choice(INTEGERS)), rng.choice(TEXTS), rng.choice(found)[0].decode("latin-1"), "1.5e30")
            )
            return data[: token.start()] + new.encode() + data[token.end() :]
    lines = data.split(b"\n")
    place, other, kind = rng.randrange(len(lines)), rng.randrange(len(lines)), rng.randrange(4)
    if kind == 0:
        del lines[place]
    elif kind == 1:
        lines.insert(place, lines[other])
    elif kind == 2:
        lines[place] = b"  " * rng.randrange(4) + lines[place].lstrip()
    else:
        lines[place], lines[other] = lines[other], lines[place]
    return b"\n".join(lines)


def changed_json(rng: random.Random, data: bytes, name: str = "") -> bytes:
    """A value of the document, or of one of its lines, replaced by one of another size, type or depth."""
    lines = [data] if not name.endswith(".pfw") else data.split(b"\n")
    place = rng.randrange(len(lines))
    try:
        tree = json.loads(lines[place])
    except (ValueError, RecursionError):
        return changed_text(rng, data)
    text = json.dumps(_changed_tree(rng, tree))
    if rng.random() < 0.02:
        text = text.replace(": ", ": " + "[" * 3000 + "]" * 3000 + ", ", 1)
    lines[place] = text.encode()
    return b"\n".join(lines)


def _changed_tree(rng: random.Random, tree: Any) -> Any:
    if isinstance(tree, (dict, list)) and tree and rng.random() < 0.95:
        pairs = list(tree.items() if isinstance(tree, dict) else enumerate(tree))
        place, kind = rng.randrange(len(pairs)), rng.random()
        key, value = pairs[place]
        if kind < 0.1:
            del pairs[place]
        elif kind < 0.2:
            pairs.append((rng.choice((*TEXTS, *tree)) if isinstance(tree, dict) else key, value))
        else:
            pairs[place] = key, _changed_tree(rng, value)
        return dict(pairs) if isinstance(tree, dict) else [value for _, value in pairs]
    if isinstance(tree, (int, float)) and rng.random() < 0.5:
        return rng.choice((*INTEGERS, tree + 1, -tree, tree * 1000, 0.5, 1e300))
    return rng.choice((*INTEGERS, *TEXTS, None, True, [], {}, [tree], [[[tree]]], {"a": tree}, 1.5, "\ud800"))


def _changed_gzip(rng: random.Random, data: bytes, name: str) -> bytes:
    try:
        inner = gzip.decompress(data)
    except (OSError, EOFError, zlib.error):
        return changed_bytes(rng, data, data)
    return gzip.compress(_changed(rng, name.removesuffix(".gz"), inner, inner), 1, mtime=0)


def _changed_darshan(rng: random.Random, data: bytes, name: str) -> bytes:
    """A log with one of its regions unpacked, changed and packed again, and the table of regions that belongs to it."""
    container = CONTAINERS.get(data[:4].decode("latin-1"))
    if container is None or len(data) < container.header_bytes or data[16] > 2 or rng.random() < 0.1:
        return changed_bytes(rng, data[:1400], data) + data[1400:]
    order = "<" if data[8] == 0x37 else ">"
    table = [
        struct.unpack_from(order + "QQ", data, container.maps_at + 16 * slot) for slot in range(1 + container.slots)
    ]
    used = [slot for slot, (offset, length) in enumerate(table) if length and offset + length <= len(data)]
    starts = [table[slot][0] for slot in used]
    regions = {slot: data[table[slot][0] : sum(table[slot])] for slot in used}
    regions[-1] = data[container.header_bytes : min(starts, default=len(data))]  # the job record
    chosen = rng.choice(list(regions))
    unpack, pack = _COMPRESSIONS[data[16]]
    try:
        inner = unpack(regions[chosen])
    except (OSError, EOFError, ValueError, zlib.error):
        return changed_bytes(rng, data, data)
    regions[chosen] = pack(changed_bytes(rng, inner, inner))
    head, body = bytearray(data[: container.header_bytes]), bytearray(regions.pop(-1))
    for slot, region in sorted(regions.items()):
        struct.pack_into(order + "QQ", head, container.maps_at + 16 * slot, len(head) + len(body), len(region))
        body += region
    return bytes(head + body)


def _inflated(data: bytes) -> bytes:
    """All zlib streams of a region, one after the other."""
    found = b""
    while data:
        stream = zlib.decompressobj()
        found += stream.decompress(data)
        if not stream.eof:
            raise ValueError("cut off")
        data = stream.unused_data
    return found


_COMPRESSIONS: dict[int, tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]] = {
    0: (_inflated, zlib.compress),
    1: (bz2.decompress, bz2.compress),
    2: (bytes, bytes),
}


def _changed_parquet(rng: random.Random, data: bytes, name: str) -> bytes:
    """A footer with changed bytes, whose length is right; or a sound file with another value, type, number or order of
    columns or rows."""
    length = int.from_bytes(data[-8:-4], "little")
    if rng.random() < 0.5 and 0 < length <= len(data) - 8:
        footer = data[-8 - length : -8]
        for _ in range(rng.choice((1, 1, 2))):
            footer = changed_bytes(rng, footer, footer)
        return data[: -8 - length] + footer + len(footer).to_bytes(4, "little") + b"PAR1"
    try:
        table = pq.ParquetFile(io.BytesIO(data)).read(use_threads=False)
    except (pa.ArrowException, OSError, ValueError):
        return data[: rng.randrange(len(data) + 1)]
    if not table.num_columns:
        return data
    kind, place, rows = rng.randrange(8), rng.randrange(table.num_columns), table.num_rows
    if kind == 0:
        table = table.remove_column(place)
    elif kind == 1 and rows:
        table = table.take(pa.array([rng.randrange(rows) for _ in range(rows)]))
    elif kind == 2:
        table = table.slice(rng.randrange(rows + 1), rng.randrange(rows + 2))
    elif kind == 3 and rows:
        table = pa.concat_tables([table] * rng.choice((2, 3)))
    else:
        column = _changed_column(rng, table.column(place).combine_chunks())
        table = table.set_column(place, table.schema.names[place], column)
    sink = io.BytesIO()
    groups, told = rng.choice((None, 3, 20)), rng.random() < 0.9
    pq.write_table(table, sink, row_group_size=groups, write_statistics=told, write_page_checksum=True)
    return sink.getvalue()


def _changed_column(rng: random.Random, column: pa.Array) -> pa.Array:
    """Some values replaced, or all of them of another type."""
    kind = rng.choice(_TYPES) if rng.random() < 0.15 else column.type
    number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    values = column.to_pylist()
    for _ in range(rng.choice((1, 1, 3, len(values)))):
        if values:
            values[rng.randrange(len(values))] = rng.choice((rng.choice(INTEGERS if number else TEXTS), None, 0.5))
    try:
        return pa.array(values, type=kind.value_type if pa.types.is_dictionary(kind) else kind).cast(kind)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        kept = [rng.choice((0, 1, None)) if number else None for _ in values]
        return pa.array(kept, type=kind if number else pa.int64())


def _changed_message(rng: random.Random, data: bytes, name: str) -> bytes:
    """A message of protobuf with one field, at any depth, lost, doubled, moved, or of another number, value or type.
    Lengths stay right around what changes, so that the change is reached."""
    fields = _fields(data)
    if not fields:
        return data + rng.randbytes(rng.choice((1, 4)))
    begin, after_key, payload, end, kind = rng.choice(fields)
    key, choice = data[begin:after_key], rng.randrange(5)
    if kind == 2 and rng.random() < 0.75:
        own = data[payload:end]
        inner = _changed_message(rng, own, name) if _fields(own) else rng.randbytes(len(own))
        new = key + varint(len(inner)) + inner
    elif choice == 0:
        new = b""
    elif choice == 1:
        new = data[begin:end] * 2
    elif choice == 2:
        before = rng.choice(fields)[0]
        return data[:before] + data[begin:end] + data[before:]
    elif choice == 3:
        new = varint(rng.choice((1, 2, 3, 4, 5, 7, 9, 60)) << 3 | rng.choice((kind, kind, 0, 1, 2, 5)))
        new += data[after_key:end]
    elif kind == 0:
        new = key + varint(rng.choice((*(each for each in INTEGERS if 0 <= each < 1 << 64), rng.randrange(40))))
    else:
        new = data[begin:payload] + rng.randbytes(end - payload)
    return data[:begin] + new + data[end:]


def _fields(data: bytes) -> list[tuple[int, int, int, int, int]]:
    """Of each field: begin, end of its key, begin and end of its payload, type; none of what is no message."""
    found, at = [], 0
    while at < len(data):
        begin = at
        key, at = _number(data, at)
        payload, after_key = at, at
        if key & 7 == 0:
            _, at = _number(data, at)
        elif key & 7 == 2:
            length, payload = _number(data, at)
            at = payload + length
        else:
            at += {1: 8, 5: 4}.get(key & 7, len(data) + 1)
        if at > len(data) or not key >> 3:
            return []
        found.append((begin, after_key, payload, at, key & 7))
    return found


def _number(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        byte, at = data[at], at + 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    return 0, len(data) + 1


_BY_ENDING: dict[str, Callable[[random.Random, bytes, str], bytes]] = {
    ".gz": _changed_gzip, ".darshan": _changed_darshan, ".parquet": _changed_parquet, ".pb": _changed_message,
    ".json": changed_json, ".pfw": changed_json,
}  # fmt: skip
