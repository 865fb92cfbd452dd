"""What the page caches of the nodes hold: the specification of the cache in the simulated storage. Pure."""

from __future__ import annotations

import bisect
from collections import deque
from dataclasses import dataclass, field

from dxt_replay.replay.simulation.storage_model import PageCache

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
    """How a rank reads a file, as in the kernel's file_ra_state.

    previous: the page in which the latest read ended. window: bytes of the latest window. ahead: its end. marker: the
    page of it whose reader makes the next window be fetched.
    """

    previous: int = -2 * PAGE_BYTES
    window: int = 0
    ahead: int = 0
    marker: int = -1


class CachedFiles:
    """The caches of so many nodes."""

    def __init__(self, model: PageCache, nodes: int) -> None:
        self.model = model
        self.read_ahead = model.read_ahead // PAGE_BYTES * PAGE_BYTES
        self.largest_fetch = max(model.largest_fetch // PAGE_BYTES * PAGE_BYTES, self.read_ahead)
        self._nodes = [_Node() for _ in range(nodes)]
        self._files: dict[tuple[int, int], list[_Extent]] = {}
        self._dirty: dict[tuple[int, int], int] = {}
        self._marks: dict[tuple[int, int], list[int]] = {}
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
        if marks := self._marks.get((node, file)):
            del marks[bisect.bisect_left(marks, first) : bisect.bisect_left(marks, until)]
        kept = []
        for extent in self._files.get((node, file), []):
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

    def wanted(self, node: int, rank: int, file: int, at: int, until: int, size: int) -> tuple[int, int, int] | None:
        """The next range that a read of the pages `at` to `until` makes be fetched, and where the read goes on.

        As in Linux (mm/readahead.c): a marked page that the reader meets, or else a page that is missing. Of the range,
        which may be empty, some may be held. None: nothing more. size: of the file; nothing is fetched ahead beyond it.
        """
        gap = self.missing(node, file, at, until)
        stream = self._streams.setdefault((rank, file), _Stream())
        marked = self._met(node, file, at, until if gap is None else gap[0])
        end = -(-size // PAGE_BYTES) * PAGE_BYTES
        if marked is not None:
            if not self._follow(node, file, stream, marked, until):
                return marked, marked, marked + PAGE_BYTES
            begin, stop, after = stream.ahead - stream.window, min(stream.ahead, end), marked + PAGE_BYTES
        elif gap is None:
            stream.previous = until - PAGE_BYTES
            return None
        elif self.read_ahead and self._start(node, file, stream, gap[0], until):
            begin, stop, after = gap[0], min(stream.ahead, max(until, end)), min(stream.marker, until)
        else:
            return gap[0], until, until
        if stream.marker < stop and self.missing(node, file, stream.marker, stream.marker + PAGE_BYTES) is not None:
            bisect.insort_left(self._marks.setdefault((node, file), []), stream.marker)
        return begin, stop, after

    def _met(self, node: int, file: int, first: int, until: int) -> int | None:
        """The first marked page of a range, which is marked no more."""
        marks = self._marks.get((node, file), [])
        at = bisect.bisect_left(marks, first)
        return marks.pop(at) if at < len(marks) and marks[at] < until else None

    def _most(self, request: int) -> int:
        """The largest window for a request of so many bytes (ractl_max_pages)."""
        most = max(self.read_ahead, request)
        return min(most, self.largest_fetch) if self.model.largest_fetch else most

    def _start(self, node: int, file: int, stream: _Stream, begin: int, until: int) -> bool:
        """Give a stream a first window, where a page is missing (page_cache_sync_ra). False: it reads at random."""
        request = until - begin
        most = self._most(request)
        if not begin or request > most or 0 <= begin - stream.previous <= PAGE_BYTES:
            window = first_window(request, most)
            late = window - request if window > request else window // 2 // PAGE_BYTES * PAGE_BYTES
        else:
            before = self._held_before(node, file, begin, most)
            if before <= request:
                return False
            window, late = min(request + before * (2 if before == begin else 1), most), PAGE_BYTES
        stream.window, stream.ahead, stream.marker = window, begin + window, begin + window - late
        return True

    def _follow(self, node: int, file: int, stream: _Stream, marked: int, until: int) -> bool:
        """Give a stream its next window behind a marked page (page_cache_async_ra), its own or another one's."""
        request = until - marked
        most = self._most(request)
        if marked == stream.marker:
            begin, window = stream.ahead, stream.window
        else:
            gap = self.missing(node, file, marked + PAGE_BYTES, marked + PAGE_BYTES + most)
            if gap is None:
                return False
            begin, window = gap[0], gap[0] - marked + request
        stream.window, stream.marker = next_window(window, most), begin
        stream.ahead = begin + stream.window
        return True

    def _held_before(self, node: int, file: int, at: int, most: int) -> int:
        """How many bytes before a place are held without a hole, at most so many."""
        begin = at
        for extent in reversed(self._files.get((node, file), [])):
            if extent.until == begin and at - begin < most:
                begin = extent.first
        return min(at - begin, most)

    def opened(self, node: int, file: int) -> None:
        """Drop what is held of a file, where an open does that."""
        if self.model.dropped_at_open:
            self._nodes[node].held -= sum(each.until - each.first for each in self._files.pop((node, file), []))
            self._marks.pop((node, file), None)

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
