"""The history of records: series, tables, change points with what changed beside them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dxt_replay
from dxt_replay.replay.commands.main import main
from dxt_replay.replay.regression.experiment_record import ExperimentRecord
from tests.replay.regression.record_builder import MACHINE, OPTIONS, TARGET, record
from tests.replay.regression.run_builder import run

CHANGED = 5


def nights(count: int = 8, factor: float = 1.3, **changes: Any) -> list[ExperimentRecord]:
    """Records of one a day, slower by `factor` from CHANGED on, when the kernel changed too."""
    rng = np.random.default_rng(4)
    made = []
    for day in range(count):
        level, kernel = (factor, "6.8.0") if day >= CHANGED else (1.0, "6.1.0")
        values = (level * rng.lognormal(0, 0.01, 8)).tolist()
        made.append(record(values, day=day, machine=replace(MACHINE, kernel=kernel), **changes))
    return made


def stored(folder: Path, records: list[ExperimentRecord], prefix: str = "") -> Path:
    """The records as files whose names do not follow the time."""
    for number, one in enumerate(records):
        (folder / f"{prefix}{9 - number % 10}{number}.json").write_bytes(one.encoded())
    return folder


def test_the_change_is_found_with_what_changed_besides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = stored(tmp_path, nights())
    (place / "notes.json").write_text("{}", encoding="utf-8")
    (place / "notes.txt").write_text("words", encoding="utf-8")
    found = dxt_replay.history(place).as_json()
    series = found["series"][0]
    (change,) = series["metrics"]["elapsed_s"]["changes"]
    assert (change["at"], change["verdict"], change["machine_changed"]) == (CHANGED, "regression", False)
    assert change["low"] < 1.3 < change["high"]
    assert series["records"][CHANGED]["differences"] == ["kernel 6.1.0 -> 6.8.0"]
    assert [one["start_ns"] for one in series["records"]] == sorted(one["start_ns"] for one in series["records"])
    assert found["skipped"] == ["notes.json"]

    assert main(["history", str(place)]) == 0
    shown = capsys.readouterr().out
    assert main(["history", str(place), "--fail-regression", "-q"]) == 1
    assert capsys.readouterr().out
    assert "The elapsed time changed once in 8 records of run.capture: by +" in shown.replace("\n", " ")
    assert "with 45.json: kernel 6.1.0 -> 6.8.0." in " ".join(shown.split())


def busier(one: ExperimentRecord) -> ExperimentRecord:
    """The same record of a machine on which an idle thread wakes 9 ms late."""
    late = {"p50": 0.1, "p90": 9000.0, "p99": 9000.0, "max": 9000.0}
    return replace(one, runs=tuple(replace(each, jitter_us=late) for each in one.runs))


@pytest.mark.parametrize(
    "other",
    [
        busier,
        lambda one: replace(one, machine=replace(one.machine, cpus=8)),
        lambda one: replace(one, machine=replace(one.machine, host="node2")),
    ],
    ids=["busier", "processors", "another machine"],
)
def test_a_change_with_the_machine_is_not_called_a_regression(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], other: Callable[[ExperimentRecord], ExperimentRecord]
) -> None:
    place = stored(tmp_path, [other(one) if day >= CHANGED else one for day, one in enumerate(nights())])
    found = dxt_replay.history(place).as_json()
    assert "while the machine changed" in found["headline"]
    series = found["series"][0]
    assert [one["machine_changed"] for one in series["records"]] == [day == CHANGED for day in range(8)]
    assert [one["machine_changed"] for one in series["metrics"]["elapsed_s"]["changes"]] == [True]
    assert main(["history", str(place), "--fail-regression"]) == 0
    shown = capsys.readouterr().out
    assert "regression" not in shown
    assert shown.lower().count("machine changed") >= 3
    assert "Measure again on the machine as it was." in " ".join(shown.split())


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_without_a_change_none_is_found(tmp_path: Path, count: int) -> None:
    found = dxt_replay.history(stored(tmp_path, nights(count, factor=1.02))).as_json()
    assert found["series"][0]["metrics"]["elapsed_s"]["changes"] == []
    assert found["headline"].startswith("No change of the elapsed time in ")


def test_other_work_and_other_targets_are_series_of_their_own(tmp_path: Path) -> None:
    stored(tmp_path, nights(3), "a")
    stored(tmp_path, nights(3, options=replace(OPTIONS, cache="as found")), "b")
    stored(tmp_path, nights(3, targets={"candidate": replace(TARGET, target="/other")}), "c")
    assert [len(one["records"]) for one in dxt_replay.history(tmp_path).as_json()["series"]] == [3, 3, 3]


def test_records_without_finished_runs_are_left_out(tmp_path: Path) -> None:
    stored(tmp_path, nights(3))
    for name, one in (("stopped", run("candidate", 1, elapsed_s=1.0, stopped=True)), ("empty", run("candidate", 1))):
        (tmp_path / f"{name}.json").write_bytes(record(runs=(one,)).encoded())
    found = dxt_replay.history(tmp_path, tmp_path / "stopped.json").as_json()
    assert (found["records"], sorted(found["skipped"])) == (3, ["empty.json", "stopped.json"])
    lone = dxt_replay.history(tmp_path / "stopped.json").as_json()
    assert (lone["records"], lone["series"]) == (0, [])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["absent"], "cannot read the record"),
        (["."], "no record of an experiment in"),
        (["a.json", "--threshold", "-1"], "--threshold -1"),
        (["damaged/damaged.json"], "is damaged"),
        (["damaged"], "is damaged"),
    ],
)
def test_wrong_use_is_one_message(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "damaged.json").write_bytes(record().encoded()[:-100])
    if arguments != ["."]:
        Path("a.json").write_bytes(record().encoded())
    assert main(["history", *arguments, "--json"]) == 2
    assert words in json.loads(capsys.readouterr().out)["error"]["message"]
