"""A disk that refuses while any output is written: one error that names the output, status 2, and nothing is left."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.output_commands import OUTPUT_COMMANDS
from tests.replay.faults.injection import Commands, Rule

WRITTEN = "/written/"


COMMANDS = {name: command for name, command in OUTPUT_COMMANDS.items() if name != "demo"}
"""The demo keeps what it has done in a folder of its own."""


def words(folder: Path, command: str, place: Path, *options: object) -> list[object]:
    place.parent.mkdir(parents=True, exist_ok=True)
    return COMMANDS[command].line(folder / "source.capture", place, *options)


FAULTS = {
    "a disk that is full from the first byte on": Rule(call="write", action="fail", number=errno.ENOSPC, path=WRITTEN),
    "a quota that is used up after some writes": Rule(
        call="write", action="fail", number=errno.EDQUOT, path=WRITTEN, skip=2
    ),
    "a disk that cannot write": Rule(call="write", action="fail", number=errno.EIO, path=WRITTEN, skip=1),
    "a file system that became read-only": Rule(call="create", action="fail", number=errno.EROFS, path=WRITTEN),
    "a name that cannot be given": Rule(call="rename", action="fail", number=errno.ENOSPC, path=WRITTEN),
    "an error at the close": Rule(call="wclose", action="fail", number=errno.EDQUOT, path=WRITTEN),
}

FIRST = next(iter(FAULTS))


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        pytest.param(command, fault, marks=() if fault == FIRST else pytest.mark.slow)
        for command in COMMANDS
        for fault in FAULTS
    ],
)
def test_no_output_is_left_that_is_not_whole(commands: Commands, folder: Path, command: str, fault: str) -> None:
    place = folder / "written" / COMMANDS[command].name
    ended = commands.run(words(folder, command, place), FAULTS[fault])
    if ended.status == 0 and fault != FIRST:  # fewer calls than the rule skips, or a close whose failure means nothing
        assert (command, place.exists()) == (command, True)
        return
    assert ended.status == COMMANDS[command].refused, ended.err + ended.out
    assert "Traceback" not in ended.err
    errors = [line for line in ended.err.splitlines() if line.startswith("dxt-replay: error: ")]
    (error,) = errors if ended.status == 2 else [ended.out]  # of many jobs, a table names those that failed
    assert str(place) in error or str(place.parent) in error, error
    assert list(place.parent.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("command", [name for name, command in COMMANDS.items() if command.replaces])
def test_a_limit_at_any_size_leaves_the_earlier_output(commands: Commands, folder: Path, command: str) -> None:
    place = folder / "written" / COMMANDS[command].name
    assert commands.run(words(folder, command, place)).status == 0
    before, names = _content(place), sorted(place.parent.iterdir())
    for limit in (2000, 4000, 10_000):
        ended = commands.run(words(folder, command, place, "--force"), limits={"RLIMIT_FSIZE": limit})
        assert ended.status in (0, COMMANDS[command].refused), ended.err
        assert "Traceback" not in ended.err
        assert sorted(place.parent.iterdir()) == names
        job_ran = (
            command == "record --logs" and "exit status of the job" in ended.err
        )  # it is recorded, as far as it got
        if ended.status and not job_ran:
            assert _content(place) == before


def _content(place: Path) -> dict[str, bytes]:
    files = [place] if place.is_file() else [path for path in place.rglob("*") if path.is_file()]
    return {str(path): path.read_bytes() for path in files}


@pytest.mark.parametrize(
    "skip", [0, 1, pytest.param(5, marks=pytest.mark.slow), pytest.param(9, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    ("call", "number"),
    [
        ("write", errno.ENOSPC),
        ("write", errno.EIO),
        ("close", errno.EDQUOT),
        ("sync", errno.EIO),
        ("rename", errno.EIO),
    ],
)
def test_a_staging_that_failed_goes_on(commands: Commands, folder: Path, call: str, number: int, skip: int) -> None:
    (folder / "new").mkdir(exist_ok=True)
    stage = ["stage", folder / "source.capture", "--target", folder / "new"]
    ended = commands.run(stage, Rule(call=call, action="fail", number=number, path="/new", skip=skip, count=1))
    assert ended.status in (0, 2), ended.err
    assert "Traceback" not in ended.err
    parts = [path for path in (folder / "new").rglob("*") if path.name.endswith(".part")]
    assert parts == []
    if ended.status:
        assert str(folder / "new") in ended.err
        assert commands.run(stage).status == 0
    replayed = ["run", stage[1], "--target", folder / "new", "-o", folder / "r.capture", "--pace", "none", "--json"]
    document = commands.run(replayed).json()
    assert (document["failed"], document["short"]) == (0, 0)
