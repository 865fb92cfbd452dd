"""The history of records: series, tables, change points with what changed beside them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dxt_replay
from dxt_replay.replay.commands.main import main
from dxt_replay.replay.regress.history import change_points
from dxt_replay.replay.regress.record import ExperimentRecord
from tests.replay.regress.builder import MACHINE, OPTIONS, TARGET, record, run

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


def stored(folder: Path, records: list[ExperimentRecord]) -> Path:
    """The records as files whose names do not follow the time."""
    folder.mkdir(exist_ok=True)
    for number, one in enumerate(records):
        (folder / f"{9 - number % 10}{number}.json").write_bytes(one.encoded())
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

    assert main(["history", str(place)]) == 1, "the newest record holds it"
    shown = " ".join(capsys.readouterr().out.split())
    assert "The elapsed time changed once in 8 records of run.capture: " in shown
    assert " % slower (" in shown
    assert "with 45.json: kernel 6.1.0 -> 6.8.0." in shown


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
    assert main(["history", str(place)]) == 0
    shown = capsys.readouterr().out
    assert "regression" not in shown
    assert shown.lower().count("machine changed") >= 2
    assert "Measure again on the machine as it was." in " ".join(shown.split())


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_without_a_change_none_is_found(tmp_path: Path, count: int) -> None:
    place = stored(tmp_path, nights(count, factor=1.02))
    assert main(["history", str(place)]) == 0
    found = dxt_replay.history(place).as_json()
    assert found["series"][0]["metrics"]["elapsed_s"]["changes"] == []
    assert found["headline"].startswith("No change of the elapsed time in ")


def test_records_without_finished_runs_are_left_out_and_other_work_is_a_series_of_its_own(tmp_path: Path) -> None:
    stored(tmp_path / "a", nights(3))
    stored(tmp_path / "b", nights(3, options=replace(OPTIONS, cache="as found")))
    stored(tmp_path / "c", nights(3, targets={"candidate": replace(TARGET, target="/other")}))
    found = dxt_replay.history(*(tmp_path / name for name in "abc")).as_json()
    assert [len(one["records"]) for one in found["series"]] == [3, 3, 3]
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


MARGIN = math.log(1.05)
ALPHA = 0.05


def samples(rng: np.random.Generator, levels: np.ndarray, noise: float, runs: int = 10) -> list[np.ndarray]:
    return [rng.normal(level, noise, runs) for level in levels]


def sessions(rng: np.random.Generator, count: int) -> np.ndarray:
    """Levels anywhere within the margin."""
    return rng.uniform(-MARGIN / 2, MARGIN / 2, count)


def opposite(rng: np.random.Generator, count: int) -> np.ndarray:
    """The worst case that the promise allows: two stretches that are just one margin apart."""
    return np.where(np.arange(count) < rng.integers(1, count), -MARGIN / 2, MARGIN / 2)


@pytest.mark.parametrize(("count", "noise"), [(3, 0.005), (3, 0.1), (8, 0.03), (30, 0.01)])
@pytest.mark.parametrize("levels", [sessions, opposite])
def test_no_more_false_alarms_than_promised(levels, count: int, noise: float) -> None:  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(count)
    trials = 150
    alarms = sum(bool(change_points(samples(rng, levels(rng, count), noise), MARGIN, ALPHA)) for _ in range(trials))
    assert alarms / trials <= ALPHA + 3 * math.sqrt(ALPHA * (1 - ALPHA) / trials)


@pytest.mark.parametrize(
    ("steps", "found"),
    [
        ({5: 0.2}, [5]),
        ({9: 0.2}, [9]),  # the latest record alone
        ({4: 0.2, 5: -0.2}, [4, 5]),  # one bad day
        ({3: -0.3, 6: 0.5}, [3, 6]),
        ({}, []),
    ],
)
def test_changes_are_found_where_they_are(steps: dict[int, float], found: list[int]) -> None:
    levels = np.cumsum([steps.get(place, 0.0) for place in range(10)])
    rng = np.random.default_rng(3)
    assert [at for at, _ in change_points(samples(rng, levels, 0.02), MARGIN, ALPHA)] == found


def test_a_thousand_records_and_few() -> None:
    assert change_points([], MARGIN, ALPHA) == change_points([np.zeros(5)], MARGIN, ALPHA) == []
    rng = np.random.default_rng(2)
    series = [rng.normal(0, 0.01, size) for size in (10, 0, 3, 12)] + [rng.normal(0.5, 0.01, 10)]
    assert [at for at, _ in change_points(series, MARGIN, ALPHA)] == [4]
    rng = np.random.default_rng(1)
    levels = np.where(np.arange(1000) < 700, 0.0, 0.2)
    levels[300] = 0.4
    assert [at for at, _ in change_points(samples(rng, levels, 0.03), MARGIN, ALPHA)] == [300, 301, 700]
