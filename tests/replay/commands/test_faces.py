"""Each command line beside the program with the public interface that it stands for: both give the same answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dxt_replay
from dxt_replay.replay.commands.main import main
from tests.capture_builder import Span, build_capture, read, write

Program = Callable[[Path], Any]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Holds `source.capture`, its twin and two replays of it, `replay.capture` and `again.capture`."""
    source = build_capture(
        tmp_path,
        name="source",
        files=["/data/a", "/data/b"],
        ops=[
            read(0, length=4096, start_ns=10_000),
            read(1, length=100, start_ns=60_000, rank=1),
            write(0, length=10, start_ns=1_000_000),
        ],
        spans=[Span("step", 0, 2_000_000, step=0, rank=rank) for rank in (0, 1)],
    )
    for name in ("twin", "twin3"):
        (tmp_path / name).mkdir()
    dxt_replay.stage(source, tmp_path / "twin")
    for name in ("replay", "again"):
        dxt_replay.run(source, tmp_path / "twin", tmp_path / f"{name}.capture")
    return tmp_path


def answer(capsys: pytest.CaptureFixture[str], folder: Path, line: str) -> dict[str, Any]:
    """What `dxt-replay LINE --json` prints, where names of the line that hold a dot or `twin` are in `folder`."""
    words = [
        str(folder / word) if "=" not in word and ("." in word or word[:4] == "twin") else word for word in line.split()
    ]
    capsys.readouterr()
    assert main([*words, "--json"]) in (0, 1), capsys.readouterr().err
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert document.pop("schema_version") == 1
    return document


@pytest.mark.parametrize(
    ("line", "program"),
    [
        ("summary source.capture", lambda at: dxt_replay.tables(at / "source.capture")),
        (
            "summary source.capture --part ranks=1",
            lambda at: dxt_replay.tables(dxt_replay.part(at / "source.capture", ranks="1")),
        ),
        (
            "compare source.capture replay.capture --floor replay.capture again.capture",
            lambda at: dxt_replay.compare(
                at / "source.capture", at / "replay.capture", floor=[(at / "replay.capture", at / "again.capture")]
            ),
        ),
        (
            "compare --floor replay.capture again.capture",
            lambda at: dxt_replay.noise_floor((at / "replay.capture", at / "again.capture")),
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


@pytest.mark.parametrize(
    ("line", "program"),
    [
        (
            "run source.capture --target twin --speed 2 --api stdio --cold -o A.capture",
            lambda at: dxt_replay.run(
                at / "source.capture", at / "twin", at / "a.capture",
                speed=2.0, api="stdio", cold=True,
            ),
        ),
        (
            "run source.capture --target twin --pace steps --compute spin --repeat 2 -o A.capture",
            lambda at: dxt_replay.run_repeatedly(
                at / "source.capture", at / "twin", at / "a.capture", 2, pace="steps", compute="spin"
            ),
        ),
        (
            "regress source.capture --baseline twin --candidate twin3 --repeats 6 --warm --pace none "
            "--part ranks=0 -o A.kept",
            lambda at: dxt_replay.regress(
                dxt_replay.part(at / "source.capture", ranks="0"), at / "twin", at / "twin3",
                repeats=6, cold=False, pace="none", output=at / "a.kept",
            ),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_a_replay_is_that_of_its_program(
    line: str, program: Program, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was chosen and what was done; times differ."""
    done = json.loads(json.dumps(program(folder).as_json()))
    shown = answer(capsys, folder, line)
    assert settings(shown) == settings(done)


CHOSEN = (
    "pace", "speed", "compute_speed", "io_speed", "operations", "bytes", "failed", "api", "direct", "lanes", "compute",
    "part", "repeats", "warmup", "seed", "order", "rule", "baseline", "candidate",
)  # fmt: skip


def settings(document: dict[str, Any]) -> list[dict[str, Any]]:
    """What does not differ between two replays: of the document and of each run in it; and the keys."""
    runs = [settings(run) for run in document.get("runs", ())]
    policy = document.get("cache", {}).get("policy")
    return [{key: document.get(key) for key in CHOSEN}, {"cache": policy}, {"keys": sorted(document)}, *runs]


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        (lambda at, log: dxt_replay.run(log, at / "twin", at / "replay.capture"), "exists"),
        (lambda at, log: dxt_replay.run_repeatedly(log, at / "twin", at / "a.capture", 2, api="x"), "api 'x'"),
        (lambda at, log: dxt_replay.run(log, at / "twin", at / "a.capture", speed=-1.0), "--speed -1"),
        (lambda at, log: dxt_replay.run(log, at / "twin", at / "a.capture", pace="steps"), "no training steps"),
        (lambda at, log: dxt_replay.regress(log, at / "twin", at / "twin", pace="now"), "pace 'now'"),
    ],
)
def test_what_can_be_refused_is_refused_before_a_log_is_read(
    refused: Callable[[Path, Path], Any], message: str, folder: Path
) -> None:
    """The log is damaged, which nobody comes to see."""
    log = folder / "job.darshan"
    log.write_bytes(b"damaged")
    with pytest.raises(dxt_replay.DxtReplayError, match=message):
        refused(folder, log)
