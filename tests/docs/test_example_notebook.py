from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.places import ROOT

EXAMPLE = ROOT / "docs" / "example_notebook.py"


def test_the_example_merges_looks_stages_replays_and_compares(tmp_path: Path) -> None:
    (tmp_path / "dxt_replay").symlink_to(ROOT / "src" / "dxt_replay")
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "2 ranks, 700 operations" in done.stdout
    assert "580 reads of 131 MB" in done.stdout
    assert "staged 8 files" in done.stdout
    assert "replayed 180 operations" in done.stdout
    assert "the same operations: True" in done.stdout
    assert done.stderr == ""


def test_the_example_is_short_and_uses_the_public_interface_alone() -> None:
    lines = EXAMPLE.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 40
    imported = {line.split()[1].split(".")[0] for line in lines if line.startswith(("import ", "from "))}
    assert imported == {"tempfile", "dxt_replay"}
