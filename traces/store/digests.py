"""SHA-256 digests of a capture's files, kept in `capture.json`; `index.parquet` has those of the parts.

A part is hashed while it is written. `capture.json` also holds its own digest, computed with those 64 digits set to
zeros. The digests detect damage, not forgery.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dxt_replay.traces.schema import FILE_METADATA

DOCUMENT = "capture.json"

_NO_DIGEST = "0" * 64
_OWN_DIGEST = re.compile(rb'"capture\.json": "([0-9a-f]{64})"')
"""Pattern of the digest of `capture.json`: the first match, since no free text comes before the digests."""

_BLOCK_BYTES = 1 << 20


class DigestedParquet:
    """A Parquet file that is hashed as it is written. Raises: OSError, ArrowException when the disk refuses."""

    def __init__(self, path: Path, schema: pa.Schema, **options: Any) -> None:
        self._sink = _HashedFile(path)
        # Parquet writes a page in three parts, and each call of Python takes 10 us.
        self._stream = pa.BufferedOutputStream(pa.PythonFile(self._sink, mode="w"), _BLOCK_BYTES)
        self._writer = pq.ParquetWriter(self._stream, schema, **options)
        self._writer.add_key_value_metadata(FILE_METADATA)

    def write_table(self, table: pa.Table, row_group_size: int | None = None) -> None:
        """Append a table of the schema, in row groups of `rows` rows."""
        self._writer.write_table(table, row_group_size=row_group_size)

    def close(self) -> str:
        """Write the footer. Returns: the digest of the file."""
        try:
            self._writer.close()
            self._stream.flush()
        finally:
            self._sink.close()
        return self._sink.digest.hexdigest()


class _HashedFile:
    """The file interface that pyarrow needs to write a file from its first byte to its last."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "wb")  # noqa: SIM115 - pyarrow closes it
        self.digest = hashlib.sha256()

    @property
    def closed(self) -> bool:
        return self._file.closed

    def write(self, data: bytes) -> int:
        if self._file.closed:  # the buffer of a file that could not be written tries again when it is freed
            return len(data)
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
    """Start a thread that hashes these files; hashing needs no interpreter lock.

    The returned function waits for the digests.
    Raises: OSError where a file cannot be read.
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
    """Name -> digest of every Parquet file in `directory`; `capture.json` has none yet. Raises: OSError."""
    return {DOCUMENT: _NO_DIGEST, **{path.name: file_digest(path) for path in sorted(directory.glob("*.parquet"))}}


def sealed(text: str) -> str:
    """The text of `capture.json` with its own digest in the place that `gathered_digests` left for it."""
    own = hashlib.sha256(text.encode()).hexdigest()
    return text.replace(f'"{DOCUMENT}": "{_NO_DIGEST}"', f'"{DOCUMENT}": "{own}"', 1)


def own_digests(text: bytes) -> tuple[str, str] | None:
    """The digest stated in `capture.json` and the one computed from its bytes; None if it states none."""
    match = _OWN_DIGEST.search(text)
    if match is None:
        return None
    without = text[: match.start(1)] + _NO_DIGEST.encode() + text[match.end(1) :]
    return match[1].decode(), hashlib.sha256(without).hexdigest()
