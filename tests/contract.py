"""What every back end promises, as a lane sees it: a test of a back end inherits `BackendContract` and makes one."""

from __future__ import annotations

import errno
import os
import resource
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from dxt_replay.replay.engine.clock import StopFlag
from dxt_replay.replay.engine.files import Backend, FileSlot
from dxt_replay.replay.engine.issue import Files, Lane
from dxt_replay.replay.engine.items import CLOSE, OPEN, READ_AT, RENAME, SEEK, STAT, SYNC, WRITE_AT, LoopPace
from tests.fakes import make_batch
from tests.replay.engine.issue_lanes import results, run_lane, started

DATA = bytes(range(256)) * 64
AnyBackend = str | Backend


@contextmanager
def no_file_may_grow() -> Iterator[None]:
    """Writes beyond a file's end are refused with EFBIG, as a full disk refuses them with ENOSPC."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def read(files: Files, slot: int, offset: int, length: int) -> bytes:
    """The bytes that a read brings, which are no more than asked for."""
    (completed,), lane = run_lane(files, make_batch((READ_AT, slot, offset, length, 0)))
    (count,) = completed.result.tolist()
    assert 0 <= count <= length
    found: bytes = lane.data_read(count)
    return found


class BackendContract:
    """Inherit, implement `make_backend`; override `make_file` where a file is more than its bytes."""

    refuses_writing = frozenset({errno.EBADF})
    """errno of a write to a file that was opened for reading."""

    def make_backend(self) -> AnyBackend:
        raise NotImplementedError

    def make_file(self, folder: Path) -> bytes:
        """A file from which DATA is read at offset 0."""
        path = folder / "data"
        path.write_bytes(DATA)
        return os.fsencode(path)

    @pytest.fixture
    def backend(self) -> AnyBackend:
        return self.make_backend()

    @pytest.fixture
    def path(self, tmp_path: Path) -> bytes:
        return self.make_file(tmp_path)

    @pytest.fixture
    def data(self, backend: AnyBackend, path: bytes) -> Files:
        """DATA in slot 0, to be read and written; slot 1 is the same file, only read."""
        return Files([FileSlot(path=path, writable=True, uses=1000), FileSlot(path=path, uses=1000)], backend)

    def written(self, backend: AnyBackend, path: bytes, length: int) -> bytes:
        """So many bytes of the file that are opened anew."""
        return read(Files([FileSlot(path=path, uses=1)], backend), 0, 0, length)

    def test_reads_what_is_at_the_offset(self, data: Files) -> None:
        for offset, length in ((0, len(DATA)), (300, 1000), (1, 1), (len(DATA) - 7, 7), (5, 0)):
            assert read(data, 1, offset, length) == DATA[offset : offset + length]

    def test_a_read_at_the_end_is_short(self, data: Files) -> None:
        assert read(data, 1, len(DATA) - 10, 100) == DATA[-10:]
        assert read(data, 1, len(DATA) + 10, 100) == b""

    def test_writes_at_the_offset_and_only_the_length(self, backend: AnyBackend, data: Files, path: bytes) -> None:
        assert results(data, (WRITE_AT, 0, 100, 5, 0), (WRITE_AT, 0, 200, 9, 0), (SYNC, 0, 0, 0, 0)) == [5, 9, 0]
        found = read(data, 0, 0, len(DATA))
        assert found[:100] + found[105:200] + found[209:] == DATA[:100] + DATA[105:200] + DATA[209:]
        assert found[100:105] == found[200:205], "writes of a run take their data from the same place"
        assert found[200:209] != DATA[200:209]
        data.close_all()
        assert self.written(backend, path, len(DATA)) == found

    def test_writes_beyond_the_end_extend_the_file(self, backend: AnyBackend, data: Files, path: bytes) -> None:
        assert results(data, (WRITE_AT, 0, len(DATA) + 100, 3, 0)) == [3]
        data.close_all()
        found = self.written(backend, path, 2 * len(DATA))
        assert (len(found), found[: len(DATA) + 100]) == (len(DATA) + 103, DATA + bytes(100))

    @pytest.mark.parametrize("create", [False, True])
    def test_opening_for_writing_keeps_what_is_there(self, backend: AnyBackend, path: bytes, create: bool) -> None:
        files = Files([FileSlot(path=path, writable=True, create=create, uses=2)], backend)
        assert results(files, (OPEN, 0, 0, 0, 0), (CLOSE, 0, 0, 0, 0)) == [0, 0]
        assert self.written(backend, path, len(DATA)) == DATA

    def test_a_missing_file_is_made_only_when_asked(self, backend: AnyBackend, tmp_path: Path) -> None:
        path = os.fsencode(tmp_path / "new")
        ways = ((False, False), (True, False), (True, True))
        files = Files([FileSlot(path=path, writable=may, create=create, uses=2) for may, create in ways], backend)
        refused = [-errno.ENOENT] * 2
        assert results(files, (OPEN, 0, 0, 0, 0), (READ_AT, 0, 0, 1, 0)) == refused
        assert results(files, (OPEN, 1, 0, 0, 0), (WRITE_AT, 1, 0, 1, 0)) == refused
        assert results(files, (OPEN, 2, 0, 0, 0), (WRITE_AT, 2, 0, 2, 0)) == [0, 2]
        assert os.path.exists(path)

    def test_a_file_opened_for_reading_is_not_written(self, backend: AnyBackend, data: Files, path: bytes) -> None:
        assert -results(data, (WRITE_AT, 1, 0, 3, 0))[0] in self.refuses_writing
        assert self.written(backend, path, 3) == DATA[:3]

    def test_a_directory_is_no_file(self, backend: AnyBackend, tmp_path: Path) -> None:
        ways = [FileSlot(path=os.fsencode(tmp_path), writable=may, create=may, uses=9) for may in (False, True)]
        found = results(Files(ways, backend), (READ_AT, 0, 0, 10, 0), (OPEN, 1, 0, 0, 0))
        assert found[0] in (-errno.EISDIR, -errno.EIO)
        assert found[1] < 0

    def test_nothing_is_written_through_a_link(self, backend: AnyBackend, path: bytes, tmp_path: Path) -> None:
        for name, behind in (("link", path), ("dangling", os.fsencode(tmp_path / "outside"))):
            link = os.fsencode(tmp_path / name)
            os.symlink(behind, link)
            slots = [FileSlot(path=link, writable=True, create=True, uses=9), FileSlot(path=link, uses=9)]
            files = Files(slots, backend)
            refused = [-errno.ELOOP] * 2
            assert results(files, (OPEN, 0, 0, 0, 0), (WRITE_AT, 0, 0, 3, 0)) == refused
            assert results(files, (OPEN, 1, 0, 0, 0)) == [0 if name == "link" else -errno.ENOENT]
        assert not (tmp_path / "outside").exists()

    def test_stat_looks_at_a_path(self, backend: AnyBackend, path: bytes, tmp_path: Path) -> None:
        """At a link itself where the slot may be written."""
        link = os.fsencode(tmp_path / "link")
        os.symlink(tmp_path / "nowhere", link)
        slots = [FileSlot(path=path), FileSlot(path=link, writable=True), FileSlot(path=link)]
        found = results(Files(slots, backend), *((STAT, slot, 0, 0, 0) for slot in range(3)))
        assert found == [0, 0, -errno.ENOENT]

    def test_what_was_synced_is_there_for_others(self, data: Files) -> None:
        opens = [(OPEN, 0, 0, 0, 0), (OPEN, 1, 0, 0, 0)]
        assert results(data, *opens, (WRITE_AT, 0, 3, 4, 0), (SYNC, 0, 0, 0, 0)) == [0, 0, 4, 0]
        found = read(data, 1, 0, 8)
        assert found[:3] + found[7:] == DATA[:3] + DATA[7:8]
        assert found[3:7] != DATA[3:7]

    def test_a_seek_moves_no_later_request(self, data: Files) -> None:
        assert results(data, (READ_AT, 0, 0, 10, 0), (SEEK, 0, 500, 0, 0)) == [10, 0]
        assert read(data, 0, 10, 10) == DATA[10:20]
        assert results(data, (SEEK, 0, 700, 0, 0), (WRITE_AT, 0, 20, 3, 0)) == [0, 3]
        found = read(data, 0, 0, 1000)
        assert found[:20] + found[23:] == DATA[:20] + DATA[23:1000]

    def test_a_renamed_file_takes_the_place_of_another(self, backend: AnyBackend, path: bytes, tmp_path: Path) -> None:
        (tmp_path / "old").write_bytes(b"old")
        paths = (path, os.fsencode(tmp_path / "old"))
        files = Files([FileSlot(path=each, writable=True, uses=100) for each in paths], backend)
        assert results(files, (RENAME, 0, 1, 0, 0)) == [0]
        assert read(files, 1, 0, 300) == DATA[:300]
        assert results(files, (RENAME, 0, 1, 0, 0)) == [-errno.ENOENT]

    def test_without_descriptors_files_are_closed_and_opened_again(self, backend: AnyBackend, tmp_path: Path) -> None:
        paths = []
        for number in range(24):
            (tmp_path / str(number)).mkdir()
            paths.append(self.make_file(tmp_path / str(number)))
        files = Files([FileSlot(path=path, uses=1000) for path in paths], backend)
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        lowest_free = os.open("/", os.O_RDONLY)
        os.close(lowest_free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free + 12, limits[1]))
        try:
            items = [(READ_AT, slot, 0, 50, 0) for slot in [*range(len(paths)), *range(len(paths))]]
            got = results(files, *items, *((OPEN, 3, 0, 0, 0) for _ in range(20)), (READ_AT, 3, 0, 50, 0))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        files.close_all()
        assert not files.failures()
        assert got == [50] * len(items) + [0] * 20 + [50]

    def test_a_lane_makes_every_kind_of_operation(self, backend: AnyBackend, path: bytes, tmp_path: Path) -> None:
        slots = [
            FileSlot(path=path, writable=True, uses=100),
            FileSlot(path=path + b".new", writable=True, create=True, uses=100),
            FileSlot(path=os.fsencode(tmp_path / "missing"), uses=100),
        ]
        files = Files(slots, backend)
        calls = [OPEN, OPEN, SEEK, STAT, SYNC, CLOSE, CLOSE, CLOSE, SYNC]
        moves = [(READ_AT, 0, 5, 9, 0), (RENAME, 0, 1, 0, 0), (READ_AT, 1, 5, 9, 0)]
        assert results(files, *((kind, 0, 5, 0, 0) for kind in calls), *moves) == [0] * len(calls) + [9, 0, 9]
        refused = [(OPEN, 2, 0, 0, 0), (STAT, 2, 0, 0, 0), (SEEK, 2, 0, 0, 0), (RENAME, 2, 1, 0, 0)]
        assert results(files, *refused) == [-errno.ENOENT] * 3 + [-errno.EROFS]
        files.close_all()
        assert [call for _, _, call, _ in files.failures()] == ["open"]

    def test_lanes_share_a_file(self, data: Files) -> None:
        """Each has it open from its first read to its last: a close between them is of another handle."""
        offsets: list[Sequence[int]] = [range(first, len(DATA) - 64, 251) for first in range(8)]
        items = [[(READ_AT, 1, offset, 64, 0) for offset in each] for each in offsets]
        items[0].insert(20, (CLOSE, 1, 0, 0, 0))
        lanes = [Lane(data, pace=LoopPace.NONE, start=started(), stop=StopFlag()) for _ in items]
        threads = [threading.Thread(target=lane.run) for lane in lanes]
        for lane, thread, each in zip(lanes, threads, items, strict=True):
            lane.submit(make_batch(*each))
            lane.finish()
            thread.start()
        for lane, thread, each in zip(lanes, threads, items, strict=True):
            thread.join()
            (completed,) = iter(lane.collect, None)
            assert completed.result.tolist() == [item[3] for item in each]
            assert lane.data_read(64) == DATA[each[-1][2] :][:64]
