"""Merging one large rank: time and memory against its operations, in stretches of time and in memory.

    python -m benchmarks.large_rank [--operations 250e3 500e3] [--in-memory 250e3] [--json]

A log of one rank, which reads four files at once, with thread ids and without. It is merged in stretches; the peer is
the merge of the same log that holds all of the rank in memory, for the sizes of --in-memory. The logs of 50 million
operations have 0.4 GB each, and the files of their merge 6 GB. Reported is CPU time, which other load disturbs least.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.large_log import MODULE_VERSION, write_large_log
from benchmarks.measured_child import measured_child
from dxt_replay.traces.units import format_bytes

OPERATIONS = (250_000, 500_000)
IN_MEMORY = (250_000,)
"""Sizes that take seconds; the requirement is for 50 million operations."""

MOST_BYTES = 1_000_000_000
"""Memory that a merge of one rank may take, whatever its operations."""

_IN_STRETCHES, _WHOLE = 1, 1 << 62
_MERGE = """
from pathlib import Path
from dxt_replay.profiler_merge.merge import merge
from dxt_replay.profiler_merge.merge_options import MergeOptions
def run(path):
    options = MergeOptions(rank_segments={segments}, force=True)
    return merge([Path(path)], [], Path(path).with_suffix(".capture"), options).operations
"""


def measure(
    operations: Sequence[int] = OPERATIONS, in_memory: Sequence[int] = IN_MEMORY, folder: Path | None = None
) -> dict[str, Any]:
    """`runs`: CPU seconds, peak memory and its part that grew, for each size, with thread ids and without.

    Raises: RuntimeError when a merge fails or does not keep every operation.
    """
    runs = [
        _merged(count, threads=threads, stretches=stretches, folder=folder)
        for threads in (True, False)
        for stretches, sizes in ((True, operations), (False, in_memory))
        for count in sizes
    ]
    peak = max(run["peak_bytes"] for run in runs if run["stretches"])
    return {"required": {"peak_bytes": MOST_BYTES}, "runs": runs, "passed": peak < MOST_BYTES}


def _merged(count: int, *, threads: bool, stretches: bool, folder: Path | None) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="dxt-replay-bench-", dir=folder) as name:
        log = Path(name) / "rank.darshan"
        written = write_large_log(log, count, 1, MODULE_VERSION if threads else 1)
        found = measured_child(_MERGE.format(segments=_IN_STRETCHES if stretches else _WHOLE), log)
    if found["rows"] != written:
        raise RuntimeError(f"{found['rows']:.0f} operations were merged, {written} are in the log")
    return {
        "operations": written,
        "threads": threads,
        "stretches": stretches,
        "cpu_s": found["cpu_s"],
        "wall_s": found["wall_s"],
        "us_per_operation": 1e6 * found["cpu_s"] / written,
        "peak_bytes": found["peak_bytes"],
        "grown_per_operation": (found["peak_bytes"] - found["start_bytes"]) / written,
    }


def table(result: dict[str, Any]) -> str:
    """The result as a table of Markdown."""
    lines = [
        "| operations | thread ids | merged | CPU s | us an operation | peak memory | of it, bytes an operation |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {run['operations']:,} | {'yes' if run['threads'] else 'no'} "
        f"| {'in stretches' if run['stretches'] else 'in memory'} | {run['cpu_s']:.1f} "
        f"| {run['us_per_operation']:.2f} | {format_bytes(run['peak_bytes'])} | {run['grown_per_operation']:.0f} |"
        for run in result["runs"]
    ]
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Print the table or JSON; exit status 1 where a rank takes more than MOST_BYTES."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operations", type=float, nargs="*", default=OPERATIONS, help="as in 1e6 10e6 50e6")
    parser.add_argument("--in-memory", type=float, nargs="*", default=IN_MEMORY, help="as in 1e6 10e6")
    parser.add_argument("--folder", type=Path, help="where there is room")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args(argv)
    result = measure(
        [int(count) for count in arguments.operations],
        [int(count) for count in arguments.in_memory],
        arguments.folder,
    )
    print(json.dumps(result, indent=2) if arguments.json else table(result))
    return 0 if result["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
