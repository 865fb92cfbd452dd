"""What the twin data set of a capture is: which files, how large, where. Reads the capture, looks at no target.

A file is *read* (its contents are staged), *looked at* (opened, closed, stat'ed, but no byte read or written: a hole
of its size will do) or *created* (only written: the run makes it). Files without operations are no part of it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from replay.manifest import CREATED_BY_RUN, Manifest, ManifestFile
from replay.placement import OWN_ROOT_ID_CHARS, TWIN_ROOT, PathMap, Placement, place
from traces.errors import CaptureError
from traces.ops import FORMATS, READ, WRITE, codes
from traces.store import Capture

READ_ROLE = "read"
LOOKED_AT_ROLE = "looked at"
CREATED_ROLE = "created"


@dataclass(frozen=True, slots=True, kw_only=True)
class TwinFile:
    """One file of the twin data set. `path` is text below the target; `size` in bytes; `role` one of the three."""

    file_id: int
    record_id: int
    path: str
    size: int
    format: str
    role: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MappedFile:
    """A file read from a real data set; `size` is what the accesses need."""

    file_id: int
    path: bytes
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TwinDataSet:
    """The twin data set of one capture under one target.

    `identity` is equal for captures that need the same files; `placements` has one per row of the files table.
    """

    identity: str
    files: tuple[TwinFile, ...]
    mapped: tuple[MappedFile, ...]
    placements: tuple[Placement, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileUse:
    """How the op stream uses each file: bool[files] `touched`, `read`, `written`; int64[files] `size_bytes` needed."""

    touched: np.ndarray
    read: np.ndarray
    written: np.ndarray
    size_bytes: np.ndarray


def file_use(capture: Capture) -> FileUse:
    """Scan the op stream, a row group at a time. A read of any api counts, also one that returned nothing.

    Raises: CaptureError when operations and files do not fit together.
    """
    count = capture.files.num_rows
    seen = np.zeros((3, count), dtype=bool)
    touched, read, written = seen
    end = np.zeros(count, dtype=np.int64)
    for batch in capture.operations(columns=["op", "file_id", "offset", "length"]):
        file_id = batch.column("file_id").to_numpy()
        offset = batch.column("offset").to_numpy()
        length = batch.column("length").to_numpy()
        last = np.maximum(offset, 0) + length  # offset -1: not known
        if len(file_id) and (file_id.min() < 0 or file_id.max() >= count):
            raise CaptureError(f"{capture.path}: operations name a file that files.parquet lacks: merge again")
        if np.any(length < 0) or np.any(last < length):
            raise CaptureError(f"{capture.path}: an operation has an impossible offset or length: merge again")
        op = codes(batch, "op")
        moves = (op == READ) | (op == WRITE)
        touched[file_id] = True
        read[file_id[op == READ]] = True
        written[file_id[op == WRITE]] = True
        np.maximum.at(end, file_id[moves], last[moves])
    size = capture.files["size"].to_numpy()
    if np.any(size < 0):
        raise CaptureError(f"{capture.path}: a file has a negative size: merge again")
    return FileUse(touched=touched, read=read, written=written, size_bytes=np.maximum(size, end))


def twin_data_set(capture: Capture, target: Path, maps: Sequence[PathMap], manifest: Manifest) -> TwinDataSet:
    """The data set as it is, or is to be, under `target` (resolved), beside what `manifest` says is there.

    A file that the manifest lists in the same size is shared; one that differs, or that a file or directory there is
    in the way of, goes below a root of this data set's own.
    """
    use = file_use(capture)
    written = set(np.flatnonzero(use.written).tolist())
    placements = place(capture.files, target, maps, written=written)
    used = [placement for placement in placements if use.touched[placement.file_id]]
    mapped = tuple(
        MappedFile(file_id=p.file_id, path=p.path, size=int(use.size_bytes[p.file_id])) for p in used if p.mapped
    )
    base = os.fsencode(target / TWIN_ROOT).removesuffix(TWIN_ROOT.encode())
    record_ids = capture.files["record_id"].to_numpy()
    formats = codes(capture.files, "format")
    files = [
        TwinFile(
            file_id=p.file_id,
            record_id=int(record_ids[p.file_id]),
            path=p.path.removeprefix(base).decode("utf-8"),
            size=int(use.size_bytes[p.file_id]),
            format=FORMATS[formats[p.file_id]],
            role=_role(use, p.file_id),
        )
        for p in used
        if not p.mapped
    ]
    identity = _identity(files)
    settled = _settle(files, f"{TWIN_ROOT}-{identity[:OWN_ROOT_ID_CHARS]}", manifest)
    for file in settled:
        path = base + file.path.encode("utf-8")
        placements[file.file_id] = Placement(file_id=file.file_id, path=path, mapped=False)
    return TwinDataSet(identity=identity, files=settled, mapped=mapped, placements=tuple(placements))


def _role(use: FileUse, file_id: int) -> str:
    if use.read[file_id]:
        return READ_ROLE
    return CREATED_ROLE if use.written[file_id] else LOOKED_AT_ROLE


def _identity(files: Iterable[TwinFile]) -> str:
    lines = sorted(f"{file.path}\0{file.size}\0{file.role}\n" for file in files)
    return hashlib.sha256("".join(lines).encode("utf-8")).hexdigest()


def _settle(files: Sequence[TwinFile], own_root: str, manifest: Manifest) -> tuple[TwinFile, ...]:
    directories = {above for path in manifest.files for above in _directories(path)}
    settled = []
    for file in files:
        there = manifest.files.get(file.path)
        if there is not None:
            shared = fits(there, file)
        else:
            shared = file.path not in directories and not any(
                above in manifest.files for above in _directories(file.path)
            )
        settled.append(file if shared else replace(file, path=own_root + file.path[len(TWIN_ROOT) :]))
    return tuple(settled)


def fits(there: ManifestFile, file: TwinFile) -> bool:
    """Whether a file of the manifest can stand for `file`: made by the run, both or neither, and of one size."""
    if file.role == CREATED_ROLE or there.state == CREATED_BY_RUN:
        return file.role == CREATED_ROLE and there.state == CREATED_BY_RUN
    return there.size == file.size


def _directories(path: str) -> list[str]:
    names = path.split("/")
    return ["/".join(names[:depth]) for depth in range(1, len(names))]
