from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.replay.transform.rank_state import TRANSFORMED, Work, same_requests
from dxt_replay.replay.transform.requests import with_transfer_size
from dxt_replay.traces.schema import TRACED
from tests.replay.transform.works import COST, requests, stream, work

KIB = 1024


def sized(given: Work, size: int) -> Work:
    return with_transfer_size(given, np.ones(len(given["op"]), dtype=bool), size, COST)


@pytest.mark.parametrize("size", [64 * KIB, 256 * KIB, 1024 * KIB, 16 << 20])
def test_a_stream_is_read_in_as_many_requests_as_its_bytes_need(size: int) -> None:
    length = 3_148_176
    found = sized(work(stream(length, 256 * KIB)), size)
    assert requests(found) == stream(length, size)


def test_the_transfer_size_that_is_there_changes_nothing() -> None:
    before = work([*stream(1_000_000, 256 * KIB), *stream(300_000, 256 * KIB, file_id=1)])
    assert same_requests(sized(before, 256 * KIB), before)


def test_a_merged_request_saves_latencies_and_keeps_the_time_of_its_bytes() -> None:
    before = work([(0, 0, 0, 1000), (0, 0, 1000, 1000)])
    found = sized(before, 4000)
    assert found["duration_ns"].tolist() == [1_000 + 2_000]
    assert found["origin"].tolist() == [TRANSFORMED]


def test_a_split_request_costs_a_latency_for_each_part() -> None:
    found = sized(work([(0, 0, 0, 2000)]), 500)
    assert found["duration_ns"].tolist() == [1_500] * 4
    assert found["think_ns"].tolist() == [100, 0, 0, 0]


def test_what_a_program_did_between_merged_reads_it_does_after_them() -> None:
    found = sized(work([(0, 0, 0, 1000), (0, 0, 1000, 1000), (0, 0, 2000, 1000)]), 2000)
    assert found["think_ns"].tolist() == [100, 200]


def test_the_earliest_event_that_needs_one_of_its_reads_needs_a_merged_request() -> None:
    found = sized(work([(0, 0, 0, 1000), (0, 0, 1000, 1000), (0, 0, 2000, 1000)], need=[4, 5, 6]), 2000)
    assert found["need"].tolist() == [4, 6]


def test_a_file_that_another_thread_goes_on_with_is_one_stream() -> None:
    found = sized(work([(3, 0, 0, 1000), (0, 0, 1000, 1000)]), 2000)
    assert requests(found) == [(3, 0, 0, 2000)]


def test_two_threads_that_read_the_same_file_from_its_begin_are_two_streams() -> None:
    both = [(lane, 0, begin, 1000) for begin in (0, 1000) for lane in (0, 1)]
    assert sorted(requests(sized(work(both), 2000))) == [(0, 0, 0, 2000), (1, 0, 0, 2000)]


def test_reads_that_are_not_chosen_stay() -> None:
    before = work([(0, 0, 0, 1000), (0, 1, 0, 1000), (0, 0, 1000, 1000), (0, 1, 1000, 1000)])
    found = with_transfer_size(before, before["file_id"] == 1, 4000, COST)
    assert requests(found) == [(0, 0, 0, 1000), (0, 1, 0, 2000), (0, 0, 1000, 1000)]
    assert found["origin"].tolist() == [TRACED, TRANSFORMED, TRACED]


@given(
    lengths=st.lists(st.integers(1, 5_000), min_size=1, max_size=30),
    starts=st.lists(st.integers(0, 5), min_size=30, max_size=30),
    size=st.integers(1, 9_000),
)
def test_bytes_stay_and_no_request_crosses_a_multiple_of_the_size(
    lengths: list[int], starts: list[int], size: int
) -> None:
    reads, end = [], dict.fromkeys(range(3), 0)
    for length, start in zip(lengths, starts, strict=False):
        name = start % 3
        begin = end[name] if start < 4 else end[name] + 77
        reads.append((start % 2, name, begin, length))
        end[name] = begin + length
    before = work(reads)
    found = sized(before, size)
    for name in range(3):
        old, new = (_covered(each, name) for each in (before, found))
        assert np.array_equal(old, new)
    assert np.all(found["offset"] // size == (found["offset"] + found["length"] - 1) // size)


def _covered(found: Work, name: int) -> np.ndarray:
    """How often each byte of a file is read."""
    mine = found["file_id"] == name
    count = np.zeros(200_000, dtype=np.int64)
    for begin, length in zip(found["offset"][mine].tolist(), found["length"][mine].tolist(), strict=True):
        count[begin : begin + length] += 1
    return count
