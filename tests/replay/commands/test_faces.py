"""Each command line beside the program with the public interface that it stands for: both give the same answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from replay import interface as dxt_replay
from replay.commands.export import FORMATS
from replay.commands.main import main
from tests.capture_builder import Span, build_capture, read, write

Program = Callable[[Path], Any]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Holds `source.capture`, its twin and a replay of it, `replay.capture`."""
    source = build_capture(
        tmp_path,
        name="source",
        files=["/data/a", "/data/b"],
        ops=[
            read(0, length=4096, start_ns=10_000),
            read(1, length=100, start_ns=60_000, rank=1),
            write(0, length=10, start_ns=1_000_000),
        ],
        spans=[Span("step", 0, 2_000_000, step=0)],
    )
    dxt_replay.stage(source, tmp_path / "twin")
    dxt_replay.run(source, tmp_path / "twin", tmp_path / "replay.capture")
    return tmp_path


def answer(capsys: pytest.CaptureFixture[str], folder: Path, line: str) -> dict[str, Any]:
    """What `dxt-replay LINE --json` prints, where names of the line that hold a dot or `twin` are in `folder`."""
    words = [str(folder / word) if "." in word or word.startswith("twin") else word for word in line.split()]
    capsys.readouterr()
    assert main([*words, "--json"]) in (0, 1), capsys.readouterr().err
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert document.pop("schema_version") == 1
    return document


@pytest.mark.parametrize(
    ("line", "program"),
    [
        ("summary source.capture", lambda at: dxt_replay.summary(at / "source.capture")),
        (
            "summary source.capture --ranks 1",
            lambda at: dxt_replay.summary(dxt_replay.part(at / "source.capture", ranks="1")),
        ),
        (
            "summary source.capture --op read --path */a",
            lambda at: dxt_replay.summary(dxt_replay.part(at / "source.capture", operations=["read"], paths=["*/a"])),
        ),
        (
            "compare source.capture replay.capture",
            lambda at: dxt_replay.compare(at / "source.capture", at / "replay.capture"),
        ),
        (
            "compare source.capture replay.capture --fail-under 1",
            lambda at: dxt_replay.compare(
                at / "source.capture", at / "replay.capture", dxt_replay.Thresholds(fail_under=1)
            ),
        ),
        (
            "stage source.capture --target twin2 --dry-run",
            lambda at: dxt_replay.stage(at / "source.capture", at / "twin2", dry_run=True),
        ),
        (
            "stage source.capture --target twin",
            lambda at: dxt_replay.stage(at / "source.capture", at / "twin"),
        ),
        (
            "report source.capture replay.capture -o page.html --force",
            lambda at: dxt_replay.report(
                at / "source.capture", at / "replay.capture", output=at / "page.html", force=True
            ),
        ),
        *(
            (
                f"export source.capture --to {to} -o out.{suffix} --force",
                lambda at, to=to, suffix=suffix: dxt_replay.export(
                    at / "source.capture", to, at / f"out.{suffix}", force=True
                ),
            )
            for to, suffix in (("darshan", "darshan"), ("chrome", "json.gz"), ("csv", "csv"))
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_command_answers_as_its_program_does(
    line: str, program: Program, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = json.loads(json.dumps(program(folder).as_json()))
    shown = answer(capsys, folder, line)
    for document in (said, shown):
        document.pop("free_bytes", None)
    assert shown == said


def test_merge_answers_as_its_program_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sources = dxt_replay.sample("imagenet")
    merged = dxt_replay.merge(sources.log, tmp_path / "a.capture", profiles=sources.profiles, align="wall")
    profiles = " ".join(f"--profile {path}" for path in sources.profiles)
    shown = answer(capsys, tmp_path, f"merge {sources.log} {profiles} --align wall -o b.capture")
    assert {**shown, "capture": ""} == {**json.loads(json.dumps(merged.as_json())), "capture": ""}


def test_run_answers_as_its_program_does(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = dxt_replay.run(folder / "source.capture", folder / "twin", folder / "b.capture", pace="none").as_json()
    shown = answer(capsys, folder, "run source.capture --target twin --pace none -o c.capture")
    assert shown.keys() == done.keys()
    for name in ("pace", "operations", "failed", "bytes"):
        assert shown[name] == done[name]


def test_regress_answers_as_its_program_does(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = dxt_replay.regress(
        folder / "source.capture", folder / "twin", folder / "twin", repeats=2, warmup=0, pace="none", seed=1
    ).as_json()
    shown = answer(
        capsys,
        folder,
        "regress source.capture --baseline twin --candidate twin --repeats 2 --warmup 0 --pace none --seed 1",
    )
    assert shown.keys() == done.keys()
    for name in ("verdict", "order", "pace", "seed"):
        assert shown.get(name) == done.get(name)


def test_the_formats_are_those_of_the_interface() -> None:
    assert FORMATS == dxt_replay.FORMATS
