"""The reading v3.0: what MLPerf Storage v3.0's own line of DLIO does, from its code; files read against strace."""

from __future__ import annotations

import pytest

import dxt_replay
from dxt_replay.traces.errors import UsageError
from dxt_replay.workloads.description import Dataset, Reader, Workload
from dxt_replay.workloads.files import data_set_files
from dxt_replay.workloads.generate.generation import generate
from dxt_replay.workloads.source import read_workload
from dxt_replay.workloads.values import workload_from_values
from tests.workloads.generate.workload_cases import workload_of

NPZ = {"framework": "pytorch", "dataset": {"format": "npz"}, "reader": {"data_loader": "pytorch", "read_threads": 4}}


def read(**sections):
    values = {
        name: {**NPZ.get(name, {}), **keys} if isinstance(keys, dict) else keys for name, keys in sections.items()
    }
    return workload_from_values({**NPZ, **values}, reading="v3.0")


def test_a_jpeg_file_has_the_bytes_of_a_record():
    workload = Workload(
        reading="v3.0", framework="pytorch", dataset=Dataset(format="jpeg", record_length_bytes=322_957)
    )
    assert set(data_set_files(workload)[0].sizes.tolist()) == {322_957}


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
