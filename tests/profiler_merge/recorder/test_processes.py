"""The processes of a job, on real ones: what all of them read, and those that outlive the program."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dxt_replay.profiler_merge.recorder import processes
from dxt_replay.profiler_merge.recorder.darshan import to_account_for
from dxt_replay.profiler_merge.recorder.page_faults import collected_faults
from dxt_replay.profiler_merge.recorder.processes import adopted

MIB = 1 << 20


@pytest.fixture(autouse=True)
def held():
    """As `signals_held` does for `Family.wait`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (*processes.FORWARDED, signal.SIGCHLD))
    yield
    while signal.sigtimedwait(processes.FORWARDED, 0):
        pass
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def read_by(family: processes.Family) -> int:
    moved = family.moved()
    if moved is None:
        pytest.skip("this kernel does not count the bytes of processes")
    return moved["rchar"]


@pytest.mark.parametrize(
    "command",
    [
        "cat data > /dev/null",
        "cat data > /dev/null & exit 0",
        "env -i cat data > /dev/null",
        "cat data > /dev/null; kill -9 $$",
    ],
    ids=["a child", "an orphan", "without an environment", "of a killed parent"],
)
def test_all_bytes_of_the_tree_are_counted(tmp_path: Path, command: str) -> None:
    (tmp_path / "data").write_bytes(bytes(3 * MIB))
    with adopted() as family:
        subprocess.run(["sh", "-c", command], cwd=tmp_path, check=False)
        assert family.wait(lambda pids: None) == {}
        assert 3 * MIB <= read_by(family) < 4 * MIB


def test_who_still_lives_is_named_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "PATIENCE_S", 0.5)
    (tmp_path / "data").write_bytes(bytes(3 * MIB))
    with adopted() as family:
        subprocess.run(["sh", "-c", "(cat data > /dev/null; exec sleep 60) & exit 0"], cwd=tmp_path, check=True)
        alive = family.wait(lambda pids: None)
        assert list(alive.values()) == ["sleep"]
        assert 3 * MIB <= read_by(family) < 4 * MIB
        for pid in alive:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def test_a_signal_ends_the_wait() -> None:
    """In a process of its own: the signal would end this one if the wait did not take it."""
    program = """
import os, signal, subprocess, time
from dxt_replay.profiler_merge.recorder.processes import adopted, signals_held
with signals_held(), adopted() as family:
    subprocess.run(["sh", "-c", "sleep 60 & exit 0"], check=True)
    begin = time.monotonic()
    os.kill(os.getpid(), signal.SIGINT)
    (pid,) = family.wait(lambda pids: None)
    print(time.monotonic() - begin < 5)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    signal.sigtimedwait([signal.SIGINT], 0)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "True\n", done.stderr


def test_processes_of_others_are_let_alone() -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        with adopted() as family:
            assert family.wait(lambda pids: None) == {}
        other.kill()


def test_each_process_that_began_is_known_by_its_program(tmp_path: Path) -> None:
    program = "import os, subprocess; subprocess.run(['cat', '/dev/null']); os.fork() or os._exit(0)"
    with collected_faults(tmp_path / "faults") as began:
        subprocess.run([sys.executable, "-I", "-S", "-c", program], check=True)
        time.sleep(0.1)
    if not began:
        pytest.skip("perf_event_open is not allowed here")
    names = [program for _, program in began]
    assert names.count("cat") == 1
    assert sum(name.startswith("python") for name in names) == 2
    assert len({pid for pid, _ in began}) == 3


def test_programs_that_move_no_data_need_no_log() -> None:
    assert to_account_for([(1, "sh"), (2, "cat"), (3, "uname"), (4, "cat")]) == {"cat": [2, 4]}
