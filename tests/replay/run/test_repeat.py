from __future__ import annotations

import json
import signal
import statistics
from pathlib import Path

from click.testing import CliRunner

from dxt_replay.replay.commands.run import command
from dxt_replay.replay.plan.pacing import Pace, Pacing
from dxt_replay.replay.ranks.comm import Solo
from dxt_replay.replay.run.options import RunOptions
from dxt_replay.replay.run.process import Progress
from dxt_replay.replay.run.repeat import output_of, run_repeatedly
from dxt_replay.replay.target.stage import plan_stage, stage
from dxt_replay.traces.store.reader import Capture, open_capture
from tests.capture_builder import build_capture, read, write


def staged(folder: Path) -> Capture:
    ops = [read(0, start_ns=i * 1000, offset=4096 * i, length=4096) for i in range(20)]
    source = build_capture(folder, ops=[*ops, write(1, start_ns=90_000, length=500)], files=["/a", "/out"], name="s")
    stage(plan_stage(source, folder / "twin"))
    return source


def test_names_of_the_runs() -> None:
    assert output_of(Path("x/a.b.capture"), 2) == Path("x/a.b.2.capture")
    assert output_of(Path("x/plain"), 10) == Path("x/plain.10")


def test_each_run_has_its_capture_and_the_median_is_theirs(tmp_path: Path) -> None:
    source = staged(tmp_path)
    arguments = [str(source.path), "--target", str(tmp_path / "twin"), "-o", str(tmp_path / "r.capture")]
    told = CliRunner().invoke(command, [*arguments, "--repeat", "3", "--json"])
    assert told.exit_code == 0, told.output
    document = json.loads(told.output)
    elapsed = [run["elapsed_s"] for run in document["runs"]]
    assert (document["repeats"], len(elapsed)) == (3, 3)
    assert document["elapsed_s"] == {"median": statistics.median(elapsed), "min": min(elapsed), "max": max(elapsed)}
    for number in (1, 2, 3):
        assert open_capture(tmp_path / f"r.{number}.capture").operation_count() == 21
    assert not (tmp_path / "r.capture").exists()
    shown = CliRunner().invoke(command, [*arguments, "--repeat", "2", "--force"])
    assert "median" in shown.output
    assert "elapsed" in shown.output


def test_pages_are_dropped_before_each_run(tmp_path: Path) -> None:
    source = staged(tmp_path)
    options = RunOptions(target=tmp_path / "twin", pacing=Pacing(pace=Pace.NONE), cold=True)
    repeats = run_repeatedly(source, tmp_path / "r.capture", options, Solo(), 2)
    assert repeats is not None
    assert [run.cache.policy for run in repeats.runs] == ["cold"] * 2
    assert {run.cache.resident_before_pct for run in repeats.runs} <= {0.0, None}


def test_a_stopped_run_is_the_last(tmp_path: Path) -> None:
    source = build_capture(tmp_path, ops=[read(0, start_ns=at, length=9) for at in (0, 60 * 10**9)], files=["/a"])
    stage(plan_stage(source, tmp_path / "twin"))

    sent: list[int] = []

    def interrupt(progress: Progress) -> None:
        if progress.done and not sent:
            sent.append(progress.done)
            signal.raise_signal(signal.SIGTERM)

    options = RunOptions(target=tmp_path / "twin")
    repeats = run_repeatedly(source, tmp_path / "r.capture", options, Solo(), 5, interrupt)
    assert repeats is not None
    assert [run.stopped for run in repeats.runs] == [True]
