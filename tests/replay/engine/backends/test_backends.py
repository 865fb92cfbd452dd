"""The back ends by the contract, and by what is theirs alone: MPI-IO, and objects by the requests of their docs."""

import errno
import os
import socket
import threading

import pytest

from dxt_replay.replay.engine.backends.mpiio import CollectiveMpiioBackend, MpiFile, MpiioBackend
from dxt_replay.replay.engine.backends.objects import ObjectBackend
from dxt_replay.replay.engine.clock import StopFlag
from dxt_replay.replay.engine.files import FileSlot
from dxt_replay.replay.engine.issue import Files, Lane
from dxt_replay.replay.engine.items import CLOSE, OPEN, READ_AT, SEEK, STAT, SYNC, WRITE_AT, LoopPace
from dxt_replay.replay.target.object_store import PART_BYTES
from dxt_replay.traces.errors import ReplayError
from tests.contract import BackendContract
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


# --------------------------------------------------------------------------------------------------------- objects

DATA = bytes(range(256)) * 64
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
