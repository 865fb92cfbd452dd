"""One pass over the operations of a capture, which feeds the collectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from dxt_replay.traces.layers import FileLayers, file_layers
from dxt_replay.traces.measures.operation_rows import OperationRows, rows_together
from dxt_replay.traces.store.part_capture import only_ranks, rank_pieces, work_of
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.sums import Sums
from dxt_replay.traces.workers import ALONE, Workers


class Collector(Sums):
    """Takes the rows of a piece of a capture batch by batch, at all layers: all rows of several small ranks at once, or
    rows of one rank that follow its earlier ones."""

    def add(self, rows: OperationRows) -> None:
        """Add rows."""
        raise NotImplementedError

    def end(self) -> None:
        """The last row of the piece was added."""


Begin = Callable[[Capture, FileLayers], Collector]
"""Makes a collector for some or all ranks of a capture, from the layers at which files count."""


def collect(capture: Capture, begins: Sequence[Begin], *, workers: Workers = ALONE) -> list[Any]:
    """The collectors that `begins` make, fed with every row; `begins` are pickled if several `workers` share the
    ranks."""
    layers = file_layers(capture)
    work = partial(_collected, capture, layers, begins)
    pieces = rank_pieces(capture, workers.piece_operations)
    if len(pieces) == 1:
        return work(None)
    whole = [begin(capture, layers) for begin in begins]
    with workers.results(work, pieces, operations=work_of(capture)) as results:
        for parts in results:
            for mine, part in zip(whole, parts, strict=True):
                mine.merge(part)
    return whole


def _collected(
    capture: Capture, layers: FileLayers, begins: Sequence[Begin], ranks: tuple[int, ...] | None
) -> list[Any]:
    part = capture if ranks is None else only_ranks(capture, ranks)
    collectors = [begin(part, layers) for begin in begins]
    for rows in rows_together(part, without=("lane", "step")):
        for collector in collectors:
            collector.add(rows)
    for collector in collectors:
        collector.end()
    return collectors


def at_one_layer(rows: OperationRows, layers: FileLayers) -> OperationRows:
    """The rows that count towards totals: those of each file's layer."""
    return rows.where(layers.counted(rows.api, rows.file_id)) if layers.overlap else rows
