"""The twin data set of a capture under a target: written, checked before a run, taken away again.

`replay.target.stage_plan` says what to write; `replay.target.manifest` lists what is ours, and
`replay.target.containment` keeps everything outside of the target untouched.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dxt_replay.replay.hdf5.files import Hdf5Files
from dxt_replay.replay.target.containment import (
    Target,
    make_target,
    open_target,
    printable,
    refusal,
    resolve_target,
    unlink,
)
from dxt_replay.replay.target.data_set import fits, twin_data_set
from dxt_replay.replay.target.directory_batches import DirectoryBatch, FilesByDirectory
from dxt_replay.replay.target.file_writer import (
    Limit,
    Progress,
    is_temporary,
    make_directories,
    temporary_name,
    write_files,
)
from dxt_replay.replay.target.manifest import Manifest, read_manifest, remove_manifest, write_manifest
from dxt_replay.replay.target.manifest_files import CREATED_BY_RUN, PLANNED, STATES, WHOLE, ManifestFiles, joined
from dxt_replay.replay.target.path_columns import rows_in
from dxt_replay.replay.target.placement import PathMap, Placements
from dxt_replay.replay.target.small_files import remove_files
from dxt_replay.replay.target.stage_plan import StagePlan, check_mapped, found_at
from dxt_replay.replay.target.twin_files import CREATED_ROLE, TwinFiles
from dxt_replay.traces.errors import TargetError
from dxt_replay.traces.store.reader import Capture

REMOVED_FILES = 1 << 14
"""Most files of one directory that are removed in one call."""

_ROOM = "choose another --target, free space there, or stage with --sparse"


def stage(
    plan: StagePlan,
    *,
    workers: int | None = None,
    progress: Progress | None = None,
    limit: Limit | None = None,
) -> Manifest:
    """Carry the plan out; returns the target's manifest. Started again after an interrupt, it goes on.

    `workers`: threads, a number that suits this machine when None. All files are on the disk at the end. `limit`: the
    longest time.
    Raises: TargetError when it does not fit, the target changed since the plan, or the disk refuses; files that are
    whole by then stay and are listed.
    """
    if plan.shortage:
        raise TargetError(f"no room under {printable(plan.target)}: {plan.shortage}; {_ROOM}")
    with make_target(plan.target) as target, target.locked():
        if read_manifest(target).files != plan.manifest.files:
            raise TargetError(f"{target.shown('')} changed after the plan was made: plan again")
        new = plan.to_write.chosen(~plan.replaced)
        planned = _entries(plan, new, PLANNED, sparse=plan.sparse[~plan.replaced])
        # a file of ours stays listed as it is until the new one has its place
        kept = [_kept_entries(plan, files) for files in (plan.already_staged, plan.to_write.chosen(plan.replaced))]
        created = _entries(plan, plan.created_by_run, CREATED_BY_RUN)
        manifest = plan.manifest.with_files(joined([planned, *kept, created]), plan.identity)
        if manifest != plan.manifest:
            write_manifest(target, manifest)
        make_directories(target, plan.created_by_run.path)
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
    capture: Capture, target: Path, maps: Sequence[PathMap] = (), hdf5: Hdf5Files | None = None
) -> Placements:
    """Where each file of the capture is for a run, by file id; files without operations have a place but no file.

    `hdf5`: given where the run uses that library, which must find the chunks where they are expected.
    Raises: TargetError when a file that the run needs is absent, too small, or reached through a link.
    """
    path = resolve_target(target)
    with open_target(path) as opened:
        if opened is None:
            raise TargetError(f"the target {printable(path)} does not exist: run `dxt-replay stage` first")
        manifest = read_manifest(opened)
        data = twin_data_set(capture, path, maps, manifest, hdf5)
        _check_files(opened, manifest, data.files)
    check_mapped(data.mapped)
    return data.placements


def _check_files(target: Target, manifest: Manifest, files: TwinFiles) -> None:
    """Raises: TargetError for the first file that is not staged, or too small."""
    sizes, rows = found_at(target, files), rows_in(files.path, manifest.files.path)
    staged = ~files.has_role(CREATED_ROLE)
    absent = (rows < 0) | ((sizes < 0) & staged)
    if len(manifest.files):
        absent |= ~fits(manifest.files, rows, files)
    short = (sizes >= 0) & (sizes < files.size) & staged
    if not (absent | short).any():
        return
    row = int(np.argmax(absent | short))
    shown = target.shown(files.path[row].as_py())
    if absent[row]:
        raise TargetError(f"{shown} is not staged: run `dxt-replay stage` first")
    raise TargetError(f"{shown} has {sizes[row]} of {files.size[row]} bytes: run `dxt-replay stage` first")


def prepare_run(target: Path, placements: Placements) -> int:
    """Remove what earlier runs created, so that this one creates it anew; returns how many files.

    Only files that the manifest lists as created by the run; their directories are made where they are absent. The
    caller holds the target's lock (`containment.locked_target`) until the run is over.
    """
    with open_target(target) as opened:
        if opened is None or placements.base != os.fsencode(opened.path / "x")[:-1]:
            return 0
        files = read_manifest(opened).files
        created = files.path.filter(pa.array(files.in_state(CREATED_BY_RUN)))
        ours = created.filter(pc.is_in(created, value_set=placements.below))
        make_directories(opened, ours)
        return _remove(opened, FilesByDirectory.of(ours))


def unstage(target: Path) -> int:
    """Remove the files of the manifest, directories that are then empty, and the manifest; returns how many files.

    The target itself stays, with all that is not ours in it.
    """
    with open_target(target) as opened:
        if opened is None:
            return 0
        with opened.locked():
            files = FilesByDirectory.of(read_manifest(opened).files.path)
            removed = _remove(opened, files)
            opened.remove_empty_directories(files.directories)
            remove_manifest(opened)
            return removed


def _with_whole(manifest: Manifest, plan: StagePlan, whole: np.ndarray) -> Manifest:
    entries = _entries(plan, plan.to_write.chosen(whole), WHOLE, sparse=plan.sparse[whole])
    return manifest.with_files(joined([entries]), plan.identity)


def _entries(plan: StagePlan, files: TwinFiles, state: str, *, sparse: np.ndarray | None = None) -> ManifestFiles:
    layout = files.layouts()
    return ManifestFiles(
        path=files.path,
        size=files.size.view(np.uint64),  # the same memory: no size is negative
        record_id=files.record_id,
        sparse=np.zeros(len(files), dtype=bool) if sparse is None else sparse,
        state=np.full(len(files), STATES.index(state), dtype=np.int8),
        written=_is_written(plan, files),
        data_bytes=pc.if_else(layout.is_valid(), pa.array(files.data_bytes.astype(np.uint64)), None),
        layout=layout,
    )


def _kept_entries(plan: StagePlan, files: TwinFiles) -> ManifestFiles:
    """The entries of files that are there: another data set may have made them."""
    old = plan.manifest.files.taken(rows_in(files.path, plan.manifest.files.path))
    return replace(old, state=np.full(len(files), STATES.index(WHOLE), dtype=np.int8), written=_is_written(plan, files))


def _is_written(plan: StagePlan, files: TwinFiles) -> np.ndarray:
    """bool[files]: whether a replay of this or an earlier data set writes into a staged file."""
    written: np.ndarray = files.written & ~files.has_role(CREATED_ROLE)
    old = plan.manifest.files
    if old.written.any():
        rows = rows_in(files.path, old.path)
        written |= (rows >= 0) & old.written[rows]
    return written


def _remove(target: Target, files: FilesByDirectory) -> int:
    """Remove plain files, also half-written ones; anything else stays."""
    removed = 0
    for batch in files.batches(len(files.order)):
        with target.directory(batch.directory) as fd:
            if fd is None:
                continue
            for begin in range(0, len(batch.rows), REMOVED_FILES):
                removed += _remove_some(target, fd, batch.part(slice(begin, begin + REMOVED_FILES)))
            _remove_begun(target, fd, batch)
    return removed


def _remove_some(target: Target, directory: int, batch: DirectoryBatch) -> int:
    """Remove files in one call; returns how many. Raises: TargetError."""
    done = np.zeros(2, dtype=np.int64)
    code = remove_files(directory, batch.names, done)
    if code:
        name = list(batch.names)[int(done[0])].decode("utf-8")
        error = OSError(code, os.strerror(code))
        raise refusal(error, f"remove {target.shown(f'{batch.directory}/{name}')}") from error
    return int(done[1])


def _remove_begun(target: Target, directory: int, batch: DirectoryBatch) -> None:
    """Remove what a staging that was killed left under temporary names."""
    try:
        with os.scandir(directory) as entries:
            there = {name for entry in entries if is_temporary(name := os.fsencode(entry.name))}
        for name in batch.names if there else ():
            if (temporary := temporary_name(name)) in there:
                unlink(directory, temporary)
    except OSError as error:
        raise refusal(error, f"remove {target.shown(batch.directory)}/*.part") from error
