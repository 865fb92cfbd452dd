"""Placement of opens, closes, stats and syncs: numbers are the counters', whatever the evidence."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dxt_replay.profiler_merge.rebuild.counted import NOT_SEEN
from dxt_replay.profiler_merge.rebuild.metadata import CLOSE, OPEN, STAT, SYNC, metadata_rows
from dxt_replay.traces.schema import OPS
from tests.examples import examples
from tests.profiler_merge.rebuild.counted import counted


def operations(rows):
    """From (file, start, end, offset, length, is_write), sorted here."""
    columns = [np.array(column) for column in zip(*sorted(rows), strict=True)] if rows else [np.empty(0, int)] * 6
    file, start, end, offset, length, is_write = columns
    names = {"file": file, "start": start, "end": end, "offset": offset, "length": length}
    return names | {"is_write": is_write.astype(bool), "begins": np.ones(len(file), dtype=bool)}


def placed(files, rows, unknown_ns=5):
    made = metadata_rows(files, operations(rows), np.full(len(files), unknown_ns))
    made = made[np.lexsort((made["tie"], made["end_ns"], made["start_ns"]))]
    return [(OPS[op], *rest) for op, *rest in made[["op", "file", "start_ns", "end_ns", "offset"]].tolist()]


ONE_PASS = {"opens": 1, "open_start": 100, "open_end": 120, "close_start": 900, "close_end": 910, "meta_ns": 50}


def test_one_open_and_close_have_their_recorded_times():
    assert placed(counted([ONE_PASS]), [(0, 200, 300, 0, 10, False)]) == [
        ("open", 0, 100, 120, -1),
        ("close", 0, 900, 910, -1),
    ]


def test_what_is_left_of_the_metadata_time_is_shared_out():
    file = ONE_PASS | {"opens": 1, "open_end": 2_120, "close_end": 50_910, "close_start": 50_900, "meta_ns": 10_010}
    rows = placed(counted([file | {"stats": 1, "seeks": 1}]), [(0, 40_000, 50_000, 0, 10, False)])
    # The open took 2,020 of the 10,010 ns, the close 10, a seek takes 1,000: the stat took the rest.
    assert [row[:4] for row in rows] == [
        ("open", 0, 100, 2_120), ("stat", 0, 2_120, 9_100), ("close", 0, 50_900, 50_910)
    ]  # fmt: skip


def test_rows_are_shortened_to_the_gap_that_is_there():
    rows = placed(counted([ONE_PASS | {"stats": 3, "meta_ns": 5000}]), [(0, 123, 300, 0, 10, False)])
    assert [row[2:4] for row in rows[1:4]] == [(120, 121), (121, 122), (122, 123)]


def test_an_open_between_is_where_a_pass_begins():
    """Three passes; offset 40 is no return to the start."""
    file = ONE_PASS | {"opens": 3, "open_end": 620, "close_start": 395, "meta_ns": 60}
    reads = [(0, 200, 210, 0, 50, False), (0, 300, 310, 40, 50, False), (0, 390, 395, 90, 0, False),
             (0, 500, 510, 0, 90, False), (0, 650, 660, 0, 90, False)]  # fmt: skip
    rows = placed(counted([file]), reads)
    assert [(op, start, end) for op, _, start, end, _ in rows] == [
        ("open", 100, 110), ("close", 395, 405), ("open", 490, 500),
        ("close", 510, 520), ("open", 610, 620), ("close", 900, 910),
    ]  # fmt: skip


@pytest.mark.parametrize("opens", [1, 2, 3, 4])
@pytest.mark.parametrize("read_ns", [[1_000], [4_000_000_000], [1_000, 2_000_000_000], []])
def test_closes_take_no_more_than_was_counted_of_metadata(opens, read_ns):
    """First and last close are 3.653 s apart; Darshan counted 7 us (F_META_TIME) of all opens and closes together."""
    times = {"open_start": 100, "open_end": 200, "close_start": 100_000, "close_end": 3_653_100_000, "meta_ns": 7_000}
    rows = placed(counted([{"opens": opens} | times]), [(0, at, at + 10, 0, 10, False) for at in read_ns])
    assert sum(end - start for op, _, start, end, _ in rows if op == "close") <= 7_000
    assert [end for op, _, _, end, _ in rows if op == "close"][-1:] == [3_653_100_000]


def test_slow_opens_are_not_given_to_closes():
    """Darshan counts the opens and closes of both passes as one time. The last close came 2 ns after the last read."""
    file = ONE_PASS | {"opens": 2, "open_end": 560, "close_start": 300, "close_end": 672, "meta_ns": 124}
    reads = [(0, 160, 300, 0, 90, False), (0, 560, 670, 0, 90, False)]
    rows = placed(counted([file]), reads)
    assert [(op, start, end) for op, _, start, end, _ in rows] == [
        ("open", 100, 160), ("close", 300, 302), ("open", 500, 560), ("close", 670, 672),
    ]  # fmt: skip


def test_syncs_follow_the_writes():
    file = ONE_PASS | {"syncs": 2, "spent_ns": (0, 100)}
    writes = [(0, 200 + 50 * i, 210 + 50 * i, 10 * i, 10, True) for i in range(4)]
    rows = placed(counted([file]), writes)
    assert [(start, end) for op, _, start, end, _ in rows if op == "sync"] == [(260, 290), (360, 390)]


def test_a_reduced_record_opens_each_rank_before_its_own_first_read():
    file = ONE_PASS | {"own": False, "open_end": 800}
    assert placed(counted([file]), [(0, 500, 600, 0, 10, False)])[0][2:4] == (475, 500)


def test_what_is_read_after_the_last_close_was_not_closed():
    file = ONE_PASS | {"opens": 2, "open_end": 300, "close_start": 150, "close_end": 160}
    ops = [row[0] for row in placed(counted([file]), [(0, 500, 600, 0, 10, False)])]
    assert Counter(ops) == {"open": 2, "close": 1}


def test_an_open_file_at_the_end_of_the_run_was_never_closed():
    file = ONE_PASS | {"close_start": NOT_SEEN, "close_end": NOT_SEEN}
    assert [row[0] for row in placed(counted([file]), [(0, 500, 600, 0, 10, False)])] == ["open"]


def test_what_nothing_dates_follows_one_another():
    files = counted([{"stats": 2, "meta_ns": 20}, {"stats": 1, "meta_ns": 7}])
    assert [row[2:4] for row in placed(files, [])] == [(5, 15), (15, 25), (25, 32)]


def files_and_operations():
    count = st.integers(0, 6)
    time = st.integers(0, 4000)

    @st.composite
    def build(draw):
        files, rows = [], []
        for number in range(draw(st.integers(1, 4))):
            opening, closing = sorted((draw(time), draw(time)))
            seen = draw(st.booleans())
            files.append(
                {
                    "own": draw(st.booleans()), "opens": draw(count), "stats": draw(count), "seeks": draw(count),
                    "syncs": draw(count), "meta_ns": draw(time), "spent_ns": (0, draw(time)),
                    "open_start": opening, "open_end": draw(st.integers(opening, 4500)),
                    "close_start": draw(st.integers(0, closing)) if seen else NOT_SEEN,
                    "close_end": closing if seen else NOT_SEEN,
                }
            )  # fmt: skip
            for _ in range(draw(count)):
                start = draw(time)
                rows.append(
                    (number, start, start + draw(st.integers(0, 300)), draw(st.sampled_from([0, 10, 20])),
                     draw(st.sampled_from([0, 10])), draw(st.booleans()))
                )  # fmt: skip
        return files, rows

    return build()


@settings(max_examples=examples(300))
@given(files_and_operations())
def test_numbers_are_exact_and_durations_not_negative(case):
    files, rows = case
    made = metadata_rows(counted(files), operations(rows), np.zeros(len(files), dtype=np.int64))
    assert np.all(made["end_ns"] >= made["start_ns"])
    for number, file in enumerate(files):
        mine = Counter(made["op"][made["file"] == number].tolist())
        assert mine[OPEN] == file["opens"]
        assert mine[STAT] == file["stats"]
        assert mine[SYNC] == file["syncs"]
        assert mine[CLOSE] <= file["opens"]
        assert set(mine) <= {OPEN, STAT, SYNC, CLOSE}, "seeks are counted only"
        if file["close_end"] == NOT_SEEN:
            assert mine[CLOSE] == 0
    assert np.all(made["offset"] == -1)
    assert not made["length"].any()


@given(st.integers(1, 8), st.integers(1, 5))
def test_n_passes_have_n_opens_each_before_its_pass(passes, reads):
    rows = []
    for each in range(passes):
        for i in range(reads):
            start = 1000 * each + 100 * i + 200
            rows.append((0, start, start + 50, 10 * i, 10, False))
    last = 1000 * (passes - 1)
    file = {"opens": passes, "open_start": 100, "open_end": last + 120, "close_start": 900, "close_end": last + 910,
            "meta_ns": 10 * passes}  # fmt: skip
    found = placed(counted([file]), rows)
    assert [op for op, *_ in found] == ["open", "close"] * passes
    for each in range(passes):
        opening, closing = found[2 * each], found[2 * each + 1]
        assert 1000 * each - 1000 < opening[2] <= opening[3] <= 1000 * each + 200
        assert closing[2] >= 1000 * each + 100 * (reads - 1) + 250


@pytest.mark.parametrize("opens", [5, 50])
def test_opens_without_a_read_are_spread_over_their_window(opens):
    file = {"opens": opens, "open_start": 1000, "open_end": 9000, "close_start": 1500, "close_end": 9500}
    rows = placed(counted([file]), [])
    times = [start for op, _, start, _, _ in rows if op == "open"]
    assert len(times) == opens
    assert min(times) == 1000
    assert max(times) <= 9000
    assert np.ptp(np.diff(times)) <= 2 * 8000 / opens
