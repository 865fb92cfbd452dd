"""What every back end promises. A back end's test inherits `BackendContract` and says how to make one."""

from __future__ import annotations

import errno
import os
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dxt_replay.replay.engine.backends.base import Backend, FileSlot
from dxt_replay.replay.engine.clock import StartGate, StopFlag
from dxt_replay.replay.engine.issue import FileTable, make_files, make_lane, runs_compiled
from dxt_replay.replay.engine.items import CLOSE, OPEN, READ_AT, RENAME, SEEK, STAT, SYNC, WRITE_AT, LoopPace
from tests.fakes import make_batch

DATA = bytes(range(256)) * 64


@contextmanager
def no_file_may_grow() -> Iterator[None]:
    """Writes beyond a file's end are refused with EFBIG, as a full disk refuses them with ENOSPC."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class BackendContract:
    """Inherit, implement `make_backend`; override `make_file` where a file is more than its bytes.

    `stores_data` False: transfers succeed in full and nothing is kept.
    """

    stores_data = True
    refuses_writing = frozenset({errno.EBADF})
    """errno of a write to a file that was opened for reading."""

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

    @pytest.fixture(params=["python", "compiled"])
    def core(self, request: pytest.FixtureRequest, backend: Backend) -> str:
        """Each core that has this back end."""
        core: str = request.param
        if core == "compiled" and not runs_compiled(backend):
            pytest.skip("runs in Python lanes only")
        return core

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
        assert backend.write(handle, 100, 5, memoryview(bytearray(b"abcdefgh"))) == 5
        if self.stores_data:
            assert self.read(backend, handle, 98, 10) == DATA[98:100] + b"abcde" + DATA[105:108]
        backend.close(handle)

    def test_writes_beyond_the_end_extend_the_file(self, backend: Backend, path: bytes) -> None:
        if not self.stores_data:
            pytest.skip("stores nothing")
        handle = backend.open(path, writable=True, create=False)
        assert backend.write(handle, len(DATA) + 100, 3, memoryview(bytearray(b"xyz"))) == 3
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
        assert backend.write(handle, 0, 2, memoryview(bytearray(b"ok"))) == 2
        backend.close(handle)
        assert os.path.exists(path)

    def test_a_file_opened_for_reading_is_not_written(self, backend: Backend, path: bytes) -> None:
        if not self.stores_data:
            pytest.skip("writes nothing")
        handle = backend.open(path, writable=False, create=True)
        with pytest.raises(OSError, match=r"\w") as raised:
            backend.write(handle, 0, 3, memoryview(bytearray(b"xyz")))
        assert raised.value.errno in self.refuses_writing
        backend.close(handle)
        handle = backend.open(path, writable=False, create=False)
        assert self.read(backend, handle, 0, 3) == DATA[:3]
        backend.close(handle)

    def test_a_directory_is_no_file(self, backend: Backend, core: str, tmp_path: Path) -> None:
        if not self.stores_data:
            pytest.skip("looks at no file")
        with pytest.raises(OSError, match=r"\w"):
            backend.open(os.fsencode(tmp_path), writable=True, create=True)
        files = make_files([FileSlot(path=os.fsencode(tmp_path))], backend=backend, core=core)
        assert self.results(files, (READ_AT, 0, 0, 10, 0))[0] in (-errno.EISDIR, -errno.EIO)

    def test_nothing_is_written_through_a_link(self, backend: Backend, path: bytes, tmp_path: Path) -> None:
        if not self.stores_data:
            pytest.skip("writes nothing")
        for name, behind in ((b"link", path), (b"dangling", os.fsencode(tmp_path / "outside"))):
            link = os.fsencode(tmp_path) + b"/" + name
            os.symlink(behind, link)
            with pytest.raises(OSError, match=f"Errno {errno.ELOOP}"):
                backend.open(link, writable=True, create=True)
        assert not (tmp_path / "outside").exists()
        backend.close(backend.open(os.fsencode(tmp_path) + b"/link", writable=False, create=False))

    def test_a_further_handle_is_closed_for_itself(self, backend: Backend, path: bytes) -> None:
        handle = backend.open(path, writable=False, create=False)
        backend.close(backend.another(handle))
        assert len(self.read(backend, handle, 0, 10)) == 10
        backend.close(handle)

    def test_stat_looks_at_a_path(self, backend: Backend, path: bytes, tmp_path: Path) -> None:
        backend.stat(path, follow=True)
        if self.stores_data:
            os.symlink(tmp_path / "nowhere", tmp_path / "link")
            backend.stat(os.fsencode(tmp_path / "link"), follow=False)
            with pytest.raises(FileNotFoundError):
                backend.stat(os.fsencode(tmp_path / "link"), follow=True)

    def test_what_was_synced_is_there_for_others(self, backend: Backend, path: bytes) -> None:
        handle = backend.open(path, writable=True, create=False)
        other = backend.open(path, writable=False, create=False)
        backend.write(handle, 3, 4, memoryview(bytearray(b"sync")))
        backend.sync(handle)
        if self.stores_data:
            assert self.read(backend, other, 0, 8) == DATA[:3] + b"sync" + DATA[7:8]
        backend.close(handle)
        backend.close(other)

    def test_a_seek_moves_no_later_request(self, backend: Backend, path: bytes) -> None:
        handle = backend.open(path, writable=True, create=False)
        first = self.read(backend, handle, 0, 10)
        backend.seek(handle, 500)
        following = self.read(backend, handle, 10, 10)
        backend.seek(handle, 700)
        assert backend.write(handle, 20, 3, memoryview(bytearray(b"abc"))) == 3
        if self.stores_data:
            assert first + following + self.read(backend, handle, 20, 4) == DATA[:20] + b"abc" + DATA[23:24]
        backend.close(handle)

    def test_a_renamed_file_takes_the_place_of_another(self, backend: Backend, path: bytes, tmp_path: Path) -> None:
        if not self.stores_data:
            backend.rename(path, path + b".new")
            assert os.path.exists(path)
            return
        (tmp_path / "old").write_bytes(b"old")
        backend.rename(path, os.fsencode(tmp_path / "old"))
        handle = backend.open(os.fsencode(tmp_path / "old"), writable=False, create=False)
        assert self.read(backend, handle, 0, 300) == DATA[:300]
        backend.close(handle)
        with pytest.raises(FileNotFoundError):
            backend.rename(path, os.fsencode(tmp_path / "old"))

    def test_without_descriptors_files_are_closed_and_opened_again(
        self, backend: Backend, core: str, tmp_path: Path
    ) -> None:
        paths = []
        for number in range(24):
            folder = tmp_path / str(number)
            folder.mkdir()
            paths.append(self.make_file(folder))
        files = make_files([FileSlot(path=path, uses=1000) for path in paths], backend=backend, core=core)
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        lowest_free = os.open("/", os.O_RDONLY)
        os.close(lowest_free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free + 12, limits[1]))
        try:
            items = [(READ_AT, slot, 0, 50, 0) for slot in [*range(len(paths)), *range(len(paths))]]
            got = self.results(files, *items, *((OPEN, 3, 0, 0, 0) for _ in range(20)), (READ_AT, 3, 0, 50, 0))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        files.close_all()
        assert not files.failures()
        assert got == [50] * len(items) + [0] * 20 + [50]

    def results(self, files: FileTable, *items: tuple[int, int, int, int, int]) -> list[int]:
        """What one lane gets for the items."""
        start = StartGate()
        start.open(1)
        lane = make_lane(files, pace=LoopPace.NONE, start=start, stop=StopFlag())
        lane.submit(make_batch(*items))
        lane.finish()
        lane.run()
        completed = lane.collect()
        assert completed is not None
        results: list[int] = completed.result.tolist()
        return results

    def test_a_lane_makes_every_kind_of_operation(
        self, backend: Backend, core: str, path: bytes, tmp_path: Path
    ) -> None:
        slots = [
            FileSlot(path=path, writable=True, uses=100),
            FileSlot(path=path + b".new", writable=True, create=True, uses=100),
            FileSlot(path=os.fsencode(tmp_path / "missing"), uses=100),
        ]
        files = make_files(slots, backend=backend, core=core)
        calls = [OPEN, OPEN, SEEK, STAT, SYNC, CLOSE, CLOSE, CLOSE, SYNC]
        got = self.results(
            files,
            *((kind, 0, 5, 0, 0) for kind in calls),
            (READ_AT, 0, 5, 9, 0),
            (RENAME, 0, 1, 0, 0),
            (READ_AT, 1, 5, 9, 0),
        )
        assert got == [0] * len(calls) + [9, 0, 9]
        missing = self.results(files, (OPEN, 2, 0, 0, 0), (STAT, 2, 0, 0, 0), (SEEK, 2, 0, 0, 0), (RENAME, 2, 1, 0, 0))
        expected = [-errno.ENOENT] * 3 if self.stores_data else [0] * 3
        assert missing == [*expected, -errno.EROFS]
        files.close_all()

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

    def test_a_lane_runs_over_it(self, backend: Backend, core: str, path: bytes) -> None:
        files = make_files([FileSlot(path=path, writable=True, uses=3)], backend=backend, core=core)
        assert files.core == core
        assert self.results(files, (READ_AT, 0, 10, 100, 0), (WRITE_AT, 0, 0, 64, 0), (READ_AT, 0, 0, 64, 0)) == [
            100,
            64,
            64,
        ]
        assert not files.failures()
