from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from dxt_replay.replay.commands.main import EXIT_INTERRUPTED, EXIT_OUTPUT_CLOSED, cli, main
from dxt_replay.traces.errors import CaptureError, DxtReplayError
from dxt_replay.traces.version import VERSION
from tests.capture_builder import build_capture, read
from tests.places import PYTHON_PATH


def test_json_can_be_asked_for_in_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DXT_REPLAY_SUMMARY_AS_JSON", "1")
    assert main(["summary", "nothing.capture"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["type"] == "CaptureError"


def test_verbose_prints_versions_and_the_traceback_of_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["summary", "nothing.capture", "-v"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith(f"dxt-replay: version {VERSION}, Python 3.")
    assert "Traceback (most recent call last):" in lines
    assert lines[-1].startswith("dxt-replay: error: nothing.capture does not exist")


def test_verbose_prints_how_long_each_phase_took(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capture = build_capture(tmp_path, files=["/a"], ops=[read(0, length=1)])
    assert main(["-v", "summary", str(capture.path)]) == 0
    assert any(line.startswith("dxt-replay: summarising: 0.") for line in capsys.readouterr().err.splitlines())


def test_quiet_prints_no_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    capture = build_capture(tmp_path, files=["/a"], ops=[read(0, length=1)])
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert main(["summary", str(capture.path)]) == 0
    assert "summarising" in capsys.readouterr().err
    assert main(["summary", str(capture.path), "-q"]) == 0
    assert capsys.readouterr().err == ""


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], list[str]]:
    """Makes a command that raises; returns the command line that runs it."""

    def make(error: BaseException) -> list[str]:
        @click.command()
        def command() -> None:
            raise error

        monkeypatch.setattr(cli, "get_command", lambda ctx, name: command)
        return ["demo"]

    return make


class _Special(DxtReplayError):
    exit_status = 1


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (CaptureError("x"), 2),
        (_Special("x"), 1),
        (MemoryError(), 2),
        (KeyboardInterrupt(), EXIT_INTERRUPTED),
        (SystemExit(1), 1),
        (SystemExit(None), 0),
        (SystemExit("text"), 1),
        (click.UsageError("x"), 2),
        (click.FileError("x"), 2),
        (click.exceptions.Exit(1), 1),
        (click.Abort(), EXIT_INTERRUPTED),
    ],
)
def test_how_a_command_ends_is_its_status(
    failing: Callable[[BaseException], list[str]],
    error: BaseException,
    status: int,
) -> None:
    assert main(failing(error)) == status


def test_a_bug_keeps_its_traceback(failing: Callable[[BaseException], list[str]]) -> None:
    with pytest.raises(ZeroDivisionError):
        main(failing(ZeroDivisionError("bug")))


def run_program(*argv: str, **options: object) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "PYTHONPATH": PYTHON_PATH, **options.pop("env", {})}  # type: ignore[dict-item]
    return subprocess.run(
        [sys.executable, "-m", "dxt_replay.replay.commands.main", *argv],
        capture_output=True,
        env=environment,
        check=False,
    )


def test_the_shell_is_given_completions() -> None:
    asked = {"_DXT_REPLAY_COMPLETE": "bash_complete", "COMP_WORDS": "dxt-replay su", "COMP_CWORD": "1"}
    program = (
        "import sys; from dxt_replay.replay.commands.main import main; sys.argv[0] = 'dxt-replay'; sys.exit(main())"
    )
    environment = {**os.environ, "PYTHONPATH": PYTHON_PATH, **asked}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False)
    assert done.stdout.split() == ["plain,summary"]


def test_a_reader_that_has_gone_is_no_error(tmp_path: Path) -> None:
    capture = build_capture(tmp_path, files=["/a"], ops=[read(0, length=1)])
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as closed:
        done = subprocess.run(
            [sys.executable, "-m", "dxt_replay.replay.commands.main", "summary", str(capture.path)],
            stdout=closed,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": PYTHON_PATH},
            check=False,
        )
    assert done.stderr == b""
    assert done.returncode == EXIT_OUTPUT_CLOSED


def test_paths_that_the_terminal_cannot_show_are_escaped(tmp_path: Path) -> None:
    capture = build_capture(tmp_path, files=["/données/\N{SNOWMAN}"], ops=[read(0, length=1)])
    ascii_only = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "C"}
    done = run_program("summary", str(capture.path), "--by", "file", env=ascii_only)
    assert done.returncode == 0, done.stderr
    assert b"/donn\\xe9es/\\u2603" in done.stdout


def test_no_thread_is_a_limit_and_no_bug(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    capture = build_capture(tmp_path, files=["/a"], ops=[read(0, length=1)])

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert main(["verify", str(capture.path)]) == 2
    error = capsys.readouterr().err
    assert "can't start new thread: raise the limit of this user's threads (ulimit -u)" in error
