"""A run of points of a row-major block as boxes: what a hyperslab can select."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

Box = tuple[tuple[int, ...], tuple[int, ...]]
"""First point and number of points along each dimension."""


def boxes_of(shape: Sequence[int], first: int, last: int) -> Iterator[Box]:
    """Boxes that hold the points `first` to `last` (exclusive) of a block, in order; as few as there can be.

    A run of whole rows, planes ... is one box; any other has at most two for each dimension but the slowest, and one.
    """
    if first >= last:
        return
    if len(shape) <= 1:
        yield ((first,), (last - first,)) if shape else ((), ())
        return
    inner = prod(shape[1:])
    row, rest = divmod(first, inner)
    end_row, end_rest = divmod(last, inner)
    if row == end_row:
        yield from _in_row(row, boxes_of(shape[1:], rest, end_rest))
        return
    if rest:
        yield from _in_row(row, boxes_of(shape[1:], rest, inner))
        row += 1
    if row < end_row:
        zeros = (0,) * (len(shape) - 1)
        yield (row, *zeros), (end_row - row, *shape[1:])
    yield from _in_row(end_row, boxes_of(shape[1:], 0, end_rest))


def _in_row(row: int, boxes: Iterator[Box]) -> Iterator[Box]:
    for start, count in boxes:
        yield (row, *start), (1, *count)
