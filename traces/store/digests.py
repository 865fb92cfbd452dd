"""SHA-256 digests of the files of a capture: taken while they are written, and kept in `capture.json`.

A writer of Parquet leaves the digest of its file beside it (`.NAME.sha256`), wherever it runs; whoever writes
`capture.json` gathers the digests and removes those files. `capture.json` carries its own digest too, taken with that
digest's 64 digits as zeros. The digests find damage, not a forger, who can write new ones.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

DOCUMENT = "capture.json"

_NO_DIGEST = "0" * 64
_OWN_DIGEST = re.compile(rb'"capture\.json": "([0-9a-f]{64})"')
"""The digest of `capture.json` in its text: the first place, since no free text comes before the digests."""

_BESIDE = re.compile(r"\.(.+\.parquet)\.sha256")
_BLOCK_BYTES = 1 << 20


class DigestedParquet:
    """A Parquet file that is hashed as it is written. Raises: OSError, ArrowException when the disk refuses."""

    def __init__(self, path: Path, schema: pa.Schema, **options: Any) -> None:
        self._path = path
        self._sink = _HashedFile(path)
        self._writer = pq.ParquetWriter(pa.PythonFile(self._sink, mode="w"), schema, **options)

    def write_table(self, table: pa.Table, row_group_size: int | None = None) -> None:
        """Append a table of the schema, in row groups of so many rows."""
        self._writer.write_table(table, row_group_size=row_group_size)

    def close(self) -> None:
        """Write the footer, and the digest beside the file."""
        try:
            self._writer.close()
        finally:
            self._sink.close()
        _beside(self._path).write_bytes(self._sink.digest.hexdigest().encode())


class _HashedFile:
    """What pyarrow needs of a file that it writes from its first byte to its last."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "wb")  # noqa: SIM115 - pyarrow closes it
        self.digest = hashlib.sha256()

    @property
    def closed(self) -> bool:
        return self._file.closed

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        return self._file.write(data)

    def tell(self) -> int:
        return self._file.tell()

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def file_digest(path: Path) -> str:
    """SHA-256 of a file, in hex. Raises: OSError when it cannot be read."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def digests_beside(paths: Iterable[Path]) -> Callable[[Path], str]:
    """The digests of these files, which a thread takes beside what else is done: it needs no interpreter lock.

    The returned function waits for it, and raises OSError where a file cannot be read.
    """
    found: dict[Path, str | OSError] = {}

    def take() -> None:
        for path in paths:
            try:
                found[path] = file_digest(path)
            except OSError as error:
                found[path] = error

    thread = threading.Thread(target=take, name="digests", daemon=True)
    thread.start()

    def digest(path: Path) -> str:
        thread.join()
        taken = found[path]
        if isinstance(taken, OSError):
            raise taken
        return taken

    return digest


def gathered_digests(directory: Path) -> dict[str, str]:
    """Path below `directory` -> digest of every Parquet file there, and `capture.json` without one yet.

    Those that a writer left beside its file are taken and removed; a file without one is read. Raises: OSError.
    """
    found = {DOCUMENT: _NO_DIGEST}
    for path in sorted(directory.rglob("*.parquet")):
        beside = _beside(path)
        try:
            digest = beside.read_bytes().decode()
        except FileNotFoundError:
            digest = file_digest(path)
        found[path.relative_to(directory).as_posix()] = digest
        beside.unlink(missing_ok=True)
    return found


def remove_digest(path: Path) -> None:
    """Remove the digest beside a file that is taken back."""
    with suppress(OSError):
        _beside(path).unlink(missing_ok=True)


def is_digest_name(name: str) -> str | None:
    """The name of the file that the digest of this name belongs to; None for any other name."""
    match = _BESIDE.fullmatch(name)
    return None if match is None else match[1]


def sealed(text: str) -> str:
    """The text of `capture.json` with its own digest in the place that `gathered_digests` left for it."""
    own = hashlib.sha256(text.encode()).hexdigest()
    return text.replace(f'"{DOCUMENT}": "{_NO_DIGEST}"', f'"{DOCUMENT}": "{own}"', 1)


def own_digests(text: bytes) -> tuple[str, str] | None:
    """The digest that the bytes of `capture.json` carry, and the one that they have; None where they carry none."""
    match = _OWN_DIGEST.search(text)
    if match is None:
        return None
    without = text[: match.start(1)] + _NO_DIGEST.encode() + text[match.end(1) :]
    return match[1].decode(), hashlib.sha256(without).hexdigest()


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.sha256")
