"""Reads of TFRecord files: all bytes once, in the order of the interleave, and no further ahead than its buffers."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dxt_replay.traces.schema import OPS, READ
from dxt_replay.workloads.generate.clock import parse_device
from dxt_replay.workloads.generate.generation import generate
from dxt_replay.workloads.generate.plan import Share
from dxt_replay.workloads.generate.requests import FILE, rows_of
from dxt_replay.workloads.generate.tfrecord import TfrecordReads
from tests.examples import examples
from tests.workloads.generate.test_dlio_runs import visits
from tests.workloads.generate.workload_cases import workload_of

RECORD = 100


def reads_of(
    *,
    files=4,
    per_file=8,
    ranks=1,
    batch=4,
    in_turn=2,
    transfer=300,
    shuffle=1,
    ahead=3,
    again=(),
    extra=0,
):
    """Readers of files of `per_file` records of RECORD bytes each."""
    steps = files * per_file // batch // ranks
    return TfrecordReads(
        share=Share(
            files=files, samples_per_file=per_file, ranks=ranks, batch=batch, steps=steps, per_rank=steps * batch
        ),
        files=rows_of(FILE, file_id=np.arange(files), size=per_file * RECORD, sample_bytes=RECORD, row_chunks=0),
        device=parse_device("null"),
        transfer_bytes=transfer,
        in_turn=in_turn,
        first_lane=1,
        shuffle=shuffle,
        batches_ahead=ahead,
        fetches=steps + extra,
        again=again,
    )


def rows(reads, rank, first, last):
    """(file, op, offset, length) of the operations of some fetches."""
    found = reads.operations(rank, first, last)
    columns = (found["file_id"], found["op"], found["offset"], found["length"])
    return [
        (file, OPS[op], offset, length)
        for file, op, offset, length in zip(*(column.tolist() for column in columns), strict=True)
    ]


def test_two_files_in_turn_by_hand():
    """Files of 8 records, 3 records a request, 2 files in turn: fetch 0 takes records 0 and 1 of files 0 and 1."""
    reads = reads_of()
    assert rows(reads, 0, 0, 1) == [(0, "open", -1, 0), (0, "read", 0, 300), (1, "open", -1, 0), (1, "read", 0, 300)]
    assert rows(reads, 0, 1, 2) == [(0, "read", 300, 300), (1, "read", 300, 300)]
    assert rows(reads, 0, 2, 3) == []
    assert rows(reads, 0, 3, 4) == [
        (0, "read", 600, 200), (0, "read", 800, 0), (0, "close", -1, 0),
        (1, "read", 600, 200), (1, "read", 800, 0), (1, "close", -1, 0),
    ]  # fmt: skip


def test_without_a_buffer_records_are_read_as_strace_shows():
    """TensorFlow 2.21, `TFRecordDataset(buffer_size=0)`: a file of 3 records of 84 bytes, then its end."""
    reads = reads_of(files=1, per_file=3, batch=3, in_turn=1, transfer=0)
    shown = [(0, 12), (12, 88), (100, 12), (112, 88), (200, 12), (212, 88), (300, 0)]
    assert [row[2:] for row in rows(reads, 0, 0, 1) if row[1] == "read"] == shown


def test_what_a_second_pass_reads_is_what_strace_shows():
    """One file in turn, 4 files of 8 records of 99,915 bytes, 12 records taken in: 5 + 3 + 2 + 2 reads."""
    reads = reads_of(files=4, in_turn=1, transfer=262, again=(12,), extra=1)
    found = reads.operations(0, reads.fetches - 1, reads.fetches)
    files = Counter(found["file_id"][found["op"] == READ].tolist())
    assert files == {0: 5, 1: 3, 2: 2, 3: 2}
    assert np.count_nonzero(found["op"] == OPS.index("open")) == 4
    pieces = reads.pieces(np.array([0]), reads.fetches - 1, reads.fetches)
    assert 0 < np.count_nonzero(pieces["needed"]) < len(pieces["needed"])


@settings(max_examples=examples(80))
@given(
    files=st.integers(1, 9),
    per_file=st.integers(1, 12),
    ranks=st.integers(1, 4),
    batch=st.integers(1, 6),
    in_turn=st.integers(1, 4),
    transfer=st.just(0) | st.integers(40, 900),
    shuffle=st.integers(1, 30),
    ahead=st.integers(0, 4),
)
def test_bytes_are_read_once_and_never_too_far_ahead(files, per_file, ranks, batch, in_turn, transfer, shuffle, ahead):
    reads = reads_of(
        files=files,
        per_file=per_file,
        ranks=ranks,
        batch=batch,
        in_turn=in_turn,
        transfer=transfer,
        shuffle=shuffle,
        ahead=ahead,
    )
    covered = np.zeros((files, per_file * RECORD), dtype=np.int64)
    for rank in range(ranks):
        for file, op, offset, length in rows(reads, rank, 0, reads.fetches):
            if op == "read":
                covered[file, offset : offset + length] += 1
        pieces = reads.pieces(np.array([rank]), 0, reads.fetches)
        # A fetch waits for nothing that waits for its end.
        assert np.all(pieces["follows"] <= 2 * pieces["fetch"])
        for lane in np.unique(pieces["lane"]).tolist():
            mine = pieces["lane"] == lane
            assert np.all(np.diff(pieces["fetch"][mine]) >= 0)
            assert np.all(np.diff(pieces["follows"][mine]) >= 0)
        assert pieces["lane"].max(initial=1) <= 3 * in_turn
    assert covered.max(initial=0) <= (1 if files >= ranks else ranks)
    # What is left over where samples do not divide is not read; all others are.
    used = reads.share.steps * batch * ranks
    assert np.count_nonzero(covered) >= used * RECORD or shuffle > 1 or files % ranks


def visits_of(tmp_path, *, epochs=2, prefetch=2, shuffle=16):
    """How often rank 0 opens each of its files and reads of it: a Counter of the visits by path, training and not."""
    workload = workload_of(
        "tfrecord",
        "tensorflow",
        files=10,
        evaluation_files=4,
        per_file=12,
        record=40_000,
        batch=6,
        readers=3,
        epochs=epochs,
        reader={
            "batch_size_eval": 4,
            "transfer_size": 65_536,
            "prefetch_size": prefetch,
            "sample_shuffle": "seed" if shuffle else "off",
            "shuffle_size": shuffle,
        },
    )
    generate(workload, 2, tmp_path / f"{prefetch}.capture")
    lanes = visits(tmp_path / f"{prefetch}.capture")
    found = Counter(path for lane in lanes[0].values() for path, _ in lane)
    return tuple(sorted(count for path, count in found.items() if part in path) for part in ("train", "valid"))


def test_what_repeat_reads_ahead_is_bounded_by_the_buffers(tmp_path):
    """6 batches of 4 are one evaluation. DLIO takes as many as all epochs have, so 18 here: with room for all
    of them, each of the 3 evaluations goes on through 2 further passes; without room for any, through none."""
    train, evaluation = visits_of(tmp_path, epochs=3, prefetch=100)
    assert (train, evaluation) == ([9] * 5, [9] * 2)
    assert visits_of(tmp_path, epochs=3, prefetch=0, shuffle=0)[1] == [3] * 2
    assert visits_of(tmp_path, epochs=3, prefetch=7)[1] == [9] * 2
    assert visits_of(tmp_path, epochs=3, prefetch=6)[1] == [6] * 2
