"""The back ends by the contract, and by what is theirs alone: MPI-IO, and objects by the requests of their docs."""

import errno
import os
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.replay.engine.backends.hdf5 import Hdf5Backend, boxes_of, make_byte_space
from dxt_replay.replay.engine.backends.mpiio import CollectiveMpiioBackend, MpiFile, MpiioBackend
from dxt_replay.replay.engine.backends.objects import ObjectBackend
from dxt_replay.replay.engine.clock import StopFlag
from dxt_replay.replay.engine.files import FileSlot
from dxt_replay.replay.engine.issue import Files, Lane
from dxt_replay.replay.engine.items import CLOSE, OPEN, READ_AT, SEEK, STAT, SYNC, WRITE_AT, LoopPace
from dxt_replay.replay.target.object_store import PART_BYTES
from dxt_replay.traces.errors import MissingDependencyError, ReplayError
from tests.contract import DATA, BackendContract
from tests.fakes import PythonPosix, make_batch
from tests.object_servers import BUCKET, ObjectServer
from tests.replay.engine.issue_lanes import results, run_lane, run_together, started


class TestPosix(BackendContract):
    def make_backend(self):
        return "posix"

    def test_descriptors_are_not_inherited(self, data, path):
        assert results(data, (OPEN, 0), (OPEN, 1)) == [0, 0]
        opened = {int(name) for name in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{name}")}
        mine = [fd for fd in opened if os.readlink(f"/proc/self/fd/{fd}") == os.fsdecode(path)]
        assert [os.get_inheritable(fd) for fd in mine] == [False, False]


class TestStdio(BackendContract):
    def make_backend(self):
        return "stdio"


class TestPython(BackendContract):
    def make_backend(self):
        return PythonPosix()


class TestMpiio(BackendContract):
    refuses_writing = frozenset({errno.EROFS})

    def make_backend(self):
        pytest.importorskip("mpi4py.MPI", exc_type=ImportError)
        return MpiioBackend({"romio_ds_read": "disable"})

    def test_sync_of_what_is_only_read_is_refused(self, data):
        assert results(data, (SYNC, 1)) == [-errno.EROFS]


def test_collective_files_are_opened_used_and_closed_together(tmp_path):
    """In a run of one process; those of several are in `test_run_interfaces`."""
    mpi = pytest.importorskip("mpi4py.MPI", exc_type=ImportError)
    path, closed = os.fsencode(tmp_path / "data"), list[object]()
    backend = CollectiveMpiioBackend()
    backend.open_together([FileSlot(path=path, writable=True, create=True)])
    handle = backend.open(path, writable=True, create=True)
    assert backend.write(handle, 10, 5, memoryview(bytearray(b"hello"))) == 5
    backend.close(handle)
    buffer = bytearray(20)
    assert backend.read(handle, 8, 20, memoryview(buffer)) == 7
    assert buffer[:7] == b"\0\0hello"
    assert backend.close_together() == []
    assert results(Files([FileSlot(path=path, uses=9)], backend), (READ_AT, 0, 0, 1)) == [-errno.EBADF]
    with pytest.raises(ReplayError, match=r"missing.*No such file"):
        backend.open_together([FileSlot(path=os.fsencode(tmp_path / "missing"))])

    class File:
        def __init__(self, error=0):
            self.error = error

        def Close(self):
            closed.append(self)
            if self.error:
                raise mpi.Exception(self.error)

    files = {b"/full": File(mpi.ERR_NO_SPACE), b"/good": File()}
    backend._opened = {path: MpiFile(file=file, path=path) for path, file in files.items()}
    assert (backend.close_together(), len(closed)) == ([(b"/full", errno.ENOSPC)], 2)
    assert backend.close_together() == []


# ------------------------------------------------------------------------------------------------------------ HDF5

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


def read_bytes(backend, handle, offset, length):
    buffer = bytearray(length)
    assert backend.read(handle, offset, length, memoryview(buffer)) == length
    return bytes(buffer)


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


def test_what_is_stored_is_read_as_it_lies_in_the_file_and_metadata_is_no_data(source):
    backend = Hdf5Backend()
    raw = source.read_bytes()
    extents = stored_extents(source)  # h5py will not open it beside the back end, which locks nothing
    assert len(extents) > 30
    handle = backend.open(os.fsencode(source), writable=False, create=False)
    assert backend.size(handle) == len(raw)
    for offset, size in extents:
        for begin, end in ((0, size), (0, 1), (1, size), (size // 3, size // 2), (size - 1, size)):
            if begin < end:
                assert read_bytes(backend, handle, offset + begin, end - begin) == raw[offset + begin : offset + end]
    first, last = extents[0], extents[5]
    got = read_bytes(backend, handle, first[0], sum(last) - first[0])
    assert all(got[offset - first[0] :][:size] == raw[offset : offset + size] for offset, size in extents[:6])
    with pytest.raises(OSError, match=f"Errno {errno.ENODATA}"):
        backend.read(handle, 0, 96, memoryview(bytearray(96)))
    backend.close(handle)


def test_writes_reach_the_chunk_and_leave_the_rest(source):
    backend = Hdf5Backend()
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


def test_a_further_handle_outlives_the_first_and_no_descriptor_is_left_open(source):
    backend = Hdf5Backend()
    before = set(os.listdir("/proc/self/fd"))
    offset, size = stored_extents(source)[0]
    handle = backend.open(os.fsencode(source), writable=False, create=False)
    for other in (backend.another(handle), backend.open(os.fsencode(source), writable=False, create=False)):
        backend.close(handle)
        assert read_bytes(backend, other, offset, size) == source.read_bytes()[offset : offset + size]
        handle = other
    backend.close(handle)
    source.write_bytes(b"not HDF5" * 100)
    with pytest.raises(OSError, match="signature"):
        backend.open(os.fsencode(source), writable=False, create=False)
    assert set(os.listdir("/proc/self/fd")) <= before


def test_appends_from_several_threads_all_arrive(tmp_path):
    backend = Hdf5Backend()
    path = os.fsencode(tmp_path / "new.h5")
    handle = backend.open(path, writable=True, create=True)

    def append(first):
        for number in range(first, 64, 4):
            backend.write(handle, 1000 * number, 1000, memoryview(bytes([number]) * 1000))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(append, range(4)))
    assert backend.size(handle) == 64000
    assert read_bytes(backend, handle, 0, 64000) == b"".join(bytes([number]) * 1000 for number in range(64))
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


# --------------------------------------------------------------------------------------------------------- objects

KEY, NEW = "some/prefix/größe/a %20~", "some/prefix/new"


def path_of(key):
    return f"s3://{BUCKET}/{key}".encode()


@pytest.fixture
def server():
    pytest.importorskip("obstore")
    with ObjectServer().running() as server:
        server.objects[KEY] = DATA
        yield server


def lane_files(server, more=""):
    """Slots: KEY to read, KEY to write, NEW to write, a key that is not there."""
    slots = [
        FileSlot(path=path_of(KEY), uses=1000),
        FileSlot(path=path_of(KEY), writable=True, uses=1000),
        FileSlot(path=path_of(NEW), writable=True, create=True, uses=1000),
        FileSlot(path=path_of("some/prefix/missing"), uses=1000),
    ]
    return Files(slots, ObjectBackend(server.url(more=f"&skip_signature=true{more}")))


def requests(server):
    return [(each.method, each.key, each.range, each.status) for each in server.log]


def test_a_read_is_one_ranged_get_of_its_bytes(server):
    files = lane_files(server)
    reads = [(0, 1), (1, 4096), (4097, 10), (4107, 10), (len(DATA) - 5, 100), (0, len(DATA))]
    for offset, length in reads:
        (one,), lane = run_lane(files, make_batch((READ_AT, 0, offset, length)))
        assert lane.data_read(one.result[0]) == DATA[offset : offset + length]
    assert requests(server) == [("GET", KEY, (at, at + length - 1), 206) for at, length in reads]
    del server.log[:]
    assert results(files, (READ_AT, 0, len(DATA), 10), (READ_AT, 0, len(DATA), 0)) == [0, 0], "an empty one sends none"
    assert requests(server) == [("GET", KEY, (len(DATA), len(DATA) + 9), 416)]


@pytest.mark.parametrize(("more", "heads"), [("", 1), ("&opens=none", 0)])
def test_an_open_is_a_head_unless_the_url_says_none(server, more, heads):
    calls = [(OPEN, 0), (SEEK, 0, 7), (SYNC, 0), (READ_AT, 0, 0, 3), (CLOSE, 0)]
    assert results(lane_files(server, more), *calls) == [0, 0, 0, 3, 0]
    assert requests(server) == [("HEAD", KEY, None, 200)] * heads + [("GET", KEY, (0, 2), 206)]


@pytest.mark.parametrize(
    ("key", "items", "size", "methods"),
    [
        # What is never closed is put at the end.
        (NEW, [(WRITE_AT, 2, 50, 100)], 150, "HEAD PUT"),
        # An object that is written in part keeps its size, and grows where it is written behind its end.
        (KEY, [(OPEN, 1), (WRITE_AT, 1, 5, 10), (CLOSE, 1)], len(DATA), "HEAD PUT"),
        (KEY, [(OPEN, 1), (WRITE_AT, 1, len(DATA), 10), (CLOSE, 1)], len(DATA) + 10, "HEAD PUT"),
        # A large one is put in parts.
        (
            NEW,
            [(OPEN, 2), (WRITE_AT, 2, 2 * PART_BYTES + 4, 1), (CLOSE, 2)],
            2 * PART_BYTES + 5,
            "HEAD POST PUT PUT PUT POST",
        ),
        # Several closes put once unless it was written again.
        (NEW, [*[(OPEN, 2)] * 2, (WRITE_AT, 2, 0, 9), *[(CLOSE, 2)] * 2], 9, "HEAD HEAD PUT"),
    ],
)
def test_an_object_that_was_written_is_put_at_its_close(server, key, items, size, methods):
    files = lane_files(server)
    assert results(files, *items) == [item[3] if item[0] == WRITE_AT else 0 for item in items]
    files.close_all()
    assert (len(server.objects[key]), files.failures(), server.uploads) == (size, [], {})
    assert " ".join(each.method for each in server.log) == methods


def test_a_close_that_cannot_put_is_its_result_and_what_is_read_is_not_written(server):
    server.refused["PUT", NEW] = 507
    calls = [(OPEN, 2), (WRITE_AT, 2, 0, 9), (CLOSE, 2), (WRITE_AT, 0, 0, 3)]
    assert results(lane_files(server), *calls) == [0, 9, -errno.ENOSPC, -errno.EBADF]


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (401, errno.EACCES),
        (403, errno.EACCES),
        (404, errno.ENOENT),
        (429, errno.EAGAIN),
        (500, errno.EIO),
        (503, errno.EAGAIN),
        (504, errno.ETIMEDOUT),
    ],
)
def test_a_refused_request_is_sent_once_and_is_its_errno(server, status, code):
    server.refused["GET", KEY] = server.refused["HEAD", KEY] = status
    assert results(lane_files(server), (READ_AT, 0, 0, 9), (STAT, 0), (OPEN, 0)) == [-code] * 3
    assert [each.status for each in server.log] == [status] * 3


def test_a_server_that_is_not_there_is_a_refused_connection():
    pytest.importorskip("obstore")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"s3://bucket/x?endpoint=http://127.0.0.1:{closed.getsockname()[1]}&region=a&skip_signature=true"
        files = Files([FileSlot(path=path_of("x/a"), uses=9)], ObjectBackend(url))
        assert results(files, (READ_AT, 0, 0, 9)) == [-errno.ECONNREFUSED]


def test_lanes_wait_for_their_requests_at_the_same_time(server):
    """No request begins after the first of the others has ended, though each lane has but one thread."""
    under_way, answer, files = threading.Barrier(8, timeout=30), server.serve, lane_files(server)
    server.serve = lambda agent: (answer(agent), under_way.wait())  # type: ignore[method-assign]
    lanes = [Lane(files, pace=LoopPace.NONE, start=started(), stop=StopFlag()) for _ in range(8)]
    for number, lane in enumerate(lanes):
        lane.submit(make_batch((READ_AT, 0, 64 * number, 64)))
    run_together(*lanes)
    for number, lane in enumerate(lanes):
        assert lane.collect().result.tolist() == [64]
        assert lane.data_read(64) == DATA[64 * number :][:64]
