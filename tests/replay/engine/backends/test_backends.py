"""The back ends that need nothing installed, by the contract and by what is theirs alone."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from dxt_replay.replay.engine.backends.base import Backend, FileSlot
from dxt_replay.replay.engine.backends.mpiio import CollectiveMpiioBackend, MpiFile, MpiioBackend
from dxt_replay.replay.engine.backends.null import NullBackend
from dxt_replay.replay.engine.backends.posix import PosixBackend, check_direct
from dxt_replay.replay.engine.backends.stdio import StdioBackend
from dxt_replay.traces.errors import ReplayError, TargetError
from tests.contract import BackendContract, no_file_may_grow


class TestPosix(BackendContract):
    def make_backend(self) -> Backend:
        return PosixBackend()

    def test_descriptors_are_not_inherited(self, backend: Backend, path: bytes) -> None:
        handle = backend.open(path, writable=False, create=False)
        assert not os.get_inheritable(handle)
        backend.close(handle)


class TestStdio(BackendContract):
    def make_backend(self) -> Backend:
        return StdioBackend()

    def test_a_full_disk_is_reported_by_the_flush_or_the_close(self, backend: Backend, tmp_path: Path) -> None:
        for report in (backend.sync, backend.close):
            handle = backend.open(bytes(tmp_path / "full"), writable=True, create=True)
            assert backend.write(handle, 0, 5, memoryview(bytearray(5))) == 5
            with no_file_may_grow(), pytest.raises(OSError, match=f"Errno {errno.EFBIG}"):
                report(handle)


class TestMpiio(BackendContract):
    refuses_writing = frozenset({errno.EROFS})

    def make_backend(self) -> Backend:
        pytest.importorskip("mpi4py.MPI", exc_type=ImportError)
        return MpiioBackend({"romio_ds_read": "disable"})

    def test_sync_of_what_is_only_read_is_refused(self, backend: Backend, path: bytes) -> None:
        handle = backend.open(path, writable=False, create=False)
        with pytest.raises(OSError, match=f"Errno {errno.EROFS}"):
            backend.sync(handle)
        backend.close(handle)


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
        with pytest.raises(OSError, match="not opened by all"):
            backend.open(path, writable=False, create=False)

    def test_a_file_that_cannot_be_opened_is_an_error_of_the_run(self, tmp_path: Path) -> None:
        pytest.importorskip("mpi4py.MPI", exc_type=ImportError)
        with pytest.raises(ReplayError, match=r"missing.*No such file"):
            CollectiveMpiioBackend().open_together([FileSlot(path=os.fsencode(tmp_path / "missing"))])


class TestNull(BackendContract):
    stores_data = False

    def make_backend(self) -> Backend:
        return NullBackend()

    def test_touches_no_file(self, backend: Backend, tmp_path: Path) -> None:
        handle = backend.open(os.fsencode(tmp_path / "new"), writable=True, create=True)
        assert backend.write(handle, 0, 1 << 40, memoryview(b"")) == 1 << 40
        assert backend.size(handle) == -1
        assert not list(tmp_path.iterdir())


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
