"""The program around the commands: its options, statuses, errors, progress and standard streams."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import click
import pytest

from dxt_replay.replay.commands.main import EXIT_INTERRUPTED, EXIT_OUTPUT_CLOSED, cli, main
from dxt_replay.replay.commands.session import ending_together, of_run, print_json, progress
from dxt_replay.replay.ranks.mpi import Solo
from dxt_replay.replay.run.feeder import Progress
from dxt_replay.traces.errors import CaptureError, DxtReplayError, TargetError
from dxt_replay.traces.units import NS_PER_S
from dxt_replay.traces.version import VERSION
from tests.capture_builder import Span, build_capture, read
from tests.places import PYTHON_PATH, ROOT

DXT_REPLAY = f"{sys.executable} -m dxt_replay.replay.commands.main"


@pytest.fixture
def capture(tmp_path: Path) -> str:
    spans = [Span("step", 0, 5000, step=0)]
    return str(
        build_capture(tmp_path, files=["/données/\N{SNOWMAN}"], ops=[read(0, length=9, step=0)], spans=spans).path
    )


def shell(command: str, **more: object) -> subprocess.CompletedProcess[str]:
    """What a line of bash came to; `more`: of `subprocess.run`."""
    environment = {**os.environ, "PYTHONPATH": PYTHON_PATH}
    return subprocess.run(
        ["bash", "-c", command], **{"cwd": ROOT, "env": environment, "stderr": subprocess.PIPE, "text": True, **more}
    )  # type: ignore[call-overload,no-any-return]


# ------------------------------------------------------------------------------------------------- options and answers
def test_json_can_be_asked_for_in_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DXT_REPLAY_SUMMARY_AS_JSON", "1")
    assert main(["summary", "nothing.capture"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["type"] == "CaptureError"


def test_verbose_prints_versions_times_and_the_traceback_of_an_error(
    capture: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["summary", "nothing.capture", "-v"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith(f"dxt-replay: version {VERSION}, Python 3.")
    assert "Traceback (most recent call last):" in lines
    assert lines[-1].startswith("dxt-replay: error: nothing.capture does not exist")
    assert main(["-v", "summary", capture]) == 0
    assert any(line.startswith("dxt-replay: summarising: 0.") for line in capsys.readouterr().err.splitlines())


def test_a_terminal_shows_what_goes_on_unless_it_shall_be_quiet(
    capture: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with progress(of_run) as report:  # in a pipe, and without a command
        report(Progress(done=1, total=2, elapsed_ns=1, expected_ns=2))
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert main(["summary", capture]) == 0
    assert "summarising" in capsys.readouterr().err
    assert main(["summary", capture, "-q"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("done", "lag_ns", "text"),
    [
        (1500, 1_500_000_000, "replaying 1,500 of 6,000 operations, 500/s, lag 1.500 s, 8 s left"),
        (1500, None, "replaying 1,500 of 6,000 operations, 500/s, 9 s left"),
        (0, None, "replaying 0 of 6,000 operations, 0/s, time left unknown"),
    ],
)
def test_progress_says_how_late_a_run_is_and_how_long_it_will_take(done: int, lag_ns: int | None, text: str) -> None:
    now = Progress(done=done, total=6000, elapsed_ns=3 * NS_PER_S, expected_ns=10 * NS_PER_S, lag_ns=lag_ns)
    assert of_run(now) == text


def test_json_is_one_object_of_ascii_with_its_version_first(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"b": 1, "a": {"path": "/é"}})
    text = capsys.readouterr().out
    assert list(json.loads(text).items()) == [("schema_version", 1), ("b", 1), ("a", {"path": "/é"})]
    assert text.isascii()
    with pytest.raises(ValueError, match="nan"):
        print_json({"a": float("nan")})


def test_the_shell_is_given_completions() -> None:
    asked = {"_DXT_REPLAY_COMPLETE": "bash_complete", "COMP_WORDS": "dxt-replay su", "COMP_CWORD": "1"}
    code = "import sys; from dxt_replay.replay.commands.main import main; sys.argv[0] = 'dxt-replay'; sys.exit(main())"
    environment = {**os.environ, "PYTHONPATH": PYTHON_PATH, **asked}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.stdout.split() == ["plain,summary"]


# ------------------------------------------------------------------------------------------------------------- the end
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
        (ZeroDivisionError("a bug keeps its traceback"), None),
    ],
)
def test_how_a_command_ends_is_its_status(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, status: int | None
) -> None:
    @click.command()
    def command() -> None:
        raise error

    monkeypatch.setattr(cli, "get_command", lambda ctx, name: command)
    if status is None:
        with pytest.raises(type(error)):
            main(["demo"])
    else:
        assert main(["demo"]) == status


def test_no_thread_is_a_limit_and_no_bug(
    capture: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert main(["verify", capture]) == 2
    error = capsys.readouterr().err
    assert "can't start new thread: raise the limit of this user's threads (ulimit -u)" in error


class Counted(Solo):
    left = 0

    def leave(self) -> None:
        self.left += 1


def test_mpi_has_ended_before_anything_is_printed_and_an_error_is_told_to_the_others_first() -> None:
    """Where `| head` ends the launcher while a result is printed, MPI's memory in /dev/shm would stay."""
    comm = Counted()
    with ending_together(comm):
        assert comm.left == 0
    assert comm.left == 1
    with pytest.raises(TargetError), ending_together(comm):
        raise TargetError("full")
    assert comm.left == 1


THREADS = """
import os, sys
from dxt_replay.__main__ import main
main()
import numpy
print(len(os.listdir("/proc/self/task")), os.environ.get("OPENBLAS_NUM_THREADS"), file=sys.stderr)
"""


@pytest.mark.parametrize(("words", "variable"), [(["summary"], "1"), (["record"], "None")])
def test_numpy_starts_no_threads_except_for_a_job_that_is_recorded(words: list[str], variable: str) -> None:
    unset = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    command = [sys.executable, "-c", THREADS, *words, "--help"]
    done = subprocess.run(command, cwd=ROOT, env=unset, capture_output=True, text=True, check=True)
    threads, found = done.stderr.split()
    assert found == variable
    assert threads == "1" or variable == "None"


# ---------------------------------------------------------------------------------------------------- standard streams
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "what",
    [
        *("summary {0}", "summary {0} --json", "summary {0} -o -", "export {0} --to csv -o -"),
        pytest.param("compare {0} {0} --different-runs", marks=pytest.mark.slow),
        pytest.param("simulate {0} --storage nvme --json", marks=pytest.mark.slow),
    ],
)
def test_a_full_disk(capture: str, what: str, unbuffered: str) -> None:
    done = shell(f"PYTHONUNBUFFERED={unbuffered} {DXT_REPLAY} {what.format(capture)} >/dev/full")
    assert done.returncode == 2
    assert done.stderr.splitlines() == ["dxt-replay: error: cannot write to standard output: No space left on device"]


def test_a_reader_that_has_gone_is_no_error(tmp_path: Path, capture: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as closed:
        done = shell(f"{DXT_REPLAY} summary {capture}", stdout=closed)
    assert (done.stderr, done.returncode) == ("", EXIT_OUTPUT_CLOSED)
    many = build_capture(tmp_path / "many", files=["/a"], ops=[read(0, length=1, start_ns=i) for i in range(30_000)])
    done = shell(f"{DXT_REPLAY} export {many.path} --to csv -o - | head -1; exit ${{PIPESTATUS[0]}}", stdout=-1)
    assert (done.stderr, done.returncode) == ("", EXIT_OUTPUT_CLOSED)


def test_a_closed_standard_output(capture: str) -> None:
    done = shell(f"{DXT_REPLAY} summary {capture} >&-")
    assert done.returncode == 2
    assert done.stderr.splitlines() == ["dxt-replay: error: standard output is closed: give it a file or /dev/null"]


def test_a_removed_working_directory(capture: str, tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    done = shell(f"cd {tmp_path}/gone && rmdir ../gone && {DXT_REPLAY} export {capture} --to csv -o x.csv")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("dxt-replay: error: the directory for x.csv was removed")


@pytest.mark.parametrize("stderr", ["2>&-", "2>/dev/full", "0<&- 2>&-"])
def test_standard_error_that_takes_nothing_changes_no_result(capture: str, tmp_path: Path, stderr: str) -> None:
    assert shell(f"{DXT_REPLAY} summary {capture} --json >{tmp_path}/out {stderr}").returncode == 0
    assert json.loads((tmp_path / "out").read_text())["job"]["nprocs"] == 1
    assert shell(f"{DXT_REPLAY} summary {tmp_path}/absent {stderr}").returncode == 2


def test_paths_that_the_terminal_cannot_show_are_escaped(capture: str) -> None:
    ascii_only = "PYTHONIOENCODING=ascii PYTHONUTF8=0 LC_ALL=C"
    done = shell(f"{ascii_only} {DXT_REPLAY} summary {capture} --by file", stdout=subprocess.PIPE)
    assert done.returncode == 0, done.stderr
    assert "/donn\\xe9es/\\u2603" in done.stdout
