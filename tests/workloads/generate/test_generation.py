"""A generated capture: that it repeats its own schedule, on its device and on others, and does not depend on how it was
made."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dxt_replay
from dxt_replay.profiler_merge.analysis.findings import findings
from dxt_replay.replay.causal.ranks import Steps, expected_elapsed_ns, steps_of
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.records import benchmark_run
from dxt_replay.traces.schema import OPS, READ, SPAN_KINDS, codes
from dxt_replay.traces.store.reader import Capture, open_capture
from dxt_replay.traces.workers import ALONE, Workers
from dxt_replay.workloads.generate.clock import AssumedDevice, compute_times_ns, parse_device, preprocess_times_ns
from dxt_replay.workloads.generate.generation import generate
from tests.planned_lanes import elapsed_ns, lanes_that_last
from tests.workloads.generate.workload_cases import CASES, SAVES, workload_of

DEVICES = ("latency=100us,bandwidth=1GB/s", "null")


def elapsed_on(capture: Capture, steps: Steps, device: AssumedDevice) -> int:
    """What the causal model of a capture comes to on another device."""

    def lasts(rows: np.ndarray) -> np.ndarray:
        return device.durations_ns(np.full(len(rows), READ), rows["length"])

    return elapsed_ns(lanes_that_last(capture, steps, lasts))


@pytest.fixture(scope="module", params=CASES)
def captures(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Capture]:
    """A case on each of the devices."""
    workload, ranks = CASES[request.param]
    folder = tmp_path_factory.mktemp("case")
    for number, device in enumerate(DEVICES):
        generate(workload, ranks, folder / f"{number}.capture", device=device, seed=1)
    return [open_capture(folder / f"{number}.capture") for number in range(len(DEVICES))]


def test_the_causal_model_comes_to_the_generated_times_on_its_device_and_on_another(captures: list[Capture]) -> None:
    """What is generated on another device is what the dependencies predict there: so no dependency is missing, and none
    is too many."""
    steps = [steps_of(capture) for capture in captures]
    ends = [capture.time_span_ns[1] for capture in captures]
    for capture, model, end in zip(captures, steps, ends, strict=True):
        assert expected_elapsed_ns(capture, model) == pytest.approx(end, rel=1e-6, abs=100)
    for capture, model, other, end in zip(captures, steps, reversed(DEVICES), reversed(ends), strict=True):
        assert elapsed_on(capture, model, parse_device(other)) == pytest.approx(end, rel=1e-4, abs=1000)


def test_what_feeds_a_fetch_neither_goes_back_nor_waits_for_it(captures: list[Capture]) -> None:
    capture = captures[0]
    waits = codes(capture.spans, "kind") == SPAN_KINDS.index("input_wait")
    fetches = np.bincount(capture.spans["rank"].to_numpy()[waits], minlength=len(capture.ranks))
    for rank in capture.ranks:
        if not (batches := list(capture.operations(rank))):
            continue
        rows = pa.Table.from_batches(batches).to_pandas()
        known = rows[rows["feeds"].notna()]
        moment = 2 * known["follows"] + (known["follows_end"] == True)  # noqa: E712 - None where it is not known
        assert (known["feeds"] < fetches[rank]).all()
        assert (moment <= 2 * known["feeds"]).all()
        for column in (known["feeds"], moment):
            assert (column.groupby(known["lane"]).diff().fillna(0) >= 0).all()


def test_the_capture_does_not_depend_on_the_number_of_processes(tmp_path: Path) -> None:
    workload = workload_of("npz", "pytorch", files=160, deviation=20_000, checkpoints=True, evaluation_files=80)
    with Workers(2) as two:
        made = [
            generate(workload, 40, tmp_path / f"{name}.capture", workers=workers, seed=7)
            for name, workers in (("1", ALONE), ("2", two))
        ]
    assert made[0] == made[1]
    contents = [
        {path.relative_to(root): path.read_bytes() for path in root.rglob("*") if path.is_file()}
        for root in (tmp_path / "1.capture", tmp_path / "2.capture")
    ]
    assert contents[0] == contents[1]


def test_a_run_by_hand(tmp_path: Path) -> None:
    """Two ranks, one reader each, one batch ahead: 2 samples of 1,000 B in `.npz` files, on 1 ms an operation."""
    few = {"files": 4, "batch": 1, "readers": 1, "epochs": 1, "record": 32 * 32, "compute": 0.005}
    workload = workload_of("npz", "pytorch", **few, prefetch_size=1)
    generated = generate(workload, 2, tmp_path / "run.capture", device="latency=1ms,bandwidth=none")
    capture = open_capture(tmp_path / "run.capture")
    # open, 2 stats, the whole file and its end, close
    assert generated.operations == 4 * 6
    assert generated.bytes_read == 4 * 1522
    rows = [row for batch in capture.operations(1) for row in batch.to_pylist()]
    assert [row["start_ns"] for row in rows[:6]] == [number * 10**6 for number in range(6)]
    assert [row["file_id"] for row in rows] == [1] * 6 + [3] * 6
    assert {(row["feeds"], row["follows"], row["follows_end"]) for row in rows[:6]} == {(0, 0, False)}
    assert {(row["feeds"], row["follows"], row["follows_end"]) for row in rows[6:]} == {(1, 0, True)}
    assert rows[6]["start_ns"] == 6 * 10**6  # the first batch was fetched
    spans = [row for row in capture.spans.to_pylist() if row["rank"] == 1]
    waits = [(row["start_ns"], row["end_ns"]) for row in spans if row["kind"] == "input_wait"]
    left = 11 * 10**6 + 1
    assert waits == [(0, 6 * 10**6), (left, 12 * 10**6)]
    assert [row["step"] for row in spans if row["kind"] == "step"] == [1, 2]
    assert generated.elapsed_s == pytest.approx(0.017)


def test_what_a_capture_says_of_its_making(tmp_path: Path) -> None:
    workload = workload_of("npz", "pytorch")
    generated = generate(workload, 2, tmp_path / "run.capture", seed=3, device="null")
    info = open_capture(tmp_path / "run.capture").info
    assert (info.dependencies, info.lanes, info.job.nprocs) == ("known", "recorded", 2)
    assert {name: info.made_by[name] for name in ("command", "seed", "device")} == {
        "command": "generate", "seed": 3, "device": "latency=0ns,bandwidth=none",
    }  # fmt: skip
    assert info.made_by["operations_stored"] == generated.operations
    files = pq.read_table(tmp_path / "run.capture" / "files.parquet")
    assert files["path"][0].as_py() == "/data/train/img_00_of_32.npz"
    batch = next(open_capture(tmp_path / "run.capture").operations(0))
    assert set(batch.column("origin").to_pylist()) == {"generated"}
    assert set(batch.column("op").to_pylist()) <= set(OPS)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"ranks": 0}, "at least 1 rank"), ({"ranks": 100}, "a step of 100 ranks takes 200"),
        ({"device": "disk"}, "is not a property of a device"), ({"device": "latency=5x"}, "is not a time"),
        ({"device": "bandwidth=1GB"}, "is not a property"), ({"device": "bandwidth=0B/s"}, "is not a size"),
        ({"device": "latency=-5us"}, "is not a property"),
    ],
)  # fmt: skip
def test_values_that_are_refused(values: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        generate(workload_of("npz", "pytorch"), values.pop("ranks", 2), tmp_path / "run.capture", **values)
    assert not (tmp_path / "run.capture").exists()


@pytest.mark.parametrize(
    ("text", "device"),
    [
        ("null", (0, math.inf)), ("latency=0us, bandwidth=none", (0, math.inf)), ("latency=10us", (10_000, 1e9)),
        ("bandwidth=2.5GB/s", (100_000, 2.5e9)), ("latency=2ms,bandwidth=100MiB/s", (2_000_000, 100 * 2**20)),
    ],
)  # fmt: skip
def test_devices_as_text(text: str, device: tuple[int, float]) -> None:
    assert dataclasses.astuple(parse_device(text)) == device
    assert parse_device(str(parse_device(text))) == parse_device(text)


def test_the_facts_of_a_benchmark_are_kept_by_a_replay_and_not_by_a_change(tmp_path: Path) -> None:
    """Blocks of steps end at checkpoints and epochs."""
    small = {
        "dataset.num_files_train": 8, "dataset.record_length_bytes": 100_000, "dataset.record_length_bytes_stdev": 0,
        "reader.batch_size": 1, "train.epochs": 2, "train.computation_time": 0.01,
        "checkpoint.steps_between_checkpoints": 3, "checkpoint.checkpoint_folder": "ckpt",
        "model.model_size": 10_000,
    }  # fmt: skip
    dxt_replay.generate("unet3d_h100", 2, tmp_path / "u.capture", overrides=small)
    capture = open_capture(tmp_path / "u.capture")
    run = benchmark_run(capture.info)
    assert run is not None
    assert (run.workload, run.batch_size, run.files, run.record_bytes) == ("unet3d_h100", 1, 8, 100_000)
    assert run.blocks[0] == (1, 1, 3)
    assert {epoch for epoch, _, _ in run.blocks} == {1, 2}
    assert sum(last - first + 1 for _, first, last in run.blocks) == 8
    (tmp_path / "twin").mkdir(exist_ok=True)
    dxt_replay.stage(capture, tmp_path / "twin")
    dxt_replay.run(capture, tmp_path / "twin", tmp_path / "r.capture", pace="steps")
    replay = open_capture(tmp_path / "r.capture")
    assert benchmark_run(replay.info) == run
    (generated,), (replayed,) = (
        [each for each in findings(found) if each.code == "mlperf-storage"] for found in (capture, replay)
    )
    assert replayed.values["counted_steps"] == generated.values["counted_steps"]
    assert "replayed" in replayed.evidence
    assert "may not change checkpoint.steps_between_checkpoints" in replayed.evidence
    dxt_replay.transform(capture, tmp_path / "t.capture", compute_speed=2.0)
    assert benchmark_run(open_capture(tmp_path / "t.capture").info) is None


def test_ranks_draw_alike_under_a_shuffle_and_epochs_and_seeds_differ() -> None:
    times = {"mean": 0.5, "stdev": 0.1}
    of = {"compute": times, "preprocessing": times, "eval_time": {"type": "uniform", "min": 0.1, "max": 0.2}}
    plain, shuffled = (workload_of("npz", "pytorch", **of, sample_shuffle=each) for each in ("off", "seed"))
    first = compute_times_ns(plain, 0, 1, 100, seed=1)
    assert (compute_times_ns(plain, 0, 1, 200, seed=1)[:100] == first).all()
    for rank, epoch, seed in ((1, 1, 1), (0, 2, 1), (0, 1, 2)):
        assert (compute_times_ns(plain, rank, epoch, 100, seed=seed) != first).any()
    one, other = (compute_times_ns(shuffled, rank, 1, 9, seed=1) for rank in (0, 7))
    assert (one == other).all()
    assert (compute_times_ns(plain, 0, 1, 100, seed=1, evaluation=True) <= 200_000_000).all()
    one, other = (preprocess_times_ns(plain, rank, 3, 9, seed=1) for rank in (0, 5))  # workers of PyTorch
    assert (one == other).all()


@pytest.mark.parametrize(
    ("times", "mean"),
    [
        (-0.25, 0.25), ({"mean": 0.5, "stdev": 0.1}, 0.5),
        ({"mean": 0.0, "stdev": 1.0}, 0.797885),  # the absolute value of a standard normal draw
        ({"type": "uniform", "min": 0.2, "max": 0.4}, 0.3), ({"type": "gamma", "shape": 2, "scale": 0.25}, 0.5),
        ({"type": "exponential", "scale": 0.5}, 0.5), ({"type": "poisson", "lam": 3}, 3.0),
    ],
)  # fmt: skip
def test_times_follow_their_distribution(times: Any, mean: float) -> None:
    found = compute_times_ns(workload_of("npz", "pytorch", compute=times), 0, 1, 20_000, seed=1)
    assert found.dtype == np.int64
    assert found.mean() / 1e9 == pytest.approx(mean, rel=0.03)


@pytest.mark.parametrize(
    ("loader", "skips", "said"),
    [
        ("dali", False, ["each of 3 ranks lists 38 files"]), ("pytorch", False, ["rank 0 lists 38 files"]),
        ("pytorch", True, []),
    ],
)  # fmt: skip
def test_the_listing_that_a_capture_does_not_hold_is_a_warning(
    tmp_path: Path, loader: str, skips: bool, said: list[str]
) -> None:
    workload = workload_of("npz", loader, files=30, evaluation_files=8, batch=1, record=100, skip_listing=skips)
    warnings = generate(workload, 3, tmp_path / "w.capture").warnings
    assert open_capture(tmp_path / "w.capture").info.warnings == warnings
    assert [each in warning for each, warning in zip(said, warnings, strict=True)] == [True] * len(said)


def test_retinanet_reads_what_its_list_promises(tmp_path: Path) -> None:
    few = ["dataset.num_files_train=192", "train.epochs=1"]
    made = dxt_replay.generate("retinanet_b200", 2, tmp_path / "w.capture", overrides=few).generated
    assert (made.bytes_read, made.operations) == (192 * 322_957, 192 * 6)


def test_a_load_reads_in_four_streams_and_a_save_writes_in_one(tmp_path: Path) -> None:
    """400 MB at 100 MB/s for each stream: 4 s, and 1 s, also as the columns of the capture say."""
    once = {"num_checkpoints_write": 1, "num_checkpoints_read": 1, "time_between_checkpoints": 0.0}
    workload = workload_of("npz", "pytorch", **{**SAVES, **once}, model_size_bytes=400_000_000)
    made = generate(workload, 1, tmp_path / "run.capture", device="latency=0us,bandwidth=100MB/s")
    capture = open_capture(tmp_path / "run.capture")
    spans = [row for row in capture.spans.to_pylist() if row["kind"] == "checkpoint"]
    assert [row["end_ns"] - row["start_ns"] for row in spans] == pytest.approx([4e9, 1e9], rel=1e-4)
    assert made.elapsed_s == pytest.approx(5.0, rel=1e-4)
    model = tmp_path / "streams.yaml"
    model.write_text(
        "{storage_model: 1, name: x, operations: {read: {bandwidth: 50MB/s}, write: {bandwidth: 100MB/s}}}"
    )
    assert dxt_replay.simulate(capture, model).prediction.elapsed_ns == pytest.approx(6e9, rel=1e-4)
