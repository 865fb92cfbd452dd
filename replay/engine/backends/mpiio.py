"""MPI-IO through mpi4py: MPI.File with read_at and write_at, or their collective forms.

A process opens the files of independent operations for itself (COMM_SELF), so that no process waits for another. All
processes of a run open the files of collective operations together, in the same order, before the run starts. Each call
on such a file waits for the same call of all other processes. `replay.plan.layers` decides which files these are.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

from dxt_replay.replay.engine.files import Backend, FileSlot
from dxt_replay.replay.engine.link_free import refuse_links
from dxt_replay.traces.errors import MissingDependencyError, ReplayError

_BY_MESSAGE = (errno.EMFILE, errno.ENFILE, errno.EISDIR, errno.EACCES, errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""errno for which ROMIO has no error class. Its message then ends in that of the system."""


class MpiFile(NamedTuple):
    """An open file: mpi4py's object, and the path by which it was opened."""

    file: Any
    path: bytes


class MpiioBackend(Backend):
    """The back end for independent MPI-IO. Handles are `MpiFile`. A write never follows a link at the last component.

    `hints`: name -> value, the Info of every open.
    `takes_turns`: whether lanes call the library one after another, because it does not allow calls of several threads
        at once (MPI_THREAD_MULTIPLE). A lane that waits for other processes in a collective call keeps its turn. This
        cannot lock up, because the other processes wait for no other lane of this process.
    Raises: MissingDependencyError without mpi4py or an MPI library.
    """

    name = "mpiio"

    def __init__(self, hints: Mapping[str, str] | None = None) -> None:
        self._mpi = _mpi()
        self._hints = dict(hints or {})
        self.takes_turns = self._mpi.Query_thread() < self._mpi.THREAD_MULTIPLE
        self._turn = threading.Lock() if self.takes_turns else nullcontext()

    def open(self, path: bytes, *, writable: bool, create: bool) -> MpiFile:
        """One MPI_File_open of this process alone."""
        return self._open(self._mpi.COMM_SELF, path, writable=writable, create=create)

    def _open(self, comm: Any, path: bytes, *, writable: bool, create: bool) -> MpiFile:
        mpi = self._mpi
        mode = mpi.MODE_RDONLY
        if writable:
            mode = mpi.MODE_RDWR | (mpi.MODE_CREATE if create else 0)
            refuse_links(path)
        with self._calling():
            info = mpi.Info.Create(self._hints) if self._hints else mpi.INFO_NULL
            try:
                return MpiFile(file=mpi.File.Open(comm, os.fsdecode(path), mode, info), path=path)
            finally:
                if self._hints:
                    info.Free()

    def size(self, handle: MpiFile) -> int:
        with self._calling():
            return int(handle.file.Get_size())

    def read(self, handle: MpiFile, offset: int, length: int, buffer: memoryview) -> int:
        return self._transfer(handle.file.Read_at, offset, buffer[:length])

    def write(self, handle: MpiFile, offset: int, length: int, data: memoryview) -> int:
        return self._transfer(handle.file.Write_at, offset, data[:length])

    def _transfer(self, call: Any, offset: int, view: memoryview) -> int:
        mpi = self._mpi
        status = mpi.Status()
        with self._calling():
            call(offset, [view, mpi.BYTE], status)
            return int(status.Get_count(mpi.BYTE))

    def close(self, handle: MpiFile) -> None:
        with self._calling():
            handle.file.Close()

    def another(self, handle: MpiFile) -> MpiFile:
        return self._open(self._mpi.COMM_SELF, handle.path, writable=False, create=False)

    def sync(self, handle: MpiFile) -> None:
        with self._calling():
            handle.file.Sync()

    def seek(self, handle: MpiFile, offset: int) -> None:
        with self._calling():
            handle.file.Seek(offset, self._mpi.SEEK_SET)

    @contextmanager
    def _calling(self) -> Iterator[None]:
        """One call of the library, whose errors become OSError."""
        with self._turn:
            try:
                yield
            except self._mpi.Exception as error:
                number = _errno(self._mpi, error)
                raise OSError(number, f"{os.strerror(number)} (MPI: {error.Get_error_string()})") from error


class CollectiveMpiioBackend(MpiioBackend):
    """The back end for collective MPI-IO: all processes of the run open a file together and make each request together.

    All processes call `open_together` before the lanes start. In a lane `open` only finds the file, and `close` leaves
    it open until `close_together`: both calls would wait for the other processes.
    """

    def __init__(self, hints: Mapping[str, str] | None = None) -> None:
        super().__init__(hints)
        self._opened: dict[bytes, MpiFile] = {}

    def open_together(self, files: Sequence[FileSlot]) -> None:
        """Open all files in the order given, which must be the same on all processes.

        Raises: ReplayError on all processes when one of them cannot open a file: MPI_File_open fails on all or none.
        """
        for slot in files:
            try:
                self._opened[slot.path] = self._open(
                    self._mpi.COMM_WORLD, slot.path, writable=slot.writable, create=slot.create
                )
            except OSError as error:
                raise ReplayError(f"{os.fsdecode(slot.path)} cannot be opened by all processes: {error}") from error

    def close_together(self) -> list[tuple[bytes, int]]:
        """Close all files in the order in which they were opened. Returns path and errno of each close that failed."""
        failed = []
        while self._opened:
            path = next(iter(self._opened))
            try:
                super().close(self._opened.pop(path))
            except OSError as error:
                failed.append((path, error.errno or errno.EIO))
        return failed

    def open(self, path: bytes, *, writable: bool, create: bool) -> MpiFile:
        """The file that `open_together` opened. Raises: OSError for any other file."""
        if path not in self._opened:
            raise OSError(errno.EBADF, "not opened by all processes", path)
        return self._opened[path]

    def read(self, handle: MpiFile, offset: int, length: int, buffer: memoryview) -> int:
        """One MPI_File_read_at_all."""
        return self._transfer(handle.file.Read_at_all, offset, buffer[:length])

    def write(self, handle: MpiFile, offset: int, length: int, data: memoryview) -> int:
        """One MPI_File_write_at_all."""
        return self._transfer(handle.file.Write_at_all, offset, data[:length])

    def close(self, handle: MpiFile) -> None:
        """Do nothing: `close_together` closes the file."""


def back_end(name: str, options: Any) -> MpiioBackend:
    return (CollectiveMpiioBackend if name == "mpiio_collective" else MpiioBackend)(options.hints)


def _mpi() -> Any:
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise MissingDependencyError(
            f"mpi4py with an MPI library ({error})", "a replay through MPI-IO", "pip install 'dxt-replay[mpich]'"
        ) from error
    return MPI


def _errno(mpi: Any, error: Any) -> int:
    text = error.Get_error_string()
    for number in _BY_MESSAGE:
        if os.strerror(number) in text:
            return number
    numbers = {
        mpi.ERR_NO_SUCH_FILE: errno.ENOENT,
        mpi.ERR_FILE_EXISTS: errno.EEXIST,
        mpi.ERR_ACCESS: errno.EACCES,
        mpi.ERR_READ_ONLY: errno.EROFS,
        mpi.ERR_NO_SPACE: errno.ENOSPC,
        mpi.ERR_QUOTA: errno.EDQUOT,
        mpi.ERR_BAD_FILE: errno.EINVAL,
    }
    return numbers.get(error.Get_error_class(), errno.EIO)
