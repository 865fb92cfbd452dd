"""The arithmetic of the table of predictions, the cells that a resumed run measures, and the jobs themselves."""

import importlib.util
import json
import subprocess
import sys
from collections import Counter

import pytest

from benchmarks import prediction_table, predictions
from benchmarks.prediction_jobs import JOBS
from benchmarks.prediction_table import Prediction, table

NEEDED = {"lightning_validation": "lightning", "grain_threads": "grain", "keras_records": "tensorflow"}
WIDE, NARROW = ([10.0, 10.1, 13.0], [9.0]), ([10.0, 10.1, 11.0], [9.0])


def predicted(seconds, runs=([10.0, 10.4, 9.8], [2.0, 2.2, 1.9]), interval_s=None):
    return Prediction(predicted_s=seconds, truths=runs[0], others=runs[1], doubt="", interval_s=interval_s)


@pytest.mark.parametrize(
    ("found", "error_pct", "right", "wrong"),
    [
        (predicted(10.7), 8.75, True, False),
        (predicted(10.9), 11.25, False, False),
        (predicted(11.7), 21.25, False, True),
        (predicted(8.3), -21.25, False, True),
        (predicted(12.0, WIDE), 100 * 1.9 / 1.1, True, False),  # among the true runs, whatever its share
        (predicted(12.0, NARROW), 100 * 1.9 / 1.1, False, True),
    ],
)
def test_the_error_is_one_of_the_added_seconds(found, error_pct, right, wrong):
    assert found.error_pct == pytest.approx(error_pct)
    assert (found.right, found.wrong) == (right, wrong)


def test_an_interval_holds_the_median_truth_or_not():
    assert [predicted(9, interval_s=each).held for each in (None, [8.0, 10.0], [8.0, 9.9])] == [None, True, False]


def cell(what, on, **more):
    return {"job": "a", "what": what, "on": on, "run": None, **more}


def test_the_table_counts_what_was_measured_last():
    truths = [("fast", 2.0), ("fast", 2.2), ("slow", 8.0), ("slow", 8.4)]
    cells = [cell("truth", on, run=number, loop_s=seconds) for number, (on, seconds) in enumerate(truths)]
    cells.append(cell("recording", "slow", loop_s=8.5, limit_pct=70.0))
    cells.append(cell("prediction", "slow", failed="the replay: no"))
    doubted = ["busy", "how long training takes on other storage is not known: why"]
    cells.append(cell("prediction", "slow", doubt=None, training_s=8.1, warnings=doubted))
    cells.append(cell("prediction", "fast", doubt=None, training_s=4.0, warnings=[]))
    assert set(prediction_table.predictions(cells)) == {("a", "slow"), ("a", "fast")}
    text = table(cells, {"a": "bytes"})
    for words in (
        "| a | bytes | slow from fast | 8.00, 8.40 |", "70 %, 74 %", "- 1 of 2 are right",
        "- 1 are doubted, 1 of them right", "- 1 are off by more than 20 % of the added seconds and not doubted",
    ):  # fmt: skip
        assert words in text


def test_what_failed_is_in_the_table_with_its_reason():
    text = table([cell("truth", "fast", run=0, failed="no torch"), cell("prediction", "slow", failed="no steps")], {})
    assert "| slow from fast | prediction on slow: no steps |" in text
    assert "| fast from slow | truth on fast: no torch |" in text
    assert "- 1 more were refused or failed" in text


def test_a_stopped_run_continues(tmp_path, monkeypatch):
    measured = Counter[str]()

    def measure(self, job):
        for what in ("truth", "recording"):
            self._cell(job, what, "fast", lambda what=what: measured.update([what]) or {"loop_s": 1.0})

    monkeypatch.setattr(predictions.Measurement, "measure", measure)
    monkeypatch.setattr(predictions, "PRIORITY", 0)
    for _ in range(2):
        predictions.main(["--work", str(tmp_path), "--jobs", "reads_in_step"])
    assert measured == {"truth": 1, "recording": 1}
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == 2


def test_each_slow_storage_has_four_jobs_at_least():
    counted = Counter(predictions.describe(job)[1] for job in JOBS)
    assert set(counted) == set(predictions.SLOW)
    assert min(counted.values()) >= 4
    assert len(JOBS) >= 14


@pytest.mark.parametrize("job", JOBS)
def test_a_job_trains(job, tmp_path):
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
