"""What a calibration asks, for how long, and how its requests are timed."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.slowed_storage import CannotThrottleError, delayed
from dxt_replay.replay.calibration.calibration import cache_bytes, dirty_bytes
from dxt_replay.replay.calibration.scratch import refused, write_data
from dxt_replay.replay.calibration.trials import (
    CALLS,
    COLD,
    GAP_BYTES,
    GET,
    WRITE,
    Probe,
    issue,
    lane_items,
    measure_read_ahead,
    plan_probes,
    scouting_order,
    spread_offsets,
)
from dxt_replay.replay.engine.files import FileSlot
from dxt_replay.replay.engine.issue import Files
from dxt_replay.replay.engine.items import BATCH_ITEMS, OPEN, READ_AT
from dxt_replay.replay.regress.environment import target_environment
from dxt_replay.replay.target import page_cache
from dxt_replay.traces.errors import TargetError, UsageError
from dxt_replay.traces.units import MIB


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_time_that_is_too_short_or_absurd_is_refused(seconds):
    with pytest.raises(UsageError, match=r"give 0\.017 to 1440 minutes"):
        plan_probes(seconds)


@given(st.floats(1.0, 86_400.0), st.booleans())
def test_all_kinds_fit_into_the_time_and_small_ones_come_first(seconds, objects):
    probes, slice_s = plan_probes(seconds, objects=objects)
    kinds = list(CALLS)[list(CALLS).index(GET) :] if objects else list(CALLS)[: list(CALLS).index(GET)]
    assert {probe.kind for probe in probes if probe.in_flight == 1} == set(kinds)
    assert len(set(probes)) == len(probes)
    assert slice_s * len(probes) < seconds or seconds < 5
    in_flight = [probe.size * probe.in_flight for probe in scouting_order(probes)]
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
    assert (np.diff(offsets) >= size + GAP_BYTES).all()


def test_every_lane_does_its_items_with_pauses_until_the_time_is_over(tmp_path):
    (tmp_path / "data").write_bytes(bytes(1 << 20))

    def issued(lanes, seconds):
        slot = FileSlot(path=os.fsencode(tmp_path / "data"), uses=10_000)
        return issue(Files([slot]), lanes, seconds=seconds, doing="test", least=0)

    count = BATCH_ITEMS + 10
    lanes = [lane_items(READ_AT, 0, count, offset=4096 * (np.arange(count) % 256), length=4096) for _ in range(3)]
    kind, begin_ns, end_ns = issued(lanes, 60)
    assert (len(kind), set(kind.tolist())) == (3 * count, {READ_AT})
    assert (np.diff(end_ns) >= 0).all()
    assert (end_ns >= begin_ns).all()
    paused = lane_items(READ_AT, 0, 5, offset=np.arange(5) * 4096, length=4096, pause_ns=3_000_000)
    _, begin_ns, end_ns = issued([paused], 60)
    assert len(end_ns) == 5
    assert (begin_ns[1:] - end_ns[:-1] >= 3_000_000).all()
    slow = lane_items(READ_AT, 0, 100, length=1, pause_ns=1_000_000_000)
    assert len(issued([slow], 0.05)[0]) < 100


def test_what_the_file_system_refuses_is_an_error(tmp_path):
    files = Files([FileSlot(path=os.fsencode(tmp_path / "absent"), uses=1)])
    with pytest.raises(TargetError, match=r"cannot measure it: No such file or directory; choose another --target"):
        issue(files, [lane_items(OPEN, 0, 1)], seconds=60, doing="measure it")
    full = "cannot measure /x: No space left on device; free space there or choose another --target"
    assert str(refused(OSError(errno.ENOSPC, ""), "measure /x")) == full


def test_what_the_machine_says_of_its_memory(tmp_path):
    file = tmp_path / "meminfo"
    file.write_text("MemTotal:       100 kB\nMemAvailable:    64 kB\n")
    assert cache_bytes(file) == 65_536
    file.write_text("MemAvailable: much\n")
    assert cache_bytes(file) == cache_bytes(tmp_path / "absent") == 1 << 30
    for stated, least, most in (("1234", 1234, 1234), ("0", 1, cache_bytes())):
        (tmp_path / "dirty_bytes").write_text(f"{stated}\n")
        (tmp_path / "dirty_ratio").write_text("10\n")
        assert least <= dirty_bytes(tmp_path) <= most


@pytest.fixture
def data(tmp_path):
    path = os.fsencode(tmp_path / "data")
    assert write_data(path, 40 * MIB, 60) == 40 * MIB
    return path


def test_the_window_is_what_the_kernel_says(data):
    """On a file system on a disk of its own, where the kernel says how far it reads ahead."""
    most_kib = target_environment(Path(os.fsdecode(data))).read_ahead_kib
    if page_cache.drop([data]).kept or page_cache.resident([data]).resident_bytes or most_kib is None:
        pytest.skip("pages cannot be dropped here, or the kernel does not say how far it reads ahead")
    found, dropped_at_open = measure_read_ahead(data, 40 * MIB, 60)
    assert not dropped_at_open
    assert (found > 0) == (most_kib > 0)
    assert found <= most_kib << 10
    assert measure_read_ahead(data, 40 * MIB, 60) == (None, False), "a file that is still cached says nothing"


@pytest.mark.skipif(os.geteuid() != 0 or not os.path.exists("/dev/fuse"), reason="needs root and /dev/fuse")
@pytest.mark.parametrize("pages", ["kept", "dropped"])
def test_pages_that_an_open_drops_are_seen(data, pages):
    """Through FUSE; "dropped" is libfuse's default. Its window is 128 KiB, however slow the file system is."""
    try:
        with delayed(Path(os.fsdecode(data)).parent, 6000, pages=pages) as mount:
            path = os.fsencode(mount / "data")
            page_cache.drop([path])
            found = measure_read_ahead(path, 40 * MIB, 60)
    except CannotThrottleError as error:
        pytest.skip(str(error))
    assert found == (128 << 10, pages == "dropped")
