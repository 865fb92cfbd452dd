"""What the installed program imports before it works."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.capture_builder import build_capture, read
from tests.places import ROOT

PROGRAM = """
import sys
from dxt_replay.__main__ import main
status = main()
print(*sorted({"pandas", "plotly", "h5py", "mpi4py"} & sys.modules.keys()), file=sys.stderr)
sys.exit(status)
"""


@pytest.mark.parametrize("command", [["summary"], ["summary", "--show", "ranks", "--csv", "-"], ["compare", "CAPTURE"]])
def test_commands_start_without_the_heavy_packages(tmp_path: Path, command: list[str]) -> None:
    capture = build_capture(tmp_path, files=["/a"], ops=[read(0, length=1, end_ns=5)])
    name, *more = [str(capture.path) if word == "CAPTURE" else word for word in command]
    arguments = [name, str(capture.path), *more]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr.strip()) == (0, ""), done.stderr
    assert done.stdout
