"""A fit gives back the parameters of loops that are written from known ones, of shipped workloads at a small scale, and
of recorded applications.

recordings.json has the keys of each recording. They were held against the applications' own parameters when they were
recorded: format, batch size, samples, epochs, readers and checkpoints are those of the programs.
"""

from __future__ import annotations

import json
from operator import attrgetter
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import dxt_replay
from dxt_replay.profiler_merge.given_files import find_profiles
from dxt_replay.profiler_merge.merge import merge
from dxt_replay.replay.commands.main import main
from dxt_replay.traces.errors import CaptureError, TargetError, UsageError
from dxt_replay.traces.store.reader import open_capture
from dxt_replay.workloads.files import record_length
from dxt_replay.workloads.fit.fitted import fit, scalar, workload_of, workload_text
from dxt_replay.workloads.fit.observation import observe
from dxt_replay.workloads.generate.generation import generate
from dxt_replay.workloads.source import read_workload, read_yaml
from tests.capture_builder import File, Op, Span, build_capture, read, write
from tests.places import CAPTURES

STEP_NS, FETCH_NS, READ_NS = 10_000_000, 1_000_000, 20_000


def record_loop(
    folder, *, steps=40, batch=4, record=8192, files=4, per_file=40, ranks=1, suffix=".bin", open_each=False,
    save_every=0, extra=(), extra_files=(),
):  # fmt: skip
    """A training thread that reads `batch` records in each step, at random places, and may save 100 kB.

    Ranks read the samples of a pass in turn. File number `files` is the checkpoint."""
    samples, ops, spans = files * per_file, list(extra), []
    for rank in range(ranks):
        for step in range(steps):
            begin = 1_000_000 + step * STEP_NS
            at = begin + 1_000
            for taken in range(step * batch, (step + 1) * batch):
                number = taken * ranks + rank
                order = np.random.default_rng(number // samples).permutation(samples)
                file_id, index = divmod(int(order[number % samples]), per_file)
                if open_each:
                    ops.append(Op("open", file_id, rank=rank, start_ns=at, end_ns=at + 100))
                times = {"start_ns": at + 200, "end_ns": at + READ_NS}
                ops.append(read(file_id, offset=index * record, length=record, rank=rank, **times))
                at += READ_NS + 1_000
            own = {"rank": rank, "thread": 1, "step": step}
            spans.append(Span("step", begin, begin + STEP_NS - 10, name="train", **own))
            spans.append(Span("input_wait", begin, begin + FETCH_NS, name="next_batch", **own))
            if save_every and (step + 1) % save_every == 0:
                saved = begin + 8_000_000
                spans.append(Span("checkpoint", saved, saved + 1_000_000, name="save", **own))
                if rank == 0:
                    ops.append(write(files, length=100_000, start_ns=saved + 10, end_ns=saved + 500_000))
    named = [File(f"/data/set/part-{number}{suffix}", size=per_file * record) for number in range(files)]
    saved_to = [File("/run/ckpt/model.pt", format="checkpoint")] if save_every else []
    spans.sort(key=lambda span: (span.rank, span.start_ns))
    return build_capture(folder, ops=ops, files=[*named, *saved_to, *extra_files], spans=spans)


def fitted(capture, batch=None):
    return {key: value for key, (value, _) in fit(observe(capture), batch=batch).items()}


def records(batch, record, files, per_file, **more):
    """Keys of a loop over records at random places."""
    return {
        "dataset.format": "indexed_binary", "dataset.num_files_train": files, "dataset.num_samples_per_file": per_file,
        "dataset.record_length_bytes": record, "reader.batch_size": batch, "reader.sample_shuffle": "random",
        "reader.read_threads": 0, "dataset.data_folder": "/data/set", **more,
    }  # fmt: skip


AFTER = 1_000_000 + 41 * STEP_NS
RESULTS = {
    "extra": tuple(
        write(4 + rank, rank=rank, offset=piece * 1000, length=1000, start_ns=AFTER + piece * 2000)
        for rank in range(2)
        for piece in range(500)
    ),
    "extra_files": (File("/run/result-0.json"), File("/run/result-1.json")),
}


@pytest.mark.parametrize(
    ("loop", "expected"),
    [
        ({}, records(4, 8192, 4, 40, **{"train.epochs": 1})),
        (
            {"batch": 1, "record": 65536, "files": 2, "per_file": 20, "ranks": 2},
            records(1, 65536, 2, 20, **{"train.epochs": 2}),
        ),
        ({"batch": 16, "record": 4096, "files": 8}, records(16, 4096, 8, 40, **{"train.epochs": 2})),
        (  # a file for each sample
            {"files": 40, "per_file": 1, "batch": 2, "open_each": True, "suffix": ".jpg", "steps": 60},
            {"dataset.format": "jpeg", "reader.batch_size": 2, "dataset.num_samples_per_file": 1, "train.epochs": 3,
             "dataset.num_files_train": 40},
        ),
        (  # the time of a step, without its fetch and its checkpoint
            {"steps": 60, "per_file": 60, "save_every": 30},
            {"train.computation_time": pytest.approx(9e-3, rel=1e-3), "checkpoint.steps_between_checkpoints": 30,
             "model.model_size_bytes": pytest.approx(100_000, rel=0.02), "checkpoint.checkpoint_folder": "/run/ckpt"},
        ),
        (  # a checkpoint after each epoch follows epochs
            {"files": 1, "per_file": 80, "steps": 60, "save_every": 20, "open_each": True},
            {"train.epochs": 3, "checkpoint.checkpoint_after_epoch": 1, "checkpoint.epochs_between_checkpoints": 1,
             "checkpoint.steps_between_checkpoints": None},
        ),
        (  # results beside the loop stand as a checkpoint at its end
            {"ranks": 2, **RESULTS},
            {"checkpoint.checkpoint_after_epoch": 2, "train.epochs": 2, "model.parallelism.zero_stage": 1,
             "model.model_size_bytes": pytest.approx(500_000, rel=0.01)},
        ),
    ],
)  # fmt: skip
def test_a_loop_gives_its_keys(tmp_path, loop, expected):
    found = fitted(record_loop(tmp_path, **loop))
    assert {key: found.get(key) for key in expected} == expected


def test_an_image_is_a_sample_where_workers_run_ahead_of_the_loop(tmp_path):
    """Two workers read 320 images of many sizes twice, in pieces and in bursts that no single step waits for."""
    steps, batch, images = 80, 8, 320
    sizes = np.random.default_rng(1).integers(20_000, 120_000, images)
    ops, spans = [], []
    for taken in range(steps * batch):
        size = int(sizes[taken % images])
        first = 1_000_000 + taken // 20 * 20 * STEP_NS // batch + taken % 20 * 100_000
        for piece in range(0, size, 50_000):
            length = min(50_000, size - piece)
            ops.append(read(taken % images, lane=1 + taken % 2, offset=piece, length=length, start_ns=first + piece))
    for step in range(steps):
        begin = 2_000_000 + step * STEP_NS
        spans.append(Span("step", begin, begin + STEP_NS, name="ProfilerStep", thread=1, step=step))
        spans.append(Span("input_wait", begin, begin + 100_000, name="wait", thread=1, step=step))
    files = [File(f"/data/train/class{n % 4}/{n}.jpg", size=int(size)) for n, size in enumerate(sizes)]
    found = fitted(build_capture(tmp_path, ops=ops, files=files, spans=spans))
    assert (found["reader.batch_size"], found["dataset.num_samples_per_file"], found["train.epochs"]) == (batch, 1, 2)
    assert found["dataset.record_length_bytes"] < 3 * sizes.max()  # as decoded


def test_only_checkpoints_are_a_workload_too(tmp_path):
    spans = [Span("step", step * 10_000, step * 10_000 + 9_000, name="train", thread=1, step=step) for step in range(8)]
    spans += [Span("checkpoint", begin, begin + 3000, name="save", thread=1) for begin in (35_000, 75_000)]
    ops = [write(0, length=5000, start_ns=begin, end_ns=begin + 900) for begin in (35_100, 75_100)]
    spans.sort(key=lambda each: each.start_ns)
    found = fitted(build_capture(tmp_path, ops=ops, files=["/run/model.pt"], spans=spans))
    assert found["dataset.format"] == "synthetic"
    assert found["checkpoint.steps_between_checkpoints"] == 4
    assert 3000 < found["model.model_size_bytes"] < 5000  # DLIO adds the frame of an archive to it


@pytest.mark.parametrize(
    ("op", "spans", "said"),
    [
        (write(0, length=5), [Span("step", 10_000, 20_000, step=0)], "nothing to describe"),
        (read(0, length=5), [], r"no training steps.*merge with a profile"),
    ],
)
def test_a_capture_without_a_loop_that_does_something_is_an_error(tmp_path, op, spans, said):
    with pytest.raises(CaptureError, match=said):
        fitted(build_capture(tmp_path, files=["/a"], ops=[op], spans=spans))


def test_a_part_and_a_replay_are_captures_too(tmp_path):
    capture = record_loop(tmp_path, ranks=2, steps=60)
    found = fitted(dxt_replay.part(capture, ranks="1", steps="0-39"))
    assert (found["reader.batch_size"], found["dataset.record_length_bytes"]) == (4, 8192)
    (tmp_path / "twin").mkdir(exist_ok=True)
    dxt_replay.stage(capture, tmp_path / "twin")
    dxt_replay.run(capture, tmp_path / "twin", tmp_path / "replay.capture", pace="steps", speed=1000)
    again = fitted(dxt_replay.open_capture(tmp_path / "replay.capture"))
    assert (again["reader.batch_size"], again["dataset.num_samples_per_file"]) == (4, 40)


def test_logs_without_a_profile_are_refused_and_an_output_is_kept(tmp_path):
    output = tmp_path / "run.yaml"
    with pytest.raises(UsageError, match="merge it with a profile"):
        dxt_replay.fit(dxt_replay.sample("imagenet").log, output)
    assert not output.exists()
    output.write_text("mine")
    with pytest.raises(TargetError, match="exists"):
        dxt_replay.fit(record_loop(tmp_path), output)
    assert output.read_text() == "mine"


def test_fail_under_is_the_exit_status(tmp_path):
    words = ["--quiet", "fit", str(record_loop(tmp_path).path), "-o", str(tmp_path / "run.yaml"), "--force"]
    assert [main([*words, "--fail-under", limit]) for limit in ("50", "99.9")] == [0, 1]
    assert "similarity" in (tmp_path / "run.yaml").read_text()


KEYS = json.loads(Path(__file__).with_name("recordings.json").read_text(encoding="utf-8"))
OWN = Path(__file__).parents[2] / "data" / "captures"
SIMILAR = {"imagenet": 0.95, "cosmictagger": 0.95, "cosmoflow": 0.95, "torch_hdf5": 0.95}
"""Recording -> least similarity of what the fitted description generates."""


@pytest.mark.parametrize("name", KEYS)
def test_a_recording_gives_its_keys(tmp_path, name):
    if name in ("imagenet", "cosmictagger"):
        sample = dxt_replay.sample(name)
        logs, profiles = [sample.log], list(sample.profiles)
    else:
        folder = next((place / name for place in (OWN, CAPTURES) if (place / name / "profile").is_dir()), None)
        if folder is None:
            pytest.skip("no recorded captures beside this checkout")
        logs = sorted((folder / "logs").glob("*.darshan")) or [folder / "job.darshan"]
        profiles = list(find_profiles(folder / "profile"))
    merge(logs, profiles, tmp_path / "run.capture")
    found = dxt_replay.fit(tmp_path / "run.capture", tmp_path / "run.yaml")
    assert {key: value for key, (value, _) in found.keys.items()} == KEYS[name]
    text = (tmp_path / "run.yaml").read_text()
    assert f"{found.similarity:.4f}" in text
    assert all("#" in line for line in text.splitlines() if ": " in line)
    assert found.similarity is not None
    assert found.similarity > SIMILAR.get(name, 0)


EXACT = attrgetter(
    "framework", "workflow.checkpoint", "workflow.evaluation", "dataset.format", "dataset.num_files_train",
    "dataset.num_files_eval", "dataset.num_subfolders_train", "dataset.num_subfolders_eval", "reader.data_loader",
    "reader.batch_size", "reader.read_threads", "train.epochs", "train.total_training_steps",
    "evaluation.eval_after_epoch", "evaluation.epochs_between_evals", "checkpoint.steps_between_checkpoints",
)  # fmt: skip
"""Keys that must come back as they were."""

SHIPPED = {
    "unet3d_h100": (
        "dataset.num_files_train=56 train.epochs=2 dataset.record_length_bytes=400000 "
        "dataset.record_length_bytes_stdev=40000 workflow.checkpoint=False", None
    ),
    "retinanet_b200": ("dataset.num_files_train=960 train.epochs=2", None),
    "default": ("train.epochs=3", None),
    "resnet50_h100": (
        "dataset.num_files_train=64 dataset.num_samples_per_file=50 reader.batch_size=40 train.epochs=2", 40
    ),
    "bert_v100": (
        "dataset.num_files_train=4 dataset.num_samples_per_file=5000 train.total_training_steps=100 "
        "checkpoint.steps_between_checkpoints=25", 48,
    ),
    "cosmoflow_h100": ("dataset.num_files_train=128 train.epochs=2", None),
}  # fmt: skip
"""Workload -> overrides that make it small, and the batch size where the requests do not show it (TFRecord)."""


@pytest.mark.parametrize("name", SHIPPED)
def test_a_generated_capture_gives_its_description_back(tmp_path, name):
    overrides, batch = SHIPPED[name]
    given = read_workload(name, overrides.split()).workload
    generate(given, 2, tmp_path / "g.capture")
    found = workload_of(fit(observe(open_capture(tmp_path / "g.capture")), batch=batch))
    assert EXACT(found) == EXACT(given)
    # A part of an epoch of TFRecord shows bytes in whole requests only.
    off = 0.01 if given.train.total_training_steps is None else 0.03
    assert record_length(found.dataset) == pytest.approx(record_length(given.dataset), rel=off)
    assert found.dataset.num_samples_per_file == pytest.approx(given.dataset.num_samples_per_file, rel=off)
    assert found.train.computation_time.mean_s == pytest.approx(given.train.computation_time.mean_s, rel=1e-3)
    assert found.reader.preprocess_time.mean_s == pytest.approx(given.reader.preprocess_time.mean_s, abs=1e-5)
    if given.workflow.checkpoint:
        assert found.model.model_size_bytes == pytest.approx(given.model.model_size_bytes, abs=10)
    if given.workflow.evaluation:
        assert found.reader.batch_size_eval == given.reader.batch_size_eval
        assert found.evaluation.eval_time.mean_s == pytest.approx(given.evaluation.eval_time.mean_s, rel=1e-3)


def test_what_is_generated_from_a_fit_is_the_capture_again(tmp_path):
    generate(read_workload("default", ["train.epochs=2"]).workload, 2, tmp_path / "one.capture")
    first = open_capture(tmp_path / "one.capture")
    generate(workload_of(fit(observe(first))), 2, tmp_path / "two.capture")
    second = open_capture(tmp_path / "two.capture")
    assert second.operation_count() == first.operation_count()
    assert fitted(second) == fitted(first)


TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=30)
NUMBERS = st.integers(-(10**15), 10**15) | st.floats(allow_nan=False, allow_infinity=False)
MAPS = st.dictionaries(st.sampled_from("abc"), NUMBERS, max_size=3)
VALUES = st.booleans() | NUMBERS | TEXT | st.lists(st.integers(0, 10**12), max_size=4) | MAPS


@given(VALUES, VALUES, VALUES, TEXT)
def test_a_description_reads_back_whatever_the_comments_hold(first, second, third, comment):
    assert read_yaml(f"key: {scalar(first)}", "text") == {"key": first}
    keys = {"framework": first, "dataset.format": second, "dataset.hdf5.chunk_dims": third}
    text = workload_text({key: (value, comment) for key, value in keys.items()}, [comment, "", f"  {comment}"])
    assert yaml.safe_load(text) == {"framework": first, "dataset": {"format": second, "hdf5": {"chunk_dims": third}}}


def test_every_line_with_a_value_has_a_comment_and_off_is_a_word():
    text = workload_text({"train.epochs": (3, "3 passes")}, ["About it.", ""])
    assert text == "# About it.\n#\n\ntrain:\n  epochs: 3  # 3 passes\n"
    assert scalar("off") == "'off'"
