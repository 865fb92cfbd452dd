"""Makes, looks at and removes many files of one directory: one call for all of them.

A small file has its own name from the start and is written at once: a temporary name and a rename cost as much as the
rest of it. One that a crash cut short is known by the manifest, which lists it as planned, and by its bytes, the start
of its noise (`replay.twin.stage_plan`).

`IN_PYTHON` is the specification of the compiled core, `replay.twin._small_files`, which does without the interpreter
lock. Names are columns, as nothing else is fast enough: `FileNames`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from dxt_replay.replay.twin.content import make_noise, noise_block

SMALL_BYTES = 256 << 10
"""Largest file that is written like this."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FileNames:
    """Names of files in one directory: text[begins[i]:ends[i]]; uint8 and int64 arrays."""

    text: np.ndarray
    begins: np.ndarray
    ends: np.ndarray

    def __len__(self) -> int:
        return len(self.begins)

    def __iter__(self) -> Iterator[bytes]:
        for begin, end in zip(self.begins.tolist(), self.ends.tolist(), strict=True):
            if not 0 <= begin <= end <= len(self.text):
                raise ValueError("a name is not within the text")
            yield self.text[begin:end].tobytes()

    def of(self, rows: np.ndarray | slice) -> FileNames:
        """The names in these rows."""
        return FileNames(text=self.text, begins=self.begins[rows], ends=self.ends[rows])


@dataclass(frozen=True, slots=True, kw_only=True)
class FileCalls:
    """The three calls of a core. Each takes the descriptor of a directory and `text, begins, ends` of `FileNames`, goes
    through the names in order and counts in done[0] (int64) those that it finished. It returns 0, or the errno of the
    first that was refused.

    `write`: further int64 sizes, uint64 record ids and `content.noise_block()`; then `done`. Makes the files, none of
    which may exist; of the one that was refused nothing is left.
    `look`: further `found`, int64[names, 3], and `done`. Sets mode (0 where there is nothing), size and links.
    `remove`: further `done`, int64[2]. Removes plain files, counted in done[1], and leaves everything else.
    """

    write: Callable[..., int]
    look: Callable[..., int]
    remove: Callable[..., int]


def _write(
    directory: int,
    text: np.ndarray,
    begins: np.ndarray,
    ends: np.ndarray,
    sizes: np.ndarray,
    record_ids: np.ndarray,
    noise: np.ndarray,
    done: np.ndarray,
) -> int:
    names = FileNames(text=text, begins=begins, ends=ends)
    if not len(names) == len(sizes) == len(record_ids):
        raise ValueError("a size and a record id are needed for each name")
    if max(sizes, default=0) > noise.nbytes:
        raise ValueError(f"a small file has at most {noise.nbytes} bytes, not {max(sizes)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    for name, size, record_id in zip(list(names), sizes.tolist(), record_ids.tolist(), strict=True):
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


def _look(
    directory: int, text: np.ndarray, begins: np.ndarray, ends: np.ndarray, found: np.ndarray, done: np.ndarray
) -> int:
    if found.shape != (len(begins), 3):
        raise ValueError("three numbers are needed for each name")
    for row, name in enumerate(list(FileNames(text=text, begins=begins, ends=ends))):
        try:
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
            found[row] = status.st_mode, status.st_size, status.st_nlink
        except FileNotFoundError:
            found[row] = 0
        except OSError as error:
            return error.errno or -1
        done[0] += 1
    return 0


def _remove(directory: int, text: np.ndarray, begins: np.ndarray, ends: np.ndarray, done: np.ndarray) -> int:
    for name in list(FileNames(text=text, begins=begins, ends=ends)):
        try:
            if stat.S_ISREG(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
                os.unlink(name, dir_fd=directory)
                done[1] += 1
        except FileNotFoundError:
            pass
        except OSError as error:
            return error.errno or -1
        done[0] += 1
    return 0


IN_PYTHON = FileCalls(write=_write, look=_look, remove=_remove)


def file_calls() -> FileCalls:
    """The compiled core, or the Python one where it was not compiled."""
    try:
        from dxt_replay.replay.twin._small_files import look_at_files, remove_files, write_small_files
    except ImportError:
        return IN_PYTHON
    return FileCalls(write=write_small_files, look=look_at_files, remove=remove_files)


def write_small_files(
    directory: int, names: FileNames, sizes: np.ndarray, record_ids: np.ndarray, done: np.ndarray
) -> int:
    """Make the files with the faster core, as `FileCalls.write`."""
    call = file_calls().write
    return call(directory, names.text, names.begins, names.ends, sizes, record_ids, noise_block(), done)


def look_at_files(directory: int, names: FileNames, found: np.ndarray, done: np.ndarray) -> int:
    """Look at the files with the faster core, as `FileCalls.look`."""
    return file_calls().look(directory, names.text, names.begins, names.ends, found, done)


def remove_files(directory: int, names: FileNames, done: np.ndarray) -> int:
    """Remove the files with the faster core, as `FileCalls.remove`."""
    return file_calls().remove(directory, names.text, names.begins, names.ends, done)
