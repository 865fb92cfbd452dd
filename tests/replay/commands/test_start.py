"""What the installed program imports before it works."""

from __future__ import annotations

import os
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


@pytest.mark.parametrize("command", [["summary"], ["summary", "--show", "ranks", "-o", "-"], ["compare", "CAPTURE"]])
def test_commands_start_without_the_heavy_packages(tmp_path: Path, command: list[str]) -> None:
    capture = build_capture(tmp_path, files=["/a"], ops=[read(0, length=1, end_ns=5)])
    name, *more = [str(capture.path) if word == "CAPTURE" else word for word in command]
    arguments = [name, str(capture.path), *more]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr.strip()) == (0, ""), done.stderr
    assert done.stdout


THREADS = """
import os, sys
from dxt_replay.__main__ import main
main()
import numpy
print(len(os.listdir("/proc/self/task")), os.environ.get("OPENBLAS_NUM_THREADS"), file=sys.stderr)
"""


@pytest.mark.parametrize(("words", "variable"), [(["summary"], "1"), (["record"], "None")])
def test_numpy_starts_no_threads_except_for_a_job_that_is_recorded(words: list[str], variable: str) -> None:
    unset = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    command = [sys.executable, "-c", THREADS, *words, "--help"]
    done = subprocess.run(command, cwd=ROOT, env=unset, capture_output=True, text=True, check=True)
    threads, found = done.stderr.split()
    assert found == variable
    assert threads == "1" or variable == "None"
