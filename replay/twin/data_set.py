"""What the twin data set of a capture is: which files, how large, where. Reads the capture, looks at no target.

A file is *read* (its contents are staged), *looked at* (opened, closed, stat'ed, but no byte read or written: a hole
of its size will do) or *created* (only written, or given its name, before it is read: the run makes it). Files without
operations are not part of it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow.compute as pc

from replay.hdf5.files import Hdf5Files
from replay.twin.content import Stager, stager_of
from replay.twin.hdf5_twin import Hdf5Stager
from replay.twin.manifest import CREATED_BY_RUN, Manifest, ManifestFile
from replay.twin.placement import OWN_ROOT_ID_CHARS, TWIN_ROOT, PathMap, Placement, place
from traces.schema import FORMATS, OPS, READ, WRITE, codes
from traces.store.reader import Capture

READ_ROLE = "read"
RENAME = OPS.index("rename")
LOOKED_AT_ROLE = "looked at"
CREATED_ROLE = "created"


@dataclass(frozen=True, slots=True, kw_only=True)
class TwinFile:
    """One file of the twin data set.

    `path`: text below the target. `size`: bytes. `role`: read, looked at or created. `stager`: makes the file.
    `layout`: digest of a real HDF5 file's layout; such a file is larger than the `data_bytes` that its accesses need.
    `exact`: False where neither `layout` nor `data_bytes` was determined.
    `renamed`: the run gives it another name, under which its bytes count.
    `written`: the run writes into it, or gives it another name.
    """

    file_id: int
    record_id: int
    path: str
    size: int
    format: str
    role: str
    data_bytes: int
    stager: Stager = field(compare=False, repr=False)
    layout: str | None = None
    exact: bool = True
    renamed: bool = False
    written: bool = False


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
    `plain_hdf5`: HDF5 files by file_id that are staged as plain bytes, with the reason.
    """

    identity: str
    files: tuple[TwinFile, ...]
    mapped: tuple[MappedFile, ...]
    placements: tuple[Placement, ...]
    plain_hdf5: Mapping[int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileUse:
    """How the op stream uses each file: bool[files] `touched`, `read`, `written`, `renamed` (it gets another name);
    int64[files] `size_bytes` needed."""

    touched: np.ndarray
    read: np.ndarray
    written: np.ndarray
    renamed: np.ndarray
    size_bytes: np.ndarray


def file_use(capture: Capture) -> FileUse:
    """From the counts of each rank (`Capture.usage`). A read of any api counts, also one that returned nothing.

    All but `touched` is taken from the whole capture, also where a part of it is replayed, so that all parts share one
    twin.

    Raises: CaptureError when a part cannot be read.
    """
    count = capture.files.num_rows
    touched, read, written, renamed, new = np.zeros((5, count), dtype=bool)
    end = np.zeros(count, dtype=np.int64)
    for rank in capture.whole.ranks:
        used = capture.whole.usage(rank)
        file_id, last = used["file_id"].to_numpy(), used["reach"].to_numpy()
        op = codes(used, "op")
        moves = (op == READ) | (op == WRITE)
        renames = op == RENAME
        new_name = used["other_file_id"].to_numpy()[renames]
        read[file_id[op == READ]] = True
        written[file_id[(op == WRITE) | renames]] = True
        written[new_name] = True
        renamed[file_id[renames]] = new[new_name] = True
        np.maximum.at(end, file_id[moves], last[moves])
    if np.any((renamed | new) & read):
        # It must not be staged: a run takes it away, or puts another in its place, before it is read.
        read &= ~_made_before_read(capture.whole, (renamed | new) & read)
    for rank in capture.ranks:
        used = capture.usage(rank)
        touched[used["file_id"].to_numpy()] = True
        touched[used["other_file_id"].filter(pc.greater_equal(used["other_file_id"], 0)).to_numpy()] = True
    size = capture.files["size"].to_numpy()
    return FileUse(touched=touched, read=read, written=written, renamed=renamed, size_bytes=np.maximum(size, end))


def _made_before_read(capture: Capture, files: np.ndarray) -> np.ndarray:
    """Those of `files` (bool by file_id) of which no rank reads before one writes them or renames a file to them."""
    first_read, first_made = np.full((2, len(files)), np.iinfo(np.int64).max)
    for batch in capture.operations(columns=["op", "file_id", "offset", "start_ns"]):
        op, file_id = codes(batch, "op"), batch.column("file_id").to_numpy()
        start_ns = batch.column("start_ns").to_numpy()
        for kind, file, first in (
            (READ, file_id, first_read),
            (WRITE, file_id, first_made),
            (RENAME, batch.column("offset").to_numpy(), first_made),
        ):
            mine = op == kind
            np.minimum.at(first, file[mine], start_ns[mine])
    made: np.ndarray = files & (first_made < first_read)
    return made


def twin_data_set(
    capture: Capture, target: Path, maps: Sequence[PathMap], manifest: Manifest, hdf5: Hdf5Files | None = None
) -> TwinDataSet:
    """The data set as it is, or is to be, under `target` (resolved), beside what `manifest` says is there.

    A file that the manifest lists in the same size is shared; one that differs, or that a file or directory there is
    in the way of, goes below a root of this data set's own. `hdf5` None: any HDF5 file that was made for as many bytes
    will do, as it does for requests past the library; to know the layouts costs a look at all requests.
    """
    use = file_use(capture)
    written = set(np.flatnonzero(use.written).tolist())
    placements = place(capture.files, target, maps, written=written)
    used = [placement for placement in placements if use.touched[placement.file_id]]
    mapped = tuple(
        MappedFile(file_id=p.file_id, path=p.path, size=int(use.size_bytes[p.file_id])) for p in used if p.mapped
    )
    base = os.fsencode(target / TWIN_ROOT).removesuffix(TWIN_ROOT.encode())
    ours = {p.file_id: p.path.removeprefix(base).decode("utf-8") for p in used if not p.mapped}
    files = list(_twin_files(capture, use, ours, hdf5))
    identity = _identity(files)
    settled = _settle(files, f"{TWIN_ROOT}-{identity[:OWN_ROOT_ID_CHARS]}", manifest)
    for file in settled:
        path = base + file.path.encode("utf-8")
        placements[file.file_id] = Placement(file_id=file.file_id, path=path, mapped=False)
    reasons = {} if hdf5 is None else hdf5.plain
    plain = {file.file_id: reasons[file.file_id] for file in settled if file.file_id in reasons}
    return TwinDataSet(identity=identity, files=settled, mapped=mapped, placements=tuple(placements), plain_hdf5=plain)


def _twin_files(capture: Capture, use: FileUse, paths: Mapping[int, str], hdf5: Hdf5Files | None) -> Iterator[TwinFile]:
    """The files of a twin; `paths`: below the target, by file id."""
    record_ids = capture.files["record_id"].to_numpy()
    formats = codes(capture.files, "format")
    for file_id, path in paths.items():
        size, name, role = int(use.size_bytes[file_id]), FORMATS[formats[file_id]], _role(use, file_id)
        layout = None if hdf5 is None else hdf5.layouts.get(file_id)
        chunks = None if layout is None else Hdf5Stager(layout=layout, data_bytes=size)
        yield TwinFile(
            file_id=file_id,
            record_id=int(record_ids[file_id]),
            path=path,
            size=size if chunks is None else chunks.file_bytes,
            format=name,
            role=role,
            data_bytes=size,
            layout=None if layout is None else layout.digest,
            exact=hdf5 is not None or name != "hdf5" or role != READ_ROLE,
            renamed=bool(use.renamed[file_id]),
            written=bool(use.written[file_id]),
            stager=stager_of(name) if chunks is None else chunks,
        )


def _role(use: FileUse, file_id: int) -> str:
    if use.read[file_id]:
        return READ_ROLE
    return CREATED_ROLE if use.written[file_id] else LOOKED_AT_ROLE


def _identity(files: Iterable[TwinFile]) -> str:
    lines = sorted(f"{file.path}\0{file.data_bytes}\0{file.role}\n" for file in files)
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
    """Whether a file of the manifest can stand for `file`: made by the run, both or neither, and the same contents."""
    if file.role == CREATED_ROLE or there.state == CREATED_BY_RUN:
        return file.role == CREATED_ROLE and there.state == CREATED_BY_RUN
    if file.exact:
        return (there.size, there.layout) == (file.size, file.layout)
    return (there.size if there.data_bytes is None else there.data_bytes) == file.data_bytes


def _directories(path: str) -> list[str]:
    names = path.split("/")
    return ["/".join(names[:depth]) for depth in range(1, len(names))]
