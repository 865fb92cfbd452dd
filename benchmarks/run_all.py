"""All benchmarks, one after the other: a table, and a JSON file each in benchmarks/results/.

Each is a set of ratios against a peer measured in the same run; absolute figures depend on the machine and its load.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks import (
    dxt_decode,
    generate_scale,
    issue_loop,
    kineto_decode,
    large_capture,
    many_files,
    many_ranks,
    simulate_speed,
    summary_scale,
    timed_accuracy,
    xplane_decode,
)

BENCHMARKS = {
    "dxt_decode": dxt_decode,
    "xplane_decode": xplane_decode,
    "kineto_decode": kineto_decode,
    "issue_loop": issue_loop,
    "timed_accuracy": timed_accuracy,
    "large_capture": large_capture,
    "many_ranks": many_ranks,
    "many_files": many_files,
    "simulate_speed": simulate_speed,
    "summary_scale": summary_scale,
    "generate_scale": generate_scale,
}
RESULTS = Path(__file__).parent / "results"


def main(names: list[str]) -> int:
    """Run the named benchmarks, all of them when none is named."""
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        print(f"{unknown[0]!r} is not a benchmark: choose from {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    RESULTS.mkdir(exist_ok=True)
    for name in names or BENCHMARKS:
        result = BENCHMARKS[name].measure()
        print(f"\n{name}")
        print(BENCHMARKS[name].table(result))
        (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
