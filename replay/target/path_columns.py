"""Paths as columns: directories, names and collisions of millions of them without an object for each.

A column is a `pa.LargeStringArray`; its paths have `/` between names, and none is null.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

TEXT = pa.large_string()  # The paths of a few million files may have more bytes together than pa.string() can hold
ROWS_AT_A_TIME = 1 << 16


def column(paths: pa.Array | pa.ChunkedArray | Sequence[str | None]) -> pa.LargeStringArray:
    """The paths as one column."""
    if not isinstance(paths, (pa.Array, pa.ChunkedArray)):
        return pa.array(paths, TEXT)
    found = paths.cast(TEXT)
    if isinstance(found, pa.ChunkedArray):
        return found.chunk(0) if found.num_chunks == 1 else found.combine_chunks()
    return found


def booleans(values: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """A column of truth values as bool[rows]."""
    found: np.ndarray = np.asarray(values)
    return found


def joined(*texts: str | pa.Array) -> pa.LargeStringArray:
    """Texts and columns, row by row behind each other."""
    parts = [pa.scalar(each, TEXT) if isinstance(each, str) else column(each) for each in texts]
    return pc.binary_join_element_wise(*parts, pa.scalar("", TEXT))


def pieces(count: int) -> Iterator[slice]:
    """Slices of the rows of a column of `count` rows, so that intermediate arrays stay small."""
    return (slice(begin, min(begin + ROWS_AT_A_TIME, count)) for begin in range(0, count, ROWS_AT_A_TIME))


def text_bytes(paths: pa.LargeStringArray) -> tuple[np.ndarray, np.ndarray]:
    """(bytes, bounds): path i is bytes[bounds[i]:bounds[i + 1]]; uint8 and int64[paths + 1], views of the column."""
    _, bounds, data = paths.buffers()
    if not len(paths):
        return np.zeros(0, dtype=np.uint8), np.zeros(1, dtype=np.int64)
    every = np.frombuffer(bounds, dtype=np.int64, count=paths.offset + len(paths) + 1)
    return np.frombuffer(data or b"", dtype=np.uint8), every[paths.offset :]


def parted(paths: pa.LargeStringArray) -> tuple[pa.LargeStringArray, pa.LargeStringArray]:
    """The part of each path before its last `/` ("" without one), and the name after it."""
    both = pc.split_pattern(joined("/", paths), "/", max_splits=1, reverse=True)
    return column(pc.utf8_slice_codeunits(pc.list_element(both, 0), 1)), column(pc.list_element(both, 1))


def by_directory(paths: pa.LargeStringArray) -> tuple[np.ndarray, list[str]]:
    """(number, names): the directory of path i is names[number[i]]; int32[paths], numbered as they first appear."""
    numbers: dict[str, int] = {}
    found = np.empty(len(paths), dtype=np.int32)
    for rows in pieces(len(paths)):
        encoded = parted(paths[rows])[0].dictionary_encode()
        of_piece = [numbers.setdefault(name, len(numbers)) for name in encoded.dictionary.to_pylist()]
        found[rows] = np.array(of_piece, dtype=np.int32)[encoded.indices.to_numpy()]
    return found, list(numbers)


class DirectoryBatch(NamedTuple):
    """Some files of one directory, which is looked up once for all of them. `rows`: of the column of paths."""

    directory: str
    rows: np.ndarray
    names: pa.LargeStringArray

    def path(self, number: int) -> str:
        """The path of one of these files."""
        return f"{self.directory}/{self.names[number]}" if self.directory else str(self.names[number])


def directory_rows(paths: pa.LargeStringArray, most_files: int) -> Iterator[tuple[str, np.ndarray]]:
    """(directory, rows of its files in the order of the column), at most so many files at a time."""
    number, names = by_directory(paths)
    order = np.argsort(number, kind="stable")
    begins = np.flatnonzero(np.diff(number[order], prepend=-1)).tolist()
    for first, end in pairwise([*begins, len(order)]):
        for begin in range(first, end, most_files):
            yield names[number[order[first]]], order[begin : min(begin + most_files, end)]


def directory_batches(paths: pa.LargeStringArray, most_files: int) -> Iterator[DirectoryBatch]:
    """As `directory_rows`, with the names of the files."""
    for directory, rows in directory_rows(paths, most_files):
        yield DirectoryBatch(directory, rows, parted(paths.take(pa.array(rows)))[1])


def ancestors(paths: pa.LargeStringArray) -> pa.LargeStringArray:
    """All directories above any of the paths, each once; not ""."""
    found, level = set[str](), set(by_directory(paths)[1])
    while level := level - found - {""}:
        found |= level
        level = {path.rpartition("/")[0] for path in level}
    return pa.array(sorted(found), TEXT)


def is_ascending(paths: pa.LargeStringArray) -> bool:
    """Whether the paths are in the order of their bytes, and none comes twice."""
    return all(
        pc.all(pc.less(paths[rows.start : rows.stop], paths[rows.start + 1 : rows.stop + 1]), min_count=0).as_py()
        for rows in pieces(max(len(paths) - 1, 0))
    )


def repeated(paths: pa.LargeStringArray) -> np.ndarray:
    """bool[paths]: which paths come more than once."""
    if is_ascending(paths):
        return np.zeros(len(paths), dtype=bool)
    numbers = paths.dictionary_encode().indices.to_numpy()
    twice: np.ndarray = np.bincount(numbers)[numbers] > 1
    return twice


def rows_in(paths: pa.LargeStringArray, listed: pa.LargeStringArray) -> np.ndarray:
    """int64[paths]: at which row of `listed` each path is; -1 where it is not."""
    if paths.equals(listed):
        return np.arange(len(paths))
    rows: np.ndarray = pc.index_in(paths, value_set=listed).fill_null(-1).to_numpy().astype(np.int64)
    return rows


def ascending_order(paths: pa.LargeStringArray) -> np.ndarray:
    """int64[paths]: the rows in the order of the bytes of their paths."""
    if is_ascending(paths):
        return np.arange(len(paths))
    order: np.ndarray = pc.sort_indices(paths).to_numpy().astype(np.int64)
    return order


def same_texts(some: pa.Array, others: pa.Array) -> np.ndarray:
    """bool[rows]: True where two columns of text are equal, or both null."""
    both_null = pc.and_(some.is_null(), others.is_null())
    return booleans(pc.or_(both_null, pc.equal(some, others).fill_null(False)))
