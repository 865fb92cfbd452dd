"""Makes, looks at and removes many files of one directory: one compiled call for all of them.

A small file has its own name from the start and is written at once: a temporary name and a rename cost as much as the
rest of it. One that a crash cut short is known by the manifest, which lists it as planned, and by its bytes, the start
of its noise (`replay.target.stage_plan`).

Each call takes the descriptor of a directory and goes through the names in order, without the interpreter lock. It
counts in done[0] (int64) the files that it finished, and returns 0, or the errno of the first that was refused. Names
are columns, as nothing else is fast enough: `FileNames`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dxt_replay.replay.target import _small_files
from dxt_replay.replay.target.content import noise_block

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


def write_small_files(
    directory: int, names: FileNames, sizes: np.ndarray, record_ids: np.ndarray, done: np.ndarray
) -> int:
    """Make files with the start of their noise, none of which may exist; of the one that was refused nothing is left.

    `sizes`, `record_ids`: int64 and uint64, one a name.
    """
    return _small_files.write(directory, names.text, names.begins, names.ends, sizes, record_ids, noise_block(), done)


def look_at_files(directory: int, names: FileNames, found: np.ndarray, done: np.ndarray) -> int:
    """Set in `found`, int64[names, 3], the mode (0 where there is nothing), the size and the links of each name."""
    return _small_files.look(directory, names.text, names.begins, names.ends, found, done)


def remove_files(directory: int, names: FileNames, done: np.ndarray) -> int:
    """Remove plain files, counted in done[1] (`done` int64[2]), and leave everything else."""
    return _small_files.remove(directory, names.text, names.begins, names.ends, done)
