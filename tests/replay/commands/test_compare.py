from __future__ import annotations

import json
from pathlib import Path

import pytest

from replay.commands.main import main
from replay.fidelity.compare import Thresholds, compare
from tests.capture_builder import Op, build_capture, read
from traces.store.reader import Capture


def operations(slower: int = 1) -> list[Op]:
    return [
        read(0, offset=100 * k, length=100, start_ns=k * 1_000_000, end_ns=k * 1_000_000 + 1000 * slower)
        for k in range(100)
    ]


@pytest.fixture
def source(tmp_path: Path) -> Capture:
    return build_capture(tmp_path, files=["/a"], ops=operations(), name="source")


@pytest.fixture
def replay(tmp_path: Path) -> Capture:
    return build_capture(tmp_path, files=["/a"], ops=operations(slower=4), name="replay")


def printed_json(capsys: pytest.CaptureFixture[str]) -> dict:
    captured = capsys.readouterr()
    assert captured.err == ""
    found: dict = json.loads(captured.out)
    return found


def test_a_faithful_replay_is_status_0(source: Capture, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(source.path), str(source.path), "--json"]) == 0
    found = printed_json(capsys)
    assert (found["passed"], found["schema_version"]) == (True, 1)


def test_json_is_what_the_function_returns(
    source: Capture, replay: Capture, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(["compare", str(source.path), str(replay.path), "--json"])
    found = printed_json(capsys)
    del found["schema_version"]
    assert found == json.loads(json.dumps(compare(source, replay).as_json()))
    assert status == 1
    assert found["verdict"]["similarity"] == "fail"


def test_the_thresholds_are_options(source: Capture, replay: Capture, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["compare", str(source.path), str(replay.path), "--json", "--fail-under", "0.5"]
    assert main([*argv, "--max-elapsed-error", "3", "--max-drift", "7"]) == 0
    found = printed_json(capsys)["thresholds"]
    assert found == {"similarity": 0.5, "elapsed_error_pct": 3, "drift_ppm": 7}
    assert Thresholds(**found) == Thresholds(similarity=0.5, elapsed_error_pct=3, drift_ppm=7)


def test_tables_say_what_failed(source: Capture, replay: Capture, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(source.path), str(replay.path)]) == 1
    text = capsys.readouterr().out
    assert "is below 0.95" in text
    assert text.rstrip().endswith("FAILED")


def test_a_capture_that_is_none_is_status_2(source: Capture, tmp_path: Path) -> None:
    assert main(["compare", str(source.path), str(tmp_path)]) == 2
