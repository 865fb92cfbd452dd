"""Draws of times: DLIO's own where its code seeds NumPy, else reproducible by the seed and different on each rank."""

from __future__ import annotations

import numpy as np
import pytest

from dxt_replay.workloads.description import Evaluation, Reader, Train, Workload
from dxt_replay.workloads.generate.draws import compute_times_ns, preprocess_times_ns
from dxt_replay.workloads.times import Distribution

NORMAL = Distribution(family="normal", parameters=(0.5, 0.1))


def workload(reading="documented", shuffle="off", times=NORMAL, **reader):
    return Workload(
        reading=reading,
        reader=Reader(data_loader="pytorch", sample_shuffle=shuffle, preprocess_time=times, **reader),
        train=Train(computation_time=times),
        evaluation=Evaluation(eval_time=Distribution(family="uniform", parameters=(0.1, 0.2))),
    )


@pytest.mark.parametrize("reading", ["head", "v2.0"])
def test_a_shuffle_makes_the_draws_dlio_s_own_on_all_ranks(reading):
    shuffled = workload(reading, "random")
    np.random.seed(123 + 2)
    samples = np.arange(1000)
    np.random.shuffle(samples)
    expected = [np.random.normal(0.5, 0.1) for _ in range(5)]
    evaluation = [np.random.uniform(0.1, 0.2) for _ in range(3)]
    for rank in (0, 7):
        drawn = compute_times_ns(shuffled, rank, 2, 5, seed=9, burn_in=[1000])
        assert drawn.tolist() == [round(abs(each) * 1e9) for each in expected]
        drawn = compute_times_ns(shuffled, rank, 2, 3, seed=9, burn_in=[1000], trained=5)
        assert drawn.tolist() == [round(each * 1e9) for each in evaluation]


@pytest.mark.parametrize(("reading", "shuffle"), [("head", "off"), ("documented", "seed")])
def test_else_ranks_epochs_and_seeds_differ(reading, shuffle):
    plain = workload(reading, shuffle)
    first = compute_times_ns(plain, 0, 1, 100, seed=1)
    assert (compute_times_ns(plain, 0, 1, 200, seed=1)[:100] == first).all()
    for other in ((1, 1, 1), (0, 2, 1), (0, 1, 2)):
        rank, epoch, seed = other
        assert (compute_times_ns(plain, rank, epoch, 100, seed=seed) != first).any()


def test_workers_of_pytorch_draw_alike_on_all_ranks_in_its_code():
    code, documented = workload("head"), workload()
    assert (preprocess_times_ns(code, 0, 3, 9, seed=1) == preprocess_times_ns(code, 5, 3, 9, seed=1)).all()
    assert (preprocess_times_ns(code, 0, 3, 9, seed=1) != preprocess_times_ns(code, 0, 2, 9, seed=1)).any()
    assert (preprocess_times_ns(documented, 0, 3, 9, seed=1) != preprocess_times_ns(documented, 5, 3, 9, seed=1)).any()


@pytest.mark.parametrize(
    ("family", "parameters", "mean"),
    [
        ("constant", (-0.25,), 0.25),
        ("normal", (0.5, 0.1), 0.5),
        ("normal", (0.0, 1.0), 0.797885),  # the absolute value of a standard normal draw
        ("uniform", (0.2, 0.4), 0.3),
        ("gamma", (2.0, 0.25), 0.5),
        ("exponential", (0.5,), 0.5),
        ("poisson", (3.0,), 3.0),
    ],
)
def test_times_follow_their_distribution(family, parameters, mean):
    times = workload(times=Distribution(family=family, parameters=parameters))
    drawn = compute_times_ns(times, 0, 1, 20_000, seed=1)
    assert drawn.dtype == np.int64
    assert drawn.mean() / 1e9 == pytest.approx(mean, rel=0.03)
