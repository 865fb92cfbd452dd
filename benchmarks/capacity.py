"""Checks the number of ranks that `dxt-replay capacity` finds for a limited device against arithmetic.

Loop devices with ext4 are limited to bytes or requests a second by a control group. A rank computes c s in a step and
reads b bytes (or r files, one request each) ahead of it, so the device with B bytes a second carries B c / (u b) ranks
at a utilisation of u. Each limit is chosen half a rank above a whole number. Needs root and loop devices; 10 minutes.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.file_systems.mounted import Storage, mounted, own_namespace
from benchmarks.slowed_storage import limited, run_command

COMPUTE_S, BATCH, STEPS, LIMIT_PCT, MOST = 0.1, 4, 40, 90, 12

WORKLOAD = """\
model: {{name: capacity}}
framework: pytorch
workflow: {{generate_data: false, train: true, checkpoint: false}}
dataset: {{data_folder: data, format: npz, num_files_train: {files}, num_samples_per_file: 1, record_length: {length}}}
reader: {{data_loader: pytorch, batch_size: {batch}, read_threads: 2, file_shuffle: seed, prefetch_size: 2}}
train: {{epochs: 1, computation_time: {compute}}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """kind: a limit of `slowed_storage.LIMITS`, rbps or riops. length: bytes of a file; one page is one request.

    carried: ranks that the device can carry by arithmetic."""

    kind: str
    length: int
    carried: int

    @property
    def rate(self) -> int:
        """The limit, bytes or requests a second."""
        of_rank = BATCH * (self.length + 500 if self.kind == "rbps" else 1) / COMPUTE_S
        return round(of_rank * LIMIT_PCT / 100 * (self.carried + 0.5))


CASES = (
    *(Case(kind="rbps", length=1 << 18, carried=carried) for carried in (1, 2, 4, 7)),
    *(Case(kind="riops", length=2 << 10, carried=carried) for carried in (1, 3, 5, 9)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The result of `capacity` for a case. runs: number of replays; most_runs: its limit."""

    kind: str
    rate: int
    carried: int
    found: int
    interval: list[int]
    limited_by: str
    runs: int
    most_runs: int

    @property
    def right(self) -> bool:
        """Whether it is off by at most one rank, for the right reason, with at most the promised runs."""
        return abs(self.found - self.carried) <= 1 and self.limited_by == "storage" and self.runs <= self.most_runs


def measured(scratch: Path) -> Iterator[Found]:
    """Measure each case. Raises: UnavailableError, CannotThrottleError if this machine cannot limit a device."""
    for number, case in enumerate(CASES):
        description = scratch / f"{number}.yaml"
        description.write_text(
            WORKLOAD.format(files=STEPS * BATCH, length=case.length, batch=BATCH, compute=COMPUTE_S), encoding="utf-8"
        )
        with mounted(Storage(kind="ext4"), scratch) as place:
            assert place.device is not None
            with limited({place.device: {case.kind: case.rate}}) as procs:
                printed = run_command(
                    "capacity", str(description), "--target", str(place.folder / "twin"), "--most", str(MOST),
                    "--utilisation", str(LIMIT_PCT), "--json", "-q", procs=procs, statuses=(0, 1),
                )  # fmt: skip
        result = json.loads(printed)
        yield Found(
            kind=case.kind,
            rate=case.rate,
            carried=case.carried,
            found=result["ranks"],
            interval=result["interval"],
            limited_by=result["limited_by"],
            runs=len(result["runs"]),
            most_runs=math.ceil(math.log2(MOST)) + 4,
        )


def main() -> int:
    """Print a line for each case; status 1 if one is wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.capacity", description=__doc__)
    parser.add_argument("--scratch", type=Path, help="directory on a disk for the images")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args()
    own_namespace([sys.executable, "-m", "benchmarks.capacity", *sys.argv[1:]])
    results = []
    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        print("limit               by arithmetic   found   runs   limited by")
        for found in measured(Path(scratch)):
            low, high = found.interval
            print(
                f"{found.rate:>12,} {found.kind:6} {found.carried:>13}   {low}-{high}   {found.runs:>4} of "
                f"{found.most_runs}   {found.limited_by}{'' if found.right else '   WRONG'}",
                flush=True,
            )
            results.append(found)
    if options.json:
        options.json.write_text(json.dumps([asdict(each) for each in results], indent=1))
    print(f"{sum(each.right for each in results)} of {len(results)} right")
    return 0 if all(each.right for each in results) else 1


if __name__ == "__main__":
    sys.exit(main())
