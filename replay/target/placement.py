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
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dxt_replay.replay.target.path_columns import ancestors, booleans, column, prefixed, repeated
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.files import exact_paths, object_folders

TWIN_ROOT = "dxt-replay-twin"
"""Folder under the target that holds the twin data set: the user's own files there are never in its way."""

OWN_ROOT_ID_CHARS = 16
"""A second data set that does not fit beside the first gets the root `dxt-replay-twin-` + so many characters."""

BELOW_A_ROOT = rf"^{TWIN_ROOT}(-[0-9a-f]{{{OWN_ROOT_ID_CHARS}}})?/"
"""Pattern of the paths below a target that are ours."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The place of one recorded file in a replay: a path or URL. `mapped` data are real and never written."""

    file_id: int
    path: bytes
    mapped: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Placements(Sequence[Placement]):
    """A placement for each file, by file id, made on demand.

    `base`: the target and `/`. `below`: text below it, null for a mapped file. `real`: whole path of a mapped file.
    """

    base: bytes
    below: pa.LargeStringArray
    real: pa.LargeBinaryArray

    def __len__(self) -> int:
        return len(self.below)

    @overload
    def __getitem__(self, index: int) -> Placement: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Placement]: ...
    def __getitem__(self, index: int | slice) -> Placement | Sequence[Placement]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        number = range(len(self))[index]
        return Placement(file_id=number, path=self.path(number), mapped=not self.below[number].is_valid)

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


@dataclass(slots=True, kw_only=True)
class _Candidate:
    """A file on its way to a place: `parts` are the escaped components below the root."""

    file_id: int
    record_id: int
    parts: tuple[str, ...]
    exact: bool

    @property
    def path(self) -> str:
        """The path below the root."""
        return "/".join(self.parts)

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
    files: pa.Table, base: bytes, maps: Sequence[PathMap] = (), *, written: Collection[int] = frozenset()
) -> Placements:
    """A placement for each row of `files` (`FILES_SCHEMA`), in row order.

    `base`: what stands before a path below the target; of a directory its path, free of links, and `/`.
    Placements that are not mapped lie strictly below it, are distinct, and none is a directory of another, except
    folders of objects (`object_folders`); they depend on the recorded paths and record ids, not on the order of the
    rows (but for a record id that comes twice).
    The longest prefix of `maps` that fits wins; files of `written` (file ids) are never mapped.
    """
    budget = PATH_MAX - len(base) - len(TWIN_ROOT) - OWN_ROOT_ID_CHARS - len("-/")
    folders = object_folders(files)
    if folders.any():
        found = place(files.filter(pa.array(~folders)), base, maps, written=_rows_without(written, folders))
        rows = np.cumsum(~folders) - 1
        listed = [_folder_place(path) for path in exact_paths(files.filter(pa.array(folders)))]
        below = pc.replace_with_mask(_taken(found.below, rows, folders), pa.array(folders), column(listed))
        return Placements(base=base, below=below, real=_taken(found.real, rows, folders))
    recorded = pc.replace_substring(column(files["path"]), "s3://", "/s3:/", max_replacements=1)
    kept = _plain(files, recorded, min(NAME_MAX, budget - _LONGEST_SUFFIX))
    real = _mapped(files, recorded, kept, maps, written)
    twins = booleans(real.is_null())
    kept &= twins & ~repeated(recorded)
    candidates = _candidates(files, twins & ~kept)
    suffix = _suffix_rule(files["record_id"].to_numpy()[twins])
    _move_deep(candidates, budget, suffix)

    above = ancestors(recorded.filter(pa.array(kept)) if not kept.all() else recorded)
    above = pa.concat_arrays([above, column(["/" + path for path in _directories(candidates) if path])])
    blocked = kept & booleans(pc.is_in(recorded, value_set=above))
    kept &= ~blocked
    candidates += _candidates(files, blocked)
    _separate(candidates, _in_the_way(candidates, [above, recorded.filter(pa.array(kept))]), suffix)

    below = prefixed(TWIN_ROOT, recorded)
    if not kept.all():
        places = {candidate.file_id: candidate.path for candidate in candidates}
        others = [f"{TWIN_ROOT}/{places[i]}" if i in places else None for i in np.flatnonzero(~kept).tolist()]
        below = pc.replace_with_mask(below, pa.array(~kept), column(others))
    return Placements(base=base, below=below, real=real)


def _rows_without(rows: Collection[int], left_out: np.ndarray) -> list[int]:
    """The numbers that rows get when others (bool by row) are taken away."""
    new: list[int] = (np.cumsum(~left_out) - 1)[list(rows)].tolist()
    return [number for row, number in zip(rows, new, strict=True) if not left_out[row]]


def _taken(values: pa.Array, rows: np.ndarray, absent: np.ndarray) -> pa.Array:
    """The values at `rows`, null where `absent`."""
    return values.take(pa.array(rows, mask=absent))


def _folder_place(path: bytes) -> str:
    """The place of a folder of objects: what is listed there are the places of the objects in it."""
    return "/".join((TWIN_ROOT, *map(_escape, lexical_parts(path)))) + "/"


def _plain(files: pa.Table, recorded: pa.LargeStringArray, most_bytes: int) -> np.ndarray:
    """bool[files]: files that keep their path, unless another file is in the way."""
    plain = pc.and_(pc.match_substring_regex(recorded, _PLAIN), pc.invert(pc.match_substring_regex(recorded, _DOTS)))
    # No name is longer than the path; long ones are looked at one by one.
    short = booleans(pc.less_equal(pc.binary_length(recorded), max(most_bytes, 0)))
    found: np.ndarray = booleans(plain) & short & booleans(files["path_bytes"].is_null())
    return found


def _mapped(
    files: pa.Table,
    recorded: pa.LargeStringArray,
    plain: np.ndarray,
    maps: Sequence[PathMap],
    written: Collection[int],
) -> pa.LargeBinaryArray:
    """The paths of real data, null for files that are not mapped."""
    real, texts = pa.nulls(len(recorded), pa.large_binary()), recorded.cast(pa.large_binary())
    open_to_maps = np.ones(len(recorded), dtype=bool)
    open_to_maps[list(written)] = False
    by_length = sorted(maps, key=lambda rule: len(rule.prefix), reverse=True)
    for rule in by_length:
        prefix = b"/".join((b"", *rule.prefix))
        fits = pc.or_(pc.equal(texts, pa.scalar(prefix, texts.type)), pc.starts_with(texts, prefix + b"/"))
        rows = plain & open_to_maps & booleans(fits)
        open_to_maps &= ~rows
        rest = pc.utf8_slice_codeunits(recorded.filter(pa.array(rows)), len(prefix)).cast(texts.type)
        directory, nothing = (pa.scalar(text, rest.type) for text in (rule.directory.rstrip(b"/"), b""))
        there = pc.binary_join_element_wise(directory, rest, nothing)
        real = pc.replace_with_mask(real, pa.array(rows), there)
    odd = np.flatnonzero(open_to_maps & ~plain) if maps else np.zeros(0, dtype=np.int64)
    found = [_mapped_path(lexical_parts(path), by_length) for path in exact_paths(files.take(pa.array(odd)))]
    mask = np.zeros(len(recorded), dtype=bool)
    mask[odd] = True
    return pc.replace_with_mask(real, pa.array(mask), pa.array(found, pa.large_binary()))


def _candidates(files: pa.Table, mask: np.ndarray) -> list[_Candidate]:
    """The files of `mask`, bool[files], with their escaped names."""
    rows = np.flatnonzero(mask)
    some = files.take(pa.array(rows))
    candidates = []
    for file_id, record_id, path in zip(rows.tolist(), some["record_id"].to_pylist(), exact_paths(some), strict=True):
        parts = lexical_parts(path)
        # of two names for one place, the one without `.` or `..` keeps it
        exact = path == b"/" + b"/".join(parts)
        names = tuple(_escape(part) for part in parts)
        candidates.append(_Candidate(file_id=file_id, record_id=record_id, parts=names, exact=exact))
    return candidates


def _in_the_way(candidates: Sequence[_Candidate], kept: Sequence[pa.LargeStringArray]) -> frozenset[str]:
    """The paths of candidates that are paths of other files, or directories of theirs."""
    paths = column(["/" + candidate.path for candidate in candidates])
    found = [paths.filter(pc.is_in(paths, value_set=listed)).to_pylist() for listed in kept if len(paths)]
    return frozenset(path[1:] for each in found for path in each)


def is_twin_root(name: str) -> bool:
    """Whether a directory of this name in a target is the root of a twin data set."""
    return re.fullmatch(BELOW_A_ROOT, f"{name}/") is not None


def locate(path: str, maps: Sequence[PathMap]) -> Path:
    """A recorded path on this machine: below the directory of the longest fitting prefix, else the same path."""
    by_length = sorted(maps, key=lambda rule: -len(rule.prefix))
    found = _mapped_path(lexical_parts(os.fsencode(path)), by_length)
    return Path(path if found is None else os.fsdecode(found))


def _mapped_path(parts: tuple[bytes, ...], maps: Sequence[PathMap]) -> bytes | None:
    for candidate in maps:
        depth = len(candidate.prefix)
        if parts[:depth] == candidate.prefix and not any(b"\0" in part for part in parts):
            return b"/".join((candidate.directory.rstrip(b"/"), *parts[depth:]))
    return None


def _move_deep(candidates: Iterable[_Candidate], budget: int, suffix: Callable[[_Candidate], str]) -> None:
    """Give files whose paths are too long a place in a directory of their own. `budget`: bytes below the root."""
    for candidate in candidates:
        if len(candidate.path.encode("utf-8")) > budget - _LONGEST_SUFFIX:
            room = min(NAME_MAX, budget - len(_DEEP_FOLDER) - 1) - _LONGEST_SUFFIX
            tail = _shorten(candidate.parts[-1], max(0, room))
            candidate.parts = (_DEEP_FOLDER, tail + suffix(candidate))


def _directories(candidates: Iterable[_Candidate]) -> set[str]:
    return {"/".join(each.parts[:depth]) for each in candidates for depth in range(len(each.parts))}


def _separate(candidates: list[_Candidate], taken: Collection[str], suffix: Callable[[_Candidate], str]) -> None:
    """Give files without a usable place of their own one that carries the record id. `taken`: by other files."""
    taken = {"", *taken, *_directories(candidates)}
    for candidate in sorted(candidates, key=lambda c: (not c.exact, c.record_id, c.file_id)):
        if candidate.path in taken:
            candidate.take_own_name(suffix(candidate))
        taken.add(candidate.path)


def _suffix_rule(record_ids: np.ndarray) -> Callable[[_Candidate], str]:
    """A suffix that no other file has: of the record id, and of the row where a damaged capture has an id twice.

    `record_ids`: of all files that are to have a place.
    """
    found, times = np.unique(record_ids, return_counts=True)
    repeated_ids = frozenset(found[times > 1].tolist())

    def suffix(candidate: _Candidate) -> str:
        row = f".{candidate.file_id}" if candidate.record_id in repeated_ids else ""
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
