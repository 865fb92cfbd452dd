"""The twin data set of a capture under a target: written, checked before a run, taken away again.

`replay.twin.stage_plan` says what to write; `replay.twin.manifest` lists what is ours, and `replay.twin.containment`
keeps everything outside of the target untouched.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from replay.hdf5.files import Hdf5Files
from replay.twin.containment import Target, make_target, open_target, printable, refusal, resolve_target, split, unlink
from replay.twin.data_set import CREATED_ROLE, TwinFile, fits, twin_data_set
from replay.twin.file_writer import Limit, Progress, make_directories, temporary_name, write_files
from replay.twin.manifest import (
    CREATED_BY_RUN,
    PLANNED,
    WHOLE,
    Manifest,
    ManifestFile,
    read_manifest,
    remove_manifest,
    write_manifest,
)
from replay.twin.placement import PathMap, Placement
from replay.twin.stage_plan import StagePlan, check_mapped, found_at
from traces.errors import TargetError
from traces.store.reader import Capture

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
        planned = [_entry(plan, file, PLANNED) for file in plan.to_write if file.file_id not in plan.replaced]
        # a file of ours stays listed as it is until the new one has its place
        replaced = [_kept_entry(plan, file) for file in plan.to_write if file.file_id in plan.replaced]
        kept = [_kept_entry(plan, file) for file in plan.already_staged] + replaced
        created = [_entry(plan, file, CREATED_BY_RUN) for file in plan.created_by_run]
        manifest = plan.manifest.with_files([*planned, *kept, *created], plan.identity)
        if manifest != plan.manifest:
            write_manifest(target, manifest)
        make_directories(target, (file.path for file in plan.created_by_run))
        whole: list[TwinFile] = []
        try:
            write_files(
                target,
                plan.to_write,
                sparse=plan.sparse,
                replaced=plan.replaced,
                placed=whole.append,
                workers=workers,
                progress=progress,
                limit=limit,
            )
        except BaseException:
            with suppress(TargetError):
                write_manifest(target, _with_whole(manifest, plan, whole))
            raise
        if whole:
            manifest = _with_whole(manifest, plan, whole)
            write_manifest(target, manifest)
        return manifest


def check_staged(
    capture: Capture, target: Path, maps: Sequence[PathMap] = (), hdf5: Hdf5Files | None = None
) -> list[Placement]:
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
        for file, found in found_at(opened, data.files):
            entry = manifest.files.get(file.path)
            absent = entry is None or (found is None and file.role != CREATED_ROLE)
            if absent or (entry is not None and not fits(entry, file)):
                raise TargetError(f"{opened.shown(file.path)} is not staged: run `dxt-replay stage` first")
            if found is not None and found.st_size < file.size and file.role != CREATED_ROLE:
                raise TargetError(
                    f"{opened.shown(file.path)} has {found.st_size} of {file.size} bytes: run `dxt-replay stage` first"
                )
    check_mapped(data.mapped)
    return list(data.placements)


def prepare_run(target: Path, placements: Iterable[Placement]) -> int:
    """Remove what earlier runs created, so that this one creates it anew; returns how many files.

    Only files that the manifest lists as created by the run; their directories are made where they are absent. The
    caller holds the target's lock (`containment.locked_target`) until the run is over.
    """
    with open_target(target) as opened:
        if opened is None:
            return 0
        files = read_manifest(opened).files
        base = os.fsencode(opened.path / "x")[:-1]
        twins = [p.path for p in placements if not p.mapped and p.path.startswith(base)]
        paths = [path.removeprefix(base).decode("utf-8", "replace") for path in twins]
        ours = [path for path in paths if path in files and files[path].state == CREATED_BY_RUN]
        make_directories(opened, ours)
        return _remove(opened, ours)


def unstage(target: Path) -> int:
    """Remove the files of the manifest, directories that are then empty, and the manifest; returns how many files.

    The target itself stays, with all that is not ours in it.
    """
    with open_target(target) as opened:
        if opened is None:
            return 0
        with opened.locked():
            paths = list(read_manifest(opened).files)
            removed = _remove(opened, paths)
            opened.remove_empty_directories({split(path)[0] for path in paths})
            remove_manifest(opened)
            return removed


def _with_whole(manifest: Manifest, plan: StagePlan, whole: Iterable[TwinFile]) -> Manifest:
    return manifest.with_files([_entry(plan, file, WHOLE) for file in whole], plan.identity)


def _entry(plan: StagePlan, file: TwinFile, state: str) -> ManifestFile:
    return ManifestFile(
        path=file.path,
        size=file.size,
        record_id=file.record_id,
        sparse=file.file_id in plan.sparse,
        state=state,
        data_bytes=None if file.layout is None else file.data_bytes,
        layout=file.layout,
        written=_is_written(plan, file),
    )


def _kept_entry(plan: StagePlan, file: TwinFile) -> ManifestFile:
    """The entry of a file that is there: another data set may have made it."""
    old = plan.manifest.files[file.path]
    return replace(old, state=WHOLE, written=_is_written(plan, file))


def _is_written(plan: StagePlan, file: TwinFile) -> bool | None:
    """Whether a replay of this or an earlier data set writes into a staged file, as the manifest has it."""
    old = plan.manifest.files.get(file.path)
    earlier = old is not None and old.written is True
    return True if (file.written and file.role != CREATED_ROLE) or earlier else None


def _remove(target: Target, paths: Iterable[str]) -> int:
    """Remove plain files, also half-written ones; anything else stays."""
    removed = 0
    for path in paths:
        directory, name = split(path)
        with target.directory(directory) as fd:
            if fd is None:
                continue
            try:
                removed += unlink(fd, name)
                unlink(fd, temporary_name(name))
            except OSError as error:
                raise refusal(error, f"remove {target.shown(path)}") from error
    return removed
