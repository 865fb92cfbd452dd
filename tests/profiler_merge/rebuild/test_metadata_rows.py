"""Metadata and offsets beside what was traced: numbers are the counters', offsets are repaired where they can be."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dxt_replay.profiler_merge.rebuild.counted import COUNTED, NOT_SEEN, TIMES
from dxt_replay.profiler_merge.rebuild.metadata import metadata_rows
from dxt_replay.profiler_merge.rebuild.offsets import examine_offsets
from dxt_replay.profiler_merge.rows import rows_of
from dxt_replay.traces.schema import OPS, READ, WRITE
from tests.examples import examples


def counted(rows: Iterable[Mapping[str, Any]]) -> np.ndarray:
    """COUNTED, one file per mapping of column to value; record ids count from 1 and records are a rank's own."""
    rows = list(rows)
    found = np.zeros(len(rows), dtype=COUNTED)
    found["record_id"], found["own"], found["shares"] = np.arange(len(rows)) + 1, True, 1
    for name in TIMES:
        found[name] = NOT_SEEN
    for place, row in enumerate(rows):
        for name, value in row.items():
            found[name][place] = value
    return found


def placed(files, operations, unknown_ns=5):
    """(op, file, start, end) of what is made beside operations (file, start, end, offset, length, is_write)."""
    names = ("file", "start_ns", "end_ns", "offset", "length", "op")
    columns = dict(zip(names, np.array(sorted(operations), dtype=np.int64).reshape(-1, 6).T, strict=True))
    ops = rows_of({**columns, "op": np.where(columns["op"], WRITE, READ)}, len(operations))
    unknown = np.full(len(files), unknown_ns)
    made = metadata_rows(counted(files), ops, np.ones(len(ops), dtype=bool), unknown)
    assert (made["offset"] == -1).all()
    assert not made["length"].any()
    made = made[np.lexsort((made["tie"], made["end_ns"], made["start_ns"]))]
    return [(OPS[op], *rest) for op, *rest in made[["op", "file", "start_ns", "end_ns"]].tolist()]


FILE = {"opens": 1, "open_start": 100, "open_end": 120, "close_start": 900, "close_end": 910, "meta_ns": 50}
READ_ONCE = [(0, 200, 300, 0, 10, 0)]

CASES = {
    "one open and close have their recorded times": (
        [FILE], READ_ONCE, [("open", 0, 100, 120), ("close", 0, 900, 910)],
    ),
    # The open took 2,020 of the 10,010 ns, the close 10, a seek takes 1,000: the stat took the rest.
    "what is left of the metadata time is shared out": (
        [FILE | {"open_end": 2_120, "close_end": 50_910, "close_start": 50_900, "meta_ns": 10_010, "stats": 1,
                 "seeks": 1}],
        [(0, 40_000, 50_000, 0, 10, 0)],
        [("open", 0, 100, 2_120), ("stat", 0, 2_120, 9_100), ("close", 0, 50_900, 50_910)],
    ),
    "rows are shortened to the gap that is there": (
        [FILE | {"stats": 3, "meta_ns": 5000}], [(0, 123, 300, 0, 10, 0)],
        [("open", 0, 100, 120), *(("stat", 0, n, n + 1) for n in (120, 121, 122)), ("close", 0, 900, 910)],
    ),
    # Three passes; offset 40 is no return to the start.
    "an open between is where a pass begins": (
        [FILE | {"opens": 3, "open_end": 620, "close_start": 395, "meta_ns": 60}],
        [(0, 200, 210, 0, 50, 0), (0, 300, 310, 40, 50, 0), (0, 390, 395, 90, 0, 0), (0, 500, 510, 0, 90, 0),
         (0, 650, 660, 0, 90, 0)],
        [("open", 0, 100, 110), ("close", 0, 395, 405), ("open", 0, 490, 500), ("close", 0, 510, 520),
         ("open", 0, 610, 620), ("close", 0, 900, 910)],
    ),
    # Darshan counts the opens and closes of both passes as one time. The last close came 2 ns after the last read.
    "slow opens are not given to closes": (
        [FILE | {"opens": 2, "open_end": 560, "close_start": 300, "close_end": 672, "meta_ns": 124}],
        [(0, 160, 300, 0, 90, 0), (0, 560, 670, 0, 90, 0)],
        [("open", 0, 100, 160), ("close", 0, 300, 302), ("open", 0, 500, 560), ("close", 0, 670, 672)],
    ),
    "syncs follow the writes": (
        [FILE | {"syncs": 2, "spent_ns": (0, 100)}], [(0, 200 + 50 * i, 210 + 50 * i, 10 * i, 10, 1) for i in range(4)],
        [("open", 0, 100, 120), ("sync", 0, 260, 290), ("sync", 0, 360, 390), ("close", 0, 900, 910)],
    ),
    "a reduced record opens each rank before its own first read": (
        [FILE | {"own": False, "open_end": 800}], [(0, 500, 600, 0, 10, 0)],
        [("open", 0, 475, 500), ("close", 0, 900, 925)],
    ),
    "what is read after the last close was not closed": (
        [FILE | {"opens": 2, "open_end": 300, "close_start": 150, "close_end": 160}], [(0, 500, 600, 0, 10, 0)],
        [("open", 0, 100, 117), ("close", 0, 150, 160), ("open", 0, 283, 300)],
    ),
    "an open file at the end of the run was never closed": (
        [FILE | {"close_start": NOT_SEEN, "close_end": NOT_SEEN}], READ_ONCE, [("open", 0, 100, 120)],
    ),
    "what nothing dates follows one another": (
        [{"stats": 2, "meta_ns": 20}, {"stats": 1, "meta_ns": 7}], [],
        [("stat", 0, 5, 15), ("stat", 0, 15, 25), ("stat", 1, 25, 32)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_rows_have_their_places(name):
    files, operations, expected = CASES[name]
    assert placed(files, operations) == expected


@pytest.mark.parametrize("opens", [1, 2, 3, 4])
@pytest.mark.parametrize("read_ns", [[1_000], [4_000_000_000], [1_000, 2_000_000_000], []])
def test_closes_take_no_more_than_was_counted_of_metadata(opens, read_ns):
    """First and last close are 3.653 s apart; Darshan counted 7 us (F_META_TIME) of all opens and closes together."""
    times = {"open_start": 100, "open_end": 200, "close_start": 100_000, "close_end": 3_653_100_000, "meta_ns": 7_000}
    rows = placed([{"opens": opens} | times], [(0, at, at + 10, 0, 10, 0) for at in read_ns])
    assert sum(end - start for op, _, start, end in rows if op == "close") <= 7_000
    assert [end for op, _, _, end in rows if op == "close"][-1:] == [3_653_100_000]


COUNT, TIME = st.integers(0, 6), st.integers(0, 4000)


@st.composite
def files_and_operations(draw):
    files, rows = [], []
    for number in range(draw(st.integers(1, 4))):
        opening, closing = sorted((draw(TIME), draw(TIME)))
        seen = draw(st.booleans())
        files.append(
            {
                **{name: draw(COUNT) for name in ("opens", "stats", "seeks", "syncs")}, "own": draw(st.booleans()),
                "meta_ns": draw(TIME), "spent_ns": (0, draw(TIME)), "open_start": opening,
                "open_end": draw(st.integers(opening, 4500)), "close_end": closing if seen else NOT_SEEN,
                "close_start": draw(st.integers(0, closing)) if seen else NOT_SEEN,
            }
        )  # fmt: skip
        for _ in range(draw(COUNT)):
            start, offset = draw(TIME), draw(st.sampled_from([0, 10, 20]))
            length, is_write = draw(st.sampled_from([0, 10])), draw(st.booleans())
            rows.append((number, start, start + draw(st.integers(0, 300)), offset, length, is_write))
    return files, rows


@settings(max_examples=examples(100))
@given(files_and_operations())
def test_numbers_are_exact_and_durations_not_negative(case):
    files, rows = case
    made = placed(files, rows, 0)
    assert all(end >= start for *_, start, end in made)
    for number, file in enumerate(files):
        mine = Counter(op for op, of, *_ in made if of == number)
        assert mine.keys() <= {"open", "stat", "sync", "close"}, "seeks are counted only"
        assert [mine[op] for op in ("open", "stat", "sync")] == [file[name] for name in ("opens", "stats", "syncs")]
        assert mine["close"] <= file["opens"] * (file["close_end"] != NOT_SEEN)


WHOLE_FILE = [256, 256, 100, 0]
IN_TURNS = [length for length in WHOLE_FILE for _ in range(2)]


def examined(lengths, *, offset=None, op=READ, begin=1000, threads=None, **columns):
    """Whether the offsets of one file's operations were repaired or are suspect, and the offsets after that; each takes
    5 ns and begins 10 ns after the one before, at the offset that Darshan would give to read()."""
    length = np.array(lengths, dtype=np.int64)
    start, was = begin + 10 * np.arange(len(length)), np.cumsum(length) - length if offset is None else np.array(offset)
    rows = rows_of({"start_ns": start, "end_ns": start + 5, "offset": was, "length": length}, len(length), op=op)
    rows["thread"] = 0 if threads is None else threads
    stamps = {"open_start": 1, "open_end": 100, "close_start": 10**7, "close_end": 10**7 + 10, "opens": 2}
    record = np.ones(len(rows), dtype=np.uint64)
    found, repaired, suspect, _ = examine_offsets(
        counted([stamps | columns]), rows, record, threaded=threads is not None
    )
    assert repaired[0] or np.array_equal(found, was)
    return "repaired" if repaired[0] else "suspect" if suspect[0] else "right", found.tolist()


@pytest.mark.parametrize(
    ("lengths", "columns", "true"),
    [
        (IN_TURNS, {}, [0, 0, 256, 256, 512, 512, 612, 612]),
        (WHOLE_FILE * 3, {"opens": 3}, [0, 256, 512, 612] * 3),
        (
            [256, 256, 256, 100, 256, 100, 0, 0], {"threads": [7, 7, 9, 7, 9, 9, 7, 9]},
            [0, 256, 0, 512, 256, 512, 612, 612],
        ),
    ],
)  # fmt: skip
def test_whole_reads_of_each_descriptor_are_told_apart(lengths, columns, true):
    assert examined(lengths, **columns) == ("repaired", true)


@pytest.mark.parametrize(
    ("state", "lengths", "columns"),
    [
        *(("suspect", lengths, {}) for lengths in (
            [100] * 6, [256, 256, 256, 256, 0, 0], [4096, 100, 4096, 100], [256, 256, 256, 100, 0], [100, 100],
        )),
        ("suspect", IN_TURNS, {"seeks": 3}),
        ("suspect", IN_TURNS, {"seeks": 1, "close_start": NOT_SEEN, "close_end": NOT_SEEN}),
        ("suspect", [256, 256, 256, 256, 100, 100, 1, 1], {"op": WRITE}),
        # One descriptor; opened, read and closed again and again; positional calls, as nothing was sought.
        ("right", WHOLE_FILE * 2, {"opens": 1}),
        ("right", WHOLE_FILE * 2, {"close_start": 50, "offset": [0, 256, 512, 612, 0, 256, 512, 612]}),
        ("right", WHOLE_FILE * 2, {"offset": [0, 0, 256, 512, 256, 512, 612, 612]}),
        # What ended before the second open.
        ("right", WHOLE_FILE, {"open_end": 5_000}),
        ("suspect", WHOLE_FILE, {"open_end": 5_000, "begin": 4_990}),
    ],
)  # fmt: skip
def test_other_offsets_are_left_alone_and_flagged_if_they_may_be_wrong(state, lengths, columns):
    assert examined(lengths, **columns)[0] == state


@given(descriptors=st.integers(2, 4), blocks=st.integers(1, 6), tail=st.integers(1, 99), seed=st.integers(0, 1000))
def test_threads_that_read_a_file_whole_are_repaired_however_they_interleave(descriptors, blocks, tail, seed):
    sequence = [100] * blocks + [tail, 0]
    owner = np.random.default_rng(seed).permutation(np.repeat(np.arange(descriptors), len(sequence)))
    lengths, true = np.empty((2, len(owner)), dtype=np.int64)
    for each in range(descriptors):
        lengths[owner == each] = sequence
        true[owner == each] = np.cumsum(sequence) - sequence
    assert examined(lengths, threads=owner + 140_000, opens=descriptors) == ("repaired", true.tolist())
