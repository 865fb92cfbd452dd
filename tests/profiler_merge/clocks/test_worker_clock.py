"""Clocks of DataLoader workers: made ones of a known offset, and recorded ones held against what must precede what."""

import numpy as np
import pytest

from dxt_replay.profiler_merge.clocks.alignment import align_rank, align_worker, worker_offset
from dxt_replay.profiler_merge.darshan.jobs import open_job
from dxt_replay.profiler_merge.given_files import find_profiles
from dxt_replay.profiler_merge.log_rows import read_log_rows
from dxt_replay.profiler_merge.profiles.reading import read_profile
from tests.places import CAPTURES, recorded

MS = 1_000_000
EPOCH = 1_795_000_000_000_000_000
BATCH = 16


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


@pytest.mark.skipif(not (CAPTURES / "torch_images").is_dir(), reason="no recorded captures beside this checkout")
def test_no_recorded_batch_is_read_after_it_was_fetched_or_before_it_was_asked_for():
    """The two workers of an epoch read 16 files a batch in turn, and may be four batches ahead."""
    folder = CAPTURES / "torch_images"
    job = open_job(sorted((folder / "logs").glob("*.darshan")))
    (path,) = find_profiles(folder / "profile")
    profile = read_profile([path])
    rows = np.flatnonzero(profile.names_matching(r"enumerate.*Multi.*__next__")[profile.name])
    asked, answered = np.sort(profile.start_ns[rows]), np.sort(profile.end_ns[rows])
    placed = 0
    for process in job.processes[1:]:
        log = read_log_rows(process.log)
        rows = log.rows
        found = align_worker(rows, log.clock, profile)
        if found is None:
            continue
        placed += 1
        epoch, turn = divmod(process.worker - 1, 2)
        first = (rows["offset"] == 0) & (rows["length"] > 0)
        begin = rows["start_ns"][first][::BATCH] + process.log.job.start_ns
        last = np.maximum.reduceat(rows["end_ns"][rows["length"] > 0], np.arange(0, first.sum(), BATCH))
        fetch = epoch * 26 + 2 * np.arange(len(begin)) + turn
        at_most = (answered[fetch] - last - process.log.job.start_ns).min()
        at_least = (asked[fetch[2:] - 4] - begin[2:]).max()
        assert at_least - 100_000 <= found.interval_ns[1]
        assert at_most >= found.interval_ns[0]
        assert found.residual_ns < 4 * MS
    assert placed >= 6


def test_a_rank_without_a_profile_leaves_its_workers_on_the_wall_clock():
    folder = recorded("captures/torch_eval")
    job = open_job(sorted((folder / "logs").glob("*.darshan")))
    log = read_log_rows(job.processes[1].log)
    assert align_worker(log.rows, log.clock, None) is None
    assert align_rank(log.rows, log.clock, None, "auto", 0)[0].method == "wall"
