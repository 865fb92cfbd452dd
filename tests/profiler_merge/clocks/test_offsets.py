"""Offsets from anchors and from nesting, on made-up evidence whose offset is known."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dxt_replay.profiler_merge.clocks import offsets
from dxt_replay.profiler_merge.clocks.alignment import worker_offset
from dxt_replay.profiler_merge.clocks.offsets import (
    ANCHOR,
    QUANTUM_NS,
    align_anchors,
    align_nesting,
    align_seconds,
    align_wall,
    line_ids_of_threads,
    thread_hash,
)
from dxt_replay.traces.errors import AlignmentError
from tests.examples import examples

EPOCH, MS = 1_795_000_000_000_000_000, 1_000_000


def anchors(numbers, start, end):
    found = np.zeros(len(numbers), ANCHOR)
    found["i"], found["start_ns"], found["end_ns"] = numbers, start, end
    return found


def test_the_clocks_that_are_trusted():
    assert align_wall(EPOCH, has_nsec=True).interval_ns == (-60 * MS, 0)
    whole = align_wall(EPOCH, has_nsec=False)
    assert (whole.method, whole.offset_ns, whole.interval_ns) == ("wall", 0, (-60 * MS, 1000 * MS))
    assert whole.residual_ns == 1000 * MS
    with pytest.raises(AlignmentError, match="does not say when"):
        align_wall(0, has_nsec=True)
    given_offset = align_seconds(-0.0123)
    assert (given_offset.method, given_offset.interval_ns) == ("seconds", (-12_300_000, -12_300_000))
    assert given_offset.realtime_ns(np.array([EPOCH])).tolist() == [EPOCH - 12_300_000]
    for bad in (float("nan"), float("inf"), 1e10):
        with pytest.raises(AlignmentError):
            align_seconds(bad)


SIX = np.arange(6) * MS
BOTH = ([0, 1], [0, 1000], [10, 1010])


@pytest.mark.parametrize(
    ("log", "marks", "interval"),
    [
        (
            ([0, 1, 2], [1000, 5000, 9000], [1050, 5050, 9050]),
            ([0, 1, 2], [500, 4900, 8960], [1600, 5300, 9200]),
            (-40, 150),
        ),
        # Anchors are paired by number; one that occurs twice is left out.
        (
            ([4, 7, 9], [1000, 2000, 3000], [1010, 2010, 3010]),
            ([9, 9, 4, 5], [0, 0, 1095, 0], [1, 1, 1115, 1]),
            (95, 105),
        ),
        (([1], [0], [1]), ([2, 3], [0, 0], [9, 9]), "no anchor is in both the log \\(1\\) and the profile \\(2\\)"),
        # What misses by up to two quanta is widened by one: each of both times may be off by one.
        (BOTH, ([0, 1], [0, 1220], [20, 1400]), (220 - QUANTUM_NS, 10 + QUANTUM_NS)),
        (BOTH, ([0, 1], [0, 1010 + 2 * QUANTUM_NS], [20, 5000]), (10 + QUANTUM_NS, 10 + QUANTUM_NS)),
        (BOTH, ([0, 1], [0, 1011 + 2 * QUANTUM_NS], [20, 5000]), "anchors 1 and 0 contradict each other"),
        (
            (10 + np.arange(6), SIX, SIX + 10),
            (10 + np.arange(6), SIX - 50 + np.eye(6)[3] * 5 * MS, SIX + 60 + np.eye(6)[3] * 5 * MS),
            r"anchors 13 and 10 contradict each other by .* ms",
        ),
    ],
)
def test_anchors(log, marks, interval):
    if isinstance(interval, str):
        with pytest.raises(AlignmentError, match=interval):
            align_anchors(anchors(*log), anchors(*marks))
        return
    found = align_anchors(anchors(*log), anchors(*marks))
    assert (found.method, found.interval_ns) == ("anchors", interval)
    assert found.offset_ns == sum(interval) // 2
    assert found.residual_ns == (interval[1] - interval[0] + 1) // 2


@given(
    delta=st.integers(0, 60 * MS),
    before=st.lists(st.integers(0, 100_000), min_size=1, max_size=10),
    seed=st.integers(0, 1000),
)
def test_the_true_offset_is_never_excluded(delta, before, seed):
    rng = np.random.default_rng(seed)
    count = len(before)
    mark_start = EPOCH + np.sort(rng.integers(0, 10**10, count))
    true_start = mark_start + np.array(before)
    true_end = true_start + rng.integers(0, 50_000, count)
    noise = rng.integers(-QUANTUM_NS // 2, QUANTUM_NS // 2 + 1, (2, count))
    log = anchors(np.arange(count), true_start + delta + noise[0], true_end + delta + noise[1])
    found = align_anchors(log, anchors(np.arange(count), mark_start, true_end + rng.integers(0, 100_000, count)))
    low, high = found.interval_ns
    assert low - QUANTUM_NS <= -delta <= high + QUANTUM_NS
    assert low <= found.offset_ns <= high


@given(ppm=st.floats(-500, 500).filter(lambda ppm: abs(ppm) > 2), seed=st.integers(0, 1000))
def test_drift_is_fitted_when_no_constant_fits(ppm, seed):
    rng = np.random.default_rng(seed)
    mark = EPOCH + np.sort(rng.integers(0, 60 * 10**9, 40))
    elapsed = (mark - EPOCH).astype(float)
    log = mark + 5 * MS - np.rint(elapsed * ppm * 1e-6).astype(np.int64)
    found = align_anchors(anchors(np.arange(40), log, log + 1_000), anchors(np.arange(40), mark - 1_000, mark + 2_000))
    assert np.abs(found.realtime_ns(log) - mark).max() < 2_500
    if abs(np.ptp(log - mark)) > 3_500:
        assert found.evidence["drift_ppm"] == pytest.approx(ppm / (1 - ppm * 1e-6), abs=4_000 / np.ptp(elapsed) * 1e6)


def test_thread_hash():
    threads = np.array([1, 140447194946432, 139876543210112], np.uint64)
    hashes = thread_hash(threads)
    assert hashes.tolist() == [-2717241881944355145, -885178545513550233, -4082000802068330826]
    low = [2850328247, 2145267303, 3688597174]
    assert line_ids_of_threads(threads, hashes).tolist() == hashes.tolist()
    assert line_ids_of_threads(threads, np.array(low)).tolist() == low
    assert line_ids_of_threads(threads, np.array([*low, -1])).tolist() == hashes.tolist()


# Nesting.


def made(seed, offset=-7 * MS, reads=200, threads=4, idle=300):
    """Reads inside events of 5 to 40 us, one in three events holding one, and `idle` events that hold none.

    Returns (starts, ends, threads) of the reads, `offset` away on their own clock, and of the events.
    """
    rng = np.random.default_rng(seed)
    count = reads + idle
    start = EPOCH + np.sort(rng.integers(0, 4_000_000_000, count))
    end = start + rng.integers(5_000, 40_000, count)
    thread = rng.integers(0, threads, count)
    holds = np.sort(rng.permutation(count)[:reads])
    begin = start[holds] + rng.integers(200, 2_000, reads)
    stop = np.maximum(begin, end[holds] - rng.integers(200, 2_000, reads))
    order = rng.permutation(reads)
    return [(begin - offset)[order], (stop - offset)[order], thread[holds][order]], [start, end, thread]


@settings(max_examples=examples(30))
@given(seed=st.integers(0, 10_000), offset=st.integers(-60 * MS, 0), threaded=st.booleans())
def test_the_offset_is_found(seed, offset, threaded):
    reads, events = made(seed, offset)
    if not threaded:
        reads[2], events[2] = reads[2] * 0, events[2] * 0
    found = align_nesting(reads, events)
    low, high = found.interval_ns
    assert low <= offset <= high < low + 5_000
    assert (found.method, found.residual_ns) == ("nesting", (high - low + 1) // 2)


def test_what_does_not_count_against_an_offset():
    reads, events = made(1)
    # Without an epoch the whole range is searched.
    undated = [events[0] - EPOCH, events[1] - EPOCH, events[2]]
    assert align_nesting(reads, undated, window_ns=None).interval_ns[0] <= -7 * MS - EPOCH
    # Reads outside of the profile.
    early = reads[0][:150] - 30_000_000_000
    more = [np.append(early, reads[0]), np.append(early + 10, reads[1]), np.append(reads[2][:150], reads[2])]
    low, high = align_nesting(more, events).interval_ns
    assert low <= -7 * MS <= high
    # A crowd of events in another place that all could hold one of the reads.
    reads, events = made(3, reads=40, idle=40)
    crowd = np.full(500, reads[0][0] - 30 * MS - 100)
    both = [
        np.append(events[0], crowd),
        np.append(events[1], crowd + 60_000),
        np.append(events[2], np.repeat(reads[2][0], 500)),
    ]
    low, high = align_nesting(reads, both).interval_ns
    assert low <= -7 * MS <= high


PERIODIC = EPOCH + np.arange(200) * 10 * MS
REGULAR = [PERIODIC, PERIODIC + 9, np.zeros(200, int)], [PERIODIC - 5_000, PERIODIC + 15_000, np.zeros(200, int)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r, e: ([each[:0] for each in r], e), "needs reads in the log \\(0 found"),
        (lambda r, e: (r, [each[:0] for each in e]), "events around them in the profile \\(0 found"),
        (lambda r, e: ([each[:4] for each in r], e), "only 4 of 4 reads"),
        (lambda r, e: ([r[0], r[1] + 10**9, r[2]], e), "only 0 of 200 reads"),
        (lambda r, e: (r, [e[0] - 10**12, e[1] - 10**12, e[2]]), "only 0 of 200 reads"),
        (lambda r, e: ([r[0], r[1], r[2] + 100], e), "only 0 of 200 reads"),
        (lambda r, e: (r, [e[0], e[1] + 30 * MS, e[2]]), "fix the offset only|times as many reads"),
        (lambda r, e: (made(6)[0], made(7)[1]), "of 200 reads lie|times as many reads"),  # another process
        (lambda r, e: REGULAR, "times as many reads"),  # every period fits nearly as well
    ],
)
def test_weak_answers_are_refused(change, message):
    with pytest.raises(AlignmentError, match=message):
        align_nesting(*change(*made(5)))


def test_many_pairs_are_sampled_and_chunked(monkeypatch):
    reads, events = made(8, reads=600, idle=600)
    whole = align_nesting(reads, events)
    monkeypatch.setattr(offsets, "_MAX_PAIRS", 20_000)
    assert align_nesting(reads, events) == whole


# Workers of a DataLoader.


def loop(offset_ns, *, steps=40, seed=5, jitter=6.0):
    """Reads of one of two workers on its own clock, and the requests of the training thread, one a step."""
    random = np.random.default_rng(seed)
    asked = EPOCH + np.cumsum(random.uniform(40 - jitter, 40 + jitter, steps) * MS).astype(np.int64)
    answered = asked + (random.uniform(0.8, 1.8, steps) * MS).astype(np.int64)
    starts, ends = [], []
    for request in answered[::2].tolist():
        now = request + int(random.uniform(-0.3, 0.5) * MS)
        for _ in range(8):
            starts.append(now)
            now += MS
            ends.append(now)
            now += MS // 5
    return np.array(starts) - offset_ns, np.array(ends) - offset_ns, asked, answered


@pytest.mark.parametrize("offset_ns", [-2 * MS, -17 * MS, -45 * MS])
def test_a_worker_that_wakes_when_it_is_asked_is_placed(offset_ns):
    found = worker_offset(*loop(offset_ns))
    assert found is not None
    assert found.interval_ns[0] <= offset_ns <= found.interval_ns[1]
    assert abs(found.offset_ns - offset_ns) < 2 * MS
    assert found.residual_ns < 4 * MS


def test_a_worker_without_pauses_or_one_that_pauses_at_any_time_is_not():
    start, end, asked, answered = loop(-5 * MS)
    without_pauses = np.arange(len(start)) * 2 * MS + start[0]
    assert worker_offset(without_pauses, without_pauses + MS, asked, answered) is None
    anywhere = start + np.repeat(np.random.default_rng(1).integers(-15 * MS, 15 * MS, len(start) // 8), 8)
    assert worker_offset(anywhere, anywhere + MS, asked, answered) is None
    assert worker_offset(start, end, asked[:0], answered[:0]) is None
