"""The simulation against an application whose truth on another storage is known; its figures, and their check."""

from __future__ import annotations

import dataclasses
import json

import msgspec
import numpy as np
import pytest

import dxt_replay
from dxt_replay.profiler_merge.analysis.summary import summarise
from dxt_replay.replay.causal import ranks as causal_ranks
from dxt_replay.replay.commands import predicting
from dxt_replay.replay.simulation.check import Agreement, first_steps
from dxt_replay.replay.simulation.model import Client, Jitter, Limit, PageCache, RequestTime, Servers, StorageModel
from dxt_replay.replay.simulation.predict import StepTime
from dxt_replay.traces.errors import CaptureError, UsageError
from dxt_replay.traces.store.reader import open_capture
from dxt_replay.traces.store.writer import write_spans
from tests.capture_builder import Span, spans_table
from tests.replay.causal.test_model import APPLICATIONS, FAST, SLOW, derived
from tests.simulated_application import MS, READ_BYTES, Application, run

S, READS = 10**9, 80 * 3  # of the application


def described(storage, **keys):
    """The storage of an application as a model: as many requests at a time as there are, none waits for another."""
    time = RequestTime.affine(storage.latency_ns, storage.bytes_per_ns * 1e9)
    return StorageModel(name="x", operations={"read": time, "write": time}, **keys)


def simulated(tmp_path, application, model, **options):
    return dxt_replay.simulate(derived(tmp_path, application, FAST)[0], model, **options)


@pytest.mark.parametrize("name", APPLICATIONS)
def test_a_slower_storage_is_predicted_also_where_a_rank_is_read_for_each_pass(name, tmp_path, monkeypatch):
    capture, _, _ = derived(tmp_path, APPLICATIONS[name], FAST)
    truth = run(APPLICATIONS[name], SLOW).elapsed_ns - capture.time_span_ns[0]
    assert dxt_replay.simulate(capture, described(SLOW)).prediction.elapsed_ns == pytest.approx(truth, rel=0.01)
    held = dxt_replay.simulate(capture, "nvme").prediction.as_json()
    monkeypatch.setattr(causal_ranks, "HELD_OPERATIONS", 0)
    again = dxt_replay.simulate(capture, "nvme").prediction.as_json()
    assert {**again, "simulated": None} == {**held, "simulated": None}


def test_the_time_of_the_training_thread_adds_up(tmp_path):
    application = Application(ranks=2, jitter=0.4, collective_ns=1 * MS, checkpoint_every=10, load_reads=5)
    prediction = simulated(tmp_path, application, described(SLOW)).prediction
    found, steps = prediction.as_json(), prediction.steps()
    assert sum(found["time_s"].values()) == pytest.approx(found["elapsed_s"], rel=0.01)
    assert found["time_s"]["compute"] == pytest.approx(80 * 8e-3, rel=0.15)
    assert [step.step for step in steps] == list(range(80))
    assert steps[9].checkpoints > 0 == steps[8].checkpoints


def test_the_utilisation_is_the_accelerators_and_not_what_the_training_thread_does_besides(tmp_path):
    """Of 8 ms between two waits an accelerator computes 1 ms: on the recorded storage, what `summary` says."""
    capture, _, _ = derived(tmp_path, Application(ranks=2), FAST)
    rows = [{**row, "origin": "traced"} for row in capture.spans.to_pylist()]
    steps = [row for row in rows if row["kind"] == "step"]
    spans = [Span(**row) for row in rows if row["kind"] != "compute"]
    spans += [Span("compute", row["end_ns"] - MS, row["end_ns"], rank=row["rank"], step=row["step"]) for row in steps]
    write_spans(capture.path, spans_table(sorted(spans, key=lambda span: (span.rank, span.start_ns))))
    capture = open_capture(capture.path)
    lasted_ns = max(row["end_ns"] for row in steps) - min(row["start_ns"] for row in steps)
    truth = 100 * MS * len(steps) / 2 / lasted_ns
    assert truth < 15
    found = dxt_replay.simulate(capture, described(FAST)).prediction.utilisation_pct
    assert (found, summarise(capture).loop.compute_pct) == pytest.approx((truth, truth), rel=0.02)


def test_the_bottleneck_is_the_busy_queue(tmp_path):
    pipe = Limit(name="pipe", each="system", per_s=READS * READ_BYTES / 3.0)  # three seconds for what took one
    model = described(FAST, limits=(pipe,), servers=Servers(slots=2))
    prediction = simulated(tmp_path, Application(), model).prediction
    assert prediction.elapsed_ns == pytest.approx(3e9, rel=0.35)
    assert prediction.bottleneck().startswith("pipe: busy")
    assert [each.name for each in prediction.resources()] == ["pipe", "slots of each server"]


def test_ranks_share_a_pipe_and_not_their_files(tmp_path):
    pipe = Limit(name="pipe", each="system", per_s=4 * READS * READ_BYTES / 0.9)
    model = described(FAST, limits=(pipe,), cache=PageCache(size=1 << 30), ranks_per_node=2)
    found = simulated(tmp_path, Application(ranks=2, collective_ns=MS), model, ranks=[1, 2, 5, 16])
    figures = [each.as_json() for each in found.scaling]
    assert [(each["ranks"], each["nodes"]) for each in figures] == [(1, 1), (2, 1), (5, 3), (16, 8)]
    reads = [each["requests"]["by_operation"]["read"]["operations"] for each in figures]
    assert reads == [READS * ranks for ranks in (1, 2, 5, 16)]
    lasted = [each.elapsed_ns for each in found.scaling]
    assert lasted[1] == found.prediction.elapsed_ns
    assert lasted == sorted(lasted)
    assert lasted[3] > 2 * lasted[1]


def test_ranks_share_the_recorded_work(tmp_path):
    application = Application(ranks=2, collective_ns=MS)
    found = simulated(tmp_path, application, described(SLOW), ranks=[1, 2, 4], strong=True)
    reads = [each.as_json()["requests"]["by_operation"]["read"]["bytes"] for each in found.scaling]
    assert reads == [2 * READS * READ_BYTES] * 3
    lasted = [each.elapsed_ns for each in found.scaling]
    assert lasted == sorted(lasted, reverse=True)
    assert lasted[1] == pytest.approx(found.prediction.elapsed_ns, rel=0.01)
    with pytest.raises(UsageError, match="needs numbers of ranks"):
        simulated(tmp_path / "other", application, described(SLOW), strong=True)


def test_an_uncertain_model_gives_an_interval(tmp_path):
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


def test_what_cannot_be_simulated_is_refused(tmp_path):
    capture, _, _ = derived(tmp_path, Application(steps=3), FAST)
    for options, message in (({"runs": 0}, "runs 0: give 1 or more"), ({"ranks": [0]}, "1 to 1048576 ranks")):
        with pytest.raises(UsageError, match=message):
            dxt_replay.simulate(capture, "null", **options)
    job = dxt_replay.simulate(capture, "null").prediction.job
    with pytest.raises(UsageError, match="more than 2147483648 files"):
        dataclasses.replace(job, file_bytes=np.zeros(1 << 20, dtype=np.int64)).lanes(1 << 12)
    without = dxt_replay.part(capture, operations=["read"])
    assert dxt_replay.simulate(without, "null").prediction.elapsed_ns > 0
    with pytest.raises((UsageError, CaptureError), match="steps"):
        dxt_replay.simulate(dxt_replay.sample("imagenet").log, "null")


def test_any_number_of_workers_gives_the_same_prediction(tmp_path, monkeypatch):
    """The ranks differ in their lanes' counters and meet at collectives; each is a piece of the work by itself."""
    capture = tmp_path / "many.capture"
    dxt_replay.generate("unet3d_h100", 3, capture, overrides=["dataset.num_files_train=42", "train.epochs=1"])
    monkeypatch.setattr(predicting, "PIECE_OPERATIONS", 1)
    found, seen = [], []
    for workers in (1, 2):
        with dxt_replay.Workers(workers) as executor:
            result = dxt_replay.simulate(
                capture, "nvme", ranks=[2, 7], executor=executor, on_progress=lambda *said: seen.append(said)
            )
        found.append(document := result.as_json())
        for each in (document, *document["scaling"]):
            each.pop("simulated")
    assert found[0] == found[1]
    assert [said for said in seen if said[0] == "deriving"] == 2 * [("deriving", done, 3) for done in (1, 2, 3)]
    ended = {total for what, done, total in seen if what == "simulating" and done == total}
    assert len(ended) == 3, "two numbers of ranks and the recorded one"


def test_the_client_holds_each_step_and_meetings_cost_more_with_ranks(tmp_path):
    application, plain = Application(ranks=2, collective_ns=MS, steps=20), described(FAST)
    client = Client(step_ns=4.0 * MS, meeting_ns={1: 0.0, 8: 6.0 * MS})
    assert [client.meeting_at(ranks) for ranks in (1, 2, 8, 64)] == [0.0, 2.0 * MS, 6.0 * MS, 12.0 * MS]
    found = simulated(tmp_path / "a", application, msgspec.structs.replace(plain, client=client), ranks=[8])
    without = simulated(tmp_path / "b", application, plain, ranks=[8])
    for one, other, more_ms in (
        (found.prediction, without.prediction, 4 + 1),
        (found.scaling[0], without.scaling[0], 4 + 5),
    ):
        assert one.training_ns - other.training_ns == pytest.approx(20 * more_ms * MS, rel=0.01)
        assert one.free.training_ns - other.free.training_ns == pytest.approx(20 * more_ms * MS, rel=0.01)
    assert found.prediction.as_json()["time_s"]["client"] == pytest.approx(0.08)
    assert without.prediction.as_json()["time_s"]["client"] == 0


@pytest.mark.parametrize(
    ("processors", "read_ms", "step_ms"),
    [(0, 0, 6.0), (4, 0, 6.0), (3, 0, 8.0), (1, 0, 24.0), (0, 10, 6.0), (0, 20, 10.0), (1, 20, 24.0)],
)
def test_readers_share_the_processors_of_their_node(tmp_path, processors, read_ms, step_ms):
    """Two ranks with two readers each, and 12 ms of a processor for a sample of 1,000,000 B beside its read: as long as
    two readers need, or as the samples of both ranks take on the processors."""
    few = {
        "dataset.num_files_train": 200, "dataset.record_length_bytes": 1_000_000, "reader.batch_size": 1,
        "dataset.record_length_bytes_stdev": 0, "reader.read_threads": 2, "train.epochs": 1,
        "train.computation_time": 0.001, "workflow.checkpoint": False,
    }  # fmt: skip
    dxt_replay.generate("unet3d_h100", 2, tmp_path / "u.capture", overrides=few)
    client = {"sample": {"latency": "2ms", "bandwidth": "100MB/s"}, "processors": processors}
    operations = {"read": {1: "0us", 1_000_000: f"{read_ms}ms"}}
    document = {"storage_model": 1, "name": "x", "client": client, "operations": operations}
    (tmp_path / "model.yaml").write_text(json.dumps(document))
    found = dxt_replay.simulate(tmp_path / "u.capture", tmp_path / "model.yaml").prediction
    assert found.training_ns / 100 == pytest.approx(step_ms * MS, rel=0.03)
    assert found.free.training_ns == pytest.approx(found.training_ns, rel=1e-6) or read_ms
    assert found.as_json()["simulated"]["operations"] == found.as_json()["operations"]


def agreement(measured_s):
    """Of 10 s that were simulated storage costs 2."""
    return Agreement(steps=(0, 9), simulated_ns=10 * S, free_ns=8 * S, measured_ns=round(measured_s * S))


@pytest.mark.parametrize(
    ("verdict", "measured"), [("agrees", (10, 10.4, 9.6)), ("differs", (10.6, 14)), ("contradicts", (16, 6))]
)
def test_the_verdict(verdict, measured):
    assert {agreement(measured_s).verdict for measured_s in measured} == {verdict}


def test_the_interval_holds_the_whole_time_scaled_and_the_cost_of_storage_scaled():
    """Of 10 s storage costs 2, and 3 in the replay. In the job of 100 s it costs 50: so 110 s, or 125 s."""
    assert agreement(11).widened((95 * S, 105 * S), 50 * S) == (95 * S, round(132.5 * S))
    assert agreement(9).widened((95 * S, 105 * S), 50 * S) == (round(72.5 * S), 105 * S)


def test_the_window_is_the_first_steps_that_take_so_long():
    steps = [StepTime(250.0, 200.0, 0.0, 0.0, 0.0, 50.0, step=number) for number in range(5, 25)]  # half a second
    assert [first_steps(steps, s) for s in (3.0, 10.0, 60.0)] == [(5, 10), None, None]
    assert first_steps([], 1.0) is None
