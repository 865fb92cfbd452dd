"""Which of the paths that were given are captures and which are targets, and all that is checked of each."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow.compute as pc

from replay.hdf5.files import hdf5_files
from replay.hdf5.layout import Hdf5Layout
from replay.twin.containment import Target, open_target
from replay.twin.manifest import MANIFEST_NAME, Manifest, is_twin_root, read_manifest
from replay.twin.path_columns import ancestors
from replay.verifying.capture_parts import capture_parts
from replay.verifying.checked import CheckedPart, Verified, VerifiedPlace
from replay.verifying.twin_bytes import Layouts
from replay.verifying.twin_parts import twin_parts
from traces.errors import CaptureError, TargetError, UsageError
from traces.store.digests import DOCUMENT
from traces.store.reader import open_capture
from traces.text import printable

CAPTURE_KIND, TWIN_KIND = "capture", "twin"
_CAPTURE_NAMES = (DOCUMENT, "ops", "files.parquet")


def verify_places(paths: Sequence[Path], *, sources: Sequence[Path], sizes_only: bool) -> Verified:
    """Check captures and staged twins; `sizes_only`: leave the bytes of twins out. Changes nothing.

    Raises: UsageError for a path that is neither, or a source that is not there; TargetError for a target that cannot
    be opened.
    """
    for source in sources:
        if not source.exists():
            raise UsageError(f"--source {printable(source)} does not exist")
    kinds = {path: _kinds(path) for path in paths}
    captures = [path for path in kinds if CAPTURE_KIND in kinds[path]]
    places = []
    for path, found in kinds.items():
        for kind in found:
            parts = capture_parts(path, sources) if kind == CAPTURE_KIND else _twin(path, captures, sizes_only)
            places.append(VerifiedPlace(path=path, kind=kind, parts=tuple(parts)))
    return Verified(places=tuple(places))


def _kinds(path: Path) -> tuple[str, ...]:
    try:
        names = os.listdir(path)
    except OSError as error:
        raise UsageError(
            f"{printable(path)}: {error.strerror}; give a capture, or a directory that `dxt-replay stage` filled"
        ) from error
    found = []
    if any(name in names for name in _CAPTURE_NAMES):
        found.append(CAPTURE_KIND)
    if MANIFEST_NAME in names or any(map(is_twin_root, names)):
        found.append(TWIN_KIND)
    if not found:
        raise UsageError(
            f"{printable(path)} is neither a capture (no {DOCUMENT}) nor a staged twin (no {MANIFEST_NAME}): give a "
            "capture, or a directory that `dxt-replay stage` filled"
        )
    return tuple(found)


def _twin(path: Path, captures: Sequence[Path], sizes_only: bool) -> list[CheckedPart]:
    listed = CheckedPart(part="manifest", unit="file")
    with open_target(path) as target:
        if target is None:
            raise UsageError(f"{printable(path)} was removed while it was looked at")
        try:
            manifest = read_manifest(target)
        except TargetError as error:
            listed.differs(MANIFEST_NAME, "contents", "a manifest as `dxt-replay stage` writes it", error)
            return [listed]
        if not os.path.lexists(path / MANIFEST_NAME):
            listed.differs(MANIFEST_NAME, "file", "a file", "not there")
        _check_manifest(manifest, listed)
        needed = set(manifest.files.layout.unique().drop_null().to_pylist())
        layouts = _layouts(captures) if needed and not sizes_only else {}
        return [listed, *_parts(target, manifest, layouts, sizes_only=sizes_only)]


def _parts(target: Target, manifest: Manifest, layouts: Layouts, *, sizes_only: bool) -> Iterator[CheckedPart]:
    try:
        yield from twin_parts(target, manifest, layouts, sizes_only=sizes_only)
    except OSError as error:
        part = CheckedPart(part="directories", unit="name")
        part.differs(".", "directory", "directories that can be listed", error.strerror or error)
        yield part


def _check_manifest(manifest: Manifest, part: CheckedPart) -> None:
    """What a manifest must hold whatever the files are."""
    part.checked = len(manifest.files)
    paths = manifest.files.path
    above = ancestors(paths)
    for file in above.filter(pc.is_in(above, value_set=paths)).to_pylist():
        for path in paths.filter(pc.starts_with(paths, f"{file}/")).to_pylist():
            part.differs(printable(path), "entry", "below a directory", f"below the file {printable(file)}")
    if len(manifest.files) and not manifest.data_sets:
        part.differs(MANIFEST_NAME, "data_sets", "the data set of its files", "none")


def _layouts(captures: Sequence[Path]) -> dict[str, Hdf5Layout]:
    """The layouts of HDF5 files that whole captures need; a damaged capture has its own rows."""
    found: dict[str, Hdf5Layout] = {}
    for path in captures:
        try:
            found |= {layout.digest: layout for layout in hdf5_files(open_capture(path)).layouts.values()}
        except CaptureError:
            continue
    return found
