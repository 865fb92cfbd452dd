"""Any small workload ends in a capture, whose lanes open what they read and close what they open, or in one error."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import dxt_replay
from dxt_replay.traces.store.reader import Capture
from tests.examples import examples

LOADERS = {
    "tfrecord": ("tensorflow",), "hdf5": ("pytorch", "tensorflow"), "csv": ("pytorch", "tensorflow"),
    "npz": ("pytorch", "tensorflow", "dali"), "npy": ("pytorch", "tensorflow"), "jpeg": ("pytorch", "tensorflow"),
    "indexed_binary": ("pytorch",), "mmap_indexed_binary": ("pytorch",), "synthetic": ("tensorflow",),
}  # fmt: skip
SHUFFLES = st.sampled_from(["off", "seed", "random"])
TRANSFORMER = {
    "hidden_size": 64, "ffn_hidden_size": 128, "vocab_size": 500, "num_attention_heads": 4, "num_kv_heads": 2,
}  # fmt: skip
OPTIONAL = {
    "dataset.num_samples_per_file": st.sampled_from([2, 5, 64]),
    "dataset.record_length_bytes_stdev": st.sampled_from([1, 3000]),
    "dataset.num_subfolders_train": st.sampled_from([0, 2, 3]),
    "reader.batch_size": st.sampled_from([1, 2, 7]),
    "reader.read_threads": st.sampled_from([0, 1, 2, 4]),
    "reader.prefetch_size": st.sampled_from([0, 1, 5]),
    "reader.shuffle_size": st.sampled_from([0, 1, 100]),
    "reader.file_shuffle": SHUFFLES,
    "reader.sample_shuffle": SHUFFLES,
    "reader.read_type": st.sampled_from(["memory", "on_demand"]),
    "reader.transfer_size": st.sampled_from([1000, 65536]),
    "reader.preprocess_time": st.sampled_from([0.001, {"mean": 0.001, "stdev": 0.001}]),
    "train.epochs": st.sampled_from([1, 2, 3]),
    "train.total_training_steps": st.sampled_from([1, 3]),
    "train.computation_time": st.sampled_from([0, 0.01, {"type": "gamma", "shape": 1, "scale": 0.01}]),
    "workflow.evaluation": st.booleans(),
    "evaluation.eval_after_epoch": st.sampled_from([1, 2]),
    "workflow.checkpoint": st.booleans(),
    "checkpoint.steps_between_checkpoints": st.sampled_from([1, 2]),
    "checkpoint.num_checkpoints_write": st.sampled_from([1, 2]),
    "checkpoint.fsync": st.booleans(),
    "model.num_layers": st.sampled_from([1, 3]),
    "model.parallelism": st.sampled_from([{"tensor": 2}, {"zero_stage": 1}, {"zero_stage": 3}]),
    "model.layer_parameters": st.sampled_from([[10, 5000], [0]]),
}


@st.composite
def workloads(draw: st.DrawFn) -> dict[str, object]:
    file_format = draw(st.sampled_from(sorted(LOADERS)))
    loader = draw(st.sampled_from(LOADERS[file_format]))
    return {
        "framework": "tensorflow" if loader == "tensorflow" else "pytorch",
        "reader.data_loader": loader,
        "dataset.format": file_format,
        "dataset.num_files_train": draw(st.sampled_from([1, 3, 16, 33])),
        "dataset.record_length_bytes": draw(st.sampled_from([1, 100, 70_000])),
        "train.epochs": 1,
        "model.transformer": TRANSFORMER,
        **draw(st.fixed_dictionaries({}, optional=OPTIONAL)),
    }


FEW_FILES = {"dataset.num_files_train": 3, "dataset.num_files_eval": 9}


def check_opens(capture: Capture, *, stay_open: bool) -> int:
    """Follow the open files of each lane; how many operations there were. `stay_open`: files may be open at the end."""
    found = 0
    for rank in capture.ranks:
        open_now: Counter[tuple[int, int]] = Counter()
        for batch in capture.operations(rank):
            for row in batch.select(["lane", "op", "file_id"]).to_pylist():
                key = (row["lane"], row["file_id"])
                if row["op"] == "open":
                    assert not open_now[key], f"rank {rank}: {key} is opened twice"
                    open_now[key] = 1
                elif row["op"] != "stat":
                    assert open_now[key], f"rank {rank}: a {row['op']} of {key}, which is not open"
                    open_now[key] -= row["op"] == "close"
                found += 1
        assert stay_open or not any(open_now.values()), f"rank {rank}: left open: {+open_now}"
    return found


STREAMS = {
    "framework": "tensorflow", "reader.data_loader": "tensorflow", "dataset.format": "hdf5",
    "dataset.num_files_train": 8, "dataset.num_samples_per_file": 2, "reader.batch_size": 4, "reader.read_threads": 3,
}  # fmt: skip


@given(workloads(), st.sampled_from([1, 2, 4]))
@example(FEW_FILES, 1)  # no training step, but steps of the evaluation
@example({"train.total_training_steps": 1, "train.epochs": 3}, 1)  # an evaluation after the last step
@example(STREAMS, 1)
@example({**STREAMS, "dataset.num_files_train": 7}, 2)
@settings(max_examples=examples(60))
def test_any_workload_ends_in_a_capture_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, overrides: dict[str, object], ranks: int
) -> None:
    output = tmp_path_factory.mktemp("any") / "w.capture"
    with suppress(dxt_replay.UsageError):
        made = dxt_replay.generate("default", ranks, output, overrides=overrides, device="null")
        capture = dxt_replay.open_capture(output)
        in_memory = made.workload.reader.read_type == "memory"
        assert check_opens(capture, stay_open=in_memory) == made.as_json()["operations"]
        assert set(capture.info.ranks) == set(range(ranks))
