"""HDF5: a request at an offset becomes a request for the chunk, or the part of a dataset, that lies at this offset.

It works on every HDF5 file whose data lie at the recorded addresses: on a twin, or on the recorded file itself. The
chunk cache and the sieve buffer of the library are off, so that each operation reaches the storage once. The library
has a global lock and h5py another (`phil`), so the lanes of a process take turns in this back end.
"""

from __future__ import annotations

import errno
import os
import threading
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from operator import add
from typing import Any, NamedTuple

import numpy as np

from dxt_replay.replay.engine.files import Backend
from dxt_replay.replay.engine.link_free import open_link_free
from dxt_replay.traces.errors import MissingDependencyError

SPACE_NAME = b"bytes"
SPACE_MARK = b"dxt_replay_byte_space"
"""Attribute of the root group of a file that a run made. The only dataset of such a file is an array of bytes."""

_SPACE_CHUNK_BYTES = 1 << 20
_KEPT_SPACES = 1 << 10


class _Extent(NamedTuple):
    """Data that lie together in the file: a chunk, or a contiguous dataset.

    `start`, `end`: bytes in the file.
    `dataset`: number of the dataset in the file.
    `origin`, `shape`: of the block of points.
    `raw`: whether it can only be read as it is stored, because it is compressed or reaches beyond the dataset's bounds.
    """

    start: int
    end: int
    dataset: int
    origin: tuple[int, ...]
    shape: tuple[int, ...]
    raw: bool


@dataclass(slots=True)
class _Dataset:
    """An open dataset.

    `id`: h5py's DatasetID.
    `fixed`: whether its shape stays the same.
    `spaces`, `memories`: selections for another use, in the file, and in memory by shape. To make one costs as much as
        a read.
    """

    id: Any
    fixed: bool = True
    spaces: list[Any] = field(default_factory=list)
    memories: dict[tuple[int, ...], Any] = field(default_factory=dict)
    kind: Any = field(init=False)
    point_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.kind = self.id.get_type()  # its type in the file, so that nothing is converted
        self.point_bytes = self.kind.get_size()

    def move(
        self, move: Any, origin: Sequence[int], shape: Sequence[int], first: int, last: int, points: np.ndarray
    ) -> None:
        """Read or write points `first` to `last` of the block at `origin`: one call of the library for each box."""
        import h5py

        at = 0
        for start, count in boxes_of(shape, first, last):
            size = prod(count) * self.point_bytes
            try:
                space = self.spaces.pop() if self.fixed else self.id.get_space()
            except IndexError:
                space = self.id.get_space()
            if start:
                space.select_hyperslab(tuple(map(add, origin, start)), count)
            memory = self.memories.get(count)
            if memory is None:
                memory = h5py.h5s.create_simple((prod(count),)) if count else h5py.h5s.create(h5py.h5s.SCALAR)
                if len(self.memories) < _KEPT_SPACES:
                    self.memories[count] = memory
            move(memory, space, points[at : at + size], self.kind)
            if self.fixed:
                self.spaces.append(space)
            at += size

    def read(self, origin: Sequence[int], shape: Sequence[int], begin: int, end: int, view: memoryview) -> None:
        """Read bytes `begin` to `end` of the block of points at `origin`, stored in row-major order."""
        size = self.point_bytes
        first, last = begin // size, -(-end // size)
        whole = first * size == begin and last * size == end
        points = np.frombuffer(view, dtype=np.uint8) if whole else np.empty((last - first) * size, dtype=np.uint8)
        self.move(self.id.read, origin, shape, first, last, points)
        if not whole:
            view[:] = points[begin - first * size : end - first * size].data

    def write(self, origin: Sequence[int], shape: Sequence[int], begin: int, end: int, view: memoryview) -> None:
        """Write bytes `begin` to `end` of the block of points at `origin`. Points that they cut are read first."""
        size = self.point_bytes
        first, last = begin // size, -(-end // size)
        points = np.frombuffer(view, dtype=np.uint8)
        if first * size != begin or last * size != end:
            points = np.empty((last - first) * size, dtype=np.uint8)
            self.read(origin, shape, first * size, last * size, points.data)
            points[begin - first * size : end - first * size] = np.frombuffer(view, dtype=np.uint8)
        self.move(self.id.write, origin, shape, first, last, points)


@dataclass(slots=True)
class Hdf5File:
    """The handle of an open file.

    `extents`: where the data of all datasets lie, by their start; `starts` has these starts.
    `space`: the dataset of bytes of a file that a run made; None for other files, which have extents.
    `users`: how many closes are still to come.
    """

    id: Any
    writable: bool
    datasets: list[_Dataset] = field(default_factory=list)
    extents: list[_Extent] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    space: _Dataset | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)
    users: int = 1

    def pieces(self, offset: int, length: int) -> Iterator[tuple[_Extent, int, int, slice]]:
        """The extents that a request reaches, each with the first byte and the end of the part of it, and where that
        part is in the request. Raises: OSError; ENODATA if there are none."""
        number, reached = max(bisect_right(self.starts, offset) - 1, 0), False
        while number < len(self.extents) and self.extents[number].start < offset + length:
            extent = self.extents[number]
            begin, end = max(offset, extent.start), min(offset + length, extent.end)
            if begin < end:
                reached = True
                yield extent, begin - extent.start, end - extent.start, slice(begin - offset, end - offset)
            number += 1
        if not reached:
            raise OSError(errno.ENODATA, f"no data of a dataset at {offset}")


class Hdf5Backend(Backend):
    """The back end for HDF5 files. Handles are `Hdf5File`.

    A compressed chunk is read as it is stored. The time in which the application inflated it lies between the recorded
    operations, and is replayed there. A file that a run makes has one dataset, an array of bytes that grows; recorded
    offsets are indices of it. A write never follows a symbolic link at the last component (ELOOP).
    """

    name = "hdf5"

    def __init__(self) -> None:
        """Raises: MissingDependencyError without h5py."""
        try:
            import h5py  # noqa: F401
        except ImportError as error:
            raise MissingDependencyError("h5py", "a replay through HDF5", "pip install 'dxt-replay[hdf5]'") from error

    def open(self, path: bytes, *, writable: bool, create: bool) -> Hdf5File:
        """Read-only unless `writable`; looks through the chunk index of every dataset."""
        # The library does not always report an errno, and it would follow a link.
        try:
            os.close(open_link_free(path, os.O_RDWR) if writable else os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        except FileNotFoundError:
            if not (writable and create):
                raise
            os.close(open_link_free(path, os.O_RDWR | os.O_CREAT | os.O_EXCL))
            make_byte_space(path)
        with _os_errors():
            import h5py

            mode = h5py.h5f.ACC_RDWR if writable else h5py.h5f.ACC_RDONLY
            handle = Hdf5File(h5py.h5f.open(path, mode, self.access(path)), writable)
            try:
                _look_through(handle)
            except BaseException:
                handle.id.close()
                raise
            return handle

    def access(self, path: bytes) -> Any:
        """The library's access list for a file: without chunk cache, sieve buffer and file locks."""
        import h5py

        access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
        access.set_fclose_degree(h5py.h5f.CLOSE_STRONG)
        access.set_cache(0, 0, 0, 0.0)
        access.set_sieve_buf_size(0)
        access.set_file_locking(False, True)
        return access

    def size(self, handle: Hdf5File) -> int:
        with _os_errors():
            return int(handle.id.get_filesize() if handle.space is None else handle.space.id.shape[0])

    def read(self, handle: Hdf5File, offset: int, length: int, buffer: memoryview) -> int:
        """One access for each chunk that the request reaches. The buffer is not changed where no chunk lies.

        Raises: OSError; ENODATA where the request reaches no data, but only metadata of the library.
        """
        length = min(length, self.size(handle) - offset)
        if length <= 0:
            return 0
        with _os_errors():
            if handle.space is not None:
                handle.space.read((offset,), (length,), 0, length, buffer[:length])
                return length
            for extent, begin, end, part in handle.pieces(offset, length):
                dataset = handle.datasets[extent.dataset]
                if not extent.raw:
                    dataset.read(extent.origin, extent.shape, begin, end, buffer[part])
                elif end - begin == extent.end - extent.start:
                    dataset.id.read_direct_chunk(extent.origin, out=np.frombuffer(buffer[part], dtype=np.uint8))
                else:
                    buffer[part] = memoryview(dataset.id.read_direct_chunk(extent.origin)[1])[begin:end]
        return length

    def write(self, handle: Hdf5File, offset: int, length: int, data: memoryview) -> int:
        """As `read`. Raises: OSError; ENOTSUP for a compressed chunk."""
        if not handle.writable:
            raise OSError(errno.EBADF, "opened for reading")
        with _os_errors():
            if handle.space is not None:
                with handle.lock:
                    if handle.space.id.shape[0] < offset + length:
                        handle.space.id.set_extent((offset + length,))
                handle.space.write((offset,), (length,), 0, length, data[:length])
                return length
            for extent, begin, end, part in handle.pieces(offset, length):
                if extent.raw:
                    raise OSError(errno.ENOTSUP, "a compressed chunk is not written in place")
                handle.datasets[extent.dataset].write(extent.origin, extent.shape, begin, end, data[part])
        return length

    def close(self, handle: Hdf5File) -> None:
        with handle.lock:
            handle.users -= 1
            if handle.users:
                return
        with _os_errors():
            for dataset in handle.datasets:
                dataset.id.close()
            handle.id.close()

    def another(self, handle: Hdf5File) -> Hdf5File:
        """The same handle, which must then be closed once more: the library shares an open file anyway."""
        with handle.lock:
            handle.users += 1
        return handle

    def sync(self, handle: Hdf5File) -> None:
        import h5py

        with _os_errors():
            h5py.h5f.flush(handle.id)

    def seek(self, handle: Hdf5File, offset: int) -> None:
        """Do nothing: the library's interface has no position."""


def make_byte_space(path: bytes, data: bytes = b"") -> None:
    """Make a file with one array of bytes, the indices of which are the offsets of requests."""
    import h5py

    with _os_errors(), h5py.File(path, "w", locking=False) as file:
        chunks = (_SPACE_CHUNK_BYTES,)
        file.create_dataset(SPACE_NAME, data=np.frombuffer(data, dtype=np.uint8), chunks=chunks, maxshape=(None,))
        file.attrs[SPACE_MARK.decode()] = True


@contextmanager
def _os_errors() -> Iterator[None]:
    """Turn the library's other exceptions into I/O errors (EIO), which the loop expects."""
    try:
        yield
    except (RuntimeError, ValueError, KeyError, TypeError) as error:
        raise OSError(errno.EIO, f"HDF5: {error}") from error


def _look_through(handle: Hdf5File) -> None:
    """Note where the data of all datasets lie, without data that the file only points to (variable length, external,
    virtual)."""
    import h5py

    if h5py.h5a.exists(handle.id, SPACE_MARK):
        handle.space = _Dataset(h5py.h5d.open(handle.id, SPACE_NAME), fixed=False)
        handle.datasets.append(handle.space)
        return
    names: list[bytes] = []
    h5py.h5o.visit(handle.id, names.append)
    for name in names:
        if h5py.h5o.get_info(handle.id, name).type == h5py.h5o.TYPE_DATASET:
            dataset = h5py.h5d.open(handle.id, name)
            handle.datasets.append(_Dataset(dataset))
            try:
                inline = not dataset.dtype.hasobject  # the file holds the points, not references to other places
            except TypeError:  # NumPy has no such type
                inline = False
            if inline:
                handle.extents += _extents_of(dataset, len(handle.datasets) - 1)
    handle.extents.sort()
    handle.starts = [extent.start for extent in handle.extents]


def _extents_of(dataset: Any, number: int) -> list[_Extent]:
    import h5py

    plan, shape, found = dataset.get_create_plist(), dataset.shape, list[_Extent]()
    if plan.get_layout() == h5py.h5d.CONTIGUOUS:
        start, size = dataset.get_offset(), dataset.get_storage_size()
        if start and size:
            found.append(_Extent(start, start + size, number, (0,) * len(shape), shape, False))
    elif plan.get_layout() == h5py.h5d.CHUNKED:
        chunk_shape, filtered = plan.get_chunk(), plan.get_nfilters() > 0

        def note(chunk: Any) -> None:
            ends = [first + points for first, points in zip(chunk.chunk_offset, chunk_shape, strict=True)]
            raw = filtered or any(last > extent for last, extent in zip(ends, shape, strict=True))
            start, origin = chunk.byte_offset, tuple(chunk.chunk_offset)
            found.append(_Extent(start, start + chunk.size, number, origin, chunk_shape, raw))

        if hasattr(dataset, "chunk_iter"):
            dataset.chunk_iter(note)
        else:  # HDF5 1.10
            for index in range(dataset.get_num_chunks()):
                note(dataset.get_chunk_info(index))
    return found


Box = tuple[tuple[int, ...], tuple[int, ...]]
"""First point and number of points along each dimension."""


def boxes_of(shape: Sequence[int], first: int, last: int) -> Iterator[Box]:
    """Boxes, as a hyperslab can select them, that hold the points `first` to `last` (exclusive) of a row-major block,
    in order; as few as there can be.

    A run of whole rows, planes ... is one box; any other has at most two for each dimension but the slowest, and one.
    """
    if first >= last:
        return
    if len(shape) <= 1:
        yield ((first,), (last - first,)) if shape else ((), ())
        return
    inner = prod(shape[1:])
    row, rest = divmod(first, inner)
    end_row, end_rest = divmod(last, inner)

    def in_row(row: int, begin: int, end: int) -> Iterator[Box]:
        for start, count in boxes_of(shape[1:], begin, end):
            yield (row, *start), (1, *count)

    if row == end_row:
        yield from in_row(row, rest, end_rest)
        return
    if rest:
        yield from in_row(row, rest, inner)
        row += 1
    if row < end_row:
        yield (row, *(0,) * (len(shape) - 1)), (end_row - row, *shape[1:])
    yield from in_row(end_row, 0, end_rest)


def back_end(name: str, options: Any) -> Hdf5Backend:
    return Hdf5Backend()
