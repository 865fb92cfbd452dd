"""Calls that fail, move too little or come too late, files that go and disks that are full: counted, named, status 1 of
a run; one error with status 2 and nothing left of an output."""

import errno
import re
import xml.etree.ElementTree as xml
from pathlib import Path

import h5py
import numpy as np
import pytest

from tests.capture_builder import Op, build_capture, write
from tests.output_commands import OUTPUT_COMMANDS
from tests.replay.faults.conftest import run
from tests.replay.faults.injection import Rule
from tests.replay.hdf5.test_twins import captured_application

TWIN = "-twin/"
A, B, OUT = f"{TWIN}data/a.bin", f"{TWIN}data/b.bin", f"{TWIN}out/"
BOTH = pytest.mark.parametrize("api", ["posix", pytest.param("stdio", marks=pytest.mark.slow)])

MET = {
    "EIO of a read": (Rule("read", "fail", errno.EIO, TWIN, 9, 3), "read", "EIO"),
    "ESTALE of a read": (Rule("read", "fail", errno.ESTALE, TWIN, 9, 1), "read", "ESTALE"),
    "ENOSPC of a write": (Rule("write", "fail", errno.ENOSPC, TWIN, 3), "write", "ENOSPC"),
    "EDQUOT of a write": (Rule("write", "fail", errno.EDQUOT, TWIN, 0, 1), "write", "EDQUOT"),
    "EROFS of an open": (Rule("open", "fail", errno.EROFS, OUT), "write", "EROFS"),
    "ESTALE of an open": (Rule("open", "fail", errno.ESTALE, A), "read", "ESTALE"),
    "a file that is gone before it is opened": (Rule("open", "gone", 0, B, 0, 1), "read", "ENOENT"),
    "short reads": (Rule("read", "short", 100, TWIN, 9, 2), "read", None),
    "short writes": (Rule("write", "short", 100, TWIN, 5, 2), "write", None),
    "a file that is cut under the run": (Rule("read", "cut", 1000, B, 9, 1), "read", None),
}


@BOTH
@pytest.mark.parametrize("fault", MET)
def test_a_call_that_fails_or_moves_too_little_is_named(commands, folder, fault, api):
    rule, operation, name = MET[fault]
    ended = commands.run(run(folder, "--json", "--pace", "none", "--api", api), rule)
    assert ended.status == 1, ended.err
    document = ended.json()
    count = document["short" if name is None else "failed"]
    assert document["errors"] == ({} if name is None else {name: count})
    assert count >= (1 if name is None else rule.count or 1)
    assert len(document["failures"]) == min(count, 20)
    for failure in document["failures"]:
        assert (failure["operation"], failure["errno"]) == (operation, name)
        assert failure["moved"] < failure["length"] if name is None else failure["moved"] == 0
        assert failure["rank"] in (0, 1)
        assert failure["file"] in ("/data/a.bin", "/data/b.bin", "/out/0.bin", "/out/1.bin")
        assert failure["offset"] % failure["length"] == 0
        assert "gone" not in fault or failure["file"] == "/data/b.bin"


@pytest.mark.parametrize(
    ("rule", "api"),
    [
        (Rule("read", "fail", errno.EINTR, TWIN, 3, 4), "posix"),
        (Rule("write", "fail", errno.EINTR, TWIN, 3, 4), "posix"),
        (Rule("open", "fail", errno.EINTR, TWIN, 0, 2), "posix"),
        (Rule("close", "fail", errno.EINTR, TWIN), "posix"),
        (Rule("read", "stall", 200, TWIN, 3, 2), "posix"),
        (Rule("clock", "jump", 86400, "", 9), "posix"),
        (Rule("clock", "jump", -86400, "", 9, 5), "posix"),
        # A file that is open is used to the end.
        (Rule("read", "gone", 0, A, 3, 1), "posix"),
        (Rule("write", "gone", 0, f"{OUT}1.bin", 3, 1), "posix"),
        pytest.param(Rule("read", "gone", 0, A, 3, 1), "stdio", marks=pytest.mark.slow),
        pytest.param(Rule("write", "gone", 0, f"{OUT}1.bin", 3, 1), "stdio", marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_what_passes_is_survived(commands, folder, rule, api):
    ended = commands.run(run(folder, "--json", "--api", api), rule)
    assert ended.status == 0, ended.err
    document = ended.json()
    assert (document["failed"], document["short"], document["failures"]) == (0, 0, [])
    assert document["elapsed_s"] < 86400 / 2, "a clock that jumped is not the one that measures"
    assert rule.action != "gone" or not list((folder / "twin").rglob(Path(rule.path).name))


def test_an_error_at_the_last_close_fails_the_run(commands, folder):
    ended = commands.run(run(folder, "--json"), Rule("close", "fail", errno.EIO, OUT))
    assert (ended.status, ended.json()["close_errors"], ended.json()["failed"]) == (1, {"EIO": 2}, 0)
    (warning,) = (text for text in ended.json()["warnings"] if "at the close" in text)
    assert re.match(r"2 files, the first \S+/out/[01].bin, reported an error", warning)


@pytest.mark.parametrize(("call", "skip"), [("read", 40), ("open", 0)])
def test_an_hdf5_file_that_goes_is_used_on_or_named(commands, tmp_path, call, skip):
    source = tmp_path / "source.h5"
    with h5py.File(source, "w") as file:
        values = np.random.default_rng(1).integers(0, 1 << 60, (64, 512))
        file.create_dataset("x", data=values, chunks=(1, 512), compression="gzip")
    captured_application(tmp_path, source, [("x", slice(row, row + 1)) for row in range(64)]).path.rename(
        tmp_path / "source.capture"
    )
    (tmp_path / "twin").mkdir(exist_ok=True)
    assert commands.run(["stage", tmp_path / "source.capture", "--target", tmp_path / "twin"]).status == 0
    words = run(tmp_path, "--json", "--api", "hdf5", "--pace", "none")
    ended = commands.run(words, Rule(call, "gone", 0, "/twin/", skip, 1))
    assert not list((tmp_path / "twin").rglob("*.h5"))
    document = ended.json()
    assert (document["backends"], document["short"]) == (["hdf5"], 0)
    assert ended.status == (document["failed"] > 0) == (call == "open")
    assert {(each["file"], each["errno"]) for each in document["failures"]} <= {(str(source), "ENOENT")}


# --------------------------------------------------------------------------------------------------------- outputs

COMMANDS = {name: command for name, command in OUTPUT_COMMANDS.items() if name != "demo"}
"""The demo keeps what it has done in a folder of its own."""
ALIKE = ("regress --report xml", "regress --report md", "summary parquet", "export csv")
"""They write as others in the list do."""

WRITTEN = "/written/"
FAULTS = {
    "a disk that is full from the first byte on": Rule("write", "fail", errno.ENOSPC, WRITTEN),
    "a quota that is used up after some writes": Rule("write", "fail", errno.EDQUOT, WRITTEN, 2),
    "a disk that cannot write": Rule("write", "fail", errno.EIO, WRITTEN, 1),
    "a file system that became read-only": Rule("create", "fail", errno.EROFS, WRITTEN),
    "a name that cannot be given": Rule("rename", "fail", errno.ENOSPC, WRITTEN),
    "an error at the close": Rule("wclose", "fail", errno.EDQUOT, WRITTEN),
}
FIRST = next(iter(FAULTS))


def words(folder, command, place, *options):
    place.parent.mkdir(parents=True, exist_ok=True)
    return COMMANDS[command].line(folder / "source.capture", place, *options)


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        pytest.param(command, fault, marks=() if fault == FIRST and command not in ALIKE else pytest.mark.slow)
        for command in COMMANDS
        for fault in FAULTS
    ],
)
def test_no_output_is_left_that_is_not_whole(commands, folder, command, fault):
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
def test_a_limit_at_any_size_leaves_the_earlier_output(commands, folder, command):
    place = folder / "written" / COMMANDS[command].name

    def content():
        files = [place] if place.is_file() else [path for path in place.rglob("*") if path.is_file()]
        return {str(path): path.read_bytes() for path in files}

    assert commands.run(words(folder, command, place)).status == 0
    before, names = content(), sorted(place.parent.iterdir())
    for limit in (2000, 4000, 10_000):
        ended = commands.run(words(folder, command, place, "--force"), limits={"RLIMIT_FSIZE": limit})
        assert ended.status in (0, COMMANDS[command].refused), ended.err
        assert "Traceback" not in ended.err
        assert sorted(place.parent.iterdir()) == names
        # A job that ran is recorded as far as it got.
        job_ran = command == "record --logs" and "exit status of the job" in ended.err
        assert job_ran or not ended.status or content() == before


def test_an_output_that_cannot_be_synced_takes_no_place(commands, folder):
    ended = commands.run(run(folder), Rule("sync", "fail", errno.EIO, "capture.json"))
    assert ended.status == 2, ended
    assert "Input/output error" in ended.err
    assert sorted(path.name for path in folder.iterdir()) == ["source.capture", "twin"]


@pytest.mark.parametrize("skip", [0, 1, *(pytest.param(n, marks=pytest.mark.slow) for n in (5, 9))])
@pytest.mark.parametrize("fault", ["write ENOSPC", "write EIO", "close EDQUOT", "sync EIO", "rename EIO"])
def test_a_staging_that_failed_goes_on(commands, folder, fault, skip):
    call, code = fault.split()
    (folder / "new").mkdir(exist_ok=True)
    stage = ["stage", folder / "source.capture", "--target", folder / "new"]
    ended = commands.run(stage, Rule(call, "fail", getattr(errno, code), "/new", skip, 1))
    assert ended.status in (0, 2), ended.err
    assert "Traceback" not in ended.err
    assert not list((folder / "new").rglob("*.part"))
    if ended.status:
        assert str(folder / "new") in ended.err
        assert commands.run(stage).status == 0
    document = commands.run(["run", *stage[1:], "-o", folder / "r.capture", "--pace", "none", "--json"]).json()
    assert (document["failed"], document["short"]) == (0, 0)


# ---------------------------------------------------------------------------------------------------------- slowness


def test_a_slower_candidate_is_a_regression(commands, tmp_path):
    ops = [write(0, start_ns=2 * i, offset=4096 * i, length=4096) for i in range(5)]
    ops += [Op("sync", 0, start_ns=2 * i + 1) for i in range(5)]
    source = build_capture(tmp_path, ops=ops, files=["/a"], name="written").path
    reports = [tmp_path / name for name in ("junit.xml", "table.md", "page.html")]
    for name in ("quick", "slow"):
        (tmp_path / name).mkdir()
    words = ["regress", source, "--baseline", tmp_path / "quick", "--candidate", tmp_path / "slow", "--details"]
    words += ["--pace", "none", "--repeats", "6", *(word for place in reports for word in ("--report", place))]
    # 200 ms a run: far above what a busy machine adds to five small writes.
    found = commands.run(words, Rule("sync", "stall", 40, "/slow/"))
    assert found.status == 1, found.err
    assert re.match(r"The candidate is .* slower \(", found.out)
    for text in ("elapsed time *", "regression", "seed 1", "page cache"):
        assert text in found.out
    for place in reports[1:]:
        assert found.out.split(":")[0] in place.read_text(encoding="utf-8")
    assert xml.parse(reports[0]).getroot().attrib["failures"] == "1"
