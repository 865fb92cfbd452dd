"""Requests and their errors that no replay reaches in a test."""

from __future__ import annotations

import errno
import socket

import pytest

from dxt_replay.replay.target.object_store import (
    create,
    keys_below,
    parse_object_url,
    read_range,
    request_error,
    size_of,
)
from tests.object_servers import ObjectServer

obstore = pytest.importorskip("obstore")


def test_an_object_is_created_once():
    with ObjectServer().running() as server:
        client = parse_object_url(server.url()).client()
        assert [create(client, "lock"), create(client, "lock")] == [True, False]
        server.refused["PUT", "other"] = 403
        with pytest.raises(PermissionError):
            create(client, "other")


def test_all_pages_of_a_list_are_read():
    with ObjectServer().running() as server:
        server.objects.update({f"{folder}/{number}": b"" for folder in ("a", "a-b", "c") for number in range(8)})
        client = parse_object_url(server.url()).client()
        assert sorted(keys_below(client, "a/")) == [f"a/{number}" for number in range(8)]
        assert len(list(keys_below(client, ""))) == 24


def test_an_object_without_bytes_has_none_to_read():
    with ObjectServer().running() as server:
        server.objects["empty"] = b""
        assert read_range(parse_object_url(server.url()).client(), "empty", 0, memoryview(bytearray(9))) == 0


def test_a_server_that_is_silent_is_a_timeout():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = obstore.store.S3Store(
            "bucket",
            endpoint=f"http://127.0.0.1:{silent.getsockname()[1]}",
            region="us-east-1",
            skip_signature=True,
            client_options={"allow_http": True, "timeout": "100ms"},
            retry_config={"max_retries": 0},
        )
        with pytest.raises(obstore.exceptions.GenericError) as caught:
            obstore.head(client, "x")
    assert request_error(caught.value, "x").errno == errno.ETIMEDOUT


def test_a_plain_endpoint_of_the_environment_is_used(monkeypatch):
    with ObjectServer().running() as server:
        server.objects["some/key"] = b"12345"
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
        client = parse_object_url("s3://bucket/some?region=us-east-1&skip_signature=true").client()
        assert size_of(client, "some/key") == 5


@pytest.mark.parametrize(
    "url",
    [
        "s3://bucket",
        "s3://bucket/a/b",
        "s3://bucket/a?endpoint=http://host:9000/base&region=eu-west-1&skip_signature=true&opens=none&part_size=16777216",
    ],
)
def test_a_url_names_the_same_place_again(url):
    place = parse_object_url(url)
    assert place.url == url
    assert parse_object_url(place.url) == place
