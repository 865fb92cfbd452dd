"""Estimates the memory of a transformation, which grows with the operations of the largest rank. Pure."""

from __future__ import annotations

from dxt_replay.replay.transform.changes import Changes
from dxt_replay.replay.transform.read_data import DataSet
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.units import format_bytes, format_count

BYTES_PER_OPERATION = 700
"""Memory for each operation of a rank while it is changed or scheduled: at most what docs/scale.md has as measured."""


def largest_rank(capture: Capture, changes: Changes, data: DataSet) -> int:
    """Estimated operations of the largest rank, those of the capture and changed ones, which are in memory together."""
    counts = capture.index.row_counts(capture.ranks)
    made = 0
    if changes.transfer_bytes is not None:
        made += int(data.read_bytes[data.streams].sum()) // changes.transfer_bytes
    if changes.chunk_bytes is not None:
        made += int(data.read_bytes[list(data.chunk_bytes)].sum()) // changes.chunk_bytes
    total = max(int(counts.sum()), 1)
    largest = int(counts.max(initial=0))
    if changes.ranks is not None and not changes.weak:
        largest = max(largest, total // changes.ranks)
    return largest + largest * made // total


def check_memory(capture: Capture, changes: Changes, data: DataSet, available: int | None) -> None:
    """Raises: UsageError if the largest rank needs more than the bytes `available`. None: not known, nothing is
    checked."""
    operations = largest_rank(capture, changes, data)
    needed = operations * BYTES_PER_OPERATION
    if available is not None and needed > available:
        raise UsageError(
            f"a transformation holds one rank at a time in memory: some {format_bytes(needed)} for the "
            f"{format_count(operations)} operations of the largest rank of {capture.named}, and "
            f"{format_bytes(available)} are available. Use a machine with more memory, or change fewer ranks or steps "
            "with dxt_replay.part"
        )
