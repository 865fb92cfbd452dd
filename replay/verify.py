"""Holds captures against their own digests, counts and sources, and staged twins against their manifests. Nothing is
changed.

Damage of a capture is looked for in the bytes first: if a digest differs, no table is opened. Of a twin, every byte is
compared with what its seed makes again.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dxt_replay.replay.target.content import Content
from dxt_replay.replay.target.data_set import twin_data_set
from dxt_replay.replay.target.hdf5_layout import Hdf5Layout, hdf5_files
from dxt_replay.replay.target.hdf5_twin import hdf5_content
from dxt_replay.replay.target.manifest import (
    CREATED_BY_RUN,
    MANIFEST_NAME,
    PLANNED,
    WHOLE,
    Manifest,
    in_state,
    read_manifest,
)
from dxt_replay.replay.target.path_columns import ancestors, column, directory_batches
from dxt_replay.replay.target.placement import is_twin_root
from dxt_replay.replay.target.protocol import LOCK_NAME, Target
from dxt_replay.replay.target.targets import open_target
from dxt_replay.replay.target.writing import in_threads
from dxt_replay.traces.errors import CaptureError, TargetError, UnreadableError, UsageError, exhausted, unreadable
from dxt_replay.traces.plain import Result
from dxt_replay.traces.row_order import distinct, few_together
from dxt_replay.traces.schema import READ, WRITE, CaptureInfo, codes
from dxt_replay.traces.stable_order import stable_order
from dxt_replay.traces.store.checks import is_ours, read_info
from dxt_replay.traces.store.digests import DOCUMENT, file_digest, own_digests
from dxt_replay.traces.store.index import part_digests
from dxt_replay.traces.store.reader import Capture, open_capture
from dxt_replay.traces.store.writer import foreign_name
from dxt_replay.traces.text import printable
from dxt_replay.traces.units import MIB

MOST_KEPT = 1000  # Differences of one row that are kept with their text; all of them are counted
RANGE_BYTES = 64 * MIB  # Bytes of a file of a twin that one thread compares at a time, whole blocks
SHA256 = "SHA-256"
_ABSENT, _DESCRIBED = "not there", "rows as the schema describes them"
_BATCH_FILES = 256  # Most files of one directory that a thread looks at in one call
_COMPARED_FILES = 1 << 14  # Files whose rows of the manifest, some 2 kB each, are in memory at a time
_ROWS_TOGETHER = 1 << 18  # Operations of the ranks that one thread looks at
_DIGESTED_VERSION = 4  # Schema version since which every capture is written with digests
_Answer = TypeVar("_Answer")
_REPLAYED = ("operations", "read", "written")
_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFBLK: "a block device",
    stat.S_IFCHR: "a character device",
}


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not as it was written.

    file: path below the capture or target. what: the property that differs, such as "size" or "SHA-256".
    expected, found: its values, for a person. offset: of the first byte that differs, where that is known."""

    file: str
    what: str
    expected: str
    found: str
    offset: int | None = None


@dataclass(slots=True)
class CheckedPart:
    """One row: a part of a capture or a twin that was looked at.

    checked: how many things of the kind `unit` were held against what they should be. bytes: how many were read for it.
    differences: the first MOST_KEPT; `different` counts all. note: what was not checked, and why."""

    part: str
    unit: str
    checked: int = 0
    bytes: int = 0
    different: int = 0
    note: str = ""
    differences: list[Difference] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """The row without its differences, which `VerifiedPlace` lists."""
        return {
            "part": self.part,
            "unit": self.unit,
            "checked": self.checked,
            "bytes": self.bytes,
            "different": self.different,
            "note": self.note,
        }

    def differs(self, file: str, what: str, expected: object, found: object, offset: int | None = None) -> None:
        """Count a difference."""
        self.different += 1
        if len(self.differences) < MOST_KEPT:
            found = printable(str(found))
            self.differences.append(Difference(printable(file), what, str(expected), found, offset))

    def add(self, other: CheckedPart) -> None:
        """What another thread checked of the same part."""
        self.checked, self.bytes = self.checked + other.checked, self.bytes + other.bytes
        self.different += other.different
        self.differences += other.differences[: MOST_KEPT - len(self.differences)]


@dataclass(frozen=True, slots=True)
class VerifiedPlace:
    """A capture or a target, and what was checked of it. `kind`: "capture" or "twin"."""

    path: str | Path
    kind: str
    parts: tuple[CheckedPart, ...]

    @property
    def different(self) -> int:
        return sum(part.different for part in self.parts)

    def as_json(self) -> dict[str, Any]:
        return {
            "path": printable(self.path),
            "kind": self.kind,
            "different": self.different,
            "checked": [part.as_json() for part in self.parts],
            "differences": [asdict(difference) for part in self.parts for difference in part.differences],
        }


@dataclass(frozen=True, slots=True)
class Verified(Result):
    """The result of `dxt_replay.verify`: one place for each path that was given."""

    places: tuple[VerifiedPlace, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing differs."""
        return not any(place.different for place in self.places)

    def as_json(self) -> dict[str, Any]:
        return {"passed": self.passed, "places": [place.as_json() for place in self.places]}


def verify_places(paths: Sequence[str | Path], *, sources: Sequence[Path], sizes_only: bool) -> Verified:
    """Check captures and staged twins; `sizes_only`: leave the bytes of twins out. Changes nothing.

    `sources`: files that captures may have been made from, besides those that lie beside them.
    Raises: UsageError for a path that is neither, or a source that is not there; TargetError for a target that cannot
    be opened."""
    for source in sources:
        if not source.exists():
            raise UsageError(f"--source {printable(source)} does not exist")
    kinds = {path: _kinds(path) for path in paths}
    captures = [Path(path) for path in kinds if "capture" in kinds[path]]
    places = []
    for path, found in kinds.items():
        for kind in found:
            parts = _capture(Path(path), sources) if kind == "capture" else _twin(path, captures, sizes_only)
            places.append(VerifiedPlace(path, kind, tuple(parts)))
    return Verified(tuple(places))


def _kinds(path: str | Path) -> tuple[str, ...]:
    if isinstance(path, str):  # a URL
        return ("twin",)
    what = "give a capture, or a directory that `dxt-replay stage` filled"
    try:
        names = os.listdir(path)
    except OSError as error:
        raise UsageError(f"{printable(path)}: {error.strerror}; {what}") from error
    is_capture = any(name in names for name in (DOCUMENT, "ops", "files.parquet"))
    is_twin = MANIFEST_NAME in names or any(map(is_twin_root, names))
    if not is_capture and not is_twin:
        neither = f"neither a capture (no {DOCUMENT}) nor a staged twin (no {MANIFEST_NAME})"
        raise UsageError(f"{printable(path)} is {neither}: {what}")
    return ("capture",) * is_capture + ("twin",) * is_twin


# ------------------------------------------------------------------------------------------------------------- captures


def _capture(path: Path, sources: Sequence[Path]) -> Iterator[CheckedPart]:
    document, digests = CheckedPart(DOCUMENT, "file"), CheckedPart("digests", "file")
    info = _check_document(path, document)
    yield document
    if info is None:
        digests.note = f"not checked: {DOCUMENT} cannot be used"
        yield digests
        return
    expected = {**info.digests, **part_digests(path)} if info.digests else {}
    names = sorted(expected.keys() - {DOCUMENT})
    for name, (found, size) in zip(names, in_threads(lambda name: _digest(path / name), names), strict=True):
        digests.checked, digests.bytes = digests.checked + 1, digests.bytes + size
        if found != expected[name]:
            digests.differs(name, SHA256, expected[name], found)
    damaged, ours = bool(digests.different), bool(expected) or is_ours(path, info)
    if not expected and ours and info.schema_version >= _DIGESTED_VERSION:
        digests.differs(DOCUMENT, "digests", f"{SHA256} of every file", "none: they were removed, or never written")
    elif not expected:
        who = (
            "an earlier release wrote it: checked by counts"
            if ours
            else "another program wrote it: checked by its rows"
        )
        digests.note = f"{DOCUMENT} has no digests, as {who} alone"
    try:  # files that do not belong to the capture, or came to it after it was written
        there = {file.relative_to(path).as_posix() for file in path.rglob("*") if not file.is_dir()}
        foreign = foreign_name(path)
    except OSError as error:
        raise unreadable(error, path) from error
    added = there - expected.keys() - {DOCUMENT} if expected else set()
    for name in sorted({*added, *filter(None, [foreign])}):
        digests.differs(name, "file", _ABSENT, "there, and not part of the capture")
    yield digests
    if damaged:
        yield CheckedPart("tables", "row", note="not read, since a digest differs")
    else:
        yield from _contents(path)
    yield _check_sources(path, info, sources)


def _check_document(path: Path, part: CheckedPart) -> CaptureInfo | None:
    """The contents of `capture.json`; None if it cannot be used."""
    try:
        if not stat.S_ISREG(os.stat(path / DOCUMENT).st_mode):  # a FIFO would be waited for
            raise OSError("not a regular file")
        text = (path / DOCUMENT).read_bytes()
        part.checked, part.bytes = 1, len(text)
        own = own_digests(text)
        if own is not None and own[0] != own[1]:
            part.differs(DOCUMENT, SHA256, *own)
        info = read_info(path)
        if own is None and info.digests:
            part.differs(DOCUMENT, SHA256, "its own digest among the digests", "none")
        for name in sorted(json.loads(text).keys() - {column.name for column in fields(CaptureInfo)}):
            part.differs(DOCUMENT, "key", "a key that this release knows", name)
        return info
    except FileNotFoundError:
        part.differs(DOCUMENT, "file", "a file", _ABSENT)
    except OSError as error:
        if exhausted(error) is not None:
            raise unreadable(error, path / DOCUMENT) from error
        part.differs(DOCUMENT, "file", "a file that can be read", error.strerror or error)
    except UnreadableError:
        raise
    except CaptureError as error:
        part.differs(DOCUMENT, "contents", "what docs/capture-format.md describes", error)
    return None


def _digest(file: Path) -> tuple[str, int]:
    """(digest, bytes) of a file; why there is no digest in its place. Raises: UnreadableError."""
    try:
        if file.is_symlink() or not file.is_file():
            return (_ABSENT if not file.is_symlink() else "a symbolic link"), 0
        return file_digest(file), file.stat().st_size
    except OSError as error:
        if exhausted(error) is not None:
            raise unreadable(error, file) from error
        return error.strerror or str(error), 0


def _check_sources(path: Path, info: CaptureInfo, given: Sequence[Path]) -> CheckedPart:
    """The files that the capture was made from, those given and those that lie beside it under their names."""
    part = CheckedPart("sources", "file")
    if info.made_by.get("anonymized"):
        part.note = "the capture is anonymized: its sources cannot be known from it"
        return part
    wanted = {source.sha256: source.name for source in info.sources}
    beside = [path.absolute().parent / name for name in wanted.values() if Path(name).name == name]
    found = set[str]()
    for file in (*given, *beside):
        content = file / DOCUMENT if file.is_dir() else file  # the digest of a capture is that of its document
        by_name = [sha256 for sha256, name in wanted.items() if name == file.name]
        if file not in given and (found.issuperset(by_name) or not content.is_file()):
            continue
        digest, size = _digest(content)
        part.checked, part.bytes = part.checked + 1, part.bytes + size
        found.add(digest)
        if digest not in wanted:
            expected = by_name[0] if by_name else "the digest of one of the capture's sources"
            part.differs(str(file), SHA256, expected, digest)
    missing = [name for sha256, name in wanted.items() if sha256 not in found]
    if missing and not part.different:
        few = f"{len(missing)} of {len(wanted)} not at hand, such as {printable(missing[0])}"
        part.note = f"{few}: give it with --source"
    return part


def _contents(path: Path) -> Iterator[CheckedPart]:
    """The rows of a capture, held against the schema, the index and each other. Memory: some row groups a thread."""
    tables = CheckedPart("tables", "row")
    capture = _read(tables, ".", "contents", "tables that can be read", lambda: open_capture(path))
    if capture is None:
        yield tables
        return
    operations, used = CheckedPart("operations", "row"), list[int]()
    totals = np.zeros(len(_REPLAYED), dtype=np.int64)
    together = capture.index.ranks_together(_ROWS_TOGETHER)
    for rows, replayed, lanes in in_threads(partial(_rank_rows, capture), together):
        operations.add(rows)
        totals += replayed
        used += lanes
    result = capture.info.made_by.get("result")
    said = result if isinstance(result, dict) else {}  # the totals that the replay printed
    moved = said.get("bytes")
    for name, count in zip(_REPLAYED, totals.tolist(), strict=True):
        of = said if name == "operations" else moved if isinstance(moved, dict) else {}
        if isinstance(of.get(name), int) and of[name] != count:
            what = name if of is said else f"bytes {name}"
            operations.differs("ops", f"{what} of the replay", of[name], count)
    yield from (CheckedPart("files", "row", checked=capture.files.num_rows), operations)
    for name in ("spans", "hdf5", "lanes"):
        part = CheckedPart(name, "row")
        table = _read(part, f"{name}.parquet", "contents", _DESCRIBED, partial(getattr, capture, name))
        part.checked = 0 if table is None else table.num_rows  # reading the table checks it
        if name == "lanes" and part.checked:
            rank, lane = (capture.lanes[name].to_numpy().astype(np.int64) for name in ("rank", "lane"))
            listed = set((rank << 32 | lane).tolist())
            for each in sorted(listed ^ set(used)):
                more = "lanes with operations alone", "a lane without any"
                both = more if each in listed else ("a row for each lane of the operations", "none")
                part.differs("lanes.parquet", f"lane {each & 0xFFFFFFFF} of rank {each >> 32}", *both)
        yield part


def _read(part: CheckedPart, file: str, what: str, expected: str, read: Callable[[], _Answer]) -> _Answer | None:
    """What `read` returns, None for damage, which is a difference. Raises: UnreadableError."""
    try:
        return read()
    except UnreadableError:
        raise
    except CaptureError as error:
        part.differs(file, what, expected, error)
        return None


def _rank_rows(capture: Capture, ranks: Sequence[int]) -> tuple[CheckedPart, np.ndarray, list[int]]:
    """Read the rows of `ranks`, which also compares each row group with the index, sum them, and look for overlap.

    Returns the rows, what a replay moved (`_REPLAYED`), and rank << 32 | lane of each lane."""
    part, replayed, order = CheckedPart("operations", "row"), np.zeros(3, dtype=np.int64), LaneOrder()

    def count() -> None:
        batches = (batch for _, batch in capture.rank_operations(ranks))
        for some in few_together(batches, len, _ROWS_TOGETHER):
            rows = pa.Table.from_batches(some)
            part.checked += rows.num_rows
            result, op = np.maximum(rows["result"].fill_null(0).to_numpy(), 0), codes(rows, "op")
            known = rows.num_rows - rows["result"].null_count
            np.add(replayed, [known, result[op == READ].sum(), result[op == WRITE].sum()], out=replayed)
            for overlap in order.add(rows):
                part.differs("ops", *overlap)

    what = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}"
    _read(part, "ops", what, _DESCRIBED, count)
    return part, replayed, list(order.ends)


class LaneOrder:
    """Looks for operations of a lane that begin before the one before them has ended, in the order of the rows.

    ends: by rank << 32 | lane, the end of its last operation."""

    def __init__(self) -> None:
        self.ends: dict[int, int] = {}
        self._rows: dict[int, int] = {}
        self._named: set[int] = set()

    def add(self, rows: pa.Table) -> list[tuple[str, str, int]]:
        """Look at the next rows. Returns what, expected and found of the first overlap of each lane, unless an earlier
        call returned one."""
        rank, lane, start, end = (rows[name].to_numpy() for name in ("rank", "lane", "start_ns", "end_ns"))
        lanes, first, of_row = distinct(rank.astype(np.int64) << 32 | lane)  # both numbers have 31 bits
        order = stable_order(of_row)
        before = np.empty(len(order), dtype=np.int64)
        before[order[1:]] = end[order[:-1]]
        before[first] = [self.ends.get(each, np.iinfo(np.int64).min) for each in lanes.tolist()]
        late, found = np.flatnonzero(start < before), []
        for row in late[np.sort(distinct(of_row[late]).first)].tolist():
            key, its_rank = int(lanes[of_row[row]]), int(rank[row])
            if key not in self._named:
                self._named.add(key)
                number = row - int(np.searchsorted(rank, its_rank)) + self._rows.get(its_rank, 0)
                what = f"lane {lane[row]} of rank {its_rank}: start_ns of row {number} of the rank"
                expected = f"at least {before[row]}, the end of the operation before it on the lane"
                found.append((what, expected, int(start[row])))
        last = order[np.cumsum(np.bincount(of_row)) - 1] if len(order) else order
        self.ends.update(zip(lanes.tolist(), end[last].tolist(), strict=True))
        for its_rank, count in zip(*(each.tolist() for each in np.unique(rank, return_counts=True)), strict=True):
            self._rows[its_rank] = self._rows.get(its_rank, 0) + count
        return found


# ---------------------------------------------------------------------------------------------------------------- twins


def _twin(path: str | Path, captures: Sequence[Path], sizes_only: bool) -> list[CheckedPart]:
    listed = CheckedPart("manifest", "file")
    with open_target(path) as target:
        if not target.exists:
            raise UsageError(f"{target.shown('')} holds no staged twin: run `dxt-replay stage` first")
        try:
            manifest = read_manifest(target)
        except TargetError as error:
            listed.differs(MANIFEST_NAME, "contents", "a manifest as `dxt-replay stage` writes it", error)
            return [listed]
        if manifest.digest is None:
            listed.differs(MANIFEST_NAME, "file", "a file", _ABSENT)
        listed.checked, paths = len(manifest.files), manifest.path
        layouts = _check_needed(captures, target, manifest, listed, sizes_only=sizes_only)
        files = CheckedPart("files", "file")
        batches = directory_batches(paths, _BATCH_FILES)
        for found in in_threads(lambda batch: _look(target, manifest.files.take(batch.rows)), batches):
            files.add(found)
        contents = CheckedPart("contents", "file", note="not read (--sizes-only)" if sizes_only else "")
        if not sizes_only:
            _compare_all(target, manifest, layouts, {each.file for each in files.differences}, contents)
        return [listed, files, contents, _extra(target, manifest)]


def _check_needed(
    captures: Sequence[Path], target: Target, manifest: Manifest, part: CheckedPart, *, sizes_only: bool
) -> dict[str, Hdf5Layout]:
    """Hold the manifest against the files that each capture needs, if the manifest says that it was staged here.

    Returns the layouts of the captures' HDF5 files, by digest: the manifest has digests alone."""
    layouts: dict[str, Hdf5Layout] = {}
    for path in captures:
        with suppress(CaptureError):  # a damaged capture has its own rows
            capture = open_capture(path)
            data = twin_data_set(capture, target.base, (), manifest)
            if data.identity in manifest.data_sets:
                absent = data.files.path.filter(pc.invert(pc.is_in(data.files.path, value_set=manifest.path)))
                for each in absent.to_pylist():
                    part.differs(each, "entry", f"one, as {printable(path)} needs it", "none")
            elif not part.note:
                elsewhere = f"{printable(path)} was staged elsewhere or with --map"
                part.note = f"{elsewhere}: whether its files are all listed is not known"
            if not sizes_only and manifest.files["layout"].null_count < len(manifest.files):
                layouts |= {layout.digest: layout for layout in hdf5_files(capture).layouts.values()}
    return layouts


def _look(target: Target, files: pa.Table) -> CheckedPart:
    """The kind, links and size of files of one directory."""
    part, paths = CheckedPart("files", "file", checked=files.num_rows), column(files["path"])
    try:
        states = target.stat(paths).tolist()
    except TargetError as error:
        if exhausted(error.__cause__ or error) is not None:
            raise
        part.differs(paths[0].as_py().rpartition("/")[0], "directory", "one that can be used", error)
        return part
    for entry, (mode, size, links) in zip(files.to_pylist(), states, strict=True):
        path, state = entry["path"], entry["state"]
        if mode and not stat.S_ISREG(mode):
            part.differs(path, "kind", "a plain file", _KINDS.get(stat.S_IFMT(mode), "something else"))
            continue
        if links > 1:
            part.differs(path, "names (hard links)", 1, links)
        if state == PLANNED:
            found = "planned" if mode else _ABSENT
            part.differs(path, "state" if mode else "file", "whole", f"{found}: its staging did not end; stage again")
        elif state != CREATED_BY_RUN and not mode and not entry["written"]:
            part.differs(path, "file", f"{entry['size']} bytes", _ABSENT)
        elif state != CREATED_BY_RUN and mode and size != entry["size"]:
            part.differs(path, "size", entry["size"], size)
    return part


def _compare_all(
    target: Target, manifest: Manifest, layouts: Mapping[str, Hdf5Layout], unfit: set[str], part: CheckedPart
) -> None:
    """Compare the bytes of the files that a staging made; `unfit` are named already."""
    made = manifest.files.filter(pa.array(in_state(manifest.files, WHOLE)))
    overwritten: set[str] = set()
    by_size = 0
    for first in range(0, made.num_rows, _COMPARED_FILES):
        entries = made.slice(first, _COMPARED_FILES).to_pylist()
        fit = [entry for entry in entries if printable(entry["path"]) not in unfit]
        known = [entry for entry in fit if entry["layout"] is None or entry["layout"] in layouts]
        ranges = [(entry, begin) for entry in known for begin in range(0, entry["size"], RANGE_BYTES)]
        found = in_threads(lambda some: _compare(target, *some, layouts), ranges)
        for (entry, begin), difference in zip(ranges, found, strict=True):
            what = "bytes" if difference is None else difference[0]
            part.bytes += min(entry["size"] - begin, RANGE_BYTES) if what == "bytes" else 0
            if difference is not None and what == "bytes" and entry["written"]:
                overwritten.add(entry["path"])
            elif difference is not None and not (what == "file" and entry["written"]):
                part.differs(entry["path"], *difference)
        part.checked += len(known)
        by_size += len(fit) - len(known)
    notes = [f"{by_size} HDF5 by size alone: give their capture too, which has the chunks"] if by_size else []
    notes += [f"{len(overwritten)} hold what replays wrote into them"] if overwritten else []
    part.note = "; ".join(notes)


def _compare(
    target: Target, entry: Mapping[str, Any], begin: int, layouts: Mapping[str, Hdf5Layout]
) -> tuple[str, str, object, int | None] | None:
    """What, expected, found and offset of the first byte of a range of one file that is not what it should be.

    entry: its row of the manifest."""
    size = entry["size"]
    content = hdf5_content(entry["record_id"], size, layouts.get(entry["layout"]), entry["data_bytes"] or 0)
    if entry["sparse"]:
        content = Content(record_id=entry["record_id"], size=size, is_hole=True)
    try:
        with target.open(entry["path"]) as file:
            if file is None:
                return "file", f"{size} bytes", _ABSENT, None
            found = content.first_difference(file, begin, min(size, begin + RANGE_BYTES))
    except TargetError as error:
        if exhausted(error.__cause__ or error) is not None:
            raise
        return "contents", "a file that can be read", error, None
    return None if found is None else ("bytes", found[1], found[2], found[0])


def _extra(target: Target, manifest: Manifest) -> CheckedPart:
    """Entries below the twin's roots that the manifest lacks. Other entries of the target belong to the user."""
    part = CheckedPart("nothing else", "name")
    files, directories = set(manifest.path.to_pylist()), set(ancestors(manifest.path).to_pylist())
    try:
        for relative, is_directory in target.list():
            part.checked += 1
            if relative not in (directories if is_directory else files):
                what = "directory" if is_directory else "name"
                part.differs(relative, what, "nothing that the manifest does not list", "there")
    except OSError as error:
        part.differs(".", "directory", "directories that can be listed", error.strerror or error)
    if target.stat(column([LOCK_NAME]))[0, 0]:
        part.note = f"{LOCK_NAME} is there: a process uses the target, or was killed while it did"
    return part
