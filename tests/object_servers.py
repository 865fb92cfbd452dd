"""Object stores for tests: one of the standard library that every clone has, and s3rver and nginx where they are.

`ObjectServer` keeps a log of its requests, which shows what a replay really sent.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.sax.saxutils import escape

import pytest

BUCKET = "bucket"
Query, Span, Answer = dict[str, str], tuple[int, int] | None, tuple[int, dict[str, str], bytes]


@dataclass(frozen=True)
class Request:
    """A line of a server's log. `key`: without the bucket; `range`: first and last byte; `sent`: bytes of the body."""

    method: str
    key: str
    range: Span
    status: int
    sent: int
    agent: str
    headers: dict[str, str] = field(default_factory=dict, compare=False)

    @property
    def is_of_replay(self) -> bool:
        return self.agent.endswith(" replay")


class ObjectServer:
    """A small S3 at `endpoint`: GET with ranges, HEAD, PUT, copies, multipart uploads, DELETE and LIST.

    `refused`: (method, key) -> status of an answer in place of the right one.
    `service_s`: time that each request of a replay takes, of which there is one at a time.
    """

    def __init__(self, service_s: float = 0.0) -> None:
        self.service_s = service_s
        self.serving = threading.Lock()
        self.objects: dict[str, bytes] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.log: list[Request] = []
        self.refused: dict[tuple[str, str], int] = {}
        self.lock = threading.Lock()
        outer = self

        class Handler(_Handler):
            server_of = outer

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def serve(self, agent: str) -> None:
        """Called before each answer, without `lock`."""
        if self.service_s and agent.endswith(" replay"):
            with self.serving:
                time.sleep(self.service_s)

    def url(self, prefix: str = "some/prefix", more: str = "&skip_signature=true") -> str:
        return f"s3://{BUCKET}/{prefix}?endpoint={self.endpoint}&region=us-east-1{more}"

    def of_replay(self, method: str) -> list[Request]:
        """The requests of a replay itself, without those that prepare it."""
        return [each for each in self.log if each.is_of_replay and each.method == method]

    @contextmanager
    def running(self) -> Iterator[ObjectServer]:
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join(10)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    server_of: ObjectServer

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _answer(self) -> None:
        store, parts = self.server_of, urlsplit(self.path)
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        bucket, _, key = unquote(parts.path).lstrip("/").partition("/")
        span = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "")
        asked = (int(span[1]), int(span[2])) if span else None
        store.serve(self.headers.get("User-Agent") or "")
        with store.lock:
            status = store.refused.get((self.command, key), 0)
            if status or bucket != BUCKET:
                status, headers, data = status or 404, {}, b"<Error><Code>Refused</Code></Error>"
            else:
                status, headers, data = getattr(self, f"_{self.command.lower()}")(key, query, body, asked)
            sent = 0 if self.command == "HEAD" else len(data)
            agent = self.headers.get("User-Agent") or ""
            store.log.append(Request(self.command, key, asked, status, sent, agent, dict(self.headers)))
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _answer

    def _head(self, key: str, query: Query, body: bytes, span: Span) -> Answer:
        data = self.server_of.objects.get(key)
        return (404, {}, b"") if data is None else (200, _about(data), data)

    def _get(self, key: str, query: Query, body: bytes, span: Span) -> Answer:
        if not key:
            return 200, {}, _listing(sorted(self.server_of.objects), query)
        data = self.server_of.objects.get(key)
        if data is None:
            return 404, {}, b"<Error><Code>NoSuchKey</Code></Error>"
        if span is None:
            return 200, _about(data), data
        if span[0] >= len(data):
            return 416, {}, b"<Error><Code>InvalidRange</Code></Error>"
        found = data[span[0] : span[1] + 1]
        place = f"bytes {span[0]}-{span[0] + len(found) - 1}/{len(data)}"
        return 206, {**_about(data), "Content-Length": str(len(found)), "Content-Range": place}, found

    def _put(self, key: str, query: Query, body: bytes, span: Span) -> Answer:
        store, source = self.server_of, self.headers.get("x-amz-copy-source")
        if "uploadId" in query:
            store.uploads[query["uploadId"]][int(query["partNumber"])] = body
            return 200, {"ETag": _tag(body)}, b""
        if self.headers.get("If-None-Match") == "*" and key in store.objects:
            return 412, {}, b"<Error><Code>PreconditionFailed</Code></Error>"
        if source is not None:
            found = store.objects.get(unquote(source).lstrip("/").partition("/")[2])
            if found is None:
                return 404, {}, b"<Error><Code>NoSuchKey</Code></Error>"
            store.objects[key] = found
            return 200, {}, f"<CopyObjectResult><ETag>{_tag(found)}</ETag></CopyObjectResult>".encode()
        store.objects[key] = body
        return 200, {"ETag": _tag(body)}, b""

    def _post(self, key: str, query: Query, body: bytes, span: Span) -> Answer:
        store = self.server_of
        if "uploads" in query:
            name = f"upload-{len(store.log)}"
            store.uploads[name] = {}
            start = f"<Bucket>{BUCKET}</Bucket><Key>{escape(key)}</Key><UploadId>{name}</UploadId>"
            return 200, {}, f"<InitiateMultipartUploadResult>{start}</InitiateMultipartUploadResult>".encode()
        parts = store.uploads.pop(query["uploadId"])
        data = store.objects[key] = b"".join(parts[number] for number in sorted(parts))
        end = f"<Key>{escape(key)}</Key><ETag>{_tag(data)}</ETag>"
        return 200, {}, f"<CompleteMultipartUploadResult>{end}</CompleteMultipartUploadResult>".encode()

    def _delete(self, key: str, query: Query, body: bytes, span: Span) -> Answer:
        if "uploadId" in query:
            self.server_of.uploads.pop(query["uploadId"], None)
        else:
            self.server_of.objects.pop(key, None)
        return 204, {}, b""


def _tag(data: bytes) -> str:
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'


def _about(data: bytes) -> dict[str, str]:
    return {"ETag": _tag(data), "Last-Modified": "Mon, 23 Nov 2026 21:00:00 GMT", "Accept-Ranges": "bytes"}


def _listing(keys: list[str], query: Query) -> bytes:
    """ListObjectsV2 of three keys at a time, so that every list has several pages."""
    prefix, token = query.get("prefix", ""), query.get("continuation-token", "")
    waiting = [key for key in keys if key.startswith(prefix) and key > token]
    about = "<Size>1</Size><LastModified>2026-11-23T21:00:00.000Z</LastModified><ETag>x</ETag>"
    text = "".join(f"<Contents><Key>{escape(key)}</Key>{about}</Contents>" for key in waiting[:3])
    more = f"<NextContinuationToken>{escape(waiting[2])}</NextContinuationToken>" if len(waiting) > 3 else ""
    text += f"<KeyCount>{len(waiting[:3])}</KeyCount><IsTruncated>{str(bool(more)).lower()}</IsTruncated>{more}"
    return f"<ListBucketResult><Name>{BUCKET}</Name>{text}</ListBucketResult>".encode()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def _started(command: list[str], port: int, folder: Path) -> Iterator[str]:
    """The endpoint of a server that is a program of its own."""
    with (folder / "server.out").open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        for _ in range(300):
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                if process.poll() is not None:
                    break
                time.sleep(0.1)
        else:
            pytest.fail(f"{command[0]} does not listen: {(folder / 'server.out').read_text()}")
        if process.poll() is not None:
            pytest.fail(f"{command[0]} ended: {(folder / 'server.out').read_text()}")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)


@contextmanager
def s3rver(folder: Path) -> Iterator[str]:
    """The endpoint of an s3rver, whose user has the key and secret S3RVER. It refuses other keys; of signatures of
    version 4 it checks only the form."""
    program = shutil.which("s3rver")
    if program is None:
        pytest.skip("no s3rver on PATH (npm install s3rver)")
    port = free_port()
    (folder / "buckets").mkdir()
    command = [program, "-d", str(folder / "buckets"), "-a", "127.0.0.1", "-p", str(port), "--silent"]
    with _started([*command, "--configure-bucket", BUCKET], port, folder) as endpoint:
        yield endpoint


NGINX = """
daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log; {user}
events {{ worker_connections 256; }}
http {{
  log_format requests '$request_method $request_uri "$http_range" $status $body_bytes_sent "$http_user_agent"';
  access_log {folder}/access.log requests;
  client_body_temp_path {folder}/t1; proxy_temp_path {folder}/t2; fastcgi_temp_path {folder}/t3;
  uwsgi_temp_path {folder}/t4; scgi_temp_path {folder}/t5;
  keepalive_requests 1000000; tcp_nodelay on;
  server {{ listen 127.0.0.1:{port}; root {folder}/root; }}
}}
"""

_LINE = re.compile(r'(\S+) (\S+) "([^"]*)" (\d+) (\d+) "([^"]*)"')


@dataclass(frozen=True)
class Nginx:
    """A server of the files in `root`, without LIST and writing; its log is an independent witness."""

    folder: Path
    endpoint: str

    @property
    def root(self) -> Path:
        return self.folder / "root"

    def requests(self) -> list[Request]:
        """The access log so far."""
        found = []
        for line in (self.folder / "access.log").read_text().splitlines():
            method, uri, span, status, sent, agent = _LINE.fullmatch(line).groups()  # type: ignore[union-attr]
            asked = re.fullmatch(r"bytes=(\d+)-(\d+)", span)
            key = unquote(uri).lstrip("/").partition("/")[2]
            limits = (int(asked[1]), int(asked[2])) if asked else None
            found.append(Request(method, key, limits, int(status), int(sent), agent))
        return found


@contextmanager
def nginx(folder: Path) -> Iterator[Nginx]:
    """nginx where it is installed."""
    program = shutil.which("nginx")
    if program is None:
        pytest.skip("no nginx on PATH")
    port = free_port()
    (folder / "root" / BUCKET).mkdir(parents=True)
    user = "user root;" if Path("/proc/self").stat().st_uid == 0 else ""
    (folder / "nginx.conf").write_text(NGINX.format(folder=folder, port=port, user=user))
    command = [program, "-p", str(folder), "-e", str(folder / "error.log"), "-c", str(folder / "nginx.conf")]
    with _started(command, port, folder) as endpoint:
        yield Nginx(folder, endpoint)
