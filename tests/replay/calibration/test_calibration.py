"""Whole calibrations, as short as they can be: what comes of them, and that nothing is left of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dxt_replay import calibrate as calibrate_to_file
from dxt_replay.replay.calibration.calibration import calibrate
from dxt_replay.replay.calibration.scratch import NAME
from dxt_replay.replay.simulation.model import read_storage_model
from dxt_replay.traces.errors import TargetError
from tests.places import ROOT

SECONDS = 2.0


@pytest.fixture
def target(tmp_path):
    (tmp_path / "target").mkdir()
    return tmp_path / "target"


def test_every_call_is_measured_and_its_file_is_read_as_a_storage_model(target, tmp_path):
    output, seen = tmp_path / "measured.json", []
    done = calibrate_to_file(
        target, output, minutes=SECONDS / 60, on_progress=lambda passed, whole, what: seen.append((passed, whole))
    )
    assert os.listdir(target) == []
    assert {whole for _, whole in seen} == {SECONDS}
    assert [passed for passed, _ in seen] == sorted(passed for passed, _ in seen)
    calls = {(each.call, each.state) for each in done.measured}
    assert {("read", "cold"), ("read", "cached"), ("open", ""), ("close", ""), ("stat", ""), ("create", "")} <= calls
    for each in done.measured:
        assert each.requests > 0
        assert 0 < each.low_ns <= each.time_ns <= each.high_ns
        assert each.p50_ns <= each.p95_ns <= each.p99_ns
        assert each.time_ns <= each.p95_ns
    assert read_storage_model(output) == done.model
    assert {"read", "open", "close", "stat"} <= done.model.operations.keys()
    assert done.document()["measured"]["unseen"] == list(done.unseen)
    text = " ".join(done.unseen)
    assert all(each in text for each in ("cannot be dropped", "other clients", "writes it to the storage later"))
    with pytest.raises(TargetError, match="--force replaces it"):
        calibrate_to_file(target, output, minutes=SECONDS / 60)


@pytest.mark.parametrize("reached", ["writing data to read", "throttles", "cold read"])
def test_ctrl_c_leaves_nothing(tmp_path, reached):
    def interrupt(done, whole, what):
        assert [name.startswith(NAME) for name in os.listdir(tmp_path)] == [True]
        if what == reached:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        calibrate(tmp_path, SECONDS, on_progress=interrupt)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_amid_the_requests_leaves_nothing(tmp_path, target, number, status):
    words = ["-m", "dxt_replay.replay.commands.main", "calibrate", "--target", str(target), "-o", str(tmp_path / "m")]
    process = subprocess.Popen([sys.executable, *words], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 60
    while not list(target.glob("*/data")) and time.monotonic() < until:
        os.sched_yield()
    process.send_signal(number)
    _, printed = process.communicate(timeout=60)
    assert process.returncode == status
    assert "Traceback" not in printed
    assert (os.listdir(target), (tmp_path / "m").exists()) == ([], False)


def test_a_target_that_cannot_be_used_is_one_clear_error(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    for place, message in (
        (Path("/sys"), r"cannot write below the target /sys: .*; choose another --target"),
        (tmp_path / "none", "does not exist: give a directory on the file system to measure"),
        (tmp_path / "file", "is not a directory"),
    ):
        with pytest.raises(TargetError, match=message):
            calibrate(place, SECONDS)
    (tmp_path / "file").unlink()
    little = os.statvfs_result([4096, 4096, 1000, 1000, 100, 1000, 1000, 1000, 0, 255])
    monkeypatch.setattr(os, "statvfs", lambda path: little)
    with pytest.raises(TargetError, match=r"has 400 KiB free, and a calibration needs 64.0 MiB: free space there"):
        calibrate(tmp_path, SECONDS)
    assert os.listdir(tmp_path) == []


def test_space_that_runs_out_meanwhile_is_one_clear_error(tmp_path, target):
    program = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20));"
        "from dxt_replay.replay.commands.main import main;"
        "sys.exit(main(['calibrate', '--target', sys.argv[1], '-o', sys.argv[2], '--minutes', '0.03']))"
    )
    words = [sys.executable, "-c", program, str(target), str(tmp_path / "m")]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == f"dxt-replay: error: cannot measure {target}: File too large; choose another --target\n"
    assert (os.listdir(target), (tmp_path / "m").exists()) == ([], False)


def test_a_file_system_in_memory_is_measured_without_a_cache_beside_it():
    place = Path("/dev/shm")
    if not os.access(place, os.W_OK):
        pytest.skip("/dev/shm cannot be written here")
    done = calibrate(place, SECONDS)
    if done.file_system != "tmpfs":
        pytest.skip("/dev/shm is not a tmpfs here")
    assert done.model.cache is None
    assert "does not drop pages on request" in done.unseen[0]
    assert not list(place.glob(f"{NAME}*"))
