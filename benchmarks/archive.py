"""A centre's archive: `python -m benchmarks.archive LOGS [--copies 1 10] [--workers N]`.

All Darshan logs below LOGS are copied, each copy into a folder of its own, and the archive is merged (`merge --each`),
merged again (nothing to do), and summarised (`summary DIR`: the captures, then the logs). It reports the time, the CPU
time and the memory of all processes. Peer, in the same run: some of the logs, each by a command of its own, start
included. The lines of all copies must be equal except for names.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.measured_command import measured_command
from dxt_replay.traces.units import format_bytes
from dxt_replay.traces.workers.workers import processors

COPIES = (1, 10)
SINGLE = 20
"""Number of logs that are merged and summarised by commands of their own."""

COMMANDS = {
    "merge --each": ("merge", "--each", "{logs}", "-o", "{captures}", "--json"),
    "the same again": ("merge", "--each", "{logs}", "-o", "{captures}", "--json"),
    "summary of captures": ("summary", "{captures}", "--csv", "{folder}/captures.csv"),
    "summary of logs": ("summary", "{logs}", "--csv", "{folder}/logs.csv"),
}
"""Name of a measurement -> arguments of `dxt-replay`."""


def measure(source: Path, copies: Sequence[int], workers: int, folder: Path | None = None) -> dict[str, Any]:
    """Rows of a table for each number of copies, and the CPU seconds of a log by commands of its own.

    `folder`: where the temporary directory is made. Raises: RuntimeError if a command fails, or if the lines of two
    copies differ.
    """
    rows = []
    for count in copies:
        with tempfile.TemporaryDirectory(prefix="dxt-replay-archive-", dir=folder) as name:
            rows += _measured(source, count, workers, Path(name))
    return {"workers": workers, "rows": rows, "one_by_one": _one_by_one(source, folder)}


def _measured(source: Path, copies: int, workers: int, folder: Path) -> list[dict[str, Any]]:
    for copy in range(copies):
        shutil.copytree(source, folder / "logs" / f"{copy:03d}")
    logs = sum(1 for _ in (folder / "logs").rglob("*.darshan"))
    places = {"logs": f"{folder}/logs", "captures": f"{folder}/captures", "folder": str(folder)}
    rows = []
    for what, command in COMMANDS.items():
        found = measured_command([*(word.format(**places) for word in command), "--workers", str(workers)])
        rows.append({
            "copies": copies, "logs": logs, "what": what, "wall_s": found.wall_s, "cpu_s": found.cpu_s,
            "peak_bytes": found.peak_bytes,
        })  # fmt: skip
    for kind in ("captures", "logs"):
        rows[-2 if kind == "captures" else -1]["jobs"] = _jobs(folder / f"{kind}.csv", copies)
    return rows


def _jobs(table: Path, copies: int) -> int:
    """Lines of a table of jobs. Raises: RuntimeError if the copies have different lines."""
    lines: dict[str, list[tuple[str, ...]]] = {}
    with table.open(newline="") as file:
        for row in csv.DictReader(file):
            copy, _, name = row.pop("name").rpartition("logs/")[2].partition("/")
            lines.setdefault(copy, []).append((name, *row.values()))
    if len(lines) != copies or len({tuple(sorted(each)) for each in lines.values()}) != 1:
        raise RuntimeError(f"{table.name}: the copies of the archive do not have the same lines")
    return sum(len(each) for each in lines.values())


def _one_by_one(source: Path, folder: Path | None) -> dict[str, float]:
    """Mean CPU seconds of a log that is merged and summarised by commands of its own."""
    logs = sorted(source.rglob("*.darshan"))
    logs = logs[:: max(1, len(logs) // SINGLE)][:SINGLE]
    merged = summarised = 0.0
    with tempfile.TemporaryDirectory(prefix="dxt-replay-archive-", dir=folder) as name:
        for number, log in enumerate(logs):
            capture = f"{name}/{number}.capture"
            merged += measured_command(["merge", str(log), "-o", capture]).cpu_s
            summarised += measured_command(["summary", capture]).cpu_s
    return {"logs": len(logs), "merge_s": merged / len(logs), "summary_s": summarised / len(logs)}


def table(result: dict[str, Any]) -> str:
    """The result as a table for people."""
    lines = [
        "| logs | command | jobs | wall | CPU | CPU a log | peak memory |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['logs']:,d} | {row['what']} | {row.get('jobs', '')} | {row['wall_s']:.1f} s | {row['cpu_s']:.1f} s "
        f"| {1e3 * row['cpu_s'] / row['logs']:.0f} ms | {format_bytes(row['peak_bytes'])} |"
        for row in result["rows"]
    ]
    single = result["one_by_one"]
    lines += [
        "",
        f"{result['workers']} workers. By commands of its own a log takes {1e3 * single['merge_s']:.0f} ms of CPU "
        f"to merge and {1e3 * single['summary_s']:.0f} ms to summarise (mean of {single['logs']} of the logs).",
    ]
    return "\n".join(lines)


def main() -> int:
    """Print the result; 0, or an error if an output is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("logs", type=Path)
    parser.add_argument("--copies", type=int, nargs="+", default=COPIES)
    parser.add_argument("--workers", type=int, default=processors())
    parser.add_argument("--folder", type=Path, help="where the temporary directory is made")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    result = measure(arguments.logs, arguments.copies, arguments.workers, arguments.folder)
    print(json.dumps(result) if arguments.json else table(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
