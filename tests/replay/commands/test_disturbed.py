"""A machine that stood still, the page cache, slow storage and an assumed device: what the first lines say of each."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import dxt_replay
from dxt_replay.replay.commands.main import main
from tests.capture_builder import Span, build_capture, read

MS = 1_000_000


def source_of(folder: Path, reads: int = 40, gap_ms: int = 50) -> Path:
    """One read a step of `gap_ms`, of a twin that is staged."""
    at = [number * gap_ms * MS for number in range(reads)]
    ops = [read(0, start_ns=t, end_ns=t + MS, offset=4096 * n, length=4096, step=n) for n, t in enumerate(at)]
    spans = [Span("step", t, t + (gap_ms - 1) * MS, step=n) for n, t in enumerate(at)]
    source = build_capture(folder, ops=ops, files=["/a"], spans=spans, name="source").path
    (folder / "twin").mkdir()
    dxt_replay.stage(source, folder / "twin")
    return source


def replayed(source: Path, pace: str, *, still_s: float) -> dict[str, Any]:
    """The result of a run that is stopped for so long in its midst."""
    words = [str(source), "--target", str(source.with_name("twin")), "-o", str(source.with_name(f"{pace}.capture"))]
    program = [sys.executable, "-m", "dxt_replay", "run", *words, "--pace", pace, "--json"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as running:
        while not list(source.parent.glob(f".{pace}.capture*")):
            time.sleep(0.01)
        time.sleep(1.0)  # of the 2 s that the replay takes
        os.kill(running.pid, signal.SIGSTOP)
        time.sleep(still_s)
        os.kill(running.pid, signal.SIGCONT)
        return json.loads(running.communicate()[0])


@pytest.mark.parametrize("pace", ["timed", "steps"])
def test_a_process_that_was_stopped_is_disturbed_and_no_storage_is_blamed(
    tmp_path: Path, pace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source = source_of(tmp_path)
    found = replayed(source, pace, still_s=0.8)
    assert found["stood_still_s"] == pytest.approx(0.8, abs=0.15)
    if pace == "steps":
        assert found["training"]["replayed_s"] == pytest.approx(found["elapsed_s"] - 0.8, abs=0.25)
    assert main(["compare", str(source), str(tmp_path / f"{pace}.capture")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "isturbed: stood still for 0." in said.split("Workload:")[0]
    assert "too slow" not in said
    assert "could not keep" not in said


@pytest.mark.parametrize(("option", "cached"), [((), False), (("--warm",), True), (("--cold",), False)])
def test_a_run_is_cold_unless_it_is_asked_to_be_warm(
    tmp_path: Path, option: tuple[str, ...], cached: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    source, replay = source_of(tmp_path, reads=4), tmp_path / "replay.capture"
    next((tmp_path / "twin").rglob("a")).read_bytes()
    run = ["run", str(source), "--target", str(tmp_path / "twin"), "-o", str(replay), "--pace", "none", "-q"]
    assert main([*run, *option]) == 0
    first = capsys.readouterr().out.partition("\n")[0]
    dropped = dxt_replay.open_capture(replay).info.made_by["result"]["cache"]
    if not cached and dropped["resident_before_pct"]:
        pytest.skip("this file system keeps its pages")
    assert ("from the page cache" in first) == cached, first
    assert main(["compare", str(source), str(replay)]) == 0
    said = capsys.readouterr().out
    assert ("from the page cache" in said.partition("\n")[0]) == cached
    assert ("Storage here, from the page cache, was" in " ".join(said.split())) == cached


def test_what_was_generated_is_never_called_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, twin, replay = tmp_path / "w.capture", tmp_path / "twin", tmp_path / "replay.capture"
    small = ("dataset.num_files_train=8", "dataset.num_files_eval=4", "train.epochs=1", "train.computation_time=0.001")
    dxt_replay.generate("default", 1, source, overrides=small)
    twin.mkdir()
    dxt_replay.stage(source, twin)
    for words in (
        ("summary", source),
        ("simulate", source, "--storage", "nvme"),
        ("run", source, "--target", twin, "--pace", "steps", "-o", replay),
        ("compare", source, replay, "--details"),
        ("transform", source, "--compute-speed", "2", "-o", tmp_path / "t.capture"),
    ):
        assert main([*map(str, words), "-q"]) == 0
        first, said = capsys.readouterr().out.split("\n", 1)
        assert first == "Generated, not recorded: times of an assumed device of 1 GB/s."
        assert "recorded" not in said.lower(), words
    assert main(["summary", str(replay), "-q"]) == 0
    assert not capsys.readouterr().out.startswith("Generated"), "a replay was measured"


def test_one_directory_as_both_sides_is_noise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, record = source_of(tmp_path, reads=4), tmp_path / "record.json"
    line = ["regress", str(source), str(tmp_path / "twin"), "--pace", "none", "--record", str(record)]
    assert main([*line, "--repeats", "5"]) == 2
    assert "give --repeats 6 or more" in capsys.readouterr().err
    assert main([*line, "--repeats", "6"]) == 0
    first, second = capsys.readouterr().out.split("\n")[:2]
    assert first.startswith("The same directory twice: this is noise. ")
    assert "The storage itself" not in second
    written = json.loads(record.read_text())
    assert written["schema_version"] == 2
    assert written["result"]["headline"].startswith("The same directory twice: this is noise. ")
    assert written["result"]["verdict"] not in ("regression", "improvement")
