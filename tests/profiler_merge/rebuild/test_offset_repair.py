"""Offsets of read() through several descriptors: Darshan's single position is simulated, and undone where it can be."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.profiler_merge.rebuild.counted import NOT_SEEN
from dxt_replay.profiler_merge.rebuild.offsets import examine_offsets
from dxt_replay.profiler_merge.rows import rows_of
from dxt_replay.traces.schema import READ, WRITE
from tests.profiler_merge.rebuild.counted import counted

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
