"""The tables of a capture, all rows of them, held against the schema, the footers of their files and each other."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from dxt_replay.replay.verifying.checked import CheckedPart, Difference, in_threads
from dxt_replay.traces.errors import CaptureError
from dxt_replay.traces.schema import READ, WRITE, codes
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.store.usage import USAGE_SCHEMA, StoredUsage, UsageCounter
from dxt_replay.traces.text import printable
from dxt_replay.traces.units import format_counted

_ADDED_UP = {"operations": "sum", "least_length": "min", "reach": "max"}
_REPLAYED = ("operations", "read", "written")


@dataclass(slots=True, kw_only=True)
class _RankRows:
    """What one rank's rows came to. `replayed`: operations, bytes read and bytes written by a replay."""

    rows: int = 0
    replayed: np.ndarray = field(default_factory=lambda: np.zeros(len(_REPLAYED), dtype=np.int64))
    differences: list[Difference] = field(default_factory=list)
    counted_rows: int = 0
    counts_differ: bool = False


class _Counts(threading.local):
    """A reader of the stored counts for each thread: an open Parquet file and what was read last belong to one."""

    def __init__(self, capture: Capture) -> None:
        self.stored = StoredUsage(capture.path, capture.files.num_rows)


def content_parts(capture: Capture) -> list[CheckedPart]:
    """The rows of an opened capture: files, operations, counts, spans and datasets. Memory: a row group a thread."""
    files = CheckedPart(part="files", unit="row", checked=capture.files.num_rows)
    operations = CheckedPart(part="operations", unit="row")
    usage = CheckedPart(part="usage counts", unit="row")
    counts = _Counts(capture)
    uncounted = 0
    replayed = np.zeros(len(_REPLAYED), dtype=np.int64)
    for rank, found in zip(
        capture.ranks, in_threads(lambda rank: _rank_rows(capture, counts, rank), capture.ranks), strict=True
    ):
        operations.checked += found.rows
        operations.count(found.differences)
        replayed += found.replayed
        usage.checked += found.counted_rows
        uncounted += bool(found.rows and not found.counted_rows)
        if found.counts_differ:
            usage.differs("usage", f"counts of rank {rank}", "those of its operations", "others")
    if uncounted:
        usage.note = f"{format_counted(uncounted, 'rank')} without counts that can be read: a replay counts the rows"
    _check_replayed(capture, replayed, operations)
    return [files, operations, usage, _table(capture, "spans"), _table(capture, "hdf5")]


def _table(capture: Capture, name: str) -> CheckedPart:
    """A table that is read as a whole, which checks it."""
    part = CheckedPart(part=name, unit="row")
    try:
        part.checked = (capture.spans if name == "spans" else capture.hdf5).num_rows
    except CaptureError as error:
        part.differs(f"{name}.parquet", "contents", "rows as the schema describes them", printable(str(error)))
    return part


def _rank_rows(capture: Capture, stored_counts: _Counts, rank: int) -> _RankRows:
    found = _RankRows()
    counter = UsageCounter()
    try:
        for rows in _row_groups(capture, rank, found.differences):
            found.rows += rows.num_rows
            counter.add(rows)
            found.replayed += _replayed(rows)
    except CaptureError as error:
        text = printable(str(error))
        found.differences.append(
            Difference(file="ops", what=f"rank {rank}", expected="rows as the schema describes them", found=text)
        )
        return found
    counts = stored_counts.stored.of((rank,))
    if counts is not None:
        found.counted_rows = counts.num_rows
        found.counts_differ = not _sorted(counts).equals(_sorted(counter.table(rank)))
    return found


def _row_groups(capture: Capture, rank: int, differences: list[Difference]) -> Iterator[pa.Table]:
    """The row groups of a rank, each held against what the footer says of it, by which readers skip row groups."""
    batches = capture.operations(rank)
    for group in capture.row_groups(rank):
        parts: list[pa.RecordBatch] = []
        while sum(part.num_rows for part in parts) < group.rows:
            parts.append(next(batches))
        rows = pa.Table.from_batches(parts)
        start, end = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
        for name, said, is_so in (
            ("first start_ns", group.first_ns, int(start[0])),
            ("last start_ns", group.last_start_ns, int(start[-1])),
            ("last end_ns", group.last_end_ns, int(end.max())),
        ):
            if said is not None and said != is_so:
                file = group.part.relative_to(capture.path).as_posix()
                what = f"{name} in the footer of row group {group.index}"
                differences.append(Difference(file=file, what=what, expected=str(is_so), found=str(said)))
        yield rows


def _replayed(rows: pa.Table) -> np.ndarray:
    """int64 (3,): operations with a result, bytes read, bytes written."""
    result = np.maximum(rows["result"].fill_null(0).to_numpy(), 0)
    op = codes(rows, "op")
    known = rows.num_rows - rows["result"].null_count
    return np.array([known, result[op == READ].sum(), result[op == WRITE].sum()], dtype=np.int64)


def _check_replayed(capture: Capture, replayed: np.ndarray, part: CheckedPart) -> None:
    """Hold the rows of a replay against the totals that the replay printed."""
    result = capture.info.made_by.get("result")
    if not isinstance(result, dict) or not result:
        return
    totals = result.get("bytes")
    moved = totals if isinstance(totals, dict) else {}
    said = {"operations": result.get("operations"), **{name: moved.get(name) for name in ("read", "written")}}
    for name, found in zip(_REPLAYED, replayed.tolist(), strict=True):
        if isinstance(said[name], int) and said[name] != found:
            what = name if name == "operations" else f"bytes {name}"
            part.differs("ops", f"{what} of the replay", said[name], found)


def _sorted(counts: pa.Table) -> pa.Table:
    """Counts as plain columns in one order; those of one key, which several parts may hold, are added up."""
    plain = pa.table(
        {
            name: counts[name].cast(pa.string()) if pa.types.is_dictionary(counts[name].type) else counts[name]
            for name in USAGE_SCHEMA.names
        }
    )
    keys = [name for name in USAGE_SCHEMA.names if name not in _ADDED_UP]
    found = plain.group_by(keys, use_threads=False).aggregate(list(_ADDED_UP.items()))
    return found.select(sorted(found.column_names)).sort_by([(name, "ascending") for name in keys]).combine_chunks()
