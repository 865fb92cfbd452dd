"""What staging a twin would write, planned without a change; and what is at the places of its files.

`replay.twin.data_set` decides what a twin holds, `replay.twin.placement` where each file is.
"""

from __future__ import annotations

import os
import stat as stat_modes
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from replay.hdf5.files import hdf5_files
from replay.twin.containment import (
    Target,
    close_unwritten,
    lstat,
    open_target,
    printable,
    refusal,
    resolve_target,
    split,
)
from replay.twin.data_set import CREATED_ROLE, LOOKED_AT_ROLE, MappedFile, TwinFile, twin_data_set
from replay.twin.file_writer import foreign
from replay.twin.manifest import CREATED_BY_RUN, PLANNED, Manifest, ManifestFile, read_manifest
from replay.twin.placement import PathMap
from replay.twin.small_files import SMALL_BYTES
from traces.errors import TargetError
from traces.store.reader import Capture
from traces.units import format_bytes, format_count

LEAST_BEGUN_BYTES = 8
"""Fewer bytes do not show that a file was begun by a staging: a stranger's may be the same by chance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """What staging would do.

    `target`: resolved path.
    `bytes_to_write`: without holes; `bytes_on_disk`: the same in whole blocks.
    `free_bytes`, `free_files`: for this user; None where the file system does not report them.
    `sparse`, `replaced`: file ids of `to_write` that become holes, or replace a file of ours.
    `plain_hdf5`: paths of HDF5 files that are made as plain bytes, with the reason.
    """

    target: Path
    identity: str
    to_write: tuple[TwinFile, ...]
    already_staged: tuple[TwinFile, ...]
    created_by_run: tuple[TwinFile, ...]
    mapped: tuple[MappedFile, ...]
    sparse: frozenset[int]
    replaced: frozenset[int]
    plain_hdf5: tuple[tuple[str, str], ...]
    bytes_to_write: int
    bytes_on_disk: int
    free_bytes: int | None
    free_files: int | None
    manifest: Manifest

    @property
    def bytes_created_by_run(self) -> int:
        """Paths of the files that a run makes and leaves, under their last names."""
        return sum(file.size for file in self.created_by_run if not file.renamed)

    @property
    def shortage(self) -> str | None:
        """Why the data set does not fit; None when it does."""
        if self.free_bytes is not None and self.bytes_on_disk > self.free_bytes:
            return (
                f"{format_bytes(self.bytes_on_disk)} are needed and {format_bytes(self.free_bytes)} are free, "
                f"{format_bytes(self.bytes_on_disk - self.free_bytes)} short"
            )
        if self.free_files is not None and len(self.to_write) > self.free_files:
            return (
                f"{format_count(len(self.to_write))} files are needed and {format_count(self.free_files)} inodes free"
            )
        return None


def plan_stage(capture: Capture, target: Path, *, maps: Sequence[PathMap] = (), sparse: bool = False) -> StagePlan:
    """What staging `capture` under `target` would write; changes nothing. `sparse`: holes where the format allows.

    Raises: TargetError when a link, or a file that is not ours, is in the place of one, or a mapped file is missing.
    """
    path = resolve_target(target)
    with open_target(path) as opened:
        manifest = Manifest(target=path) if opened is None else read_manifest(opened)
        data = twin_data_set(capture, path, maps, manifest, hdf5_files(capture))
        created = tuple(file for file in data.files if file.role == CREATED_ROLE)
        staged = [file for file in data.files if file.role != CREATED_ROLE]
        holes = {f.file_id for f in staged if f.stager.may_be_sparse and (sparse or f.role == LOOKED_AT_ROLE)}
        there, replaced = _there(opened, staged, holes, manifest)
        _check_created(opened, created, manifest)
    check_mapped(data.mapped)
    to_write = tuple(file for file in staged if file.file_id not in there)
    written = [file.size for file in to_write if file.file_id not in holes]
    space = _file_system(path)
    block = space.f_frsize or 1
    return StagePlan(
        target=path,
        identity=data.identity,
        to_write=to_write,
        already_staged=tuple(file for file in staged if file.file_id in there),
        created_by_run=created,
        mapped=data.mapped,
        sparse=frozenset(holes & {file.file_id for file in to_write}),
        replaced=frozenset(replaced),
        plain_hdf5=tuple((f.path, data.plain_hdf5[f.file_id]) for f in to_write if f.file_id in data.plain_hdf5),
        bytes_to_write=sum(written),
        bytes_on_disk=sum(-(-size // block) * block for size in written),
        free_bytes=space.f_bavail * space.f_frsize if space.f_blocks else None,
        free_files=space.f_favail if space.f_files else None,
        manifest=manifest,
    )


def found_at(target: Target | None, files: Iterable[TwinFile]) -> Iterator[tuple[TwinFile, os.stat_result | None]]:
    """Each file with what is at its place, directory by directory.

    Raises: TargetError for a link of either kind, a directory and anything else that is not a plain file.
    """
    by_directory: dict[str, list[TwinFile]] = defaultdict(list)
    for file in files:
        by_directory[split(file.path)[0]].append(file)
    if target is None:
        yield from ((file, None) for file in files)
        return
    for directory, members in by_directory.items():
        with target.directory(directory) as fd:
            for file in members:
                try:
                    found = None if fd is None else lstat(fd, split(file.path)[1])
                except OSError as error:
                    raise refusal(error, f"look at {target.shown(file.path)}") from error
                if found is not None and not stat_modes.S_ISREG(found.st_mode):
                    link = stat_modes.S_ISLNK(found.st_mode)
                    what = "a symbolic link" if link else "no plain file"
                    raise TargetError(f"{target.shown(file.path)} is {what}: remove it or choose another --target")
                if found is not None and found.st_nlink > 1:
                    raise TargetError(
                        f"{target.shown(file.path)} is one of {found.st_nlink} names (hard links) of a file, which a "
                        "replay could overwrite: remove this name and stage again, or choose another --target"
                    )
                yield file, found


def _there(
    target: Target | None, files: Sequence[TwinFile], holes: set[int], manifest: Manifest
) -> tuple[set[int], set[int]]:
    """File ids that are staged and good as they are; and those at whose place is a file of ours to replace."""
    good: set[int] = set()
    replaced: set[int] = set()
    for file, found in found_at(target, files):
        if found is None or target is None:
            continue
        entry = manifest.files.get(file.path)
        if entry is None or entry.state == CREATED_BY_RUN:
            raise foreign(target, file.path)
        right = found.st_size == file.size and entry.layout == file.layout
        if entry.state == PLANNED and not _made_by_us(target, file, entry, found):
            raise foreign(target, file.path)
        if right and (not entry.sparse or file.file_id in holes):
            good.add(file.file_id)
        else:
            replaced.add(file.file_id)
    return good, replaced


def _made_by_us(target: Target, file: TwinFile, entry: ManifestFile, found: os.stat_result) -> bool:
    """Whether an interrupted staging had finished a planned file, or begun a small one."""
    size = found.st_size
    begun = size < file.size <= SMALL_BYTES and file.stager.may_start_in_place and not entry.sparse
    if begun and size == 0:  # what a file system may keep of a file at a loss of power
        return True
    if (size != file.size or entry.layout != file.layout) and not (begun and size >= LEAST_BEGUN_BYTES):
        return False
    directory, name = split(file.path)
    with target.directory(directory) as above:
        if above is None:
            return False
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=above)
            try:
                if entry.sparse:
                    return os.fstat(fd).st_blocks == 0
                return file.stager.made(fd, entry.record_id, size)
            finally:
                close_unwritten(fd)
        except OSError as error:
            raise refusal(error, f"read {target.shown(file.path)}") from error


def _check_created(target: Target | None, created: Sequence[TwinFile], manifest: Manifest) -> None:
    for file, found in found_at(target, created):
        if found is not None and target is not None and file.path not in manifest.files:
            raise foreign(target, file.path)


def check_mapped(files: Iterable[MappedFile]) -> None:
    """Raises: TargetError when real data are missing, or shorter than the capture reads."""
    for file in files:
        try:
            found = os.stat(file.path)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise TargetError(f"mapped data {printable(file.path)}: {reason}; correct --map") from error
        if file.size and (not stat_modes.S_ISREG(found.st_mode) or found.st_size < file.size):
            raise TargetError(
                f"mapped data {printable(file.path)} has {found.st_size} bytes, the capture reads {file.size}: "
                "correct --map, or leave it out and stage"
            )


def _file_system(path: Path) -> os.statvfs_result:
    """The file system of the nearest directory above `path` that exists."""
    try:
        while not path.exists():
            path = path.parent
        return os.statvfs(path)
    except OSError as error:
        raise refusal(error, f"look at the file system of {printable(path)}") from error
