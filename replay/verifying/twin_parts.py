"""A staged twin held against its manifest: what each file is, how large, and every byte, which its seed makes again."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from dxt_replay.replay.hdf5.layout import Hdf5Layout
from dxt_replay.replay.target.content import Content
from dxt_replay.replay.target.hdf5_content import file_content
from dxt_replay.replay.target.manifest import CREATED_BY_RUN, PLANNED, WHOLE, Manifest, in_state
from dxt_replay.replay.target.path_columns import ancestors, column, directory_batches
from dxt_replay.replay.target.posix import LOCK_NAME
from dxt_replay.replay.target.protocol import Target
from dxt_replay.replay.verifying.checked import CheckedPart, Difference, in_threads
from dxt_replay.traces.errors import TargetError, exhausted
from dxt_replay.traces.text import printable
from dxt_replay.traces.units import MIB

RANGE_BYTES = 64 * MIB
"""Bytes of a file that one thread compares at a time, whole blocks."""

BATCH_FILES = 256
"""Most files of one directory that a thread looks at in one call."""

COMPARED_FILES = 1 << 14
"""Files whose rows of the manifest, some 2 kB each, are in memory at a time."""

Layouts = Mapping[str, Hdf5Layout]
"""Digest of a layout -> the layout: the manifest has digests alone, captures have the layouts."""

Entry = Mapping[str, Any]
"""A row of the manifest."""

Range = tuple[Entry, int, int]
"""A file, and from which byte to which (exclusive)."""

_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFBLK: "a block device",
    stat.S_IFCHR: "a character device",
}


def twin_parts(target: Target, manifest: Manifest, layouts: Layouts, *, sizes_only: bool) -> list[CheckedPart]:
    """The rows of a twin. Memory: the manifest, and a few MiB a thread."""
    files = CheckedPart(part="files", unit="file", checked=len(manifest.files))
    batches = (batch.rows for batch in directory_batches(manifest.path, BATCH_FILES))
    for found in in_threads(lambda rows: _look(target, manifest.files.take(rows)), batches):
        files.count(found)
    contents = CheckedPart(part="contents", unit="file")
    if sizes_only:
        contents.note = "not read (--sizes-only)"
    else:
        _compare_all(target, manifest, layouts, {each.file for each in files.differences}, contents)
    return [files, contents, _extra(target, manifest)]


def _look(target: Target, files: pa.Table) -> list[Difference]:
    """The kind, links and size of files of one directory."""
    paths = column(files["path"])
    try:
        found = target.stat(paths)
    except TargetError as error:
        if exhausted(error.__cause__ or error) is not None:
            raise
        directory = paths[0].as_py().rpartition("/")[0]
        return [_differs(directory, "directory", "one that can be used", error)]
    numbers = zip(found.mode.tolist(), found.size.tolist(), found.links.tolist(), strict=True)
    looked = zip(files.to_pylist(), numbers, strict=True)
    return [difference for entry, each in looked for difference in _place_differences(entry, *each)]


def _compare_all(target: Target, manifest: Manifest, layouts: Layouts, unfit: set[str], part: CheckedPart) -> None:
    """Compare the bytes of the files that a staging made; `unfit` are named already."""
    made = manifest.files.filter(pa.array(in_state(manifest.files, WHOLE)))
    overwritten: set[str] = set()
    by_size = 0
    for first in range(0, made.num_rows, COMPARED_FILES):
        some_made = made.slice(first, COMPARED_FILES).to_pylist()
        fit = [entry for entry in some_made if printable(entry["path"]) not in unfit]
        known = [entry for entry in fit if entry["layout"] is None or _layout(entry, layouts) is not None]
        ranges = [some for entry in known for some in _ranges(entry)]
        found = in_threads(lambda some: _compare(target, some, layouts), ranges)
        for (entry, begin, end), difference in zip(ranges, found, strict=True):
            what = None if difference is None else difference.what
            part.bytes += end - begin if what in (None, "bytes") else 0
            if what == "bytes" and entry["written"]:
                overwritten.add(entry["path"])
            elif difference is not None and not (what == "file" and entry["written"]):
                part.count([difference])
        part.checked += len(known)
        by_size += len(fit) - len(known)
    notes = []
    if by_size:
        notes.append(f"{by_size} HDF5 by size alone: give their capture too, which has the chunks")
    if overwritten:
        notes.append(f"{len(overwritten)} hold what replays wrote into them")
    part.note = "; ".join(notes)


def _layout(entry: Entry, layouts: Layouts) -> Hdf5Layout | None:
    """The places of the chunks of a file; None if it has none, or no given capture knows them."""
    return None if entry["data_bytes"] is None else layouts.get(entry["layout"])


def _ranges(entry: Entry) -> Iterator[Range]:
    for begin in range(0, entry["size"], RANGE_BYTES):
        yield entry, begin, min(entry["size"], begin + RANGE_BYTES)


def _compare(target: Target, some: Range, layouts: Layouts) -> Difference | None:
    """The first byte of a range of one file that is not what it should be."""
    entry, begin, end = some
    path, record_id, size = entry["path"], entry["record_id"], entry["size"]
    content = file_content(record_id, size, _layout(entry, layouts), entry["data_bytes"] or 0)
    if entry["sparse"]:
        content = Content(record_id=record_id, size=size, is_hole=True)
    try:
        with target.open(path) as file:
            if file is None:
                return _differs(path, "file", f"{size} bytes", "not there")
            found = content.first_difference(file, begin, end)
    except TargetError as error:
        if exhausted(error.__cause__ or error) is not None:
            raise
        return _differs(path, "contents", "a file that can be read", error)
    if found is None:
        return None
    offset, expected, there = found
    return Difference(file=printable(path), what="bytes", expected=expected, found=there, offset=offset)


def _place_differences(entry: Entry, mode: int, size: int, links: int) -> Iterator[Difference]:
    path, state = entry["path"], entry["state"]
    if not mode:
        if state == PLANNED:
            yield _differs(path, "file", "whole", "not there: its staging did not end; stage again")
        elif state != CREATED_BY_RUN and not entry["written"]:
            yield _differs(path, "file", f"{entry['size']} bytes", "not there")
        return
    if not stat.S_ISREG(mode):
        yield _differs(path, "kind", "a plain file", _KINDS.get(stat.S_IFMT(mode), "something else"))
        return
    if links > 1:
        yield _differs(path, "names (hard links)", 1, links)
    if state == PLANNED:
        yield _differs(path, "state", "whole", "planned: its staging did not end; stage again")
    elif state != CREATED_BY_RUN and size != entry["size"]:
        yield _differs(path, "size", entry["size"], size)


def _differs(path: str, what: str, expected: object, found: object) -> Difference:
    return Difference(file=printable(path), what=what, expected=str(expected), found=printable(str(found)))


def _extra(target: Target, manifest: Manifest) -> CheckedPart:
    """Entries below the twin's roots that the manifest lacks. Other entries of the target belong to the user."""
    part = CheckedPart(part="nothing else", unit="name")
    files = frozenset(manifest.path.to_pylist())
    directories = frozenset(ancestors(manifest.path).to_pylist())
    for relative, is_directory in target.list():
        part.checked += 1
        if relative not in (directories if is_directory else files):
            what = "directory" if is_directory else "name"
            part.differs(printable(relative), what, "nothing that the manifest does not list", "there")
    if target.stat(column([LOCK_NAME])).mode[0]:
        part.note = f"{LOCK_NAME} is there: a process uses the target, or was killed while it did"
    return part
