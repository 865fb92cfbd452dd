"""Speed and memory of generating captures: `python -m benchmarks.generate_scale [--ranks N,N,...] [--json]`.

The paper's ImageNet, 4 steps of 32 samples of 256 KB a rank whatever the number of ranks (an eighth of a file each),
and MLPerf Storage's resnet50 on 8 ranks, which is 2.8 million operations. Each runs in a child of its own, and CPU time
is counted. The measure is growth: time per rank, and peak memory, against the smallest number of ranks.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from benchmarks.measured_child import measured_child
from dxt_replay.traces.units import format_bytes, format_count

RANKS = (1024, 8192)
"""Numbers of ranks; 65,536 take about eight times as long as 8,192, so they are measured only on request."""

REQUIRED = {"operations_per_s": 2e5, "most_growth": 1.5}
"""Least operations per second of one large workload; largest time per rank relative to the smallest number of ranks."""

MOST_RESIDENT_BYTES = 1_000_000_000

_GENERATE = """
from pathlib import Path
from dxt_replay.workloads.generate.generation import generate
from dxt_replay.workloads.workload_source import read_workload
def run(path):
    workload = read_workload({name!r}, {overrides!r}, "documented").workload
    return generate(workload, {ranks}, Path(path)).operations
"""


def measure(ranks: tuple[int, ...] = RANKS, folder: Path | None = None) -> dict[str, float]:
    """CPU seconds, operations and peak resident bytes by number of ranks, and of one large workload.

    `folder`: where the temporary directory is made.
    """
    result: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="generate-scale-", dir=folder) as name:
        for count in ranks:
            overrides = (f"dataset.num_files_train={max(count // 8, 1)}",)
            setup = _GENERATE.format(name="paper_imagenet", overrides=overrides, ranks=count)
            found = measured_child(setup, Path(name) / f"{count}.capture")
            result[f"operations_{count}"] = found["rows"]
            result[f"ranks_per_s_{count}"] = count / found["cpu_s"]
            result[f"peak_bytes_{count}"] = found["peak_bytes"]
        setup = _GENERATE.format(name="resnet50_h100", overrides=(), ranks=8)
        found = measured_child(setup, Path(name) / "resnet50.capture")
        result["operations"] = found["rows"]
        result["operations_per_s"] = found["rows"] / found["cpu_s"]
        result["peak_bytes"] = found["peak_bytes"]
    rates = [result[f"ranks_per_s_{count}"] for count in ranks]
    result["most_growth"] = max(rates[0] / rate for rate in rates)
    return result


def table(result: dict[str, float]) -> str:
    """The result as a table for people."""
    lines = [f"{'':34}{'operations':>12}{'rate':>18}{'resident':>12}"]
    prefix = "peak_bytes_"
    counts = [int(name.removeprefix(prefix)) for name in result if name.startswith(prefix)]
    lines += [
        f"{format_count(count) + ' ranks of ImageNet':34}{format_count(int(result[f'operations_{count}'])):>12}"
        f"{result[f'ranks_per_s_{count}']:>12.0f} rank/s{format_bytes(result[f'peak_bytes_{count}']):>11}"
        for count in counts
    ]
    lines.append(
        f"{'resnet50 on 8 ranks':34}{format_count(int(result['operations'])):>12}"
        f"{result['operations_per_s'] / 1e6:>14.2f} M/s{format_bytes(result['peak_bytes']):>12}"
    )
    lines.append(f"time per rank grows at most {result['most_growth']:.2f} times (allowed: {REQUIRED['most_growth']})")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Print the table or JSON; exit status 1 when a requirement is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--ranks", default=",".join(map(str, RANKS)), help="numbers of ranks, as in 1024,8192,65536, smallest first"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args(argv)
    ranks = tuple(int(each) for each in arguments.ranks.split(","))
    result = measure(ranks)
    print(json.dumps(result, indent=2) if arguments.json else table(result))
    peaks = [value for name, value in result.items() if name.startswith("peak_bytes")]
    linear = result["most_growth"] <= REQUIRED["most_growth"]
    fast = result["operations_per_s"] >= REQUIRED["operations_per_s"]
    return 0 if linear and fast and max(peaks) < MOST_RESIDENT_BYTES else 1


if __name__ == "__main__":
    sys.exit(main())
