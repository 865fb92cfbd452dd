"""The HDF5 back end: the contract, chunk accesses of files that h5py made, and one request for each of them."""

from __future__ import annotations

import errno
import os
import sys
from concurrent.futures import ThreadPoolExecutor

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.replay.engine.backends.hdf5 import Hdf5Backend, boxes_of, make_byte_space
from dxt_replay.traces.errors import MissingDependencyError
from tests.contract import DATA, BackendContract

RNG = np.random.default_rng(5)


class TestHdf5(BackendContract):
    def make_backend(self):
        return Hdf5Backend()

    def make_file(self, folder):
        path = os.fsencode(folder / "data.h5")
        make_byte_space(path, DATA)
        return path


def test_without_h5py_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(MissingDependencyError, match=r"through HDF5 needs h5py.*: pip install 'dxt-replay\[hdf5\]'"):
        Hdf5Backend()


def read(backend, handle, offset, length):
    buffer = bytearray(length)
    assert backend.read(handle, offset, length, memoryview(buffer)) == length
    return bytes(buffer)


@pytest.fixture
def backend():
    return Hdf5Backend()


@pytest.fixture
def source(tmp_path):
    """Chunked, compressed, contiguous, with chunks at the edge, in a group, of a type of 3 bytes, scalar, compact."""
    path = tmp_path / "source.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("chunked", data=RNG.integers(0, 99, (8, 30, 20), dtype=np.int32), chunks=(2, 10, 20))
        file.create_dataset("a/packed", data=RNG.integers(0, 9, (100, 90)), chunks=(30, 30), compression="gzip")
        file.create_dataset("a/b/lzf", data=RNG.integers(0, 9, 5000), chunks=(1000,), compression="lzf", shuffle=True)
        file.create_dataset("contiguous", data=RNG.random((40, 7)))
        file.create_dataset("edge", data=RNG.integers(0, 255, (25, 25), dtype=np.uint8), chunks=(10, 10))
        file.create_dataset("odd", data=np.frombuffer(RNG.bytes(300), dtype="V3"), chunks=(10,))
        file["scalar"] = 17.5
        file["text"] = ["not in an extent", "of their own"]
    return path


def stored_extents(path):
    """Offset and size of all data in the file, as h5py tells them."""
    found: list[tuple[int, int]] = []

    def note(name, item):
        if not isinstance(item, h5py.Dataset) or item.dtype.hasobject:
            return
        if item.chunks:
            item.id.chunk_iter(lambda chunk: found.append((chunk.byte_offset, chunk.size)))
        elif item.id.get_offset() is not None:
            found.append((item.id.get_offset(), item.id.get_storage_size()))

    with h5py.File(path) as file:
        file.visititems(note)
    return sorted(found)


def test_what_is_stored_is_read_as_it_lies_in_the_file_and_metadata_is_no_data(backend, source):
    raw = source.read_bytes()
    extents = stored_extents(source)  # h5py will not open it beside the back end, which locks nothing
    assert len(extents) > 30
    handle = backend.open(os.fsencode(source), writable=False, create=False)
    assert backend.size(handle) == len(raw)
    for offset, size in extents:
        for begin, end in ((0, size), (0, 1), (1, size), (size // 3, size // 2), (size - 1, size)):
            if begin < end:
                assert read(backend, handle, offset + begin, end - begin) == raw[offset + begin : offset + end]
    first, last = extents[0], extents[5]
    got = read(backend, handle, first[0], sum(last) - first[0])
    assert all(got[offset - first[0] :][:size] == raw[offset : offset + size] for offset, size in extents[:6])
    with pytest.raises(OSError, match=f"Errno {errno.ENODATA}"):
        backend.read(handle, 0, 96, memoryview(bytearray(96)))
    backend.close(handle)


def test_writes_reach_the_chunk_and_leave_the_rest(backend, source):
    before = source.read_bytes()
    with h5py.File(source) as file:
        chunk = file["chunked"].id.get_chunk_info(3)
        packed = file["a/packed"].id.get_chunk_info(1)
    handle = backend.open(os.fsencode(source), writable=True, create=False)
    new = RNG.bytes(1001)
    assert backend.write(handle, chunk.byte_offset + 5, 1001, memoryview(new)) == 1001
    with pytest.raises(OSError, match=f"Errno {errno.ENOTSUP}"):
        backend.write(handle, packed.byte_offset, packed.size, memoryview(bytes(packed.size)))
    backend.sync(handle)
    backend.close(handle)
    at = chunk.byte_offset + 5
    after = source.read_bytes()
    assert after[at : at + 1001] == new
    for offset, size in stored_extents(source):
        if offset != chunk.byte_offset:
            assert after[offset : offset + size] == before[offset : offset + size]


def test_a_further_handle_outlives_the_first_and_no_descriptor_is_left_open(backend, source):
    before = set(os.listdir("/proc/self/fd"))
    offset, size = stored_extents(source)[0]
    handle = backend.open(os.fsencode(source), writable=False, create=False)
    for other in (backend.another(handle), backend.open(os.fsencode(source), writable=False, create=False)):
        backend.close(handle)
        assert read(backend, other, offset, size) == source.read_bytes()[offset : offset + size]
        handle = other
    backend.close(handle)
    source.write_bytes(b"not HDF5" * 100)
    with pytest.raises(OSError, match="signature"):
        backend.open(os.fsencode(source), writable=False, create=False)
    assert set(os.listdir("/proc/self/fd")) <= before


def test_appends_from_several_threads_all_arrive(backend, tmp_path):
    path = os.fsencode(tmp_path / "new.h5")
    handle = backend.open(path, writable=True, create=True)

    def append(first):
        for number in range(first, 64, 4):
            backend.write(handle, 1000 * number, 1000, memoryview(bytes([number]) * 1000))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(append, range(4)))
    assert backend.size(handle) == 64000
    assert read(backend, handle, 0, 64000) == b"".join(bytes([number]) * 1000 for number in range(64))
    backend.close(handle)


@st.composite
def runs(draw):
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=0, max_size=4)))
    points = int(np.prod(shape))
    first = draw(st.integers(0, points))
    return shape, first, draw(st.integers(first, points))


@given(runs())
def test_the_boxes_hold_the_points_of_the_run_in_order(run):
    shape, first, last = run
    block = np.arange(int(np.prod(shape))).reshape(shape)
    found: list[int] = []
    for start, count in boxes_of(shape, first, last):
        found += block[tuple(slice(s, s + n) for s, n in zip(start, count, strict=True))].ravel().tolist()
    assert found == list(range(first, last))
    assert len(list(boxes_of(shape, first, last))) <= max(2 * len(shape) - 1, 1)
