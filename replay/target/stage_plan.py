"""Plans the writes of staging a twin, from the files that exist at its places. Changes nothing.

`replay.target.data_set` decides the contents of a twin, `replay.target.placement` the place of each file.
"""

from __future__ import annotations

import os
import stat as stat_modes
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dxt_replay.replay.hdf5.files import hdf5_files
from dxt_replay.replay.target.content import Content
from dxt_replay.replay.target.data_set import MappedFile, twin_data_set
from dxt_replay.replay.target.manifest import CREATED_BY_RUN, PLANNED, Manifest, in_state, read_manifest
from dxt_replay.replay.target.path_columns import rows_in, same_texts
from dxt_replay.replay.target.placement import PathMap
from dxt_replay.replay.target.protocol import SMALL_BYTES, Room, Target, foreign, plain_files
from dxt_replay.replay.target.targets import open_target
from dxt_replay.replay.target.twin_files import CREATED_ROLE, LOOKED_AT_ROLE, TwinFiles, total
from dxt_replay.traces.errors import TargetError
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.text import printable
from dxt_replay.traces.units import format_bytes, format_count

LEAST_BEGUN_BYTES = 8
"""Fewer bytes do not show that a file was begun by a staging: a stranger's may be the same by chance."""

_RECOGNISED_BYTES = 4096
"""The start of a file by which it is known to be ours."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StagePlan:
    """A plan of staging.

    `target`: the resolved text that opens it.
    `bytes_to_write`: without holes; `bytes_on_disk`: the same in whole blocks. `room`: free room of the target.
    `sparse`, `replaced`: bool by row of `to_write`: files that become holes, or replace a staged file.
    `plain_hdf5`: paths of HDF5 files that are made as plain bytes, with the reason.
    """

    target: str | Path
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
    room: Room
    manifest: Manifest

    @property
    def bytes_created_by_run(self) -> int:
        """Bytes of the files that a run makes and leaves, under their last names."""
        return total(self.created_by_run.size[~self.created_by_run.renamed])

    @property
    def shortage(self) -> str | None:
        """The reason why the data set does not fit; None if it fits."""
        needed, files = self.bytes_on_disk, len(self.to_write)
        free, free_files = self.room.free_bytes, self.room.free_files
        if free is not None and needed > free:
            return (
                f"{format_bytes(needed)} are needed and {format_bytes(free)} are free, "
                f"{format_bytes(needed - free)} short"
            )
        if free_files is not None and files > free_files:
            return f"{format_count(files)} files are needed and {format_count(free_files)} inodes free"
        return None


def plan_stage(
    capture: Capture, target: str | Path, *, maps: Sequence[PathMap] = (), sparse: bool = False
) -> StagePlan:
    """Plan staging `capture` under `target`; changes nothing. `sparse`: use holes if the format allows them.

    Raises: TargetError when a link or a foreign file is in the place of a file, or a mapped file is missing.
    """
    with open_target(target) as opened:
        manifest = read_manifest(opened)
        data = twin_data_set(capture, opened.base, maps, manifest, hdf5_files(capture))
        is_created = data.files.has_role(CREATED_ROLE)
        created, staged = data.files.chosen(is_created), data.files.chosen(~is_created)
        holes = staged.is_plain & (staged.has_role(LOOKED_AT_ROLE) | sparse)
        there, replaced = _there(opened, staged, holes, manifest)
        _check_created(opened, created, manifest)
        where, room = opened.where, opened.room()
    check_mapped(data.mapped)
    to_write = staged.chosen(~there)
    written = to_write.size[~holes[~there]]
    return StagePlan(
        target=where,
        identity=data.identity,
        to_write=to_write,
        already_staged=staged.chosen(there),
        created_by_run=created,
        mapped=data.mapped,
        sparse=holes[~there],
        replaced=replaced[~there],
        plain_hdf5=_plain_hdf5(to_write, data.plain_hdf5),
        bytes_to_write=total(written),
        bytes_on_disk=total(-(-written // room.block_bytes)) * room.block_bytes,
        room=room,
        manifest=manifest,
    )


def _plain_hdf5(files: TwinFiles, reasons: Mapping[int, str]) -> tuple[tuple[str, str], ...]:
    rows = np.flatnonzero(np.isin(files.file_id, list(reasons))).tolist() if reasons else ()
    return tuple((files.path[row].as_py(), reasons[int(files.file_id[row])]) for row in rows)


def _there(target: Target, files: TwinFiles, holes: np.ndarray, manifest: Manifest) -> tuple[np.ndarray, np.ndarray]:
    """Two bool[files]: the file is staged as planned; another staged file is at its place and must be replaced."""
    sizes, listed = plain_files(target, files.path), manifest.files
    found = sizes >= 0
    if not found.any():
        return found, found
    rows = rows_in(files.path, manifest.path)
    strange = found & (rows < 0)
    if len(listed):
        strange |= found & in_state(listed, CREATED_BY_RUN)[rows]
    if strange.any():
        raise foreign(target.shown(files.path[int(np.argmax(strange))].as_py()))
    mine = np.flatnonzero(found)
    entries = listed.drop_columns(["path"]).take(rows[mine])
    for number in np.flatnonzero(in_state(entries, PLANNED)).tolist():
        row = int(mine[number])
        if not _made_by_us(target, files, row, entries.slice(number, 1).to_pylist()[0], int(sizes[row])):
            raise foreign(target.shown(files.path[row].as_py()))
    sparse = entries["sparse"].to_numpy()
    good, replaced = np.zeros((2, len(files)), dtype=bool)
    good[mine] = (sizes == files.size)[mine] & same_texts(entries["layout"], files.layout.take(mine))
    good[mine] &= ~sparse | holes[mine]
    replaced[mine] = ~good[mine]
    return good, replaced


def _made_by_us(target: Target, files: TwinFiles, row: int, entry: Mapping[str, object], size: int) -> bool:
    """Whether an interrupted staging finished a planned file of this size, or began a small one.

    `entry`: its row of the manifest."""
    content, sparse = files.content(row), bool(entry["sparse"])
    begun = size < content.size <= SMALL_BYTES and content.inserts is None and not sparse
    if begun and size == 0:  # what a file system may keep of a file at a loss of power
        return True
    is_whole = size == content.size and entry["layout"] == files.layout[row].as_py()
    if not is_whole and not (begun and size >= LEAST_BEGUN_BYTES):
        return False
    if sparse:
        content = Content(record_id=content.record_id, size=size, is_hole=True)
    with target.open(files.path[row].as_py()) as file:
        end = size if sparse else min(size, _RECOGNISED_BYTES)
        return file is not None and content.first_difference(file, 0, end) is None


def _check_created(target: Target, created: TwinFiles, manifest: Manifest) -> None:
    strange = (plain_files(target, created.path) >= 0) & (rows_in(created.path, manifest.path) < 0)
    if strange.any():
        raise foreign(target.shown(created.path[int(np.argmax(strange))].as_py()))


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
