"""What every back end promises. A back end's test inherits `BackendContract` and says how to make one."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from replay.backends.base import Backend, FileSlot, PythonFiles
from replay.clock import StartGate, StopFlag
from replay.issue import PythonLane
from replay.items import READ, WRITE, Pace
from tests.fakes import make_batch

DATA = bytes(range(256)) * 64


class BackendContract:
    """Inherit, implement `make_backend`; override `make_file` where a file is more than its bytes.

    `stores_data` False: transfers succeed in full and nothing is kept.
    """

    stores_data = True

    def make_backend(self) -> Backend:
        raise NotImplementedError

    def make_file(self, folder: Path) -> bytes:
        """A file from which DATA is read at offset 0."""
        path = folder / "data"
        path.write_bytes(DATA)
        return os.fsencode(path)

    @pytest.fixture
    def backend(self) -> Backend:
        return self.make_backend()

    @pytest.fixture
    def path(self, tmp_path: Path) -> bytes:
        return self.make_file(tmp_path)

    def read(self, backend: Backend, handle: Any, offset: int, length: int) -> bytes:
        buffer = bytearray(length + 16)
        count = backend.read(handle, offset, length, memoryview(buffer))
        assert 0 <= count <= length
        assert not any(buffer[length:]), "a read went beyond its length"
        return bytes(buffer[:count])

    def test_has_a_name(self, backend: Backend) -> None:
        assert backend.name.isidentifier()

    def test_moves_data_only_if_it_stores_it(self, backend: Backend) -> None:
        assert backend.moves_data == self.stores_data

    def test_reads_what_is_at_the_offset(self, backend: Backend, path: bytes) -> None:
        handle = backend.open(path, writable=False, create=False)
        for offset, length in ((0, len(DATA)), (300, 1000), (1, 1), (len(DATA) - 7, 7), (5, 0)):
            got = self.read(backend, handle, offset, length)
            assert len(got) == length
            if self.stores_data:
                assert got == DATA[offset : offset + length]
        backend.close(handle)

    def test_a_read_at_the_end_is_short(self, backend: Backend, path: bytes) -> None:
        if not self.stores_data:
            pytest.skip("has no end of file")
        handle = backend.open(path, writable=False, create=False)
        assert backend.size(handle) == len(DATA)
        assert self.read(backend, handle, len(DATA) - 10, 100) == DATA[-10:]
        assert self.read(backend, handle, len(DATA) + 10, 100) == b""
        backend.close(handle)

    def test_writes_at_the_offset_and_only_the_length(self, backend: Backend, path: bytes) -> None:
        handle = backend.open(path, writable=True, create=False)
        assert backend.write(handle, 100, 5, memoryview(b"abcdefgh")) == 5
        if self.stores_data:
            assert self.read(backend, handle, 98, 10) == DATA[98:100] + b"abcde" + DATA[105:108]
        backend.close(handle)

    def test_writes_beyond_the_end_extend_the_file(self, backend: Backend, path: bytes) -> None:
        if not self.stores_data:
            pytest.skip("stores nothing")
        handle = backend.open(path, writable=True, create=False)
        assert backend.write(handle, len(DATA) + 100, 3, memoryview(b"xyz")) == 3
        backend.close(handle)
        handle = backend.open(path, writable=False, create=False)
        assert backend.size(handle) == len(DATA) + 103
        assert self.read(backend, handle, len(DATA), 200) == bytes(100) + b"xyz"
        backend.close(handle)

    def test_opening_for_writing_keeps_what_is_there(self, backend: Backend, path: bytes) -> None:
        if not self.stores_data:
            pytest.skip("stores nothing")
        for create in (False, True):
            backend.close(backend.open(path, writable=True, create=create))
        handle = backend.open(path, writable=False, create=False)
        assert self.read(backend, handle, 0, len(DATA)) == DATA
        backend.close(handle)

    def test_a_missing_file_is_made_only_when_asked(self, backend: Backend, tmp_path: Path) -> None:
        if not self.stores_data:
            pytest.skip("opens nothing")
        path = os.fsencode(tmp_path / "new")
        for writable in (False, True):
            with pytest.raises(FileNotFoundError) as raised:
                backend.open(path, writable=writable, create=False)
            assert raised.value.errno == errno.ENOENT
        handle = backend.open(path, writable=True, create=True)
        assert backend.write(handle, 0, 2, memoryview(b"ok")) == 2
        backend.close(handle)
        assert os.path.exists(path)

    def test_a_file_opened_for_reading_is_not_written(self, backend: Backend, path: bytes) -> None:
        if not self.stores_data:
            pytest.skip("writes nothing")
        handle = backend.open(path, writable=False, create=True)
        with pytest.raises(OSError, match=r"\w"):
            backend.write(handle, 0, 3, memoryview(b"xyz"))
        backend.close(handle)
        handle = backend.open(path, writable=False, create=False)
        assert self.read(backend, handle, 0, 3) == DATA[:3]
        backend.close(handle)

    def test_threads_share_a_handle(self, backend: Backend, path: bytes) -> None:
        handle = backend.open(path, writable=False, create=False)
        wrong: list[int] = []

        def read_all(first: int) -> None:
            for offset in range(first, len(DATA) - 64, 251):
                got = self.read(backend, handle, offset, 64)
                if len(got) != 64 or (self.stores_data and got != DATA[offset : offset + 64]):
                    wrong.append(offset)

        threads = [threading.Thread(target=read_all, args=(first,)) for first in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        backend.close(handle)
        assert not wrong

    def test_a_lane_runs_over_it(self, backend: Backend, path: bytes) -> None:
        start, stop = StartGate(), StopFlag()
        files = PythonFiles([FileSlot(path=path, writable=True, uses=3)], backend)
        lane = PythonLane(files, pace=Pace.NONE, start=start, stop=stop)
        lane.submit(make_batch((READ, 0, 10, 100, 0), (WRITE, 0, 0, 64, 0), (READ, 0, 0, 64, 0)))
        lane.finish()
        start.open(1)
        lane.run()
        completed = lane.collect()
        assert completed is not None
        assert completed.result.tolist() == [100, 64, 64]
        assert not files.failures()
