"""The simulation against an application whose truth on another storage is known, and its figures."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import dxt_replay
from dxt_replay.profiler_merge.analysis.summary import summarise
from dxt_replay.replay.causal import ranks as module
from dxt_replay.replay.commands import predicting as simulations
from dxt_replay.replay.commands.predicting import Simulated
from dxt_replay.replay.simulation.model import (
    Client,
    Jitter,
    Limit,
    PageCache,
    RequestTime,
    Servers,
    StorageModel,
    document_of,
    model_of,
    read_storage_model,
)
from dxt_replay.traces.errors import CaptureError, UsageError
from dxt_replay.traces.store.reader import open_capture
from dxt_replay.traces.store.writer import write_spans
from tests.capture_builder import Span, spans_table
from tests.replay.causal.test_model import APPLICATIONS, FAST, SLOW, derived
from tests.simulated_application import MS, READ_BYTES, Application, Storage, run


def described(storage: Storage, **keys: object) -> StorageModel:
    """The storage of an application as a model: as many requests at a time as there are, none waits for another."""
    time = RequestTime.affine(storage.latency_ns, storage.bytes_per_ns * 1e9)
    return StorageModel(name="x", operations={"read": time, "write": time}, **keys)  # type: ignore[arg-type]


def simulated(tmp_path: Path, application: Application, model: StorageModel, **options: object) -> Simulated:
    capture, _, _ = derived(tmp_path, application, FAST)
    return dxt_replay.simulate(capture, model, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", APPLICATIONS)
def test_a_slower_storage_is_predicted(name: str, tmp_path: Path) -> None:
    capture, _, _ = derived(tmp_path, APPLICATIONS[name], FAST)
    truth = run(APPLICATIONS[name], SLOW).elapsed_ns - capture.time_span_ns[0]
    found = dxt_replay.simulate(capture, described(SLOW))
    assert found.prediction.elapsed_ns == pytest.approx(truth, rel=0.01)


def test_the_time_of_the_training_thread_adds_up(tmp_path: Path) -> None:
    application = Application(ranks=2, jitter=0.4, collective_ns=1 * MS, checkpoint_every=10, load_reads=5)
    prediction = simulated(tmp_path, application, described(SLOW)).prediction
    found = prediction.as_json()
    assert sum(found["time_s"].values()) == pytest.approx(found["elapsed_s"], rel=0.01)
    assert found["time_s"]["compute"] == pytest.approx(80 * 8e-3, rel=0.15)
    steps = prediction.steps()
    assert [step.step for step in steps] == list(range(80))
    assert steps[9].checkpoints > 0 == steps[8].checkpoints


def test_the_utilisation_is_the_accelerators_and_not_what_the_training_thread_does_besides(tmp_path: Path) -> None:
    """Of 8 ms between two waits an accelerator computes 1 ms: on the recorded storage, what `summary` says."""
    capture, _, _ = derived(tmp_path, Application(ranks=2), FAST)
    kinds = capture.spans["kind"].cast(pa.string())
    steps = capture.spans.filter(pc.equal(kinds, "step"))
    spans = [
        Span(row["kind"], row["start_ns"], row["end_ns"], row["name"], row["rank"], row["thread"], row["step"])
        for row in capture.spans.filter(pc.not_equal(kinds, "compute")).to_pylist()
    ]
    spans += [
        Span("compute", end - MS, end, rank=rank, step=step)
        for rank, step, end in zip(*(steps[name].to_pylist() for name in ("rank", "step", "end_ns")), strict=True)
    ]
    write_spans(capture.path, spans_table(sorted(spans, key=lambda span: (span.rank, span.start_ns))))
    found = dxt_replay.simulate(open_capture(capture.path), described(FAST))
    last = steps["end_ns"].to_numpy().max() - steps["start_ns"].to_numpy().min()
    truth = 100 * MS * steps.num_rows / 2 / last
    assert truth < 15
    assert found.prediction.utilisation_pct == pytest.approx(truth, rel=0.02)
    loop = summarise(open_capture(capture.path)).loop
    assert loop is not None
    assert loop.compute_pct == pytest.approx(truth, rel=0.02)


def test_infinitely_fast_storage_is_the_limit(tmp_path: Path) -> None:
    found = simulated(tmp_path, Application(), described(SLOW)).prediction
    free = simulated(tmp_path, Application(), StorageModel(name="null")).prediction
    assert found.free.elapsed_ns == free.elapsed_ns == free.free.elapsed_ns
    assert free.storage_pct == 0
    assert found.storage_pct == pytest.approx(100 * (1 - free.elapsed_ns / found.elapsed_ns))
    assert "not storage" in free.bottleneck()
    assert "latency of reads" in found.bottleneck()


def test_the_bottleneck_is_the_busy_queue(tmp_path: Path) -> None:
    rate = 80 * 3 * READ_BYTES / 3.0  # three seconds for what took one
    model = described(FAST, limits=(Limit(name="pipe", each="system", per_s=rate),), servers=Servers(slots=2))
    prediction = simulated(tmp_path, Application(), model).prediction
    assert prediction.elapsed_ns == pytest.approx(3e9, rel=0.35)
    assert prediction.bottleneck().startswith("pipe: busy")
    assert [each.name for each in prediction.resources()] == ["pipe", "slots of each server"]


def test_ranks_share_a_pipe_and_not_their_files(tmp_path: Path) -> None:
    rate = 4 * 80 * 3 * READ_BYTES / 0.9
    model = described(
        FAST, limits=(Limit(name="pipe", each="system", per_s=rate),), cache=PageCache(size=1 << 30), ranks_per_node=2
    )
    found = simulated(tmp_path, Application(ranks=2, collective_ns=MS), model, ranks=[1, 2, 5, 16])
    assert [each.ranks for each in found.scaling] == [1, 2, 5, 16]
    assert [each.as_json()["nodes"] for each in found.scaling] == [1, 1, 3, 8]
    seconds = [each.elapsed_ns / 1e9 for each in found.scaling]
    assert found.scaling[1].elapsed_ns == found.prediction.elapsed_ns
    assert seconds == sorted(seconds)
    assert seconds[3] > 2 * seconds[1]
    reads = [each.as_json()["requests"]["by_operation"]["read"]["operations"] for each in found.scaling]
    assert reads == [80 * 3 * ranks for ranks in (1, 2, 5, 16)]


def test_ranks_share_the_recorded_work(tmp_path: Path) -> None:
    application = Application(ranks=2, collective_ns=MS)
    found = simulated(tmp_path, application, described(SLOW), ranks=[1, 2, 4], strong=True)
    reads = [each.as_json()["requests"]["by_operation"]["read"]["bytes"] for each in found.scaling]
    assert reads == [2 * 80 * 3 * READ_BYTES] * 3
    seconds = [each.elapsed_ns / 1e9 for each in found.scaling]
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[1] == pytest.approx(found.prediction.elapsed_ns / 1e9, rel=0.01)
    with pytest.raises(UsageError, match="needs numbers of ranks"):
        simulated(tmp_path / "other", application, described(SLOW), strong=True)


def test_an_uncertain_model_gives_an_interval(tmp_path: Path) -> None:
    plain = simulated(tmp_path, Application(), described(SLOW)).prediction
    # A recorded job differs from its causal model by 10 %.
    assert plain.interval_ns == (round(0.9 * plain.elapsed_ns), round(1.1 * plain.elapsed_ns))
    uncertain = simulated(tmp_path, Application(), described(SLOW, uncertainty=0.2)).prediction
    low, high = uncertain.interval_ns
    assert low < plain.interval_ns[0] < uncertain.elapsed_ns == plain.elapsed_ns < plain.interval_ns[1] < high
    varying = described(SLOW, jitter=Jitter.lognormal(0.5))
    jitter = simulated(tmp_path, Application(), varying, runs=3).prediction
    assert (len(jitter.runs), jitter.seeds) == (3, 3)
    assert jitter.interval_ns[0] < jitter.interval_ns[1]


def test_what_cannot_be_simulated_is_refused(tmp_path: Path) -> None:
    capture, _, _ = derived(tmp_path, Application(steps=3), FAST)
    with pytest.raises(UsageError, match="runs 0: give 1 or more"):
        dxt_replay.simulate(capture, "null", runs=0)
    with pytest.raises(UsageError, match="1 to 1048576 ranks"):
        dxt_replay.simulate(capture, "null", ranks=[0])
    job = dxt_replay.simulate(capture, "null").prediction.job
    with pytest.raises(UsageError, match="more than 2147483648 files"):
        dataclasses.replace(job, file_bytes=np.zeros(1 << 20, dtype=np.int64)).lanes(1 << 12)
    without = dxt_replay.part(capture, operations=["read"])
    assert dxt_replay.simulate(without, "null").prediction.elapsed_ns > 0
    with pytest.raises((UsageError, CaptureError), match="steps"):
        dxt_replay.simulate(dxt_replay.sample("imagenet").log, "null")


def test_any_number_of_workers_gives_the_same_prediction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranks differ in their lanes' counters and meet at collectives; each is a piece of the work by itself."""
    capture = tmp_path / "many.capture"
    dxt_replay.generate("unet3d_h100", 3, capture, overrides=["dataset.num_files_train=42", "train.epochs=1"])
    monkeypatch.setattr(simulations, "PIECE_OPERATIONS", 1)
    found, seen = [], []
    for workers in (1, 2):
        with dxt_replay.Workers(workers) as executor:
            result = dxt_replay.simulate(
                capture, "nvme", ranks=[2, 7], executor=executor, on_progress=lambda *said: seen.append(said)
            )
        document = result.as_json()
        for each in (document, *document["scaling"]):
            each.pop("simulated")
        found.append(document)
    assert found[0] == found[1]
    assert [said for said in seen if said[0] == "deriving"] == 2 * [("deriving", done, 3) for done in (1, 2, 3)]
    ended = {total for what, done, total in seen if what == "simulating" and done == total}
    assert len(ended) == 3, "two numbers of ranks and the recorded one"


@pytest.mark.parametrize("name", APPLICATIONS)
def test_a_large_rank_is_read_for_each_pass(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    capture, _, _ = derived(tmp_path, APPLICATIONS[name], FAST)
    held = dxt_replay.simulate(capture, "nvme").prediction.as_json()
    monkeypatch.setattr(module, "HELD_OPERATIONS", 0)
    read = dxt_replay.simulate(capture, "nvme").prediction.as_json()
    assert {**read, "simulated": None} == {**held, "simulated": None}


def test_the_client_holds_each_step_and_meetings_cost_more_with_ranks(tmp_path: Path) -> None:
    application = Application(ranks=2, collective_ns=MS, steps=20)
    plain = described(FAST)
    client = Client(step_ns=4.0 * MS, meeting_ns={1: 0.0, 8: 6.0 * MS})
    model = msgspec.structs.replace(plain, client=client)
    assert [client.meeting_at(ranks) for ranks in (1, 2, 8, 64)] == [0.0, 2.0 * MS, 6.0 * MS, 12.0 * MS]
    assert model_of(json.loads(json.dumps(document_of(model)))) == model
    found = simulated(tmp_path / "a", application, model, ranks=[8])
    without = simulated(tmp_path / "b", application, plain, ranks=[8])
    for one, other, more_ms in (
        (found.prediction, without.prediction, 4 + 1),
        (found.scaling[0], without.scaling[0], 4 + 5),
    ):
        assert one.training_ns - other.training_ns == pytest.approx(20 * more_ms * MS, rel=0.01)
        assert one.free.training_ns - other.free.training_ns == pytest.approx(20 * more_ms * MS, rel=0.01)
    assert found.prediction.as_json()["time_s"]["client"] == pytest.approx(0.08)
    assert without.prediction.as_json()["time_s"]["client"] == 0


@pytest.mark.parametrize(("processors", "step_ms"), [(0, 6.0), (4, 6.0), (3, 8.0), (1, 24.0)])
def test_readers_share_the_processors_of_their_node(tmp_path: Path, processors: int, step_ms: float) -> None:
    """Two ranks with two readers each, and 12 ms of a processor for a sample of 1,000,000 B: as long as two readers
    need, or as the samples of both ranks take on the processors."""
    few = {
        "dataset.num_files_train": 200, "dataset.record_length_bytes": 1_000_000, "reader.batch_size": 1,
        "dataset.record_length_bytes_stdev": 0, "reader.read_threads": 2, "train.epochs": 1,
        "train.computation_time": 0.001, "workflow.checkpoint": False,
    }  # fmt: skip
    dxt_replay.generate("unet3d_h100", 2, tmp_path / "u.capture", overrides=few)
    client = {"sample": {"latency": "2ms", "bandwidth": "100MB/s"}, "processors": processors}
    (tmp_path / "model.yaml").write_text(json.dumps({"storage_model": 1, "name": "x", "client": client}))
    model = read_storage_model(tmp_path / "model.yaml")
    assert model_of(json.loads(json.dumps(document_of(model)))) == model
    found = dxt_replay.simulate(tmp_path / "u.capture", tmp_path / "model.yaml").prediction
    assert found.training_ns / 100 == pytest.approx(step_ms * MS, rel=0.03)
    assert found.free.training_ns == found.training_ns
    assert found.as_json()["simulated"]["operations"] == found.as_json()["operations"]
