"""Offsets of read() through several descriptors: Darshan's single position is simulated, and undone where it can be."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.profiler_merge.rebuild.counted import NOT_SEEN
from dxt_replay.profiler_merge.rebuild.offsets import examine_offsets
from dxt_replay.traces.schema import APIS
from tests.profiler_merge.rebuild.counted import counted

LAST_OPEN, FIRST_CLOSE = 100, 10_000_000


def reads(lengths, *, offset=None, is_write=False, begin=1000):
    """One file's operations, each 5 ns and 10 ns apart, at the offsets that Darshan would give to read()."""
    length = np.array(lengths, dtype=np.int64)
    start = begin + 10 * np.arange(len(length))
    return {
        "process": np.zeros(len(length), dtype=np.int64),
        "record_id": np.ones(len(length), dtype=np.uint64),
        "api": np.full(len(length), APIS.index("POSIX")),
        "start_ns": start,
        "end_ns": start + 5,
        "offset": np.cumsum(length) - length if offset is None else np.array(offset, dtype=np.int64),
        "length": length,
        "is_write": np.full(len(length), is_write),
    }


def opened(opens, **columns):
    stamps = {"open_start": 1, "open_end": LAST_OPEN, "close_start": FIRST_CLOSE, "close_end": FIRST_CLOSE + 10}
    return counted([stamps | {"opens": opens} | columns])


def state(found):
    return bool(found.repaired[0]), bool(found.suspect[0])


WHOLE_FILE = [256, 256, 100, 0]


def test_reads_in_turns_are_told_apart():
    lengths = np.repeat(WHOLE_FILE, 2)
    found = examine_offsets(opened(2), reads(lengths), None)
    assert state(found) == (True, False)
    assert found.offset.tolist() == [0, 0, 256, 256, 512, 512, 612, 612]


def test_whole_passes_one_after_the_other_are_told_apart():
    found = examine_offsets(opened(3), reads(WHOLE_FILE * 3), None)
    assert state(found) == (True, False)
    assert found.offset.tolist() == [0, 256, 512, 612] * 3


def test_threads_with_a_descriptor_each_are_told_apart():
    threads = np.array([7, 7, 9, 7, 9, 9, 7, 9])
    lengths = [256, 256, 256, 100, 256, 100, 0, 0]
    found = examine_offsets(opened(2), reads(lengths), threads)
    assert state(found) == (True, False)
    assert found.offset.tolist() == [0, 256, 0, 512, 256, 512, 612, 612]


@pytest.mark.parametrize(
    "lengths",
    [
        [100, 100, 100, 100, 100, 100],
        [256, 256, 256, 256, 0, 0],
        [4096, 100, 4096, 100],
        [256, 256, 256, 100, 0],
        [100, 100],
    ],
)
def test_what_has_more_than_one_reading_is_left_and_flagged(lengths):
    operations = reads(lengths)
    found = examine_offsets(opened(2), operations, None)
    assert state(found) == (False, True)
    assert np.array_equal(found.offset, operations["offset"])


@pytest.mark.parametrize(
    ("columns", "offset"),
    [
        # One descriptor.
        ({"opens": 1}, None),
        # Opened, read and closed again and again.
        ({"opens": 2, "close_start": 50}, [0, 256, 512, 612, 0, 256, 512, 612]),
        # Positional calls: offsets jump and nothing was sought.
        ({"opens": 2}, [0, 0, 256, 512, 256, 512, 612, 612]),
    ],
)
def test_right_offsets_are_left_alone(columns, offset):
    operations = reads(WHOLE_FILE * 2, offset=offset)
    found = examine_offsets(opened(**columns), operations, None)
    assert state(found) == (False, False)
    assert np.array_equal(found.offset, operations["offset"])


def test_what_ended_before_the_second_open_is_right():
    files = opened(2, open_end=5_000)
    assert state(examine_offsets(files, reads(WHOLE_FILE), None)) == (False, False)
    assert state(examine_offsets(files, reads(WHOLE_FILE, begin=4_990), None)) == (False, True)


@pytest.mark.parametrize("columns", [{"seeks": 3}, {"close_start": NOT_SEEN, "close_end": NOT_SEEN, "seeks": 1}])
def test_sought_files_are_flagged_not_repaired(columns):
    assert state(examine_offsets(opened(2, **columns), reads(np.repeat(WHOLE_FILE, 2)), None)) == (False, True)


def test_writes_are_flagged_not_repaired():
    operations = reads(np.repeat([256, 256, 100, 1], 2), is_write=True)
    assert state(examine_offsets(opened(2), operations, None)) == (False, True)


@given(
    descriptors=st.integers(2, 4),
    blocks=st.integers(1, 6),
    tail=st.integers(1, 99),
    seed=st.integers(0, 1000),
)
def test_threads_that_read_a_file_whole_are_repaired_however_they_interleave(descriptors, blocks, tail, seed):
    sequence = [100] * blocks + [tail, 0]
    owner = np.random.default_rng(seed).permutation(np.repeat(np.arange(descriptors), len(sequence)))
    lengths = np.empty(len(owner), dtype=np.int64)
    true = np.empty(len(owner), dtype=np.int64)
    for each in range(descriptors):
        lengths[owner == each] = sequence
        true[owner == each] = np.cumsum(sequence) - sequence
    found = examine_offsets(opened(descriptors), reads(lengths), owner.astype(np.uint64) + 140_000)
    assert state(found) == (True, False)
    assert np.array_equal(found.offset, true)
