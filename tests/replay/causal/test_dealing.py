"""The model of a PyTorch DataLoader: what it finds in a capture, and that it predicts another storage."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from dxt_replay.replay.causal.explain import rank_model
from dxt_replay.replay.causal.ranks import expected_elapsed_ns, steps_of
from tests.capture_builder import build_capture
from tests.replay.causal.test_model import predicted_ns
from tests.simulated_application import MS, US, Storage
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
    "late clocks": Loader(late_ns=25 * MS, reads=(16,), compute_ns=3 * MS),
    "processes of one clock": Loader(one_clock=True),
    "four threads in each worker": Loader(one_clock=True, threads=4, reads=(8,), persistent=True),
    "more threads than reads are left": Loader(one_clock=True, threads=4, reads=(6,)),
    "threads of a worker bound by its input": Loader(one_clock=True, threads=4, reads=(10,), compute_ns=1 * MS),
}


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize(("here", "there"), [(FAST, FAST), (FAST, SLOW), (SLOW, FAST)], ids=["", "slower", "faster"])
def test_any_storage_is_predicted(name: str, here: Storage, there: Storage, tmp_path: Path) -> None:
    capture = capture_of(tmp_path, JOBS[name], here)
    steps, truth = steps_of(capture), run(JOBS[name], there).elapsed_ns - capture.time_span_ns[0]
    found = expected_elapsed_ns(capture, steps) if here == there else predicted_ns(capture, steps, there)
    assert found == pytest.approx(truth, rel=0.01 if here == there else 0.04)


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


def test_reads_that_no_dealing_explains_follow_the_bytes(tmp_path: Path) -> None:
    loader = Loader(passes=1)
    recorded = run(loader, FAST)
    late = round(0.6 * recorded.elapsed_ns)
    moved = [dataclasses.replace(op, start_ns=op.start_ns + late, end_ns=op.end_ns + late) for op in recorded.ops]
    info = capture_of(tmp_path / "whole", loader, FAST).info
    capture = build_capture(tmp_path, files=FILES, ops=moved, spans=recorded.spans, info=info)
    assert rank_model(steps_of(capture).models[0])["data_loader"] is None


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
