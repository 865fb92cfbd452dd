"""Calls of a run that fail or move too little: counted, named, and status 1; what succeeds at last is no failure."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.replay.faults.injection import Commands, Rule
from tests.replay.faults.test_hanging_calls import run

TWIN = "-twin/"

FAILING = {
    "EIO of a read": (Rule(call="read", action="fail", number=errno.EIO, path=TWIN, skip=9, count=3), "read"),
    "ESTALE of a read": (Rule(call="read", action="fail", number=errno.ESTALE, path=TWIN, skip=9, count=1), "read"),
    "ENOSPC of a write": (Rule(call="write", action="fail", number=errno.ENOSPC, path=TWIN, skip=3), "write"),
    "EDQUOT of a write": (Rule(call="write", action="fail", number=errno.EDQUOT, path=TWIN, count=1), "write"),
    "EROFS of an open": (Rule(call="open", action="fail", number=errno.EROFS, path=f"{TWIN}out"), "write"),
    "ESTALE of an open": (Rule(call="open", action="fail", number=errno.ESTALE, path="data/a.bin"), "read"),
}

BOTH = pytest.mark.parametrize("api", ["posix", pytest.param("stdio", marks=pytest.mark.slow)])


@BOTH
@pytest.mark.parametrize("fault", FAILING)
def test_a_failed_call_is_named(commands: Commands, folder: Path, fault: str, api: str) -> None:
    rule, operation = FAILING[fault]
    ended = commands.run(run(folder, "--json", "--pace", "none", "--api", api), rule)
    assert ended.status == 1, ended.err
    document = ended.json()
    name = errno.errorcode[rule.number]
    assert document["errors"] == {name: document["failed"]}
    assert document["failed"] >= (rule.count or 1)
    for failure in document["failures"]:
        assert (failure["operation"], failure["errno"], failure["moved"]) == (operation, name, 0)
        assert failure["rank"] in (0, 1)
        assert failure["file"] in ("/data/a.bin", "/data/b.bin", "/out/0.bin", "/out/1.bin")
        assert failure["offset"] % failure["length"] == 0
    assert len(document["failures"]) == min(document["failed"], 20)


def test_a_failed_call_is_printed_with_its_place(commands: Commands, folder: Path) -> None:
    ended = commands.run(run(folder, "--pace", "none"), FAILING["EIO of a read"][0])
    assert ended.status == 1
    assert ended.out.startswith("FAILED: replayed 100 operations")
    assert "Failed operations" in ended.out
    assert "EIO" in ended.out.split("Failed operations")[1]


@BOTH
@pytest.mark.parametrize(
    ("rule", "operation"),
    [
        (Rule(call="read", action="short", number=100, path=TWIN, skip=9, count=2), "read"),
        (Rule(call="write", action="short", number=100, path=TWIN, skip=5, count=2), "write"),
        (Rule(call="read", action="cut", number=1000, path=f"{TWIN}data/b.bin", skip=9, count=1), "read"),
    ],
    ids=["short reads", "short writes", "a file truncated under the run"],
)
def test_a_transfer_of_too_few_bytes_is_named(
    commands: Commands, folder: Path, rule: Rule, operation: str, api: str
) -> None:
    ended = commands.run(run(folder, "--json", "--pace", "none", "--api", api), rule)
    assert ended.status == 1, ended.err
    document = ended.json()
    assert document["short"] >= 1
    assert {(each["operation"], each["errno"]) for each in document["failures"]} == {(operation, None)}
    assert all(each["moved"] < each["length"] for each in document["failures"])


@pytest.mark.parametrize(
    "rule",
    [
        Rule(call="read", action="fail", number=errno.EINTR, path=TWIN, skip=3, count=4),
        Rule(call="write", action="fail", number=errno.EINTR, path=TWIN, skip=3, count=4),
        Rule(call="open", action="fail", number=errno.EINTR, path=TWIN, count=2),
        Rule(call="close", action="fail", number=errno.EINTR, path=TWIN),
        Rule(call="read", action="stall", number=200, path=TWIN, skip=3, count=2),
        Rule(call="clock", action="jump", number=86400, skip=9),
        Rule(call="clock", action="jump", number=-86400, skip=9, count=5),
    ],
    ids=str,
)
def test_what_passes_is_survived(commands: Commands, folder: Path, rule: Rule) -> None:
    ended = commands.run(run(folder, "--json"), rule)
    assert ended.status == 0, ended.err
    document = ended.json()
    assert (document["failed"], document["short"], document["failures"]) == (0, 0, [])
    assert document["elapsed_s"] < 86400 / 2, "a clock that jumped is not the one that measures"


def test_an_error_at_the_last_close_fails_the_run(commands: Commands, folder: Path) -> None:
    ended = commands.run(
        run(folder, "--json"), Rule(call="close", action="fail", number=errno.EIO, path=f"{TWIN}out/1.bin")
    )
    assert ended.status == 1
    assert ended.json()["close_errors"] == {"EIO": 1}
    assert "/out/1.bin" in " ".join(ended.json()["warnings"])
