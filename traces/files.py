"""Recorded paths: as bytes, by Darshan's id, as rows of the files table, and those that a recording itself wrote."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

STANDARD_STREAMS = ("<STDIN>", "<STDOUT>", "<STDERR>")
"""Darshan's names of the streams that every program begins with."""

_WRITTEN_BY_RECORDERS = re.compile(
    r"(?:.*/)?dxt-anchor\..+\.bin|.*/plugins/profile/.*|.*\.profile-empty"
    r"|.+\.xplane\.pb|.+\.input_pipeline\.pb|.+\.trace\.json(?:\.gz)?|.+\.darshan(?:_partial)?|.+[./]\d+\.\d+\.(?:requests|marks|not_data)",
    re.DOTALL,
)
_REQUEST_LOG = re.compile(r".*\.\d+\.\d+\.requests", re.DOTALL)


def is_request_log(path: str) -> bool:
    """Whether it is a log in which `record` has a process of the job note its requests to object stores."""
    return _REQUEST_LOG.fullmatch(path) is not None


def is_recorder_file(path: str) -> bool:
    """Whether a recorded path is one of dxt-replay's anchors, a profiler's output or a Darshan log."""
    return _WRITTEN_BY_RECORDERS.fullmatch(path) is not None


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


_MASK = (1 << 64) - 1


def record_id(path: bytes | str) -> int:
    """The unsigned 64-bit id under which a Darshan log files `path`; a `str` is hashed as UTF-8.

    Darshan hashes the absolute path without `//` and `/./`; links and `..` stay as the application gave them.
    Obfuscated logs keep the ids, so a guess of the original path can be confirmed. The hash is Bob Jenkins' `lookup8`,
    level 0, which `darshan_core_gen_record_id` calls: http://burtleburtle.net/bob/c/lookup8.c (public domain).
    """
    data = path.encode("utf-8", "surrogateescape") if isinstance(path, str) else path
    a, b, c = 0, 0, 0x9E3779B97F4A7C13
    whole = len(data) - len(data) % 24
    for start in range(0, whole, 24):
        words = (int.from_bytes(data[start + at : start + at + 8], "little") for at in (0, 8, 16))
        a, b, c = _mix(*((have + word) & _MASK for have, word in zip((a, b, c), words, strict=True)))
    rest = data[whole:]
    a = (a + int.from_bytes(rest[:8], "little")) & _MASK
    b = (b + int.from_bytes(rest[8:16], "little")) & _MASK
    # The lowest byte of the last word belongs to the length.
    c = (c + len(data) + (int.from_bytes(rest[16:], "little") << 8)) & _MASK
    return _mix(a, b, c)[2]


def _mix(a: int, b: int, c: int) -> tuple[int, int, int]:
    for right_a, left_b, right_c in ((43, 9, 8), (38, 23, 5), (35, 49, 11), (12, 18, 22)):
        a = ((a - b - c) & _MASK) ^ (c >> right_a)
        b = ((b - c - a) & _MASK) ^ ((a << left_b) & _MASK)
        c = ((c - a - b) & _MASK) ^ (b >> right_c)
    return a, b, c


STREAM_RECORDS = frozenset(map(record_id, STANDARD_STREAMS))
"""Ids of the standard streams, in anonymised logs too."""
