"""Streams: number and bytes exact, inside the recorded window, through the file from its start."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from profiler_merge.untraced.rank_counters import NOT_SEEN
from profiler_merge.untraced.stdio_rows import stream_operations, stream_rows
from tests.profiler_merge.untraced.counted import counted
from traces.schema import READ, WRITE


def made(**columns):
    files = counted([columns])
    return stream_rows(files, np.full(1, 77, dtype=np.int64))


def test_a_single_write_takes_the_whole_window():
    rows = made(writes=1, bytes_written=100, max_byte_written=99, write_start=1000, write_end=5000, write_ns=3000)
    assert (rows.op.tolist(), rows.start.tolist(), rows.end.tolist()) == ([WRITE], [1000], [5000])
    assert (rows.offset.tolist(), rows.length.tolist()) == ([0], [100])


def test_writes_are_spread_evenly_and_add_up():
    rows = made(writes=3, bytes_written=8, max_byte_written=7, write_start=0, write_end=100, write_ns=30)
    assert rows.length.tolist() == [3, 3, 2]
    assert rows.offset.tolist() == [0, 3, 6]
    assert list(zip(rows.start.tolist(), rows.end.tolist(), strict=True)) == [(0, 10), (45, 55), (90, 100)]


def test_what_is_read_again_starts_over():
    rows = made(reads=4, bytes_read=40, max_byte_read=19, read_start=0, read_end=100, read_ns=4)
    assert rows.op.tolist() == [READ] * 4
    assert rows.offset.tolist() == [0, 10, 0, 10]


def test_what_is_appended_ends_at_the_last_byte():
    rows = made(writes=2, bytes_written=20, max_byte_written=99, write_start=0, write_end=100)
    assert rows.offset.tolist() == [80, 90]


def test_without_times_the_open_and_the_close_bound_it():
    rows = made(writes=2, bytes_written=20, max_byte_written=19, open_end=500, close_start=900, write_ns=100)
    assert (rows.start.min(), rows.end.max()) == (500, 900)
    assert made(writes=1, bytes_written=1).start.tolist() == [77]


COUNTS = st.integers(0, 40)


@given(st.lists(st.tuples(COUNTS, st.integers(0, 10**7), st.integers(0, 10**6), st.integers(0, 10**6)), max_size=5))
def test_sums_are_exact_and_rows_do_not_overlap(cases):
    files = counted(
        [
            {
                "writes": count, "bytes_written": moved, "max_byte_written": moved // 2,
                "write_start": begin, "write_end": begin + width, "write_ns": width // 2, "read_start": NOT_SEEN,
            }
            for count, moved, begin, width in cases
        ]
    )  # fmt: skip
    rows = stream_rows(files, np.zeros(len(files), dtype=np.int64))
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
    ordered = stream_operations(rows)
    assert np.all(np.diff(ordered.file) >= 0)
    assert len(ordered) == len(rows)
