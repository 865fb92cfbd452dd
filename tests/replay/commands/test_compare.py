from __future__ import annotations

import json
from pathlib import Path

import pytest

from dxt_replay.replay.commands.main import main
from dxt_replay.replay.compare.verdict import Thresholds
from dxt_replay.traces.store.reader import Capture
from tests.capture_builder import Op, build_capture, read


def operations(slower: int = 1) -> list[Op]:
    return [
        read(0, offset=100 * k, length=100, start_ns=k * 1_000_000, end_ns=k * 1_000_000 + 1000 * slower)
        for k in range(100)
    ]


@pytest.fixture
def source(tmp_path: Path) -> Capture:
    return build_capture(tmp_path, files=["/a"], ops=operations(), name="source")


@pytest.fixture
def replay(tmp_path: Path, source: Capture) -> Capture:
    return build_capture(tmp_path, files=["/a"], ops=operations(slower=4), name="replay", replay_of=source)


def printed_json(capsys: pytest.CaptureFixture[str]) -> dict:
    captured = capsys.readouterr()
    assert captured.err == ""
    found: dict = json.loads(captured.out)
    return found


def test_the_thresholds_are_options(source: Capture, replay: Capture, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["compare", str(source.path), str(replay.path), "--json", "--fail-under", "0.5"]
    assert main([*argv, "--max-elapsed-error", "3", "--max-drift", "7", "--details"]) == 0
    found = printed_json(capsys)["thresholds"]
    assert found["fail_under"] == 0.5
    assert (found["elapsed_error_pct"], found["drift_ppm"]) == (3, 7)
    assert Thresholds(**found) == Thresholds(fail_under=0.5, elapsed_error_pct=3, drift_ppm=7)


def test_fail_under_is_the_cosine_of_all_ten_factors(
    source: Capture, replay: Capture, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", str(source.path), str(replay.path), "--fail-under", "0.95"]) == 1
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith("FAILED: the replay did the same work: 100 of 100 operations")
    assert "not at least 0.95 as --fail-under demands" in text


def test_two_different_runs_are_named_as_such_and_not_judged(
    source: Capture, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = build_capture(tmp_path, files=["/b"], ops=operations(slower=2), name="other")
    argv = ["compare", str(source.path), str(other.path), "--different-runs"]
    assert main([*argv, "--json"]) == 0
    found = printed_json(capsys)
    assert (found["relation"], found["workload"]["verdict"]) == ("different runs", "skipped")
    assert {found["verdict"][block] for block in ("similarity", "exact", "timing")} == {"skipped"}
    assert found["headline"].startswith("Two different runs")
    assert found["exact"]["files"] is False
    assert main([*argv, "--fail-under", "0.999"]) == 1, "an explicit gate holds for them too"


def test_a_floor_relaxes_a_limit_and_says_so(
    source: Capture, replay: Capture, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again = build_capture(tmp_path, files=["/a"], ops=operations(slower=8), name="again")
    argv = ["compare", str(source.path), str(replay.path), "--fail-under", "0.95"]
    assert main(argv) == 1
    capsys.readouterr()
    argv += ["--floor", str(source.path), str(again.path)]
    assert main(argv) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "instead of 0.9500, which two runs of the job do not meet either" in text
    assert "I/O time per rank 300.0 % 700.0 % within" in text
    assert main([*argv, "--json"]) == 0
    found = printed_json(capsys)
    assert found["floor"]["pairs"] == [[str(source.path), str(again.path)]]
    assert found["floor"]["measures"]["storage.io_time_s"] == {"value": 300, "floor": 700, "within": True}
    relaxed = {each["limit"]: each["allowed"] for each in found["floor"]["relaxed"]}
    assert relaxed["fail_under"] == found["thresholds"]["fail_under"] < 0.95


def test_a_floor_alone_says_what_two_runs_differ_by(
    source: Capture, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again = build_capture(tmp_path, files=["/a"], ops=operations(slower=8), name="again")
    argv = ["compare", "--floor", str(source.path), str(again.path)]
    assert main([*argv, "--json"]) == 0
    found = printed_json(capsys)
    assert found["measures"]["storage.io_time_s"] == 700
    assert main(argv) == 0
    assert "I/O time per rank 700.0 %" in " ".join(capsys.readouterr().out.split())
