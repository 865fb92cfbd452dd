"""What the installed program imports before it works."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.places import ROOT

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
