"""The course of a run: epochs, evaluations, checkpoints and the batches that nobody uses."""

from __future__ import annotations

import dataclasses

import pytest

from dxt_replay.traces.errors import UsageError
from dxt_replay.workloads.description import Train, Workflow
from dxt_replay.workloads.generate.run_plan import CheckpointStep, Meeting, Pass, Save, run_plan
from tests.workloads.generate.workload_cases import workload_of


def passes_of(plan):
    return [segment for segment in plan.segments if isinstance(segment, Pass)]


def with_limit(workload, steps):
    return dataclasses.replace(workload, train=Train(epochs=workload.train.epochs, total_training_steps=steps))


def test_epochs_with_evaluations_and_checkpoints():
    workload = workload_of("npz", "pytorch", files=16, batch=2, evaluation_files=4, checkpoints=True)
    plan = run_plan(workload, 2)
    assert [type(segment) for segment in plan.segments] == [Pass, Save, Pass, Meeting, Pass, Save, Pass]
    assert [(each.evaluation, each.epoch, each.steps) for each in passes_of(plan)] == [
        (False, 1, 4), (True, 1, 2), (False, 2, 4), (True, 2, 2),
    ]  # fmt: skip
    assert [each.first_step for each in passes_of(plan)] == [1, 5, 7, 11]
    assert [each.first_fetch for each in passes_of(plan)] == [0, 4, 6, 10]
    assert plan.checkpoints == ((1, 5), (2, 5))


@pytest.mark.parametrize(
    ("reading", "expected"),
    [
        ("documented", [((3, 0), (6, 1)), ((1, 2), (4, 3), (7, 4))]),
        ("v2.0", [((3, 0), (6, 1)), ((3, 2), (6, 3))]),
    ],
)
def test_the_code_counts_steps_between_checkpoints_anew_in_each_epoch(reading, expected):
    workload = workload_of(
        "npz",
        "pytorch",
        files=16,
        batch=1,
        checkpoints=True,
        checkpoint={"steps_between_checkpoints": 3},
        reading=reading,
    )
    assert [each.saves for each in passes_of(run_plan(workload, 2))] == expected


@pytest.mark.parametrize(("reading", "steps", "fetches"), [("documented", [4, 2], [4, 2]), ("v2.0", [6, 6], [7, 7])])
def test_the_code_limits_the_steps_of_each_epoch(reading, steps, fetches):
    limit = 6
    files = 8 if reading == "documented" else 16
    workload = with_limit(workload_of("npz", "pytorch", files=files, batch=1, reading=reading), limit)
    found = passes_of(run_plan(workload, 2))
    assert [each.steps for each in found] == steps
    assert [each.fetches for each in found] == fetches


@pytest.mark.parametrize(("epochs", "extra"), [(1, 0), (2, 1)])
def test_tf_data_fetches_a_batch_more_than_it_uses_in_several_epochs(epochs, extra):
    workload = workload_of("tfrecord", "tensorflow", files=16, epochs=epochs, reading="v2.0")
    assert [each.fetches - each.steps for each in passes_of(run_plan(workload, 2))] == [extra] * epochs


def test_checkpoints_are_written_and_then_read():
    workload = workload_of(
        "npz",
        "pytorch",
        checkpoints=True,
        checkpoint={"num_checkpoints_write": 2, "num_checkpoints_read": 1, "rank_sync": True},
    )
    plan = run_plan(dataclasses.replace(workload, workflow=Workflow(train=False, checkpoint=True)), 2)
    steps = [segment for segment in plan.segments if isinstance(segment, CheckpointStep)]
    assert [(each.number, each.loads, each.step) for each in steps] == [(0, False, 1), (1, False, 2), (0, True, 3)]
    assert [type(segment) for segment in plan.segments][1::2] == [Meeting] * 3
    assert plan.steps == 3


def test_a_run_that_does_nothing_is_refused():
    workload = workload_of("npz", "pytorch")
    with pytest.raises(UsageError, match="neither trains nor writes checkpoints"):
        run_plan(dataclasses.replace(workload, workflow=Workflow(train=False)), 2)
