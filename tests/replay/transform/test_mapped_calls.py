"""Reads of mapped files as calls: against the bytes, the time and the order that the rule keeps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dxt_replay.replay.transform.mapped_calls import CALL_BYTES, with_calls
from dxt_replay.replay.transform.rank_work import TRANSFORMED, RankWork
from dxt_replay.traces.schema import APIS, TRACED
from tests.replay.transform.works import COST, OPEN, requests, work

POSIX, MMAP = APIS.index("POSIX"), APIS.index("MMAP")
PAGE = 4096


def mapped(given: RankWork, *, opens: tuple[int, ...] = (), calls: tuple[int, ...] = ()) -> RankWork:
    """The reads as reads of a mapping, those at `opens` as mappings, those at `calls` as calls."""
    api, op = np.full(len(given), MMAP, dtype=np.int8), given.op.copy()
    api[list(calls)], op[list(opens)] = POSIX, OPEN
    return replace(given, api=api, op=op)


def test_adjacent_pages_become_calls_that_end_at_whole_mebibytes() -> None:
    pages = 2 * CALL_BYTES // PAGE + 10
    found = with_calls(mapped(work([(0, 0, number * PAGE, PAGE) for number in range(pages)])), COST)
    whole = [(0, 0, 0, CALL_BYTES), (0, 0, CALL_BYTES, CALL_BYTES)]
    assert requests(found) == [*whole, (0, 0, 2 * CALL_BYTES, 10 * PAGE)]
    assert set(found.api.tolist()) == {POSIX}
    assert set(found.origin.tolist()) == {TRANSFORMED}


def test_pages_apart_stay_single_and_in_order() -> None:
    reads = [(0, 0, 90 * PAGE, PAGE), (0, 0, 10 * PAGE, PAGE), (0, 1, 11 * PAGE, PAGE)]
    found = with_calls(mapped(work(reads, feeds=[3, 3, 4])), COST)
    assert requests(found) == reads
    assert found.feeds.tolist() == [3, 3, 4]
    assert found.duration_ns.tolist() == [1_000 + PAGE] * 3


def test_mappings_go_and_leave_their_think_time() -> None:
    reads = [(0, 0, 0, 0), (0, 0, 8 * PAGE, PAGE), (1, 0, 0, 0), (0, 0, 0, 0), (0, 0, 0, 0), (0, 0, PAGE, PAGE)]
    found = with_calls(mapped(work(reads), opens=(0, 2, 3, 4)), COST)
    assert requests(found) == [reads[1], reads[5]]
    assert found.think_ns.tolist() == [200, 300]


def test_other_operations_stay_as_they_are() -> None:
    before = mapped(work([(0, 0, 0, 100), (0, 0, 100, 100), (0, 1, 0, PAGE)]), calls=(0, 1))
    found = with_calls(before, COST)
    assert requests(found) == requests(before)
    assert found.origin.tolist() == [TRACED, TRACED, TRANSFORMED]


def test_eager_reads_are_not_announced() -> None:
    before = mapped(work([(0, 0, 0, 0), (0, 1, 0, 0), (0, 0, 0, PAGE)]), opens=(0, 1), calls=(0, 1))
    found = with_calls(replace(before, open_flags=np.array([1 | 256, -1, -1], dtype=np.int16)), COST)
    assert found.open_flags.tolist() == [1, -1, -1]
