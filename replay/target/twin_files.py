"""The files of a twin data set as columns, and one of them as a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import overload

import numpy as np
import pyarrow as pa

from dxt_replay.replay.target.content import Stager, stager_of
from dxt_replay.replay.target.hdf5_twin import Hdf5Stager
from dxt_replay.traces.schema import FORMATS

READ_ROLE = "read"
LOOKED_AT_ROLE = "looked at"
CREATED_ROLE = "created"
ROLES = (READ_ROLE, LOOKED_AT_ROLE, CREATED_ROLE)


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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TwinFiles(Sequence[TwinFile]):
    """The files of a twin data set, one row each, made when it is asked for.

    Columns as in `TwinFile`, all as long as `path`. `format` and `role`: codes in `FORMATS` and `ROLES`.
    `hdf5`: stagers of the files that become real HDF5 files, by file id.
    """

    file_id: np.ndarray
    record_id: np.ndarray
    path: pa.LargeStringArray
    size: np.ndarray
    format: np.ndarray
    role: np.ndarray
    data_bytes: np.ndarray
    exact: np.ndarray
    renamed: np.ndarray
    written: np.ndarray
    hdf5: Mapping[int, Hdf5Stager]

    def __len__(self) -> int:
        return len(self.path)

    @overload
    def __getitem__(self, index: int) -> TwinFile: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[TwinFile]: ...
    def __getitem__(self, index: int | slice) -> TwinFile | Sequence[TwinFile]:
        if isinstance(index, slice):
            return [self[row] for row in range(*index.indices(len(self)))]
        row = range(len(self))[index]
        file_id, name = int(self.file_id[row]), FORMATS[self.format[row]]
        chunks = self.hdf5.get(file_id)
        return TwinFile(
            file_id=file_id,
            record_id=int(self.record_id[row]),
            path=self.path[row].as_py(),
            size=int(self.size[row]),
            format=name,
            role=ROLES[self.role[row]],
            data_bytes=int(self.data_bytes[row]),
            stager=stager_of(name) if chunks is None else chunks,
            layout=None if chunks is None else chunks.layout.digest,
            exact=bool(self.exact[row]),
            renamed=bool(self.renamed[row]),
            written=bool(self.written[row]),
        )

    @property
    def bytes(self) -> int:
        """Bytes of all files, which may be more than an int64 can hold."""
        return total(self.size)

    def has_role(self, role: str) -> np.ndarray:
        """bool[files]: which files have the role."""
        found: np.ndarray = self.role == ROLES.index(role)
        return found

    def made_by(self, attribute: str) -> np.ndarray:
        """bool[files]: an attribute of the stager of each file."""
        of_format = np.array([getattr(stager_of(name), attribute) for name in FORMATS], dtype=bool)
        found: np.ndarray = of_format[self.format]
        for row in np.flatnonzero(np.isin(self.file_id, list(self.hdf5))).tolist() if self.hdf5 else ():
            found[row] = getattr(self.hdf5[int(self.file_id[row])], attribute)
        return found

    def layouts(self) -> pa.StringArray:
        """The digest of the layout of each file, null where it has none."""
        if not self.hdf5:
            return pa.nulls(len(self), pa.string())
        found = (self.hdf5.get(file_id) for file_id in self.file_id.tolist())
        return pa.array([None if stager is None else stager.layout.digest for stager in found], pa.string())

    def chosen(self, mask: np.ndarray) -> TwinFiles:
        """The files of `mask`, bool[files]."""
        if mask.all():
            return self
        columns = ("file_id", "record_id", "size", "format", "role", "data_bytes", "exact", "renamed", "written")
        return replace(
            self, path=self.path.filter(pa.array(mask)), **{name: getattr(self, name)[mask] for name in columns}
        )


def total(numbers: np.ndarray) -> int:
    """The sum of int64 numbers that are not negative, whatever it is."""
    return (int((numbers >> 32).sum()) << 32) + int((numbers & 0xFFFFFFFF).sum())
