"""Checks the number of ranks that `dxt-replay capacity` finds for a limited storage against arithmetic.

Loop devices with ext4 are limited to bytes or requests a second by a control group, and a FUSE file system serves one
read after the other, each in a given time. A rank computes c s in a step and reads b bytes (or r files, one request
each) ahead of it, so a storage of B bytes a second carries B c / (u b) ranks at a utilisation of u. Each limit is half
a rank above a whole number. Two more cases measure no storage: a replay on one processor, and a tmpfs. Needs
root, loop devices and FUSE; 20 minutes.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.file_systems.mounted import Storage, mounted, own_namespace
from benchmarks.slowed_storage import delayed, limited, run_in

STEPS, LIMIT_PCT, MOST = 40, 90, 12
"""LIMIT_PCT is also the rule of MLPerf Storage for 3D U-Net."""

HEADER_BYTES = 500
"""What a file of NumPy's format npz has beside its data."""

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
    """kind: a limit of `slowed_storage.LIMITS`, rbps or riops; reads: those of a FUSE file system, one by one;
    processor: a device in memory, read on one processor; tmpfs: a file system in memory. The last two do not measure
    a storage, and `capacity` has to say so.

    length: bytes of a file; one page is one request. carried: ranks that the storage can carry by arithmetic.
    processes: of the command, under mpiexec where there are several. workload: a shipped one in place of ours.
    compute_s, batch: of a step.
    """

    kind: str
    length: int
    carried: int
    processes: int = 1
    workload: str = ""
    compute_s: float = 0.1
    batch: int = 4

    @property
    def limited_by(self) -> str:
        """What the answer must name."""
        return {"processor": "machine", "tmpfs": "memory"}.get(self.kind, "storage")

    @property
    def rate(self) -> int:
        """The limit, bytes or requests a second; 0 for none."""
        if self.limited_by != "storage":
            return 0
        of_rank = self.batch * (self.length + HEADER_BYTES if self.kind == "rbps" else 1) / self.compute_s
        return round(of_rank * LIMIT_PCT / 100 * (self.carried + 0.5))

    @property
    def name(self) -> str:
        """What distinguishes it from cases with the same limit."""
        processes = f"{self.processes} processes" if self.processes > 1 else ""
        return " ".join(filter(None, (self.workload, processes)))

    def words(self, description: Path) -> list[str]:
        """The workload on the command line; ours is written to `description`."""
        files = STEPS * self.batch
        if self.workload:
            size = {"": self.length, "_stdev": 0, "_resize": 0}
            sizes = [f"dataset.record_length_bytes{name}={value}" for name, value in size.items()]
            checkpoints = ["workflow.checkpoint=false"]
            return [self.workload, f"dataset.num_files_train={files}", "train.epochs=1", *sizes, *checkpoints]
        text = WORKLOAD.format(files=files, length=self.length, batch=self.batch, compute=self.compute_s)
        description.write_text(text, encoding="utf-8")
        return [str(description)]


CASES = (
    *(Case(kind="rbps", length=1 << 18, carried=carried) for carried in (1, 2, 4, 7)),
    *(Case(kind="riops", length=2 << 10, carried=carried) for carried in (1, 3, 5, 9)),
    *(Case(kind="reads", length=2 << 10, carried=carried) for carried in (2, 5)),
    Case(kind="riops", length=2 << 10, carried=5, processes=2),
    # MLPerf's 3D U-Net with a thousandth of its bytes.
    Case(kind="rbps", length=146_600, carried=4, workload="unet3d_h100", compute_s=0.323, batch=7),
    Case(kind="processor", length=1 << 18, carried=0, compute_s=0.0025),
    Case(kind="tmpfs", length=1 << 18, carried=0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The result of `capacity` for a case. expected: what has to be the limit. runs: number of replays; most_runs: its
    limit."""

    kind: str
    name: str
    rate: int
    carried: int
    found: int
    interval: list[int]
    limited_by: str
    expected: str
    runs: int
    most_runs: int

    @property
    def right(self) -> bool:
        """Whether it is off by at most one rank, for the right reason, with at most the promised runs."""
        near = abs(self.found - self.carried) <= 1 or self.expected != "storage"
        return near and self.limited_by == self.expected and self.runs <= self.most_runs


@contextmanager
def limited_storage(case: Case, scratch: Path) -> Iterator[tuple[Path, Path | None]]:
    """A folder on the storage of a case, and the file that takes the ids of its users, where there is one.

    Raises: UnavailableError, CannotThrottleError if this machine cannot limit a storage so.
    """
    if case.kind == "tmpfs":
        with mounted(Storage(kind="tmpfs"), scratch) as place:
            yield place.folder, None
        return
    with ExitStack() as stack:
        if case.kind == "processor":
            scratch = stack.enter_context(mounted(Storage(kind="tmpfs"), scratch)).folder
        place = stack.enter_context(mounted(Storage(kind="ext4"), scratch))
        if case.kind == "processor":
            yield place.folder, None
            return
        if case.kind == "reads":
            with delayed(place.folder, round(1e6 / case.rate), calls="reads", threads=1) as shown:
                yield shown, None
            return
        assert place.device is not None
        with limited({place.device: {case.kind: case.rate}}) as procs:
            yield place.folder, procs


def measured(scratch: Path, cases: tuple[Case, ...] = CASES) -> Iterator[Found]:
    """Measure each case. Raises: as `limited_storage`."""
    for number, case in enumerate(cases):
        words = case.words(scratch / f"{number}.yaml")
        mpiexec = shutil.which("mpiexec", path=str(Path(sys.executable).parent)) or "mpiexec"
        launcher = [mpiexec, "-n", str(case.processes)] if case.processes > 1 else []
        if case.kind == "processor":
            launcher = ["taskset", "--cpu-list", str(min(os.sched_getaffinity(0)))]
        with limited_storage(case, scratch) as (folder, procs):
            command = [
                *launcher, sys.executable, "-m", "dxt_replay.replay.commands.main", "capacity", *words, "--target",
                str(folder / "twin"), "--most", str(MOST), "--utilisation", str(LIMIT_PCT), "--json", "-q",
            ]  # fmt: skip
            printed = run_in(command, procs, statuses=(0, 1))
        result = json.loads(printed)
        yield Found(
            kind=case.kind,
            name=case.name,
            rate=case.rate,
            carried=case.carried,
            found=result["ranks"],
            interval=result["interval"],
            limited_by=result["limited_by"],
            expected=case.limited_by,
            runs=len(result["runs"]),
            most_runs=math.ceil(math.log2(MOST)) + 4,
        )


def main() -> int:
    """Print a line for each case; status 1 if one is wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.capacity", description=__doc__)
    parser.add_argument("--scratch", type=Path, help="directory on a disk for the images")
    parser.add_argument("--only", metavar="KIND", help="cases of this kind: rbps, riops, reads, processor, tmpfs")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args()
    own_namespace([sys.executable, "-m", "benchmarks.capacity", *sys.argv[1:]])
    results = []
    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        print("limit               by arithmetic   found   runs   limited by")
        chosen = tuple(case for case in CASES if options.only in (None, case.kind))
        for found in measured(Path(scratch), chosen):
            low, high = found.interval
            print(
                f"{found.rate:>12,} {found.kind:9} {found.carried:>10}   {low}-{high}   {found.runs:>4} of "
                f"{found.most_runs}   {found.limited_by}   {found.name}{'' if found.right else '   WRONG'}",
                flush=True,
            )
            results.append(found)
    if options.json:
        options.json.write_text(json.dumps([asdict(each) for each in results], indent=1))
    print(f"{sum(each.right for each in results)} of {len(results)} right")
    return 0 if all(each.right for each in results) else 1


if __name__ == "__main__":
    sys.exit(main())
