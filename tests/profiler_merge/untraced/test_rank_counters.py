"""Sharing reduced records out, and which files are the application's."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dxt_replay.profiler_merge.darshan.log import open_log
from dxt_replay.profiler_merge.untraced.rank_counters import NOT_SEEN, SharedFiles, counted_files, is_application_file
from tests.darshan_writer import ModuleSpec, encode_counters, write_log
from tests.profiler_merge.untraced.counted import counted


def shares(files, ranks, uses):
    prepared = {
        rank: (np.array(list(of_rank), dtype=np.uint64), np.array(list(of_rank.values()), dtype=np.int64))
        for rank, of_rank in uses.items()
    }
    shared = SharedFiles(files, ranks, prepared)
    return [shared.of_rank(rank) for rank in range(ranks)]


def test_shares_follow_the_traced_operations():
    """9 opens of 11 reads and 14 seeks each, 3 of them by rank 0."""
    found = shares(counted([{"own": False, "opens": 9, "seeks": 126}]), 2, {0: {1: 33}, 1: {1: 66}})
    assert [share.opens.tolist() for share in found] == [[3], [6]]
    assert [share.seeks.tolist() for share in found] == [[42], [84]]


def test_every_rank_opened_a_file_that_was_reduced():
    found = shares(counted([{"own": False, "opens": 4}]), 4, {2: {1: 1000}})
    assert [int(share.opens[0]) for share in found] == [1, 1, 1, 1]


def test_without_a_trace_ranks_share_alike():
    found = shares(counted([{"own": False, "opens": 8, "syncs": 10}]), 4, {})
    assert [int(share.opens[0]) for share in found] == [2, 2, 2, 2]
    assert sum(int(share.syncs[0]) for share in found) == 10


@example(ranks=3, opens=4, seeks=0, uses={0: 1, 2: 1})  # 1.5, 1 and 1.5 opens: the middle one is rounded away
@given(
    st.integers(1, 12),
    st.integers(0, 20) | st.integers(0, 10**6),
    st.integers(0, 10**6),
    st.dictionaries(st.integers(0, 11), st.integers(1, 10**6)),
)
def test_sums_over_the_ranks_are_exact(ranks, opens, seeks, uses):
    known = {rank: {1: count} for rank, count in uses.items() if rank < ranks}
    found = shares(counted([{"own": False, "opens": opens, "seeks": seeks, "meta_ns": 999}]), ranks, known)
    assert sum(int(share.opens[0]) for share in found) == opens
    assert sum(int(share.seeks[0]) for share in found) == seeks
    assert sum(int(share.meta_ns[0]) for share in found) == 999
    assert all(share.opens[0] >= (opens >= ranks) for share in found)


@given(
    st.integers(2, 12), st.integers(0, 40), st.dictionaries(st.integers(0, 11), st.integers(1, 99)), st.integers(1, 11)
)
def test_ranks_that_are_asked_for_together_have_the_same_shares(ranks, opens, uses, cut):
    files = counted([{"own": False, "opens": opens, "seeks": 7}, {"own": False, "opens": 3, "meta_ns": 999}])
    known = {rank: {1: count} for rank, count in uses.items() if rank < ranks}
    one_by_one = shares(files, ranks, known)
    prepared = {rank: (np.array([1], dtype=np.uint64), np.array([count[1]])) for rank, count in known.items()}
    together = SharedFiles(files, ranks, prepared)
    parts = [together.of_ranks(part) for part in np.split(np.arange(ranks), [min(cut, ranks - 1)])]
    for name in ("opens", "seeks", "meta_ns", "renamed_from", "record_id"):
        expected = [value for share in one_by_one for value in getattr(share, name).tolist()]
        assert [value for part in parts for value in getattr(part, name).tolist()] == expected


@pytest.mark.parametrize(
    ("path", "application"),
    [
        (b"/data/a.h5", True),
        (b"/run/events.out.tfevents.1591846022.host", True),
        (b"/run/events.out.tfevents.1591846022.host.profile-empty", False),
        (b"/run/plugins/profile/2026_01_01/host.trace.json.gz", False),
        (b"/run/host.xplane.pb", False),
        (b"/run/dxt-anchor.host.12.bin", False),
        (b"<STDERR>", False),
        (b"<STDIN>", False),
        (b"", True),
    ],
)
def test_files_of_the_tracing_are_told_apart(path, application):
    assert is_application_file(path) is application


def test_counters_that_say_nothing_are_zero_or_unseen(tmp_path):
    row = {"record_id": 5, "POSIX_OPENS": 7, "POSIX_FILENOS": 2, "POSIX_DUPS": 1, "POSIX_SEEKS": -1,
           "POSIX_F_OPEN_START_TIMESTAMP": 1.5, "POSIX_F_OPEN_END_TIMESTAMP": float("nan")}  # fmt: skip
    modules = {"POSIX": ModuleSpec(version=4, streams=[encode_counters("POSIX", [row], 4)])}
    log = open_log(write_log(tmp_path / "x.darshan", names={5: b"/a"}, modules=modules))
    _, files = counted_files(log, "POSIX")
    assert (files.opens.tolist(), files.seeks.tolist()) == ([4], [0])
    assert (files.open_start.tolist(), files.open_end.tolist()) == ([1_500_000_000], [1_500_000_000])
    assert files.close_end.tolist() == [NOT_SEEN]
    assert len(counted_files(log, "POSIX", {5})[1]) == len(counted_files(log, "STDIO")[1]) == 0
