"""Writes the container of a Darshan log: header, job record, names, and a region per module.

Log version 3.41 with zlib, the layout of `struct darshan_header` in darshan-log-format.h, which
`profiler_merge.darshan.header` reads. A region is a concatenation of zlib streams, one per rank, as of MPI jobs.
"""

from __future__ import annotations

import shutil
import struct
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryFile
from types import TracebackType
from typing import IO, Any

from dxt_replay.profiler_merge.darshan.header import CONTAINERS, MAX_HEADER_BYTES, MODULE_NAMES
from dxt_replay.profiler_merge.darshan.job import METADATA_BYTES
from dxt_replay.profiler_merge.darshan.log import JOB_RECORD_BYTES

LOG_VERSION = "3.41"

_COPIED_BYTES = 1 << 20

_LEVEL = 2
"""zlib's level for the regions. Level 6 makes recorded DXT segments 3 to 6 % smaller, random ones not at all, and takes
three times as long."""

_MAGIC = 6567223
_ZLIB = 0
_SLOTS = CONTAINERS[LOG_VERSION].slots
_JOB_NUMBERS = struct.Struct("<7q")

COMMAND_BYTES = JOB_RECORD_BYTES - _JOB_NUMBERS.size - METADATA_BYTES - 1
"""`DARSHAN_EXE_LEN`: bytes that the command line and the mounts share."""


class LogRegions:
    """The regions of a log, gathered in unnamed temporary files of `folder` until `write` joins them.

    A context manager.
    """

    def __init__(self, folder: Path, name: str | None = None) -> None:
        self.folder = folder
        self._name = name
        self._stack = ExitStack()
        self._files: dict[str, IO[bytes]] = {}
        self._streams: dict[str, Any] = {}
        self._versions: dict[str, int] = {}

    def append(self, module: str, version: int, data: bytes) -> None:
        """Add decompressed bytes to a module's current stream."""
        if not data:
            return
        self._begin(module, version)
        if module not in self._streams:
            self._streams[module] = zlib.compressobj(_LEVEL)
        self._files[module].write(self._streams[module].compress(data))

    def _begin(self, module: str, version: int) -> None:
        if module in self._files:
            return
        if self._name is None:
            file: IO[bytes] = TemporaryFile(dir=self.folder)  # noqa: SIM115 - the stack closes it
        else:
            file = open(self._path(module), "wb")  # noqa: SIM115 - the stack closes it
        self._files[module] = self._stack.enter_context(file)
        self._versions[module] = version

    def _path(self, module: str) -> Path:
        return self.folder / f"{self._name}-{module}"

    def pieces(self) -> dict[str, tuple[int, Path]]:
        """By module, its version and the file of its region, which is complete once this context has ended."""
        return {module: (version, self._path(module)) for module, version in self._versions.items()}

    def add_piece(self, module: str, version: int, path: Path) -> None:
        """Append the region at `path`, which `pieces` of other regions named, and remove it."""
        self._begin(module, version)
        with open(path, "rb") as piece:
            shutil.copyfileobj(piece, self._files[module], _COPIED_BYTES)
        path.unlink()

    def end_streams(self) -> None:
        """End the current rank's streams; later data belong to the next rank."""
        for module, stream in self._streams.items():
            self._files[module].write(stream.flush())
        self._streams.clear()

    def write(self, log: IO[bytes], *, job: bytes, names: bytes, partial: Collection[str] = ()) -> None:
        """Write the whole log: `job` and `names` decompressed; `partial` names modules that lack records."""
        self.end_streams()
        log.write(bytes(MAX_HEADER_BYTES))
        log.write(zlib.compress(job))
        table = [(0, 0)] * (1 + _SLOTS)
        table[0] = _placed(log, [zlib.compress(names)])
        versions = [0] * _SLOTS
        for module in sorted(self._files, key=MODULE_NAMES.index):
            slot = MODULE_NAMES.index(module)
            begin = log.tell()
            self._files[module].seek(0)
            shutil.copyfileobj(self._files[module], log)
            table[1 + slot] = (begin, log.tell() - begin)
            versions[slot] = self._versions[module]
        flag = sum(1 << MODULE_NAMES.index(module) for module in partial if module in self._files)
        log.seek(0)
        log.write(struct.pack("<8sqB7xQ", LOG_VERSION.encode(), _MAGIC, _ZLIB, flag))
        log.write(b"".join(struct.pack("<QQ", *region) for region in table))
        log.write(struct.pack(f"<{_SLOTS}I", *versions))

    def __enter__(self) -> LogRegions:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


def encode_job(
    *,
    start_ns: int,
    end_ns: int,
    nprocs: int,
    job_id: int,
    exe: str,
    metadata: Mapping[str, str],
    mounts: Sequence[tuple[str, str]],
) -> tuple[bytes, bool]:
    """The decompressed job record, and whether everything fitted. Times are the epoch's; the user id is unknown, 0.

    `mounts`: (file system type, path). Darshan keeps 1 KiB of metadata and some 3 KiB of command line and mounts.
    """
    second = 1_000_000_000
    numbers = _JOB_NUMBERS.pack(0, *divmod(start_ns, second), *divmod(end_ns, second), nprocs, job_id)
    lines, whole = _fitting([f"{key}={value}\n".encode() for key, value in metadata.items()], METADATA_BYTES - 1)
    # longest first, as Darshan writes them
    ordered = sorted(mounts, key=lambda mount: len(mount[1]), reverse=True)
    table, whole_table = _fitting([f"\n{fs_type}\t{path}".encode() for fs_type, path in ordered], COMMAND_BYTES)
    command = exe.replace("\0", " ").encode()
    room = COMMAND_BYTES - len(table)
    whole = whole and whole_table and len(command) <= room
    cut = command[:room].decode("utf-8", "ignore").encode()
    return numbers + lines.ljust(METADATA_BYTES, b"\0") + cut + table + b"\0", whole


def encode_names(names: Iterable[tuple[int, bytes]]) -> bytes:
    """The decompressed name table from (record id, path)."""
    return b"".join(struct.pack("<Q", record) + path + b"\0" for record, path in names)


def _fitting(lines: Sequence[bytes], room: int) -> tuple[bytes, bool]:
    """The first whole lines that fit, and whether all fit."""
    kept = b""
    for line in lines:
        if len(kept) + len(line) > room:
            return kept, False
        kept += line
    return kept, True


def _placed(log: IO[bytes], parts: Iterable[bytes]) -> tuple[int, int]:
    """Append `parts`; returns their (offset, length) in the log."""
    begin = log.tell()
    for part in parts:
        log.write(part)
    return begin, log.tell() - begin
