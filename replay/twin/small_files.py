"""Makes many small plain files of one directory, each with its own name from the start and in one write.

A temporary name and a rename cost as much as the rest of a small file. A file that a crash cut short is known by
the manifest, which lists it as planned, and by its bytes, the start of its noise (`replay.twin.stage_plan`).

`write_in_python` is the specification of the compiled core, `replay.twin._small_files`, which does without the
interpreter lock.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress

import numpy as np

from replay.twin.content import make_noise, noise_block

SMALL_BYTES = 256 << 10
"""Largest file that is written like this."""

Writer = Callable[[int, list[bytes], np.ndarray, np.ndarray, np.ndarray, np.ndarray], int]
"""Called with (descriptor of the directory, names, int64 sizes, uint64 record ids, noise, done), the arrays as long as
`names`. Makes the files in order, none of which may exist, and counts those that are whole in `done`, int64[1], as
it goes. Returns 0, or the errno of the first that was refused, of which nothing is left."""


def write_in_python(
    directory: int, names: list[bytes], sizes: np.ndarray, record_ids: np.ndarray, noise: np.ndarray, done: np.ndarray
) -> int:
    """The `Writer` in Python. `noise`: as `replay.twin.content.noise_block`."""
    if not len(names) == len(sizes) == len(record_ids):
        raise ValueError("a size and a record id are needed for each name")
    if max(sizes, default=0) > noise.nbytes:
        raise ValueError(f"a small file has at most {noise.nbytes} bytes, not {max(sizes)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    for name, size, record_id in zip(names, sizes.tolist(), record_ids.tolist(), strict=True):
        words = np.empty(-(-size // 8), dtype=np.uint64)
        make_noise(record_id, 0, words)
        try:
            fd = os.open(name, flags, 0o666, dir_fd=directory)
            try:
                data = memoryview(words.tobytes())[:size]
                while data:
                    data = data[os.write(fd, data) :]
            except OSError:
                with suppress(OSError):
                    os.unlink(name, dir_fd=directory)
                raise
            finally:
                os.close(fd)
        except OSError as error:
            return error.errno or -1
        done[0] += 1
    return 0


def small_files_writer() -> Writer:
    """The compiled core, or the Python one where it was not compiled."""
    try:
        from replay.twin._small_files import write_small_files
    except ImportError:
        return write_in_python
    return write_small_files


def write_small_files(
    directory: int, names: list[bytes], sizes: np.ndarray, record_ids: np.ndarray, done: np.ndarray
) -> int:
    """Make the files with the faster core; arguments and result as `Writer`."""
    return small_files_writer()(directory, names, sizes, record_ids, noise_block(), done)
