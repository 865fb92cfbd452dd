"""Paths by their directories, so that a directory is looked up once for many of its files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from dxt_replay.replay.target.path_columns import by_directory, name_starts, text_bytes
from dxt_replay.replay.target.small_files import FileNames


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DirectoryBatch:
    """Some files of one directory: `rows` (int64) of the column of paths, with their `names`."""

    directory: str
    rows: np.ndarray
    names: FileNames

    def part(self, rows: np.ndarray | slice) -> DirectoryBatch:
        """Some of these files."""
        return DirectoryBatch(directory=self.directory, rows=self.rows[rows], names=self.names.of(rows))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FilesByDirectory:
    """The rows of a column of paths, `order`, directory by directory, and within each as they are in the column.

    `number`: of the directory of each path in `directories`. `names`: of all paths, in the order of the column.
    """

    directories: list[str]
    number: np.ndarray
    order: np.ndarray
    names: FileNames

    @staticmethod
    def of(paths: pa.LargeStringArray) -> FilesByDirectory:
        """The paths by directory."""
        number, directories = by_directory(paths)
        text, bounds = text_bytes(paths)
        ascending = not len(number) or bool((number[1:] >= number[:-1]).all())
        order = np.arange(len(number)) if ascending else np.argsort(number, kind="stable")
        names = FileNames(text=text, begins=name_starts(paths), ends=bounds[1:])
        return FilesByDirectory(directories=directories, number=number, order=order, names=names)

    def begins(self) -> np.ndarray:
        """bool: where in `order` a directory begins."""
        number = self.number[self.order]
        return np.concatenate((np.ones(min(len(number), 1), dtype=bool), number[1:] != number[:-1]))

    def batch(self, begin: int, end: int) -> DirectoryBatch:
        """The files order[begin:end], which are of one directory."""
        rows = self.order[begin:end]
        return DirectoryBatch(directory=self.directories[self.number[rows[0]]], rows=rows, names=self.names.of(rows))

    def batches(self, most_files: int) -> Iterator[DirectoryBatch]:
        """All files, at most so many of one directory at a time."""
        bounds = [*np.flatnonzero(self.begins()).tolist(), len(self.order)]
        for first, end in pairwise(bounds):
            for begin in range(first, end, most_files):
                yield self.batch(begin, min(begin + most_files, end))
