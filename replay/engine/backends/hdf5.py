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
from dxt_replay.replay.hdf5.boxes import boxes_of
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


@dataclass(slots=True, kw_only=True)
class _Dataset:
    """An open dataset.

    `id`: h5py's DatasetID.
    `kind`: its type in the file, so that nothing is converted.
    `type_size`: bytes of a point.
    `fixed`: whether its shape stays the same.
    `spaces`, `memories`: selections for another use, in the file, and in memory by shape. To make one costs as much as
        a read.
    """

    id: Any
    kind: Any
    type_size: int
    fixed: bool = True
    spaces: list[Any] = field(default_factory=list)
    memories: dict[tuple[int, ...], Any] = field(default_factory=dict)

    def selection(self, start: tuple[int, ...], count: tuple[int, ...]) -> Any:
        """The selection of a box of the dataset. Put it back into `spaces` after use."""
        try:
            space = self.spaces.pop() if self.fixed else self.id.get_space()
        except IndexError:
            space = self.id.get_space()
        if start:
            space.select_hyperslab(start, count)
        return space

    def memory(self, count: tuple[int, ...]) -> Any:
        """The selection of as many points in memory, in a row."""
        import h5py

        memory = self.memories.get(count)
        if memory is None:
            memory = h5py.h5s.create_simple((prod(count),)) if count else h5py.h5s.create(h5py.h5s.SCALAR)
            if len(self.memories) < _KEPT_SPACES:
                self.memories[count] = memory
        return memory


@dataclass(slots=True, kw_only=True)
class Hdf5File:
    """The handle of an open file.

    `extents`: where the data of all datasets lie, by their start; `starts` has these starts.
    `space`: the dataset of bytes of a file that a run made; None for other files, which have extents.
    `users`: how many closes are still to come.
    """

    id: Any
    path: bytes
    writable: bool
    datasets: list[_Dataset] = field(default_factory=list)
    extents: list[_Extent] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    space: _Dataset | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)
    users: int = 1

    def pieces(self, offset: int, length: int) -> Iterator[tuple[_Extent, int, int]]:
        """The extents that a request reaches, each with the first byte and the end of the part that it reaches."""
        number = max(bisect_right(self.starts, offset) - 1, 0)
        while number < len(self.extents) and self.extents[number].start < offset + length:
            extent = self.extents[number]
            begin, end = max(offset, extent.start), min(offset + length, extent.end)
            if begin < end:
                yield extent, begin, end
            number += 1


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
        """Read-only unless `writable`; looks through the chunk index of every dataset. Raises: OSError."""
        # The library does not always report an errno, and it would follow a link.
        try:
            os.close(open_link_free(path, os.O_RDWR) if writable else os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        except FileNotFoundError:
            if not (writable and create):
                raise
            return self._made(path)
        with _os_errors():
            return _opened(path, self.access(path), writable=writable)

    def access(self, path: bytes) -> Any:
        """The library's access list for a file: without chunk cache, sieve buffer and file locks."""
        import h5py

        access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
        access.set_fclose_degree(h5py.h5f.CLOSE_STRONG)
        access.set_cache(0, 0, 0, 0.0)
        access.set_sieve_buf_size(0)
        access.set_file_locking(False, True)
        return access

    def _made(self, path: bytes) -> Hdf5File:
        os.close(open_link_free(path, os.O_RDWR | os.O_CREAT | os.O_EXCL))
        make_byte_space(path)
        with _os_errors():
            return _opened(path, self.access(path), writable=True)

    def size(self, handle: Hdf5File) -> int:
        """Size of the file in bytes, or of its dataset of bytes. Raises: OSError."""
        with _os_errors():
            if handle.space is not None:
                return int(handle.space.id.shape[0])
            return int(handle.id.get_filesize())

    def read(self, handle: Hdf5File, offset: int, length: int, buffer: memoryview) -> int:
        """One access for each chunk that the request reaches. The buffer is not changed where no chunk lies.

        Raises: OSError; ENODATA where the request reaches no data, but only metadata of the library.
        """
        length = min(length, self.size(handle) - offset)
        if length <= 0:
            return 0
        with _os_errors():
            if handle.space is not None:
                _read_points(handle.space, (offset,), (length,), 0, length, buffer[:length])
                return length
            reached = 0
            for extent, begin, end in handle.pieces(offset, length):
                _read_extent(handle.datasets[extent.dataset], extent, begin, end, buffer[begin - offset : end - offset])
                reached += 1
        if not reached:
            raise OSError(errno.ENODATA, f"no data of a dataset at {offset}")
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
                _write_points(handle.space, (offset,), (length,), 0, length, data[:length])
                return length
            reached = 0
            for extent, begin, end in handle.pieces(offset, length):
                if extent.raw:
                    raise OSError(errno.ENOTSUP, "a compressed chunk is not written in place")
                view = data[begin - offset : end - offset]
                dataset = handle.datasets[extent.dataset]
                _write_points(dataset, extent.origin, extent.shape, begin - extent.start, end - extent.start, view)
                reached += 1
        if not reached:
            raise OSError(errno.ENODATA, f"no data of a dataset at {offset}")
        return length

    def close(self, handle: Hdf5File) -> None:
        """Raises: OSError."""
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
        """One H5Fflush. Raises: OSError."""
        import h5py

        with _os_errors():
            h5py.h5f.flush(handle.id)

    def seek(self, handle: Hdf5File, offset: int) -> None:
        """Do nothing: the library's interface has no position."""


def make_byte_space(path: bytes, data: bytes = b"") -> None:
    """Make a file with one array of bytes, the indices of which are the offsets of requests. Raises: OSError."""
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


def _opened(path: bytes, access: Any, *, writable: bool) -> Hdf5File:
    import h5py

    handle = Hdf5File(
        id=h5py.h5f.open(path, h5py.h5f.ACC_RDWR if writable else h5py.h5f.ACC_RDONLY, access),
        path=path,
        writable=writable,
    )
    try:
        if h5py.h5a.exists(handle.id, SPACE_MARK):
            handle.space = _dataset(h5py.h5d.open(handle.id, SPACE_NAME))
            handle.space.fixed = False
            handle.datasets.append(handle.space)
        else:
            _look_through(handle)
    except BaseException:
        handle.id.close()
        raise
    return handle


def _dataset(dataset: Any) -> _Dataset:
    kind = dataset.get_type()
    return _Dataset(id=dataset, kind=kind, type_size=kind.get_size())


def _look_through(handle: Hdf5File) -> None:
    """Note where the data of all datasets lie, without data that the file only points to (variable length, external,
    virtual)."""
    import h5py

    names: list[bytes] = []
    h5py.h5o.visit(handle.id, names.append)
    extents: list[_Extent] = []
    for name in names:
        if h5py.h5o.get_info(handle.id, name).type != h5py.h5o.TYPE_DATASET:
            continue
        dataset = _dataset(h5py.h5d.open(handle.id, name))
        handle.datasets.append(dataset)
        if _is_inline(dataset.id):
            extents += _extents_of(dataset, len(handle.datasets) - 1)
    handle.extents = sorted(extents)
    handle.starts = [extent.start for extent in handle.extents]


def _is_inline(dataset: Any) -> bool:
    """Whether the file holds the points themselves, and not references to other places."""
    try:
        return not dataset.dtype.hasobject
    except TypeError:  # NumPy has no such type
        return False


def _extents_of(dataset: _Dataset, number: int) -> list[_Extent]:
    import h5py

    plan, shape = dataset.id.get_create_plist(), dataset.id.shape
    if plan.get_layout() == h5py.h5d.CONTIGUOUS:
        start = dataset.id.get_offset()
        size = dataset.id.get_storage_size()
        return [_Extent(start, start + size, number, (0,) * len(shape), shape, False)] if start and size else []
    if plan.get_layout() != h5py.h5d.CHUNKED:
        return []
    chunk_shape, filtered = plan.get_chunk(), plan.get_nfilters() > 0
    found: list[_Extent] = []

    def note(chunk: Any) -> None:
        ends = [first + points for first, points in zip(chunk.chunk_offset, chunk_shape, strict=True)]
        raw = filtered or any(last > extent for last, extent in zip(ends, shape, strict=True))
        end = chunk.byte_offset + chunk.size
        found.append(_Extent(chunk.byte_offset, end, number, tuple(chunk.chunk_offset), chunk_shape, raw))

    for_each_chunk(dataset.id, note)
    return found


def for_each_chunk(dataset: Any, note: Any) -> None:
    """Call `note` with the StoreInfo of every stored chunk of an h5py DatasetID."""
    if hasattr(dataset, "chunk_iter"):
        dataset.chunk_iter(note)
        return
    for number in range(dataset.get_num_chunks()):
        note(dataset.get_chunk_info(number))


def _read_extent(dataset: _Dataset, extent: _Extent, begin: int, end: int, view: memoryview) -> None:
    begin, end = begin - extent.start, end - extent.start
    if not extent.raw:
        _read_points(dataset, extent.origin, extent.shape, begin, end, view)
    elif end - begin == extent.end - extent.start:
        dataset.id.read_direct_chunk(extent.origin, out=np.frombuffer(view, dtype=np.uint8))
    else:
        _, stored = dataset.id.read_direct_chunk(extent.origin)
        view[:] = memoryview(stored)[begin:end]


def _read_points(
    dataset: _Dataset, origin: Sequence[int], shape: Sequence[int], begin: int, end: int, view: memoryview
) -> None:
    """Read bytes `begin` to `end` of the block of points at `origin`, stored in row-major order."""
    size = dataset.type_size
    first, last = begin // size, -(-end // size)
    whole = first * size == begin and last * size == end
    points = np.frombuffer(view, dtype=np.uint8) if whole else np.empty((last - first) * size, dtype=np.uint8)
    _transfer(dataset.id.read, dataset, origin, shape, first, last, points)
    if not whole:
        skipped = begin - first * size
        view[:] = points[skipped : skipped + end - begin].data


def _write_points(
    dataset: _Dataset, origin: Sequence[int], shape: Sequence[int], begin: int, end: int, view: memoryview
) -> None:
    """Write bytes `begin` to `end` of the block of points at `origin`. Points that they cut are read first."""
    size = dataset.type_size
    first, last = begin // size, -(-end // size)
    points = np.frombuffer(view, dtype=np.uint8)
    if first * size != begin or last * size != end:
        points = np.empty((last - first) * size, dtype=np.uint8)
        _read_points(dataset, origin, shape, first * size, last * size, points.data)
        points[begin - first * size : end - first * size] = np.frombuffer(view, dtype=np.uint8)
    _transfer(dataset.id.write, dataset, origin, shape, first, last, points)


def _transfer(
    move: Any, dataset: _Dataset, origin: Sequence[int], shape: Sequence[int], first: int, last: int, points: np.ndarray
) -> None:
    """Read or write points `first` to `last` of the block at `origin`, with one call of the library for each box."""
    at = 0
    for start, count in boxes_of(shape, first, last):
        size = prod(count) * dataset.type_size
        space = dataset.selection(tuple(map(add, origin, start)), count)
        move(dataset.memory(count), space, points[at : at + size], dataset.kind)
        if dataset.fixed:
            dataset.spaces.append(space)
        at += size
