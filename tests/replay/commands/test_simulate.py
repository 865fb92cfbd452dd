"""`dxt-replay simulate`: what it prints, and how numbers of ranks are written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from replay.commands.main import main
from replay.commands.simulate import rank_counts
from tests.replay.causal.test_model import FAST, derived
from tests.simulated_application import Application
from traces.errors import UsageError


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("8", [8]),
        ("128,256,...,8192", [128, 256, 512, 1024, 2048, 4096, 8192]),
        ("1, 3, ..., 30", [1, 3, 9, 27, 30]),
        ("4,6,...,12,100", [4, 6, 8, 10, 12, 100]),
    ],
)
def test_numbers_of_ranks(text: str, counts: list[int]) -> None:
    assert rank_counts(text) == counts


@pytest.mark.parametrize(
    "text", ["", "0", "-1", "a", "1,...", "1,...,8", "1,2,...", "8,4,...,1", "1,2,...,2", "1,2,...,1.5", "2,3,...,9999"]
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--ranks"):
        rank_counts(text)


def test_the_prediction_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capture, _, _ = derived(tmp_path, Application(steps=20, ranks=2), FAST)
    assert main(["simulate", str(capture.path), "--storage", "theta_lustre", "--ranks", "2,4", "--runs", "2"]) == 0
    out = capsys.readouterr().out
    assert "On Lustre as on Theta this run would take" in out
    assert "Storage limits it by" in out
    for title in (
        "Where the time of a training thread goes",
        "How busy the storage is",
        "Other numbers of ranks",
        "Operations",
    ):
        assert title in out


def test_steps_choose_a_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capture, _, _ = derived(tmp_path, Application(steps=20), FAST)
    assert main(["simulate", str(capture.path), "--storage", "null", "--steps", "5-8", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [step["step"] for step in found["steps"]] == [5, 6, 7, 8]
    assert found["runs"] == 1


def test_a_wrong_model_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capture, _, _ = derived(tmp_path, Application(steps=3), FAST)
    assert main(["simulate", str(capture.path), "--storage", "nvmme"]) == 2
    assert "give a file, or one of null, nvme, theta_lustre" in capsys.readouterr().err
