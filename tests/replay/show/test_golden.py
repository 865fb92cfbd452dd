"""What `summary` prints of a bundled capture, at 80 columns.

After a wanted change: run with GOLDEN=write in the environment, and read the difference.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dxt_replay.profiler_merge.merge import merge
from dxt_replay.replay.commands.main import main
from dxt_replay.traces.samples import sample

GOLDEN = Path(__file__).parent / "golden"

VIEWS = {
    "summary": (),
    "by-file": ("--by", "file"),
    "findings": ("--show", "findings"),
    "timeline": ("--show", "timeline"),
    "tables": ("--show", "overlap", "--show", "steps", "--show", "sizes", "--show", "files", "--show", "ranks"),
}


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    recorded = sample("imagenet")
    path = tmp_path_factory.mktemp("golden") / "imagenet.capture"
    merge([recorded.log], recorded.profiles, path)
    return path


@pytest.mark.parametrize("columns", [80])
@pytest.mark.parametrize("view", VIEWS)
def test_what_is_printed(
    view: str, columns: int, capture: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["summary", str(capture), *VIEWS[view]]) == 0
    printed = capsys.readouterr().out
    expected = GOLDEN / f"{view}-{columns}.txt"
    if os.environ.get("GOLDEN") == "write":
        expected.write_text(printed, encoding="utf-8")
    assert max(len(line) for line in printed.splitlines()) <= columns
    assert printed == expected.read_text(encoding="utf-8")
