"""What the commands print, at 80 and 120 columns; `summary` has such tests of its own in `tests/replay/show`.

The captures are the bundled imagenet and, for `compare`, a small run and two replays of it that the test makes: of a
replay on the spot every figure would differ (`test_results.py` has the output of `run` and `regress`). Folders, rates
and sizes of compressed files are masked. After a wanted change: run with GOLDEN=write in the environment, and read the
difference.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from dxt_replay.replay.commands.main import main
from dxt_replay.traces.samples import sample
from tests.capture_builder import Op, Span, build_capture, read
from tests.golden.golden_file import check_golden

MS = 1_000_000
STEPS = 40

CASES: Mapping[str, tuple[int, Sequence[str]]] = {
    "generate": (
        0,
        (
            "generate",
            "default",
            "reader.batchsize=3",
            "--reading",
            "head",
            "--ranks",
            "2",
            "-o",
            "w.capture",
            "--force",
        ),
    ),
    "generate-list": (0, ("generate", "--list")),
    "merge": (0, ("merge", "LOG", "--profile", "PROFILES", "-o", "again.capture", "--force")),
    "merge-no-profile": (0, ("merge", "LOG", "-o", "bare.capture", "--force")),
    "stage-dry": (0, ("stage", "run.capture", "--target", "absent", "--dry-run")),
    "stage-again": (0, ("stage", "run.capture", "--target", "twin")),
    "summary-model": (0, ("summary", "run.capture", "--show", "model")),
    "report": (0, ("report", "run.capture", "-o", "page.html", "--force")),
    "export-chrome": (0, ("export", "run.capture", "--to", "chrome", "-o", "out.json.gz", "--force")),
    "export-csv": (0, ("export", "run.capture", "--to", "csv", "-o", "out.csv", "--force")),
    "export-darshan": (0, ("export", "run.capture", "--to", "darshan", "-o", "out.darshan", "--force")),
    "compare-itself": (0, ("compare", "source.capture", "source.capture")),
    "compare-as-fast": (0, ("compare", "source.capture", "as-fast.capture")),
    "compare-as-fast-details": (0, ("compare", "source.capture", "as-fast.capture", "--details")),
    "compare-slower": (0, ("compare", "source.capture", "slower.capture")),
    "compare-different": (0, ("compare", "run.capture", "source.capture", "--different-runs")),
    "error-unrelated": (2, ("compare", "run.capture", "source.capture")),
    "error-reversed": (2, ("compare", "as-fast.capture", "source.capture")),
    "error-no-capture": (2, ("summary", "absent.capture")),
    "error-no-capture-json": (2, ("summary", "absent.capture", "--json")),
    "error-no-target": (2, ("run", "run.capture", "--target", "absent", "-o", "replay.capture")),
    "error-exists": (2, ("merge", "LOG", "-o", "run.capture")),
    "error-time": (2, ("summary", "run.capture", "--part", "from=5x")),
    "error-rank": (2, ("summary", "run.capture", "--part", "ranks=7")),
    "error-choice": (2, ("run", "run.capture", "--target", "twin", "--pace", "fast")),
    "error-command": (2, ("sumary", "run.capture")),
}
"""Name of a golden file -> exit status and arguments; LOG and PROFILES stand for the files of the bundled job."""


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
    return [
        replace(
            op,
            start_ns=op.start_ns + late_ns,
            end_ns=op.start_ns + late_ns + latency_ns,
            due_ns=op.start_ns,
            result=op.length,
        )
        for op in recorded()
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
    status, arguments = CASES[case]
    job = sample("imagenet")
    given: list[str] = []
    for argument in arguments:
        if argument == "PROFILES":
            given += [str(job.profiles[0]), "--profile", str(job.profiles[1])]
        else:
            given.append(str(job.log) if argument == "LOG" else argument)
    assert main(given) == status
    printed = capfd.readouterr()
    check_golden(f"{case}-{columns}", masked(printed.out + printed.err, folder))
