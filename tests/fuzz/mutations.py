"""Changed inputs, from random bytes to changes of the structure below compression, checksums and lengths.

An input is a folder of files: name -> bytes. The end of a name says what a file is.
"""

from __future__ import annotations

import bz2
import gzip
import json
import random
import re
import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dxt_replay.profiler_merge.darshan.log import CONTAINERS
from tests.fuzz.parquet_mutations import changed_footer, changed_table
from tests.fuzz.protobuf_mutations import changed_message

Files = Mapping[str, bytes]

INTEGERS = (0, 1, -1, 2, 7, 127, 128, 255, 65535, 1 << 20, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, (1 << 53) + 1,
            (1 << 61) + 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 64, -(1 << 31), -(1 << 63), 10**25)  # fmt: skip
TEXTS = ("", "/", "..", "/../x", "\0", "\n", "\x1b[31m", "=1+1", "é\u202e", "'\"<b>", "a" * 300, "1e999", "nan", "-1",
         "99999999999999999999", "0x10", "true", "null", "~", "[]", "{}", "1:2", "3d", "!!python/object:x")  # fmt: skip
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
    place, kind = rng.randrange(len(lines)), rng.randrange(4)
    if kind == 0:
        del lines[place]
    elif kind == 1:
        lines.insert(place, rng.choice(lines))
    elif kind == 2:
        lines[place] = b"  " * rng.randrange(4) + lines[place].lstrip()
    else:
        other = rng.randrange(len(lines))
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
    if isinstance(tree, dict) and tree and rng.random() < 0.95:
        key = rng.choice(list(tree))
        rest = {each: value for each, value in tree.items() if each != key}
        kind = rng.random()
        if kind < 0.1:
            return rest
        if kind < 0.15:
            return {**rest, rng.choice((*TEXTS, *tree)): tree[key]}
        return {**tree, key: _changed_tree(rng, tree[key])}
    if isinstance(tree, list) and tree and rng.random() < 0.95:
        place = rng.randrange(len(tree))
        kind = rng.random()
        if kind < 0.1:
            return tree[:place] + tree[place + 1 :]
        if kind < 0.2:
            return [*tree, tree[place]]
        return [*tree[:place], _changed_tree(rng, tree[place]), *tree[place + 1 :]]
    if isinstance(tree, (int, float)) and rng.random() < 0.5:
        return rng.choice((*INTEGERS, tree + 1, -tree, tree * 1000, 0.5, 1e300))
    nested: Any = tree
    for _ in range(rng.choice((1, 3))):
        nested = [nested]
    return rng.choice((*INTEGERS, *TEXTS, None, True, [], {}, nested, {"a": tree}, 1.5, "\ud800"))


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
    return changed_footer(rng, data) if rng.random() < 0.5 else changed_table(rng, data)


_BY_ENDING: dict[str, Callable[[random.Random, bytes, str], bytes]] = {
    ".gz": _changed_gzip,
    ".darshan": _changed_darshan,
    ".parquet": _changed_parquet,
    ".pb": lambda rng, data, name: changed_message(rng, data),
    ".json": changed_json,
    ".pfw": changed_json,
}
