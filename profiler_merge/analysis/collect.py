"""One pass over the operations of a capture, which feeds the collectors."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from dxt_replay.traces.layers import FileLayers, file_layers
from dxt_replay.traces.measures.operation_rows import OperationRows, operation_rows, rows_together
from dxt_replay.traces.schema import RECONSTRUCTED
from dxt_replay.traces.store.part_capture import only_ranks, rank_pieces, work_of
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.sums import Sums
from dxt_replay.traces.workers import ALONE, Workers


class Collector(Sums):
    """Takes the rows of a capture batch by batch, rank after rank, at all layers.

    takes_several_ranks: whether it also takes all rows of several ranks at once (`OperationRows.ranks`), which is much
    faster for many small ranks.
    """

    takes_several_ranks = False

    def add(self, rows: OperationRows) -> None:
        """Add rows of one rank that follow its earlier ones."""
        raise NotImplementedError


class Together(Collector):
    """Base of several collectors, `parts`, which are fed in one pass."""

    STAY = ("parts",)
    takes_several_ranks = True
    parts: tuple[Collector, ...]

    def add(self, rows: OperationRows) -> None:
        """Hand rows to all collectors."""
        for part in self.parts:
            for some in (rows,) if part.takes_several_ranks else rows.each_rank():
                part.add(some)


C = TypeVar("C", bound=Collector)

Begin: TypeAlias = Callable[[Capture, FileLayers], C]
"""Makes a collector for some or all ranks of a capture, from the layers at which files count."""


def collect(
    capture: Capture,
    begin: Begin[C],
    *,
    without: Collection[str] = (),
    on_rows: Callable[[int], None] = lambda rows: None,
    workers: Workers = ALONE,
) -> C:
    """Feed a collector with every row.

    `begin`: is pickled if several `workers` share the ranks. `without`: columns among lane and step that the collector
    does not need; `on_rows` gets numbers of rows as they are done.
    """
    work = _Collected(capture=capture, layers=file_layers(capture), begin=begin, without=tuple(without))
    pieces = rank_pieces(capture, workers.piece_operations)
    if len(pieces) == 1:
        return work(None, on_rows)
    whole = begin(capture, work.layers)
    with workers.results(work, pieces, operations=work_of(capture)) as results:
        for ranks, part in zip(pieces, results, strict=True):
            whole.merge(part)
            on_rows(sum(map(capture.stored_rows, ranks)))
    return whole


@dataclass(frozen=True, slots=True, kw_only=True)
class _Collected(Generic[C]):
    """A collector fed with some ranks of a capture, or with all."""

    capture: Capture
    layers: FileLayers
    begin: Begin[C]
    without: tuple[str, ...]

    def __call__(self, ranks: tuple[int, ...] | None, on_rows: Callable[[int], None] = lambda rows: None) -> C:
        part = self.capture if ranks is None else only_ranks(self.capture, ranks)
        collector = self.begin(part, self.layers)
        stream = rows_together if collector.takes_several_ranks else operation_rows
        for rows in stream(part, without=self.without):
            collector.add(rows)
            on_rows(len(rows))
        return collector


def at_one_layer(rows: OperationRows, layers: FileLayers) -> OperationRows:
    """The rows that count towards totals: those of each file's layer."""
    return rows.where(layers.counted(rows.api, rows.file_id)) if layers.overlap else rows


def counted(rows: OperationRows, layers: FileLayers) -> OperationRows:
    """The traced reads and writes that count towards totals."""
    rows = at_one_layer(rows, layers)
    return rows.where(rows.data & (rows.origin != RECONSTRUCTED))
