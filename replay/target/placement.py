"""Recorded path -> path under the target. Pure: no file is looked at.

`/data/train/a.npz` becomes `TARGET/dxt-replay-twin/data/train/a.npz`, and the object `s3://bucket/a.npz` becomes
`TARGET/dxt-replay-twin/s3:/bucket/a.npz`, so that a person finds it again. Fixed rules
change names that cannot be kept: `..`, control characters, bytes that are not UTF-8, names that are too long or taken.
The marks of these rules (`%` and two hex digits, `%-`, `%~`) cannot occur in a kept name, because a `%` in a recorded
name is escaped too.

Most files keep their names, which is decided for whole columns. Only the others are handled one by one.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dxt_replay.replay.target.path_columns import ancestors, booleans, column, joined, repeated
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.files import exact_paths, object_folders

TWIN_ROOT = "dxt-replay-twin"
"""Folder under the target that holds the twin data set: the user's own files there are never in its way."""

OWN_ROOT_ID_CHARS = 16
"""A second data set that does not fit beside the first gets the root `dxt-replay-twin-` + so many characters."""

BELOW_A_ROOT = rf"^{TWIN_ROOT}(-[0-9a-f]{{{OWN_ROOT_ID_CHARS}}})?/"  # Pattern of the paths below a target that are ours
NAME_MAX = 255
PATH_MAX = 4095
"""Most bytes of a name and of a path without its NUL, from Linux's limits.h; opening a longer one is ENAMETOOLONG."""

_TAKEN_MARK = "%~"
_SHORTENED_MARK = "%-"
_DEEP_FOLDER = "%~deep"
_LONGEST_SUFFIX = len(_TAKEN_MARK) + 16 + len(".2147483647")

_PLAIN = r"^(/[ -$&-.0-~]+)+$"
"""A path without detours whose names are printable ASCII without `%`, but for names of dots."""
_DOTS = r"/\.\.?(/|$)"


class Placement(NamedTuple):
    """The place of one recorded file in a replay: a path or URL. `mapped` data are real and never written."""

    file_id: int
    path: bytes
    mapped: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Placements:
    """A placement for each file, by file id, made on demand.

    `base`: the target and `/`. `below`: text below it, null for a mapped file. `real`: whole path of a mapped file."""

    base: bytes
    below: pa.LargeStringArray
    real: pa.LargeBinaryArray

    def __len__(self) -> int:
        return len(self.below)

    def __getitem__(self, file_id: int) -> Placement:
        return Placement(file_id, self.path(file_id), not self.below[file_id].is_valid)

    def __iter__(self) -> Iterator[Placement]:
        return map(self.__getitem__, range(len(self)))

    def path(self, file_id: int) -> bytes:
        """The path of a file, as in its placement."""
        below = self.below[file_id]
        real: bytes = self.base + below.as_buffer().to_pybytes() if below.is_valid else self.real[file_id].as_py()
        return real


@dataclass(frozen=True, slots=True, kw_only=True)
class PathMap:
    """Recorded paths below `prefix` (its components) are read below `directory`, which is absolute."""

    prefix: tuple[bytes, ...]
    directory: bytes


@dataclass(slots=True)
class _Odd:
    """A file that is placed by itself: `parts` are the escaped names below the root."""

    file_id: int
    record_id: int
    parts: tuple[str, ...]
    exact: bool
    suffix: str

    @property
    def path(self) -> str:
        return "/".join(self.parts)


def parse_map(text: str) -> PathMap:
    """`"PREFIX=DIR"`: recorded paths below PREFIX are read from DIR. The first `=` divides.

    Raises: UsageError without an equals sign, when a side is empty, or when PREFIX is not absolute."""
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


def is_twin_root(name: str) -> bool:
    """Whether a directory of this name in a target is the root of a twin data set."""
    return re.fullmatch(BELOW_A_ROOT, f"{name}/") is not None


def locate(path: str, maps: Sequence[PathMap]) -> Path:
    """A recorded path on this machine: below the directory of the longest fitting prefix, else the same path."""
    clean = pa.array([_lexical(os.fsencode(path))], pa.large_binary())
    found = _mapped(clean, maps)[0].as_py()
    return Path(path if found is None else os.fsdecode(found))


def _lexical(path: bytes) -> bytes:
    return b"".join(b"/" + part for part in lexical_parts(path))


def _mapped(clean: pa.LargeBinaryArray, maps: Sequence[PathMap]) -> pa.LargeBinaryArray:
    """The paths of real data, null where no prefix fits or the path has a NUL. `clean`: without detours."""
    real = pa.nulls(len(clean), clean.type)
    by_length = sorted(maps, key=lambda rule: len(rule.prefix), reverse=True)
    for rule in reversed(by_length):  # the last that fits wins
        prefix = b"".join(b"/" + part for part in rule.prefix)
        below = pc.or_(pc.equal(clean, pa.scalar(prefix, clean.type)), pc.starts_with(clean, prefix + b"/"))
        fits = pc.and_not(below, pc.match_substring(clean, b"\0"))
        directory = rule.directory.rstrip(b"/")
        there = [directory + path[len(prefix) :] for path in clean.filter(fits).to_pylist()]
        real = pc.replace_with_mask(real, fits, pa.array(there, real.type))
    return real


def place(
    files: pa.Table, base: bytes, maps: Sequence[PathMap] = (), *, written: Collection[int] = frozenset()
) -> Placements:
    """A placement for each row of `files` (`FILES_SCHEMA`), in row order.

    `base`: what stands before a path below the target; of a directory its path, free of links, and `/`.
    Placements that are not mapped lie strictly below it, are distinct, and none is a directory of another, except
    folders of objects (`object_folders`); they depend on the recorded paths and record ids, not on the order of the
    rows (but for a record id that comes twice).
    The longest prefix of `maps` that fits wins; files of `written` (file ids) are never mapped."""
    budget = PATH_MAX - len(base) - len(TWIN_ROOT) - OWN_ROOT_ID_CHARS - len("-/")
    folders = object_folders(files)
    recorded = pc.replace_substring(column(files["path"]), "s3://", "/s3:/", max_replacements=1)
    plain = booleans(pc.and_not(pc.match_substring_regex(recorded, _PLAIN), pc.match_substring_regex(recorded, _DOTS)))
    # No name is longer than the path; long ones are looked at one by one.
    longest = max(min(NAME_MAX, budget - _LONGEST_SUFFIX), 0)
    plain &= booleans(pc.less_equal(pc.binary_length(recorded), longest)) & booleans(files["path_bytes"].is_null())

    real = pa.nulls(files.num_rows, pa.large_binary())
    if maps:
        clean, others = recorded.cast(pa.large_binary()), pa.array(np.flatnonzero(~plain))
        lexical = pa.array([_lexical(path) for path in exact_paths(files.take(others))], clean.type)
        open_to_maps = ~folders
        open_to_maps[list(written)] = False
        real = _mapped(pc.replace_with_mask(clean, pa.array(~plain), lexical), maps)
        real = pc.if_else(pa.array(open_to_maps), real, pa.scalar(None, real.type))

    twins = booleans(real.is_null()) & ~folders
    kept = plain & twins & ~repeated(recorded)
    found, record_ids = np.unique(files["record_id"].to_numpy()[twins], return_counts=True)
    twice = frozenset(found[record_ids > 1].tolist())
    odds = _odd_files(files, twins & ~kept, twice, budget)
    above = ancestors(recorded.filter(pa.array(kept)) if not kept.all() else recorded)
    above = pa.concat_arrays([above, column([f"/{path}" for path in _directories(odds) if path])])
    blocked = kept & booleans(pc.is_in(recorded, value_set=above))
    kept &= ~blocked
    odds += _odd_files(files, blocked, twice, PATH_MAX)

    mine = column([f"/{odd.path}" for odd in odds])
    taken = {"", *_directories(odds)}
    for listed in (above, recorded.filter(pa.array(kept))) if odds else ():
        taken |= {path[1:] for path in mine.filter(pc.is_in(mine, value_set=listed)).to_pylist()}
    for odd in sorted(odds, key=lambda odd: (not odd.exact, odd.record_id, odd.file_id)):
        if odd.path in taken:
            stem = _shorten(odd.parts[-1], NAME_MAX - len(odd.suffix)) if odd.parts else ""
            odd.parts = (*odd.parts[:-1], stem + odd.suffix)
        taken.add(odd.path)

    below = joined(TWIN_ROOT, recorded)
    if not kept.all():
        places = {odd.file_id: f"{TWIN_ROOT}/{odd.path}" for odd in odds}
        rows = np.flatnonzero(folders)
        for row, path in zip(rows.tolist(), exact_paths(files.take(pa.array(rows))), strict=True):
            places[row] = "/".join((TWIN_ROOT, *map(_escape, lexical_parts(path)))) + "/"
        below = pc.replace_with_mask(below, pa.array(~kept), column([*map(places.get, np.flatnonzero(~kept).tolist())]))
    return Placements(base=base, below=below, real=real)


def _odd_files(files: pa.Table, mask: np.ndarray, twice: Collection[int], budget: int) -> list[_Odd]:
    """The files of `mask`, bool[files], under escaped names of at most `budget` bytes; longer ones are in a directory
    of their own. `twice`: record ids that a damaged capture has twice."""
    rows = np.flatnonzero(mask)
    some, odds = files.take(pa.array(rows)), []
    for file_id, record_id, path in zip(rows.tolist(), some["record_id"].to_pylist(), exact_paths(some), strict=True):
        parts = lexical_parts(path)
        names = tuple(map(_escape, parts))
        suffix = f"{_TAKEN_MARK}{record_id:016x}" + (f".{file_id}" if record_id in twice else "")
        if len("/".join(names).encode("utf-8")) > budget - _LONGEST_SUFFIX:
            room = min(NAME_MAX, budget - len(_DEEP_FOLDER) - 1) - _LONGEST_SUFFIX
            names = (_DEEP_FOLDER, _shorten(names[-1], max(0, room)) + suffix)
        # Of two names for one place, the one without `.` or `..` keeps it.
        odds.append(_Odd(file_id, record_id, names, path == b"/" + b"/".join(parts), suffix))
    return odds


def _directories(odds: Sequence[_Odd]) -> set[str]:
    return {"/".join(each.parts[:depth]) for each in odds for depth in range(len(each.parts))}


@lru_cache(maxsize=1 << 16)
def _escape(part: bytes) -> str:
    """`part` with `%` and everything that is not printable UTF-8 as `%XX`, at most `NAME_MAX` bytes."""
    text = part.decode("utf-8", "surrogateescape")
    escaped = text
    if not text.isascii() or not text.isprintable() or "%" in text:
        coded = {c: c.encode("utf-8", "surrogateescape") for c in {*text} if c == "%" or not c.isprintable()}
        escaped = "".join("".join(f"%{byte:02X}" for byte in coded[c]) if c in coded else c for c in text)
    if len(escaped.encode("utf-8")) <= NAME_MAX:
        return escaped
    digest = hashlib.blake2b(part, digest_size=8).hexdigest()
    return _shorten(escaped, NAME_MAX - len(_SHORTENED_MARK) - len(digest)) + _SHORTENED_MARK + digest


def _shorten(escaped: str, limit: int) -> str:
    """The longest start of `escaped` with at most `limit` bytes that does not end within a character or an escape."""
    if len(escaped.encode("utf-8")) <= limit:
        return escaped
    start = escaped.encode("utf-8")[:limit].decode("utf-8", "ignore")
    half = start.rfind("%", max(0, len(start) - 2))
    return start if half < 0 else start[:half]
