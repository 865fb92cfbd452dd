"""The configuration that `record` writes for Darshan: it names the places of a command before they exist."""

from __future__ import annotations

import re
import sys

import pytest

from dxt_replay.profiler_merge.recorder.darshan import config_text, data_places, needs_include


def included(command: list[str], path: str) -> bool:
    """Whether Darshan records a file that it leaves out by itself, while this command runs."""
    wanted = filter(needs_include, data_places(command))
    lines = config_text(64, wanted).splitlines()
    patterns = [line.removeprefix("NAME_INCLUDE ").removesuffix(" *") for line in lines if "NAME_INCLUDE" in line]
    return any(re.search(pattern, path) for pattern in patterns)


@pytest.mark.parametrize(
    ("words", "path"),
    [
        (["/dev/shm/x/out"], "/dev/shm/x/out/a.pt"),
        (["/var/not/there/yet"], "/var/not/there/yet/a.pt"),
        (["--out=/opt/not/there/yet"], "/opt/not/there/yet/a.pt"),
        (["--log", "/var/not/there.csv"], "/var/not/there.csv"),
    ],
)
def test_an_output_folder_that_does_not_exist_yet_is_recorded(words: list[str], path: str) -> None:
    assert included([sys.executable, "train.py", *words], path)
    assert not included([sys.executable, "train.py", *words], "/usr/share/x")


def test_the_working_directory_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getcwd", lambda: "/opt/jobs/mine")
    assert included([sys.executable, "train.py"], "/opt/jobs/mine/out/a.pt")


@pytest.mark.parametrize("program", [sys.executable, "/opt/tools/train.py", "/opt/tools/run.sh"])
def test_programs_are_not(program: str) -> None:
    assert program not in data_places(["env", program])
