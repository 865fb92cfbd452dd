"""Which operations an analysis counts: those that the filters let through, and one layer per file.

A read through MPI-IO or HDF5 appears again as the POSIX reads that carried it out; adding both counts its bytes twice.
stdio does not: Darshan does not see the calls that libc makes inside fread (measured in its logs: disjoint bytes).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from profiler_merge.analysis.filters import EVERYTHING, Filters
from traces.measures.operation_rows import OperationRows, operation_rows
from traces.schema import APIS, TRACED
from traces.store.reader import Capture

_POSIX = APIS.index("POSIX")
_HDF5 = APIS.index("HDF5")
_MPIIO = [APIS.index("MPIIO"), APIS.index("MPIIO_COLL")]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Selection:
    """`files`: mask (files,) of those looked at; `layers`: mask (files, apis) of the rows that totals count, None
    for all of them; `ops` and `apis`: masks by code, None for all; `filters`: the rest of the conditions."""

    files: np.ndarray
    layers: np.ndarray | None
    filters: Filters = EVERYTHING
    ops: np.ndarray | None = None
    apis: np.ndarray | None = None

    def selected(self, rows: OperationRows) -> OperationRows:
        """Rows that the filters let through, at all layers."""
        if not self.filters.by_operation:
            return rows if self.files.all() else rows.where(self.files[rows.file_id])
        return rows.where(self._mask(rows))

    def _mask(self, rows: OperationRows) -> np.ndarray:
        mask: np.ndarray = self.files[rows.file_id]
        filters = self.filters
        if filters.ranks and rows.rank not in filters.ranks:
            return np.zeros(len(rows), dtype=bool)
        if self.ops is not None:
            mask &= self.ops[rows.op]
        if self.apis is not None:
            mask &= self.apis[rows.api]
        if filters.from_ns is not None:
            mask &= rows.start_ns >= filters.from_ns
        if filters.until_ns is not None:
            mask &= rows.start_ns < filters.until_ns
        if filters.steps is not None:
            mask &= (rows.step >= filters.steps[0]) & (rows.step <= filters.steps[1])
        return mask

    def counted(self, rows: OperationRows) -> OperationRows:
        """Those of `selected` rows that count towards totals."""
        return rows if self.layers is None else rows.where(self.layers[rows.file_id, rows.api])

    def ranks(self, capture: Capture) -> tuple[int, ...]:
        """Ranks of the capture that are looked at."""
        wanted = self.filters.ranks
        return tuple(rank for rank in capture.ranks if not wanted or rank in wanted)

    def needed(self, without: Collection[str]) -> Collection[str]:
        """`without`, but for the columns that the filters need."""
        return [name for name in without if name != "step" or self.filters.steps is None]


def select(capture: Capture, filters: Filters = EVERYTHING) -> Selection:
    """What `filters` let through, at all layers. Counts twice where `above_posix` holds for any batch."""
    everything = np.ones(capture.files.num_rows, dtype=bool)
    return Selection(
        files=filters.files_mask(capture.paths()) if filters.by_path else everything,
        layers=None,
        filters=filters,
        ops=filters.ops_mask(),
        apis=filters.apis_mask(),
    )


def select_layers(capture: Capture, selection: Selection) -> Selection:
    """The same rows, each file's at one layer. Costs a pass over the op stream, which few captures need.

    Raises: CaptureError when a part is damaged.
    """
    recorded = _recorded_layers(capture, selection)
    layers = np.ones((len(selection.files), len(APIS)), dtype=bool)
    layers[recorded[:, _POSIX], _HDF5] = False
    layers[recorded[:, _MPIIO].any(axis=1), _HDF5] = False
    for api in _MPIIO:
        layers[recorded[:, _POSIX], api] = False
    return dataclasses.replace(selection, layers=layers)


def above_posix(rows: OperationRows) -> bool:
    """Whether any row was recorded at a layer that has others below it."""
    if not rows.api.any():
        return False
    return bool(np.bincount(rows.api, minlength=len(APIS))[[*_MPIIO, _HDF5]].any())


class Collector(Protocol):
    """Takes the selected rows batch by batch, rank after rank, at all layers."""

    def add(self, rows: OperationRows) -> None:
        """Add rows of one rank, which continue its earlier ones."""


C = TypeVar("C", bound=Collector)


def collect(
    capture: Capture,
    filters: Filters,
    begin: Callable[[Selection], C],
    *,
    without: Collection[str] = (),
    on_rows: Callable[[int], None] = lambda rows: None,
) -> C:
    """Feed the collector that `begin` makes with every selected row, in one pass; begun anew where layers overlap.

    `without`: columns among lane and step that it does not need; `on_rows` is told how many rows each batch had.
    Raises: CaptureError when a part is damaged.
    """
    selection = select(capture, filters)
    collector = begin(selection)
    if not _feed(capture, selection, collector, without, on_rows):
        selection = select_layers(capture, selection)
        collector = begin(selection)
        _feed(capture, selection, collector, without, on_rows)
    return collector


def _feed(
    capture: Capture,
    selection: Selection,
    collector: Collector,
    without: Collection[str],
    on_rows: Callable[[int], None],
) -> bool:
    """False, and no more than begun, when layers overlap and none were selected."""
    for rows in operation_rows(capture, selection.ranks(capture), without=selection.needed(without)):
        selected = selection.selected(rows)
        if selection.layers is None and above_posix(selected):
            return False
        if len(selected):
            collector.add(selected)
        on_rows(len(rows))
    return True


def _recorded_layers(capture: Capture, selection: Selection) -> np.ndarray:
    """Mask (files, apis): at which layers the selected reads and writes of a file were traced, by any rank."""
    recorded = np.zeros((capture.files.num_rows, len(APIS)), dtype=bool)
    for rows in operation_rows(capture, without=("lane", "step")):
        traced = rows.where(rows.data & (rows.origin == TRACED))
        if selection.apis is not None:
            traced = traced.where(selection.apis[traced.api])
        recorded[traced.file_id, traced.api] = True
    return recorded
