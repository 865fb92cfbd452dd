"""C streams, of which only number, bytes, highest offset and times are counted."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.profiler_merge.darshan.counters import CounterTable
from dxt_replay.profiler_merge.untraced.data_rows import CountedBatch, CountedData, data_rows
from dxt_replay.profiler_merge.untraced.file_operations import FileOperations
from dxt_replay.profiler_merge.untraced.transfers import transfers_of
from dxt_replay.traces.schema import READ, WRITE
from tests.profiler_merge.untraced.counted import counted

UNKNOWN_NS = 77
_TIMES = ("read_start", "read_end", "write_start", "write_end", "open_end", "close_start", "open_start", "close_end",
          "read_ns", "write_ns", "longest_write_ns", "opens")  # fmt: skip


def made(files):
    """Rows of files that are given by counters and by columns of `CountedFiles`."""
    names = {name for each in files for name in each} - {*_TIMES}
    values = {f"STDIO_{name}": np.array([each.get(name, 0) for each in files], dtype=np.int64) for name in names}
    ids = np.arange(len(files), dtype=np.uint64)
    table = CounterTable(module="STDIO", ranks=np.zeros(len(files), int), record_ids=ids, counters=values, fcounters={})
    known = counted([{name: value for name, value in each.items() if name in _TIMES} for each in files])
    data = CountedData(own=transfers_of(table, "STDIO", np.ones(len(files), bool)), shared=None, patterns=None)
    none = np.empty(0, dtype=np.int64)
    traced = FileOperations(file=none, start=none, end=none, offset=none, length=none, is_write=none.astype(bool))
    return data_rows(known, CountedBatch.of([data]), traced, np.full(len(files), UNKNOWN_NS))


def stream(**columns):
    return made([columns]).rows


def test_a_single_write_takes_the_whole_window():
    rows = stream(WRITES=1, BYTES_WRITTEN=100, MAX_BYTE_WRITTEN=99, write_start=1000, write_end=5000, write_ns=3000)
    assert (rows.op.tolist(), rows.start.tolist(), rows.end.tolist()) == ([WRITE], [1000], [5000])
    assert (rows.offset.tolist(), rows.length.tolist()) == ([0], [100])


def test_writes_are_spread_evenly_and_add_up():
    rows = stream(WRITES=3, BYTES_WRITTEN=8, MAX_BYTE_WRITTEN=7, write_start=0, write_end=100, write_ns=30)
    assert sorted(rows.length.tolist()) == [2, 3, 3]
    assert rows.offset.tolist() == [0, *np.cumsum(rows.length)[:-1].tolist()]
    assert list(zip(rows.start.tolist(), rows.end.tolist(), strict=True)) == [(0, 10), (45, 55), (90, 100)]


@pytest.mark.parametrize(("longest", "durations"), [(20, [20, 5, 5]), (9, [10, 10, 10]), (30, [10, 10, 10])])
def test_the_first_is_as_long_as_the_longest_was(longest, durations):
    """Where the others are left with less; a longest operation that leaves them no time at all is not believed."""
    columns = {"WRITES": 3, "BYTES_WRITTEN": 8, "MAX_BYTE_WRITTEN": 7, "write_start": 0, "write_end": 100}
    rows = stream(**columns, write_ns=30, longest_write_ns=longest)
    assert (rows.end - rows.start).tolist() == durations
    assert (int(rows.start[0]), int(rows.end[-1])) == (0, 100)


def test_what_is_read_again_starts_over():
    rows = stream(READS=4, BYTES_READ=40, MAX_BYTE_READ=19, read_start=0, read_end=100, read_ns=4)
    assert rows.op.tolist() == [READ] * 4
    assert rows.offset.tolist() == [0, 10, 0, 10]


def test_what_is_appended_ends_at_the_last_byte():
    rows = stream(WRITES=2, BYTES_WRITTEN=20, MAX_BYTE_WRITTEN=99, write_start=0, write_end=100)
    assert rows.offset.tolist() == [80, 90]


def test_without_times_the_open_and_the_close_bound_it():
    columns = {"WRITES": 2, "BYTES_WRITTEN": 20, "MAX_BYTE_WRITTEN": 19, "write_ns": 100}
    rows = stream(**columns, open_start=500, open_end=500, close_start=900, close_end=900)
    assert (rows.start.min(), rows.end.max()) == (500, 900)
    assert stream(WRITES=1, BYTES_WRITTEN=1).start.tolist() == [UNKNOWN_NS]


COUNTS = st.integers(0, 40)


@given(st.lists(st.tuples(COUNTS, st.integers(0, 10**7), st.integers(0, 10**6), st.integers(0, 10**6)), max_size=5))
def test_sums_are_exact_and_rows_do_not_overlap(cases):
    rows = made(
        [
            {
                "WRITES": count, "BYTES_WRITTEN": moved, "MAX_BYTE_WRITTEN": moved // 2,
                "write_start": begin, "write_end": begin + width, "write_ns": width // 2,
            }
            for count, moved, begin, width in cases
        ]
    ).rows  # fmt: skip
    for number, (count, moved, begin, width) in enumerate(cases):
        mine = rows.file == number
        assert mine.sum() == count
        if not count:
            continue
        assert rows.length[mine].sum() == moved
        assert (rows.start[mine].min(), rows.end[mine].max()) >= (begin, begin)
        assert rows.end[mine].max() <= begin + width
        assert np.all(rows.start[mine][1:] >= rows.end[mine][:-1])
        assert np.all(rows.offset[mine] >= 0)
        ends = rows.offset[mine] + rows.length[mine]
        assert ends.max() <= max(moved // 2 + 1, rows.length[mine].max())
