"""What can be read in the files of a capture: every text and number of its tables, its JSON, and the raw bytes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq


def texts_of(directory: Path) -> Iterator[bytes]:
    """The raw bytes of each file, and all that it holds once its pages are decompressed."""
    for file in sorted(path for path in directory.rglob("*") if path.is_file()):
        yield file.relative_to(directory).as_posix().encode()
        yield file.read_bytes()
        if file.suffix == ".parquet":
            yield from _parquet(file)
        else:
            yield json.dumps(json.loads(file.read_bytes()), ensure_ascii=False).encode("utf-8", "surrogatepass")


def _parquet(file: Path) -> Iterator[bytes]:
    with pq.ParquetFile(file) as opened:
        yield repr(opened.metadata.metadata).encode()
        yield repr(opened.schema_arrow.metadata).encode()
        yield repr(opened.metadata.to_dict()).encode()
        for group in range(opened.num_row_groups):
            for column in opened.read_row_group(group).columns:
                values = (
                    column.unique().to_pylist() if column.type.__class__.__name__ != "ListType" else column.to_pylist()
                )
                yield b"\n".join(map(_bytes, values))


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")


def found_in(directory: Path, secrets: Iterable[bytes]) -> set[bytes]:
    """The secrets that occur anywhere in the capture, in any case of their letters."""
    texts = [text.lower() for text in texts_of(directory)]
    return {secret for secret in secrets if any(secret.lower() in text for text in texts)}
