"""A Darshan log: header, job record, names, mounts, and the decompressed bytes of each module.

Reads log versions 3.00 to 3.41 of either byte order without the Darshan library. A log is never held whole: regions,
which are the concatenated compressed streams of the ranks, are read when asked for. Layouts: darshan-log-format.h;
`header_3_00` in darshan-logutils.c for versions before 3.41.
"""

from __future__ import annotations

import bz2
import stat
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from dxt_replay.traces.errors import LogError, exhausted
from dxt_replay.traces.text import without_secrets
from dxt_replay.traces.units import NS_PER_S, format_bytes, ns_to_seconds

MODULE_NAMES = (
    "NULL", "POSIX", "MPI-IO", "H5F", "H5D", "PNETCDF_FILE", "PNETCDF_VAR", "BG/Q", "LUSTRE", "STDIO",
    "DXT_POSIX", "DXT_MPIIO", "MDHIM", "APXC", "APMPI", "HEATMAP", "DFS", "DAOS",
)  # fmt: skip
"""By module id of log version 3.41 (`DARSHAN_MODULE_IDS`)."""

COMPRESSIONS = ("zlib", "bzip2", "none")
"""Name by the header's comp_type (`enum darshan_comp_type` in darshan-log-format.h)."""

MAX_HEADER_BYTES = 1328
METADATA_BYTES = 1024
JOB_RECORD_BYTES = 4096
"""`DARSHAN_JOB_RECORD_SIZE`: Darshan writes and reads no more."""

NAMES = "the name table"

PIECE_BYTES = 4 << 20
"""Most decompressed bytes of one piece."""

_MAGIC = 6567223
_GZIP, _BZIP2 = b"\x1f\x8b", b"BZh"
_H5D, _PNETCDF_VAR = MODULE_NAMES.index("H5D"), MODULE_NAMES.index("PNETCDF_VAR")
_COMPRESSION_AT = 16
_METADATA_OF_5Q = 5 * 8
_MAX_NPROCS = 1 << 31
_MAX_SECONDS = 1 << 34
_READ_BYTES = 1 << 20
_EXPANSION = 100
_EXPANSION_FLOOR_BYTES = 64 << 20
"""Largest growth of a region, as a factor and in bytes, before it counts as a decompression bomb.

The largest factor in a public log is 52; counters and names are held in memory as a whole."""


def text(raw: bytes) -> str:
    """`raw` as UTF-8; bytes that are not are shown as `\\xNN`."""
    return raw.decode("utf-8", "backslashreplace")


class DamagedLogError(LogError):
    """Damage. `problem` is the message without its remedy. `missing`: how much lies behind it, as text."""

    def __init__(self, problem: str, missing: str = "not known") -> None:
        super().__init__(f"{problem}: the log is damaged; copy it again, or record the job again")
        self.problem, self.missing = problem, missing


class BombError(DamagedLogError):
    """A region that grows far more than counters or names do; the caller should discard what was unpacked."""


class Mount(NamedTuple):
    """A mounted file system; path and type are `UNKNOWN` for a path that is not under any. exact: bytes of `path`."""

    path: str
    fs_type: str
    exact: bytes = b""


UNKNOWN_MOUNT = Mount(path="UNKNOWN", fs_type="UNKNOWN")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogJob:
    """Who ran what, when, on which file systems. Darshan's time zero lies up to some 60 ms before `start_ns`, and
    differs per rank.

    start_ns, end_ns: ns since the epoch; `end_ns` is 0 in the log of a killed process.
    has_nsec: False where the times are whole seconds (Darshan before 3.4.1).
    mounts: the longest paths first.
    """

    uid: int
    jobid: int
    nprocs: int
    start_ns: int
    end_ns: int
    has_nsec: bool
    exe: str
    metadata: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()

    @property
    def run_time_s(self) -> float | None:
        """Seconds from start to end; None if the log lacks it (killed, or the end precedes the start).

        Whole seconds are counted inclusively, as in Darshan's own tools: a job within one second ran 1 s.
        """
        if self.end_ns == 0 or self.end_ns < self.start_ns:
            return None
        elapsed = self.end_ns - self.start_ns
        return ns_to_seconds(elapsed if self.has_nsec else elapsed + NS_PER_S)


class Container(NamedTuple):
    """The differences between log versions.

    added_later: modules that had no id yet, so that the later ids were lower.
    slots: entries of the module table; with 64, the partial flag has 64 bits and the job record nanoseconds.
    maps_at: offset of the region table, whose first entry is the name table's.
    counted_names: names carry a length instead of a terminator.
    """

    added_later: tuple[int, ...]
    slots: int = 16
    maps_at: int = 24
    counted_names: bool = False

    @property
    def header_bytes(self) -> int:
        """Size of the header; the job record follows it."""
        return self.maps_at + 16 * (1 + self.slots) + 4 * self.slots

    def module_name(self, slot: int) -> str:
        """The module of a slot of this version's table, by the ids of log version 3.41."""
        for added in self.added_later:
            slot += slot >= added
        return MODULE_NAMES[slot] if 0 < slot < len(MODULE_NAMES) else f"module {slot}"


CONTAINERS: Mapping[str, Container] = {
    "3.00": Container(added_later=(_H5D, _PNETCDF_VAR), counted_names=True),
    "3.10": Container(added_later=(_H5D, _PNETCDF_VAR)),
    "3.20": Container(added_later=(_PNETCDF_VAR,)),
    "3.21": Container(added_later=(_PNETCDF_VAR,)),
    "3.41": Container(added_later=(), slots=64, maps_at=32),
}


class Module(NamedTuple):
    """A module with data in the log.

    offset, length: compressed bytes in the file.
    partial: the module ran out of memory on some rank, so its records are incomplete. The rank is not recorded.
    """

    name: str
    version: int
    offset: int
    length: int
    partial: bool


class DarshanLog:
    """One Darshan log, opened by `open_log`.

    Each region of a damaged log is read up to its first bad block. `damage` and a warning say what is missing.

    version: of the container, such as "3.41". byte_order: "<" or ">". compression: one of COMPRESSIONS.
    modules: the modules with data, by name.
    damage: of the regions read so far, and of those that the file does not hold, by name.
    counters: decoded counters by module, stored by the decoder.
    """

    def __init__(self, path: Path, head: bytes, size: int) -> None:
        self.path = path
        self.byte_order = _byte_order(head, path)
        self.version, self._container = _container(head, path)
        self.compression = COMPRESSIONS[head[_COMPRESSION_AT]]
        self.damage: dict[str, DamagedLogError] = {}
        self.counters: dict[str, Any] = {}
        self._warnings: list[str] = []
        self._size = size
        table = self._numbers("Q", head, self._container.maps_at, 2 + 2 * self._container.slots)
        self._names_at = self._region(NAMES, table[0], table[1])
        self.modules: Mapping[str, Module] = MappingProxyType(dict(self._modules(head, table[2:])))
        # The job has no entry: it fills the space up to the name table, or else up to the first module.
        begins = [self._names_at[0]] if self._names_at[0] and NAMES not in self.damage else []
        begins = begins or [module.offset for module in self.modules.values()]
        offset, data = self._container.header_bytes, b""
        length = max(min(begins, default=size) - offset, 0)
        for piece in pieces(path, offset, length, self.compression, region="the job record"):
            data += piece
            if len(data) >= JOB_RECORD_BYTES:
                break
        has_nsec = self._container.slots == 64
        self.job, warnings = decode_job(data[:JOB_RECORD_BYTES], self.byte_order, has_nsec=has_nsec, place=str(path))
        self._warnings += warnings

    def _numbers(self, code: str, head: bytes, at: int, count: int) -> tuple[int, ...]:
        return struct.unpack_from(f"{self.byte_order}{count}{code}", head, at)

    def _region(self, name: str, offset: int, length: int) -> tuple[int, int]:
        """The place of a region; notes the damage where it does not lie in the file."""
        begin, size = self._container.header_bytes, self._size
        if not length or begin <= offset <= offset + length <= size:
            return offset, length
        inside = begin <= offset < size
        self.damage[name] = DamagedLogError(
            f"{name} of {self.path} lies outside the file (bytes {offset} to {offset + length} of {size})",
            f"{offset + length - size if inside else length:,} of {length:,} compressed bytes",
        )
        return offset if inside else size, length  # reading it finds the end of the file

    def _modules(self, head: bytes, table: tuple[int, ...]) -> Iterator[tuple[str, Module]]:
        container = self._container
        versions = self._numbers("I", head, container.maps_at + 8 * (2 + len(table)), container.slots)
        (partial,) = self._numbers(*(("Q", head, 24, 1) if container.slots == 64 else ("I", head, 20, 1)))
        for slot in range(container.slots):
            name, is_partial = container.module_name(slot), bool(partial >> slot & 1)
            offset, length = self._region(name, *table[2 * slot : 2 * slot + 2])
            if is_partial:
                have = "is incomplete" if length else "has no data"
                self._warnings.append(
                    f"{name} of {self.path} {have}: it ran out of memory while recording (its partial flag is set)"
                )
            if length:
                if name not in MODULE_NAMES:
                    self._warnings.append(f"{name} of {self.path} is unknown to this release and is not read")
                yield name, Module(name, versions[slot], offset, length, is_partial)

    def first_bytes(self, module: str) -> bytes:
        """The first bytes of a module; empty if they cannot be read."""
        try:
            return next(self.chunks(module), b"")
        except DamagedLogError:
            return b""

    @cached_property
    def names(self) -> Mapping[int, bytes]:
        """Record id -> path, the exact bytes that the application gave. Includes `<STDIN>`, `heatmap:POSIX` ..."""
        data, damage = self.content(pieces(self.path, *self._names_at, self.compression, region=NAMES))
        found: dict[int, bytes] = {}
        used = 0
        split = _counted_names if self._container.counted_names else _terminated_names
        for record, name, used in split(data, self.byte_order):  # noqa: B007
            # Every rank writes the names that it knows; a rank that knew only the id wrote an empty one.
            if not found.get(record):
                found[record] = name
        if damage is None and data[used:].strip(b"\0"):
            damage = DamagedLogError(f"{NAMES} of {self.path} ends inside a name")
        if damage is not None:
            self.damage[NAMES] = damage
        return MappingProxyType(found)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings for the user, including the damage found so far."""
        len(self.names)  # Reading them finds their damage.
        if not self.damage:
            return tuple(self._warnings)
        found = "; ".join(
            f"{each.problem.replace(f' of {self.path}', '')} (missing: {each.missing})" for each in self.damage.values()
        )
        return (
            *self._warnings,
            f"{self.path} is damaged, and the capture lacks what follows the damage: {found}. Copy the log again, or "
            "record the job again",
        )

    def add_warning(self, message: str) -> None:
        """Add a warning for the user, once."""
        if message not in self._warnings:
            self._warnings.append(message)

    def chunks(self, module: str) -> Iterator[bytes]:
        """Decompressed bytes of a module in file order, at most 4 MiB at a time; nothing when it is absent.

        A chunk never spans two ranks' streams, but a record may span chunks.
        Raises: DamagedLogError, after all readable chunks, when the region is damaged.
        """
        if module not in self.modules:
            return iter(())
        region = self.modules[module]
        return pieces(self.path, region.offset, region.length, self.compression, region=region.name)

    @staticmethod
    def content(chunks: Iterator[bytes]) -> tuple[bytes, DamagedLogError | None]:
        """All bytes of chunks, of a bomb none, and the damage that ended them."""
        data = bytearray()
        try:
            for chunk in chunks:
                data += chunk
        except DamagedLogError as error:
            return b"" if isinstance(error, BombError) else bytes(data), error
        return bytes(data), None

    def mount_of(self, path: bytes) -> Mount:
        """The mount with the longest path that contains `path`, else UNKNOWN_MOUNT."""
        for mount in self.job.mounts:
            prefix = mount.exact
            if path.startswith(prefix) and (prefix.endswith(b"/") or path[len(prefix) :][:1] in (b"", b"/")):
                return mount
        return UNKNOWN_MOUNT

    def describe(self, record_id: int) -> str:
        """The path of a record for a message, or its id if the log has no readable name."""
        name = self.names.get(record_id)
        return text(name) if name else f"record {record_id}"


def open_log(path: str | Path) -> DarshanLog:
    """Open a Darshan log of version 3.00 to 3.41.

    Raises: LogError when `path` cannot be read, is not a Darshan log, has an unknown container version, or its header
    or job record is damaged.
    """
    path = Path(path)
    try:
        status = path.stat()
        # Opening a FIFO would wait for its writer.
        if not stat.S_ISREG(status.st_mode):
            raise LogError(f"{path} is not a regular file: give a .darshan log")
        with path.open("rb") as file:
            head = file.read(MAX_HEADER_BYTES)
    except (OSError, ValueError) as error:
        raise LogError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    return DarshanLog(path, head, status.st_size)


def _byte_order(head: bytes, path: Path) -> Literal["<", ">"]:
    if not head:
        raise LogError(f"{path} is empty: Darshan did not finish writing it, record the job again")
    orders: tuple[Literal["<", ">"], ...] = ("<", ">")
    for byte_order in orders:
        if head[8:16] == struct.pack(byte_order + "q", _MAGIC):
            return byte_order
    if head[:2] == _GZIP or head[:3] == _BZIP2:
        try:
            unpack = zlib.decompressobj(wbits=31) if head[:2] == _GZIP else bz2.BZ2Decompressor()
            begin = unpack.decompress(head, 64)
        except (zlib.error, OSError, EOFError):
            begin = b""
        if begin[:2] in (b"1.", b"2."):  # such a log begins with its version, and is compressed as a whole
            raise LogError(f"{path} is a log of Darshan 1 or 2 (compressed as a whole): record again with Darshan 3")
        raise LogError(
            f"{path} is compressed, and what is in it is not a Darshan log: unpack it, and give what you find"
        )
    raise LogError(f"{path} is not a Darshan log (no magic number): give a .darshan file")


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


def decode_job(data: bytes, byte_order: str, *, has_nsec: bool, place: str) -> tuple[LogJob, list[str]]:
    """The job and warnings about it, from the bytes of its record: `struct darshan_job`, then the command line, then
    one "\\n<type>\\t<path>" per mount.

    Pre-releases of Darshan 3.4 wrote the old record into the new container. They are recognised by the place of the
    metadata, with a warning.
    Raises: DamagedLogError when it is too short or no layout gives possible numbers.
    """
    warnings: list[str] = []
    if len(data) < (7 if has_nsec else 5) * 8 + METADATA_BYTES:
        raise DamagedLogError(f"the job record of {place} has {len(data)} bytes, too few")
    if has_nsec and data[_METADATA_OF_5Q:].startswith(b"lib_ver="):
        has_nsec = False
        warnings.append(f"{place} has the job record of a pre-release: its times are whole seconds")
    if has_nsec:
        uid, start_s, start_ns, end_s, end_ns, nprocs, jobid = struct.unpack_from(byte_order + "7q", data)
    else:
        uid, start_s, end_s, nprocs, jobid = struct.unpack_from(byte_order + "5q", data)
        start_ns = end_ns = 0
    seconds, parts = (start_s, end_s), (start_ns, end_ns)
    possible = all(0 <= each < _MAX_SECONDS for each in seconds) and all(0 <= each < NS_PER_S for each in parts)
    if not (possible and 1 <= nprocs <= _MAX_NPROCS):
        raise DamagedLogError(f"the job record of {place} is impossible (nprocs {nprocs}, start {start_s} s)")
    start_ns, end_ns = start_s * NS_PER_S + start_ns, end_s * NS_PER_S + end_ns
    if end_ns == 0:
        warnings.append(f"{place} has no end time, as after a process was killed: the run time is unknown")
    elif end_ns < start_ns:
        warnings.append(f"{place} ends before it starts: the clock was set back, the run time is unknown")
    begin = (7 if has_nsec else 5) * 8
    metadata, trailer = (
        part.partition(b"\0")[0] for part in (data[begin:][:METADATA_BYTES], data[begin + METADATA_BYTES :])
    )
    pairs = (line.partition("=") for line in text(metadata).split("\n"))
    exe, mounts = _exe_and_mounts(trailer)
    job = LogJob(
        uid=uid,
        jobid=jobid,
        nprocs=nprocs,
        start_ns=start_ns,
        end_ns=end_ns,
        has_nsec=has_nsec,
        exe=without_secrets(exe),
        metadata={key: value for key, equals, value in pairs if equals},
        mounts=mounts,
    )
    return job, warnings


def _exe_and_mounts(trailer: bytes) -> tuple[str, tuple[Mount, ...]]:
    """The command line and the mounts behind it, the longest paths first.

    A command line may hold line breaks (`python -c`), and the table may be cut at the record's 4096 bytes, so the
    mounts are the last lines that look like one.
    """
    lines = trailer.split(b"\n")
    parts = [line.partition(b"\t") for line in lines]
    is_mount = [bool(tab and fs_type and path.startswith(b"/")) for fs_type, tab, path in parts]
    end = len(lines)
    if end > 2 and not is_mount[-1] and is_mount[-2]:
        end -= 1
    begin = end
    while begin > 1 and is_mount[begin - 1]:
        begin -= 1
    found = [Mount(text(path), text(fs_type), path) for fs_type, _, path in parts[begin:end]]
    return text(b"\n".join(lines[:begin])), tuple(sorted(found, key=lambda each: -len(each.exact)))


def _terminated_names(data: bytes, byte_order: str) -> Iterator[tuple[int, bytes, int]]:
    """Id and path of each `u64 id, path, NUL` record, and the bytes used so far."""
    read_id = struct.Struct(byte_order + "Q").unpack_from
    used = 0
    while (end := data.find(b"\0", used + 8)) >= 0:
        if end == used + 8 and not any(data[used:end]):
            return  # zeros: the padding after the last name, or millions of bytes without any
        record, name = read_id(data, used)[0], data[used + 8 : end]
        used = end + 1
        yield record, name, used


def _counted_names(data: bytes, byte_order: str) -> Iterator[tuple[int, bytes, int]]:
    """The same for `u64 id, u32 length, path` records, the form of log version 3.00."""
    read_head = struct.Struct(byte_order + "QI").unpack_from
    used = 0
    while used + 12 <= len(data):
        record, length = read_head(data, used)
        begin, used = used + 12, used + 12 + length
        if used > len(data):
            return
        yield record, data[begin:used], used


def pieces(path: Path, offset: int, length: int, compression: str, *, region: str) -> Iterator[bytes]:
    """Decompressed bytes of `length` bytes of the file from `offset`, at most PIECE_BYTES at a time, never empty.

    A piece never spans two streams. A region may grow 100 times, or to 64 MiB.
    Raises: DamagedLogError, after all readable pieces, when a stream is damaged or cut short or the file ends before
    the region does, BombError when it grows more than that.
    """
    # What a header claims beyond the end of the file must not allow more memory.
    allowed = max(_EXPANSION_FLOOR_BYTES, _EXPANSION * min(length, path.stat().st_size))
    produced = used = 0
    try:
        for piece, used in _decompress(_blocks(path, offset, length), compression):  # noqa: B007
            produced += len(piece)
            if produced > allowed:
                raise BombError(
                    f"{region} of {path} grows from {format_bytes(length)} to more than {format_bytes(allowed)}"
                )
            yield piece
    except (zlib.error, EOFError, OSError, ValueError, OverflowError) as error:
        if (remedy := exhausted(error)) is not None:
            raise LogError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}; {remedy}") from error
        raise DamagedLogError(
            f"{region} of {path} cannot be decompressed after {format_bytes(produced)} ({error})",
            f"{length - used:,} of {length:,} compressed bytes",
        ) from error


def _blocks(path: Path, offset: int, length: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        file.seek(offset)
        while length:
            block = file.read(min(length, _READ_BYTES))
            if not block:
                raise EOFError("the file ends before the region does")
            length -= len(block)
            yield block


def _decompress(blocks: Iterable[bytes], compression: str) -> Iterator[tuple[bytes, int]]:
    """Pieces, and how many bytes of the blocks are used up by then."""
    fed, open_stream = 0, False
    begin: Callable[[], Any] = zlib.decompressobj if compression == "zlib" else bz2.BZ2Decompressor
    stream = begin()
    for block in blocks:
        data, fed = block, fed + len(block)
        if compression == "none":
            yield block, fed
            continue
        # bzip2 keeps what it has not unpacked yet, zlib gives it back.
        while data or not getattr(stream, "needs_input", True):
            piece = stream.decompress(data, PIECE_BYTES)
            data, open_stream = getattr(stream, "unconsumed_tail", b""), True
            if stream.eof:
                data, open_stream, stream = stream.unused_data, False, begin()
            if piece:
                yield piece, fed - len(data)
    if open_stream:
        raise EOFError("a compressed stream ends early")
