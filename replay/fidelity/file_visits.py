"""Counts the requests of a capture for each file, with fingerprints of the requests and of their order.

A visit is the reads and writes between an open and its close. Processes and threads have other numbers in each run and
hand files on, so visits are compared and not lanes. If a trace holds no single opens (DXT), all requests of a rank for
a file are one visit.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from dxt_replay.traces.layers import FileLayers, file_layers
from dxt_replay.traces.measures._passes import mix_prints, operation_prints
from dxt_replay.traces.measures.operation_rows import OperationRows, operation_rows
from dxt_replay.traces.row_order import distinct_rows
from dxt_replay.traces.schema import OPS, READ, RECONSTRUCTED, WRITE, codes
from dxt_replay.traces.stable_order import places_in_groups, runs, stable_order
from dxt_replay.traces.store.reader import Capture

OPEN, CLOSE, SYNC = (OPS.index(name) for name in ("open", "close", "sync"))
COUNTS = ("opens", "reads", "bytes_read", "writes", "bytes_written", "syncs")
Request = tuple[int, int, int]
"""Operation (code), offset and length in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FileVisits:
    """Of each file, by number, over all ranks.

    counts: int64 (files, COUNTS). requests: uint64, a fingerprint of reads and writes with their places, in any order.
    order: uint64, of the set of its visits, each in its order.
    inferred: bool, only counters tell of some requests, which do not say where. shared: bool, several lanes of a rank
    use the file by turns and no opens say whose turn it is. sizes: (file group, operation, length in bytes) ->
    requests. ranks: a fingerprint of what each rank asks for.
    """

    counts: np.ndarray
    requests: np.ndarray
    order: np.ndarray
    inferred: np.ndarray
    shared: np.ndarray
    sizes: Counter[tuple[int, int, int]]
    ranks: Counter[int]


def traces_opens(capture: Capture, numbers: np.ndarray) -> bool:
    """Whether the opens of the numbered files were seen one by one, as strace sees them and DXT does not.

    Raises: CaptureError when a part is damaged.
    """
    origins: set[int] = set()
    for table in capture.usages():
        opens = (codes(table, "op") == OPEN) & (numbers[table["file_id"].to_numpy()] >= 0)
        origins.update(codes(table, "origin")[opens].tolist())
    return bool(origins) and RECONSTRUCTED not in origins


def file_visits(capture: Capture, numbers: np.ndarray, group: np.ndarray, *, by_open: bool) -> FileVisits:
    """Count a capture. Memory: the rows of one rank.

    numbers: int64 by file_id, the number of a file, -1 for one that does not count. group: int64 by number.
    by_open: whether visits begin with an open, else with the first request of a rank.
    Raises: CaptureError when a part is damaged.
    """
    files, layers = len(group), file_layers(capture)
    counts = np.zeros((files, len(COUNTS)), dtype=np.int64)
    requests, order = np.zeros((2, files), dtype=np.uint64)
    inferred, shared = np.zeros((2, files), dtype=bool)
    sizes: Counter[tuple[int, int, int]] = Counter()
    ranks: Counter[int] = Counter()
    for rank in capture.ranks:
        rows = _rank_rows(capture, rank, numbers, layers)
        _count(rows, counts)
        data, visit = _visits(rows, by_open=by_open)
        inferred[data.file_id[data.origin == RECONSTRUCTED]] = True
        shared |= _takes_turns(data, files) & (not by_open)
        of_rank = np.zeros(files, dtype=np.uint64)
        prints = operation_prints(data.op, data.offset, data.length)
        np.add.at(of_rank, data.file_id, prints)
        requests += of_rank
        ranks[_rank_print(of_rank)] += 1
        if len(data):
            first = runs(visit)
            place = places_in_groups(np.diff(first, append=len(visit))).astype(np.uint64)
            of_visit = np.add.reduceat(mix_prints(prints + mix_prints(place)), first)
            np.add.at(order, data.file_id[first], mix_prints(of_visit))
            found = distinct_rows(group[data.file_id], data.op, data.length)
            count = np.bincount(found.inverse)
            sizes.update(
                {(kind, op, size): n for (kind, op, size), n in zip(found.values.tolist(), count.tolist(), strict=True)}
            )
    return FileVisits(
        counts=counts, requests=requests, order=order, inferred=inferred, shared=shared, sizes=sizes, ranks=ranks
    )


def visits_of_file(capture: Capture, numbers: np.ndarray, file: int, *, by_open: bool) -> Counter[tuple[Request, ...]]:
    """The visits of one file, by number, and how often each is made. Raises: CaptureError when a part is damaged."""
    only, layers = np.where(numbers == file, file, -1), file_layers(capture)
    found: Counter[tuple[Request, ...]] = Counter()
    for rank in capture.ranks:
        data, visit = _visits(_rank_rows(capture, rank, only, layers), by_open=by_open)
        requests = list(zip(data.op.tolist(), data.offset.tolist(), data.length.tolist(), strict=True))
        if requests:
            borders = [*runs(visit).tolist(), len(visit)]
            found.update(tuple(requests[begin:end]) for begin, end in pairwise(borders))
    return found


def _rank_rows(capture: Capture, rank: int, numbers: np.ndarray, layers: FileLayers) -> OperationRows:
    """The rows of a rank on the numbered files, by file and then by start; `file_id` is the number of the file."""
    parts = []
    for rows in operation_rows(capture, [rank], without=("step",)):
        kept = rows.where((numbers[rows.file_id] >= 0) & layers.counted(rows.api, rows.file_id))
        parts.append(dataclasses.replace(kept, file_id=numbers[kept.file_id]))
    names = [field.name for field in dataclasses.fields(OperationRows) if field.name != "rank"]
    whole = {name: np.concatenate([getattr(part, name) for part in parts] or [np.empty(0, np.int64)]) for name in names}
    return _taken(OperationRows(rank=rank, **whole), stable_order(whole["file_id"]))


def _taken(rows: OperationRows, index: np.ndarray) -> OperationRows:
    """The rows of an index or a mask."""
    columns = {
        field.name: column[index] if len(column := getattr(rows, field.name)) else column
        for field in dataclasses.fields(OperationRows)
        if field.name != "rank"
    }
    return OperationRows(rank=rows.rank, **columns)


def _count(rows: OperationRows, counts: np.ndarray) -> None:
    """Add the COUNTS of each file."""
    for place, (op, moved) in enumerate(
        ((OPEN, False), (READ, False), (READ, True), (WRITE, False), (WRITE, True), (SYNC, False))
    ):
        mine = rows.op == op
        np.add.at(counts[:, place], rows.file_id[mine], rows.length[mine] if moved else 1)


def _visits(rows: OperationRows, *, by_open: bool) -> tuple[OperationRows, np.ndarray]:
    """The reads and writes, visit after visit, and the number of the visit of each."""
    if not len(rows):
        return rows, np.empty(0, dtype=np.int64)
    lane = np.zeros(len(rows), dtype=np.int64)
    if by_open:
        first = runs(rows.file_id)
        count = np.diff(first, append=len(rows))
        change = (rows.op == OPEN).astype(np.int64) - (rows.op == CLOSE)
        held = np.cumsum(change)
        held -= np.repeat(held[first] - change[first], count)
        # Threads may hand on a file that is open once. If it is open twice, the thread tells the visits apart.
        twice = np.maximum.reduceat(held, first) > 1
        lane = np.where(np.repeat(twice, count), rows.lane, 0)
        order = np.lexsort((lane, rows.file_id))
        rows, lane = _taken(rows, order), lane[order]
    begins = (np.diff(rows.file_id, prepend=-1) != 0) | (np.diff(lane, prepend=-1) != 0)
    if by_open:
        begins |= rows.op == OPEN
    return _taken(rows, rows.data), np.cumsum(begins)[rows.data]


def _takes_turns(data: OperationRows, files: int) -> np.ndarray:
    """bool (files,): a lane comes back to the file after another one has used it. `data`: by file."""
    if not len(data):
        return np.zeros(files, dtype=bool)
    key = data.file_id * (int(data.lane.max()) + 1) + data.lane
    turns = np.bincount(data.file_id[runs(key)], minlength=files)
    distinct = np.bincount(data.file_id[np.unique(key, return_index=True)[1]], minlength=files)
    return turns > distinct


def _rank_print(of_files: np.ndarray) -> int:
    used = np.flatnonzero(of_files)
    return int(mix_prints(of_files[used] + mix_prints(used.astype(np.uint64))).sum(dtype=np.uint64))
