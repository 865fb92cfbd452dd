"""The arithmetic of the table of predictions, the cells that a resumed run measures, and the jobs themselves."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks import prediction_table, predictions
from benchmarks.prediction_jobs import JOBS
from benchmarks.prediction_table import Prediction, table

NEEDED = {"lightning_validation": "lightning", "grain_threads": "grain", "keras_records": "tensorflow"}


def _prediction(seconds: float, **more: Any) -> Prediction:
    found: dict[str, Any] = {"truths": [10.0, 10.4, 9.8], "others": [2.0, 2.2, 1.9], "doubt": "", "interval_s": None}
    return Prediction(predicted_s=seconds, **found | more)


@pytest.mark.parametrize(
    ("seconds", "right", "wrong"),
    [(10.7, True, False), (10.9, False, False), (11.7, False, True), (10.4, True, False), (8.3, False, True)],
)
def test_the_error_is_one_of_the_added_seconds(seconds: float, right: bool, wrong: bool) -> None:
    found = _prediction(seconds)

    assert found.error_pct == pytest.approx(100 * (seconds - 10) / 8)
    assert (found.right, found.wrong) == (right, wrong)


def test_a_prediction_among_the_true_runs_is_right_whatever_its_share_of_the_added_seconds() -> None:
    assert _prediction(12.0, truths=[10.0, 10.1, 13.0], others=[9.0]).right
    assert not _prediction(12.0, truths=[10.0, 10.1, 11.0], others=[9.0]).right


def test_an_interval_holds_the_median_truth_or_not() -> None:
    assert [_prediction(9.0, interval_s=each).held for each in (None, [8.0, 10.0], [8.0, 9.9])] == [None, True, False]


def _cells() -> list[dict[str, Any]]:
    truths = [("fast", 2.0), ("fast", 2.2), ("slow", 8.0), ("slow", 8.4)]
    cells: list[dict[str, Any]] = [
        {"job": "a", "what": "truth", "on": on, "run": number, "loop_s": seconds}
        for number, (on, seconds) in enumerate(truths)
    ]
    cells.append({"job": "a", "what": "recording", "on": "slow", "run": None, "loop_s": 8.5, "limit_pct": 70.0})
    cells.append({"job": "a", "what": "prediction", "on": "slow", "run": None, "failed": "the replay: no"})
    predicted = {"job": "a", "what": "prediction", "run": None, "doubt": None, "warnings": []}
    doubted = {"warnings": ["busy", "how long training takes on other storage is not known: why"]}
    cells.append(predicted | {"on": "slow", "training_s": 8.1, **doubted})
    cells.append(predicted | {"on": "fast", "training_s": 4.0})
    return cells


def test_the_table_counts_what_was_measured_last() -> None:
    text = table(_cells(), {"a": "bytes"})

    assert set(prediction_table.predictions(_cells())) == {("a", "slow"), ("a", "fast")}
    assert "| a | bytes | slow from fast | 8.00, 8.40 |" in text
    assert "70 %, 74 %" in text
    assert "- 1 of 2 are right" in text
    assert "- 1 are doubted, 1 of them right" in text
    assert "- 1 are off by more than 20 % of the added seconds and not doubted" in text


def test_what_failed_is_in_the_table_with_its_reason() -> None:
    failed = {"job": "a", "what": "truth", "on": "fast", "run": 0, "failed": "no torch"}
    refused = {"job": "a", "what": "prediction", "on": "slow", "run": None, "failed": "no steps"}

    text = table([failed, refused], {})

    assert "| slow from fast | prediction on slow: no steps |" in text
    assert "| fast from slow | truth on fast: no torch |" in text
    assert "- 1 more were refused or failed" in text


def test_a_stopped_run_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = Counter[str]()

    def measure(self: predictions.Measurement, job: str) -> None:
        self._cell(job, "truth", "fast", lambda: measured.update(["truth"]) or {"loop_s": 1.0})
        self._cell(job, "recording", "fast", lambda: measured.update(["recording"]) or {"loop_s": 1.0})

    monkeypatch.setattr(predictions.Measurement, "measure", measure)
    monkeypatch.setattr(predictions, "PRIORITY", 0)
    for _ in range(2):
        predictions.main(["--work", str(tmp_path), "--jobs", "reads_in_step"])

    assert measured == {"truth": 1, "recording": 1}
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == 2


def test_each_slow_storage_has_four_jobs_at_least() -> None:
    counted = Counter(predictions.describe(job)[1] for job in JOBS)

    assert set(counted) == set(predictions.SLOW)
    assert min(counted.values()) >= 4
    assert len(JOBS) >= 14


@pytest.mark.parametrize("job", JOBS)
def test_a_job_trains(job: str, tmp_path: Path) -> None:
    needed = NEEDED.get(job, "torch")
    if importlib.util.find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed")
    data, output = tmp_path / "data", tmp_path / "output"
    output.mkdir()
    script = [sys.executable, "-W", "ignore", str(predictions.SCRIPT)]
    subprocess.run([*script, "make", str(data), JOBS[job][0]], check=True)

    command = [*script, job, str(data), str(output), "--steps", "3"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout

    found = json.loads(printed.splitlines()[-1])
    assert found["steps"] == 3
    assert found["loop_s"] > 0
