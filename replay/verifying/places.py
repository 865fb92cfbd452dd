"""Which of the paths that were given are captures and which are targets, and all that is checked of each."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow.compute as pc

from dxt_replay.replay.hdf5.files import hdf5_files
from dxt_replay.replay.hdf5.layout import Hdf5Layout
from dxt_replay.replay.target.data_set import file_use, twin_data_set
from dxt_replay.replay.target.manifest import MANIFEST_NAME, Manifest, read_manifest
from dxt_replay.replay.target.path_columns import ancestors
from dxt_replay.replay.target.placement import is_twin_root
from dxt_replay.replay.target.protocol import Target
from dxt_replay.replay.target.targets import open_target
from dxt_replay.replay.verifying.capture_parts import capture_parts
from dxt_replay.replay.verifying.checked import CheckedPart, Verified, VerifiedPlace
from dxt_replay.replay.verifying.twin_parts import Layouts, twin_parts
from dxt_replay.traces.errors import CaptureError, TargetError, UsageError
from dxt_replay.traces.store.digests import DOCUMENT
from dxt_replay.traces.store.reader import Capture, open_capture
from dxt_replay.traces.text import printable

CAPTURE_KIND, TWIN_KIND = "capture", "twin"
_CAPTURE_NAMES = (DOCUMENT, "ops", "files.parquet")


def verify_places(paths: Sequence[str | Path], *, sources: Sequence[Path], sizes_only: bool) -> Verified:
    """Check captures and staged twins; `sizes_only`: leave the bytes of twins out. Changes nothing.

    Raises: UsageError for a path that is neither, or a source that is not there; TargetError for a target that cannot
    be opened.
    """
    for source in sources:
        if not source.exists():
            raise UsageError(f"--source {printable(source)} does not exist")
    kinds = {path: _kinds(path) for path in paths}
    captures = [Path(path) for path in kinds if CAPTURE_KIND in kinds[path]]
    places = []
    for path, found in kinds.items():
        for kind in found:
            parts = capture_parts(Path(path), sources) if kind == CAPTURE_KIND else _twin(path, captures, sizes_only)
            places.append(VerifiedPlace(path=path, kind=kind, parts=tuple(parts)))
    return Verified(places=tuple(places))


def _kinds(path: str | Path) -> tuple[str, ...]:
    if isinstance(path, str):  # a URL
        return (TWIN_KIND,)
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


def _twin(path: str | Path, captures: Sequence[Path], sizes_only: bool) -> list[CheckedPart]:
    listed = CheckedPart(part="manifest", unit="file")
    with open_target(path) as target:
        if not target.exists:
            raise UsageError(f"{target.shown('')} holds no staged twin: run `dxt-replay stage` first")
        try:
            manifest = read_manifest(target)
        except TargetError as error:
            listed.differs(MANIFEST_NAME, "contents", "a manifest as `dxt-replay stage` writes it", error)
            return [listed]
        if manifest.digest is None:
            listed.differs(MANIFEST_NAME, "file", "a file", "not there")
        _check_manifest(manifest, listed)
        whole = list(_whole(captures))
        _check_needed(whole, target, manifest, listed)
        needed = bool(manifest.files["layout"].is_valid().to_numpy().any())
        layouts = _layouts(whole) if needed and not sizes_only else {}
        return [listed, *_parts(target, manifest, layouts, sizes_only=sizes_only)]


def _parts(target: Target, manifest: Manifest, layouts: Layouts, *, sizes_only: bool) -> Iterator[CheckedPart]:
    try:
        yield from twin_parts(target, manifest, layouts, sizes_only=sizes_only)
    except OSError as error:
        part = CheckedPart(part="directories", unit="name")
        part.differs(".", "directory", "directories that can be listed", error.strerror or error)
        yield part


def _check_manifest(manifest: Manifest, part: CheckedPart) -> None:
    """Check the rules that hold for every manifest."""
    part.checked = len(manifest.files)
    paths = manifest.path
    above = ancestors(paths)
    for file in above.filter(pc.is_in(above, value_set=paths)).to_pylist():
        for path in paths.filter(pc.starts_with(paths, f"{file}/")).to_pylist():
            part.differs(printable(path), "entry", "below a directory", f"below the file {printable(file)}")
    if len(manifest.files) and not manifest.data_sets:
        part.differs(MANIFEST_NAME, "data_sets", "the data set of its files", "none")


def _whole(captures: Sequence[Path]) -> Iterator[Capture]:
    """Those that can be read; a damaged capture has its own rows."""
    for path in captures:
        with suppress(CaptureError):
            capture = open_capture(path)
            file_use(capture)
            yield capture


def _check_needed(captures: Sequence[Capture], target: Target, manifest: Manifest, part: CheckedPart) -> None:
    """Hold the manifest against the files that each capture needs, if the manifest says that it was staged here."""
    strangers = []
    for capture in captures:
        data = twin_data_set(capture, target.base, (), manifest)
        if data.identity not in manifest.data_sets:
            strangers.append(printable(capture.path))
            continue
        absent = data.files.path.filter(pc.invert(pc.is_in(data.files.path, value_set=manifest.path)))
        for path in absent.to_pylist():
            part.differs(printable(path), "entry", f"one, as {printable(capture.path)} needs it", "none")
    if strangers:
        part.note = f"{strangers[0]} was staged elsewhere or with --map: whether its files are all listed is not known"


def _layouts(captures: Sequence[Capture]) -> dict[str, Hdf5Layout]:
    """The layouts of the HDF5 files that captures need."""
    found: dict[str, Hdf5Layout] = {}
    for capture in captures:
        with suppress(CaptureError):
            found |= {layout.digest: layout for layout in hdf5_files(capture).layouts.values()}
    return found
