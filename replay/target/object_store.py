"""Object stores: the URL of a target, the client (obstore), and its requests, one function each.

    s3://bucket/prefix?endpoint=http://host:9000&region=us-east-1&skip_signature=true&opens=none&part_size=16MiB

Credentials are never part of the URL: obstore takes them from the environment (`AWS_ACCESS_KEY_ID` ...), as the AWS
tools do. Retries are off: a request that fails is a result, and a client that repeats it hides its time. Every request
raises OSError with the errno of its HTTP status.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

from dxt_replay.traces.errors import MissingDependencyError, UsageError
from dxt_replay.traces.text import printable
from dxt_replay.traces.units import format_bytes, parse_bytes
from dxt_replay.traces.version import VERSION

SCHEME = "s3"

PART_BYTES = 8 << 20
"""Larger objects are put in parts of so many bytes: the threshold and the part size of boto3 and the AWS tools."""
LEAST_PART, MOST_PART = 5 << 20, 1 << 30
"""S3 takes no smaller parts, but for the last. A process holds up to 11 parts in memory."""
PARTS_AT_ONCE = 10  # Parts of one object that are sent at a time: the default of boto3

AGENT = f"dxt-replay/{VERSION}"
REPLAY_AGENT = f"{AGENT} replay"
"""User-Agent of the requests around a replay, and of those of a replay itself: server logs can tell them apart."""

_ERRNO_OF_STATUS = {
    400: errno.EINVAL,
    401: errno.EACCES,
    403: errno.EACCES,
    404: errno.ENOENT,
    405: errno.EOPNOTSUPP,
    408: errno.ETIMEDOUT,
    409: errno.EBUSY,
    412: errno.EEXIST,
    413: errno.EFBIG,
    416: errno.ERANGE,
    429: errno.EAGAIN,
    501: errno.EOPNOTSUPP,
    503: errno.EAGAIN,
    504: errno.ETIMEDOUT,
    507: errno.ENOSPC,
}
"""HTTP status -> errno. Others are EIO."""

REMEDIES = {
    errno.ENOENT: "make the bucket, or choose another target",
    errno.EACCES: "check the credentials in the environment (AWS_ACCESS_KEY_ID ...), or give skip_signature=true if "
    "the bucket needs none",
    errno.EAGAIN: "the store asks for fewer requests: try again later",
    errno.ECONNREFUSED: "no server listens at the endpoint: check endpoint=",
    errno.EHOSTUNREACH: "check endpoint=",
    errno.ETIMEDOUT: "check endpoint=, and whether the server is up",
}
"""errno of a request -> what to do."""

_ELSEWHERE = "come from the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY ...)"
_CHOICES = {"skip_signature": {"true": True, "false": False}, "opens": {"head": True, "none": False}}
_KEYS = ("endpoint", "region", *_CHOICES, "part_size")


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectPlace:
    """The bucket and prefix of a target, and how its server is reached.

    `prefix`: ends in `/` unless empty. `endpoint`, `region`: None for those of the environment.
    `skip_signature`: whether requests are sent without credentials.
    `opens_ask`: whether an open for reading that was recorded sends a HEAD.
    `part_bytes`: of the parts in which larger objects are put."""

    bucket: str
    prefix: str
    endpoint: str | None = None
    region: str | None = None
    skip_signature: bool = False
    opens_ask: bool = True
    part_bytes: int = PART_BYTES

    @property
    def base(self) -> str:
        """The URL without options, which ends in `/`. A path below the target is appended to it."""
        return f"{SCHEME}://{self.bucket}/{self.prefix}"

    @property
    def url(self) -> str:
        """The URL with its options."""
        given = {
            "endpoint": self.endpoint,
            "region": self.region,
            "skip_signature": "true" if self.skip_signature else None,
            "opens": None if self.opens_ask else "none",
            "part_size": None if self.part_bytes == PART_BYTES else str(self.part_bytes),
        }
        query = "&".join(f"{name}={quote(value, safe=':/')}" for name, value in given.items() if value is not None)
        return self.base.removesuffix("/") + ("?" + query if query else "")

    def key(self, path: str) -> str:
        return self.prefix + path

    def below(self, name: str) -> ObjectPlace:
        """The place of the keys that begin with `name` and a `/` after this prefix."""
        return replace(self, prefix=f"{self.prefix}{name}/")

    def client(self, agent: str = AGENT) -> Any:
        """A thread-safe `S3Store` of the bucket that sends each request once, and deletes objects one by one.

        Raises: MissingDependencyError without obstore; UsageError if it refuses the settings, such as a missing region.
        """
        try:
            from obstore.store import S3Store
        except ImportError as error:
            raise MissingDependencyError(
                "obstore", f"the target {self.base}", "pip install 'dxt-replay[objects]'"
            ) from error
        given: dict[str, Any] = {"endpoint": self.endpoint, "region": self.region}
        given["skip_signature"] = self.skip_signature or None
        names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
        endpoint = self.endpoint or next((os.environ[name] for name in names if os.environ.get(name)), "")
        try:
            return S3Store(
                self.bucket,
                disable_bulk_delete=True,
                client_options={"user_agent": agent, "allow_http": endpoint.startswith("http://")},
                retry_config={"max_retries": 0},
                **{name: value for name, value in given.items() if value is not None},
            )
        except Exception as error:  # obstore's message may hold what the environment says
            raise UsageError(
                f"{printable(self.base)}: obstore refuses the settings ({type(error).__name__}): check endpoint= and "
                "region=, and the variables AWS_* of the environment"
            ) from error


def parse_object_url(where: str) -> ObjectPlace:
    """The place that a URL names.

    Raises: UsageError for another scheme, no bucket, an unknown option, a prefix that no key can have, or credentials,
    which the message does not repeat."""
    parts = urlsplit(where)
    form = f"give {SCHEME}://BUCKET/PREFIX?endpoint=http://HOST:PORT"
    if parts.scheme != SCHEME or not parts.netloc:
        raise UsageError(f"the target has no bucket: {form}")
    if "@" in parts.netloc or ":" in parts.netloc:
        raise UsageError(f"the target names more than a bucket before its first /: {form}; credentials {_ELSEWHERE}")
    prefix = parts.path.strip("/")
    if any(name in ("", ".", "..") for name in prefix.split("/") if prefix) or not prefix.isprintable():
        raise UsageError(f"{printable(prefix)!r} is not a prefix of keys: give names with one / between them")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = [*sorted(set(options) - set(_KEYS)), *(["#"] if parts.fragment else [])]
    if unknown:
        raise UsageError(
            f"{printable(unknown[0])} is not an option of an object target: choose {', '.join(_KEYS)}; "
            f"credentials {_ELSEWHERE}"
        )
    server = urlsplit(options.get("endpoint", "http://default"))
    if server.scheme not in ("http", "https") or not server.hostname or server.query or server.fragment:
        raise UsageError("endpoint= is not the URL of a server: give http://HOST:PORT or https://HOST")
    if "@" in server.netloc:
        raise UsageError(f"endpoint= has a user name or password: credentials {_ELSEWHERE}")
    chosen = {}
    for name, words in _CHOICES.items():
        value = options.get(name, "false" if name == "skip_signature" else "head")
        if value not in words:
            raise UsageError(f"{name}={printable(value)}: choose {', '.join(words)}")
        chosen[name] = words[value]
    size = options.get("part_size", str(PART_BYTES))
    part_bytes = parse_bytes(size, "part_size=")
    if not LEAST_PART <= part_bytes <= MOST_PART:
        raise UsageError(f"part_size={printable(size)}: give {format_bytes(LEAST_PART)} to {format_bytes(MOST_PART)}")
    return ObjectPlace(
        bucket=parts.netloc,
        prefix=prefix + "/" if prefix else "",
        endpoint=options.get("endpoint"),
        region=options.get("region"),
        skip_signature=chosen["skip_signature"],
        opens_ask=chosen["opens"],
        part_bytes=part_bytes,
    )


def request_error(error: Exception, key: str) -> OSError:
    """A failed request as an OSError with the errno of its HTTP status, or of its connection.

    Its text has the status alone: obstore's text quotes the whole answer of the server."""
    text = str(error)
    if "169.254.169.254" in text:  # without credentials the client asks the metadata service of a cloud machine
        return OSError(errno.EACCES, "no credentials were found", key)
    if status := re.search(r"status code: (\d{3})", text):
        number = int(status[1])
        return OSError(_ERRNO_OF_STATUS.get(number, errno.EIO), f"the server answered {number}", key)
    if isinstance(error, FileNotFoundError):
        return OSError(errno.ENOENT, "no such object", key)
    for word, number, what in (
        ("StartTooLarge", errno.ERANGE, "the object ends before"),
        ("TimedOut", errno.ETIMEDOUT, "the server did not answer in time"),
        ("kind: Timeout", errno.ETIMEDOUT, "the server did not answer in time"),
        ("dns error", errno.EHOSTUNREACH, "the name of the server is not known"),
    ):
        if word in text:
            return OSError(number, what, key)
    system = re.search(r"\bcode: (\d+)", text)
    if system is not None and int(system[1]) in errno.errorcode:
        return OSError(int(system[1]), os.strerror(int(system[1])), key)
    return OSError(errno.EIO, "the request failed", key)


def size_of(client: Any, key: str) -> int:
    """One HEAD. Returns the bytes of the object."""
    return int(_asked(key, "head", client, key)["size"])


def size_if_there(client: Any, key: str) -> int | None:
    """As `size_of`, None if there is no such object."""
    try:
        return size_of(client, key)
    except FileNotFoundError:
        return None


def read_range(client: Any, key: str, offset: int, into: memoryview) -> int:
    """One GET of exactly this range. Returns the bytes that are there, 0 beyond the end of the object.

    An empty range sends no request, because HTTP has no such range."""
    if not len(into):
        return 0
    try:
        # Not get_ranges: it makes one request of several near ranges.
        found = memoryview(_asked(key, "get_range", client, key, start=offset, length=len(into)))
    except OSError as error:
        if error.errno == errno.ERANGE:
            return 0
        raise
    into[: len(found)] = found
    return len(found)


def read_range_timed(client: Any, key: str, offset: int, into: memoryview) -> tuple[int, int]:
    """As `read_range`, within the object. Returns the bytes, and the time until the head of the answer was here, ns."""
    begun = time.monotonic_ns()
    answer = _asked(key, "get", client, key, options={"range": (offset, offset + len(into))})
    first_ns = time.monotonic_ns() - begun
    found = memoryview(_asked(key, answer.bytes))
    into[: len(found)] = found
    return len(found), first_ns


def put_whole(client: Any, key: str, data: bytes | memoryview) -> None:
    _asked(key, "put", client, key, data, use_multipart=False)


def put_parts(client: Any, key: str, blocks: Iterable[bytes | memoryview], part_bytes: int) -> None:
    """A multipart upload, which is aborted if `blocks` raises; its error is then raised."""
    failures: list[BaseException] = []

    def watched() -> Iterator[bytes | memoryview]:
        try:
            yield from blocks
        except BaseException as error:
            failures.append(error)
            raise

    many: dict[str, Any] = {"use_multipart": True, "chunk_size": part_bytes, "max_concurrency": PARTS_AT_ONCE}
    try:
        _asked(key, "put", client, key, watched(), **many)
    except BaseException:
        if failures:  # obstore may raise the server's answer to the abort in its place
            raise failures[0] from None
        raise


def create(client: Any, key: str) -> bool:
    """Put an empty object if there is none. Returns False if there is one.

    Servers without conditional writes replace it: look before."""
    try:
        _asked(key, "put", client, key, b"", mode="create", use_multipart=False)
    except FileExistsError:
        return False
    return True


def copy_object(client: Any, key: str, new_key: str) -> None:
    _asked(key, "copy", client, key, new_key)


def delete_object(client: Any, key: str) -> None:
    """One DELETE; S3 has no error for an object that is not there."""
    _asked(key, "delete", client, key)


def keys_below(client: Any, prefix: str) -> Iterator[str]:
    """The keys that begin with `prefix`, which is empty or ends in `/`, a LIST of up to 1000 at a time."""
    found = iter(_asked(prefix, "list", client, prefix=prefix or None))
    while (batch := _asked(prefix, next, found, None)) is not None:
        yield from (each["path"] for each in batch)


def _asked(key: str, ask: str | Callable[..., Any], *given: Any, **options: Any) -> Any:
    """The answer of a function, or of obstore's function of that name. Raises: OSError."""
    import obstore
    from obstore.exceptions import AlreadyExistsError, BaseError

    try:
        return (getattr(obstore, ask) if isinstance(ask, str) else ask)(*given, **options)
    except AlreadyExistsError as error:
        raise OSError(errno.EEXIST, "the object exists", key) from error
    except (BaseError, FileNotFoundError, ValueError) as error:
        raise request_error(error, key) from None
