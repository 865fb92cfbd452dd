"""Checks whether `regress --baseline RECORD` and `history` find a change that comes one night, and none before it.

An ext4 on a loop device is measured in many sessions, each a process of its own that writes a record. After some of
them one thing changes. The first record is an experiment in pairs; every later session is compared with it. Sessions
follow each other immediately, without the differences that a real night would add.

Needs root and loop devices, and leaves nothing behind. Exits 1 if a verdict or a change point is wrong.

    python -m benchmarks.regression_history [--before 6] [--after 3] [--runs 6] [--target DIR]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.file_systems.measuring import generate
from benchmarks.file_systems.mounted import Mounted, Storage, mounted, own_namespace
from benchmarks.slowed_storage import limited, run_command
from dxt_replay.traces.samples import sample

MB = 1_000_000
IN_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What changes one night. `limits`: of the device, before and after it; `read_ahead_kib`: of the device after it;
    `options`: of the replay."""

    name: str
    workload: str
    before: Mapping[str, int] = field(default_factory=dict)
    after: Mapping[str, int] = field(default_factory=dict)
    read_ahead_kib: int | None = None
    options: tuple[str, ...] = ()


CHANGES = (
    Change(name="nothing", workload="reading"),
    Change(name="rbps=10000000", workload="reading", after={"rbps": 10 * MB}),
    Change(
        name="read-ahead 128 to 0 KiB, riops=1000",
        workload="reading",
        before={"riops": 1000},
        after={"riops": 1000},
        read_ahead_kib=0,
    ),
    Change(name="rbps=5000000", workload="imagenet", after={"rbps": 5 * MB}, options=("--part", "steps=0-5")),
)


def measure(change: Change, capture: Path, scratch: Path, given: argparse.Namespace) -> dict[str, Any]:
    """The verdict of every session after the first, and the change points of all."""
    records = Path(tempfile.mkdtemp(prefix="records-", dir=scratch))
    verdicts = []
    with mounted(Storage(kind="ext4", read_ahead_kib=128), scratch) as side:
        for night in range(given.before + given.after):
            later = night >= given.before
            if later and change.read_ahead_kib is not None:
                _set_read_ahead(side, change.read_ahead_kib)
            with _group(side, change.after if later else change.before) as procs:
                verdicts.append(_session(change, capture, side.folder / "twin", records, night, given.runs, procs))
                print(f"{change.name}, session {night + 1}: {verdicts[-1]}", file=sys.stderr, flush=True)
    history = json.loads(run_command("history", str(records), "--json"))["series"][0]
    found = history["metrics"][history["primary"]]["changes"]
    earlier, later_ones = verdicts[1 : given.before], verdicts[given.before :]
    points = [one["at"] for one in found]
    real = bool(change.after != change.before or change.read_ahead_kib is not None)
    return {
        "change": change.name,
        "workload": change.workload,
        "false": sum(one in ("regression", "improvement") for one in earlier + ([] if real else later_ones)),
        "unchanged": len(earlier) + (0 if real else len(later_ones)),
        "found": later_ones.count("regression") if real else None,
        "changed": len(later_ones) if real else 0,
        "change_points": points,
        "expected": [given.before] if real else [],
        "ratio": found[0]["ratio"] if found else None,
        "named": history["records"][given.before]["differences"],
    }


def _session(
    change: Change, capture: Path, twin: Path, records: Path, night: int, runs: int, procs: Path | None
) -> str:
    """Measure once and keep the record; returns the verdict."""
    sides = ("--baseline", str(records / "000.json"), "--candidate", str(twin)) if night else (str(twin),)
    output = ("--record", str(records / f"{night:03d}.json"), "--json", "-q")
    words = ("regress", str(capture), *sides, *change.options, "--repeats", str(runs), *output)
    return str(json.loads(run_command(*words, procs=procs, statuses=(0, 1)))["verdict"])


def _group(side: Mounted, limits: Mapping[str, int]) -> AbstractContextManager[Path | None]:
    assert side.device is not None
    return limited({side.device: limits}) if limits else nullcontext()


def _set_read_ahead(side: Mounted, kib: int) -> None:
    Path("/sys/dev/block", str(side.device), "queue", "read_ahead_kb").write_text(str(kib), encoding="ascii")


def line(row: Mapping[str, Any]) -> str:
    """A row of the table in Markdown."""
    ratio = "-" if row["ratio"] is None else f"{row['ratio']:.2f} x"
    found = "-" if row["found"] is None else f"{row['found']} of {row['changed']}"
    points = ", ".join(f"{at + 1}" for at in row["change_points"]) or "none"
    named = "; ".join(row["named"]) or "nothing"
    cells = (row["workload"], row["change"], f"{row['false']} of {row['unchanged']}", found, points, ratio, named)
    return f"| {' | '.join(cells)} |"


HEAD = (
    "| capture | what changed | false alarms before it | sessions after it that are a regression | "
    "change points, session | size | named beside it |"
)


def main() -> int:
    """Measure and print: 0, or 1 if a change was missed or found without cause."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=int, default=6, help="sessions before the change")
    parser.add_argument("--after", type=int, default=3, help="sessions after it")
    parser.add_argument("--runs", type=int, default=6, help="of a session")
    parser.add_argument("--target", type=Path, default=IN_MEMORY, help="directory for the images  [default: /dev/shm]")
    given = parser.parse_args()
    own_namespace([sys.executable, "-m", "benchmarks.regression_history", *sys.argv[1:]])
    print(HEAD, "| --- " * HEAD.count(" |") + "|", sep="\n", flush=True)
    with tempfile.TemporaryDirectory(prefix="dxt-replay-history-", dir=given.target) as folder:
        captures = generate(Path(folder)) | {"imagenet": _imagenet(Path(folder))}
        rows = []
        for change in CHANGES:
            rows.append(measure(change, captures[change.workload], Path(folder), given))
            print(line(rows[-1]), flush=True)
    found = all(row["found"] in (None, row["changed"]) and row["change_points"] == row["expected"] for row in rows)
    return 0 if found and not any(row["false"] for row in rows) else 1


def _imagenet(scratch: Path) -> Path:
    job = sample("imagenet")
    profiles = [word for path in job.profiles for word in ("--profile", str(path))]
    run_command("merge", str(job.log), *profiles, "-o", str(scratch / "imagenet.capture"))
    return scratch / "imagenet.capture"


if __name__ == "__main__":
    sys.exit(main())
