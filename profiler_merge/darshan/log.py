"""A Darshan log: job, names, mounts, and the decompressed bytes of each module, without the Darshan library.

Reads log versions 3.00 to 3.41 of either byte order. A log is never held whole: regions are read when asked for.
"""

from __future__ import annotations

import stat
import struct
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dxt_replay.profiler_merge.darshan.header import MAX_HEADER_BYTES, NAMES, ByteOrder, Header, Module, decode_header
from dxt_replay.profiler_merge.darshan.job import UNKNOWN_MOUNT, JobRecord, LogJob, Mount, decode_job, text
from dxt_replay.profiler_merge.darshan.regions import BombError, DamagedLogError, pieces
from dxt_replay.traces.errors import LogError

__all__ = ["DarshanLog", "LogJob", "Module", "Mount", "open_log"]

JOB_RECORD_BYTES = 4096
"""`DARSHAN_JOB_RECORD_SIZE`: Darshan writes and reads no more."""

_ID_BYTES = 8
_COUNTED_HEAD_BYTES = 12


class DarshanLog:
    """One Darshan log, opened by `open_log`.

    Each region of a damaged log is read up to its first bad block. `damage` and a warning say what is missing.

    path: the file.
    version: of the container, such as "3.41".
    byte_order: "<" or ">".
    compression: one of `regions.COMPRESSIONS`.
    job: the job record.
    modules: the modules with data, by name.
    damage: of the regions read so far, and of those that the file does not hold, by name.
    counters: decoded counters by module, stored by the decoder.
    """

    def __init__(self, *, path: Path, header: Header, record: JobRecord) -> None:
        self.path = path
        self.version: str = header.version
        self.byte_order: ByteOrder = header.byte_order
        self.compression: str = header.compression
        self.modules: Mapping[str, Module] = header.modules
        self.job: LogJob = record.job
        self.damage: dict[str, DamagedLogError] = dict(header.damage)
        self._header = header
        self._mounts = record.mounts
        self._warnings = [*header.warnings, *record.warnings]
        self._whole = self
        self.counters: dict[str, Any] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the path; the log is opened again in the other process."""
        return open_log, (self.path,)

    def part(self, regions: Mapping[str, tuple[int, int]]) -> DarshanLog:
        """The same log with only some whole streams of a few modules: (offset in the file, bytes) by module."""
        len(self.names)  # read once for all parts
        part = object.__new__(DarshanLog)  # `copy.copy` would open the log again
        part.__dict__.update(self.__dict__)
        cut = {name: replace(self.modules[name], offset=at, length=size) for name, (at, size) in regions.items()}
        part.modules = MappingProxyType({**self.modules, **cut})
        return part

    def first_bytes(self, module: str) -> bytes:
        """The first bytes of a module, also in a `part` that lacks it; empty if they cannot be read."""
        try:
            return next(self._whole.chunks(module), b"")
        except DamagedLogError:
            return b""

    @cached_property
    def names(self) -> Mapping[int, bytes]:
        """Record id -> path, the exact bytes that the application gave. Includes `<STDIN>`, `heatmap:POSIX` ..."""
        found: dict[int, bytes] = {}
        try:
            self._read_names(found)
        except DamagedLogError as error:
            self.note_damage(NAMES, error)
        return MappingProxyType(found)

    @property
    def notes(self) -> tuple[str, ...]:
        """The warnings without damage: partial and unknown modules, an odd job record."""
        return tuple(self._warnings)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings for the user, including the damage found so far."""
        len(self.names)  # Reading them finds their damage.
        if not self.damage:
            return self.notes
        found = "; ".join(
            f"{each.problem.replace(f' of {self.path}', '')} (missing: {each.missing})" for each in self.damage.values()
        )
        return (
            *self.notes,
            f"{self.path} is damaged, and the capture lacks what follows the damage: {found}. Copy the log again, or "
            "record the job again",
        )

    def add_warning(self, message: str) -> None:
        """Add a warning for the user, once."""
        if message not in self._warnings:
            self._warnings.append(message)

    def note_damage(self, region: str, error: DamagedLogError) -> None:
        """Note where reading of a region ended. Raises: the error in a `part`, whose bounds are a guess."""
        if self._whole is not self:
            raise error
        self.damage[region] = error

    def chunks(self, module: str) -> Iterator[bytes]:
        """Decompressed bytes of a module in file order, at most 4 MiB at a time; nothing when it is absent.

        A chunk never spans two ranks' streams, but a record may span chunks.
        Raises: DamagedLogError, after all readable chunks, when the region is damaged.
        """
        region = self.modules.get(module)
        if region is None:
            return iter(())
        return pieces(self.path, region.offset, region.length, self.compression, region=region.name)

    def mount_of(self, path: bytes) -> Mount:
        """The mount with the longest path that contains `path`, else UNKNOWN_MOUNT."""
        for prefix, mount in self._mounts:
            if path.startswith(prefix) and (prefix.endswith(b"/") or path[len(prefix) :][:1] in (b"", b"/")):
                return mount
        return UNKNOWN_MOUNT

    def describe(self, record_id: int) -> str:
        """The path of a record for a message, or its id if the log has no readable name."""
        name = self.names.get(record_id)
        return text(name) if name else f"record {record_id}"

    def _read_names(self, found: dict[int, bytes]) -> None:
        offset, length = self._header.names
        data = bytearray()
        damage: DamagedLogError | None = None
        try:
            for piece in pieces(self.path, offset, length, self.compression, region=NAMES):
                data += piece
        except BombError as error:
            data, damage = bytearray(), error
        except DamagedLogError as error:
            damage = error
        parse = _counted_names if self._header.container.counted_names else _terminated_names
        used = parse(data, self.byte_order, found)
        if damage is not None:
            raise damage
        if data[used:].strip(b"\0"):
            raise DamagedLogError(f"{NAMES} of {self.path} ends inside a name")


def open_log(path: str | Path) -> DarshanLog:
    """Open a Darshan log of version 3.00 to 3.41.

    Raises: LogError when `path` cannot be read, is not a Darshan log, has an unknown container version, or its header
    or job record is damaged.
    """
    path = Path(path)
    head, size = _read_head(path)
    header = decode_header(head, size, path)
    data = _job_bytes(path, header)
    record = decode_job(data, header.byte_order, has_nsec=header.container.has_nsec, place=str(path))
    return DarshanLog(path=path, header=header, record=record)


def _read_head(path: Path) -> tuple[bytes, int]:
    try:
        status = path.stat()
        # Opening a FIFO would wait for its writer.
        if not stat.S_ISREG(status.st_mode):
            raise LogError(f"{path} is not a regular file: give a .darshan log")
        with path.open("rb") as file:
            return file.read(MAX_HEADER_BYTES), status.st_size
    except (OSError, ValueError) as error:
        raise LogError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _job_bytes(path: Path, header: Header) -> bytes:
    offset, length = header.job
    data = b""
    for piece in pieces(path, offset, max(0, length), header.compression, region="the job record"):
        data += piece
        if len(data) >= JOB_RECORD_BYTES:
            break
    return data[:JOB_RECORD_BYTES]


def _terminated_names(data: bytes | bytearray, byte_order: str, found: dict[int, bytes]) -> int:
    """Add the names of `u64 id, path, NUL` records to `found`; returns the bytes that whole records filled."""
    read_id = struct.Struct(byte_order + "Q").unpack_from
    used = 0
    while (end := data.find(b"\0", used + _ID_BYTES)) >= 0:
        if end == used + _ID_BYTES and not any(data[used:end]):
            break  # zeros: the padding after the last name, or millions of bytes without any
        _add_name(found, read_id(data, used)[0], bytes(data[used + _ID_BYTES : end]))
        used = end + 1
    return used


def _counted_names(data: bytes | bytearray, byte_order: str, found: dict[int, bytes]) -> int:
    """The same for `u64 id, u32 length, path` records, the form of log version 3.00."""
    read_head = struct.Struct(byte_order + "QI").unpack_from
    used = 0
    while used + _COUNTED_HEAD_BYTES <= len(data):
        record_id, length = read_head(data, used)
        end = used + _COUNTED_HEAD_BYTES + length
        if end > len(data):
            break
        _add_name(found, record_id, bytes(data[used + _COUNTED_HEAD_BYTES : end]))
        used = end
    return used


def _add_name(found: dict[int, bytes], record_id: int, name: bytes) -> None:
    # Every rank writes the names that it knows; a rank that knew only the id wrote an empty one.
    if not found.get(record_id):
        found[record_id] = name
