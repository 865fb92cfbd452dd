"""Rows of the files table: the exact bytes of their paths, and numbers of files that have to be among them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from traces.errors import CaptureError


def exact_paths(files: pa.Table) -> list[bytes]:
    """The exact bytes of each path of a `FILES_SCHEMA` table, by file_id."""
    shown, exact = files["path"].to_pylist(), files["path_bytes"].to_pylist()
    return [path.encode() if raw is None else raw for path, raw in zip(shown, exact, strict=True)]


def check_file_ids(file_id: np.ndarray, files: int, where: object, what: str = "an operation") -> None:
    """Raises: CaptureError for a number outside 0..files-1. `where`: the capture or rank, `what` names the file."""
    if len(file_id) and not 0 <= file_id.min() <= file_id.max() < files:
        raise CaptureError(f"{where}: {what} names a file that files.parquet lacks: merge again")
