"""A capture in, the first sentence of each command out: doubt comes first, and in the same words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dxt_replay.replay.commands.main import main
from dxt_replay.traces.schema import BETWEEN_STEPS, CaptureInfo, Coverage, Job, Unseen
from tests.capture_builder import Span, build_capture, read

MS = 1_000_000
STEPS, STEP_MS = 40, 100
WHOLE = Coverage(bytes=1.0, operations=1.0)


def job(
    folder: Path, *, wait_ms: int, read_ms: tuple[int, int], wait: str = "next", length: int = 4096, **recorded: Any
) -> Path:
    """Each step waits for its batch, then does something else; one read from `read_ms` on, for the second number of
    milliseconds. recorded: `cpu_pct`, of the loop's thread, `made_pct`, of the waits; `coverage`."""
    spans, ops = [], []
    for step in range(STEPS):
        begin = step * STEP_MS * MS
        spans += [
            Span("step", start_ns=begin, end_ns=begin + STEP_MS * MS, step=step),
            *[Span("input_wait", start_ns=begin, end_ns=begin + wait_ms * MS, step=step, name=wait)] * (wait_ms > 0),
        ]
        start = begin + read_ms[0] * MS
        end = start + read_ms[1] * MS
        ops.append(read(0, offset=4096 * step, length=length, start_ns=start, end_ns=end, step=step))
    made_by: dict[str, Any] = {"program": "dxt-replay", "command": "merge", "operations_stored": STEPS}
    if "made_pct" in recorded:
        loop, waited = STEPS * STEP_MS * MS, STEPS * wait_ms * MS
        marks = {"rank": 0, "loop_ns": loop, "cpu_ns": loop * recorded.get("cpu_pct", 0) // 100, "device_ns": 0}
        made_by["marks"] = [{**marks, "wait_ns": waited, "made_ns": waited * recorded["made_pct"] // 100}]
    info = CaptureInfo(
        job=Job(nprocs=1, run_time_s=5.0),
        ranks=(0,),
        made_by=made_by,
        coverage=recorded.get("coverage", WHOLE),
    )
    return build_capture(folder, files=["/data/a"], ops=ops, spans=spans, info=info).path


UNKNOWN = "How long this training takes on other storage is not known"
MAPPED = Coverage(bytes=None, operations=1.0, unseen=(Unseen(kind="mapped", name="/data/m", bytes=None),))

CASES = {
    "its reads explain its waits": ({"wait_ms": 60, "read_ms": (0, 60), "made_pct": 1}, "known", "Storage limits"),
    "recorded threads compute in its waits": (
        {"wait_ms": 60, "read_ms": (0, 1), "made_pct": 95},
        "known",
        "Training waits for input to be prepared.",
    ),
    "no processor time was recorded": (
        {"wait_ms": 60, "read_ms": (0, 1)},
        "known",
        "What else training waits for is not known",
    ),
    "nothing explains its waits": (
        {"wait_ms": 80, "read_ms": (0, 1), "made_pct": 1},
        "not known",
        "on other storage is not known: training waits for input during 78 %",
    ),
    "nothing explains a part of its waits": (
        {"wait_ms": 40, "read_ms": (0, 5), "made_pct": 10},
        "bounded",
        "on other storage is known within bounds only: training waits for input during",
    ),
    "its steps fetch their own batch": (
        {"wait_ms": 1, "read_ms": (10, 80), "wait": BETWEEN_STEPS, "made_pct": 0, "cpu_pct": 10},
        "not known",
        "steps that fetch their own batch hide it; mark the fetch. Storage cost at most 3.600 s, 90.0 % of the loop's",
    ),
    "page faults were not traced": (
        {"wait_ms": 60, "read_ms": (0, 60), "coverage": MAPPED},
        "not known",
        "on other storage is not known: 1 file was opened and never read by a call",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_all_commands_begin_with_the_same_doubt(tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str) -> None:
    given, state, words = CASES[case]
    capture = job(tmp_path, **given)
    twin = tmp_path / "twin"
    twin.mkdir()
    twin.mkdir(exist_ok=True)
    assert main(["stage", str(capture), "--target", str(twin), "--quiet"]) == 0
    commands = {
        "summary": ["summary", str(capture)],
        "simulate": ["simulate", str(capture), "--storage", "null"],
        "transform": ["transform", str(capture), "--compute-speed", "2", "-o", str(tmp_path / "t.capture")],
        "run": [
            *("run", str(capture), "--target", str(twin), "--pace", "steps", "--speed", "100"),
            *("-o", str(tmp_path / "r.capture")),
        ],
    }
    said, doubts = {}, {}
    for name, command in commands.items():
        capsys.readouterr()
        assert main(command) == 0
        said[name] = " ".join(capsys.readouterr().out.split())
        assert main([*command, "--json", *(["--force"] if name in ("transform", "run") else [])]) == 0
        found = json.loads(capsys.readouterr().out)
        doubts[name] = (found["storage_limit"] if name == "summary" else found)["doubt"]
    assert words in said["summary"]
    assert doubts["summary"]["state"] == state
    assert all(found == doubts["summary"] for found in doubts.values())
    first = said["summary"].partition(". ")[0]
    begins = {name: text.startswith("How long this training takes on other storage") for name, text in said.items()}
    assert set(begins.values()) == {state != "known"}, said
    assert state == "known" or all(text.startswith(first) for text in said.values())


def test_a_loop_that_shows_no_waits_is_doubted_where_its_reads_would_last(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """So small a part of the recorded loop hides nothing; on slow storage, or at a higher speed, it may."""
    capture, slow = str(job(tmp_path, wait_ms=0, read_ms=(0, 1), length=1 << 22)), tmp_path / "slow.yaml"
    slow.write_text("storage_model: 1\nname: slow\noperations:\n  read: {latency: 50ms, bandwidth: 1GB/s}\n")
    (tmp_path / "twin").mkdir()
    assert main(["stage", capture, "--target", str(tmp_path / "twin"), "--quiet"]) == 0
    run = ["run", capture, "--target", str(tmp_path / "twin"), "--pace", "steps", "--force", "-o", str(tmp_path / "r")]
    simulate = ["simulate", capture, "--storage"]
    for words, doubted in (
        ([*simulate, "null"], False),
        ([*simulate, str(slow)], True),
        (run, False),
        ([*run, "--speed", "100000"], True),
    ):
        capsys.readouterr()
        assert main(words) == 0
        said = " ".join(capsys.readouterr().out.split())
        assert said.startswith(f"{UNKNOWN}: reads last up to ") == doubted


def test_what_transform_writes_is_no_firmer_than_its_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capture, changed = job(tmp_path, wait_ms=80, read_ms=(0, 1), made_pct=1), tmp_path / "t.capture"
    assert main(["transform", str(capture), "--readers", "2", "-o", str(changed)]) == 0
    capsys.readouterr()
    assert main(["summary", str(changed)]) == 0
    assert capsys.readouterr().out.startswith(UNKNOWN)
