"""A command that a signal ends leaves what was there, and nothing of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.places import ROOT
from traces.samples import sample

SHELL_STATUS = {signal.SIGTERM: 143, signal.SIGHUP: 129, signal.SIGINT: 130}

PROGRAM = """
import os, sys
from pathlib import Path
from replay.commands.main import main
from tests.auditing import before

def signalled(path):
    (working,) = Path(sys.argv[2]).iterdir()  # the merge is writing
    assert working.name.endswith(".dxt-replay")
    os.kill(os.getpid(), int(sys.argv[1]))

with before("os.rename", "*/capture.json", signalled):
    sys.exit(main(sys.argv[3:]))
"""


@pytest.mark.parametrize("number", SHELL_STATUS)
def test_a_merge_that_is_ended_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    files = sample("imagenet")
    profiles = [text for path in files.profiles for text in ("--profile", str(path))]
    arguments = ["merge", str(files.log), *profiles, "-o", str(tmp_path / "c.capture")]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(int(number)), str(tmp_path), *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, "Traceback" in done.stderr) == (SHELL_STATUS[number], False), done.stderr
    assert list(tmp_path.iterdir()) == []
