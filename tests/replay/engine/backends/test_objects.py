"""Each call of a lane is the request that docs/objects.md names, and a refused request is the errno of its status."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Iterator

import pytest

from dxt_replay.replay.engine.backends.objects import ObjectBackend
from dxt_replay.replay.engine.clock import StopFlag
from dxt_replay.replay.engine.files import FileSlot
from dxt_replay.replay.engine.issue import Files, Lane
from dxt_replay.replay.engine.items import CLOSE, OPEN, READ_AT, SEEK, STAT, SYNC, WRITE_AT, LoopPace
from dxt_replay.replay.target.object_store import PART_BYTES
from tests.fakes import make_batch
from tests.object_servers import BUCKET, ObjectServer
from tests.replay.engine.issue_lanes import results, run_lane, started

pytest.importorskip("obstore")

DATA = bytes(range(256)) * 64
KEY, NEW = "some/prefix/größe/a %20~", "some/prefix/new"


@pytest.fixture
def server() -> Iterator[ObjectServer]:
    with ObjectServer().running() as server:
        server.objects[KEY] = DATA
        yield server


def path(key: str) -> bytes:
    return f"s3://{BUCKET}/{key}".encode()


def lane_files(server: ObjectServer, more: str = "&skip_signature=true") -> Files:
    """Slots: KEY to read, KEY to write, NEW to write, a key that is not there."""
    slots = [
        FileSlot(path=path(KEY), uses=1000),
        FileSlot(path=path(KEY), writable=True, uses=1000),
        FileSlot(path=path(NEW), writable=True, create=True, uses=1000),
        FileSlot(path=path("some/prefix/missing"), uses=1000),
    ]
    return Files(slots, ObjectBackend(server.url(more=more)))


def requests(server: ObjectServer) -> list[tuple[object, ...]]:
    return [(each.method, each.key, each.range, each.status) for each in server.log]


def test_a_read_is_one_ranged_get_of_its_bytes(server: ObjectServer) -> None:
    files = lane_files(server)
    reads = [(0, 1), (1, 4096), (4097, 10), (4107, 10), (len(DATA) - 5, 100), (0, len(DATA))]
    (completed,), _ = run_lane(files, make_batch(*((READ_AT, 0, offset, length, 0) for offset, length in reads)))
    assert completed.result.tolist() == [1, 4096, 10, 10, 5, len(DATA)]
    assert requests(server) == [("GET", KEY, (at, at + length - 1), 206) for at, length in reads]
    for offset, length in reads:
        (one,), lane = run_lane(files, make_batch((READ_AT, 0, offset, length, 0)))
        assert lane.data_read(one.result[0]) == DATA[offset : offset + length]


def test_a_read_behind_the_end_is_a_request_without_bytes_and_an_empty_one_is_none(server: ObjectServer) -> None:
    server.objects[NEW] = b""
    files = lane_files(server)
    assert results(files, (READ_AT, 0, len(DATA), 10, 0), (READ_AT, 0, len(DATA), 0, 0)) == [0, 0]
    assert requests(server) == [("GET", KEY, (len(DATA), len(DATA) + 9), 416)]


@pytest.mark.parametrize(("more", "heads"), [("", 1), ("&opens=none", 0)])
def test_an_open_is_a_head_unless_the_url_says_none(server: ObjectServer, more: str, heads: int) -> None:
    files = lane_files(server, "&skip_signature=true" + more)
    calls = [(OPEN, 0, 0, 0, 0), (SEEK, 0, 7, 0, 0), (SYNC, 0, 0, 0, 0), (READ_AT, 0, 0, 3, 0), (CLOSE, 0, 0, 0, 0)]
    assert results(files, *calls) == [0, 0, 0, 3, 0]
    assert requests(server) == [("HEAD", KEY, None, 200)] * heads + [("GET", KEY, (0, 2), 206)]


def test_what_is_never_closed_is_put_at_the_end(server: ObjectServer) -> None:
    files = lane_files(server)
    assert results(files, (WRITE_AT, 2, 50, 100, 0)) == [100]
    assert NEW not in server.objects
    files.close_all()
    assert (len(server.objects[NEW]), files.failures()) == (150, [])


def test_an_object_that_is_written_in_part_keeps_its_size(server: ObjectServer) -> None:
    files = lane_files(server)
    assert results(files, (OPEN, 1, 0, 0, 0), (WRITE_AT, 1, 5, 10, 0), (CLOSE, 1, 0, 0, 0)) == [0, 10, 0]
    assert len(server.objects[KEY]) == len(DATA)
    assert results(files, (OPEN, 1, 0, 0, 0), (WRITE_AT, 1, len(DATA), 10, 0), (CLOSE, 1, 0, 0, 0)) == [0, 10, 0]
    assert len(server.objects[KEY]) == len(DATA) + 10


def test_large_objects_are_put_in_parts(server: ObjectServer) -> None:
    size = 2 * PART_BYTES + 5
    calls = [(OPEN, 2, 0, 0, 0), (WRITE_AT, 2, size - 1, 1, 0), (CLOSE, 2, 0, 0, 0)]
    assert results(lane_files(server), *calls) == [0, 1, 0]
    assert [each[0] for each in requests(server)] == ["HEAD", "POST", *["PUT"] * 3, "POST"]
    assert (len(server.objects[NEW]), server.uploads) == (size, {})


def test_a_close_that_cannot_put_is_its_result(server: ObjectServer) -> None:
    server.refused["PUT", NEW] = 507
    calls = [(OPEN, 2, 0, 0, 0), (WRITE_AT, 2, 0, 9, 0), (CLOSE, 2, 0, 0, 0)]
    assert results(lane_files(server), *calls) == [0, 9, -errno.ENOSPC]


def test_several_closes_put_once_unless_it_was_written_again(server: ObjectServer) -> None:
    files = lane_files(server)
    opens = [(OPEN, 2, 0, 0, 0)] * 2
    assert results(files, *opens, (WRITE_AT, 2, 0, 9, 0), (CLOSE, 2, 0, 0, 0), (CLOSE, 2, 0, 0, 0)) == [0, 0, 9, 0, 0]
    files.close_all()
    assert [each.method for each in server.log].count("PUT") == 1
    assert len(server.objects[NEW]) == 9


def test_a_file_opened_for_reading_is_not_written(server: ObjectServer) -> None:
    assert results(lane_files(server), (WRITE_AT, 0, 0, 3, 0)) == [-errno.EBADF]
    assert server.log == []


@pytest.mark.parametrize(
    ("status", "number"),
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
def test_a_refused_request_is_sent_once_and_is_its_errno(server: ObjectServer, status: int, number: int) -> None:
    server.refused["GET", KEY] = server.refused["HEAD", KEY] = status
    calls = [(READ_AT, 0, 0, 9, 0), (STAT, 0, 0, 0, 0), (OPEN, 0, 0, 0, 0)]
    assert results(lane_files(server), *calls) == [-number] * 3
    assert [each.status for each in server.log] == [status] * 3


def test_a_server_that_is_not_there_is_a_refused_connection() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"s3://bucket/x?endpoint=http://127.0.0.1:{closed.getsockname()[1]}&region=a&skip_signature=true"
        files = Files([FileSlot(path=path("x/a"), uses=9)], ObjectBackend(url))
        assert results(files, (READ_AT, 0, 0, 9, 0)) == [-errno.ECONNREFUSED]


def test_lanes_wait_for_their_requests_at_the_same_time(server: ObjectServer) -> None:
    """No request begins after the first of the others has ended, though each lane has but one thread."""
    lanes, under_way = 8, threading.Barrier(8, timeout=30)
    answer = server.serve
    server.serve = lambda agent: (answer(agent), under_way.wait())  # type: ignore[method-assign]
    files = lane_files(server)
    running = [Lane(files, pace=LoopPace.NONE, start=started(), stop=StopFlag()) for _ in range(lanes)]
    threads = [threading.Thread(target=lane.run) for lane in running]
    for number, (lane, thread) in enumerate(zip(running, threads, strict=True)):
        lane.submit(make_batch((READ_AT, 0, 64 * number, 64, 0)))
        lane.finish()
        thread.start()
    for number, (lane, thread) in enumerate(zip(running, threads, strict=True)):
        thread.join()
        (completed,) = iter(lane.collect, None)
        assert completed.result.tolist() == [64]
        assert lane.data_read(64) == DATA[64 * number :][:64]
