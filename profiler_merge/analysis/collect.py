"""One pass over the operations of a capture, handed to the collectors that add them up."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol, TypeVar

from traces.layers import FileLayers, file_layers
from traces.measures.operation_rows import OperationRows, operation_rows
from traces.store.reader import Capture


class Collector(Protocol):
    """Takes the rows of a capture batch by batch, rank after rank, at all layers."""

    def add(self, rows: OperationRows) -> None:
        """Add rows of one rank, which continue its earlier ones."""


C = TypeVar("C", bound=Collector)


def collect(
    capture: Capture,
    begin: Callable[[FileLayers], C],
    *,
    without: Collection[str] = (),
    on_rows: Callable[[int], None] = lambda rows: None,
) -> C:
    """Feed the collector that `begin` makes with every row; `begin` gets the layers at which files count.

    `without`: columns among lane and step that the collector does not need; `on_rows` gets the number of rows of each
    batch. Raises: CaptureError when a part is damaged.
    """
    collector = begin(file_layers(capture))
    for rows in operation_rows(capture, without=without):
        collector.add(rows)
        on_rows(len(rows))
    return collector


def at_one_layer(rows: OperationRows, layers: FileLayers) -> OperationRows:
    """The rows that count towards totals: those of each file at its layer."""
    return rows.where(layers.counted(rows.api, rows.file_id)) if layers.overlap else rows
