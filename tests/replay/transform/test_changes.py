"""Changed requests of a rank: transfer size, HDF5 chunks, compression; who reads which batch, and how far ahead."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay import open_capture
from dxt_replay.replay.causal.loop import CHECKPOINT, ENTRY, FETCH, NO_FETCH, NO_MOMENT, TrainingLoop
from dxt_replay.replay.engine.items import NO_EVENT
from dxt_replay.replay.plan.layers import choose_layers
from dxt_replay.replay.transform import requests as changing
from dxt_replay.replay.transform.changes import Changes, Compression
from dxt_replay.replay.transform.pipeline import with_read_ahead, with_readers
from dxt_replay.replay.transform.rank import MODELLED, TRANSFORMED, data_reads, joined
from dxt_replay.replay.transform.requests import RequestCost, with_chunks, with_compression, with_transfer_size
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.schema import APIS, READ, TRACED
from tests.capture_builder import File, Op, Span, build_capture, read
from tests.replay.transform.test_transformed import broken_rules, changed, rows
from tests.simulated_application import MS, US

KIB = 1024
COST = RequestCost(latency_ns=1_000.0, ns_per_byte=1.0, requests=10)
"""A microsecond, and a gigabyte in a second."""


def work(reads, *, need=(), **columns):
    """Reads of (lane, file, offset, length) that last as `COST` says, with think times of 100 ns."""
    lane, file_id, offset, length = (np.array(column, dtype=np.int64) for column in zip(*reads, strict=True))
    n = len(lane)
    same = {"op": READ, "api": APIS.index("POSIX"), "origin": TRACED, "other_file_id": -1, "open_flags": -1}
    same |= {"think_ns": 100, "need": NO_EVENT, "follows": NO_MOMENT, "busy_ns": 0}
    return {
        **{name: np.full(n, value) for name, value in same.items()},
        **{"lane": lane, "file_id": file_id, "offset": offset, "length": length, "held": np.zeros(n, dtype=bool)},
        **{"start_ns": np.arange(n) * 10_000, "duration_ns": 1_000 + length},
        **({"need": np.array(need, dtype=np.int64)} if len(need) else {}),
        **columns,
    }


def stream(size, request):
    """A file of `size` bytes, read from its begin to its end in requests of one size, and a read that meets the end."""
    reads = [(0, 0, begin, min(request, size - begin)) for begin in range(0, size, request)]
    return [*reads, (0, 0, size, 0)]


def requests(found):
    """The operations as `work` takes them."""
    columns = [found[name].tolist() for name in ("lane", "file_id", "offset", "length")]
    return list(zip(*columns, strict=True))


@pytest.mark.parametrize(
    ("reads", "cost"),
    [
        ([(0, 700), (1000, 2700), (5000, 10700), (9000, 18700)], (700, 2)),
        ([(1, 5000), (1000, 1000)], (3000, 0)),
        ([(1000, 100), (2000, 2000)], (0, 0.82)),
        ([(4096, 1000), (4096, 3000), (4096, 5000)], (1000, 2000 / 4096)),
        ([(0, 1000), (0, 2001)], (1500.5, 0)),
        ([], (0, 0)),
    ],
)
def test_the_cost_of_a_request_is_a_line_that_does_not_fall(reads, cost):
    x, y = (np.array(column, dtype=float) for column in (zip(*reads, strict=True) if reads else ((), ())))
    sums = np.array([len(x), x.sum(), (x * x).sum(), y.sum(), (x * y).sum()])
    found = RequestCost.fitted(sums, float(y.min(initial=math.inf)))
    assert (found.latency_ns, found.ns_per_byte, found.requests) == pytest.approx((*cost, len(reads)))


def sized(given, size):
    return with_transfer_size(given, np.ones(len(given["op"]), dtype=bool), size, COST)


def test_a_stream_is_read_in_as_many_requests_as_its_bytes_need():
    before = work(stream(3_148_176, 256 * KIB))
    for size in (64 * KIB, 1024 * KIB, 16 << 20):
        assert requests(sized(before, size)) == stream(3_148_176, size)
    found = sized(before, 256 * KIB)  # the size that is there
    assert all(np.array_equal(found[name], before[name]) for name in before)


THREE = ONE, TWO, _ = (0, 0, 0, 1000), (0, 0, 1000, 1000), (0, 0, 2000, 1000)


@pytest.mark.parametrize(
    ("reads", "columns", "size", "found"),
    [
        # A merged request saves latencies and keeps the time of its bytes.
        ((ONE, TWO), {}, 4000, {"duration_ns": [1_000 + 2_000], "origin": [TRANSFORMED]}),
        # A split one costs a latency for each part.
        ([(0, 0, 0, 2000)], {}, 500, {"duration_ns": [1_500] * 4, "think_ns": [100, 0, 0, 0]}),
        # What a program did between merged reads it does after them; the earliest event needs a merged request.
        (THREE, {"need": (4, 5, 6)}, 2000, {"think_ns": [100, 200], "need": [4, 6]}),
        ((ONE, TWO), {"need": (-1, 5)}, 2000, {"need": [5]}),
        # The think time of a merged read that was held back is nobody's.
        (THREE, {"held": np.array([False, True, False])}, 2000, {"think_ns": [100, 100]}),
        # A file that another thread goes on with is one stream; two threads that begin at 0 are two.
        ([(3, 0, 0, 1000), TWO], {}, 2000, {"lane": [3], "length": [2000]}),
        ([ONE, (1, *ONE[1:]), TWO, (1, *TWO[1:])], {}, 2000, {"lane": [0, 1], "length": [2000, 2000]}),
    ],
)
def test_a_changed_request(reads, columns, size, found):
    made = sized(work(reads, **columns), size)
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


@pytest.mark.parametrize("chunk", [1, 4, 8, 40])
@pytest.mark.parametrize("pieces", [(20,), (11, 3, 6)])
def test_a_record_is_read_in_as_many_requests_as_it_has_chunks(chunk, pieces):
    found = chunked(RANDOM, chunk * KIB, pieces)
    assert found["length"].tolist() == [chunk * KIB] * (40 // chunk) * len(RANDOM)
    assert set(found["origin"].tolist()) == {MODELLED}


def test_chunks_larger_than_a_record():
    """In random order each is read whole; in order a request is never larger than what is asked for, here a batch."""
    found = chunked(RANDOM, 80 * KIB)
    assert (len(found["op"]), found["length"].max()) == (len(RANDOM), 80 * KIB)
    assert found["length"].sum() > 1.8 * RECORD * len(RANDOM)
    assert chunked(list(range(8)), 1 << 20)["length"].tolist() == [4 * RECORD] * 2
    assert len(chunked(RANDOM, 4 * KIB, pieces=(1,))["op"]) == len(RANDOM), "a record of one chunk"


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
        (Changes(compute_speed=2.0), 9),
        (Changes(transfer_bytes=250), 9 + 32),  # 4 requests for each of its reads of 1,000 bytes
        (Changes(chunk_bytes=250), 9 + 2),  # 2 for the chunk
    ],
)
def test_what_does_not_fit_in_memory_is_refused(tmp_path, changes, operations):
    ops = [read(0, rank=rank, length=1000, start_ns=number) for rank, n in ((0, 2), (1, 6)) for number in range(n)]
    files = ["/d/a", File("/d/b.h5", format="hdf5")]
    capture = build_capture(tmp_path, files=files, ops=[*ops, read(1, length=500, start_ns=9)])
    data = changing.data_set_of(capture, choose_layers(capture))
    assert data.chunk_bytes == {1: 500}
    assert dataclasses.astuple(data.cost) == pytest.approx((1_000, 0, 9))
    # In an HDF5 file chunks are compressed, and metadata are not.
    gzip = Changes(compression=Compression(name="gzip", ratio=0.6, bytes_per_s=1e9))
    found = changing.with_requests(work([(0, 1, 0, 500), (0, 1, 9_000, 100)]), gzip, data)
    assert found["length"].tolist() == [300, 100]
    for enough in (operations * changing.BYTES_PER_OPERATION, None):
        changing.check_requests(capture, changes, data, enough)
    with pytest.raises(UsageError, match=rf"the {operations} operations of"):
        changing.check_requests(capture, changes, data, operations * changing.BYTES_PER_OPERATION - 1)


def loop_of(*kinds):
    """A loop of these events, each of which lasts half a microsecond, without steps."""
    begin_ns, none = 1_000 * np.arange(1 + len(kinds)), np.empty(0, dtype=np.int64)
    empty = ("step_number", "step_begin_ns", "step_end_ns", "made_begin_ns", "made_end_ns")
    return TrainingLoop(
        kind=np.array([ENTRY, *kinds], dtype=np.int8),
        begin_ns=begin_ns,
        end_ns=begin_ns + 500,
        loader=np.zeros(len(begin_ns), dtype=np.int8),
        exit_ns=int(begin_ns[-1]) + 500,
        input_waits=True,
        **dict.fromkeys(empty, none),
    )


def test_files_and_what_feeds_nothing_are_dealt_with_their_batches():
    """A close goes with the batch before it, and holds up no other one."""
    files = work([(lane, lane - 1, 100 * part, 100) for part in range(3) for lane in (1, 2, 3, 4)])
    found = with_readers(files, np.arange(12), np.ones(12, dtype=bool), 2, by_file=True)
    assert {(name, lane) for lane, name, _, _ in requests(found)} == {(0, 1), (1, 2), (2, 1), (3, 2)}
    closes = work([(1, 0, 0, 10), (1, 0, 0, 0), (1, 1, 0, 10)], follows=np.array([1, 19, 3]))
    found = with_readers(closes, np.array([4, NO_FETCH, 5]), np.ones(3, dtype=bool), 2)
    assert (found["lane"].tolist(), found["follows"].tolist()) == ([1, 1, 2], [1, NO_MOMENT, 3])


@pytest.mark.parametrize(
    ("ahead", "pass_first", "moments"),
    [
        # Fetch n is event n + 1: it begins at moment 2 n + 2, and ends at the next one.
        (3, None, [NO_MOMENT, NO_MOMENT, NO_MOMENT, 3, 5, 7]),
        (0, None, [2, 4, 6, 8, 10, 12]),  # the training thread reads
        (2, np.array([0, 0, 0, 3, 3, 3]), [2, 2, 3, 8, 8, 9]),  # two passes over the data
    ],
)
def test_a_read_waits_for_the_fetch_that_makes_room_for_its_batch(ahead, pass_first, moments):
    given = work([(1, 0, 0, 10)] * 6, need=range(1, 7))
    found = with_read_ahead(given, np.ones(6, dtype=bool), ahead, loop_of(*6 * [FETCH]), pass_first)
    assert found["follows"].tolist() == moments


def test_no_read_waits_for_a_fetch_behind_a_checkpoint_that_its_lane_has_yet_to_write():
    """The fetches are events 1, 2, 4 and 5, the checkpoint is event 3. The third read would wait for the end of fetch
    2, which comes after the checkpoint, and the checkpoint for its write, which comes after that read."""
    given = work([(1, 0, 0, 10)] * 4, need=[1, 2, 5, 3])
    loop = loop_of(FETCH, FETCH, CHECKPOINT, FETCH, FETCH)
    found = with_read_ahead(given, np.array([True, True, True, False]), 1, loop)
    assert found["follows"].tolist() == [NO_MOMENT, 3, 5, NO_EVENT]


STEP = 10 * MS


def reads_of(capture):
    return [row for row in rows(capture).to_pylist() if row["op"] == "read"]


def of_two_ranks(folder, files, ops, steps, wait_ns, *, name="next_batch", collective=False):
    """A capture of two ranks with steps of 10 ms that begin with a wait. ops: those of a rank."""
    spans = []
    for rank, step in [(rank, step) for rank in (0, 1) for step in range(steps)]:
        begin, place = MS + step * STEP, {"rank": rank, "step": step, "thread": 1}
        spans.append(Span("step", begin, begin + STEP, **place))
        spans.append(Span("input_wait", begin, begin + wait_ns, name=name, **place))
        spans += [Span("collective", begin + 8 * MS, begin + 9 * MS, **place)] * collective
    return build_capture(folder, files=files, ops=[op for rank in (0, 1) for op in ops(rank)], spans=spans)


def shared_file(folder):
    """Two ranks that open a shared file and read its header, and then a sample of it in each step by themselves."""

    def ops(rank):
        yield Op("open", 0, rank=rank, start_ns=50 * US)
        yield read(0, length=512, rank=rank, start_ns=100 * US)
        for step in range(12):
            start_ns = MS + step * STEP + 100 * US
            yield read(0, offset=1000 + 1000 * (2 * step + rank), length=1000, rank=rank, start_ns=start_ns)

    return of_two_ranks(folder, ["/data/train.h5"], ops, 12, 200 * US, collective=True)


@pytest.mark.parametrize(("ranks", "steps"), [(1, 24), (3, 8), (4, 6), (5, 4), (24, 1)])
def test_each_step_of_all_ranks_takes_the_batches_that_come_next_and_headers_are_read_by_each_rank(
    tmp_path, ranks, steps
):
    found, capture = changed(shared_file(tmp_path), ranks=ranks)
    reads = reads_of(capture)
    samples = {(row["rank"], row["feeds"]): row["offset"] for row in reads if row["length"] == 1000}
    places = [(rank, step) for rank in range(ranks) for step in range(steps)]
    assert samples == {(rank, step): 1000 + 1000 * (ranks * step + rank) for rank, step in places}
    assert len(reads) - len(samples) == ranks
    kinds = capture.spans["kind"].to_pylist()
    assert [kinds.count(kind) for kind in ("step", "input_wait", "collective")] == [ranks * steps] * 3
    assert found.after.bytes_read == 1000 * ranks * steps + 512 * ranks
    numbers = [row["step"] for row in capture.spans.to_pylist() if row["kind"] == "step" and row["rank"] == 0]
    assert numbers == [*range(steps)]
    assert found.assumptions[0].startswith("batches go to the ranks in turn")
    assert any("4 batches are left out" in note for note in found.assumptions) == (ranks == 5)
    if ranks == 4:  # the compute time of a step stays
        assert found.after.elapsed_ns == pytest.approx(found.before.elapsed_ns / 2, rel=0.1)
    with pytest.raises(UsageError, match="24 batches to share out, fewer than ranks"):
        changed(open_capture(tmp_path / "test.capture"), ranks=25)


@pytest.mark.parametrize("ranks", [1, 4])
def test_whole_files_go_to_the_ranks_by_name_and_are_read_no_further_ahead(tmp_path, ranks):
    """Two ranks with two files each, of 8 requests, that a reader streams ahead of 16 steps."""

    def ops(rank):
        for number in range(16):
            place = {"offset": 4096 * (number % 8), "length": 4096, "rank": rank, "lane": 1}
            start_ns = MS + max(number - 2, 0) * STEP + 10 * US * number
            yield read(2 * (number // 8) + rank, start_ns=start_ns, **place)

    files = [f"/data/{name}.tfrecord" for name in "abcd"]
    source = of_two_ranks(tmp_path, files, ops, 16, MS, name="")
    _, capture = changed(source, ranks=ranks)
    reads = reads_of(capture)
    assert {(row["file_id"], row["rank"]) for row in reads} == {(name, name % ranks) for name in range(4)}
    for name in range(4):
        assert [row["offset"] for row in reads if row["file_id"] == name] == [4096 * number for number in range(8)]
    assert not broken_rules(capture)
    of_others = [row for row in reads if row["file_id"] in (1, 3) and row["feeds"] >= 4]
    assert all(row["follows"] is not None and row["feeds"] - row["follows"] <= 4 for row in of_others)
    with pytest.raises(UsageError, match="4 files, each read by one rank"):
        changed(source, ranks=8)


@pytest.mark.parametrize("ranks", [1, 4])
def test_data_that_are_loaded_whole_are_loaded_by_each_rank(tmp_path, ranks):
    def ops(rank):
        return [read(0, offset=1000 * n, length=1000, rank=rank, start_ns=MS + n * 50 * US) for n in range(100)]

    source = of_two_ranks(tmp_path, ["/data/train.csv"], ops, 8, 6 * MS)
    assert changed(source, ranks=ranks)[0].after.bytes_read == 100_000 * ranks
