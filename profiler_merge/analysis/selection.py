"""Which operations a summary counts: files the user did not exclude, and one layer per file.

A read through MPI-IO or HDF5 appears again as the POSIX reads that carried it out; adding both counts its bytes twice.
stdio does not: Darshan does not see the calls that libc makes inside fread (measured in its logs: disjoint bytes).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np

from traces.operation_rows import OperationRows, operation_rows
from traces.ops import APIS, TRACED
from traces.store import Capture

_POSIX = APIS.index("POSIX")
_HDF5 = APIS.index("HDF5")
_MPIIO = [APIS.index("MPIIO"), APIS.index("MPIIO_COLL")]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Selection:
    """`files`: mask (files,) of those not excluded; `layers`: mask (files, apis) of the rows that totals count, None
    for all of them."""

    files: np.ndarray
    layers: np.ndarray | None

    def selected(self, rows: OperationRows) -> OperationRows:
        """Rows of files that are not excluded, at all layers."""
        return rows if self.files.all() else rows.where(self.files[rows.file_id])

    def counted(self, rows: OperationRows) -> OperationRows:
        """Those of `selected` rows that count towards totals."""
        return rows if self.layers is None else rows.where(self.layers[rows.file_id, rows.api])


def select_files(capture: Capture, exclude: Sequence[str] = ()) -> Selection:
    """All layers of the files whose path matches none of the shell patterns `exclude` (`*` matches `/`).

    Counts twice where `above_posix` holds for any batch.
    """
    kept = [not any(fnmatchcase(path, glob) for glob in exclude) for path in capture.paths()]
    return Selection(files=np.array(kept, dtype=bool), layers=None)


def select_layers(capture: Capture, selection: Selection) -> Selection:
    """The same files, each at one layer. Costs a pass over the op stream, which few captures need.

    Raises: CaptureError when a part is damaged.
    """
    recorded = _recorded_layers(capture)
    layers = np.ones((len(selection.files), len(APIS)), dtype=bool)
    layers[recorded[:, _POSIX], _HDF5] = False
    layers[recorded[:, _MPIIO].any(axis=1), _HDF5] = False
    for api in _MPIIO:
        layers[recorded[:, _POSIX], api] = False
    return Selection(files=selection.files, layers=layers)


def above_posix(rows: OperationRows) -> bool:
    """Whether any row was recorded at a layer that has others below it."""
    if not rows.api.any():
        return False
    return bool(np.bincount(rows.api, minlength=len(APIS))[[*_MPIIO, _HDF5]].any())


def _recorded_layers(capture: Capture) -> np.ndarray:
    """Mask (files, apis): at which layers the reads and writes of a file were traced, by any rank."""
    recorded = np.zeros((capture.files.num_rows, len(APIS)), dtype=bool)
    for rows in operation_rows(capture, without=("lane", "step")):
        traced = rows.where(rows.data & (rows.origin == TRACED))
        recorded[traced.file_id, traced.api] = True
    return recorded
