"""A command that a signal ends leaves what was there, and nothing of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dxt_replay.replay.target.stage import plan_stage, stage
from dxt_replay.traces.samples import sample
from tests.capture_builder import build_capture, read
from tests.places import MPIEXEC, ROOT, needs_mpi

SHELL_STATUS = {signal.SIGTERM: 143, signal.SIGHUP: 129, signal.SIGINT: 130}

PROGRAM = """
import os, sys
from pathlib import Path
from dxt_replay.replay.commands.main import main
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


JOINT_PROGRAM = """
import os, signal, sys
from dxt_replay.__main__ import main
from tests.auditing import before

def interrupted(path):
    if os.environ["PMI_RANK"] == "1":
        os.kill(os.getpid(), signal.SIGINT)

with before(sys.argv[1], sys.argv[2], interrupted):
    del sys.argv[1:3]
    sys.exit(main())
"""


@needs_mpi
@pytest.mark.parametrize(("event", "name"), [("import", "mpi4py"), ("import", "dxt_replay.replay.run.story")])
def test_a_ctrl_c_in_one_process_ends_all_of_them(tmp_path: Path, event: str, name: str) -> None:
    """One that leaves before the start of MPI, or while it joins the others, once left those in MPI for ever."""
    capture = build_capture(tmp_path, ops=[read(0, length=1)], files=["/data/train.bin"], name="source")
    stage(plan_stage(capture, tmp_path / "twin"))
    command = ["run", str(capture.path), "--target", str(tmp_path / "twin"), "-o", str(tmp_path / "r.capture")]
    done = subprocess.run(
        [str(MPIEXEC), "-n", "2", sys.executable, "-c", JOINT_PROGRAM, event, name, *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode != 0, done.stdout
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "r.capture").exists()
