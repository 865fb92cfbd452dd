"""The files of a twin data set as columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from dxt_replay.replay.hdf5.layout import Hdf5Layout
from dxt_replay.replay.target.content import Content
from dxt_replay.replay.target.hdf5_content import file_content

READ_ROLE = "read"
LOOKED_AT_ROLE = "looked at"
CREATED_ROLE = "created"
ROLES = (READ_ROLE, LOOKED_AT_ROLE, CREATED_ROLE)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TwinFiles:
    """The files of a twin data set, one row each.

    `path`: text below the target. `size`: bytes. `role`: codes in `ROLES`.
    `data_bytes`: those that its accesses need; a real HDF5 file, with one of the `layouts` (by file id), is larger.
    `exact`: False where neither layout nor `data_bytes` was determined.
    `renamed`: the run gives it another name, under which its bytes count.
    `written`: the run writes into it, or gives it another name.
    """

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
        if not self.layouts:
            return np.ones(len(self), dtype=bool)
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
        return file_content(int(self.record_id[row]), int(self.size[row]), layout, int(self.data_bytes[row]))

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
