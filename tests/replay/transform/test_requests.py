"""Changed requests of a rank: transfer size, HDF5 chunks, compression; and what a request costs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.replay.plan.layers import choose_layers
from dxt_replay.replay.transform.changes import Changes, Compression
from dxt_replay.replay.transform.rank import MODELLED, TRANSFORMED, data_reads, joined
from dxt_replay.replay.transform.requests import (
    BYTES_PER_OPERATION,
    RequestCost,
    check_requests,
    data_set_of,
    with_chunks,
    with_compression,
    with_transfer_size,
)
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.schema import TRACED
from tests.capture_builder import build_capture, read
from tests.replay.transform.works import COST, requests, stream, work

KIB = 1024


@pytest.mark.parametrize(
    ("reads", "cost"),
    [
        ([(0, 700), (1000, 2700), (5000, 10700), (9000, 18700)], (700, 2)),
        ([(1, 5000), (1000, 1000)], (3000, 0)),
        ([(1000, 100), (2000, 2000)], (0, 0.82)),
        ([(4096, 1000), (4096, 3000), (4096, 5000)], (1000, 2000 / 4096)),
        ([], (0, 0)),
    ],
    ids=["a line", "no negative slope", "no negative latency", "of one length the shortest", "nothing"],
)
def test_the_cost_of_a_request(reads, cost):
    x, y = (np.array(column, dtype=float) for column in (zip(*reads, strict=True) if reads else ((), ())))
    sums = np.array([len(x), x.sum(), (x * x).sum(), y.sum(), (x * y).sum()])
    found = RequestCost.fitted(sums, float(y.min(initial=math.inf)))
    assert (found.latency_ns, found.ns_per_byte, found.requests) == pytest.approx((*cost, len(reads)))


def sized(given, size):
    return with_transfer_size(given, np.ones(len(given["op"]), dtype=bool), size, COST)


@pytest.mark.parametrize("size", [64 * KIB, 256 * KIB, 1024 * KIB, 16 << 20])
def test_a_stream_is_read_in_as_many_requests_as_its_bytes_need(size):
    before = work(stream(3_148_176, 256 * KIB))
    found = sized(before, size)
    assert requests(found) == stream(3_148_176, size)
    if size == 256 * KIB:  # the size that is there
        assert all(np.array_equal(found[name], before[name]) for name in before)


BOTH = [(lane, 0, begin, 1000) for begin in (0, 1000) for lane in (0, 1)]


@pytest.mark.parametrize(
    ("reads", "need", "size", "found"),
    [
        # A merged request saves latencies and keeps the time of its bytes.
        (
            [(0, 0, 0, 1000), (0, 0, 1000, 1000)],
            (),
            4000,
            {"duration_ns": [1_000 + 2_000], "origin": [TRANSFORMED]},
        ),
        # A split one costs a latency for each part.
        ([(0, 0, 0, 2000)], (), 500, {"duration_ns": [1_500] * 4, "think_ns": [100, 0, 0, 0]}),
        # What a program did between merged reads it does after them; the earliest event needs a merged request.
        (
            [(0, 0, 0, 1000), (0, 0, 1000, 1000), (0, 0, 2000, 1000)],
            (4, 5, 6),
            2000,
            {"think_ns": [100, 200], "need": [4, 6]},
        ),
        # A file that another thread goes on with is one stream; two threads that begin at 0 are two.
        ([(3, 0, 0, 1000), (0, 0, 1000, 1000)], (), 2000, {"lane": [3], "length": [2000]}),
        (BOTH, (), 2000, {"lane": [0, 1], "length": [2000, 2000]}),
    ],
    ids=["merged", "split", "between merged reads", "one stream of two threads", "two streams"],
)
def test_a_changed_request(reads, need, size, found):
    made = sized(work(reads, need=need), size)
    assert {name: made[name].tolist() for name in found} == found


def test_reads_that_are_not_chosen_stay():
    before = work([(0, 0, 0, 1000), (0, 1, 0, 1000), (0, 0, 1000, 1000), (0, 1, 1000, 1000)])
    found = with_transfer_size(before, before["file_id"] == 1, 4000, COST)
    assert requests(found) == [(0, 0, 0, 1000), (0, 1, 0, 2000), (0, 0, 1000, 1000)]
    assert found["origin"].tolist() == [TRACED, TRANSFORMED, TRACED]


@given(
    lengths=st.lists(st.integers(1, 5_000), min_size=1, max_size=30),
    starts=st.lists(st.integers(0, 5), min_size=30, max_size=30),
    size=st.integers(1, 9_000),
)
def test_bytes_stay_and_no_request_crosses_a_multiple_of_the_size(lengths, starts, size):
    reads, end = [], dict.fromkeys(range(3), 0)
    for length, start in zip(lengths, starts, strict=False):
        name = start % 3
        begin = end[name] if start < 4 else end[name] + 77
        reads.append((start % 2, name, begin, length))
        end[name] = begin + length
    before = work(reads)
    found = sized(before, size)
    for name in range(3):
        counts = []
        for each in (before, found):  # how often each byte of a file is read
            counts.append(np.zeros(200_000, dtype=np.int64))
            mine = each["file_id"] == name
            for begin, length in zip(each["offset"][mine].tolist(), each["length"][mine].tolist(), strict=True):
                counts[-1][begin : begin + length] += 1
        assert np.array_equal(*counts)
    assert np.all(found["offset"] // size == (found["offset"] + found["length"] - 1) // size)


RECORD, CHUNK = 40 * KIB, 2 * KIB
RANDOM = [7, 2, 11, 4, 0, 9, 5, 1]


def chunked(order, size, pieces=(20,)):
    """Records of 20 chunks, each in pieces that lie far apart in the file, four of them a batch; and what they become.
    An index is read before them."""
    reads, need = [(0, 0, 99_000_000, 2616)], [0]
    for place, record in enumerate(order):
        for number, chunks in enumerate(pieces):
            begin = number * 10_000_000 + record * chunks * CHUNK
            reads += [(0, 0, begin + chunk * CHUNK, CHUNK) for chunk in range(chunks)]
            need += [place // 4] * chunks
    found = with_chunks(work(reads, need=need), 0, CHUNK, size, COST)
    assert requests(found)[0] == reads[0]
    return {name: values[1:] for name, values in found.items()}


@pytest.mark.parametrize(("chunk", "count", "length"), [(1, 40, 1), (4, 10, 4), (8, 5, 8), (40, 1, 40)])
@pytest.mark.parametrize("pieces", [(20,), (11, 3, 6)])
def test_a_record_is_read_in_as_many_requests_as_it_has_chunks(chunk, count, length, pieces):
    found = chunked(RANDOM, chunk * KIB, pieces)
    assert set(found["length"].tolist()) == {length * KIB}
    assert len(found["op"]) == count * len(RANDOM)
    assert set(found["origin"].tolist()) == {MODELLED}


def test_chunks_larger_than_a_record():
    """In random order each is read whole; in order a request is never larger than what is asked for, here a batch."""
    found = chunked(RANDOM, 80 * KIB)
    assert (len(found["op"]), found["length"].max()) == (len(RANDOM), 80 * KIB)
    assert found["length"].sum() > 1.8 * RECORD * len(RANDOM)
    found = chunked(list(range(8)), 1 << 20)
    assert found["length"].tolist() == [4 * RECORD] * 2


def test_a_record_that_is_read_again_lies_where_it_lay():
    found = chunked([7, 2, 11, 4] * 2, 40 * KIB)
    assert found["offset"][:4].tolist() == found["offset"][4:].tolist()
    assert len(set(found["offset"][:4].tolist())) == 4


def test_a_compressed_stream_has_no_gaps_and_the_share_of_the_bytes():
    gzip = Compression(name="gzip", ratio=0.6, bytes_per_s=1e9)
    before = joined([work(stream(1_000_001, 4096)), work([(0, 1, 0, 100)])])
    found = with_compression(before, before["file_id"] == 0, gzip, COST)
    reads = data_reads(found) & (found["file_id"] == 0)
    assert found["length"][reads].sum() == round(1_000_001 * 0.6)
    assert np.array_equal(found["offset"][reads][1:], (found["offset"] + found["length"])[reads][:-1])
    assert found["busy_ns"][reads].tolist() == before["length"][reads].tolist()  # a byte in a ns
    assert found["duration_ns"][0] == 1_000 + round(0.6 * 4096)
    assert set(found["origin"][reads].tolist()) == {MODELLED}
    assert (found["length"][-1], found["origin"][-1], found["busy_ns"][-1]) == (100, TRACED, 0)


@pytest.mark.parametrize(
    ("changes", "operations"),
    [
        (Changes(compute_speed=2.0), 8),
        (Changes(transfer_bytes=250), 8 + 32),  # 4 requests for each of its reads of 1,000 bytes
    ],
)
def test_what_does_not_fit_in_memory_is_refused(tmp_path, changes, operations):
    ops = [read(0, rank=rank, length=1000, start_ns=number) for rank, n in ((0, 2), (1, 6)) for number in range(n)]
    capture = build_capture(tmp_path, files=["/d/a"], ops=ops)
    data = data_set_of(capture, choose_layers(capture))
    for enough in (operations * BYTES_PER_OPERATION, None):
        check_requests(capture, changes, data, enough)
    with pytest.raises(UsageError, match=rf"the {operations} operations of"):
        check_requests(capture, changes, data, operations * BYTES_PER_OPERATION - 1)
