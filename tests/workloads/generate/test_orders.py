"""The course of a run, and who reads which sample: DLIO's orders by hand, and that all samples are read once."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dxt_replay.traces.errors import UsageError
from dxt_replay.workloads.description import Train, Workflow
from dxt_replay.workloads.generate.order import sample_order, scattered
from dxt_replay.workloads.generate.plan import Between, Pass, run_plan, share
from tests.examples import examples
from tests.workloads.generate.workload_cases import workload_of


def order_of(workload, ranks, epoch=1):
    shared = share(workload, ranks, evaluation=False)
    readers = workload.reader.read_threads
    return shared, sample_order(workload, shared, epoch=epoch, readers=readers, fetches=shared.steps)


def read_by(workload, ranks, rank, epoch=1):
    shared, order = order_of(workload, ranks, epoch)
    found = order.samples(rank, 0, shared.steps)
    return list(zip(found["file"].tolist(), found["index"].tolist(), strict=True))


def test_readers_that_keep_files_open_each_once():
    workload = workload_of("csv", "pytorch", files=4, per_file=4, reader={"read_type": "memory"})
    shared, order = order_of(workload, 1)
    found = order.samples(0, 0, shared.steps)
    opened = zip(
        found["file"][found["opens"]].tolist(), order.reader(found["fetch"][found["opens"]]).tolist(), strict=True
    )
    assert Counter(opened) == dict.fromkeys([(file, worker) for file in range(4) for worker in range(2)], 1)
    assert not found["closes"].any()
    _, later = order_of(workload, 1, epoch=2)
    assert not later.samples(0, 0, shared.steps)["opens"].any()


@given(size=st.integers(1, 5000), seed=st.integers(0, 2**40))
def test_scattering_is_a_permutation(size, seed):
    assert sorted(scattered(np.arange(size), size, seed).tolist()) == list(range(size))


@settings(max_examples=examples(60))
@given(
    loader=st.sampled_from(["pytorch", "dali", "tensorflow"]),
    files=st.integers(1, 30),
    per_file=st.integers(1, 5),
    ranks=st.integers(1, 5),
    batch=st.integers(1, 4),
    readers=st.integers(1, 4),
    file_shuffle=st.sampled_from(["off", "seed"]),
    sample_shuffle=st.sampled_from(["off", "random"]),
)
def test_no_sample_is_read_twice(loader, files, per_file, ranks, batch, readers, file_shuffle, sample_shuffle):
    workload = workload_of(
        "hdf5",
        loader,
        files=files,
        per_file=per_file,
        batch=batch,
        readers=readers,
        reader={"file_shuffle": file_shuffle, "sample_shuffle": sample_shuffle},
    )
    found = [sample for rank in range(ranks) for sample in read_by(workload, ranks, rank)]
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


def test_files_are_dealt_in_turn_and_no_rank_has_more():
    """PyTorch: in the order of the listing by sub-folders, unless names are made up."""
    for files, more, expected in (
        (14, {}, [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]]),
        (10, {"num_subfolders_train": 4}, [[0, 1, 2], [4, 5, 6], [8, 9, 3]]),
        (10, {"num_subfolders_train": 4, "skip_listing": True}, [[0, 3, 6], [1, 4, 7], [2, 5, 8]]),
    ):
        workload = workload_of("npz", "pytorch", files=files, batch=1, dataset=more)
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
    shuffled = {"file_shuffle": "seed", "sample_shuffle": "seed"}
    workload = workload_of("npz", "pytorch", files=files, batch=1, reader=shuffled)
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
    saving = {"steps_between_checkpoints": every}
    workload = workload_of("npz", "pytorch", files=16, batch=1, checkpoints=bool(every), checkpoint=saving)
    workload = dataclasses.replace(workload, train=Train(epochs=2, total_training_steps=limit))
    assert [(each.fetches, each.steps, each.saves) for each in run_plan(workload, 2).passes] == expected


def test_checkpoints_are_written_and_then_read():
    counts = {"num_checkpoints_write": 2, "num_checkpoints_read": 1, "rank_sync": True}
    workload = workload_of("npz", "pytorch", checkpoints=True, checkpoint=counts)
    plan = run_plan(dataclasses.replace(workload, workflow=Workflow(train=False, checkpoint=True)), 2)
    saved = [
        Between(saved=number, loads=loads, step=step)
        for number, loads, step in ((0, False, 1), (1, False, 2), (0, True, 3))
    ]
    assert plan.segments == tuple(each for save in saved for each in (save, Between()))
    assert plan.steps == 3


@pytest.mark.parametrize(
    ("workload", "ranks", "said"),
    [
        (dataclasses.replace(workload_of("npz", "pytorch"), workflow=Workflow(train=False)), 2, "neither trains nor"),
        (workload_of("npz", "pytorch"), 100, "a step of 100 ranks takes 200"),
    ],
)
def test_a_run_without_a_step_is_refused_with_what_to_change(workload, ranks, said):
    with pytest.raises(UsageError, match=said):
        run_plan(workload, ranks)
