"""The twin data set of a capture under a target: planned, written, checked before a run, taken away again.

`replay.twin.data_set` decides what it holds, `replay.twin.placement` where each file is; `replay.twin.manifest` lists
what is ours, and `replay.twin.containment` keeps everything outside of the target untouched.
"""

from __future__ import annotations

import os
import stat as stat_modes
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from replay.hdf5.files import Hdf5Files, hdf5_files
from replay.twin.containment import (
    Target,
    lstat,
    make_target,
    open_target,
    printable,
    refusal,
    resolve_target,
    split,
    unlink,
)
from replay.twin.data_set import CREATED_ROLE, LOOKED_AT_ROLE, MappedFile, TwinFile, fits, twin_data_set
from replay.twin.file_writer import Progress, foreign, make_directories, temporary_name, write_files
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
from traces.errors import TargetError
from traces.store.reader import Capture
from traces.units import NS_PER_S, format_bytes, format_count, format_counted, format_duration

LARGEST_SHOWN = 5
LEAST_MEASURED_S = 0.01


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
    _check_mapped(data.mapped)
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


def describe(plan: StagePlan, *, dry_run: bool = True) -> list[str]:
    """What staging would write, or is about to write, one line for each fact; the largest files by name."""
    holes = f", {format_count(len(plan.sparse))} of them as holes" if plan.sparse else ""
    verb, place = "Would write" if dry_run else "Writing", f"under {printable(plan.target)}"
    lines = [
        f"{verb} {format_counted(len(plan.to_write), 'file')} {place}: {format_bytes(plan.bytes_to_write)}{holes}"
        if plan.to_write
        else f"Nothing to write {place}"
    ]
    largest = sorted(plan.to_write, key=lambda file: (-file.size, file.path))[:LARGEST_SHOWN]
    lines += [f"  {format_bytes(file.size):>9}  {file.path}" for file in largest]
    if len(plan.to_write) > len(largest):
        lines.append(f"  and {format_count(len(plan.to_write) - len(largest))} more")
    for files, text in (
        (plan.already_staged, "there already"),
        (plan.mapped, "read from mapped data"),
    ):
        if files:
            size = format_bytes(sum(file.size for file in files))
            lines.append(f"{format_counted(len(files), 'file')}, {size}: {text}")
    if plan.created_by_run:
        size = format_bytes(plan.bytes_created_by_run)
        made = format_counted(len(plan.created_by_run), "file")
        lines.append(f"{made}, {size}: only written by the program, so each replay makes them")
    lines += [f"{path} gets plain bytes instead of HDF5: {reason}" for path, reason in plan.plain_hdf5[:LARGEST_SHOWN]]
    if len(plan.plain_hdf5) > LARGEST_SHOWN:
        lines.append(f"  and {format_counted(len(plan.plain_hdf5) - LARGEST_SHOWN, 'more HDF5 file')}")
    if plan.shortage:
        lines.append(f"Does not fit: {plan.shortage}")
    elif plan.free_bytes is not None and dry_run:
        lines.append(f"{format_bytes(plan.free_bytes)} are free")
    return lines


def describe_done(plan: StagePlan, seconds: float) -> str:
    """What staging wrote, in one line; without a rate where hardly any time passed."""
    if not plan.to_write:
        return "The twin is complete."
    files, size = format_counted(len(plan.to_write), "file"), format_bytes(plan.bytes_to_write)
    rate = f", {format_bytes(plan.bytes_to_write / seconds)}/s" if seconds >= LEAST_MEASURED_S else ""
    return f"Staged {files} under {printable(plan.target)}: {size} in {format_duration(seconds * NS_PER_S)}{rate}"


def as_json(plan: StagePlan) -> dict[str, Any]:
    """The plan as the object that `dxt-replay stage --json` prints; paths are below `target`."""
    return {
        "target": printable(plan.target),
        "to_write": [
            {"path": file.path, "size_bytes": file.size, "sparse": file.file_id in plan.sparse}
            for file in plan.to_write
        ],
        "already_staged": {"files": len(plan.already_staged), "bytes": sum(file.size for file in plan.already_staged)},
        "created_by_run": [file.path for file in plan.created_by_run],
        "bytes_created_by_run": plan.bytes_created_by_run,
        "plain_hdf5": [{"path": path, "reason": reason} for path, reason in plan.plain_hdf5],
        "mapped": {"files": len(plan.mapped), "bytes": sum(file.size for file in plan.mapped)},
        "bytes_to_write": plan.bytes_to_write,
        "free_bytes": plan.free_bytes,
        "fits": plan.shortage is None,
    }


def stage(plan: StagePlan, *, workers: int | None = None, progress: Progress | None = None) -> Manifest:
    """Carry the plan out; returns the target's manifest. Started again after an interrupt, it goes on.

    `workers`: threads, a number that suits this machine when None. All files are on the disk at the end.
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
            )
        except BaseException:
            with suppress(TargetError):
                write_manifest(target, _with_whole(manifest, plan, whole))
            raise
        if whole:
            manifest = _with_whole(manifest, plan, whole)
            write_manifest(target, manifest)
        return manifest


_ROOM = "choose another --target, free space there, or stage with --sparse"


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
        for file, found in _found(opened, data.files):
            entry = manifest.files.get(file.path)
            absent = entry is None or (found is None and file.role != CREATED_ROLE)
            if absent or (entry is not None and not fits(entry, file)):
                raise TargetError(f"{opened.shown(file.path)} is not staged: run `dxt-replay stage` first")
            if found is not None and found.st_size < file.size and file.role != CREATED_ROLE:
                raise TargetError(
                    f"{opened.shown(file.path)} has {found.st_size} of {file.size} bytes: run `dxt-replay stage` first"
                )
    _check_mapped(data.mapped)
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
    )


def _kept_entry(plan: StagePlan, file: TwinFile) -> ManifestFile:
    """The entry of a file that is there: another data set may have made it."""
    old = plan.manifest.files[file.path]
    return replace(old, state=WHOLE)


def _found(target: Target | None, files: Iterable[TwinFile]) -> Iterator[tuple[TwinFile, os.stat_result | None]]:
    """Each file with what is at its place, directory by directory.

    Raises: TargetError for a link, a directory and anything else that is not a plain file.
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
                yield file, found


def _there(
    target: Target | None, files: Sequence[TwinFile], holes: set[int], manifest: Manifest
) -> tuple[set[int], set[int]]:
    """File ids that are staged and good as they are; and those at whose place is a file of ours to replace."""
    good: set[int] = set()
    replaced: set[int] = set()
    for file, found in _found(target, files):
        if found is None or target is None:
            continue
        entry = manifest.files.get(file.path)
        if entry is None or entry.state == CREATED_BY_RUN:
            raise foreign(target, file.path)
        right = found.st_size == file.size and entry.layout == file.layout
        if entry.state == PLANNED and not (right and _made_by_us(target, file, entry)):
            raise foreign(target, file.path)
        if right and (not entry.sparse or file.file_id in holes):
            good.add(file.file_id)
        else:
            replaced.add(file.file_id)
    return good, replaced


def _made_by_us(target: Target, file: TwinFile, entry: ManifestFile) -> bool:
    """Whether an interrupted staging had finished a planned file of the right size."""
    directory, name = split(file.path)
    with target.directory(directory) as above:
        if above is None:
            return False
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=above)
            try:
                if entry.sparse:
                    return os.fstat(fd).st_blocks == 0
                return file.stager.made(fd, entry.record_id, file.size)
            finally:
                os.close(fd)
        except OSError as error:
            raise refusal(error, f"read {target.shown(file.path)}") from error


def _check_created(target: Target | None, created: Sequence[TwinFile], manifest: Manifest) -> None:
    for file, found in _found(target, created):
        if found is not None and target is not None and file.path not in manifest.files:
            raise foreign(target, file.path)


def _check_mapped(files: Iterable[MappedFile]) -> None:
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
