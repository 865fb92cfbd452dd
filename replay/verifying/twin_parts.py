"""A staged twin held against its manifest: what each file is, how large, and every byte, which its seed makes again."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from dxt_replay.replay.target.containment import LOCK_NAME, Target, lstat, split
from dxt_replay.replay.target.content import BLOCK_BYTES
from dxt_replay.replay.target.manifest import Manifest, is_twin_root
from dxt_replay.replay.target.manifest_files import CREATED_BY_RUN, PLANNED, ManifestFile
from dxt_replay.replay.target.path_columns import ancestors
from dxt_replay.replay.verifying.checked import CheckedPart, Difference, in_threads
from dxt_replay.replay.verifying.twin_bytes import Layouts, first_difference, unknown_layout
from dxt_replay.traces.errors import TargetError
from dxt_replay.traces.text import printable
from dxt_replay.traces.units import MIB

RANGE_BYTES = 64 * MIB
"""Bytes of a file that one thread compares at a time."""

BATCH_FILES = 256
"""Most files of one directory that a thread looks at after opening the directory once."""

_KINDS = (
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISBLK, "a block device"),
    (stat.S_ISCHR, "a character device"),
)


@dataclass(slots=True, kw_only=True)
class _Looked:
    """What one task came to."""

    files: int = 0
    bytes: int = 0
    differences: list[Difference]
    overwritten: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _TwinCheck:
    """What all threads share."""

    target: Target
    layouts: Layouts

    def look(self, batch: Sequence[ManifestFile]) -> _Looked:
        """The kind, links and size of files of one directory."""
        looked = _Looked(differences=[])
        directory = split(batch[0].path)[0]
        try:
            with self.target.directory(directory) as above:
                for entry in batch:
                    found = None if above is None else lstat(above, split(entry.path)[1])
                    looked.files += 1
                    looked.differences += _place_differences(entry, found)
        except (TargetError, OSError) as error:
            looked.differences.append(_differs(directory, "directory", "one that can be used", error))
        return looked

    def compare(self, piece: tuple[ManifestFile, int, int]) -> _Looked:
        """The bytes of a range of one file."""
        entry, begin, end = piece
        looked = _Looked(differences=[])
        directory, name = split(entry.path)
        try:
            with self.target.directory(directory) as above:
                if above is None:
                    return looked
                fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=above)
                try:
                    found = first_difference(fd, entry, begin, end, self.layouts)
                finally:
                    os.close(fd)
        except (TargetError, OSError) as error:
            looked.differences.append(_differs(entry.path, "contents", "a file that can be read", error))
            return looked
        looked.bytes = end - begin
        if found is not None and entry.written:
            looked.overwritten = True
        elif found is not None:
            offset, expected, there = found
            looked.differences.append(
                Difference(file=printable(entry.path), what="bytes", expected=expected, found=there, offset=offset)
            )
        return looked


def twin_parts(target: Target, manifest: Manifest, layouts: Layouts, *, sizes_only: bool) -> list[CheckedPart]:
    """The rows of a twin. Memory: the manifest, and a few MiB a thread."""
    check = _TwinCheck(target=target, layouts=layouts)
    files = CheckedPart(part="files", unit="file")
    entries = sorted(manifest.files.entries(), key=lambda entry: (split(entry.path)[0], entry.path))
    for looked in in_threads(check.look, _batches(entries)):
        files.checked += looked.files
        files.count(looked.differences)
    contents = CheckedPart(part="contents", unit="file")
    if sizes_only:
        contents.note = "not read (--sizes-only)"
    else:
        _compare_all(check, entries, {each.file for each in files.differences}, contents)
    return [files, contents, _extra(target, manifest)]


def _compare_all(check: _TwinCheck, entries: Sequence[ManifestFile], unfit: set[str], part: CheckedPart) -> None:
    """Compare the bytes of the files that a staging made; `unfit` are named already."""
    made = [e for e in entries if e.state not in (CREATED_BY_RUN, PLANNED) and printable(e.path) not in unfit]
    unknown = [entry for entry in made if unknown_layout(entry, check.layouts)]
    known = [entry for entry in made if not unknown_layout(entry, check.layouts)]
    overwritten: set[str] = set()
    pieces = [piece for entry in known for piece in _pieces(entry)]
    for (entry, _, _), looked in zip(pieces, in_threads(check.compare, pieces), strict=True):
        part.bytes += looked.bytes
        part.count(looked.differences)
        if looked.overwritten:
            overwritten.add(entry.path)
    part.checked = len(known)
    notes = []
    if unknown:
        notes.append(f"{len(unknown)} HDF5 by size alone: give their capture too, which has the chunks")
    if overwritten:
        notes.append(f"{len(overwritten)} hold what replays wrote into them")
    part.note = "; ".join(notes)


def _batches(entries: Sequence[ManifestFile]) -> Iterator[Sequence[ManifestFile]]:
    for _, members in groupby(entries, key=lambda entry: split(entry.path)[0]):
        together = list(members)
        yield from (together[begin : begin + BATCH_FILES] for begin in range(0, len(together), BATCH_FILES))


def _pieces(entry: ManifestFile) -> Iterator[tuple[ManifestFile, int, int]]:
    """Ranges of whole blocks, all of them for one thread where the whole file is made before it is compared."""
    step = RANGE_BYTES - RANGE_BYTES % BLOCK_BYTES if entry.layout is None else max(entry.size, 1)
    for begin in range(0, entry.size, step):
        yield entry, begin, min(entry.size, begin + step)


def _place_differences(entry: ManifestFile, found: os.stat_result | None) -> Iterator[Difference]:
    if found is None:
        if entry.state == PLANNED:
            yield _differs(entry.path, "file", "whole", "not there: its staging did not end; stage again")
        elif entry.state != CREATED_BY_RUN and not entry.written:
            yield _differs(entry.path, "file", f"{entry.size} bytes", "not there")
        return
    if not stat.S_ISREG(found.st_mode):
        kind = next((name for test, name in _KINDS if test(found.st_mode)), "something else")
        yield _differs(entry.path, "kind", "a plain file", kind)
        return
    if found.st_nlink > 1:
        yield _differs(entry.path, "names (hard links)", 1, found.st_nlink)
    if entry.state == PLANNED:
        yield _differs(entry.path, "state", "whole", "planned: its staging did not end; stage again")
    elif entry.state != CREATED_BY_RUN and found.st_size != entry.size:
        yield _differs(entry.path, "size", entry.size, found.st_size)


def _differs(path: str, what: str, expected: object, found: object) -> Difference:
    shown = found.strerror or found if isinstance(found, OSError) else found
    return Difference(file=printable(path), what=what, expected=str(expected), found=printable(str(shown)))


def _extra(target: Target, manifest: Manifest) -> CheckedPart:
    """What lies below the twin's roots and is not in the manifest; other things in the target are the user's."""
    part = CheckedPart(part="nothing else", unit="name")
    directories, files = frozenset(ancestors(manifest.files.path).to_pylist()), frozenset(manifest.files)
    for relative, is_directory in _names_below(target):
        part.checked += 1
        known = relative in directories if is_directory else relative in files
        if not known:
            what = "directory" if is_directory else "name"
            part.differs(printable(relative), what, "nothing that the manifest does not list", "there")
    if lstat(target.fd, LOCK_NAME.encode()) is not None:
        part.note = f"{LOCK_NAME} is there: a process uses the target, or was killed while it did"
    return part


def _names_below(target: Target) -> Iterator[tuple[str, bool]]:
    """Path below the target and whether it is a directory, of all that is below the twin's roots. No link is followed.

    One directory is open at a time: a twin may be deeper than a process may have files.
    """
    waiting = [name for name in sorted(os.listdir(target.fd)) if is_twin_root(name)]
    while waiting:
        above = waiting.pop()
        try:
            with target.directory(above) as fd:
                found = [] if fd is None else _listed(fd)
        except TargetError:  # a link or a file in place of a directory
            yield above, False
            continue
        for name, is_directory in found:
            relative = f"{above}/{name}"
            yield relative, is_directory
            if is_directory and name.isprintable():
                waiting.append(relative)


def _listed(fd: int) -> list[tuple[str, bool]]:
    with os.scandir(fd) as entries:
        return sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
