"""Where objects are: the URL of an object target, and the client (obstore) that makes its requests.

    s3://bucket/prefix?endpoint=http://host:9000&region=us-east-1&skip_signature=true&opens=none&part_size=16MiB

Credentials are never part of the URL: obstore takes them from the environment (`AWS_ACCESS_KEY_ID` ...), as the AWS
tools do. Retries are off: a request that fails is a result, and a client that repeats it hides its time.
"""

from __future__ import annotations

import errno
import os
import re
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

AGENT = f"dxt-replay/{VERSION}"
REPLAY_AGENT = f"{AGENT} replay"
"""User-Agent of the requests around a replay, and of those of a replay itself: server logs can tell them apart."""

_KEYS = ("endpoint", "region", "skip_signature", "opens", "part_size")
_STATUS = re.compile(r"status code: (\d{3})")
_SYSTEM_CODE = re.compile(r"\bcode: (\d+)")
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectPlace:
    """The bucket and prefix of a target, and how its server is reached.

    `prefix`: ends in `/` unless empty. `endpoint`, `region`: None for those of the environment.
    `skip_signature`: whether requests are sent without credentials.
    `opens_ask`: whether an open for reading that was recorded sends a HEAD.
    `part_bytes`: of the parts in which larger objects are put.
    """

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
        """The key of the object at a path below the target."""
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
        options: dict[str, Any] = {"disable_bulk_delete": True}
        if self.endpoint is not None:
            options["endpoint"] = self.endpoint
        if self.region is not None:
            options["region"] = self.region
        if self.skip_signature:
            options["skip_signature"] = True
        plain = (self.endpoint or _endpoint_of_environment()).startswith("http://")
        try:
            return S3Store(
                self.bucket,
                **options,
                client_options={"user_agent": agent, "allow_http": plain},
                retry_config={"max_retries": 0},
            )
        except Exception as error:  # obstore's message may hold what the environment says
            raise UsageError(
                f"{printable(self.base)}: obstore refuses the settings ({type(error).__name__}): check endpoint= and "
                "region=, and the variables AWS_* of the environment"
            ) from error


def _endpoint_of_environment() -> str:
    names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
    return next((os.environ[name] for name in names if os.environ.get(name)), "")


def parse_object_url(where: str) -> ObjectPlace:
    """The place that a URL names.

    Raises: UsageError for another scheme, no bucket, an unknown option, a prefix that no key can have, or credentials,
    which the message does not repeat.
    """
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
    unknown = sorted(set(options) - set(_KEYS))
    if unknown or parts.fragment:
        raise UsageError(
            f"{printable(unknown[0] if unknown else '#')} is not an option of an object target: "
            f"choose {', '.join(_KEYS)}; credentials {_ELSEWHERE}"
        )
    endpoint = options.get("endpoint")
    if endpoint is not None:
        _check_endpoint(endpoint)
    return ObjectPlace(
        bucket=parts.netloc,
        prefix=prefix + "/" if prefix else "",
        endpoint=endpoint,
        region=options.get("region"),
        skip_signature=_choice(options, "skip_signature", {"true": True, "false": False}, False),
        opens_ask=_choice(options, "opens", {"head": True, "none": False}, True),
        part_bytes=_part_bytes(options.get("part_size")),
    )


_ELSEWHERE = "come from the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY ...)"


def _check_endpoint(endpoint: str) -> None:
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise UsageError("endpoint= is not the URL of a server: give http://HOST:PORT or https://HOST")
    if "@" in parts.netloc:
        raise UsageError(f"endpoint= has a user name or password: credentials {_ELSEWHERE}")


def _part_bytes(text: str | None) -> int:
    if text is None:
        return PART_BYTES
    found = parse_bytes(text, "part_size=")
    if not LEAST_PART <= found <= MOST_PART:
        raise UsageError(f"part_size={printable(text)}: give {format_bytes(LEAST_PART)} to {format_bytes(MOST_PART)}")
    return found


def _choice(options: dict[str, str], name: str, words: dict[str, bool], default: bool) -> bool:
    value = options.get(name)
    if value is None:
        return default
    if value not in words:
        raise UsageError(f"{name}={printable(value)}: choose {', '.join(words)}")
    return words[value]


def request_error(error: Exception, key: str) -> OSError:
    """A failed request as an OSError with the errno of its HTTP status, or of its connection.

    Its text has the status alone: obstore's text quotes the whole answer of the server.
    """
    text = str(error)
    status = _STATUS.search(text)
    if status is not None and "169.254.169.254" not in text:
        number = int(status[1])
        return OSError(_ERRNO_OF_STATUS.get(number, errno.EIO), f"the server answered {number}", key)
    if isinstance(error, FileNotFoundError):
        return OSError(errno.ENOENT, "no such object", key)
    if "169.254.169.254" in text:  # without credentials the client asks the metadata service of a cloud machine
        return OSError(errno.EACCES, "no credentials were found", key)
    if "StartTooLarge" in text:
        return OSError(errno.ERANGE, "the object ends before", key)
    if "TimedOut" in text or "kind: Timeout" in text:
        return OSError(errno.ETIMEDOUT, "the server did not answer in time", key)
    if "dns error" in text:
        return OSError(errno.EHOSTUNREACH, "the name of the server is not known", key)
    system = _SYSTEM_CODE.search(text)
    if system is not None and int(system[1]) in errno.errorcode:
        return OSError(int(system[1]), os.strerror(int(system[1])), key)
    return OSError(errno.EIO, "the request failed", key)
