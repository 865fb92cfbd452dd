"""Standard output that takes nothing: status 2 and one line, never a traceback and never "a comparison failed"."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.capture_builder import Span, build_capture, read
from tests.places import ROOT

DXT_REPLAY = f"{sys.executable} -m dxt_replay.replay.commands.main"


def run(command: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", command], cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True, check=False
    )


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    return build_capture(
        tmp_path, files=["/a"], ops=[read(0, length=9, step=0)], spans=[Span("step", 0, 5000, step=0)]
    ).path


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "what",
    [
        "summary {0}",
        "summary {0} --json",
        "summary {0} -o -",
        "export {0} --to csv -o -",
        pytest.param("compare {0} {0} --different-runs", marks=pytest.mark.slow),
        pytest.param("compare {0} {0} --different-runs --json", marks=pytest.mark.slow),
        pytest.param("simulate {0} --storage nvme", marks=pytest.mark.slow),
        pytest.param("simulate {0} --storage nvme --json", marks=pytest.mark.slow),
    ],
)
def test_a_full_disk(capture: Path, what: str, unbuffered: str) -> None:
    done = run(f"PYTHONUNBUFFERED={unbuffered} {DXT_REPLAY} {what.format(capture)} >/dev/full")
    assert done.returncode == 2
    assert done.stderr.splitlines() == ["dxt-replay: error: cannot write to standard output: No space left on device"]


def test_a_closed_standard_output(capture: Path) -> None:
    done = run(f"{DXT_REPLAY} summary {capture} >&-")
    assert done.returncode == 2
    assert done.stderr.splitlines() == ["dxt-replay: error: standard output is closed: give it a file or /dev/null"]


def test_a_removed_working_directory(capture: Path, tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    command = f"{DXT_REPLAY} export {capture} --to csv -o x.csv"
    done = run(f"export PYTHONPATH={ROOT}/src; cd {tmp_path}/gone && rmdir ../gone && {command}")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("dxt-replay: error: the directory for x.csv was removed")


@pytest.mark.parametrize("stderr", ["2>&-", "2>/dev/full", "0<&- 2>&-"])
def test_standard_error_that_takes_nothing_changes_no_result(capture: Path, tmp_path: Path, stderr: str) -> None:
    done = run(f"{DXT_REPLAY} summary {capture} --json >{tmp_path}/out {stderr}")
    assert done.returncode == 0
    assert json.loads((tmp_path / "out").read_text())["job"]["nprocs"] == 1
    assert run(f"{DXT_REPLAY} summary {tmp_path}/absent {stderr}").returncode == 2
