"""What staging a twin would write, planned without a change; and what is at the places of its files.

`replay.target.data_set` decides what a twin holds, `replay.target.placement` where each file is.
"""

from __future__ import annotations

import os
import stat as stat_modes
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dxt_replay.replay.hdf5.files import hdf5_files
from dxt_replay.replay.target.containment import (
    Target,
    close_unwritten,
    open_target,
    printable,
    refusal,
    resolve_target,
    split,
)
from dxt_replay.replay.target.data_set import MappedFile, twin_data_set
from dxt_replay.replay.target.directory_batches import FilesByDirectory
from dxt_replay.replay.target.file_writer import foreign
from dxt_replay.replay.target.manifest import Manifest, read_manifest
from dxt_replay.replay.target.manifest_files import CREATED_BY_RUN, PLANNED, ManifestFile
from dxt_replay.replay.target.path_columns import rows_in, same_texts
from dxt_replay.replay.target.placement import PathMap
from dxt_replay.replay.target.small_files import SMALL_BYTES, look_at_files
from dxt_replay.replay.target.twin_files import CREATED_ROLE, LOOKED_AT_ROLE, TwinFile, TwinFiles, total
from dxt_replay.traces.errors import TargetError
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.units import format_bytes, format_count

LOOKED_AT_FILES = 1 << 16
"""Most files of one directory that are looked at in one call."""

_KIND_BITS = 0o170000
"""What S_IFMT gives (inode(7))."""

LEAST_BEGUN_BYTES = 8
"""Fewer bytes do not show that a file was begun by a staging: a stranger's may be the same by chance."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StagePlan:
    """What staging would do.

    `target`: resolved path.
    `bytes_to_write`: without holes; `bytes_on_disk`: the same in whole blocks.
    `free_bytes`, `free_files`: for this user; None where the file system does not report them.
    `sparse`, `replaced`: bool by row of `to_write`: files that become holes, or replace a file of ours.
    `plain_hdf5`: paths of HDF5 files that are made as plain bytes, with the reason.
    """

    target: Path
    identity: str
    to_write: TwinFiles
    already_staged: TwinFiles
    created_by_run: TwinFiles
    mapped: tuple[MappedFile, ...]
    sparse: np.ndarray
    replaced: np.ndarray
    plain_hdf5: tuple[tuple[str, str], ...]
    bytes_to_write: int
    bytes_on_disk: int
    free_bytes: int | None
    free_files: int | None
    manifest: Manifest

    @property
    def bytes_created_by_run(self) -> int:
        """Bytes of the files that a run makes and leaves, under their last names."""
        return total(self.created_by_run.size[~self.created_by_run.renamed])

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
        is_created = data.files.has_role(CREATED_ROLE)
        created, staged = data.files.chosen(is_created), data.files.chosen(~is_created)
        holes = staged.made_by("may_be_sparse") & (staged.has_role(LOOKED_AT_ROLE) | sparse)
        there, replaced = _there(opened, staged, holes, manifest)
        _check_created(opened, created, manifest)
    check_mapped(data.mapped)
    to_write = staged.chosen(~there)
    written = to_write.size[~holes[~there]]
    space = _file_system(path)
    block = space.f_frsize or 1
    return StagePlan(
        target=path,
        identity=data.identity,
        to_write=to_write,
        already_staged=staged.chosen(there),
        created_by_run=created,
        mapped=data.mapped,
        sparse=holes[~there],
        replaced=replaced[~there],
        plain_hdf5=_plain_hdf5(to_write, data.plain_hdf5),
        bytes_to_write=total(written),
        bytes_on_disk=total(-(-written // block)) * block,
        free_bytes=space.f_bavail * space.f_frsize if space.f_blocks else None,
        free_files=space.f_favail if space.f_files else None,
        manifest=manifest,
    )


def _plain_hdf5(files: TwinFiles, reasons: Mapping[int, str]) -> tuple[tuple[str, str], ...]:
    rows = np.flatnonzero(np.isin(files.file_id, list(reasons))).tolist() if reasons else ()
    return tuple((files.path[row].as_py(), reasons[int(files.file_id[row])]) for row in rows)


def found_at(target: Target | None, files: TwinFiles) -> np.ndarray:
    """int64[files]: bytes of what is at the place of each file, -1 where there is nothing.

    Raises: TargetError for a link of either kind, a directory and anything else that is not a plain file.
    """
    sizes = np.full(len(files), -1, dtype=np.int64)
    if target is None:
        return sizes
    for some in FilesByDirectory.of(files.path).batches(LOOKED_AT_FILES):
        with target.directory(some.directory) as fd:
            if fd is None:
                continue
            found, done = np.zeros((len(some.rows), 3), dtype=np.int64), np.zeros(1, dtype=np.int64)
            code = look_at_files(fd, some.names, found, done)
            looked = slice(0, int(done[0]))
            _check_plain(target, files, some.rows[looked], found[looked])
            if code:
                path = files.path[int(some.rows[int(done[0])])].as_py()
                raise refusal(OSError(code, os.strerror(code)), f"look at {target.shown(path)}")
            sizes[some.rows] = np.where(found[:, 0] != 0, found[:, 1], -1)
    return sizes


def _check_plain(target: Target, files: TwinFiles, rows: np.ndarray, found: np.ndarray) -> None:
    """Raises: TargetError for the first that is not a plain file with one name. `found`: as `FileCalls.look`."""
    mode, links = found[:, 0], found[:, 2]
    plain = (mode == 0) | (((mode & _KIND_BITS) == stat_modes.S_IFREG) & (links <= 1))
    if plain.all():
        return
    first = int(np.argmin(plain))
    shown, one_mode = target.shown(files.path[int(rows[first])].as_py()), int(mode[first])
    if not stat_modes.S_ISREG(one_mode):
        what = "a symbolic link" if stat_modes.S_ISLNK(one_mode) else "not a plain file"
        raise TargetError(f"{shown} is {what}: remove it or choose another --target")
    raise TargetError(
        f"{shown} is one of {links[first]} names (hard links) of a file, which a "
        "replay could overwrite: remove this name and stage again, or choose another --target"
    )


def _there(
    target: Target | None, files: TwinFiles, holes: np.ndarray, manifest: Manifest
) -> tuple[np.ndarray, np.ndarray]:
    """bool[files] twice: staged and good as they are; and a file of ours to replace is at their place."""
    sizes, listed = found_at(target, files), manifest.files
    found = sizes >= 0
    if target is None or not found.any():
        return found, found
    rows = rows_in(files.path, listed.path)
    ours = rows >= 0
    if len(listed):
        ours &= ~listed.in_state(CREATED_BY_RUN)[rows]
    strange = found & ~ours
    if strange.any():
        raise foreign(target, files.path[int(np.argmax(strange))].as_py())
    mine = np.flatnonzero(found)
    entries = rows[mine]
    for row in mine[listed.in_state(PLANNED)[entries]].tolist():
        if not _made_by_us(target, files[row], listed.entry(int(rows[row])), int(sizes[row])):
            raise foreign(target, files.path[row].as_py())
    right = (sizes == files.size)[mine] & same_texts(listed.layout.take(entries), files.layouts().take(mine))
    good, replaced = np.zeros((2, len(files)), dtype=bool)
    good[mine] = right & (~listed.sparse[entries] | holes[mine])
    replaced[mine] = ~good[mine]
    return good, replaced


def _made_by_us(target: Target, file: TwinFile, entry: ManifestFile, size: int) -> bool:
    """Whether an interrupted staging had finished a planned file of so many bytes, or begun a small one."""
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


def _check_created(target: Target | None, created: TwinFiles, manifest: Manifest) -> None:
    strange = (found_at(target, created) >= 0) & (rows_in(created.path, manifest.files.path) < 0)
    if target is not None and strange.any():
        raise foreign(target, created.path[int(np.argmax(strange))].as_py())


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
