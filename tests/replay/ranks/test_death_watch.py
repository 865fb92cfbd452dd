"""Which of several processes is named as the one that died, whenever the child that watches gets a processor."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from dxt_replay.replay.ranks.death_watch import DeathWatch

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="this system cannot watch processes")


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Three that last until they are killed."""
    command = [sys.executable, "-I", "-S", "-c", "import signal; signal.pause()"]
    started = [subprocess.Popen(command) for _ in range(3)]
    yield started
    for process in started:
        kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def watch_over(processes: list[subprocess.Popen[bytes]]) -> DeathWatch:
    return DeathWatch({process.pid: f"process {number}" for number, process in enumerate(processes)})


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 1, 0)])
def test_of_several_that_have_died_the_first_is_named(
    processes: list[subprocess.Popen[bytes]], order: tuple[int, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    watch = watch_over(processes)
    assert watch._child is not None
    os.kill(watch._child.pid, signal.SIGSTOP)
    for number in order:
        kill(processes[number])
    os.kill(watch._child.pid, signal.SIGCONT)
    watch.dismiss()  # too late: they had died before
    assert capfd.readouterr().err == f"dxt-replay: error: process {order[0]} died, which ends the replay\n"


def test_who_ends_after_the_dismissal_did_not_die(
    processes: list[subprocess.Popen[bytes]], capfd: pytest.CaptureFixture[str]
) -> None:
    watch = watch_over(processes)
    child = watch._child
    assert child is not None
    assert child.stdin is not None
    os.kill(child.pid, signal.SIGSTOP)
    child.stdin.write(b"x")
    child.stdin.flush()
    for process in processes:
        kill(process)
    os.kill(child.pid, signal.SIGCONT)
    watch.dismiss()
    assert capfd.readouterr().err == ""


def test_the_end_of_the_watching_process_leaves_the_others_to_be_named(
    processes: list[subprocess.Popen[bytes]], capfd: pytest.CaptureFixture[str]
) -> None:
    watch = watch_over(processes)
    child = watch._child
    assert child is not None
    assert child.stdin is not None
    child.stdin.close()  # as its end would
    kill(processes[2])
    child.wait()
    assert capfd.readouterr().err == "dxt-replay: error: process 2 died, which ends the replay\n"


def test_an_interrupt_that_reaches_all_processes_does_not_end_the_watch(
    processes: list[subprocess.Popen[bytes]], capfd: pytest.CaptureFixture[str]
) -> None:
    watch = watch_over(processes)
    assert watch._child is not None
    os.kill(watch._child.pid, signal.SIGINT)
    kill(processes[1])
    watch.dismiss()
    assert capfd.readouterr().err == "dxt-replay: error: process 1 died, which ends the replay\n"
