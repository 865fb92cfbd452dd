"""The benchmarks of the hot loops, one after the other: a table, and a JSON file each in benchmarks/results/.

Each is a set of ratios against a peer measured in the same run; absolute figures depend on the machine and its load.
`benchmarks.scale_table` measures the commands.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks import decoders, issue_loop, timed_accuracy

BENCHMARKS = {"decoders": decoders, "issue_loop": issue_loop, "timed_accuracy": timed_accuracy}
RESULTS = Path(__file__).parent / "results"


def main(names: list[str]) -> int:
    """Run the named benchmarks, all of them when none is named."""
    if unknown := set(names) - set(BENCHMARKS):
        print(f"{unknown} are no benchmarks: choose from {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    RESULTS.mkdir(exist_ok=True)
    for name in names or BENCHMARKS:
        result = BENCHMARKS[name].measure()
        print(f"\n{name}\n{BENCHMARKS[name].table(result)}", flush=True)
        (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
