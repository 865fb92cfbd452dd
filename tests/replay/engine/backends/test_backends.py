"""The back ends that need nothing but an MPI library, by the contract and by what is theirs alone."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from dxt_replay.replay.engine.backends.mpiio import CollectiveMpiioBackend, MpiFile, MpiioBackend
from dxt_replay.replay.engine.files import Backend, FileSlot
from dxt_replay.replay.engine.issue import Files
from dxt_replay.replay.engine.items import OPEN, READ_AT, SYNC
from dxt_replay.replay.engine.limits import check_direct
from dxt_replay.traces.errors import ReplayError, TargetError
from tests.contract import BackendContract
from tests.fakes import PythonPosix
from tests.replay.engine.issue_lanes import results


class TestPosix(BackendContract):
    def make_backend(self) -> str:
        return "posix"

    def test_descriptors_are_not_inherited(self, data: Files, path: bytes) -> None:
        assert results(data, (OPEN, 0, 0, 0, 0), (OPEN, 1, 0, 0, 0)) == [0, 0]
        names = [int(name) for name in os.listdir("/proc/self/fd")]
        mine = [fd for fd in names if os.path.lexists(f"/proc/self/fd/{fd}") and points_at(fd, path)]
        assert [os.get_inheritable(fd) for fd in mine] == [False, False]


def points_at(fd: int, path: bytes) -> bool:
    return os.readlink(f"/proc/self/fd/{fd}") == os.fsdecode(path)


class TestStdio(BackendContract):
    def make_backend(self) -> str:
        return "stdio"


class TestPython(BackendContract):
    def make_backend(self) -> Backend:
        return PythonPosix()


class TestMpiio(BackendContract):
    refuses_writing = frozenset({errno.EROFS})

    def make_backend(self) -> Backend:
        pytest.importorskip("mpi4py.MPI", exc_type=ImportError)
        return MpiioBackend({"romio_ds_read": "disable"})

    def test_sync_of_what_is_only_read_is_refused(self, data: Files) -> None:
        assert results(data, (SYNC, 1, 0, 0, 0)) == [-errno.EROFS]


class TestCollectiveMpiio:
    """In a run of one process; those of several are in `test_collectives`."""

    def test_what_was_opened_together_is_used_and_closed_together(self, tmp_path: Path) -> None:
        pytest.importorskip("mpi4py.MPI", exc_type=ImportError)
        path = os.fsencode(tmp_path / "data")
        backend = CollectiveMpiioBackend()
        backend.open_together([FileSlot(path=path, writable=True, create=True)])
        handle = backend.open(path, writable=True, create=True)
        assert backend.write(handle, 10, 5, memoryview(bytearray(b"hello"))) == 5
        backend.close(handle)
        buffer = bytearray(20)
        assert backend.read(handle, 8, 20, memoryview(buffer)) == 7
        assert buffer[:7] == b"\0\0hello"
        backend.close_together()
        files = Files([FileSlot(path=path, uses=9)], backend)
        assert results(files, (READ_AT, 0, 0, 1, 0)) == [-errno.EBADF]

    def test_a_file_that_cannot_be_opened_is_an_error_of_the_run(self, tmp_path: Path) -> None:
        pytest.importorskip("mpi4py.MPI", exc_type=ImportError)
        with pytest.raises(ReplayError, match=r"missing.*No such file"):
            CollectiveMpiioBackend().open_together([FileSlot(path=os.fsencode(tmp_path / "missing"))])


def test_a_file_system_without_direct_io_is_told_before_the_run(tmp_path: Path) -> None:
    if not os.path.exists("/proc/self/status"):
        pytest.skip("no /proc, which has no direct I/O")
    with pytest.raises(TargetError, match=r"/proc/self/status has no direct I/O"):
        check_direct(tmp_path, [os.fsencode(tmp_path / "made by the run"), b"/proc/self/status"])


def test_collective_files_are_all_closed_and_errors_are_told():
    mpi = pytest.importorskip("mpi4py.MPI", exc_type=ImportError)
    closed = []

    class File:
        def __init__(self, error=None):
            self.error = error

        def Close(self):
            closed.append(self)
            if self.error is not None:
                raise mpi.Exception(self.error)

    backend = CollectiveMpiioBackend()
    backend._opened = {
        b"/full": MpiFile(file=File(mpi.ERR_NO_SPACE), path=b"/full"),
        b"/good": MpiFile(file=File(), path=b"/good"),
    }
    assert backend.close_together() == [(b"/full", errno.ENOSPC)]
    assert len(closed) == 2
    assert backend.close_together() == []
