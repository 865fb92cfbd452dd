"""Group consecutive items until their sizes exceed a limit. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


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
