"""The model of a PyTorch DataLoader: what it finds in a capture, and that it predicts another storage."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from dxt_replay.replay.causal.explain import rank_model
from dxt_replay.replay.causal.paced_ranks import expected_elapsed_ns, steps_of
from tests.capture_builder import build_capture
from tests.replay.causal.test_model import predicted_ns
from tests.simulated_application import MS, US, Application, Storage
from tests.simulated_application import run as simulated
from tests.simulated_loader import FILES, Loader, capture_of, run

FAST = Storage(latency_ns=150 * US)
SLOW = Storage(latency_ns=1500 * US, bytes_per_ns=0.1)

JOBS = {
    "new workers in each pass": Loader(),
    "persistent workers": Loader(persistent=True),
    "one worker": Loader(made=(20,), prefetch=3),
    "five workers": Loader(made=(9, 9, 9, 8, 8), compute_ns=3 * MS),
    "bound by its input": Loader(compute_ns=1 * MS, reads=(12,)),
    "batches of many sizes": Loader(reads=(9, 10, 11), passes=1, made=(30, 30)),
    "a shard that is exhausted": Loader(made=(24, 10), passes=1),
    "validation in between": Loader(made=(25, 24), validate_every=10, persistent=True),
    "resumed": Loader(made=(12, 12, 12), resumed=1),
    "resumed with persistent workers": Loader(made=(9, 9, 8, 8), resumed=3, persistent=True),
    "late clocks": Loader(late_ns=25 * MS, reads=(16,), compute_ns=3 * MS),
    "processes of one clock": Loader(one_clock=True),
    "four threads in each worker": Loader(one_clock=True, threads=4, reads=(8,), persistent=True),
    "more threads than reads are left": Loader(one_clock=True, threads=4, reads=(6,)),
    "threads of a worker bound by its input": Loader(one_clock=True, threads=4, reads=(10,), compute_ns=1 * MS),
}


@pytest.mark.parametrize("name", JOBS)
def test_the_model_comes_to_the_recorded_time(name: str, tmp_path: Path) -> None:
    capture = capture_of(tmp_path, JOBS[name], FAST)
    elapsed = run(JOBS[name], FAST).elapsed_ns - capture.time_span_ns[0]
    assert expected_elapsed_ns(capture, steps_of(capture)) == pytest.approx(elapsed, rel=0.01)


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize(("here", "there"), [(FAST, SLOW), (SLOW, FAST)], ids=["slower", "faster"])
def test_another_storage_is_predicted(name: str, here: Storage, there: Storage, tmp_path: Path) -> None:
    capture = capture_of(tmp_path, JOBS[name], here)
    truth = run(JOBS[name], there).elapsed_ns - capture.time_span_ns[0]
    assert predicted_ns(capture, steps_of(capture), there) == pytest.approx(truth, rel=0.04)


@pytest.mark.parametrize("name", sorted(JOBS.keys() - {"late clocks"}))
def test_workers_and_their_prefetch_factor_are_found(name: str, tmp_path: Path) -> None:
    loader = JOBS[name]
    found = rank_model(steps_of(capture_of(tmp_path, loader, FAST)).models[0])
    validations = loader.passes * sum(loader.made) // loader.validate_every if loader.validate_every else 0
    assert found["data_loader"]["workers"] == len(loader.made)
    assert found["data_loader"]["passes"] == loader.passes + validations
    assert found["data_loader"]["persistent_workers"] == (loader.persistent and loader.passes > 1)
    if "bound by its input" not in name:  # the loop fetches each batch at once, and no worker is ever far ahead
        assert found["data_loader"]["prefetch_factor"] == loader.prefetch
    assert found["feed_rule"].startswith("a DataLoader deals batches to")


@pytest.mark.parametrize("resumed", [None, 0])
def test_a_short_pass_is_not_taken_for_a_resumed_one(resumed: int | None, tmp_path: Path) -> None:
    loader = Loader(made=(3, 2, 2), passes=2, reads=(12,), compute_ns=8 * MS, jitter=0.05, seed=664443, resumed=resumed)
    capture = capture_of(tmp_path, loader, SLOW)
    truth = run(loader, FAST).elapsed_ns - capture.time_span_ns[0]
    assert predicted_ns(capture, steps_of(capture), FAST) == pytest.approx(truth, rel=0.04)


@pytest.mark.parametrize("resumed", range(4))
def test_the_worker_that_goes_on_with_a_resumed_pass_is_found(resumed: int, tmp_path: Path) -> None:
    model = steps_of(capture_of(tmp_path, Loader(made=(9, 9, 9, 9), resumed=resumed), FAST)).models[0]
    assert model.dealing is not None
    first = sorted((int(deal.event[0]), lane) for lane, deal in model.dealing.lanes.items())
    assert [lane - 1 for _, lane in first[:4]] == [(resumed + turn) % 4 for turn in range(4)]


def test_the_clock_of_a_worker_is_corrected_where_a_batch_was_fetched_before_it_was_read(tmp_path: Path) -> None:
    loader = Loader(late_ns=12 * MS, compute_ns=2 * MS, reads=(16,), made=(20, 20), passes=1)
    capture = capture_of(tmp_path, loader, FAST)
    found = rank_model(steps_of(capture).models[0])["data_loader"]
    assert found["clocks_corrected_ms"] == pytest.approx(12, abs=1)


def test_reads_that_no_dealing_explains_follow_the_bytes(tmp_path: Path) -> None:
    loader = Loader(passes=1)
    recorded = run(loader, FAST)
    late = round(0.6 * recorded.elapsed_ns)
    moved = [dataclasses.replace(op, start_ns=op.start_ns + late, end_ns=op.end_ns + late) for op in recorded.ops]
    info = capture_of(tmp_path / "whole", loader, FAST).info
    capture = build_capture(tmp_path, files=FILES, ops=moved, spans=recorded.spans, info=info)
    assert rank_model(steps_of(capture).models[0])["data_loader"] is None


def test_without_workers_the_training_thread_reads(tmp_path: Path) -> None:
    recorded = simulated(Application(depth=0, steps=10), FAST)
    name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    spans = [dataclasses.replace(span, name=name) if span.kind == "input_wait" else span for span in recorded.spans]
    capture = build_capture(tmp_path, files=["/data/train", "/a", "/b"], ops=recorded.ops, spans=spans)
    found = rank_model(steps_of(capture).models[0])
    assert found["data_loader"] is None
    assert "num_workers=0" in found["feed_rule"]


def test_rebuilt_closes_in_lanes_of_their_own_are_no_workers(tmp_path: Path) -> None:
    loader = Loader()
    info = capture_of(tmp_path / "plain", loader, FAST).info
    recorded = run(loader, FAST)
    second = [op for op in recorded.ops if op.lane == 2][-1]
    # The lanes of workers that were started later move up.
    ops = [dataclasses.replace(op, lane=op.lane + 1) if op.lane > 2 else op for op in recorded.ops]
    ops.append(dataclasses.replace(second, op="close", lane=3, length=0, offset=0, origin="reconstructed"))
    capture = build_capture(tmp_path, files=FILES, ops=ops, spans=recorded.spans, info=info)
    found = rank_model(steps_of(capture).models[0])["data_loader"]
    assert (found["workers"], found["passes"], found["persistent_workers"]) == (2, 2, False)
