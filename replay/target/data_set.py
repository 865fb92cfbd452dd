"""Determines the twin data set of a capture: files, sizes and places. Reads the capture, not the target.

A file has one of three roles:
* *read*: its contents are staged.
* *looked at*: it is opened, closed or stat'ed, but no byte is read, so a hole of its size is enough. A file that is
  only written but was stat'ed before, such as a continued log, existed before the job and is looked at.
* *created*: it is written, or given its name, before any read. The run makes it.
Files without operations are not part of the data set.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dxt_replay.replay.target.content import Content
from dxt_replay.replay.target.hdf5_layout import Hdf5Files, Hdf5Layout
from dxt_replay.replay.target.hdf5_twin import hdf5_bytes, hdf5_content
from dxt_replay.replay.target.manifest import CREATED_BY_RUN, Manifest, in_state
from dxt_replay.replay.target.path_columns import (
    TEXT,
    ancestors,
    ascending_order,
    booleans,
    joined,
    pieces,
    rows_in,
    same_texts,
    text_bytes,
)
from dxt_replay.replay.target.placement import OWN_ROOT_ID_CHARS, TWIN_ROOT, PathMap, Placements, place
from dxt_replay.traces.files import object_folders
from dxt_replay.traces.schema import APIS, FORMATS, OPS, READ, REFUSED, TRACED, WRITE, codes
from dxt_replay.traces.store.reader import Capture

DELETE, OPEN, RENAME, STAT = (OPS.index(op) for op in ("delete", "open", "rename", "stat"))

READ_ROLE, LOOKED_AT_ROLE, CREATED_ROLE = ROLES = ("read", "looked at", "created")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TwinFiles:
    """The files of a twin data set, one row each.

    `path`: text below the target. `size`: bytes. `role`: codes in `ROLES`.
    `data_bytes`: those that its accesses need; a real HDF5 file, with one of the `layouts` (by file id), is larger.
    `exact`: False where neither layout nor `data_bytes` was determined.
    `renamed`: the run gives it another name, under which its bytes count.
    `written`: the run writes into it, or gives it another name."""

    file_id: np.ndarray
    record_id: np.ndarray
    path: pa.LargeStringArray
    size: np.ndarray
    role: np.ndarray
    data_bytes: np.ndarray
    exact: np.ndarray
    renamed: np.ndarray
    written: np.ndarray
    layouts: Mapping[int, Hdf5Layout]

    def __len__(self) -> int:
        return len(self.path)

    @property
    def bytes(self) -> int:
        """Bytes of all files, which may be more than an int64 can hold."""
        return total(self.size)

    def has_role(self, role: str) -> np.ndarray:
        """bool[files]: which files have the role."""
        found: np.ndarray = self.role == ROLES.index(role)
        return found

    @property
    def is_plain(self) -> np.ndarray:
        """bool[files]: files of only noise, or holes; the others are real HDF5 files."""
        return ~np.isin(self.file_id, list(self.layouts))

    @property
    def layout(self) -> pa.StringArray:
        """The digest of the layout of each file, null for none."""
        if not self.layouts:
            return pa.nulls(len(self), pa.string())
        found = map(self.layouts.get, self.file_id.tolist())
        return pa.array([None if layout is None else layout.digest for layout in found], pa.string())

    def content(self, row: int) -> Content:
        """The content of the file in this row."""
        layout = self.layouts.get(int(self.file_id[row]))
        return hdf5_content(int(self.record_id[row]), int(self.size[row]), layout, int(self.data_bytes[row]))

    def chosen(self, mask: np.ndarray) -> TwinFiles:
        """The files of `mask`, bool[files]."""
        if mask.all():
            return self
        columns = ("file_id", "record_id", "size", "role", "data_bytes", "exact", "renamed", "written")
        return replace(
            self, path=self.path.filter(pa.array(mask)), **{name: getattr(self, name)[mask] for name in columns}
        )


def total(numbers: np.ndarray) -> int:
    """The sum of int64 numbers that are not negative, without overflow."""
    return (int((numbers >> 32).sum()) << 32) + int((numbers & 0xFFFFFFFF).sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class TwinDataSet:
    """The twin data set of one capture under one target.

    `identity` is equal for captures that need the same files; `placements` has one per row of the files table.
    `mapped`: path of each file that is read from a real data set, and the bytes that its accesses need.
    `plain_hdf5`: HDF5 files by file_id that are staged as plain bytes, with the reason."""

    identity: str
    files: TwinFiles
    mapped: tuple[tuple[bytes, int], ...]
    placements: Placements
    plain_hdf5: Mapping[int, str]


def _file_use(capture: Capture) -> tuple[np.ndarray, ...]:
    """How the op stream uses each file: bool[files] touched, read, written, created (the run makes it), renamed (it
    gets another name); int64[files] bytes needed.

    From the counts of each rank (`Capture.usage`). A read of any api counts, even if it returned no bytes. All but
    `touched` comes from the whole capture, even for a part of it, so that all parts share one twin.
    Raises: CaptureError when a part cannot be read."""
    count = capture.files.num_rows
    touched, read, written, deleted, renamed, new, looked_at = np.zeros((7, count), dtype=bool)
    end = np.zeros(count, dtype=np.int64)
    for rank in capture.whole.ranks:
        used = _moved(capture.whole, rank)
        file_id, op = used["file_id"].to_numpy(), codes(used, "op")
        moves, renames = (op == READ) | (op == WRITE), op == RENAME
        new_name = used["other_file_id"].to_numpy()[renames]
        looked_at[file_id[(op == STAT) & (codes(used, "origin") == TRACED)]] = True
        read[file_id[op == READ]] = True
        written[file_id[(op == WRITE) | renames]] = written[new_name] = True
        deleted[file_id[op == DELETE]] = True
        renamed[file_id[renames]] = new[new_name] = True
        np.maximum.at(end, file_id[moves], used["reach"].to_numpy()[moves])
    # Do not stage a file that the job renames or replaces before its first read.
    replaced, looked_at = (renamed | new) & read, looked_at & written & ~(read | renamed | new)
    if np.any(replaced | looked_at):
        first = _first_times(capture.whole, count)
        read &= ~(replaced & (np.minimum(first[WRITE], first[RENAME]) < first[READ]))
        looked_at &= first[STAT] < np.minimum(first[WRITE], first[OPEN])
    read |= deleted & ~written  # it must be there
    written |= deleted
    for rank in capture.ranks:
        used = _moved(capture, rank)
        touched[used["file_id"].to_numpy()] = True
        touched[used["other_file_id"].filter(pc.greater_equal(used["other_file_id"], 0)).to_numpy()] = True
    needed = np.maximum(capture.files["size"].to_numpy(), end)
    return touched, read, written, written & ~read & ~looked_at, renamed, needed


def _moved(capture: Capture, rank: int) -> pa.Table:
    """`capture.usage(rank)` without what an object store refused: no file has to be there for that."""
    used = capture.usage(rank)
    return used.filter(pc.not_equal(used["api"], APIS[REFUSED]))


def _first_times(capture: Capture, files: int) -> dict[int, np.ndarray]:
    """int64[files] for READ, WRITE, OPEN, STAT and RENAME: time of the first such operation of any rank on a file.

    In ns from the job's start; the largest int64 for none. RENAME: when another file is first renamed to it."""
    first = {kind: np.full(files, np.iinfo(np.int64).max) for kind in (READ, WRITE, OPEN, STAT, RENAME)}
    for rows in capture.operations(columns=["op", "api", "file_id", "other_file_id", "start_ns"]):
        batch = rows.filter(pc.not_equal(rows["api"], APIS[REFUSED]))
        op, file_id = codes(batch, "op"), batch.column("file_id").to_numpy()
        start_ns, new_name = batch.column("start_ns").to_numpy(), batch.column("other_file_id").fill_null(-1).to_numpy()
        for kind, times in first.items():
            mine = op == kind
            np.minimum.at(times, (new_name if kind == RENAME else file_id)[mine], start_ns[mine])
    return first


def twin_data_set(
    capture: Capture, base: bytes, maps: Sequence[PathMap], manifest: Manifest, hdf5: Hdf5Files | None = None
) -> TwinDataSet:
    """The data set as it is, or will be, in a target (`base`: `Target.base`), beside the files of `manifest`.

    A file that the manifest lists in the same size is shared. A file that differs, or whose place is taken by another
    file or directory, goes below a private root of this data set. `hdf5` None: any HDF5 file made for the same number
    of bytes is accepted. That is enough for requests past the library, and saves a pass over all requests."""
    touched, read, written, created, renamed, needed = _file_use(capture)
    placements = place(capture.files, base, maps, written=np.flatnonzero(written).tolist())
    real = booleans(placements.below.is_null())
    mapped = tuple((placements.path(each), int(needed[each])) for each in np.flatnonzero(touched & real).tolist())
    mask = touched & ~real & ~object_folders(capture.files)
    file_id, size = np.flatnonzero(mask), needed[mask]
    found = {} if hdf5 is None else hdf5.layouts
    layouts = {each: found[each] for each in file_id.tolist() if each in found} if found else {}
    whole = size.copy()
    for row in np.searchsorted(file_id, list(layouts)).tolist():
        whole[row] = hdf5_bytes(layouts[int(file_id[row])], int(size[row]))
    role = np.select([read[mask], created[mask]], [ROLES.index(READ_ROLE), ROLES.index(CREATED_ROLE)], 1)
    is_hdf5 = codes(capture.files, "format")[mask] == FORMATS.index("hdf5")
    files = TwinFiles(
        file_id=file_id.astype(np.int32),
        record_id=capture.files["record_id"].to_numpy()[mask],
        path=placements.below.filter(pa.array(mask)),
        size=whole,
        role=role.astype(np.int8),
        data_bytes=size,
        exact=~is_hdf5 | (role != ROLES.index(READ_ROLE)) | (hdf5 is not None),
        renamed=renamed[mask],
        written=written[mask],
        layouts=layouts,
    )
    identity = _identity(files)
    settled = _settle(files, f"{TWIN_ROOT}-{identity[:OWN_ROOT_ID_CHARS]}", manifest)
    if settled is not files:
        below = pc.replace_with_mask(placements.below, pa.array(mask), settled.path)
        placements = replace(placements, below=below)
    reasons = {} if hdf5 is None else hdf5.plain
    plain = {each: reasons[each] for each in file_id.tolist() if each in reasons} if reasons else {}
    return TwinDataSet(identity=identity, files=settled, mapped=mapped, placements=placements, plain_hdf5=plain)


def _identity(files: TwinFiles) -> str:
    """SHA-256 of a line a file: path, NUL, bytes, NUL, role; in the order of the paths."""
    digest = hashlib.sha256()
    order, ends = ascending_order(files.path), pa.array([f"\0{role}\n" for role in ROLES], TEXT)
    for rows in pieces(len(files)):
        some = order[rows]
        sizes, roles = pa.array(files.data_bytes[some]), pa.DictionaryArray.from_arrays(files.role[some], ends)
        data, bounds = text_bytes(joined(files.path.take(pa.array(some)), "\0", sizes, roles))
        digest.update(data[bounds[0] : bounds[-1]].data)
    return digest.hexdigest()


def _settle(files: TwinFiles, own_root: str, manifest: Manifest) -> TwinFiles:
    """The files, with their places. Files whose places are taken by other files of the manifest move below
    `own_root`."""
    if not len(manifest.files):
        return files
    listed = manifest.path
    rows = rows_in(files.path, listed)
    absent = rows < 0
    shared = fits(manifest, rows, files)
    if absent.any():
        directories = ancestors(files.path.filter(pa.array(absent)))
        below_files = directories.filter(pc.is_in(directories, value_set=listed)).to_pylist()
        for row in np.flatnonzero(absent).tolist() if below_files else ():
            shared[row] = not any(files.path[row].as_py().startswith(f"{each}/") for each in below_files)
        shared &= ~(absent & booleans(pc.is_in(files.path, value_set=ancestors(listed))))
    if shared.all():
        return files
    moved = pc.utf8_slice_codeunits(files.path.filter(pa.array(~shared)), len(TWIN_ROOT))
    return replace(files, path=pc.replace_with_mask(files.path, pa.array(~shared), joined(own_root, moved)))


def fits(manifest: Manifest, rows: np.ndarray, files: TwinFiles) -> np.ndarray:
    """bool[files]: whether the entry of each file can replace it: same contents, and both or neither made by the run.
    `rows`: rows of the entries, -1 for none, which fits."""
    if not len(manifest.files):
        return np.ones(len(files), dtype=bool)
    listed = manifest.files.drop_columns(["path"]).take(np.maximum(rows, 0))
    created, by_run = files.has_role(CREATED_ROLE), in_state(listed, CREATED_BY_RUN)
    needed = pa.array(files.data_bytes.astype(np.uint64))
    same_bytes = booleans(pc.equal(pc.coalesce(listed["data_bytes"], listed["size"]), needed))
    same = (listed["size"].to_numpy() == files.size.astype(np.uint64)) & same_texts(listed["layout"], files.layout)
    same = np.where(files.exact, same, same_bytes)
    found: np.ndarray = (rows < 0) | np.where(created | by_run, created & by_run, same)
    return found
