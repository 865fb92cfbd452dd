from __future__ import annotations

import pytest

from dxt_replay.replay.transform.rank_state import MODELLED, Work, joined
from dxt_replay.replay.transform.requests import with_chunks
from tests.replay.transform.works import COST, work

KIB = 1024
RECORD, CHUNK = 40 * KIB, 2 * KIB


def records(order: list[int], *, pieces: tuple[int, ...] = (20,)) -> Work:
    """Records of 20 chunks, each in pieces that lie far apart in the file, four of them a batch."""
    reads, need = [], []
    for place, record in enumerate(order):
        for number, chunks in enumerate(pieces):
            begin = number * 10_000_000 + record * chunks * CHUNK
            for chunk in range(chunks):
                reads.append((0, 0, begin + chunk * CHUNK, CHUNK))
                need.append(place // 4)
    return work(reads, need=need)


def chunked(given: Work, size: int) -> Work:
    return with_chunks(given, 0, CHUNK, size, COST)


@pytest.mark.parametrize(
    ("chunk", "requests", "length"), [(1, 40, 1), (4, 10, 4), (8, 5, 8), (40, 1, 40)], ids=lambda each: str(each)
)
@pytest.mark.parametrize("pieces", [(20,), (11, 3, 6)])
def test_a_record_is_read_in_as_many_requests_as_it_has_chunks(
    chunk: int, requests: int, length: int, pieces: tuple[int, ...]
) -> None:
    order = [7, 2, 11, 4, 0, 9, 5, 1]
    before = records(order, pieces=pieces)
    found = chunked(before, chunk * KIB)
    assert len(found["op"]) == requests * len(order)
    assert set(found["length"].tolist()) == {length * KIB}
    assert found["length"].sum() == before["length"].sum()
    assert set(found["origin"].tolist()) == {MODELLED}


def test_in_random_order_a_chunk_that_is_larger_than_a_record_is_read_whole() -> None:
    order = [7, 2, 11, 4, 0, 9, 5, 1]
    found = chunked(records(order), 80 * KIB)
    assert len(found["op"]) == len(order)
    assert found["length"].max() == 80 * KIB
    assert found["length"].sum() > 1.8 * RECORD * len(order)


def test_in_order_a_request_is_never_larger_than_what_is_asked_for() -> None:
    order = list(range(8))
    found = chunked(records(order), 1 << 20)
    assert found["length"].sum() == RECORD * len(order)
    assert len(found["op"]) == 2  # as nothing separates records, one for each batch


def test_a_record_that_is_read_again_lies_where_it_lay() -> None:
    order = [7, 2, 11, 4]
    found = chunked(records([*order, *order]), 40 * KIB)
    assert found["offset"][:4].tolist() == found["offset"][4:].tolist()
    assert len(set(found["offset"][:4].tolist())) == 4


def test_index_reads_stay_where_they_are() -> None:
    before = records([7, 2, 11, 4])
    index = work([(0, 0, 99_000_000, 2616)], need=[0])
    both = joined([index, before])
    found = chunked(both, 40 * KIB)
    assert found["length"].tolist() == [2616, RECORD, RECORD, RECORD, RECORD]


def test_the_chunk_size_that_is_there_changes_nothing() -> None:
    before = records([7, 2, 11, 4])
    assert chunked(before, CHUNK) is before
