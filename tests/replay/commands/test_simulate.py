"""`dxt-replay simulate`: what it prints, and how numbers of ranks are written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import dxt_replay
from dxt_replay.replay.commands import predicting as checking
from dxt_replay.replay.commands.main import main
from dxt_replay.replay.commands.predicting import rank_counts
from tests.replay.causal.test_model import FAST, derived
from tests.simulated_application import Application


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


MODEL = "storage_model: 1\nname: ours\noperations: {read: 1ms, open: 1ms}\n"


@pytest.fixture
def described(tmp_path: Path) -> tuple[str, str]:
    """A capture and a storage model."""
    capture, _, _ = derived(tmp_path, Application(steps=20), FAST)
    model = tmp_path / "model.yaml"
    model.write_text(MODEL)
    return str(capture.path), str(model)


def replay_takes(monkeypatch: pytest.MonkeyPatch, times: float) -> None:
    """A replay that takes so many times as long as the capture."""
    monkeypatch.setattr(
        checking,
        "_replayed_ns",
        lambda part, target, speed: round(times * (part.time_span_ns[1] - part.time_span_ns[0])),
    )


def test_a_check_that_agrees_is_said(
    described: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    capture, model = described
    assert main(["simulate", capture, "--storage", model, "--json"]) == 0
    alone = json.loads(capsys.readouterr().out)
    assert alone["check"] is None
    replay_takes(monkeypatch, alone["elapsed_s"] / alone["recorded_s"])
    assert main(["simulate", capture, "--storage", model, "--check", str(tmp_path)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "Checked: All of it took" in printed
    assert "they agree" in printed


def test_a_check_that_differs_widens_the_interval(
    described: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    capture, model = described
    replay_takes(monkeypatch, 1.4)
    command = ["simulate", capture, "--storage", model, "--check", str(tmp_path)]
    found = dxt_replay.simulate(capture, model, check=str(tmp_path), check_seconds=0.1).as_json()
    assert found["check"]["verdict"] == "differs"
    assert found["check"]["steps"][0] == 0
    assert found["interval_s"][1] >= found["elapsed_s"] * (1 + found["check"]["difference_pct"] / 100) * 0.999
    assert main(command) == 0
    assert "the interval is wider for that" in " ".join(capsys.readouterr().out.split())


def test_a_check_that_contradicts_leaves_no_prediction(
    described: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    capture, model = described
    replay_takes(monkeypatch, 3.0)
    assert main(["simulate", capture, "--storage", model, "--check", str(tmp_path)]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "there is no prediction: the replayed window took" in printed.err
    assert "Calibrate it again" in printed.err


@pytest.mark.parametrize("staged", [False, True])
def test_a_check_replays_below_the_target_and_leaves_nothing(tmp_path: Path, staged: bool) -> None:
    capture, _, _ = derived(tmp_path, Application(steps=20), FAST)
    target = tmp_path / "target"
    target.mkdir()
    if staged:
        target.mkdir(exist_ok=True)
        assert main(["stage", str(capture.path), "--target", str(target), "-q"]) == 0
    before = sorted(target.rglob("*"))
    assert checking._replayed_ns(dxt_replay.part(capture.path, steps="0-3"), target, 1.0) > 0
    assert sorted(target.rglob("*")) == before
