"""Offsets from anchors, thread hashes, and both on the real captures."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.profiler_merge.clocks.alignment import anchor_pid, profile_anchors
from dxt_replay.profiler_merge.clocks.nesting import align_nesting, nesting_events
from dxt_replay.profiler_merge.clocks.offsets import (
    QUANTUM_NS,
    align_anchors,
    align_seconds,
    align_wall,
    line_ids_of_threads,
    thread_hash,
)
from dxt_replay.profiler_merge.darshan.log import open_log
from dxt_replay.profiler_merge.log_rows import read_log_rows
from dxt_replay.profiler_merge.profiles.xplane import find_profiles, read_profile
from dxt_replay.traces.errors import AlignmentError
from dxt_replay.traces.schema import READ
from tests.places import CAPTURES

EPOCH = 1_795_000_000_000_000_000


def ints(*values):
    return np.array(values, np.int64)


def test_wall():
    exact, whole = align_wall(EPOCH, has_nsec=True), align_wall(EPOCH, has_nsec=False)
    assert (exact.method, exact.offset_ns) == ("wall", 0)
    assert exact.interval_ns == (-60_000_000, 0)
    assert whole.interval_ns == (-60_000_000, 1_000_000_000)
    assert whole.residual_ns == 1_000_000_000
    with pytest.raises(AlignmentError, match="does not say when"):
        align_wall(0, has_nsec=True)


def test_seconds():
    given_offset = align_seconds(-0.0123)
    assert given_offset.interval_ns == (-12_300_000, -12_300_000)
    assert given_offset.method == "seconds"
    for bad in (float("nan"), float("inf"), 1e10):
        with pytest.raises(AlignmentError):
            align_seconds(bad)


def test_anchors_intersect():
    start = ints(1000, 5000, 9000) + EPOCH
    mark_start, mark_end = start - ints(500, 100, 40) - 7_000_000, start + ints(600, 300, 200) - 7_000_000
    found = align_anchors(ints(0, 1, 2), start, start + 50, ints(0, 1, 2), mark_start, mark_end)
    assert found.method == "anchors"
    assert found.interval_ns == (-7_000_040, -7_000_000 + 150)
    assert found.offset_ns == -7_000_000 + 55
    assert found.residual_ns == 95
    assert found.evidence["pairs"] == 3
    assert "widened_ns" not in found.evidence


def test_anchors_are_paired_by_number():
    start = ints(1000, 2000, 3000)
    found = align_anchors(ints(4, 7, 9), start, start + 10, ints(9, 9, 4, 5), ints(0, 0, 1095, 0), ints(1, 1, 1115, 1))
    assert found.evidence["pairs"] == 1
    assert found.interval_ns == (95, 105)
    with pytest.raises(AlignmentError, match="no anchor is in both the log \\(1\\) and the profile \\(2\\)"):
        align_anchors(ints(1), ints(0), ints(1), ints(2, 3), ints(0, 0), ints(9, 9))


def test_constraints_that_miss_by_a_quantum_are_widened():
    found = align_anchors(ints(0, 1), ints(0, 1000), ints(10, 1010), ints(0, 1), ints(0, 1220), ints(20, 1400))
    assert found.evidence["widened_ns"] == QUANTUM_NS
    assert found.interval_ns == (220 - QUANTUM_NS, 10 + QUANTUM_NS)


def test_constraints_are_widened_up_to_two_quanta_and_no_further():
    """Each of both times may be off by one; beyond that the clocks drift, or contradict each other."""

    def missing_by(gap):
        marks = ints(0, 1010 + gap), ints(20, 5000)
        return align_anchors(ints(0, 1), ints(0, 1000), ints(10, 1010), ints(0, 1), *marks)

    widest = missing_by(2 * QUANTUM_NS)
    assert widest.interval_ns == (10 + QUANTUM_NS, 10 + QUANTUM_NS)
    assert widest.evidence["widened_ns"] == QUANTUM_NS
    with pytest.raises(AlignmentError, match="contradict each other"):
        missing_by(2 * QUANTUM_NS + 1)


def test_contradicting_anchors_are_named():
    start = np.arange(6) * 1_000_000
    shift = ints(0, 0, 0, 5_000_000, 0, 0)
    with pytest.raises(AlignmentError, match=r"anchors 13 and 10 contradict each other by .* ms"):
        align_anchors(10 + np.arange(6), start, start + 10, 10 + np.arange(6), start - 50 + shift, start + 60 + shift)


def test_two_contradicting_anchors_are_no_drift():
    with pytest.raises(AlignmentError, match="contradict"):
        align_anchors(
            ints(0, 1), ints(0, 10**9), ints(10, 10**9 + 10), ints(0, 1), ints(0, 10**9 + 5000), ints(20, 10**9 + 5020)
        )


@given(
    delta=st.integers(0, 60_000_000),
    before=st.lists(st.integers(0, 100_000), min_size=1, max_size=10),
    seed=st.integers(0, 1000),
)
def test_the_true_offset_is_never_excluded(delta, before, seed):
    rng = np.random.default_rng(seed)
    count = len(before)
    mark_start = EPOCH + np.sort(rng.integers(0, 10**10, count))
    true_start = mark_start + np.array(before)
    true_end = true_start + rng.integers(0, 50_000, count)
    mark_end = true_end + rng.integers(0, 100_000, count)
    noise = rng.integers(-QUANTUM_NS // 2, QUANTUM_NS // 2 + 1, (2, count))
    found = align_anchors(
        np.arange(count),
        true_start + delta + noise[0],
        true_end + delta + noise[1],
        np.arange(count),
        mark_start,
        mark_end,
    )
    low, high = found.interval_ns
    assert low - QUANTUM_NS <= -delta <= high + QUANTUM_NS
    assert low <= found.offset_ns <= high


@given(ppm=st.floats(-500, 500).filter(lambda ppm: abs(ppm) > 2), seed=st.integers(0, 1000))
def test_drift_is_fitted_when_no_constant_fits(ppm, seed):
    rng = np.random.default_rng(seed)
    mark = EPOCH + np.sort(rng.integers(0, 60 * 10**9, 40))
    elapsed = (mark - EPOCH).astype(float)
    log = mark + 5_000_000 - np.rint(elapsed * ppm * 1e-6).astype(np.int64)
    found = align_anchors(np.arange(40), log, log + 1_000, np.arange(40), mark - 1_000, mark + 2_000)
    assert np.abs(found.realtime_ns(log) - mark).max() < 2_500
    spread = abs(np.ptp(log - mark))
    if spread > 3_500:
        assert found.evidence["drift_ppm"] == pytest.approx(ppm / (1 - ppm * 1e-6), abs=4_000 / np.ptp(elapsed) * 1e6)


def test_realtime_without_drift():
    found = align_seconds(2.0)
    assert found.realtime_ns(ints(EPOCH, EPOCH + 5)).tolist() == [EPOCH + 2_000_000_000, EPOCH + 2_000_000_005]


def test_thread_hash():
    threads = np.array([1, 140447194946432, 139876543210112], np.uint64)
    hashes = thread_hash(threads)
    assert hashes.tolist() == [-2717241881944355145, -885178545513550233, -4082000802068330826]
    low = [2850328247, 2145267303, 3688597174]
    assert line_ids_of_threads(threads, hashes).tolist() == hashes.tolist()
    assert line_ids_of_threads(threads, np.array(low)).tolist() == low
    assert thread_hash(np.empty(0, np.uint64)).dtype == np.int64


def _cases(*names):
    if not CAPTURES.is_dir():
        return [pytest.param(None, marks=pytest.mark.skip(reason="no captures beside the checkout"))]
    folders = [
        path
        for path in sorted(CAPTURES.iterdir())
        if (path / "job.darshan").exists() and (not names or path.name in names)
    ]
    return [pytest.param(path, id=path.name) for path in folders]


def _ranks(folder):
    """(log, segments, profile, rows of the anchor writes) of every rank."""
    log = open_log(folder / "job.darshan")
    names = {key: name.decode("utf-8", "replace") for key, name in log.names.items()}
    found = read_log_rows(log)
    anchors = [file for file, key in enumerate(found.records.tolist()) if anchor_pid(names[key].encode()) is not None]
    for place, rank in enumerate(found.ranks.tolist()):
        (path,) = find_profiles(folder / "profile" / f"rank{rank}")
        rows = found.of_rank(place)
        yield log, rows, read_profile(path), np.flatnonzero(np.isin(rows["file"], anchors))


def _by_anchors(log, segments, profile, rows):
    marks = profile_anchors(profile)
    start = log.job.start_ns
    return align_anchors(
        segments["offset"][rows] // 64,
        segments["start_ns"][rows] + start,
        segments["end_ns"][rows] + start,
        marks["i"],
        marks["start_ns"],
        marks["end_ns"],
    )


@pytest.mark.parametrize("folder", _cases())
def test_anchors_of_real_captures(folder):
    ranks = list(_ranks(folder))
    assert len(ranks) == 2
    for log, segments, profile, rows in ranks:
        found = _by_anchors(log, segments, profile, rows)
        assert found.evidence["pairs"] == 6
        assert 0 < found.interval_ns[1] - found.interval_ns[0] <= 5_000
        assert -61_000_000 < found.offset_ns < -1_000_000


@pytest.mark.parametrize("folder", _cases("imagenet", "cosmoflow", "cosmoflow_threads"))
@pytest.mark.parametrize("with_epoch", [True, False])
def test_nesting_alone_agrees_with_the_anchors(folder, with_epoch):
    for log, segments, profile, rows in _ranks(folder):
        truth = _by_anchors(log, segments, profile, rows)
        reads = segments["op"] == READ
        threads = line_ids_of_threads(segments["thread"][reads], profile.line_ids)
        threads = threads if segments["thread"].all() else None
        (events,) = nesting_events(profile)
        assert events.event_class == "dataset"
        found = align_nesting(
            segments["start_ns"][reads] + log.job.start_ns,
            segments["end_ns"][reads] + log.job.start_ns,
            events.start_ns,
            events.end_ns,
            segment_thread=threads,
            event_thread=events.line_id,
            **({} if with_epoch else {"window_ns": None}),
        )
        assert abs(found.offset_ns - truth.offset_ns) < 50_000
        assert found.interval_ns[0] <= truth.interval_ns[1]
        assert truth.interval_ns[0] <= found.interval_ns[1]
        assert found.evidence["share"] == 1.0
        assert found.evidence["threads"] == (folder.name == "cosmoflow_threads")


@pytest.mark.parametrize("folder", _cases())
def test_nesting_is_right_or_refuses(folder):
    """Nine applications, most of which read in the training thread: an answer must hold the truth."""
    for log, segments, profile, rows in _ranks(folder):
        truth = _by_anchors(log, segments, profile, rows)
        reads = segments["op"] == READ
        for events in nesting_events(profile):
            try:
                found = align_nesting(
                    segments["start_ns"][reads] + log.job.start_ns,
                    segments["end_ns"][reads] + log.job.start_ns,
                    events.start_ns,
                    events.end_ns,
                )
            except AlignmentError:
                continue
            assert found.interval_ns[0] <= truth.interval_ns[1]
            assert truth.interval_ns[0] <= found.interval_ns[1]


@pytest.mark.parametrize("folder", _cases("cosmoflow_threads"))
def test_threads_join_exactly(folder):
    profiles = {int(segments["rank"][0]): profile for _, segments, profile, _ in _ranks(folder)}
    for _, segments, _, _ in _ranks(folder):
        inside = segments["file"][segments["op"] == READ]
        threads = np.unique(segments["thread"][np.isin(segments["file"], inside)])
        for rank, profile in profiles.items():
            hits = np.isin(line_ids_of_threads(threads, profile.line_ids), profile.line_ids)
            assert hits.all() if rank == segments["rank"][0] else not hits.any()
