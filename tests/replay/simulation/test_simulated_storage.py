"""The simulated storage: by hand, by formulas of queueing theory, by a model of single pages, as measured on Linux."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.replay.causal.events import EventLane, LaneTimes, run_lanes
from dxt_replay.replay.engine.items import operation_rows
from dxt_replay.replay.simulation._simulated_storage import SimulatedStorage
from dxt_replay.replay.simulation.model import Jitter, Limit, PageCache, RequestTime, Servers, StorageModel
from dxt_replay.traces.schema import APIS, OPS

US, MS, KIB, MIB, PAGE = 1_000, 1_000_000, 1 << 10, 1 << 20, 4096
FILES = np.array([10 * MIB, 100 * KIB, 5000], dtype=np.int64)
HIT, READ, WRITE = 100, 10 * US, 50 * US
CACHE = PageCache(size=4 * MIB, hit=RequestTime.affine(HIT))
DEVICE = {"operations": {"read": RequestTime.affine(READ), "write": RequestTime.affine(WRITE)}}


def operations(*each):
    """Items from (name, file, offset, length, think time)."""
    op, file, offset, length, due = zip(*each, strict=True)
    numbers = {"op": [OPS.index(name) for name in op], "file_id": file, "offset": offset, "length": length}
    rows = operation_rows(
        api=0, origin=0, slot=np.zeros(len(op), dtype=np.int64), step=0, **{n: np.array(v) for n, v in numbers.items()}
    )
    rows["due_ns"] = due
    return rows


def read(length=MIB, offset=0, file=0, due=0):
    return operations(("read", file, offset, length, due))


def model(**keys):
    return StorageModel(name="x", **keys)


def cached(**changes):
    return model(**DEVICE, cache=msgspec.structs.replace(CACHE, **{"size": 1 << 30, **changes}))


def ends(storage, *lanes, ranks=None, **options):
    """When each item of each lane ends; lane i belongs to rank i unless `ranks` says otherwise."""
    ranks = ranks or list(range(len(lanes)))
    placed = [
        EventLane(items=rows, times=LaneTimes.room(len(rows)), rank=rank)
        for rows, rank in zip(lanes, ranks, strict=True)
    ]
    service = SimulatedStorage(storage, ranks=max(ranks) + 1, file_bytes=FILES, **options)
    run_lanes(placed, service)
    return [lane.times.end_ns.tolist() for lane in placed], service.use


def time_ns(table: RequestTime, size: int, in_flight: int = 1) -> float:
    """The time of a request inside of a table: linear in its size, and between the numbers of requests in flight."""
    rows = [np.interp(size, table.sizes, row) for row in table.time_ns]
    return float(np.interp(in_flight, table.in_flight, rows))


def test_a_request_takes_the_time_of_its_operation():
    storage = model(operations={"read": RequestTime.affine(100 * US, 1e9), "open": RequestTime.affine(7 * US)})
    (found,), use = ends(storage, operations(("open", 0, 0, 0, 5), ("read", 0, 0, 1_000_000, 0), ("close", 0, 0, 0, 0)))
    assert found == [7005, 7005 + 1_100_000, 7005 + 1_100_000]
    assert (use.operations.tolist(), use.operation_bytes[0]) == ([1, 0, 1, 1, 0, 0, 0, 0, 0, 0], 1_000_000)
    assert (use.server_ns.tolist(), use.metadata_ns.tolist()) == ([pytest.approx(1_100_000)], [7000])


def test_metadata_has_a_queue_of_its_own():
    opens = Limit(name="opens", each="metadata", operations=("open",), per_s=5e5, counts_requests=True)
    times = {"open": RequestTime.affine(1000), "read": RequestTime.affine(10)}
    opened, storage = (
        operations(("open", 0, 0, 0, 0)),
        model(operations=times, metadata=Servers(slots=1), limits=(opens,)),
    )
    assert ends(storage, opened, opened, read(1))[0] == [[2000], [4000], [10]]


@given(st.integers(0, 50), st.integers(1, 200), st.integers(1, 9), st.integers(1, 5))
def test_the_pieces_of_a_request_are_its_bytes(offset, length, width, count):
    servers = Servers(count=5, stripe_bytes=width, stripe_count=count)
    _, use = ends(model(servers=servers, limits=(Limit(name="s", each="server", per_s=1e9),)), read(length, offset))
    expected = np.bincount(np.arange(offset, offset + length) // width % count, minlength=5)
    assert use.busy_ns[0].tolist() == expected.tolist()


ARRIVALS = st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 900)), min_size=1, max_size=25).map(sorted)
"""Time, ns, and bytes of requests, each of a rank of its own."""


def found(storage, arrivals):
    """When each request ends, ns."""
    return [end for (end,) in ends(storage, *(read(length, due=due) for due, length in arrivals))[0]]


def through(arrivals, ns_per_byte=1):
    """When the bytes of each request are through a pipe: the latest of all begins of its busy period (Lindley)."""
    sums = np.cumsum([0, *(length for _, length in arrivals)])
    return [
        max(arrivals[begin][0] + ns_per_byte * int(sums[last + 1] - sums[begin]) for begin in range(last + 1))
        for last in range(len(arrivals))
    ]


@given(arrivals=ARRIVALS, slots=st.integers(1, 4), service=st.integers(1, 800))
def test_a_server_with_slots_is_a_queue_of_the_kind_g_d_k(arrivals, slots, service):
    """With equal service times requests leave in order: each begins when the one `slots` before it has left."""
    truth: list[int] = []
    for number, (arrival, _) in enumerate(arrivals):
        truth.append(max(arrival, truth[number - slots] if number >= slots else 0) + service)
    storage = model(operations={"read": RequestTime.affine(service)}, servers=Servers(slots=slots))
    assert found(storage, arrivals) == truth


@given(arrivals=ARRIVALS, burst=st.integers(900, 5000))
def test_a_limit_with_a_burst_is_a_token_bucket(arrivals, burst):
    """It is through as much earlier than in a pipe as the burst takes there, but not before it comes."""
    storage = model(limits=(Limit(name="bucket", each="server", per_s=1e9, burst=burst),))
    truth = [max(arrival, end - burst) for (arrival, _), end in zip(arrivals, through(arrivals), strict=True)]
    assert found(storage, arrivals) == truth


@given(arrivals=ARRIVALS, latency=st.integers(0, 2000))
def test_the_slowest_pipe_of_a_row_decides(arrivals, latency):
    """The request begins when all pipes have served the earlier ones, and ends when its bytes are through all."""
    pipes = {"node": 1, "system": 4, "server": 2}
    limits = tuple(Limit(name=each, each=each, per_s=1e9 / ns) for each, ns in pipes.items())
    truth = [
        max(max(arrival, *(passed - ns * length for passed, ns in of)) + latency, *(passed for passed, _ in of))
        for (arrival, length), *of in zip(
            arrivals, *([(end, ns) for end in through(arrivals, ns)] for ns in pipes.values()), strict=True
        )
    ]
    assert found(model(operations={"read": RequestTime.affine(latency)}, limits=limits), arrivals) == truth


@given(arrivals=ARRIVALS, pieces=st.integers(1, 5))
def test_where_requests_count_each_takes_as_long_for_each_piece(arrivals, pieces):
    each = -(-900 // pieces)
    limit = Limit(name="iops", each="server", per_s=1e7, counts_requests=True, request_bytes=each)
    truth = through([(due, -(-length // each)) for due, length in arrivals], 100)
    assert found(model(limits=(limit,)), arrivals) == truth


@given(
    counts=st.sets(st.integers(1, 8), min_size=1, max_size=3),
    sizes=st.sets(st.integers(0, MIB), min_size=1, max_size=3),
    seed=st.integers(0, 99),
    share=st.floats(0, 1),
)
def test_times_are_linear_between_the_values_of_a_table(counts, sizes, seed, share):
    """Of requests that begin together the nth takes the time of n in flight, to the ns above."""
    times = np.random.default_rng(seed).integers(1, 10**6, (len(counts), len(sizes))).astype(float)
    table = RequestTime(in_flight=tuple(sorted(counts)), sizes=tuple(sorted(sizes)), time_ns=tuple(map(tuple, times)))
    size = max(1, round(min(sizes) + share * (max(sizes) - min(sizes))))
    truth = [time_ns(table, size, count) for count in range(1, max(counts) + 1)]
    ended = found(model(operations={"read": table}), [(0, size)] * max(counts))
    assert ended == pytest.approx(np.ceil(truth), abs=1)


RISING = RequestTime(in_flight=(1, 4), sizes=(1000, 2000), time_ns=((10.0, 20.0), (40.0, 80.0)))
FALLING = RequestTime(in_flight=(1, 2), sizes=(1, 10), time_ns=((20.0, 10.0), (5.0, 4.0)))


@pytest.mark.parametrize(
    ("table", "size", "expected"),
    [(RISING, size, [time]) for size, time in ((1, 10), (1000, 10), (4000, 40))]
    + [(RISING, 2000, [*range(20, 141, 20)]), (FALLING, KIB, [10]), (FALLING, 1, [20, 5, 5])],
)
def test_beyond_its_last_values_a_table_goes_on_but_does_not_fall(table, size, expected):
    assert found(model(operations={"read": table}), [(0, size)] * len(expected)) == expected


class Pages:
    """One reader and writer of files, page by page: first in, first out, in the pieces in which they came."""

    def __init__(self, size, dirty, *, dropped):
        self.size, self.most_dirty, self.dropped = size, dirty, dropped
        self.held: set[tuple[int, int]] = set()
        self.entered: list[list[tuple[int, int]]] = []
        self.dirty = {0: 0, 1: 0}

    def insert(self, file, first, last):
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

    def _enter(self, new):
        self.held |= set(new)
        latest = self.entered[-1] if self.entered else []
        follows = latest and latest[-1] == (new[0][0], new[0][1] - 1)
        if follows and (len(latest) + len(new)) * PAGE <= self.size // 64:
            latest += new
        else:
            self.entered.append(new)
        while len(self.held) * PAGE > self.size:
            self.held -= set(self.entered.pop(0))

    def duration(self, name, file, offset, length, _=0):
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


KINDS = st.sampled_from(["read", "read", "read", "write", "open", "sync"])
OPERATION = st.tuples(KINDS, st.integers(0, 1), st.integers(0, 40 * PAGE), st.integers(1, 12 * PAGE), st.just(0))


@given(
    each=st.lists(OPERATION, min_size=1, max_size=60),
    pages=st.sampled_from([1, 8, 30, 200, 1 << 20]),
    dirty=st.sampled_from([0, 60_000]),
    dropped=st.booleans(),
)
def test_what_is_held_is_what_entered_last(each, pages, dirty, dropped):
    truth = Pages(pages * PAGE, dirty, dropped=dropped)
    (ended,), use = ends(cached(size=pages * PAGE, dirty=dirty, dropped_at_open=dropped), operations(*each))
    durations = [truth.duration(*operation) for operation in each]
    assert np.diff([0, *ended]).tolist() == durations
    assert use.hits == sum(name == "read" and time == HIT for (name, *_), time in zip(each, durations, strict=True))


READS = st.tuples(st.integers(0, 2), st.integers(0, 99 * KIB), st.sampled_from([1, PAGE, 40_000]))


@pytest.mark.parametrize("largest_fetch", [0, 28 * KIB])
@given(reads=st.lists(READS, min_size=1, max_size=60), read_ahead=st.sampled_from([5 * PAGE, 128 * KIB, 1 << 20]))
def test_in_a_large_cache_a_page_is_fetched_once(reads, read_ahead, largest_fetch):
    """Three ranks read a file of 25 pages; what one of them has read is there for all, whatever is read ahead."""
    size = int(FILES[1])
    own = [
        [("read", 1, offset, min(length, size - offset), 0) for rank, offset, length in reads if rank == number]
        for number in range(3)
    ]
    own[0] = own[0] or [("read", 1, 0, 1, 0)]
    again = [(*each[:4], 0 if number else 10**9) for number, each in enumerate(own[0] * 2)]
    lanes = [operations(*each) for each in (own[0] + again, *own[1:]) if each]
    ended, use = ends(cached(read_ahead=read_ahead, largest_fetch=largest_fetch), *lanes, ranks=[0] * len(lanes))
    touched = np.zeros(25, dtype=bool)
    for _, _, offset, length, _ in (each for lane in own for each in lane):
        touched[offset // PAGE : (offset + length - 1) // PAGE + 1] = True
    assert touched.sum() * PAGE <= use.request_bytes[0] <= 25 * PAGE
    assert set(np.diff(ended[0][len(own[0]) :]).tolist()) == {HIT}


MOST = 64 * PAGE


@pytest.mark.parametrize(
    ("pages", "fetched", "cache"),
    [
        # Windows of 4, 8, 16, 32 and 64 pages; the next one is fetched when the reader enters what is ahead of him.
        (range(30), {0: 4, 1: 8, 4: 16, 12: 32, 28: 64}, {"read_ahead": MOST}),
        # Behind a run of cached pages (Linux: context), the run and the page; twice where it begins with the file.
        ((100, 90, 80, 70), dict.fromkeys(range(4), 1), {"read_ahead": MOST}),
        ((102, 101, 100, 50, 103, 50, 107), {0: 1, 1: 1, 2: 1, 3: 1, 4: 4, 6: 8}, {"read_ahead": MOST}),
        ((3, 2, 1, 0, 50, 4), {**dict.fromkeys(range(5), 1), 5: 9}, {"read_ahead": MOST}),
        ((102, 101, 100, 50, 103), dict.fromkeys(range(5), 1), {}),
        # The window with the mark leaves a cache of its size; its page is then read twice, and starts nothing.
        ((0, 90, 80, 1, 1), {0: 4, 1: 1, 2: 1, 3: 1}, {"read_ahead": MOST, "size": 4 * PAGE}),
    ],
)
def test_windows_of_read_ahead_are_those_of_linux(pages, fetched, cache):
    """Of reads of one page each, how many pages each makes be fetched."""
    storage, found = cached(**cache), [0]
    for count in range(1, len(pages) + 1):
        rows = operations(*(("read", 0, PAGE * page, 1, MS) for page in pages[:count]))
        found.append(ends(storage, rows)[1].request_bytes[0] // PAGE)
    assert {place: many for place, many in enumerate(np.diff(found).tolist()) if many} == fetched


def test_random_reads_of_a_small_file_grow():
    """A file that fills up at random is read in ever larger pieces. Linux 6.18 has 603 requests for 617 pages after 600
    reads of a page, and 1912 for all 2560 pages (ext4, read-ahead of 8 MiB, counted at the device)."""
    pages = np.random.default_rng(1).permutation(2560).tolist()
    rows = operations(*(("read", 0, PAGE * page, PAGE, MS) for page in pages))
    begun, all_read = (ends(cached(read_ahead=8 * MIB), rows[:count])[1] for count in (600, 2560))
    assert (begun.requests[0], begun.request_bytes[0] // PAGE) == (603, 617)
    assert all_read.request_bytes[0] // PAGE == 2560
    assert all_read.requests[0] == pytest.approx(1912, rel=0.03)


@pytest.mark.parametrize(("kib", "turns"), [(128, 1), (256, 2), (1024, 5), (4096, 17)])
def test_a_large_read_waits_for_the_windows_that_it_is_cut_into(kib, turns):
    """Turns of the server, as counted through libfuse (Linux 6.18): each turn but the first has two windows."""
    storage = cached(read_ahead=128 * KIB, largest_fetch=128 * KIB)
    (ended,), use = ends(storage, read(kib * KIB, offset=4 * MIB))
    assert ended[0] == turns * READ
    assert use.request_bytes[0] >= kib * KIB


@pytest.mark.parametrize(
    ("kib", "pause_ms", "groups", "of", "measured_s"),
    [
        (256, 0, 100, 1, 1.525),
        (256, 16, 100, 1, 1.677),
        (256, 100, 20, 4, 1.951),
        (256, 200, 10, 8, 2.851),
        (256, 400, 8, 12, 3.665),
        (1024, 30, 30, 1, 1.843),
    ],
)
def test_a_throttle_in_steps_is_that_of_linux(kib, pause_ms, groups, of, measured_s):
    """O_DIRECT reads with pauses between groups of them, at 16 MB/s of a control group (Linux 6.18, ext4)."""
    throttle = Limit(name="throttle", each="server", operations=("read",), per_s=16e6, step_ns=100 * MS)
    storage = model(operations={"read": RequestTime.affine(350 * US, 1e9)}, limits=(throttle,))
    begins = [pause_ms * MS if place % of == 0 and place else 0 for place in range(groups * of)]
    (ended,), _ = ends(storage, operations(*(("read", 0, 0, kib * KIB, due) for due in begins)))
    assert ended[-1] / 1e9 == pytest.approx(measured_s, rel=0.06)


def test_a_reader_waits_for_what_is_being_fetched():
    storage = model(**DEVICE, cache=CACHE)
    ended, use = ends(storage, read(PAGE), read(PAGE, due=3000), ranks=[0, 0])
    assert (ended, use.requests[0]) == ([[READ], [READ]], 1)


@pytest.mark.parametrize("storage", [model(**DEVICE), cached()])
def test_a_stream_holds_small_writes(storage):
    each = [("write", 0, at, 2000, 0) for at in (0, 2000, 4000, 6000)]
    rows = operations(*each, ("close", 0, 0, 0, 0), ("close", 0, 0, 0, 0))
    rows["_api"] = APIS.index("STDIO")
    (ended,), use = ends(storage, rows)
    assert np.diff([0, *ended]).tolist() == [0, 0, WRITE, 0, WRITE, 0]
    assert (use.requests[1], use.request_bytes[1]) == (2, 8000)


def test_the_generator_of_the_jitter_is_splitmix64():
    """The reference sequence of the seed 1234567 (rosettacode.org/wiki/Pseudo-random_numbers/Splitmix64)."""
    drawn = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
    storage = model(**DEVICE, jitter=Jitter(quantiles=tuple(map(float, range(1024)))))
    (ended,), _ = ends(storage, operations(*[("read", 0, 0, 1, 0)] * 5), seed=1234567)
    assert np.diff([0, *ended]).tolist() == [READ * (number >> 54) for number in drawn]


def test_scale_makes_all_times_longer():
    storage = model(**DEVICE, cache=CACHE, limits=(Limit(name="pipe", each="system", per_s=1e8),))
    rows = operations(("read", 0, 0, 8192, 0), ("read", 0, 0, 1, 0), ("write", 1, 0, 1, 0))
    once, twice = (ends(storage, rows, scale=scale)[0][0] for scale in (1.0, 2.0))
    assert twice == pytest.approx([2 * time for time in once], abs=2)


def test_an_object_is_put_at_the_close_of_a_file_that_was_written():
    times = {name: RequestTime.affine(ms * MS) for name, ms in (("read", 1), ("open", 3), ("stat", 5), ("rename", 7))}
    put = 2 * MS + 2 * MIB
    steps = [
        (("open", 0, 0, 0, 0), 3 * MS),
        (("write", 0, 0, 1 * MIB, 0), 0),
        (("write", 0, 1 * MIB, 1 * MIB, 0), 0),
        (("sync", 0, 0, 0, 0), 0),
        (("close", 0, 0, 0, 0), put),
        (("close", 0, 0, 0, 0), 0),
        (("read", 1, 0, 100, 0), MS),
        (("read", 1, 100, 0, 0), 0),
        (("close", 1, 0, 0, 0), 0),
        (("rename", 0, 0, 0, 0), 7 * MS),
    ]
    storage = model(operations=times | {"write": RequestTime.affine(2 * MS, 1e9)}, objects=True)
    (ended,), use = ends(storage, operations(*(item for item, _ in steps)))
    assert np.diff([0, *ended]).tolist() == [lasts for _, lasts in steps]
    assert (use.requests.tolist()[:4], use.request_bytes.tolist()[:2]) == ([1, 1, 1, 0], [100, 2 * MIB])
