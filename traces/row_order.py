"""Orders and groups rows, in time proportional to their number for rows as they come, and finds their steps. Pure.

Rows of a log are almost in order: those of each file are, one file after the other. Codes, ranks and lanes are small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from dxt_replay.traces.schema import NO_STEP
from dxt_replay.traces.stable_order import stable_order

T = TypeVar("T")
_MOST_KEYS = (1 << 63) - 1


class Distinct(NamedTuple):
    """As `np.unique` returns them: the values in ascending order, the first row of each, and each row's value."""

    values: np.ndarray
    first: np.ndarray
    inverse: np.ndarray


def order_by_start(start_ns: np.ndarray, then: Sequence[np.ndarray], rank: np.ndarray | None = None) -> np.ndarray:
    """int64 (n,): the stable order of rows by rank and start. `then`: further keys, the most significant first."""
    order = np.argsort(start_ns, kind="stable")  # timsort: a few runs in order take a few comparisons a row
    start = start_ns[order]
    same = start[1:] == start[:-1]
    if same.any():
        tied = np.flatnonzero(np.append(same, False) | np.append(False, same))
        rows = order[tied]
        order[tied] = rows[np.lexsort((*(key[rows] for key in reversed(then)), start[tied]))]
    if rank is not None and len(rank) and (rank != rank[0]).any():
        order = order[stable_order(rank[order])]
    return order


def distinct(values: np.ndarray) -> Distinct:
    """The distinct integers of an array (n,)."""
    if not len(values):
        return Distinct(values, np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))
    low, high = int(values.min()), int(values.max())
    if high - low < 2 * len(values):
        return _counted(values, low, high)
    begin = np.flatnonzero(np.append(True, values[1:] != values[:-1]))
    found, first, inverse = np.unique(values[begin], return_index=True, return_inverse=True)
    inverse = np.repeat(inverse.reshape(-1), np.diff(np.append(begin, len(values))))
    return Distinct(found, begin[first], inverse)


def _counted(values: np.ndarray, low: int, high: int) -> Distinct:
    """As `distinct`, by a table of all integers from `low` to `high`."""
    place = _above(values, low)
    first = np.full(high - low + 1, -1)
    first[place[::-1]] = np.arange(len(values) - 1, -1, -1)  # the last assignment, of the first row, stays
    found = first >= 0
    first_rows = first[found]
    return Distinct(values[first_rows], first_rows, (np.cumsum(found) - 1)[place])


def _above(values: np.ndarray, low: int) -> np.ndarray:
    """int64 differences to the least value, which must fit."""
    if values.dtype == np.uint64:
        return (values - np.uint64(low)).astype(np.int64)
    found: np.ndarray = values.astype(np.int64) - low
    return found


def distinct_rows(*columns: np.ndarray) -> Distinct:
    """The distinct rows of integer columns (n,). `values`: (m, columns), by the first column, then the next.

    The rows are those of `np.unique(np.stack(columns, axis=1), axis=0)`, which takes ten times as long.
    """
    key, keys = np.zeros(len(columns[0]), dtype=np.int64), 1
    for values in columns if len(key) else ():
        low, high = int(values.min()), int(values.max())
        if low == high:
            continue
        if keys * (high - low + 1) > _MOST_KEYS:  # as their ranks, which are below the number of rows, both fit
            key, values = distinct(key).inverse, distinct(values).inverse
            keys, low, high = int(key.max()) + 1, 0, int(values.max())
        key = key * (high - low + 1) + _above(values, low)
        keys *= high - low + 1
    _, first, inverse = distinct(key)
    return Distinct(np.stack([values[first] for values in columns], axis=1), first, inverse)


def few_together(items: Iterable[T], size: Callable[[T], int], most: int) -> Iterator[list[T]]:
    """The items in order, in groups of total `size` at most `most`; a larger item is a group of its own."""
    run: list[T] = []
    total = 0
    for item in items:
        own = size(item)
        if run and total + own > most:
            yield run
            run, total = [], 0
        run.append(item)
        total += own
    if run:
        yield run


def step_row_at(times: np.ndarray, begins: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """int64 (n,): row of the step [begin, end) that holds each time, -1 for none; steps ascend and are disjoint."""
    if not len(begins):
        return np.full(len(times), -1, dtype=np.int64)
    row = np.searchsorted(begins, times, side="right") - 1
    inside: np.ndarray = (row >= 0) & (times < ends[np.maximum(row, 0)])
    return np.where(inside, row, -1)


def step_at(times: np.ndarray, begins: np.ndarray, ends: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """int32 (n,): number of the step that holds each time, NO_STEP for none; steps are disjoint, in any order."""
    if not len(begins):
        return np.full(len(times), NO_STEP, dtype=np.int32)
    order = np.argsort(begins, kind="stable")
    row = step_row_at(times, begins[order], ends[order])
    return np.where(row >= 0, numbers[order][row], NO_STEP).astype(np.int32)
