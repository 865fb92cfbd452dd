"""What several processes gain: `python -m benchmarks.worker_speed [--operations N] [--workers N] [--commands A,B]`.

Each command runs on one process and on several, in turn, on the same generated capture or log, and its standard output
must be the same, and the captures that it writes. Reported are the times, the ratio, the ratio of the CPU time of one
process to that of the first and of the busiest other one, the CPU time of all processes, and the peak of their resident
memory together (sampled; pages that they share count for each). The machine must be idle: two processes on two
processors cannot gain what others use. The ratio by CPU is what an idle machine would show.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.large_log import write_large_log
from benchmarks.measured_command import Measured, measured_command
from benchmarks.summary_scale import generate
from dxt_replay.traces.units import format_bytes, format_count
from dxt_replay.traces.workers.workers import processors

OPERATIONS = 50_000_000
"""Enough that the start of the processes, a second of CPU time, does not decide."""

RANKS = 16
ROUNDS = 2
REQUIRED = 1.7
"""Ratio on two processors, at least."""

COMMANDS = {
    "merge": ("merge", "{log}", "-o", "{folder}/merged.capture", "--force"),
    "summary": ("summary", "{capture}", "--json"),
    "findings": ("summary", "{capture}", "--findings", "--json"),
    "report": ("report", "{capture}", "-o", "{folder}/page.html", "--force"),
    "compare": ("compare", "{capture}", "{capture}", "--different-runs", "--json"),
    **{
        name: ("export", "{capture}", "--to", name, "-o", "{folder}/exported" + suffix, "--force")
        for name, suffix in (("csv", ".csv"), ("chrome", ".json.gz"), ("darshan", ".darshan"))
    },
    "generate": ("generate", "resnet50_h100", "--ranks", "8", "-o", "{folder}/generated.capture", "--force"),
}
"""Name -> arguments of `dxt-replay`."""

WRITTEN = {"merge": "merged.capture", "generate": "generated.capture"}
"""The capture that a command writes in the folder: `capture.json` has the digests of all its files."""


def measure(
    names: Sequence[str], operations: int, workers: int, folder: Path | None = None, *, rounds: int = ROUNDS
) -> dict[str, float]:
    """By command, the best times of the rounds, their ratio, CPU time and peak memory.

    `folder`: where the temporary directory is made. Raises: RuntimeError for a command that fails, or whose output
    depends on the number of processes.
    """
    result: dict[str, float] = {"operations": operations, "workers": workers}
    with tempfile.TemporaryDirectory(prefix="worker-speed-", dir=folder) as name:
        places = {"capture": f"{name}/large.capture", "log": f"{name}/large.darshan", "folder": name}
        if any("{capture}" in COMMANDS[command] for command in names):
            generate(Path(places["capture"]), operations, RANKS)
        if "merge" in names:
            write_large_log(Path(places["log"]), operations, RANKS)
        for command in names:
            arguments = [word.format(**places) for word in COMMANDS[command]]
            runs: dict[int, list[Measured]] = {1: [], workers: []}
            outputs = set()
            for _ in range(rounds):
                for count, found in runs.items():
                    found.append(measured_command([*arguments, "--workers", str(count)]))
                    written = WRITTEN.get(command)
                    capture = Path(name, written, "capture.json").read_bytes() if written else b""
                    outputs.add((found[-1].printed, capture))
            if len(outputs) > 1:
                raise RuntimeError(f"{command}: the output depends on the number of processes")
            for label, count in (("one", 1), ("several", workers)):
                best = min(runs[count], key=lambda run: run.wall_s)
                result[f"{command}_{label}_wall_s"] = best.wall_s
                result[f"{command}_{label}_cpu_s"] = best.cpu_s
                result[f"{command}_{label}_peak_bytes"] = best.peak_bytes
            result[f"ratio_{command}"] = result[f"{command}_one_wall_s"] / result[f"{command}_several_wall_s"]
            apart = min(run.first_s + run.busiest_s for run in runs[workers])
            result[f"by_cpu_{command}"] = min(run.cpu_s for run in runs[1]) / apart
    return result


def table(result: dict[str, float]) -> str:
    """The result as a table for people."""
    workers = int(result["workers"])
    lines = [
        f"{format_count(int(result['operations']))} operations of {RANKS} ranks; 1 process and {workers}",
        f"{'':10}{'wall':>9}{'wall':>9}{'ratio':>8}{'by CPU':>8}{'CPU':>9}{'CPU':>9}{'resident':>11}{'resident':>11}",
    ]
    for name in (key.removeprefix("ratio_") for key in result if key.startswith("ratio_")):
        one, several = (
            [result[f"{name}_{side}_{what}"] for what in ("wall_s", "cpu_s", "peak_bytes")]
            for side in ("one", "several")
        )
        lines.append(
            f"{name:10}{one[0]:>7.2f} s{several[0]:>7.2f} s{result[f'ratio_{name}']:>8.2f}"
            f"{result[f'by_cpu_{name}']:>8.2f}{one[1]:>7.2f} s{several[1]:>7.2f} s"
            f"{format_bytes(one[2]):>11}{format_bytes(several[2]):>11}"
        )
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Print the table or JSON; exit status 1 where two processes on two processors gain less than REQUIRED."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operations", type=int, default=OPERATIONS, help="rows of the generated capture")
    parser.add_argument("--workers", type=int, default=processors(), help="processes beside the run on one")
    parser.add_argument("--commands", default=",".join(COMMANDS), help="some of them, as in summary,compare")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of which the best times count")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args(argv)
    result = measure(arguments.commands.split(","), arguments.operations, arguments.workers, rounds=arguments.rounds)
    print(json.dumps(result, indent=2) if arguments.json else table(result))
    return 0 if all(value >= REQUIRED for name, value in result.items() if name.startswith("ratio_")) else 1


if __name__ == "__main__":
    sys.exit(main())
