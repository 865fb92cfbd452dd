"""A disk that refuses while any output is written: one error that names the output, status 2, and nothing is left."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.replay.faults.injection import Commands, Rule
from traces.samples import sample

WRITTEN = "/written/"


def _merge() -> list[object]:
    files = sample("imagenet")
    return ["merge", files.log, *(word for path in files.profiles for word in ("--profile", path))]


COMMANDS: dict[str, tuple[list[object], str]] = {
    "merge": (_merge(), "out.capture"),
    "run": (["run", "source.capture", "--target", "twin", "--pace", "none"], "out.capture"),
    "export darshan": (["export", "source.capture", "--to", "darshan"], "out.darshan"),
    "export chrome": (["export", "source.capture", "--to", "chrome"], "out.json.gz"),
    "export csv": (["export", "source.capture", "--to", "csv"], "out.csv"),
    "export fio": (["export", "source.capture", "--to", "fio", "--target", "twin"], "out"),
    "report": (["report", "source.capture"], "out.html"),
    "generate": (["generate", "unet3d_h100", "--ranks", "1", "dataset.num_files_train=8"], "out.capture"),
    "transform": (["transform", "source.capture", "--transfer-size", "8KiB"], "out.capture"),
    "anonymize": (["anonymize", "source.capture"], "out.capture"),
    "summary --csv": (["summary", "source.capture", "--show", "files"], "out.csv"),
    "regress --junit": (
        ["regress", "source.capture", "--baseline", "twin", "--candidate", "twin", "--repeats", "1", "--pace", "none"],
        "out.xml",
    ),
}
"""Name -> words of a command that writes, in which names of the folder are replaced, and the name of its output."""

OPTION = {"summary --csv": "--csv", "regress --junit": "--junit"}


def words(folder: Path, command: str, place: Path) -> list[object]:
    given, _ = COMMANDS[command]
    known = {"source.capture", "twin"}
    return [*(folder / str(word) if word in known else word for word in given), OPTION.get(command, "-o"), place]


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
    (folder / "written").mkdir()
    place = folder / "written" / COMMANDS[command][1]
    ended = commands.run(words(folder, command, place), FAULTS[fault])
    if ended.status == 0 and fault != FIRST:  # fewer calls than the rule skips, or a close whose failure means nothing
        assert (command, place.exists()) == (command, True)
        return
    assert ended.status == 2, ended.err + ended.out
    last = ended.err.strip().splitlines()[-1]
    assert last.startswith("dxt-replay: error: "), ended.err
    assert "Traceback" not in ended.err
    assert str(place) in last or str(place.parent) in last, last
    assert list((folder / "written").iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_limit_at_any_size_leaves_the_earlier_output(commands: Commands, folder: Path, command: str) -> None:
    (folder / "written").mkdir()
    place = folder / "written" / COMMANDS[command][1]
    assert commands.run(words(folder, command, place)).status == 0
    before = _content(place)
    for limit in (2000, 4000, 10_000):
        ended = commands.run([*words(folder, command, place), "--force"], limits={"RLIMIT_FSIZE": limit})
        assert ended.status in (0, 2), ended.err
        assert "Traceback" not in ended.err
        assert [path.name for path in (folder / "written").iterdir()] == [place.name]
        if ended.status == 2:
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
