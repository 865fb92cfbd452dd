"""Decodes the header of a Darshan log: version, byte order, compression, and the place of each region.

Layout: `struct darshan_header` in darshan-log-format.h; before log version 3.41 `header_3_00` in darshan-logutils.c.
"""

from __future__ import annotations

import bz2
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from dxt_replay.profiler_merge.darshan.job import text
from dxt_replay.profiler_merge.darshan.regions import COMPRESSIONS, DamagedLogError
from dxt_replay.traces.errors import LogError

ByteOrder = Literal["<", ">"]

MODULE_NAMES = (
    "NULL", "POSIX", "MPI-IO", "H5F", "H5D", "PNETCDF_FILE", "PNETCDF_VAR", "BG/Q", "LUSTRE", "STDIO",
    "DXT_POSIX", "DXT_MPIIO", "MDHIM", "APXC", "APMPI", "HEATMAP", "DFS", "DAOS",
)  # fmt: skip
"""By module id of log version 3.41 (`DARSHAN_MODULE_IDS`)."""

MAX_HEADER_BYTES = 1328
NAMES = "the name table"

_MAGIC = 6567223
_GZIP, _BZIP2 = b"\x1f\x8b", b"BZh"
_H5D = MODULE_NAMES.index("H5D")
_PNETCDF_VAR = MODULE_NAMES.index("PNETCDF_VAR")
_COMPRESSION_AT = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """The differences between log versions.

    added_later: modules that had no id yet, so that the later ids were lower.
    wide: 64 module slots and a 64-bit partial flag, instead of 16 and 32.
    has_nsec: the job record holds nanoseconds.
    counted_names: names carry a length instead of a terminator.
    """

    added_later: tuple[int, ...]
    wide: bool = False
    has_nsec: bool = False
    counted_names: bool = False

    @property
    def slots(self) -> int:
        """Entries of the module table."""
        return 64 if self.wide else 16

    @property
    def header_bytes(self) -> int:
        """Size of the header; the job record follows it."""
        return self.maps_at + 16 * (1 + self.slots) + 4 * self.slots

    @property
    def maps_at(self) -> int:
        """Offset of the region table, whose first entry is the name table's."""
        return 32 if self.wide else 24

    @property
    def partial(self) -> tuple[int, str]:
        """Offset and `struct` code of the partial flag."""
        return (24, "Q") if self.wide else (20, "I")

    def module_id(self, slot: int) -> int:
        """The id of log version 3.41 for a slot of this version's table."""
        for added in self.added_later:
            slot += slot >= added
        return slot


CONTAINERS: Mapping[str, Container] = {
    "3.00": Container(added_later=(_H5D, _PNETCDF_VAR), counted_names=True),
    "3.10": Container(added_later=(_H5D, _PNETCDF_VAR)),
    "3.20": Container(added_later=(_PNETCDF_VAR,)),
    "3.21": Container(added_later=(_PNETCDF_VAR,)),
    "3.41": Container(added_later=(), wide=True, has_nsec=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A module with data in the log.

    offset, length: compressed bytes in the file.
    partial: the module ran out of memory on some rank, so its records are incomplete. The rank is not recorded.
    """

    name: str
    version: int
    offset: int
    length: int
    partial: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """A decoded header.

    job, names: (offset, compressed length) in the file; the length is 0 when absent.
    damage: of the regions that do not lie in the file, by name.
    """

    version: str
    container: Container
    byte_order: ByteOrder
    compression: str
    job: tuple[int, int]
    names: tuple[int, int]
    modules: Mapping[str, Module]
    warnings: tuple[str, ...]
    damage: Mapping[str, DamagedLogError]


def decode_header(head: bytes, size: int, path: Path) -> Header:
    """The header from the first MAX_HEADER_BYTES bytes of a file of `size` bytes.

    Raises: LogError when it is not a Darshan log, has an unknown container version or compression, or is cut short.
    """
    byte_order = _byte_order(head, path)
    version, container = _container(head, path)
    table = struct.unpack_from(f"{byte_order}{2 + 2 * container.slots}Q", head, container.maps_at)
    versions = struct.unpack_from(f"{byte_order}{container.slots}I", head, container.maps_at + 8 * len(table))
    partial_at, partial_code = container.partial
    partial = struct.unpack_from(byte_order + partial_code, head, partial_at)[0]
    warnings: list[str] = []
    damage: dict[str, DamagedLogError] = {}

    def region(name: str, offset: int, length: int) -> tuple[int, int]:
        if not length or container.header_bytes <= offset <= offset + length <= size:
            return offset, length
        inside = container.header_bytes <= offset < size
        damage[name] = DamagedLogError(
            f"{name} of {path} lies outside the file (bytes {offset} to {offset + length} of {size})",
            f"{offset + length - size if inside else length:,} of {length:,} compressed bytes",
        )
        return offset if inside else size, length  # reading it finds the end of the file

    names = region(NAMES, table[0], table[1])
    modules: dict[str, Module] = {}
    for slot in range(container.slots):
        name = _module_name(container.module_id(slot))
        is_partial = bool(partial >> slot & 1)
        offset, length = region(name, *table[2 + 2 * slot : 4 + 2 * slot])
        if length:
            modules[name] = Module(name=name, version=versions[slot], offset=offset, length=length, partial=is_partial)
        warnings += _module_warnings(name, bool(length), is_partial, path)
    # The job has no entry: it fills the space up to the name table, or else up to the first module.
    begins = [names[0]] if names[0] and NAMES not in damage else [module.offset for module in modules.values()]
    job_end = min(begins, default=size)
    return Header(
        version=version,
        container=container,
        byte_order=byte_order,
        compression=COMPRESSIONS[head[_COMPRESSION_AT]],
        job=(container.header_bytes, job_end - container.header_bytes),
        names=names,
        modules=MappingProxyType(modules),
        warnings=tuple(warnings),
        damage=damage,
    )


def _byte_order(head: bytes, path: Path) -> ByteOrder:
    if not head:
        raise LogError(f"{path} is empty: Darshan did not finish writing it, record the job again")
    orders: tuple[ByteOrder, ...] = ("<", ">")
    for byte_order in orders:
        if head[8:16] == struct.pack(byte_order + "q", _MAGIC):
            return byte_order
    if _unpacked(head)[:2] in (b"1.", b"2."):  # such a log begins with its version, and is compressed as a whole
        raise LogError(f"{path} is a log of Darshan 1 or 2 (compressed as a whole): record again with Darshan 3")
    if head[:2] == _GZIP or head[:3] == _BZIP2:
        raise LogError(
            f"{path} is compressed, and what is in it is not a Darshan log: unpack it, and give what you find"
        )
    raise LogError(f"{path} is not a Darshan log (no magic number): give a .darshan file")


def _unpacked(head: bytes) -> bytes:
    """The first bytes of the content that begins with `head`, if it is compressed; else empty."""
    try:
        if head[:2] == _GZIP:
            return zlib.decompressobj(wbits=31).decompress(head, 64)
        return bz2.BZ2Decompressor().decompress(head, 64) if head[:3] == _BZIP2 else b""
    except (zlib.error, OSError, EOFError):
        return b""


def _container(head: bytes, path: Path) -> tuple[str, Container]:
    version = text(head[:8].partition(b"\0")[0])
    container = CONTAINERS.get(version)
    if container is None:
        known = ", ".join(CONTAINERS)
        raise LogError(f"{path} is a Darshan log of version {version!r}; this release reads {known}: update dxt-replay")
    if len(head) < container.header_bytes:
        raise LogError(f"{path} ends inside its header: the log is damaged, copy or record it again")
    if head[_COMPRESSION_AT] >= len(COMPRESSIONS):
        raise LogError(
            f"{path} is compressed by method {head[_COMPRESSION_AT]}, unknown to this release: update dxt-replay"
        )
    return version, container


def _module_name(module_id: int) -> str:
    return MODULE_NAMES[module_id] if 0 < module_id < len(MODULE_NAMES) else f"module {module_id}"


def _module_warnings(name: str, present: bool, partial: bool, path: Path) -> list[str]:
    warnings = []
    if partial:
        have = "is incomplete" if present else "has no data"
        warnings.append(f"{name} of {path} {have}: it ran out of memory while recording (its partial flag is set)")
    if present and name not in MODULE_NAMES:
        warnings.append(f"{name} of {path} is unknown to this release and is not read")
    return warnings
