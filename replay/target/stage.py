"""Plans the twin data set of a capture under a target, writes it, checks it before a run, and removes it.

`replay.target.data_set` decides the contents of a twin, `replay.target.placement` the place of each file,
`replay.target.manifest` lists the files. All other files stay untouched.
"""

from __future__ import annotations

import os
import stat as stat_modes
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dxt_replay.replay.target.data_set import CREATED_ROLE, LOOKED_AT_ROLE, TwinFiles, fits, total, twin_data_set
from dxt_replay.replay.target.hdf5_layout import Hdf5Files, hdf5_files
from dxt_replay.replay.target.manifest import (
    CREATED_BY_RUN,
    MANIFEST_NAME,
    PLANNED,
    WHOLE,
    Manifest,
    in_order,
    in_state,
    is_unchanged,
    manifest_files,
    read_manifest,
    write_manifest,
)
from dxt_replay.replay.target.path_columns import booleans, column, rows_in, same_texts
from dxt_replay.replay.target.placement import PathMap, Placements
from dxt_replay.replay.target.protocol import SMALL_BYTES, Room, Target, absent, foreign, plain_files
from dxt_replay.replay.target.targets import open_target
from dxt_replay.replay.target.writing import Progress, Writing
from dxt_replay.traces.errors import TargetError
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.text import printable
from dxt_replay.traces.units import NS_PER_S, format_bytes, format_count, format_counted, format_duration

if TYPE_CHECKING:
    from dxt_replay.replay.ranks.stopping import TimeLimit

LEAST_BEGUN_BYTES = 8
"""Fewer bytes do not show that a file was begun by a staging: a stranger's may be the same by chance."""

_RECOGNISED_BYTES = 4096  # The start of a file by which it is known to be ours
LARGEST_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StagePlan:
    """A plan of staging.

    `target`: the resolved text that opens it.
    `bytes_to_write`: without holes; `bytes_on_disk`: the same in whole blocks. `room`: free room of the target.
    `sparse`, `replaced`: bool by row of `to_write`: files that become holes, or replace a staged file.
    `plain_hdf5`: paths of HDF5 files that are made as plain bytes, with the reason."""

    target: str | Path
    identity: str
    to_write: TwinFiles
    already_staged: TwinFiles
    created_by_run: TwinFiles
    mapped: tuple[tuple[bytes, int], ...]
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
            sizes = f"{format_bytes(needed)} are needed and {format_bytes(free)} are free"
            return f"{sizes}, {format_bytes(needed - free)} short"
        if free_files is not None and files > free_files:
            return f"{format_count(files)} files are needed and {format_count(free_files)} inodes free"
        return None

    def as_json(self) -> dict[str, Any]:
        """The plan as the object that `dxt-replay stage --json` prints; paths are below `target`."""
        files = self.to_write
        listed = zip(files.path.to_pylist(), files.size.tolist(), self.sparse.tolist(), strict=True)
        return {
            "target": printable(self.target),
            "to_write": [{"path": path, "size_bytes": size, "sparse": sparse} for path, size, sparse in listed],
            "already_staged": {"files": len(self.already_staged), "bytes": self.already_staged.bytes},
            "created_by_run": self.created_by_run.path.to_pylist(),
            "bytes_created_by_run": self.bytes_created_by_run,
            "plain_hdf5": [{"path": path, "reason": reason} for path, reason in self.plain_hdf5],
            "mapped": {"files": len(self.mapped), "bytes": sum(size for _, size in self.mapped)},
            "bytes_to_write": self.bytes_to_write,
            "free_bytes": self.room.free_bytes,
            "fits": self.shortage is None,
        }

    def lines(self, *, dry_run: bool = True) -> list[str]:
        """The planned writes, one line for each fact, with the names of the largest files."""
        files, place = self.to_write, f"under {printable(self.target)}"
        lines = [f"Nothing to write {place}"]
        if len(files):
            holes = f", {format_count(int(self.sparse.sum()))} of them as holes" if self.sparse.any() else ""
            verb, written = "Would write" if dry_run else "Writing", format_bytes(self.bytes_to_write)
            lines = [f"{verb} {format_counted(len(files), 'file')} {place}: {written}{holes}"]
            listed = pa.table({"size": files.size, "path": files.path})
            largest = pc.select_k_unstable(listed, LARGEST_SHOWN, [("size", "descending"), ("path", "ascending")])
            shown = zip(files.size[largest.to_numpy()].tolist(), files.path.take(largest).to_pylist(), strict=True)
            lines += [f"  {format_bytes(size):>9}  {path}" for size, path in shown]
        if len(files) > LARGEST_SHOWN:
            lines.append(f"  and {format_count(len(files) - LARGEST_SHOWN)} more")
        created = self.created_by_run
        for count, size, text in (
            (len(self.already_staged), self.already_staged.bytes, "there already"),
            (len(self.mapped), sum(size for _, size in self.mapped), "read from mapped data"),
            (len(created), self.bytes_created_by_run, "only written by the program, so each replay makes them"),
        ):
            if count:
                lines.append(f"{format_counted(count, 'file')}, {format_bytes(size)}: {text}")
        lines += [f"{path} gets plain bytes instead of HDF5: {why}" for path, why in self.plain_hdf5[:LARGEST_SHOWN]]
        if len(self.plain_hdf5) > LARGEST_SHOWN:
            lines.append(f"  and {format_counted(len(self.plain_hdf5) - LARGEST_SHOWN, 'more HDF5 file')}")
        if self.shortage:
            lines.append(f"Does not fit: {self.shortage}")
        elif self.room.free_bytes is not None and dry_run:
            lines.append(f"{format_bytes(self.room.free_bytes)} are free")
        return lines

    def done_line(self, seconds: float) -> str:
        """The result of staging in one line, without a rate if hardly any time passed."""
        if not len(self.to_write):
            return "The twin is complete."
        files, size = format_counted(len(self.to_write), "file"), format_bytes(self.bytes_to_write)
        rate = f", {format_bytes(self.bytes_to_write / seconds)}/s" if seconds >= 0.01 else ""
        return f"Staged {files} under {printable(self.target)}: {size} in {format_duration(seconds * NS_PER_S)}{rate}"


def plan_stage(
    capture: Capture, target: str | Path, *, maps: Sequence[PathMap] = (), sparse: bool = False
) -> StagePlan:
    """Plan staging `capture` under `target`; changes nothing. `sparse`: use holes if the format allows them.

    Raises: TargetError when a link or a foreign file is in the place of a file, or a mapped file is missing."""
    with open_target(target) as opened:
        manifest = read_manifest(opened)
        data = twin_data_set(capture, opened.base, maps, manifest, hdf5_files(capture))
        is_created = data.files.has_role(CREATED_ROLE)
        created, staged = data.files.chosen(is_created), data.files.chosen(~is_created)
        holes = staged.is_plain & (staged.has_role(LOOKED_AT_ROLE) | sparse)
        there, replaced = _there(opened, staged, holes, manifest)
        _refuse(opened, created, (plain_files(opened, created.path) >= 0) & (rows_in(created.path, manifest.path) < 0))
        where, room = opened.where, opened.room()
    _check_mapped(data.mapped)
    to_write = staged.chosen(~there)
    written = to_write.size[~holes[~there]]
    plain = np.flatnonzero(np.isin(to_write.file_id, list(data.plain_hdf5))).tolist()
    return StagePlan(
        target=where,
        identity=data.identity,
        to_write=to_write,
        already_staged=staged.chosen(there),
        created_by_run=created,
        mapped=data.mapped,
        sparse=holes[~there],
        replaced=replaced[~there],
        plain_hdf5=tuple((to_write.path[row].as_py(), data.plain_hdf5[int(to_write.file_id[row])]) for row in plain),
        bytes_to_write=total(written),
        bytes_on_disk=total(-(-written // room.block_bytes)) * room.block_bytes,
        room=room,
        manifest=manifest,
    )


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
    _refuse(target, files, strange)
    mine = np.flatnonzero(found)
    entries = listed.drop_columns(["path"]).take(rows[mine])
    for number in np.flatnonzero(in_state(entries, PLANNED)).tolist():
        row = int(mine[number])
        strange[row] = not _made_by_us(target, files, row, entries.slice(number, 1).to_pylist()[0], int(sizes[row]))
        _refuse(target, files, strange)
    good, replaced = np.zeros((2, len(files)), dtype=bool)
    good[mine] = (sizes == files.size)[mine] & same_texts(entries["layout"], files.layout.take(mine))
    good[mine] &= ~entries["sparse"].to_numpy() | holes[mine]
    replaced[mine] = ~good[mine]
    return good, replaced


def _refuse(target: Target, files: TwinFiles, strange: np.ndarray) -> None:
    if strange.any():
        raise foreign(target.shown(files.path[int(np.argmax(strange))].as_py()))


def _made_by_us(target: Target, files: TwinFiles, row: int, entry: Mapping[str, object], size: int) -> bool:
    """Whether an interrupted staging finished a planned file of this size, or began a small one.

    `entry`: its row of the manifest."""
    content, sparse = files.content(row), bool(entry["sparse"])
    begun = size < content.size <= SMALL_BYTES and not content.inserts and not sparse
    if begun and size == 0:  # what a file system may keep of a file at a loss of power
        return True
    is_whole = size == content.size and entry["layout"] == files.layout[row].as_py()
    if not is_whole and not (begun and size >= LEAST_BEGUN_BYTES):
        return False
    if sparse:
        content = replace(content, size=size, inserts=(), is_hole=True)
    with target.open(files.path[row].as_py()) as file:
        end = size if sparse else min(size, _RECOGNISED_BYTES)
        return file is not None and content.first_difference(file, 0, end) is None


def _check_mapped(files: Iterable[tuple[bytes, int]]) -> None:
    """Raises: TargetError when real data are missing, or shorter than the capture reads."""
    for path, size in files:
        try:
            found = os.stat(path)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise TargetError(f"mapped data {printable(path)}: {reason}; correct --map") from error
        if size and (not stat_modes.S_ISREG(found.st_mode) or found.st_size < size):
            raise TargetError(
                f"mapped data {printable(path)} has {found.st_size} bytes, the capture reads {size}: "
                "correct --map, or leave it out and stage"
            )


def stage(
    plan: StagePlan, *, workers: int | None = None, progress: Progress | None = None, limit: TimeLimit | None = None
) -> Manifest:
    """Carry out the plan. Returns the new manifest of the target. An interrupted staging is continued by the next call.

    `workers`: number of threads; None chooses one for this machine. `limit`: the longest time. When the call returns,
    all files are on the disk.
    Raises: TargetError when the data set does not fit, the target changed since the plan, or a write fails. Files that
    are complete by then stay, and the manifest lists them."""
    if plan.shortage:
        remedy = "choose another --target, free space there, or stage with --sparse"
        raise TargetError(f"no room under {printable(plan.target)}: {plan.shortage}; {remedy}")
    with open_target(plan.target, make=True) as target, target.locked():
        if not is_unchanged(target, plan.manifest):
            raise TargetError(f"{target.shown('')} changed after the plan was made: make a new plan, or stage again")
        new = ~plan.replaced
        entries = [_entries(plan, plan.to_write.chosen(new), PLANNED, sparse=plan.sparse[new])]
        for files in (plan.already_staged, plan.to_write.chosen(plan.replaced)):
            # Keep the old entry, which another data set may have made, until a new file has its place.
            old = plan.manifest.files.take(rows_in(files.path, plan.manifest.path))
            kept = {name: old[name] for name in old.column_names}
            changed = {"state": pa.repeat(WHOLE, len(files)), "written": _is_written(plan, files)}
            entries.append(manifest_files(**kept | changed))
        entries.append(_entries(plan, plan.created_by_run, CREATED_BY_RUN))
        manifest = plan.manifest.with_files(in_order(pa.concat_tables(entries)), plan.identity)
        writing = Writing(target, plan.to_write, plan.sparse, plan.replaced, workers, progress, limit)
        if manifest != plan.manifest:
            write_manifest(target, manifest)
        target.make_parents(plan.created_by_run.path)
        try:
            writing.run()
        except BaseException:
            with suppress(TargetError):
                write_manifest(target, _with_whole(manifest, plan, writing.placed))
            raise
        if writing.placed.any():
            manifest = _with_whole(manifest, plan, writing.placed)
            write_manifest(target, manifest)
        return manifest


def _with_whole(manifest: Manifest, plan: StagePlan, whole: np.ndarray) -> Manifest:
    entries = _entries(plan, plan.to_write.chosen(whole), WHOLE, sparse=plan.sparse[whole])
    return manifest.with_files(entries, plan.identity)


def _entries(plan: StagePlan, files: TwinFiles, state: str, *, sparse: np.ndarray | None = None) -> pa.Table:
    layout = files.layout
    return manifest_files(
        path=files.path,
        size=files.size.view(np.uint64),  # the same memory: no size is negative
        record_id=files.record_id,
        sparse=np.zeros(len(files), dtype=bool) if sparse is None else sparse,
        state=pa.repeat(state, len(files)),
        written=_is_written(plan, files),
        data_bytes=pc.if_else(layout.is_valid(), pa.array(files.data_bytes.astype(np.uint64)), None),
        layout=layout,
    )


def _is_written(plan: StagePlan, files: TwinFiles) -> np.ndarray:
    """bool[files]: whether a replay of this or an earlier data set writes into a staged file."""
    written: np.ndarray = files.written & ~files.has_role(CREATED_ROLE)
    old = plan.manifest.files
    if pc.any(old["written"]).as_py():
        rows = rows_in(files.path, plan.manifest.path)
        written |= (rows >= 0) & booleans(old["written"])[rows]
    return written


def check_staged(
    capture: Capture, target: str | Path, maps: Sequence[PathMap] = (), hdf5: Hdf5Files | None = None
) -> Placements:
    """The place of each file of the capture for a run, by file id. Files without operations have a place but no file.

    `hdf5`: given if the run uses that library, which must find the chunks at the expected places.
    Raises: TargetError when a file that the run needs is absent, too small, or reached through a link."""
    with open_target(target) as opened:
        if not opened.exists:
            raise absent(opened)
        manifest = read_manifest(opened)
        data = twin_data_set(capture, opened.base, maps, manifest, hdf5)
        files = data.files
        sizes, rows = plain_files(opened, files.path), rows_in(files.path, manifest.path)
        staged = ~files.has_role(CREATED_ROLE)
        missing = (rows < 0) | ((sizes < 0) & staged) | ~fits(manifest, rows, files)
        bad = missing | ((sizes >= 0) & (sizes < files.size) & staged)
        if bad.any():
            row = int(np.argmax(bad))
            place = opened.shown(files.path[row].as_py())
            if missing[row]:
                raise TargetError(f"{place} is not staged: run `dxt-replay stage` first")
            raise TargetError(f"{place} has {sizes[row]} of {files.size[row]} bytes: run `dxt-replay stage` first")
    _check_mapped(data.mapped)
    return data.placements


def prepare_run(target: str | Path, placements: Placements) -> int:
    """Remove files that earlier runs created, so that this run creates them anew. Returns their number.

    Only files that the manifest lists as created by the run are removed. Their directories are made if absent. The
    caller holds the target's lock (`targets.locked_target`) until the run is over."""
    with open_target(target) as opened:
        if not opened.exists or placements.base != opened.base:
            return 0
        files = read_manifest(opened).files
        created = column(files.filter(pa.array(in_state(files, CREATED_BY_RUN)))["path"])
        ours = created.filter(pc.is_in(created, value_set=placements.below))
        opened.make_parents(ours)
        return opened.remove(ours)


def unstage(target: str | Path) -> int:
    """Remove the files of the manifest, empty directories, and the manifest. Returns the number of files.

    The target itself stays, with all foreign files in it."""
    with open_target(target) as opened, opened.locked():
        paths = read_manifest(opened).path
        removed = opened.remove(paths)
        opened.prune(paths)
        opened.remove(column([MANIFEST_NAME]))
        return removed
