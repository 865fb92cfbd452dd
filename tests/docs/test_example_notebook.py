from __future__ import annotations

import os
import subprocess
import sys

from tests.places import ROOT


def test_the_example_runs_and_finds_what_the_run_was_like() -> None:
    command = [sys.executable, str(ROOT / "docs" / "example_notebook.py")]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "580 reads of 131 MB" in done.stdout
    assert "Training waits for input" in done.stdout
    assert "bytes read in each ms" in done.stdout
