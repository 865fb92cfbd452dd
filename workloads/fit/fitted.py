"""Fits a workload description to a capture: collects the estimates of all keys."""

from __future__ import annotations

from typing import Any

from dxt_replay.traces.errors import CaptureError
from dxt_replay.workloads.description import Workload
from dxt_replay.workloads.fit.data_files import data_files
from dxt_replay.workloads.fit.loader import computation, compute_ns, evaluations, framework_of, loader
from dxt_replay.workloads.fit.observation import Observation
from dxt_replay.workloads.fit.samples import samples
from dxt_replay.workloads.fit.saves import saves
from dxt_replay.workloads.fit.workload_text import Estimates, Found
from dxt_replay.workloads.keys import KEYS
from dxt_replay.workloads.workload_values import workload_from_values


def fit(seen: Observation, *, batch: int | None = None) -> Estimates:
    """The estimates of a description, in the order of DLIO's keys. `batch`: the batch size, if it is known.

    Raises: CaptureError where the loop neither reads nor saves anything.
    """
    found = dict(_estimates(seen, batch))
    if found["dataset.format"][0] == "synthetic" and not found["workflow.checkpoint"][0]:
        raise CaptureError(
            "no training step waits for a read and none writes a checkpoint: there is nothing to describe; "
            "`dxt-replay summary` shows what the capture has"
        )
    return {key: found[key] for key in KEYS if key in found}


def _estimates(seen: Observation, batch: int | None) -> Found:
    """Keys with their estimates; the last one of a key counts."""
    data = data_files(seen)
    shape = None if data is None else samples(seen, data, batch)
    framework, how = framework_of(seen, data, shape)
    yield "framework", (framework, how)
    yield "reader.data_loader", (framework, how)
    yield "workflow.train", (True, "the capture has training steps")
    if data is None or shape is None:
        steps = int(seen.looked[0].training_steps.sum())
        yield "dataset.format", ("synthetic", "no training step waits for a read")
        yield "dataset.num_files_train", (steps * seen.ranks, "a sample for each step and rank")
    else:
        yield from data.estimates.items()
        yield from shape.estimates.items()
        yield from loader(seen, data, shape, framework)
        yield from evaluations(seen, data, shape)
    waits = shape is not None and not shape.at_once
    yield "train.computation_time", computation([compute_ns(rank, waits_for_input=waits) for rank in seen.looked])
    yield from saves(seen, shape, framework)


def workload_of(estimates: Estimates) -> Workload:
    """The description under DLIO's documentation. Raises: UsageError where its values contradict each other."""
    values: dict[str, Any] = {}
    for key, (value, _) in estimates.items():
        *sections, name = key.split(".")
        inner = values
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[name] = value
    return workload_from_values(values, reading="documented")[0]
