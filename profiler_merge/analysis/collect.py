"""One pass over the operations of a capture, which feeds the collectors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from dxt_replay.traces.layers import FileLayers, file_layers
from dxt_replay.traces.measures.operation_rows import OperationRows, rows_together
from dxt_replay.traces.store.part_capture import only_ranks, rank_pieces, work_of
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.sums import Sums
from dxt_replay.traces.workers import ALONE, Workers


class Collector(Sums):
    """Takes the rows of a capture batch by batch, at all layers: all rows of several small ranks at once, or rows of
    one rank that follow its earlier ones."""

    def add(self, rows: OperationRows) -> None:
        """Add rows."""
        raise NotImplementedError


class Together(Collector):
    """Base of several collectors, `parts`, which are fed in one pass."""

    STAY = ("parts",)
    parts: tuple[Collector, ...]

    def add(self, rows: OperationRows) -> None:
        for part in self.parts:
            part.add(rows)


C = TypeVar("C", bound=Collector)


def collect(capture: Capture, begin: Callable[[Capture, FileLayers], C], *, workers: Workers = ALONE) -> C:
    """Feed a collector with every row.

    `begin`: makes a collector for some or all ranks of a capture, from the layers at which files count; it is pickled
    if several `workers` share the ranks.
    """
    layers = file_layers(capture)
    work = partial(_collected, capture, layers, begin)
    pieces = rank_pieces(capture, workers.piece_operations)
    if len(pieces) == 1:
        return work(None)
    whole = begin(capture, layers)
    with workers.results(work, pieces, operations=work_of(capture)) as results:
        for part in results:
            whole.merge(part)
    return whole


def _collected(
    capture: Capture, layers: FileLayers, begin: Callable[[Capture, FileLayers], C], ranks: tuple[int, ...] | None
) -> C:
    part = capture if ranks is None else only_ranks(capture, ranks)
    collector = begin(part, layers)
    for rows in rows_together(part, without=("lane", "step")):
        collector.add(rows)
    return collector


def at_one_layer(rows: OperationRows, layers: FileLayers) -> OperationRows:
    """The rows that count towards totals: those of each file's layer."""
    return rows.where(layers.counted(rows.api, rows.file_id)) if layers.overlap else rows
