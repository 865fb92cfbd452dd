"""One target, one run at a time: a second process is refused, and never removes the files of the first."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from dxt_replay.replay.plan.pacing import Pace, Pacing
from dxt_replay.replay.ranks.comm import Solo
from dxt_replay.replay.run.options import RunOptions
from dxt_replay.replay.run.process import Progress
from dxt_replay.replay.run.runner import run_replay
from dxt_replay.replay.target.protocol import LOCK_NAME
from dxt_replay.replay.target.stage import plan_stage, stage, unstage
from dxt_replay.replay.target.targets import locked_target
from dxt_replay.traces.errors import TargetError
from dxt_replay.traces.store.reader import Capture, open_capture
from tests.capture_builder import build_capture, read, write


def _hold(target: Path, held: Connection) -> None:
    with locked_target(target):
        held.send(True)
        held.recv()


@contextmanager
def held_elsewhere(target: Path) -> Iterator[int]:
    """Another process holds the lock; its id."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_hold, args=(target, there))
    process.start()
    try:
        assert here.recv()
        yield process.pid or 0
    finally:
        if process.is_alive():
            here.send(True)
        process.join()


@pytest.fixture
def source(tmp_path: Path) -> Capture:
    capture = build_capture(tmp_path, files=["/in", "/out"], ops=[read(0, length=4096), write(1, length=10)])
    stage(plan_stage(capture, tmp_path / "target"))
    return capture


def options(tmp_path: Path) -> RunOptions:
    return RunOptions(target=tmp_path / "target", pacing=Pacing(pace=Pace.NONE))


def run(source: Capture, tmp_path: Path) -> None:
    run_replay(source, tmp_path / "r.capture", options(tmp_path), Solo())


def test_a_second_run_is_refused_and_leaves_the_files_of_the_first(source: Capture, tmp_path: Path) -> None:
    run(source, tmp_path)
    written = tmp_path / "target" / "dxt-replay-twin" / "out"
    before = written.stat()
    with held_elsewhere(tmp_path / "target"):
        with pytest.raises(TargetError, match=r"another process is staging into .* or replaying on it"):
            run_replay(source, tmp_path / "second.capture", options(tmp_path), Solo())
        with pytest.raises(TargetError, match="another process"):
            unstage(tmp_path / "target")
    assert os.path.samestat(written.stat(), before)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.capture", "target", "test.capture"]


def test_a_run_keeps_the_others_out_until_it_is_done(source: Capture, tmp_path: Path) -> None:
    refused: list[str] = []

    def second(progress: Progress) -> None:
        with pytest.raises(TargetError, match="another process") as caught, locked_target(tmp_path / "target"):
            pass
        refused.append(str(caught.value))

    run_replay(source, tmp_path / "r.capture", options(tmp_path), Solo(), second)
    assert refused
    with locked_target(tmp_path / "target"):
        pass


def test_a_killed_process_does_not_leave_the_target_locked(source: Capture, tmp_path: Path) -> None:
    with held_elsewhere(tmp_path / "target") as pid:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert (tmp_path / "target" / LOCK_NAME).exists()
    run(source, tmp_path)
    assert open_capture(tmp_path / "r.capture").operation_count() == 2
    assert not (tmp_path / "target" / LOCK_NAME).exists()
