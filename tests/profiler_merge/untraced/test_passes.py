"""Equal passes over a file are found among accesses of known sizes."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.profiler_merge.untraced.access_sizes import SizedAccesses
from dxt_replay.profiler_merge.untraced.passes import whole_passes


def accesses_of(*streams):
    """Sizes by stream, made to fall."""
    stream = np.repeat(np.arange(len(streams)), [len(sizes) for sizes in streams])
    size = np.concatenate([np.sort(np.array(sizes, dtype=np.int64))[::-1] for sizes in streams])
    return SizedAccesses(stream=stream, size=size)


def moved_by_run(accesses, stream, run):
    mine = accesses.stream == stream
    return np.bincount(run[mine], weights=accesses.size[mine]).astype(int).tolist()


def test_a_last_epoch_that_was_cut_short_leaves_the_others_whole():
    accesses = accesses_of(([10] * 3 + [4, 0]) * 5 + [10, 10])
    run = whole_passes(accesses, np.array([6]), np.array([34]))
    assert moved_by_run(accesses, 0, run) == [34] * 5 + [20]
    assert np.bincount(run[accesses.size == 0]).tolist() == [1] * 5


def test_runs_that_are_no_whole_passes_share_each_size():
    accesses = accesses_of([8] * 6, [7, 5, 3, 3])
    run = whole_passes(accesses, np.array([3, 2]), np.array([0, 9]))
    assert moved_by_run(accesses, 0, run) == [16, 16, 16]
    assert moved_by_run(accesses, 1, run) == [10, 8], "7 and 5 do not add up to two passes of 9"


@given(
    st.lists(st.integers(1, 1 << 20), min_size=1, max_size=6, unique=True),
    st.integers(1, 8),
    st.integers(1, 9),
    st.integers(0, 5),
)
def test_passes_of_a_buffer_and_a_tail_are_whole(sizes, buffers, passes, extra):
    buffer, tail = max(sizes), min(sizes)
    one = [buffer] * buffers + ([tail] if tail < buffer else [])
    rest = [buffer] * min(extra, buffers - 1)
    accesses = accesses_of(one * passes + rest)
    run = whole_passes(accesses, np.array([passes + bool(rest)]), np.array([sum(one)]))
    assert moved_by_run(accesses, 0, run) == [sum(one)] * passes + ([sum(rest)] if rest else [])


@given(st.lists(st.integers(0, 50), min_size=1, max_size=40), st.integers(1, 9), st.integers(0, 300))
def test_every_access_has_a_run_of_its_stream(sizes, runs, extent):
    run = whole_passes(accesses_of(sizes), np.array([runs]), np.array([extent]))
    assert ((run >= 0) & (run < runs)).all()
    assert len(np.unique(run)) == min(runs, len(sizes))
