"""Merging logs of many ranks: time and memory against the number of ranks.

    python -m benchmarks.many_ranks [--ranks 250 500 1000] [--json]

One log holds all ranks, each of which reads three files of its own with 100 reads each. The peer of the largest log is
the smallest one of the same run: the time of a rank must stay what it is there. The peer of the smallest is pydarshan,
which decodes the segments of such a log (without thread ids, which it does not know) and does nothing else. Reported is
CPU time, which other load disturbs least.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.dxt_decode import PYDARSHAN
from benchmarks.measured_child import measured_child
from dxt_replay.traces.record_id import record_id
from dxt_replay.traces.units import format_bytes
from tests.darshan_writer import (
    DxtRecord,
    JobSpec,
    ModuleSpec,
    encode_counters,
    encode_dxt,
    posix_rows,
    segment_dtype,
    write_log,
)

RANKS = (250, 500, 1_000)
"""Ranks of the logs, ascending: few enough for continuous integration; the requirement is for 10,000."""

FILES_PER_RANK, READS_PER_FILE = 3, 100
READ_BYTES = 1 << 16
MOST_RATIO = 1.5
"""Largest ratio of the time per rank in the largest log to that in the smallest."""

_MERGE = """
from pathlib import Path
from dxt_replay.profiler_merge.merge import merge
def run(path):
    made = merge([Path(path)], [], Path(path).with_suffix(".capture"))
    return made.operations
"""


def measure(ranks: Sequence[int] = RANKS) -> dict[str, Any]:
    """CPU seconds, ms a rank and peak memory for each number of ranks, and the ratio of the last to the first.

    `pydarshan_ratio`: how many times as long pydarshan takes to decode the segments of the smallest log as it takes to
    merge it.
    Raises: RuntimeError when a merge fails or does not keep every operation.
    """
    with tempfile.TemporaryDirectory(prefix="dxt-replay-bench-") as name:
        sizes = [_merged(Path(name) / f"{count}.darshan", count) for count in ranks]
        decoded = _decoded(Path(name) / "peer.darshan", ranks[0])
    ratio = sizes[-1]["ms_per_rank"] / sizes[0]["ms_per_rank"]
    return {
        "required": {"ratio": MOST_RATIO},
        "sizes": sizes,
        "ratio": ratio,
        "pydarshan_ratio": decoded["cpu_s"] / sizes[0]["cpu_s"],
        "passed": ratio < MOST_RATIO,
    }


def _merged(log: Path, ranks: int) -> dict[str, Any]:
    write_ranks(log, ranks)
    found = measured_child(_MERGE, log)
    wanted = ranks * FILES_PER_RANK * READS_PER_FILE
    if found["rows"] != wanted:
        raise RuntimeError(f"{found['rows']:.0f} operations were merged, {wanted} are in the log")
    return {
        "ranks": ranks,
        "operations": wanted,
        "cpu_s": found["cpu_s"],
        "ms_per_rank": 1e3 * found["cpu_s"] / ranks,
        "operations_per_s": wanted / found["cpu_s"],
        "peak_bytes": found["peak_bytes"],
    }


def _decoded(log: Path, ranks: int) -> dict[str, float]:
    """pydarshan's time for the segments of a log. Raises: RuntimeError if it does not find them all."""
    write_ranks(log, ranks, version=1)
    found = measured_child(PYDARSHAN, log)
    if found["rows"] != ranks * FILES_PER_RANK * READS_PER_FILE:
        raise RuntimeError(f"pydarshan found {found['rows']:.0f} segments")
    return found


def write_ranks(path: Path, ranks: int, version: int = 2) -> None:
    """Write a log of so many ranks: DXT, and counters that agree. `version`: of DXT_POSIX; 2 has thread ids."""
    names: dict[int, bytes] = {}
    segments, counters = [], []
    reads: list[Any] = [_reads(file) for file in range(FILES_PER_RANK)]
    if version == 1:
        reads = [[segment[:4] for segment in of_file.tolist()] for of_file in reads]
    for rank in range(ranks):
        own = []
        for file in range(FILES_PER_RANK):
            name = f"/scratch/data/{rank:05d}-{file}.bin".encode()
            names[record_id(name)] = name
            own.append(DxtRecord(record_id=record_id(name), rank=rank, reads=reads[file]))
        segments.append(encode_dxt(own, "DXT_POSIX", version))
        counters.append(encode_counters("POSIX", posix_rows(own), 4))
    modules = {
        "DXT_POSIX": ModuleSpec(version=version, streams=segments),
        "POSIX": ModuleSpec(version=4, streams=counters),
    }
    write_log(path, job=JobSpec(nprocs=ranks), names=names, modules=modules)


def _reads(file: int) -> np.ndarray:
    """The reads of one file, from begin to end, by a thread of its own."""
    number = np.arange(READS_PER_FILE)
    reads = np.zeros(READS_PER_FILE, dtype=segment_dtype("DXT_POSIX", 2))
    reads["offset"], reads["length"] = number * READ_BYTES, READ_BYTES
    reads["start_s"] = 1 + 0.7 * file + 0.006 * number
    reads["end_s"] = reads["start_s"] + 0.001
    reads["pthread_id"] = 1_000 + file
    return reads


def table(result: dict[str, Any]) -> str:
    """The result as a table for people."""
    lines = ["   ranks   operations    CPU time   a rank  operations/s    peak memory"]
    lines += [
        f"{size['ranks']:8,d} {size['operations']:12,d} {size['cpu_s']:9.2f} s {size['ms_per_rank']:6.2f} ms"
        f" {size['operations_per_s']:13,.0f} {format_bytes(size['peak_bytes']):>14}"
        for size in result["sizes"]
    ]
    lines.append(
        f"pydarshan takes {result['pydarshan_ratio']:.1f} times as long to decode the segments of the smallest log as "
        "its merge takes"
    )
    lines.append(
        f"a rank of the largest log takes {result['ratio']:.2f} times as long as one of the smallest "
        f"(required: below {MOST_RATIO}): {'reached' if result['passed'] else 'NOT reached'}"
    )
    return "\n".join(lines)


def main() -> int:
    """Print the result: 0 if the time per rank does not grow with the number of ranks."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS)
    arguments = parser.parse_args()
    result = measure(sorted(arguments.ranks))
    print(json.dumps(result) if arguments.json else table(result))
    return 0 if result["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
