"""`dxt-replay verify`: its exit status, its first line, its lists and its object."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dxt_replay.replay.commands.main import main
from dxt_replay.replay.target.placement import TWIN_ROOT
from tests.capture_builder import build_capture, read
from tests.replay.target.staging import staged


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    capture = build_capture(
        tmp_path, files=[f"/d/{i}" for i in range(30)], ops=[read(i, length=9, start_ns=2_000 * i) for i in range(30)]
    )
    staged(capture, tmp_path / "target")
    return capture.path, tmp_path / "target"


def test_the_first_differences_are_listed(places: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    for file in (places[1] / TWIN_ROOT / "d").iterdir():
        file.write_bytes(b"other")
    assert main(["verify", *map(str, places)]) == 1
    out = capsys.readouterr().out
    assert out.startswith("failed: 30 differences\n")
    assert len([line for line in out.splitlines() if line.split()[-3:] == ["size", "9", "5"]]) == 20
    assert "and 10 more differences" in out


def test_the_object_has_places_rows_and_differences(
    places: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    (places[0] / "spans.parquet").write_bytes(b"")
    assert main(["verify", *map(str, places), "--json", "--sizes-only"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert not found["passed"]
    assert [place["kind"] for place in found["places"]] == ["capture", "twin"]
    assert [each["file"] for each in found["places"][0]["differences"]] == ["spans.parquet"]
    assert found["places"][1]["different"] == 0
