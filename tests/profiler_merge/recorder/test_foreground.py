"""A command in the foreground: in a process of its own, as signals are of a whole process."""

from __future__ import annotations

import io
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dxt_replay.profiler_merge.recorder.processes import run_in_foreground, signals_held
from dxt_replay.traces.errors import UsageError
from tests.places import PYTHON_PATH, ROOT

RUN = """
import sys
from dxt_replay.profiler_merge.recorder.processes import run_in_foreground, signals_held
import io
import os
import pty
{imports}
with signals_held() as mask:
    ended = run_in_foreground(sys.argv[1:], os.environ, mask)
print("ended", ended.status, list(ended.signals), flush=True)
"""

HEEDING = """
import signal, sys, time
def heed(number, frame):
    print("heard", number, flush=True)
    sys.exit(7)
signal.signal(int(sys.argv[1]), heed)
print("ready", flush=True)
while True:
    time.sleep(0.1)  # not pause(): a signal just before it would be heeded after the next one
"""


def run(words: list[str], **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", RUN.format(imports=""), *words],
        cwd=ROOT, text=True, stdout=subprocess.PIPE, check=True, **options,
    )  # fmt: skip


def test_input_and_output_are_the_commands_own() -> None:
    assert run(["cat"], input="one\ntwo\n").stdout == "one\ntwo\nended 0 []\n"


@pytest.mark.parametrize(("script", "status"), [("exit 3", 3), ("kill -KILL $$", 137), ("kill -TERM $$", 143)])
def test_the_status_is_that_of_a_shell(script: str, status: int) -> None:
    assert run(["sh", "-c", script]).stdout == f"ended {status} []\n"


@pytest.mark.parametrize("imports", ["", "import numpy"])  # with threads that take signals, and without
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_goes_on_to_the_command_once(number: signal.Signals, imports: str) -> None:
    words = [sys.executable, "-c", HEEDING, str(int(number))]
    with subprocess.Popen(
        [sys.executable, "-c", RUN.format(imports=imports), *words],
        cwd=ROOT, text=True, stdout=subprocess.PIPE, start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        rest = process.stdout.read()
    assert rest == f"heard {int(number)}\nended 7 [{int(number)}]\n"


def test_signals_output_and_a_missing_command(tmp_path: Path) -> None:
    held = "import signal; print(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())))"
    assert run([sys.executable, "-c", held]).stdout.startswith("[]\n")  # the command starts with those of before
    with (tmp_path / "out").open("wb") as file, signals_held() as mask:
        run_in_foreground(["echo", "hello"], os.environ, mask, output=file.fileno())
        with pytest.raises(UsageError, match="no-such-command was not found"):
            run_in_foreground(["no-such-command"], os.environ, mask)
    assert (tmp_path / "out").read_text(encoding="utf-8") == "hello\n"


COUNTING = """
import os, signal, sys, time
def heed(number, frame):
    print("heard", number, flush=True)
    if number == signal.SIGUSR1:
        sys.exit(0)
for number in (signal.SIGINT, signal.SIGUSR1):
    signal.signal(number, heed)
print("ready", flush=True)
while True:
    time.sleep(0.1)  # not pause(): a signal just before it would be heeded after the next one
"""


@pytest.mark.parametrize("imports", ["", "import numpy"])
def test_what_the_terminal_sends_to_both_is_not_sent_on(imports: str) -> None:
    pid, terminal = pty.fork()
    if not pid:
        words = [sys.executable, "-c", RUN.format(imports=imports), sys.executable, "-c", COUNTING]
        os.execve(sys.executable, words, {**os.environ, "PYTHONPATH": PYTHON_PATH})
    with os.fdopen(terminal, "rb", buffering=0) as lines:
        seen = read_until(lines, b"ready")
        os.write(terminal, b"\x03")
        seen += read_until(lines, b"heard 2")
        os.kill(pid, signal.SIGUSR1)
        seen += read_until(lines, b"ended")
    os.waitpid(pid, 0)
    assert seen.count(b"heard 2") == 1
    assert b"heard 10" in seen


def read_until(file: io.FileIO, words: bytes) -> bytes:
    seen = b""
    while words not in seen:
        seen += file.read(1000) or b""
    return seen
