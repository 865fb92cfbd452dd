from __future__ import annotations

from pathlib import Path

import pytest

from replay.commands.main import main
from tests.capture_builder import build_capture, read
from traces.store.reader import Capture


@pytest.fixture
def capture(tmp_path: Path) -> Capture:
    return build_capture(tmp_path, files=["/d/a", "/d/b"], ops=[read(0, length=4096), read(1, length=4096)])


def test_a_dry_run_says_what_it_would_do_and_a_run_what_it_did(
    capture: Capture, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "target"
    options = ["stage", str(capture.path), "--target", str(target)]
    assert main([*options, "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"Would write 2 files under {target}: 8.00 KiB")
    assert "staged" not in printed
    assert not target.exists()
    assert main(options) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith(f"Staged 2 files under {target}: 8.00 KiB in ")
    assert main(options) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "The twin is complete."
    assert main(["stage", str(capture.path), "--target", str(target), "--remove"]) == 0
    assert capsys.readouterr().out == f"Removed 2 files from {target}\n"
