"""What a calibration asks and for how long; and from times to a storage model: intervals, disturbed trials, throttles,
and what simulate will read."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.replay.calibration import fit, trials
from dxt_replay.replay.calibration.fit import Measured
from dxt_replay.replay.calibration.trials import CALLS, COLD, GET, WRITE, Probe, plan_probes, spread_offsets
from dxt_replay.replay.simulation.model import Limit, PageCache, RequestTime, StorageModel
from tests.replay.simulation.test_simulated_storage import time_ns

KIB = 1 << 10
SMALL, LARGE, WINDOW = 4 * KIB, 1 << 20, 128 * KIB


@given(st.floats(1.0, 86_400.0), st.booleans())
def test_all_kinds_fit_into_the_time_and_small_ones_come_first(seconds, objects):
    probes, slice_s = plan_probes(seconds, objects=objects)
    kinds = list(CALLS)[list(CALLS).index(GET) :] if objects else list(CALLS)[: list(CALLS).index(GET)]
    assert {probe.kind for probe in probes if probe.in_flight == 1} == set(kinds)
    assert len(set(probes)) == len(probes)
    assert slice_s * len(probes) < seconds or seconds < 5
    in_flight = [probe.size * probe.in_flight for probe in trials.scouting_order(probes)]
    assert in_flight == sorted(in_flight)


def test_more_time_measures_more_and_slower_than_slow_is_known():
    for objects in (False, True):
        counts = [len(plan_probes(seconds, objects=objects)[0]) for seconds in (2, 15, 180)]
        assert counts[0] < counts[1] < counts[2]
    small = Probe(COLD, 4096, 4)
    larger = [Probe(kind, 8192, count).exceeds(small) for kind in (COLD, WRITE) for count in (4, 2)]
    assert (larger, small.exceeds(small)) == ([True, False, False, False], False)


@given(st.integers(0, 1 << 24), st.integers(1, 1 << 20), st.integers(0, 100))
def test_cold_reads_never_touch_each_other(file_bytes, size, seed):
    offsets = np.sort(spread_offsets(file_bytes, size, np.random.default_rng(seed)))
    assert not len(offsets) or (offsets[0] > 0 and offsets[-1] + size <= file_bytes)
    assert (np.diff(offsets) >= size + trials.GAP_BYTES).all()


def test_the_interval_holds_the_median_as_often_as_promised():
    """Of a skewed distribution too: nothing is assumed about it. One outlier of 12 does not widen the interval, and few
    trials give their whole range."""
    random, true = np.random.default_rng(5), np.log(2.0)
    found = [fit.interval(random.exponential(size=12)) for _ in range(1000)]
    assert sum(low <= true <= high for _, low, high in found) > 935
    assert fit.interval([*range(1, 12), 1e9])[2] == 10.0
    assert fit.interval([3.0, 1.0, 2.0]) == (2.0, 1.0, 3.0)


def test_a_measured_call_has_the_median_of_its_trials_means():
    """What trials differ by does not shrink with their number, unlike the interval of the median."""
    found = Measured.of("read", "cold", 4096, 2, [np.array([100, 300]), np.array([200, 200, 200]), np.array([1000])])
    assert (found.time_ns, found.requests, np.mean(found.spread)) == (200.0, 6, pytest.approx(1.0))
    assert found.bytes_per_s == pytest.approx(2 * 4096 / 200e-9)
    assert found.as_json()["mean_us"] == pytest.approx({"value": 0.2, "low": 0.2, "high": 1.0, "trials": 3})
    few, many = (
        Measured.of("read", "cold", 4096, 1, [np.full(10, each) for each in np.linspace(0.8, 1.2, count) * 1e6])
        for count in (10, 200)
    )
    assert (few.between_trials, many.between_trials) == pytest.approx((0.2, 0.18), abs=0.005)
    assert many.high_ns - many.low_ns < 0.1 * many.time_ns


def stalled(size, time_us, *, state="cached", stall_ms=0.0):
    """Two trials of which the second has a stall amid its reads, as where another program takes the processor."""
    quiet = np.full(500, 1000.0 * time_us)
    disturbed = quiet.copy()
    disturbed[100:103] += stall_ms * 1e6
    return Measured.of("read", state, size, 1, [quiet, disturbed])


SOUND = [stalled(4096, 1.96), stalled(LARGE, 134), stalled(4096, 90, state="cold"), stalled(65_536, 200, state="cold")]
WRONG = stalled(65_536, 13.4, stall_ms=2300)


@pytest.mark.parametrize(
    ("sound", "wrong"),
    [
        (SOUND, [WRONG]),  # above a larger request
        ([SOUND[0], SOUND[3]], [WRONG]),  # a cached read above the cold one
        ([SOUND[0]], [WRONG]),  # the largest request, above its share
        # All were disturbed: no neighbour shows it, but most reads of each size do.
        ([], [stalled(size, time, stall_ms=5) for size, time in ((512, 1.0), (4096, 1.1), (16_384, 2.9))]),
        ([*SOUND, stalled(65_536, 7000)], []),  # what is always slow is a property of the storage
        ([*SOUND, stalled(65_536, 13.4)], []),
    ],
)
def test_a_disturbed_trial_is_found_by_what_lies_beside_it(sound, wrong):
    assert fit.doubtful([*sound, *wrong]) == wrong


@pytest.mark.parametrize("disturbed", [True, False])
def test_a_figure_is_never_above_what_95_pct_take(disturbed):
    assert WRONG.time_ns == pytest.approx(6.9e6, rel=0.02), "the mean of two trials"
    mended = fit.settled(WRONG, disturbed=disturbed)
    assert mended.time_ns == pytest.approx(13_400)
    assert mended.low_ns <= mended.time_ns <= mended.p95_ns
    assert mended.high_ns > 1e7, "what was measured stays in the interval"


IN_FLIGHT, SIZES, STEP_S = 4, (4096, 32_768, 262_144, 2_097_152), 0.1
COUNT = np.arange(1, 20_000)


def pass_through(bytes_per_s=1e15, per_s=1e12, seconds=2.0):
    """How reads of each size pass two throttles of a control group, which lets requests through in steps of STEP_S,
    where the storage itself takes 20 us a read and 1 GB/s."""
    found = []
    for size in SIZES:
        steps = np.maximum(np.ceil(COUNT * size / bytes_per_s / STEP_S), np.ceil(COUNT / per_s / STEP_S)) - 1
        ended = np.maximum(steps * STEP_S, COUNT * (20e-6 + size / 1e9))
        found.append(fit.passed(size, IN_FLIGHT, (ended[ended < seconds] * 1e9).astype(np.int64)))
    return found


@pytest.mark.parametrize(
    ("throttle", "limits"),
    [
        ({}, []),
        ({"bytes_per_s": 10e6}, [(False, 10e6)]),
        ({"per_s": 200}, [(True, 200)]),
        ({"bytes_per_s": 50e6, "per_s": 1000}, [(False, 50e6), (True, 1000)]),
    ],
)
def test_throttles_of_bytes_and_of_requests(throttle, limits):
    found = fit.throttles(pass_through(**throttle))
    assert [each.counts_requests for each in found] == [counts for counts, _ in limits]
    assert [each.per_s for each in found] == pytest.approx([per_s for _, per_s in limits], rel=0.05)
    if len(found) == 1:
        assert found[0].burst == pytest.approx(found[0].per_s * STEP_S / 2, rel=0.3), "half a step, on the average"
        assert (found[0].operations, found[0].request_bytes) == (("read",), 0)
        assert found[0].step_ns == pytest.approx(STEP_S * 1e9, rel=0.03)


def test_a_large_request_that_counts_for_several():
    (limit,) = fit.throttles([*pass_through(per_s=200)[:-1], fit.Passed(SIZES[-1], 0.0, 100.0, False)])
    assert limit.request_bytes == SIZES[-1] // 2


@pytest.mark.parametrize(
    ("ended", "seen"),
    [
        (np.maximum((COUNT * 4096 - 1e6) / 10e6, COUNT * 20e-6), (True, 0.0)),  # a token bucket, without steps
        (np.linspace(0.01, 1.4, 2000) ** 2, (False, 0.0)),  # slower and slower
        (np.concatenate([np.arange(1, 800) / 800, 1.0 + np.arange(1, 640) / 640]), (False, 0.0)),  # a faster begin
        *((np.array(few, dtype=float), None) for few in ([], [1, 2, 3], [5, 5, 5, 5])),
    ],
)
def test_what_a_throttle_is(ended, seen):
    found = fit.passed(4096, IN_FLIGHT, (ended[ended < 2.0] * 1e9).astype(np.int64))
    assert (found and (found.throttled, found.step_s)) == seen


THROTTLE = Limit(name="throttle", each="server", operations=("read",), per_s=1e6, burst=1000)


def measured(call, state, size, in_flight, time_us):
    times = np.linspace(0.5, 1.5, 101) * time_us * 1000
    return Measured.of(call, state, size, in_flight, [times, 1.1 * times, 0.9 * times])


COLD_US = {(SMALL, 1): 100, (LARGE, 1): 1000, (SMALL, 8): 200, (LARGE, 8): 6000, (SMALL, 64): 1200}
READS = [measured("read", "cold", *place, time) for place, time in COLD_US.items()]
CACHED = [measured("read", "cached", SMALL, 1, 2), measured("read", "cached", SMALL, 8, 9)]
CACHE = PageCache(size=1 << 30, read_ahead=WINDOW, dirty=1 << 28)


def fitted(*more, cached=CACHED, **changes):
    return fit.fit_model([*cached, *READS, *more], **{"name": "a disk", "limits": (), "cache": CACHE, **changes})


def test_cold_reads_become_a_table_and_cached_ones_the_cache():
    model = fitted(measured("open", "", 0, 1, 8))
    read, cache = model.operations["read"], model.cache
    assert (read.in_flight, read.sizes) == ((1, 8, 64), (SMALL, LARGE))
    # Not measured: the large read with 64 in flight grows as it did with fewer.
    us = {**COLD_US, (LARGE, 64): 1200 * 30}
    assert [time_ns(read, *place) for place in us] == pytest.approx([1000 * time for time in us.values()])
    assert (cache.size, cache.read_ahead, cache.dirty) == (1 << 30, WINDOW, 0)
    assert time_ns(cache.hit, SMALL) == pytest.approx(2000)
    # How single reads vary is the jitter, and how trials vary the uncertainty.
    assert np.mean(model.jitter.quantiles) == pytest.approx(1.0, abs=0.001)
    assert model.jitter.quantiles[0] == pytest.approx(0.5, abs=0.02)
    assert model.uncertainty == pytest.approx(0.1, rel=0.01)
    behind = fitted(limits=(THROTTLE,))
    assert (behind.limits, behind.operations["read"].in_flight) == ((THROTTLE,), (1,)), "single reads alone"


def test_where_nothing_is_cached_there_is_no_cache_and_disturbed_figures_widen_the_uncertainty():
    slow = [measured("read", "cached", size, 1, time) for size, time in ((SMALL, 95), (LARGE, 980))]
    assert fitted(cache=None).cache is fitted(cached=slow).cache is None
    assert fitted(least_uncertainty=0.25).uncertainty == 0.25


@pytest.mark.parametrize(
    ("write_us", "synced_us", "sync_us", "dirty", "found_us"),
    [
        # Writes that end in the cache are paid by the sync; others are as measured.
        ((3, 200), (4, 250), (500, 2500), 1 << 28, (500, 2000)),
        ((5000, 9000), (5000, 9000), (5000, 5100), 0, (5000, 9000)),
    ],
)
def test_writes(write_us, synced_us, sync_us, dirty, found_us):
    calls = {("write", ""): write_us, ("write", "synced"): synced_us, ("sync", ""): sync_us}
    pairs = [(call, *pair) for call, both in calls.items() for pair in zip((SMALL, LARGE), both, strict=True)]
    model = fitted(*(measured(*call, size, 1, time) for call, size, time in pairs))
    assert model.cache.dirty == dirty
    assert not dirty or time_ns(model.cache.write, LARGE) == pytest.approx(200_000)
    sync, write = model.operations["sync"], model.operations["write"]
    assert (time_ns(sync, 0), time_ns(write, LARGE)) == pytest.approx((1000 * found_us[0], 1000 * found_us[1]))


def steady(time_ms, size=64 * KIB, state="cold"):
    return Measured.of("read", state, size, 1, [np.full(60, time_ms * 1e6)])


FUSE = [steady(8.2, 4 * KIB), steady(8.2, WINDOW), steady(16.5, 2 * WINDOW), steady(41.9, LARGE)]
"""As measured through libfuse with a delay of 8 ms: 1 MiB is read in five turns of windows of 128 KiB (Linux 6.18)."""


def read_ahead_model(*cold):
    times = RequestTime(sizes=tuple(each.size for each in cold), time_ns=(tuple(each.time_ns for each in cold),))
    cache = PageCache(size=1 << 30, hit=RequestTime.affine(2000, 5e9), read_ahead=WINDOW)
    return StorageModel(name="x", operations={"read": times}, cache=cache)


def test_large_reads_that_wait_for_their_parts_are_cut_and_sequential_ones_show_the_error():
    model = fit.with_largest_fetch(read_ahead_model(*FUSE), FUSE)
    assert model.cache.largest_fetch == WINDOW
    disk = [steady(0.1, 4 * KIB), steady(0.2, WINDOW), steady(0.22, LARGE)]
    assert fit.with_largest_fetch(read_ahead_model(*disk), disk) == read_ahead_model(*disk), "parts in flight together"
    assert fit.model_error(model, [*FUSE, steady(2.2, state="sequential")]) < 0.1
    assert fit.model_error(model, [*FUSE, steady(8.2, state="sequential")]) > 2, "as if nothing were read ahead"
    assert fit.model_error(model, FUSE) == 0.0
