"""Which predictions of the pipelines count as right, and the table of them."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.pipelines import verdicts
from benchmarks.pipelines.job import PIPELINES
from benchmarks.pipelines.measuring import simulated_loop

TRUTHS = [2.0, 2.6, 1.9]


def _row(**predicted: Any) -> dict[str, Any]:
    return verdicts.judge({"pipeline": "plain", "storage": "fuse", "truth_s": TRUTHS, "predicted": predicted})


def _found(seconds: float, **more: Any) -> dict[str, Any]:
    return {"recorded_s": 1.5, "replayed_s": seconds, "opinion": {"limit_pct": 1.25, "reason": None}, **more}


@pytest.mark.parametrize(
    ("seconds", "right"),
    [(2.2, True), (2.21, True), (2.59, True), (2.61, False), (1.8, True), (1.79, False)],
)
def test_a_prediction_is_right_within_ten_per_cent_or_inside_the_spread(seconds: float, right: bool) -> None:
    assert verdicts.is_right(seconds, TRUTHS) is right


def test_predictions_from_another_storage_are_counted_apart() -> None:
    rows = [_row(fast=_found(2.0), fuse=_found(3.0)), _row(fast={"failed": "the replay: no"}, fuse=_found(2.0))]

    counts = verdicts.count(rows)

    assert (counts["another"]["right"], counts["another"]["all"]) == (1, 2)
    assert (counts["same"]["right"], counts["same"]["all"]) == (1, 2)
    assert "1 of 2 predictions from another storage" in verdicts.conclusion(rows)
    assert "simulated" not in verdicts.conclusion(rows)


def test_an_interval_holds_the_median_truth_or_not_and_a_failure_does_not() -> None:
    inside = _found(2.0, simulated={"seconds": 2.1, "interval_s": [1.9, 2.3]})
    outside = _found(2.0, simulated={"seconds": 3.0, "interval_s": [2.7, 3.3]})
    rows = [_row(fast=inside), _row(fast=outside), _row(fast=_found(2.0, simulation_failed="no"))]

    counted = verdicts.count(rows)["another"]

    assert (counted["simulated"], counted["simulated_right"], counted["intervals_with_truth"]) == (3, 1, 1)
    assert "with the truth in 1 of 3 intervals" in verdicts.conclusion(rows)


def test_what_failed_is_in_the_table_with_its_message() -> None:
    failed = {"pipeline": "plain", "storage": "fuse", "truth_s": [], "failed": "the job failed: no such file"}
    rows = [
        _row(fast=_found(2.0), fuse={"failed": "the recording: no log"}),
        verdicts.judge({**failed, "predicted": {"fast": _found(2.0)}}),
    ]

    text = verdicts.table({"storages": {"fast": "ext4"}, "tracer": "darshan", "rows": rows, "skipped": {"bytes": "no"}})

    for said in ("failed: the recording: no log", "the job failed: no such file", "bytes: not measured: no", "+0 % ok"):
        assert said in text
    assert verdicts.count(rows)["another"]["right"] == 1


def test_a_storage_limit_that_is_not_known_has_its_reason() -> None:
    found = _found(2.0) | {"opinion": {"limit_pct": None, "reason": "there are no steps"}}

    assert verdicts.lines(_row(fast=found))[0].endswith("not known: there are no steps")


def test_the_loop_of_a_simulation_is_its_training_loop() -> None:
    result = {"elapsed_s": 8.0, "interval_s": [7.5, 8.5], "training_s": 4.25, "training_interval_s": [3.75, 4.75]}
    assert simulated_loop(result) == {"seconds": 4.25, "interval_s": [3.75, 4.75]}


def test_there_are_pipelines_of_each_framework() -> None:
    assert {name.partition("_")[0] for name in PIPELINES} == {"keras", "loop", "jax", "torch"}
    assert len(PIPELINES) >= 17
