"""What the commands print, at 80 and 120 columns.

The captures are the bundled imagenet and, for `compare`, a small run and two replays of it that the test makes: of a
replay on the spot every figure would differ (`test_results.py` has the output of `run` and `regress`). Folders, rates
and sizes of compressed files are masked. After a wanted change: run with GOLDEN=write in the environment, and read the
difference.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from dxt_replay.replay.commands.main import main
from dxt_replay.traces.samples import sample
from tests.capture_builder import Op, Span, build_capture, read
from tests.golden.golden_file import check_golden

MS = 1_000_000
STEPS = 40

CASES: Mapping[str, str] = {
    "generate": "generate default reader.batchsize=3 --ranks 2 -o w.capture --force",
    "generate-list": "generate --list",
    "merge": "merge LOG --profile PROFILE --profile PROFILE -o again.capture --force",
    "merge-no-profile": "merge LOG -o bare.capture --force",
    "stage-dry": "stage run.capture --target absent --dry-run",
    "stage-again": "stage run.capture --target twin",
    "summary": "summary run.capture",
    "summary-by-file": "summary run.capture --by file",
    "summary-findings": "summary run.capture --show findings",
    "summary-timeline": "summary run.capture --show timeline",
    "summary-tables": "summary run.capture --show overlap --show steps --show sizes --show files --show ranks",
    "summary-model": "summary run.capture --show model",
    "report": "report run.capture -o page.html --force",
    "export-chrome": "export run.capture --to chrome -o out.json.gz --force",
    "export-csv": "export run.capture --to csv -o out.csv --force",
    "export-darshan": "export run.capture --to darshan -o out.darshan --force",
    "compare-itself": "compare source.capture source.capture",
    "compare-as-fast": "compare source.capture as-fast.capture",
    "compare-as-fast-details": "compare source.capture as-fast.capture --details",
    "compare-slower": "compare source.capture slower.capture",
    "compare-different": "compare run.capture source.capture --different-runs",
    "error-unrelated": "compare run.capture source.capture",
    "error-reversed": "compare as-fast.capture source.capture",
    "error-no-capture": "summary absent.capture",
    "error-no-capture-json": "summary absent.capture --json",
    "error-no-target": "run run.capture --target absent -o replay.capture",
    "error-exists": "merge LOG -o run.capture",
    "error-time": "summary run.capture --part from=5x",
    "error-rank": "summary run.capture --part ranks=7",
    "error-choice": "run run.capture --target twin --pace fast",
    "error-command": "sumary run.capture",
}
"""Name of a golden file -> command, which exits 2 where the name says so; LOG and PROFILE: files of the bundled job."""


def recorded() -> list[Op]:
    """Four reads of 64 KiB in 5 ms each at the begin of every step, by two lanes."""
    ops = []
    for step in range(STEPS):
        for number in range(4):
            start = step * 100 * MS + number * 6 * MS
            place = (4 * step + number) << 16
            ops.append(read(0, lane=number % 2, offset=place, length=1 << 16, start_ns=start, end_ns=start + 5 * MS))
    return ops


def spans() -> list[Span]:
    found = []
    for step in range(STEPS):
        begin = step * 100 * MS
        found.append(Span("step", start_ns=begin, end_ns=begin + 98 * MS, step=step))
        found.append(Span("compute", start_ns=begin + 30 * MS, end_ns=begin + 95 * MS, step=step))
    return found


def replayed(latency_ns: int, late_ns: int = 20_000) -> list[Op]:
    """The recorded operations 20 us late, each as long as given."""
    starts = [(op, op.start_ns + late_ns) for op in recorded()]
    return [
        replace(op, start_ns=start, end_ns=start + latency_ns, due_ns=op.start_ns, result=op.length)
        for op, start in starts
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory with the captures that the cases name, and a staged twin."""
    place = tmp_path_factory.mktemp("golden")
    job = sample("imagenet")
    profiles = [argument for path in job.profiles for argument in ("--profile", str(path))]
    assert main(["-q", "merge", str(job.log), *profiles, "-o", str(place / "run.capture")]) == 0
    (place / "twin").mkdir()
    assert main(["-q", "stage", str(place / "run.capture"), "--target", str(place / "twin")]) == 0
    source = build_capture(place, files=["/data/train.bin"], ops=recorded(), spans=spans(), name="source")
    for name, latency_ns in (("as-fast", 5 * MS), ("slower", 9 * MS)):
        build_capture(
            place, files=["/data/train.bin"], ops=replayed(latency_ns), spans=spans(), name=name, replay_of=source
        )
    return place


def masked(text: str, folder: Path) -> str:
    """Without what differs between runs and machines: folders, free space, rates, sizes of compressed files."""
    text = text.replace(str(folder), "FOLDER").replace(str(sample("imagenet").log.parent), "SAMPLE")
    text = re.sub(r"[\d.]+ [KMGT]iB( are)? free", r"SPACE\1 free", text)
    text = re.sub(r"(page\.html: |: 1 file, )[\d.]+ [KM]iB", r"\1SIZE", text)
    return re.sub(r"in [\d.]+ m?s, [\d,.]+ [KMG]iB/s", "in TIME, RATE", text)


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("case", CASES)
def test_what_is_printed(
    case: str, columns: int, folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.chdir(folder)
    job = sample("imagenet")
    profiles = map(str, job.profiles)
    words = [next(profiles) if word == "PROFILE" else word.replace("LOG", str(job.log)) for word in CASES[case].split()]
    assert main(words) == (2 if case.startswith("error") else 0)
    printed = capfd.readouterr()
    if case.startswith("summary"):
        assert max(map(len, printed.out.splitlines())) <= columns
    check_golden(f"{case}-{columns}", masked(printed.out + printed.err, folder))
