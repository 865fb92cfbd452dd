"""Recorded path -> path under the target. Pure: no file is looked at.

`/data/train/a.npz` becomes `TARGET/dxt-replay-twin/data/train/a.npz`, so that a person finds it again. What cannot
stand as it is (`..`, control characters, bytes that are not UTF-8, names that are too long or taken) is changed by
fixed rules, and the marks of those rules (`%` and two hex digits, `%-`, `%~`) cannot occur in a name that was kept,
because a `%` in a recorded name is itself escaped.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import pyarrow as pa

from traces.errors import UsageError
from traces.file_rows import exact_paths

TWIN_ROOT = "dxt-replay-twin"
"""Folder under the target that holds the twin data set: the user's own files there are never in its way."""

OWN_ROOT_ID_CHARS = 16
"""A second data set that does not fit beside the first gets the root `dxt-replay-twin-` + so many characters."""

NAME_MAX = 255
PATH_MAX = 4095
"""Most bytes of a name and of a path without its NUL, from Linux's limits.h; opening a longer one is ENAMETOOLONG."""

_TAKEN_MARK = "%~"
_SHORTENED_MARK = "%-"
_DEEP_FOLDER = "%~deep"
_LONGEST_SUFFIX = len(_TAKEN_MARK) + 16 + len(".2147483647")


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where one recorded file is in a replay: an absolute path; `mapped` data is real, read only and never written."""

    file_id: int
    path: bytes
    mapped: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PathMap:
    """Recorded paths below `prefix` (its components) are read below `directory`, which is absolute."""

    prefix: tuple[bytes, ...]
    directory: bytes


@dataclass(slots=True, kw_only=True)
class _Candidate:
    """A file on its way to a place: `parts` are the escaped components below the root."""

    file_id: int
    record_id: int
    parts: tuple[str, ...]
    exact: bool

    def take_own_name(self, suffix: str) -> None:
        stem = _shorten(self.parts[-1], NAME_MAX - len(suffix)) if self.parts else ""
        self.parts = (*self.parts[:-1], stem + suffix)


def parse_map(text: str) -> PathMap:
    """`"PREFIX=DIR"`: recorded paths below PREFIX are read from DIR. The first `=` divides.

    Raises: UsageError without an equals sign, when a side is empty, or when PREFIX is not absolute.
    """
    prefix, equals, directory = text.partition("=")
    if not equals or not prefix or not directory or "\0" in text:
        raise UsageError(f"--map {text!r} is not PREFIX=DIR: give the recorded prefix, an equals sign and a directory")
    if not prefix.startswith("/"):
        raise UsageError(f"--map {text!r}: the prefix must be an absolute path, as the capture records them")
    return PathMap(prefix=lexical_parts(os.fsencode(prefix)), directory=os.fsencode(os.path.abspath(directory)))


def lexical_parts(path: bytes) -> tuple[bytes, ...]:
    """Components of `path` as if the root were above it: `.` and empty ones dropped, `..` resolved, never above."""
    parts: list[bytes] = []
    for part in path.split(b"/"):
        if part == b"..":
            del parts[-1:]
        elif part not in (b"", b"."):
            parts.append(part)
    return tuple(parts)


def place(
    files: pa.Table, target: Path, maps: Sequence[PathMap] = (), *, written: Collection[int] = frozenset()
) -> list[Placement]:
    """A placement for each row of `files` (`FILES_SCHEMA`), in row order; `target` is absolute and free of links.

    Placements that are not mapped lie strictly below `target`, are distinct, and none is a directory of another; they
    depend on the recorded paths and record ids, not on the order of the rows (but for a record id that comes twice).
    The longest prefix of `maps` that fits wins; files of `written` (file ids) are never mapped.
    """
    by_length = sorted(maps, key=lambda m: len(m.prefix), reverse=True)
    root = os.fsencode(target / TWIN_ROOT)
    placements: list[Placement | None] = []
    candidates: list[_Candidate] = []
    record_ids = files["record_id"].to_pylist()
    for file_id, path in enumerate(exact_paths(files)):
        parts = lexical_parts(path)
        real = None if file_id in written else _mapped_path(parts, by_length)
        placements.append(None if real is None else Placement(file_id=file_id, path=real, mapped=True))
        if real is None:
            # of two names for one place, the one written without detours keeps it
            exact = path == b"/" + b"/".join(parts)
            names = tuple(_escape(part) for part in parts)
            candidates.append(_Candidate(file_id=file_id, record_id=record_ids[file_id], parts=names, exact=exact))
    _separate(candidates, PATH_MAX - len(root) - OWN_ROOT_ID_CHARS - len("-/"))
    for candidate in candidates:
        path = root + b"/" + "/".join(candidate.parts).encode("utf-8")
        placements[candidate.file_id] = Placement(file_id=candidate.file_id, path=path, mapped=False)
    return [placement for placement in placements if placement is not None]


def locate(path: str, maps: Sequence[PathMap]) -> Path:
    """Where a recorded path is on this machine: below the directory of the longest fitting prefix, else as recorded."""
    by_length = sorted(maps, key=lambda rule: -len(rule.prefix))
    found = _mapped_path(lexical_parts(os.fsencode(path)), by_length)
    return Path(path if found is None else os.fsdecode(found))


def _mapped_path(parts: tuple[bytes, ...], maps: Sequence[PathMap]) -> bytes | None:
    for candidate in maps:
        depth = len(candidate.prefix)
        if parts[:depth] == candidate.prefix and not any(b"\0" in part for part in parts):
            return b"/".join((candidate.directory.rstrip(b"/"), *parts[depth:]))
    return None


def _separate(candidates: list[_Candidate], budget: int) -> None:
    """Give files without a usable place of their own one that carries the record id. `budget`: bytes below the root."""
    suffix = _suffix_rule(candidates)
    for candidate in candidates:
        if len("/".join(candidate.parts).encode("utf-8")) > budget - _LONGEST_SUFFIX:
            room = min(NAME_MAX, budget - len(_DEEP_FOLDER) - 1) - _LONGEST_SUFFIX
            tail = _shorten(candidate.parts[-1], max(0, room))
            candidate.parts = (_DEEP_FOLDER, tail + suffix(candidate))
    directories = {candidate.parts[:depth] for candidate in candidates for depth in range(len(candidate.parts))}
    taken: set[tuple[str, ...]] = set()
    for candidate in sorted(candidates, key=lambda c: (not c.exact, c.record_id, c.file_id)):
        if not candidate.parts or candidate.parts in directories or candidate.parts in taken:
            candidate.take_own_name(suffix(candidate))
        taken.add(candidate.parts)


def _suffix_rule(candidates: list[_Candidate]) -> Callable[[_Candidate], str]:
    """A suffix that no other file has: of the record id, and of the row where a damaged capture has an id twice."""
    times = Counter(candidate.record_id for candidate in candidates)

    def suffix(candidate: _Candidate) -> str:
        row = f".{candidate.file_id}" if times[candidate.record_id] > 1 else ""
        return f"{_TAKEN_MARK}{candidate.record_id:016x}{row}"

    return suffix


@lru_cache(maxsize=1 << 16)
def _escape(part: bytes) -> str:
    """`part` with `%` and everything that is not printable UTF-8 as `%XX`, at most `NAME_MAX` bytes."""
    text = part.decode("utf-8", "surrogateescape")
    if text.isascii() and text.isprintable() and "%" not in text:
        escaped = text
    else:
        escaped = "".join(c if c.isprintable() and c != "%" else _percent(c) for c in text)
    if len(escaped.encode("utf-8")) <= NAME_MAX:
        return escaped
    digest = hashlib.blake2b(part, digest_size=8).hexdigest()
    return _shorten(escaped, NAME_MAX - len(_SHORTENED_MARK) - len(digest)) + _SHORTENED_MARK + digest


def _percent(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogateescape"))


def _shorten(escaped: str, limit: int) -> str:
    """The longest start of `escaped` with at most `limit` bytes that does not end within a character or an escape."""
    if len(escaped.encode("utf-8")) <= limit:
        return escaped
    start = escaped.encode("utf-8")[:limit].decode("utf-8", "ignore")
    half = start.rfind("%", max(0, len(start) - 2))
    return start if half < 0 else start[:half]
