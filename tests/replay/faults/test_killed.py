"""Commands that are killed, or see their files go, at any moment: what is there afterwards is whole."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.replay.faults.injection import Commands, Rule
from tests.replay.faults.test_full_disk import words
from tests.replay.faults.test_hanging_calls import run

MOMENTS = [0.1, *(pytest.param(moment, marks=pytest.mark.slow) for moment in (0.02, 0.05, 0.2, 0.3, 0.5, 0.8, 1.2))]


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("name", ["SIGKILL", pytest.param("SIGTERM", marks=pytest.mark.slow)])
@pytest.mark.parametrize("command", ["merge", "run", "generate"])
def test_what_a_killed_command_left_is_never_a_capture(
    commands: Commands, folder: Path, command: str, name: str, moment: float
) -> None:
    (folder / "written").mkdir()
    place = folder / "written" / "out.capture"
    ended = commands.run(words(folder, command, place), killed_at=(moment, name))
    assert "Traceback" not in ended.err
    if place.exists():
        checked = commands.run(["verify", place])  # it had its name before the signal came, so it is whole
        assert checked.status == 0, checked.out
    assert commands.run([*words(folder, command, place), "--force"]).status == 0, "the next one is not in its way"
    assert [path.name for path in (folder / "written").iterdir()] == ["out.capture"]


@pytest.mark.parametrize("moment", [0.05, *(pytest.param(at, marks=pytest.mark.slow) for at in (0.01, 0.1, 0.2, 0.4))])
def test_a_staging_that_was_killed_goes_on(commands: Commands, folder: Path, moment: float) -> None:
    slow = Rule(call="write", action="stall", number=20, path="/new/")
    (folder / "new").mkdir(exist_ok=True)
    stage = ["stage", folder / "source.capture", "--target", folder / "new"]
    commands.run(stage, slow, killed_at=(moment, "SIGKILL"))
    assert commands.run(stage).status == 0
    assert not [path for path in (folder / "new").rglob("*") if path.name.endswith(".part")]
    replayed = run(folder, "--pace", "none")
    replayed[replayed.index(folder / "twin")] = folder / "new"
    assert commands.run(replayed).status == 0


def test_a_twin_whose_files_are_gone_is_refused(commands: Commands, folder: Path) -> None:
    shutil.rmtree(folder / "twin" / "dxt-replay-twin" / "data")
    ended = commands.run(run(folder))
    assert ended.status == 2
    assert "run `dxt-replay stage` first" in ended.err
