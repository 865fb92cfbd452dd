"""What the page caches of the nodes hold: the specification of the cache in the simulated storage. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from replay.simulation.storage_model import PageCache

PAGE_BYTES = 4096
"""Bytes of a page: a read fetches whole ones."""

LEAST_ENTRIES = 64
"""In how many pieces a full cache is remembered at least, by the order in which they entered it."""


def first_window(request: int, most: int) -> int:
    """The first window of a row of reads, as Linux has it (mm/readahead.c, get_init_ra_size); bytes."""
    size = PAGE_BYTES
    while size < request:
        size *= 2
    if size <= most // 32:
        return 4 * size
    return 2 * size if size <= most // 4 else most


def next_window(window: int, most: int) -> int:
    """The window after another one (get_next_ra_size); bytes."""
    if window < most // 16:
        return 4 * window
    return 2 * window if window <= most // 2 else most


@dataclass(slots=True)
class _Extent:
    """Bytes `first` to `until` of a file, which are there from `ready` on, ns."""

    first: int
    until: int
    ready: float


@dataclass(slots=True)
class _Node:
    held: int = 0
    dirty: int = 0
    entered: deque[tuple[int, int, int]] = field(default_factory=deque)


@dataclass(slots=True)
class _Stream:
    """How a rank reads a file.

    next: its latest byte. window: the latest that was fetched, 0 outside of a sequential row of reads. ahead: its end.
    marker: the reader who passes it makes the next window be fetched.
    """

    next: int = 0
    window: int = 0
    ahead: int = 0
    marker: int = 0


class CachedFiles:
    """The caches of so many nodes."""

    def __init__(self, model: PageCache, nodes: int) -> None:
        self.model = model
        self._nodes = [_Node() for _ in range(nodes)]
        self._files: dict[tuple[int, int], list[_Extent]] = {}
        self._dirty: dict[tuple[int, int], int] = {}
        self._streams: dict[tuple[int, int], _Stream] = {}

    def ready(self, node: int, file: int, first: int, until: int) -> float:
        """When what is held of a range is there; 0 where nothing is held."""
        extents = self._files.get((node, file), [])
        return max((each.ready for each in extents if each.until > first and each.first < until), default=0.0)

    def missing(self, node: int, file: int, first: int, until: int) -> tuple[int, int] | None:
        """The first part of a range that is not held; None where all is."""
        for extent in self._files.get((node, file), []):
            if extent.until <= first:
                continue
            if extent.first > first:
                return (first, min(until, extent.first)) if first < until else None
            first = extent.until
        return (first, until) if first < until else None

    def insert(self, node: int, file: int, first: int, until: int, ready: float, now: int) -> None:
        """Hold a range that is there from `ready` on. What of it was held already stays as it is."""
        while (gap := self.missing(node, file, first, until)) is not None:
            self._hold(node, file, _Extent(*gap, ready), now)
            first = gap[1]
        cache = self._nodes[node]
        while cache.held > self.model.size:
            self._drop(node, *cache.entered.popleft())

    def _hold(self, node: int, file: int, new: _Extent, now: int) -> None:
        """A range of which nothing is held yet; neighbours that are all there become one."""
        extents = self._files.setdefault((node, file), [])
        cache = self._nodes[node]
        cache.held += new.until - new.first
        latest = cache.entered[-1] if cache.entered else None
        together = (
            latest is not None
            and latest[0] == file
            and latest[2] == new.first
            and new.until - latest[1] <= self.model.size // LEAST_ENTRIES
        )
        if latest is not None and together:
            cache.entered[-1] = (file, latest[1], new.until)
        else:
            cache.entered.append((file, new.first, new.until))
        at = next((place for place, extent in enumerate(extents) if extent.first >= new.until), len(extents))
        extents.insert(at, new)
        for place in range(at + 1, at - 3, -1):
            if 0 < place < len(extents):
                left, right = extents[place - 1], extents[place]
                if left.until == right.first and left.ready <= now and right.ready <= now:
                    left.until, left.ready = right.until, max(left.ready, right.ready)
                    del extents[place]

    def _drop(self, node: int, file: int, first: int, until: int) -> None:
        kept = []
        for extent in self._files[node, file]:
            begin, end = max(extent.first, first), min(extent.until, until)
            if begin >= end:
                kept.append(extent)
                continue
            self._nodes[node].held -= end - begin
            if extent.first < begin:
                kept.append(_Extent(extent.first, begin, extent.ready))
            if end < extent.until:
                kept.append(_Extent(end, extent.until, extent.ready))
        self._files[node, file] = kept

    def ahead(
        self, rank: int, file: int, read: tuple[int, int], pages: tuple[int, int], size: int, *, whole: bool
    ) -> tuple[int, int]:
        """The range to fetch ahead after a read, which may be empty; nothing lies beyond the file.

        read: begin and end of the read, bytes. pages: the same of its pages. whole: whether the cache had all of it.
        """
        most, (first, until) = self.model.read_ahead, pages
        stream = self._streams.setdefault((rank, file), _Stream())
        sequential = 0 <= first - stream.next // PAGE_BYTES * PAGE_BYTES <= PAGE_BYTES
        stream.next = max(read[1] - 1, 0)
        if not most or not (sequential or whole):
            stream.window = 0
        if not most or not sequential or (whole and not stream.window):
            return until, until
        if not stream.window:
            stream.window = first_window(until - first, most)
            begin, stream.ahead, stream.marker = until, max(first + stream.window, until), until
        elif until > stream.marker:
            stream.window = next_window(stream.window, most)
            begin = stream.marker = max(stream.ahead, until)
            stream.ahead = begin + stream.window
        else:
            return until, until
        return begin, min(stream.ahead, -(-size // PAGE_BYTES) * PAGE_BYTES)

    def takes(self, node: int, file: int, length: int) -> bool:
        """Whether the cache takes a write as dirty bytes; it then holds them until the file is synced."""
        cache = self._nodes[node]
        if cache.dirty + length > self.model.dirty:
            return False
        cache.dirty += length
        self._dirty[node, file] = self._dirty.get((node, file), 0) + length
        return True

    def synced(self, node: int, file: int) -> int:
        """The dirty bytes of a file, which are none from now on."""
        dirty = self._dirty.pop((node, file), 0)
        self._nodes[node].dirty -= dirty
        return dirty
