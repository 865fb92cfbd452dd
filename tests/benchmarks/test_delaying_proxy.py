"""The delaying proxy: what passes is unchanged, and nothing passes early."""

from __future__ import annotations

import http.client
import shutil
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from benchmarks.delaying_proxy import delaying
from tests.object_servers import ObjectServer

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")

DATA = bytes(range(251)) * 4_000


@pytest.fixture
def server() -> Iterator[ObjectServer]:
    store = ObjectServer()
    store.objects["key"] = DATA
    with store.running():
        yield store


def _connection(url: str) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", urlsplit(url).port, timeout=60)


def test_requests_and_answers_pass_unchanged_on_one_connection(server):
    with delaying(server.endpoint, first_byte_ms=0) as url:
        connection = _connection(url)
        connection.connect()
        socket = connection.sock
        for method, path, body, headers, status, expected in (
            ("GET", "/bucket/key", None, {}, 200, DATA),
            ("GET", "/bucket/key", None, {"Range": "bytes=7-99"}, 206, DATA[7:100]),
            ("HEAD", "/bucket/key", None, {}, 200, b""),
            ("GET", "/bucket/none", None, {}, 404, b"<Error><Code>NoSuchKey</Code></Error>"),
            ("PUT", "/bucket/new", DATA * 2, {}, 200, b""),
            ("DELETE", "/bucket/key", None, {}, 204, b""),
        ):
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            assert (answer.status, answer.read()) == (status, expected), (method, path)
        assert connection.sock is socket
        connection.close()
    assert server.objects == {"new": DATA * 2}
    assert [each.status for each in server.log] == [200, 206, 200, 404, 200, 204]


def test_a_body_waits_for_its_first_byte_and_its_rate(server):
    with delaying(server.endpoint, first_byte_ms=100, mb_per_s=4) as url:
        connection = _connection(url)
        connection.connect()
        begin = time.monotonic()
        connection.request("GET", "/bucket/key")
        answer = connection.getresponse()
        first = time.monotonic() - begin
        answer.read()
        whole = time.monotonic() - begin
        connection.close()
    assert first >= 0.1
    assert whole >= 0.1 + len(DATA) / 4e6


def test_another_machine_as_upstream_is_refused():
    with pytest.raises(RuntimeError, match=r"expected http://127\.0\.0\.1:PORT"), delaying("http://example.org", 1):
        pass
