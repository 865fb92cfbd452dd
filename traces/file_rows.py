"""Rows of the files table: exact paths, and which files were probably memory-mapped."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

STANDARD_STREAMS = ("<STDIN>", "<STDOUT>", "<STDERR>")
"""What Darshan calls the streams that every program begins with."""


def without_dots(path: bytes) -> bytes:
    """An absolute path without `.`, `..` and doubled slashes, as if no part of it were a link."""
    kept: list[bytes] = []
    for part in path.split(b"/"):
        if part == b"..":
            del kept[-1:]
        elif part not in (b"", b"."):
            kept.append(part)
    return b"/" + b"/".join(kept)


def exact_paths(files: pa.Table) -> list[bytes]:
    """The exact bytes of each path of a `FILES_SCHEMA` table, by file_id."""
    shown, exact = files["path"].to_pylist(), files["path_bytes"].to_pylist()
    return [path.encode() if raw is None else raw for path, raw in zip(shown, exact, strict=True)]


def probably_mapped(files: pa.Table) -> np.ndarray:
    """Files, bool (n,), that were opened and positioned at POSIX but neither read nor written at any interface.

    So `numpy.memmap`, `torch.load(mmap=True)` and the like leave their input in Darshan's counters: they seek to the
    end for its size and map it. The page faults that read it are in no counter and in no trace.
    """
    result: np.ndarray = opened_only(files) & _counted(files, "posix_seeks")
    return result


def opened_only(files: pa.Table) -> np.ndarray:
    """Files, bool (n,), that were opened at POSIX and neither read nor written at any interface.

    With data in them they were mapped, most likely: `mmap`, pyarrow's memory_map and safetensors ask for the size by
    fstat, which is not counted. Some are only looked at, or locked.
    """
    moved = np.zeros(files.num_rows, dtype=bool)
    for interface in ("posix", "stdio", "mpiio", "h5d"):
        moved |= _counted(files, f"{interface}_reads") | _counted(files, f"{interface}_writes")
    standard = pc.starts_with(files["path"], "<").to_numpy(zero_copy_only=False)  # <STDIN> and its like
    result: np.ndarray = _counted(files, "posix_opens") & ~moved & ~standard
    return result


def _counted(files: pa.Table, name: str) -> np.ndarray:
    values: np.ndarray = files[name].fill_null(0).to_numpy()
    return values > 0
