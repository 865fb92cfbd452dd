"""The reading v3.0: what MLPerf Storage v3.0's own line of DLIO does, from its code; files read against strace."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import defaultdict

import numpy as np
import pytest

import dxt_replay
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.schema import OPS
from dxt_replay.workloads.data_set_files import data_set_files
from dxt_replay.workloads.description import Dataset, Reader, Workload
from dxt_replay.workloads.generate.checkpoint_files import Shard, loading, saving
from dxt_replay.workloads.generate.generation import generate
from dxt_replay.workloads.generate.request_templates import Layout, Samples, sample_requests
from dxt_replay.workloads.generate.run_plan import run_plan
from dxt_replay.workloads.generate.sample_order import sample_order, share
from dxt_replay.workloads.workload_source import SHIPPED, read_workload
from dxt_replay.workloads.workload_values import workload_from_values
from tests.workloads.generate.workload_cases import workload_of

MIB = 1 << 20
NPZ = {"framework": "pytorch", "dataset": {"format": "npz"}, "reader": {"data_loader": "pytorch", "read_threads": 4}}


def read(**sections):
    values = {
        name: {**NPZ.get(name, {}), **keys} if isinstance(keys, dict) else keys for name, keys in sections.items()
    }
    return workload_from_values({**NPZ, **values}, reading="v3.0")


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize("file_format", ["npz", "npy", "jpeg", "png"])
def test_a_file_is_read_whole_as_strace_shows(tmp_path, file_format):
    path, log = tmp_path / "data", tmp_path / "log"
    path.write_bytes(bytes(184_301))
    program = f"with open({str(path)!r}, 'rb') as file: len(file.read())"
    subprocess.run(["strace", "-e", "trace=openat,read", "-o", log, sys.executable, "-c", program], check=True)
    calls = log.read_text().partition(f'"{path}"')[2].splitlines()[1:3]
    shown = [int(call.rpartition(" = ")[2]) for call in calls]
    one, every = np.array([184_301]), np.ones(1, dtype=bool)
    samples = Samples(
        size=one, sample_bytes=one, row_chunks=one * 0, index=np.zeros(1, dtype=np.int64), opens=every, closes=every
    )
    found = sample_requests(file_format, samples, Layout(whole=True))
    names = [OPS[op] for op in found.op]
    assert names == ["open", "stat", "stat", "read", "read", "close"]
    assert found.length[3:5].tolist() == shown == [184_301, 0]
    assert found.offset[3:5].tolist() == [0, 184_301]


def files_of(workload, ranks, epoch):
    """The files that each rank reads in an epoch, in its order."""
    shared = share(workload, ranks, evaluation=False)
    readers = workload.reader.read_threads
    order = sample_order(workload, shared, epoch=epoch, readers=readers, fetches=shared.steps, ahead=0)
    return [order.samples(rank, 0, shared.steps).file.tolist() for rank in range(ranks)]


def test_files_are_dealt_in_turn_and_no_rank_has_more():
    workload = workload_of("npz", "pytorch", reading="v3.0", files=14, batch=2)
    assert files_of(workload, 3, 1) == [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]]
    assert share(workload, 3, evaluation=False).steps == 2  # 4 files each, of 14 // 3


def test_files_in_sub_folders_are_dealt_as_they_are_listed_unless_names_are_made_up():
    dealt = workload_of("npz", "pytorch", reading="v3.0", files=10, batch=1, dataset={"num_subfolders_train": 4})
    assert files_of(dealt, 3, 1) == [[0, 1, 2], [4, 5, 6], [8, 9, 3]]
    names = {"num_subfolders_train": 4, "skip_listing": True}
    dealt = workload_of("npz", "pytorch", reading="v3.0", files=10, batch=1, dataset=names)
    assert files_of(dealt, 3, 1) == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]


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
    workload = workload_of("npz", "pytorch", reading="v3.0", files=files, batch=1, reader=shuffled)
    found = files_of(workload, ranks, epochs)
    assert found == dealt_by_mail(files, ranks, epochs)
    assert sorted(file for mine in found for file in mine) == list(range(files // ranks * ranks))


def test_samples_of_a_file_follow_each_other_on_one_rank():
    workload = workload_of("hdf5", "pytorch", reading="v3.0", files=5, per_file=3, batch=2)
    shared = share(workload, 2, evaluation=False)
    order = sample_order(workload, shared, epoch=1, readers=2, fetches=shared.steps, ahead=0)
    order = order.samples(1, 0, shared.steps)
    assert list(zip(order.file.tolist(), order.index.tolist(), strict=True)) == [
        (1, 0), (1, 1), (1, 2), (3, 0), (3, 1), (3, 2),
    ]  # fmt: skip


def test_fewer_files_than_ranks_are_refused_with_the_reason():
    workload = workload_of("npz", "pytorch", reading="v3.0", files=2, per_file=90)
    with pytest.raises(UsageError, match="at least as many files as ranks"):
        run_plan(workload, 4)


def test_a_jpeg_file_has_the_bytes_of_a_record():
    workload = Workload(
        reading="v3.0", framework="pytorch", dataset=Dataset(format="jpeg", record_length_bytes=322_957)
    )
    assert set(data_set_files(workload).train.sizes.tolist()) == {322_957}


def written(size, loads=False):
    workload = Workload(reading="v3.0", framework="pytorch")
    shard = Shard(name="model_states-0", items=(("a", size // 2), ("b", size - size // 2)), datatype="int8")
    (found,) = (loading if loads else saving)(workload, shard)
    assert found.name == "model_states-0.pt"
    return [(OPS[op], *row) for op, *row in zip(found.op, found.offset.tolist(), found.length.tolist(), strict=True)]


def test_a_checkpoint_is_streamed_and_synced():
    assert written(70 * MIB) == [
        ("open", -1, 0), ("write", 0, 32 * MIB), ("write", 32 * MIB, 32 * MIB), ("write", 64 * MIB, 6 * MIB),
        ("sync", -1, 0), ("close", -1, 0),
    ]  # fmt: skip


def test_a_checkpoint_is_read_in_four_parts():
    rows = written(600 * MIB, loads=True)
    assert [name for name, *_ in rows] == ["open", "read", "read", "close"] * 4
    assert [row[1:] for row in rows if row[0] == "read"] == [
        (begin + at, length)
        for begin in range(0, 600 * MIB, 150 * MIB)
        for at, length in ((0, 128 * MIB), (128 * MIB, 22 * MIB))
    ]


def test_what_is_not_known_of_mlperf_s_line_is_refused():
    for sections in (
        {"framework": "tensorflow", "reader": {"data_loader": "tensorflow"}},
        {"reader": {"data_loader": "dali"}},
    ):
        with pytest.raises(UsageError, match=r"v3\.0 is known for pytorch alone"):
            read(**sections)


def test_any_value_of_file_shuffle_shuffles_and_readers_of_one_are_named():
    workload, notes = read(reader={"file_shuffle": "off", "read_type": "memory", "read_threads": 1})
    assert workload.reader == Reader(data_loader="pytorch", file_shuffle="seed", read_threads=1)
    assert {(note.key, note.kind) for note in notes} == {
        ("reader.file_shuffle", "read as"),
        ("reader.read_type", "without effect"),
        ("reader.read_threads", "not expressed"),
    }


@pytest.mark.parametrize(
    ("name", "reading"), [("retinanet_b200", "v3.0"), ("unet3d_b200", "v3.0"), ("unet3d_h100", "documented")]
)
def test_shipped_workloads_of_v3_are_read_as_v3_unless_told_otherwise(name, reading):
    assert read_workload(name).workload.reading == reading
    assert read_workload(name, reading="head").workload.reading == "head"


def test_a_copy_of_a_shipped_workload_is_read_as_it_is(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_bytes((SHIPPED / "unet3d_b200.yaml").read_bytes())
    found = read_workload(path)
    assert found.workload.reading == "v3.0"
    assert "reading" not in {note.key for note in found.notes}
    with pytest.raises(UsageError, match="is not one of documented, head"):
        read_workload(path, ["reading=v4"])


def test_retinanet_reads_what_its_list_promises(tmp_path):
    few = ["dataset.num_files_train=192", "train.epochs=1"]
    made = dxt_replay.generate("retinanet_b200", 2, tmp_path / "w.capture", overrides=few)
    assert made.generated.bytes_read == 192 * 322_957
    assert made.generated.operations == 192 * 6
    assert made.workload.reading == "v3.0"


@pytest.mark.parametrize(
    ("reading", "dataset", "said"),
    [
        ("documented", {}, "each of 3 ranks lists 38 files"),
        ("v2.0", {}, "each of 3 ranks lists 38 files"),
        ("v3.0", {}, "rank 0 lists 38 files"),
        # 0, 10, 20, 29 of the training set, and 0 and 7 of the evaluation's.
        ("v3.0", {"skip_listing": True, "listing_validation_interval": 10}, "rank 0 looks for 6 files"),
        ("v3.0", {"skip_listing": True, "listing_validation_interval": 0}, None),
    ],
)
def test_the_listing_that_a_capture_does_not_hold_is_a_warning(tmp_path, reading, dataset, said):
    workload = workload_of(
        "npz", "pytorch", reading=reading, files=30, evaluation_files=8, batch=1, record=100, dataset=dataset
    )
    warnings = generate(workload, 3, tmp_path / "w.capture").warnings
    assert dxt_replay.open_capture(tmp_path / "w.capture").info.warnings == warnings
    assert [said in warning for warning in warnings] == ([] if said is None else [True])


def test_object_stores_and_direct_reads_are_taken_as_local_files():
    notes = read(storage={"storage_type": "direct_fs"})[1]
    assert [note.kind for note in notes] == ["not expressed"] * 2
    assert "64 files at once" in notes[-1].why


def test_skip_listing_is_only_known_to_v3():
    listing = {"format": "npz", "skip_listing": True, "listing_validation_interval": 7}
    assert read(dataset=listing)[1] == ()
    notes = workload_from_values({**NPZ, "dataset": listing}, reading="head")[1]
    assert {note.kind for note in notes} == {"without effect"}
