"""The typed description: means of the distributions, and values that cannot be changed."""

from __future__ import annotations

import dataclasses

import pytest

from dxt_replay.workloads.description import Workload
from dxt_replay.workloads.times import Distribution


@pytest.mark.parametrize(
    ("family", "parameters", "mean"),
    [
        ("constant", (0.5,), 0.5),
        ("normal", (0.5, 0.1), 0.5),
        ("uniform", (1.0, 3.0), 2.0),
        ("gamma", (2.0, 0.25), 0.5),
        ("exponential", (0.5,), 0.5),
        ("poisson", (3.0,), 3.0),
    ],
)
def test_the_mean_of_each_family(family, parameters, mean):
    assert Distribution(family=family, parameters=parameters).mean_s == mean


def test_the_defaults_are_those_of_dlio():
    workload = Workload()
    assert (workload.dataset.record_length_bytes, workload.dataset.num_files_train) == (65536, 8)
    assert (workload.reader.prefetch_size, workload.reader.shuffle_size) == (2, 1024)
    assert (workload.model.model_size_bytes, workload.train.seed) == (10240, 123)


def test_a_workload_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Workload().dataset.format = "npz"
