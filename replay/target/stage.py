"""Writes the twin data set of a capture under a target, checks it before a run, and removes it.

`replay.target.stage_plan` plans the files, and `replay.target.manifest` lists them. All other files stay untouched.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dxt_replay.replay.hdf5.files import Hdf5Files
from dxt_replay.replay.target.data_set import fits, twin_data_set
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
from dxt_replay.replay.target.path_columns import booleans, column, rows_in
from dxt_replay.replay.target.placement import PathMap, Placements
from dxt_replay.replay.target.protocol import Target, plain_files
from dxt_replay.replay.target.stage_plan import StagePlan, check_mapped
from dxt_replay.replay.target.targets import open_target
from dxt_replay.replay.target.twin_files import CREATED_ROLE, TwinFiles
from dxt_replay.replay.target.writing import Limit, Progress, write_files
from dxt_replay.traces.errors import TargetError
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.text import printable

_ROOM = "choose another --target, free space there, or stage with --sparse"


def stage(
    plan: StagePlan,
    *,
    workers: int | None = None,
    progress: Progress | None = None,
    limit: Limit | None = None,
) -> Manifest:
    """Carry out the plan. Returns the new manifest of the target. An interrupted staging is continued by the next call.

    `workers`: number of threads; None chooses one for this machine. `limit`: the longest time. When the call returns,
    all files are on the disk.
    Raises: TargetError when the data set does not fit, the target changed since the plan, or a write fails. Files that
    are complete by then stay, and the manifest lists them.
    """
    if plan.shortage:
        raise TargetError(f"no room under {printable(plan.target)}: {plan.shortage}; {_ROOM}")
    with open_target(plan.target, make=True) as target, target.locked():
        if not is_unchanged(target, plan.manifest):
            raise TargetError(f"{target.shown('')} changed after the plan was made: make a new plan, or stage again")
        new = plan.to_write.chosen(~plan.replaced)
        planned = _entries(plan, new, PLANNED, sparse=plan.sparse[~plan.replaced])
        # keep the old entry of a staged file until the new file has its place
        kept = [_kept_entries(plan, files) for files in (plan.already_staged, plan.to_write.chosen(plan.replaced))]
        created = _entries(plan, plan.created_by_run, CREATED_BY_RUN)
        manifest = plan.manifest.with_files(in_order(pa.concat_tables([planned, *kept, created])), plan.identity)
        if manifest != plan.manifest:
            write_manifest(target, manifest)
        target.make_parents(plan.created_by_run.path)
        whole = np.zeros(len(plan.to_write), dtype=bool)
        try:
            write_files(
                target,
                plan.to_write,
                sparse=plan.sparse,
                replaced=plan.replaced,
                placed=whole,
                workers=workers,
                progress=progress,
                limit=limit,
            )
        except BaseException:
            with suppress(TargetError):
                write_manifest(target, _with_whole(manifest, plan, whole))
            raise
        if whole.any():
            manifest = _with_whole(manifest, plan, whole)
            write_manifest(target, manifest)
        return manifest


def check_staged(
    capture: Capture, target: str | Path, maps: Sequence[PathMap] = (), hdf5: Hdf5Files | None = None
) -> Placements:
    """The place of each file of the capture for a run, by file id. Files without operations have a place but no file.

    `hdf5`: given if the run uses that library, which must find the chunks at the expected places.
    Raises: TargetError when a file that the run needs is absent, too small, or reached through a link.
    """
    with open_target(target) as opened:
        if not opened.exists:
            raise TargetError(f"the target {opened.shown('')} does not exist: run `dxt-replay stage` first")
        manifest = read_manifest(opened)
        data = twin_data_set(capture, opened.base, maps, manifest, hdf5)
        _check_files(opened, manifest, data.files)
    check_mapped(data.mapped)
    return data.placements


def _check_files(target: Target, manifest: Manifest, files: TwinFiles) -> None:
    """Raises: TargetError for the first file that is not staged, or too small."""
    sizes, rows = plain_files(target, files.path), rows_in(files.path, manifest.path)
    staged = ~files.has_role(CREATED_ROLE)
    absent = (rows < 0) | ((sizes < 0) & staged) | ~fits(manifest, rows, files)
    short = (sizes >= 0) & (sizes < files.size) & staged
    if not (absent | short).any():
        return
    row = int(np.argmax(absent | short))
    shown = target.shown(files.path[row].as_py())
    if absent[row]:
        raise TargetError(f"{shown} is not staged: run `dxt-replay stage` first")
    raise TargetError(f"{shown} has {sizes[row]} of {files.size[row]} bytes: run `dxt-replay stage` first")


def prepare_run(target: str | Path, placements: Placements) -> int:
    """Remove files that earlier runs created, so that this run creates them anew. Returns their number.

    Only files that the manifest lists as created by the run are removed. Their directories are made if absent. The
    caller holds the target's lock (`targets.locked_target`) until the run is over.
    """
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

    The target itself stays, with all foreign files in it.
    """
    with open_target(target) as opened, opened.locked():
        paths = read_manifest(opened).path
        removed = opened.remove(paths)
        opened.prune(paths)
        opened.remove(column([MANIFEST_NAME]))
        return removed


def _with_whole(manifest: Manifest, plan: StagePlan, whole: np.ndarray) -> Manifest:
    return manifest.with_files(
        _entries(plan, plan.to_write.chosen(whole), WHOLE, sparse=plan.sparse[whole]), plan.identity
    )


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


def _kept_entries(plan: StagePlan, files: TwinFiles) -> pa.Table:
    """The entries of existing files: another data set may have made them."""
    old = plan.manifest.files.take(rows_in(files.path, plan.manifest.path))
    kept = {name: old[name] for name in old.column_names}
    return manifest_files(**kept | {"state": pa.repeat(WHOLE, len(files)), "written": _is_written(plan, files)})


def _is_written(plan: StagePlan, files: TwinFiles) -> np.ndarray:
    """bool[files]: whether a replay of this or an earlier data set writes into a staged file."""
    written: np.ndarray = files.written & ~files.has_role(CREATED_ROLE)
    old = plan.manifest.files
    if pc.any(old["written"]).as_py():
        rows = rows_in(files.path, plan.manifest.path)
        written |= (rows >= 0) & booleans(old["written"])[rows]
    return written
