"""Work that is done for several things at once, as many as fit: cut into runs. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def few_together(
    items: Iterable[T], size: Callable[[T], int], most: int, *, fit: Callable[[T, T], bool] = lambda one, other: True
) -> Iterator[list[T]]:
    """The items in order, as runs with at most `most` together by `size`, or of a single larger one.

    `fit`: whether an item can be in one run with the next. Memory: one run.
    """
    run: list[T] = []
    total = 0
    for item in items:
        own = size(item)
        if run and (total + own > most or not fit(run[-1], item)):
            yield run
            run, total = [], 0
        run.append(item)
        total += own
    if run:
        yield run
