"""`dxt-replay calibrate` on the command line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import dxt_replay
from dxt_replay.replay.commands.main import main


@pytest.fixture
def target(tmp_path: Path) -> Path:
    folder = tmp_path / "target"
    folder.mkdir()
    return folder


def test_it_prints_what_was_measured_and_what_could_not_be_seen(
    target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "measured.json"
    arguments = ["calibrate", "--target", str(target), "-o", str(output)]
    assert main([*arguments, "--minutes", "0.04", "--details"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    titles = ["Calibration", "Cold reads, one in flight", "Other calls, one in flight", "What could not be seen"]
    places = [printed.out.index(f"{title}\n") for title in titles]
    assert places == sorted(places)
    assert "4.00 KiB" in printed.out
    assert os.listdir(target) == []

    assert main(arguments) == 2
    assert (
        capsys.readouterr().err == f"dxt-replay: error: {output} exists: --force replaces it, or choose another name\n"
    )


def test_the_model_that_it_writes_can_be_simulated(target: Path, tmp_path: Path) -> None:
    sources, capture, output = dxt_replay.sample("cosmictagger"), tmp_path / "c.capture", tmp_path / "measured.json"
    dxt_replay.merge(sources.log, capture, profiles=sources.profiles)
    assert main(["calibrate", "--target", str(target), "-o", str(output), "--minutes", "0.04", "-q"]) == 0
    done = dxt_replay.simulate(capture, output)
    assert done.prediction.elapsed_ns >= dxt_replay.simulate(capture, "null").prediction.elapsed_ns
