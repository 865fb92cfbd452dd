"""Commands under tiny limits (ulimit): they do their work, or say which limit it was; never that a file is damaged."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.output_commands import OUTPUT_COMMANDS
from tests.places import ROOT
from tests.replay.faults.injection import Commands, Ended
from tests.replay.faults.test_hanging_calls import run

NOBODY = 65534
NAMES = ("run", "stage", "merge", "generate", "report", "export csv")
QUICK = (("run", 12), ("stage", 8))
"""In the default suite; the rest is slow."""


def check(ended: Ended, limit: str) -> None:
    assert ended.status in (0, 2), ended.err
    if ended.status:
        (line,) = ended.err.splitlines()
        assert line.startswith("dxt-replay: error: ")
        assert limit in line or "Too many open files" in line, line
        for wrong in ("damaged", "free space", "--target", "another place", "--output"):
            assert wrong not in line, line


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        pytest.param(name, limit, marks=() if (name, limit) in QUICK else pytest.mark.slow)
        for name in NAMES
        for limit in (7, 8, 9, 10, 12, 16, 24, 34, 40)
    ],
)
def test_open_files(commands: Commands, folder: Path, name: str, limit: int) -> None:
    source = folder / "source.capture"
    (folder / "new").mkdir(exist_ok=True)
    words = ["stage", source, "--target", folder / "new"]
    if name != "stage":
        words = OUTPUT_COMMANDS[name].line(source, folder / OUTPUT_COMMANDS[name].name)
    check(commands.run(words, limits={"RLIMIT_NOFILE": limit}), "(ulimit -n)")


@pytest.mark.skipif(os.geteuid() != 0, reason="the limit does not bind root, who plays another user here")
@pytest.mark.parametrize("limit", [1, 12, pytest.param(5, marks=pytest.mark.slow)])
def test_threads(commands: Commands, folder: Path, limit: int) -> None:
    for path in (*folder.parents, folder, *folder.rglob("*")):
        if path.is_relative_to("/tmp") and path != Path("/tmp"):
            path.chmod(0o777)
    ended = commands.run(run(folder, "--pace", "none"), limits={"RLIMIT_NPROC": limit}, user=NOBODY)
    check(ended, "(ulimit -u)")
    assert ended.status == 2


@pytest.mark.parametrize("kibibytes", [128, pytest.param(192, marks=pytest.mark.slow)])
def test_stack(folder: Path, kibibytes: int) -> None:
    """Python itself needs about 100 KiB of stack: with less it dies at its start."""
    words = [sys.executable, "-m", "dxt_replay", *map(str, run(folder, "--pace", "none"))]
    command = ["bash", "-c", f'ulimit -s {kibibytes}; exec "$@"', "bash", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
