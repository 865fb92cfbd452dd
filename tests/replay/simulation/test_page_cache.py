"""The page cache of the simulated storage against a model that knows single pages only."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.replay.simulation.storage_cases import CACHE, DEVICE, FILES, KIB, ends, model, operations

PAGE = 4096
HIT, READ, WRITE = 100, 10_000, 50_000
"""ns that CACHE and DEVICE take."""

OPERATION = st.tuples(
    st.sampled_from(["read", "read", "read", "write", "open", "sync"]),
    st.integers(0, 1),
    st.integers(0, 40 * PAGE),
    st.integers(1, 12 * PAGE),
    st.just(0),
)


class Pages:
    """One reader and writer of files, page by page: first in, first out, in the pieces in which they came."""

    def __init__(self, size: int, dirty: int, *, dropped: bool) -> None:
        self.size, self.most_dirty, self.dropped = size, dirty, dropped
        self.held: set[tuple[int, int]] = set()
        self.entered: list[list[tuple[int, int]]] = []
        self.dirty = {0: 0, 1: 0}
        self.requests: list[int] = []

    def insert(self, file: int, first: int, last: int) -> int:
        """Hold the pages `first` to `last`: how many pieces of them were missing."""
        pieces, page = 0, first
        while page <= last:
            new = []
            while page <= last and (file, page) not in self.held:
                new.append((file, page))
                page += 1
            page += not new
            if new:
                pieces += 1
                self._enter(new)
        return pieces

    def _enter(self, new: list[tuple[int, int]]) -> None:
        self.held |= set(new)
        latest = self.entered[-1] if self.entered else []
        follows = latest and latest[-1] == (new[0][0], new[0][1] - 1)
        if follows and (len(latest) + len(new)) * PAGE <= self.size // 64:
            latest += new
        else:
            self.entered.append(new)
        while len(self.held) * PAGE > self.size:
            self.held -= set(self.entered.pop(0))

    def duration(self, name: str, file: int, offset: int, length: int) -> int:
        first, last = offset // PAGE, (offset + length - 1) // PAGE
        if name == "read":
            return READ if self.insert(file, first, last) else HIT
        if name == "write":
            self.insert(file, first, last)
            if sum(self.dirty.values()) + length > self.most_dirty:
                return WRITE
            self.dirty[file] += length
            return HIT
        if name == "open":
            self.held -= {page for page in self.held if self.dropped and page[0] == file}
            return 0
        written, self.dirty[file] = self.dirty[file], 0
        return WRITE if written else 0


@given(
    each=st.lists(OPERATION, min_size=1, max_size=60),
    pages=st.sampled_from([1, 8, 30, 200, 1 << 20]),
    dirty=st.sampled_from([0, 60_000]),
    dropped=st.booleans(),
)
def test_what_is_held_is_what_entered_last(each, pages, dirty, dropped) -> None:
    truth = Pages(pages * PAGE, dirty, dropped=dropped)
    cache = msgspec.structs.replace(CACHE, size=pages * PAGE, dirty=dirty, dropped_at_open=dropped)
    (found,), use = ends(model(**DEVICE, cache=cache), operations(*each))
    durations = [truth.duration(*operation[:4]) for operation in each]
    assert np.diff([0, *found]).tolist() == durations
    assert use.hits == sum(name == "read" and time == HIT for (name, *_), time in zip(each, durations, strict=True))


@pytest.mark.parametrize("largest_fetch", [0, 28 * KIB])
@given(
    reads=st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 99 * KIB), st.sampled_from([1, PAGE, 40_000])),
        min_size=1,
        max_size=60,
    ),
    read_ahead=st.sampled_from([5 * PAGE, 128 * KIB, 1 << 20]),
)
def test_in_a_large_cache_a_page_is_fetched_once(reads, read_ahead, largest_fetch) -> None:
    """Three ranks read a file of 25 pages; what one of them has read is there for all, whatever is read ahead."""
    cache = msgspec.structs.replace(CACHE, size=1 << 30, read_ahead=read_ahead, largest_fetch=largest_fetch)
    size = int(FILES[1])
    own = [
        [("read", 1, offset, min(length, size - offset), 0) for rank, offset, length in reads if rank == number]
        for number in range(3)
    ]
    late = 10**9
    own[0] = own[0] or [("read", 1, 0, 1, 0)]
    again = [(*each[:4], late if not number else 0) for number, each in enumerate(own[0] * 2)]
    lanes = [operations(*each) for each in (own[0] + again, *own[1:]) if each]
    found, use = ends(model(**DEVICE, cache=cache), *lanes, ranks=[0] * len(lanes))
    touched = np.zeros(25, dtype=bool)
    for _, _, offset, length, _ in (each for lane in own for each in lane):
        touched[offset // PAGE : (offset + length - 1) // PAGE + 1] = True
    assert touched.sum() * PAGE <= use.request_bytes[0] <= 25 * PAGE
    assert set(np.diff(found[0][len(own[0]) :]).tolist()) == {HIT}
