"""The course of a run, and who reads which sample: DLIO's orders by hand, and that all samples are read once; for
TFRecord files all bytes once, in the order of the interleave, and no further ahead than its buffers."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dxt_replay.traces.schema import OPS, READ
from dxt_replay.workloads.generate.clock import parse_device
from dxt_replay.workloads.generate.generation import generate
from dxt_replay.workloads.generate.order import sample_order, scattered
from dxt_replay.workloads.generate.plan import Between, Pass, Share, run_plan, share
from dxt_replay.workloads.generate.requests import FILE, rows_of
from dxt_replay.workloads.generate.tfrecord import TfrecordReads
from tests.examples import examples
from tests.workloads.generate.test_dlio_runs import visits
from tests.workloads.generate.workload_cases import workload_of


def order_of(workload, ranks, epoch=1, *, first_pass=None):
    shared, first = share(workload, ranks, evaluation=False), epoch == 1 if first_pass is None else first_pass
    readers = workload.reader.read_threads
    return shared, sample_order(workload, shared, epoch=epoch, first_pass=first, readers=readers, fetches=shared.steps)


def read_by(workload, ranks, rank, epoch=1):
    shared, order = order_of(workload, ranks, epoch)
    found = order.samples(rank, 0, shared.steps)
    return list(zip(found["file"].tolist(), found["index"].tolist(), strict=True))


def test_readers_that_keep_files_open_each_once():
    workload = workload_of("csv", "pytorch", files=4, per_file=4, read_type="memory")
    shared, order = order_of(workload, 1)
    found = order.samples(0, 0, shared.steps)
    opened = zip(
        found["file"][found["opens"]].tolist(), order.reader(found["fetch"][found["opens"]]).tolist(), strict=True
    )
    assert Counter(opened) == dict.fromkeys([(file, worker) for file in range(4) for worker in range(2)], 1)
    assert not found["closes"].any()
    _, later = order_of(workload, 1, epoch=2)
    assert not later.samples(0, 0, shared.steps)["opens"].any()
    _, evaluation = order_of(workload, 1, epoch=2, first_pass=True)
    assert evaluation.samples(0, 0, shared.steps)["opens"].sum() == 8


@given(size=st.integers(1, 5000), seed=st.integers(0, 2**40))
def test_scattering_is_a_permutation(size, seed):
    assert sorted(scattered(np.arange(size), size, seed).tolist()) == list(range(size))


SHARES = {
    "files": st.integers(1, 30), "per_file": st.integers(1, 5), "batch": st.integers(1, 4), "readers": st.integers(1, 4)
}  # fmt: skip
SHUFFLES = {"file_shuffle": st.sampled_from(["off", "seed"]), "sample_shuffle": st.sampled_from(["off", "random"])}


@settings(max_examples=examples(60))
@given(
    loader=st.sampled_from(["pytorch", "dali", "tensorflow"]), ranks=st.integers(1, 5),
    shared=st.fixed_dictionaries(SHARES), reader=st.fixed_dictionaries(SHUFFLES),
)  # fmt: skip
def test_no_sample_is_read_twice(loader, ranks, shared, reader):
    workload = workload_of("hdf5", loader, **shared, **reader)
    found = [sample for rank in range(ranks) for sample in read_by(workload, ranks, rank)]
    files, per_file, batch = (shared[name] for name in ("files", "per_file", "batch"))
    dealt = loader == "pytorch" and files // ranks * per_file >= batch  # whole files, else samples are shared out
    steps = files // ranks * per_file // batch if dealt else files * per_file // (batch * ranks)
    assert len(found) == len(set(found)) == steps * batch * ranks
    assert all(file < files and index < per_file for file, index in found)


@given(first=st.integers(0, 11), count=st.integers(1, 12))
def test_batches_are_the_same_whatever_is_asked_for_with_them(first, count):
    workload = workload_of("npz", "tensorflow", files=24, per_file=3, batch=4, readers=3)
    shared, order = order_of(workload, 2)
    first, last = min(first, shared.steps - 1), min(first + count, shared.steps)
    every, some = order.samples(1, 0, shared.steps), order.samples(1, first, last)
    mine = (every["fetch"] >= first) & (every["fetch"] < last)
    assert np.array_equal(every[mine], some)


@pytest.mark.parametrize(
    ("files", "more", "expected"),
    [
        (14, {}, [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]]),
        (10, {"num_subfolders_train": 4}, [[0, 1, 2], [4, 5, 6], [8, 9, 3]]),
        (10, {"num_subfolders_train": 4, "skip_listing": True}, [[0, 3, 6], [1, 4, 7], [2, 5, 8]]),
    ],
)
def test_files_are_dealt_in_turn_and_no_rank_has_more(files, more, expected):
    """PyTorch: in the order of the listing by sub-folders, unless names are made up."""
    workload = workload_of("npz", "pytorch", files=files, batch=1, **more)
    assert [[file for file, _ in read_by(workload, 3, rank)] for rank in range(3)] == expected
    workload = workload_of("hdf5", "pytorch", files=5, per_file=3, batch=2)
    assert read_by(workload, 2, 1) == [(1, 0), (1, 1), (1, 2), (3, 0), (3, 1), (3, 2)]


def dealt_by_mail(files, ranks, epochs, seed=123):
    """Files of each rank after some epochs, with lists that are shuffled, dealt out and sent to all ranks in turn."""
    shards = [list(range(rank, files, ranks))[: files // ranks] for rank in range(ranks)]
    for epoch in range(1, epochs + 1):
        sent = []
        for rank, shard in enumerate(shards):
            np.random.RandomState(seed + epoch).shuffle(shard)
            buckets = defaultdict(list)
            for place, file in enumerate(shard):
                buckets[(place + rank) % ranks].append(file)
            sent.append(buckets)
        shards = [[file for buckets in sent for file in buckets[rank]] for rank in range(ranks)]
        for rank, shard in enumerate(shards):
            np.random.RandomState(seed + epoch + 31 * rank).shuffle(shard)
    return shards


@pytest.mark.parametrize(("files", "ranks", "epochs"), [(12, 3, 1), (26, 4, 3), (7, 1, 2), (15, 5, 4)])
def test_a_shuffle_deals_the_files_anew_in_each_epoch(files, ranks, epochs):
    workload = workload_of("npz", "pytorch", files=files, batch=1, file_shuffle="seed", sample_shuffle="seed")
    found = [[file for file, _ in read_by(workload, ranks, rank, epochs)] for rank in range(ranks)]
    assert found == dealt_by_mail(files, ranks, epochs)
    assert sorted(file for mine in found for file in mine) == list(range(files // ranks * ranks))


def course(workload, ranks=2):
    """A run in words: passes as (evaluation, epoch, fetches, steps, first fetch, first step, saves)."""
    return [
        dataclasses.astuple(each)
        if isinstance(each, Pass)
        else "meeting"
        if each.saved is None
        else f"save {each.saved}"
        for each in run_plan(workload, ranks).segments
    ]


def test_epochs_with_evaluations_and_checkpoints():
    workload = workload_of("npz", "pytorch", files=16, batch=2, evaluation_files=4, checkpoints=True)
    assert course(workload) == [
        (False, 1, 4, 4, 0, 1, ()), "save 0", (True, 1, 2, 2, 4, 5, ()), "meeting",
        (False, 2, 4, 4, 6, 7, ()), "save 1", (True, 2, 2, 2, 10, 11, ()),
    ]  # fmt: skip
    assert run_plan(workload, 2).checkpoints == ((1, 5), (2, 5))


@pytest.mark.parametrize(
    ("every", "limit", "expected"),
    [
        (3, None, [(8, 8, ((3, 0), (6, 1))), (8, 8, ((1, 2), (4, 3), (7, 4)))]),
        (None, 10, [(8, 8, ()), (3, 2, ())]),
        (None, 6, [(7, 6, ())]),
    ],
)
def test_steps_are_counted_over_the_run(every, limit, expected):
    limits = {"every": every, "total_training_steps": limit}
    workload = workload_of("npz", "pytorch", files=16, batch=1, checkpoints=bool(every), **limits)
    assert [(each.fetches, each.steps, each.saves) for each in run_plan(workload, 2).passes] == expected


def test_checkpoints_are_written_and_then_read():
    counts = {"num_checkpoints_write": 2, "num_checkpoints_read": 1, "rank_sync": True}
    plan = run_plan(workload_of("npz", "pytorch", train=False, checkpoints=True, **counts), 2)
    saves = ((0, False, 1), (1, False, 2), (0, True, 3))
    saved = [Between(saved=number, loads=loads, step=step) for number, loads, step in saves]
    assert plan.segments == tuple(each for save in saved for each in (save, Between()))
    assert plan.steps == 3


RECORD = 100


def reads_of(*, files=4, per_file=8, ranks=1, batch=4, in_turn=2, transfer=300, shuffle=1, ahead=3, again=(), extra=0):
    """Readers of TFRecord files of `per_file` records of RECORD bytes each."""
    steps = files * per_file // batch // ranks
    per_rank = steps * batch
    return TfrecordReads(
        share=Share(files=files, samples_per_file=per_file, ranks=ranks, batch=batch, steps=steps, per_rank=per_rank),
        files=rows_of(FILE, file_id=np.arange(files), size=per_file * RECORD, sample_bytes=RECORD, row_chunks=0),
        device=parse_device("null"), transfer_bytes=transfer, in_turn=in_turn, first_lane=1, shuffle=shuffle,
        batches_ahead=ahead, fetches=steps + extra, again=again,
    )  # fmt: skip


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


READS = {
    "files": st.integers(1, 9), "per_file": st.integers(1, 12), "ranks": st.integers(1, 4), "batch": st.integers(1, 6),
    "in_turn": st.integers(1, 4), "transfer": st.just(0) | st.integers(40, 900), "shuffle": st.integers(1, 30),
    "ahead": st.integers(0, 4),
}  # fmt: skip


@settings(max_examples=examples(80))
@given(st.fixed_dictionaries(READS))
def test_bytes_are_read_once_and_never_too_far_ahead(drawn):
    reads = reads_of(**drawn)
    files, per_file, ranks, in_turn = (drawn[name] for name in ("files", "per_file", "ranks", "in_turn"))
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
    used = reads.share.steps * drawn["batch"] * ranks
    assert np.count_nonzero(covered) >= used * RECORD or drawn["shuffle"] > 1 or files % ranks


def visits_of(tmp_path, *, epochs=2, prefetch=2, shuffle=16):
    """How often rank 0 opens each of its files and reads of it: a Counter of the visits by path, training and not."""
    reader = {"batch_size_eval": 4, "transfer_size": 65_536, "prefetch_size": prefetch, "shuffle_size": shuffle}
    shape = {"files": 10, "evaluation_files": 4, "per_file": 12, "record": 40_000, "batch": 6, "readers": 3}
    workload = workload_of(
        "tfrecord", "tensorflow", **shape, **reader, epochs=epochs, sample_shuffle="seed" if shuffle else "off"
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
