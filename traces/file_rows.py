"""Rows of the files table: exact paths, and which files were probably memory-mapped."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

STANDARD_STREAMS = ("<STDIN>", "<STDOUT>", "<STDERR>")
"""Darshan's names of the streams that every program begins with."""


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


def object_folders(files: pa.Table) -> np.ndarray:
    """Files, bool (n,), that are folders of an object store, which requests list: `s3://bucket/data/`."""
    found: np.ndarray = pc.match_substring_regex(files["path"], r"^s3://.*/$").to_numpy(zero_copy_only=False)
    return found


def probably_mapped(files: pa.Table) -> np.ndarray:
    """Files, bool (n,), that were opened and positioned at POSIX but neither read nor written at any interface.

    `numpy.memmap` and `torch.load(mmap=True)` leave such counters: they seek to the end for the size, then map the
    file. The page faults that read it are in no counter and in no trace.
    """
    result: np.ndarray = opened_only(files) & _counted(files, "posix_seeks")
    return result


def opened_only(files: pa.Table) -> np.ndarray:
    """Files, bool (n,), that were opened at POSIX and neither read nor written at any interface.

    If they hold data, they were most likely mapped: `mmap`, pyarrow's memory_map and safetensors take the size from
    fstat, which Darshan does not count. Some are only looked at, or locked.
    """
    moved = np.zeros(files.num_rows, dtype=bool)
    for interface in ("posix", "stdio", "mpiio", "h5d"):
        moved |= _counted(files, f"{interface}_reads") | _counted(files, f"{interface}_writes")
    standard = pc.starts_with(files["path"], "<").to_numpy(zero_copy_only=False)  # such as <STDIN>
    result: np.ndarray = _counted(files, "posix_opens") & ~moved & ~standard
    return result


def _counted(files: pa.Table, name: str) -> np.ndarray:
    values: np.ndarray = files[name].fill_null(0).to_numpy()
    return values > 0
