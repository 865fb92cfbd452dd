"""Keyed names in the place of paths, hosts and people: the same part has the same name everywhere. Pure."""

from __future__ import annotations

import hmac

from dxt_replay.replay.sharing.public_words import (
    EXTENSIONS,
    FILE_SYSTEMS,
    PUBLIC_SPANS,
    ROLES,
    SPAN_BEGINNINGS,
    TOP_LEVEL,
    WORDS,
)

NAME_CHARS = 16
"""Hex digits of a name, 64 bits: two of 10 million parts share one with a probability of 3 in a million."""

_STANDARD_STREAMS = (b"<STDIN>", b"<STDOUT>", b"<STDERR>")
_PLACES = (b"", b".", b"..")
_ANCHOR = (b"dxt-anchor.", b".bin")


class AnonymousNames:
    """Names by HMAC-SHA-256 (RFC 2104) under a key. Without the key nobody can test a guess."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._parts: dict[bytes, bytes] = {part: part for part in _PLACES}

    @property
    def replaced_parts(self) -> int:
        """How many different parts of paths were given another name."""
        return sum(part != name for part, name in self._parts.items())

    def path(self, path: bytes) -> str:
        """A path of as many parts: `/home/ann/train/a-01.tar.gz` is `/home/<name>/train/<name>.tar.gz`.

        Kept: `s3://`, `..`, the words of `public_words` where they are a whole part, and known extensions.
        """
        if path.startswith(b"<"):  # <STDIN>, <record 17>
            return (path if path in _STANDARD_STREAMS else b"<" + self._hashed(path) + b">").decode()
        parts = path.split(b"/")
        kept = 2 if parts[0] == b"" and _in(parts[1] if len(parts) > 1 else b"", TOP_LEVEL) else 0
        kept = 2 if path.startswith(b"s3://") else kept
        return b"/".join([*parts[:kept], *map(self._part, parts[kept:])]).decode()

    def mount(self, mount: str) -> str:
        """A mount point, so that it is still the beginning of the paths below it; text that is not a path is a word."""
        return self.path(mount.encode()) if mount.startswith("/") else self.word(mount, FILE_SYSTEMS)

    def record_id(self, number: int) -> int:
        """A record id of its own: Darshan's is a hash of the path without a key, which a guessed path confirms."""
        return int.from_bytes(self._digest(b"record", str(number).encode())[:8], "big")

    def checksum(self, sha256: str) -> str:
        """In the place of a file's SHA-256, which everybody who has the file could look for."""
        return self._digest(b"checksum", sha256.encode("utf-8", "surrogatepass")).hex()

    def span(self, name: str) -> str:
        """The name of a span: kept where a framework gives it, else replaced."""
        if not name or PUBLIC_SPANS.fullmatch(name):
            return name
        beginning = SPAN_BEGINNINGS.match(name)
        return (beginning[0] if beginning else "") + self.word(name)

    def word(self, text: str, public: frozenset[str] = WORDS) -> str:
        """Any other text: kept where it is empty or one of `public`."""
        return text if not text or text in public else self._hashed(text.encode("utf-8", "surrogatepass")).decode()

    def _part(self, part: bytes) -> bytes:
        found = self._parts.get(part)
        if found is None:
            found = self._parts[part] = self._new_part(part)
        return found

    def _new_part(self, part: bytes) -> bytes:
        if _in(part, ROLES):
            return part
        if part.startswith(_ANCHOR[0]) and part.endswith(_ANCHOR[1]):  # the host stands between
            return self._hashed(part).join(_ANCHOR)
        stem, ending = part, b""
        while True:
            rest, dot, last = stem.rpartition(b".")
            if not rest or not _in(last.lower(), EXTENSIONS):
                return self._hashed(stem) + ending
            stem, ending = rest, dot + last + ending

    def _hashed(self, text: bytes) -> bytes:
        return self._digest(b"name", text).hex()[:NAME_CHARS].encode()

    def _digest(self, purpose: bytes, text: bytes) -> bytes:
        return hmac.digest(self._key, purpose + b"\0" + text, "sha256")


def _in(part: bytes, words: frozenset[str]) -> bool:
    return part.decode("latin-1") in words
