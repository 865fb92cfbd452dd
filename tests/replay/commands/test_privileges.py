"""What is left of root's capabilities in the threads of a command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dxt_replay.replay.commands.privileges import KEPT
from tests.capture_builder import build_capture, read
from tests.places import ROOT
from tests.replay.target.staging import staged

KEPT_MASK = sum(1 << number for number in KEPT.values())
PROGRAM = [sys.executable, "-m", "dxt_replay"]

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root has capabilities")


def capabilities(process: Path) -> dict[str, set[int]]:
    """Kind -> the sets that the threads of a process have."""
    found: dict[str, set[int]] = {"CapEff": set(), "CapPrm": set(), "NoNewPrivs": set()}
    for thread in (process / "task").iterdir():
        for line in (thread / "status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name in found:
                found[name].add(int(value, 16))
    return found


def test_the_lanes_of_a_run_keep_what_files_need(tmp_path: Path) -> None:
    """Looked at from outside, while 8 lanes wait for their operations."""
    ops = [read(0, length=10, lane=lane, start_ns=at) for lane in range(8) for at in (0, 1_500_000_000)]
    capture = build_capture(tmp_path, files=["/a"], ops=ops)
    staged(capture, tmp_path / "target")
    words = ["run", str(capture.path), "--target", str(tmp_path / "target"), "-o", str(tmp_path / "r.capture")]
    process = subprocess.Popen([*PROGRAM, *words], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    place = Path(f"/proc/{process.pid}")
    most, found = 0, {}
    while process.poll() is None and most < 9:
        try:
            threads = len(os.listdir(place / "task"))
            if threads > most:
                most, found = threads, capabilities(place)
        except OSError:  # a thread or the process has just ended
            continue
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    assert most >= 9
    assert found["NoNewPrivs"] == {1}
    assert all(value & ~KEPT_MASK == 0 for value in found["CapEff"] | found["CapPrm"])


def test_a_target_of_another_user_can_be_staged_and_removed(tmp_path: Path) -> None:
    capture = build_capture(tmp_path, files=["/a"], ops=[read(0, length=10)])
    target = tmp_path / "target"
    target.mkdir(mode=0o700)
    os.chown(target, 65534, 65534)
    for words in (["stage", str(capture.path)], ["verify"], ["stage", "--remove", str(capture.path)]):
        given = [str(target)] if words == ["verify"] else ["--target", str(target)]
        done = subprocess.run([*PROGRAM, *words, *given], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert list(target.iterdir()) == []
