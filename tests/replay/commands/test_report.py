"""`dxt-replay report`: one file, from a capture, a log, or two captures."""

from __future__ import annotations

from pathlib import Path

import pytest

from dxt_replay.replay.commands.main import main
from tests.replay.show.page.pages import Elements, carried, training


def test_a_page_of_a_capture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capture = training(tmp_path)
    output = tmp_path / "out" / "report.html"
    output.parent.mkdir()
    assert main(["report", str(capture.path), "-o", str(output)]) == 0
    said = capsys.readouterr().out
    assert str(output) in said
    assert "open it in a browser" in said
    assert Elements(output.read_text(encoding="utf-8")).open == []
    assert [path.name for path in output.parent.iterdir()] == ["report.html"]


def test_a_page_of_two(tmp_path: Path) -> None:
    source, replay = training(tmp_path, "source"), training(tmp_path, "again", delay_ns=3_000, due=True)
    output = tmp_path / "report.html"
    assert main(["report", str(source.path), str(replay.path), "--different-runs", "-o", str(output)]) == 0
    page = output.read_text(encoding="utf-8")
    assert {"comparison"} <= {section["id"] for section in Elements(page).of("section")}
    assert set(carried(page, "summary")) == {"schema_version", "source", "replay"}


def test_a_page_of_two_with_the_noise_between_two_runs(tmp_path: Path) -> None:
    source, replay = training(tmp_path, "source"), training(tmp_path, "again", delay_ns=3_000, due=True)
    output = tmp_path / "report.html"
    argv = ["report", str(source.path), "-o", str(output), "--floor", str(source.path), str(replay.path)]
    assert main(argv) == 2, "a floor is of no use to a single capture"
    assert main([*argv, str(replay.path), "--different-runs"]) == 0
    assert "two runs of the job from each other" in output.read_text(encoding="utf-8")


def test_options_choose_what_it_is_about(tmp_path: Path) -> None:
    capture = training(tmp_path)
    output = tmp_path / "report.html"
    options = ["--part", "ranks=1,op=read,from=150ms,until=200ms"]
    assert main(["report", str(capture.path), "-o", str(output), *options]) == 0
    page = output.read_text(encoding="utf-8")
    assert carried(page, "data")["timelines"]["source"]["ranks"] == [1] * 4
    assert 0 < carried(page, "summary")["source"]["operations"]["read"] < 60
