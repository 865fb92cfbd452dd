"""The simulated storage: what each part of a model does, by hand, by formula and as measured on Linux."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.replay.simulation.model import (
    Jitter,
    Limit,
    RequestTime,
    Servers,
)
from dxt_replay.traces.schema import APIS
from tests.replay.simulation.storage_cases import CACHE, DEVICE, KIB, MIB, MS, US, ends, model, operations, read


def test_a_request_takes_the_time_of_its_operation() -> None:
    storage = model(operations={"read": RequestTime.affine(100 * US, 1e9), "open": RequestTime.affine(7 * US)})
    (found,), use = ends(storage, operations(("open", 0, 0, 0, 5), ("read", 0, 0, 1_000_000, 0), ("close", 0, 0, 0, 0)))
    assert found == [7005, 7005 + 1_100_000, 7005 + 1_100_000]
    assert use.operations.tolist() == [1, 0, 1, 1, 0, 0, 0, 0, 0, 0]
    assert use.operation_bytes[0] == 1_000_000
    assert (use.server_ns.tolist(), use.metadata_ns.tolist()) == ([pytest.approx(1_100_000)], [7000])


@given(
    offset=st.integers(0, 50), length=st.integers(1, 200), width=st.integers(1, 9), count=st.integers(1, 5),
)  # fmt: skip
def test_the_pieces_of_a_request_are_its_bytes(offset, length, width, count) -> None:
    servers = Servers(count=5, stripe_bytes=width, stripe_count=count)
    storage = model(servers=servers, limits=(Limit(name="server", each="server", per_s=1e9),))
    _, use = ends(storage, read(length, offset=offset))
    expected = np.zeros(5)
    for at in range(offset, offset + length):
        expected[at // width % count] += 1
    assert use.busy_ns[0].tolist() == expected.tolist()


def test_metadata_has_a_queue_of_its_own() -> None:
    storage = model(
        operations={"open": RequestTime.affine(1000), "read": RequestTime.affine(10)},
        metadata=Servers(slots=1),
        limits=(Limit(name="opens", each="metadata", operations=("open",), per_s=5e5, counts_requests=True),),
    )
    opened = operations(("open", 0, 0, 0, 0))
    found, _ = ends(storage, opened, opened, read(1))
    assert found == [[2000], [4000], [10]]


def test_windows_of_read_ahead_grow_as_in_linux() -> None:
    """Windows of 4, 8, 16, 32 and 64 pages; the next one is fetched when the reader enters what is ahead of him."""
    cache = msgspec.structs.replace(CACHE, size=1 << 30, read_ahead=64 * 4096)
    fetched = []
    for reads in (1, 2, 4, 5, 12, 13, 29):
        rows = operations(*(("read", 0, 4096 * page, 4096, 1 << 20) for page in range(reads)))
        fetched.append(ends(model(**DEVICE, cache=cache), rows)[1].request_bytes[0] // 4096)
    assert fetched == [4, 12, 12, 28, 28, 60, 124]


def _fetched(*reads, read_ahead=64 * 4096):
    """Pages that each of several reads makes be fetched; a read is a page of the largest file, or (page, rank)."""
    cache = msgspec.structs.replace(CACHE, size=1 << 30, read_ahead=read_ahead)
    storage, placed = model(**DEVICE, cache=cache), [each if isinstance(each, tuple) else (each, 0) for each in reads]
    found = [0]
    for count in range(1, len(placed) + 1):
        lanes = [
            operations(*(("read", 0, 4096 * page, 1, MS) for page, rank in placed[:count] if rank == own))
            for own in sorted({rank for _, rank in placed[:count]})
        ]
        found.append(ends(storage, *lanes)[1].request_bytes[0] // 4096)
    return np.diff(found).tolist()


def test_reads_behind_a_run_of_cached_pages_fetch_more_the_longer_it_is() -> None:
    """What Linux calls context: the run and the page; twice the run where it reaches back to the begin of the file."""
    assert _fetched(100, 90, 80, 70) == [1, 1, 1, 1]
    assert _fetched(102, 101, 100, 50, 103) == [1, 1, 1, 1, 4]
    assert _fetched(102, 101, 100, 50, 103, 50, 107) == [1, 1, 1, 1, 4, 0, 8]
    assert _fetched(3, 2, 1, 0, 50, 4) == [1, 1, 1, 1, 1, 9]
    assert _fetched(102, 101, 100, 50, 103, read_ahead=0) == [1, 1, 1, 1, 1]


def test_a_mark_goes_with_its_page() -> None:
    """The window with the mark leaves a cache of its size; its page is then read again, twice, and starts nothing."""
    cache = msgspec.structs.replace(CACHE, size=4 * 4096, read_ahead=64 * 4096)
    rows = operations(*(("read", 0, 4096 * page, 1, MS) for page in (0, 90, 80, 1, 1)))
    assert ends(model(**DEVICE, cache=cache), rows)[1].request_bytes[0] // 4096 == 7


def test_random_reads_of_a_small_file_grow() -> None:
    """A file that fills up at random is read in ever larger pieces. Linux 6.18 has 603 requests for 617 pages after 600
    reads of a page, and 1912 for all 2560 pages (ext4, read-ahead of 8 MiB, counted at the device)."""
    pages = np.random.default_rng(1).permutation(2560).tolist()
    cache = msgspec.structs.replace(CACHE, size=1 << 30, read_ahead=8 * MIB)
    rows = operations(*(("read", 0, 4096 * page, 4096, MS) for page in pages))
    begun, all_read = (ends(model(**DEVICE, cache=cache), rows[:count])[1] for count in (600, 2560))
    assert (begun.requests[0], begun.request_bytes[0] // 4096) == (603, 617)
    assert all_read.request_bytes[0] // 4096 == 2560
    assert all_read.requests[0] == pytest.approx(1912, rel=0.03)


@pytest.mark.parametrize(("kib", "turns"), [(128, 1), (256, 2), (1024, 5), (4096, 17)])
def test_a_large_read_waits_for_the_windows_that_it_is_cut_into(kib, turns) -> None:
    """Turns of the server, as counted through libfuse (Linux 6.18): each turn but the first has two windows."""
    cache = msgspec.structs.replace(CACHE, size=1 << 30, read_ahead=128 * KIB, largest_fetch=128 * KIB)
    (found,), use = ends(model(**DEVICE, cache=cache), read(kib * KIB, offset=4 * MIB))
    assert found[0] == turns * 10 * US
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
def test_a_throttle_in_steps_is_that_of_linux(kib, pause_ms, groups, of, measured_s) -> None:
    """O_DIRECT reads with pauses between groups of them, at 16 MB/s of a control group (Linux 6.18, ext4)."""
    throttle = Limit(name="throttle", each="server", operations=("read",), per_s=16e6, step_ns=100 * MS)
    storage = model(operations={"read": RequestTime.affine(350 * US, 1e9)}, limits=(throttle,))
    begins = [pause_ms * MS if place % of == 0 and place else 0 for place in range(groups * of)]
    (found,), _ = ends(storage, operations(*(("read", 0, 0, kib * KIB, due) for due in begins)))
    assert found[-1] / 1e9 == pytest.approx(measured_s, rel=0.06)


def test_a_reader_waits_for_what_is_being_fetched() -> None:
    rows = operations(("read", 0, 0, 4096, 0))
    found, use = ends(model(**DEVICE, cache=CACHE), rows, read(4096, due=3000), ranks=[0, 0])
    assert found == [[10_000], [10_000]]
    assert use.requests[0] == 1


@pytest.mark.parametrize("cache", [None, msgspec.structs.replace(CACHE, size=1 << 30)])
def test_a_stream_holds_small_writes(cache) -> None:
    each = [("write", 0, at, 2000, 0) for at in (0, 2000, 4000, 6000)]
    rows = operations(*each, ("close", 0, 0, 0, 0), ("close", 0, 0, 0, 0))
    rows["_api"] = APIS.index("STDIO")
    (found,), use = ends(model(**DEVICE, cache=cache), rows)
    assert np.diff([0, *found]).tolist() == [0, 0, 50_000, 0, 50_000, 0]
    assert (use.requests[1], use.request_bytes[1]) == (2, 8000)


def test_the_generator_of_the_jitter_is_splitmix64() -> None:
    """The reference sequence of the seed 1234567 (rosettacode.org/wiki/Pseudo-random_numbers/Splitmix64)."""
    drawn = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
    storage = model(**DEVICE, jitter=Jitter(quantiles=tuple(map(float, range(1024)))))
    (found,), _ = ends(storage, operations(*[("read", 0, 0, 1, 0)] * 5), seed=1234567)
    assert np.diff([0, *found]).tolist() == [10_000 * (number >> 54) for number in drawn]


def test_scale_makes_all_times_longer() -> None:
    storage = model(**DEVICE, cache=CACHE, limits=(Limit(name="pipe", each="system", per_s=1e8),))
    rows = operations(("read", 0, 0, 8192, 0), ("read", 0, 0, 1, 0), ("write", 1, 0, 1, 0))
    once, twice = (ends(storage, rows, scale=scale)[0][0] for scale in (1.0, 2.0))
    assert twice == pytest.approx([2 * time for time in once], abs=2)


def test_an_object_is_put_at_the_close_of_a_file_that_was_written() -> None:
    times = {
        "read": RequestTime.affine(1 * MS), "write": RequestTime.affine(2 * MS, 1e9),
        "open": RequestTime.affine(3 * MS), "stat": RequestTime.affine(5 * MS), "rename": RequestTime.affine(7 * MS),
    }  # fmt: skip
    storage = model(operations=times, objects=True)
    (found,), use = ends(
        storage,
        operations(
            ("open", 0, 0, 0, 0),
            ("write", 0, 0, 1 * MIB, 0),
            ("write", 0, 1 * MIB, 1 * MIB, 0),
            ("sync", 0, 0, 0, 0),
            ("close", 0, 0, 0, 0),
            ("close", 0, 0, 0, 0),
            ("read", 1, 0, 100, 0),
            ("read", 1, 100, 0, 0),
            ("close", 1, 0, 0, 0),
            ("rename", 0, 0, 0, 0),
        ),
    )
    put = 3 * MS + 2 * MS + 2 * MIB
    assert found == [3 * MS, 3 * MS, 3 * MS, 3 * MS, put, put, put + MS, put + MS, put + MS, put + 8 * MS]
    assert (use.requests.tolist()[:4], use.request_bytes.tolist()[:2]) == ([1, 1, 1, 0], [100, 2 * MIB])
