"""Replays of captures larger than memory: one rank with many millions of operations, and many ranks on few processes.

A capture is generated (eight lanes, a thousand files, 64 KiB reads in random order), and replayed without pace over the
null back end: what is measured is the replayer. Reported are its peak of resident memory, the time from the start of
the command to its first operation, and the rate; then the same of 512 recorded ranks on two MPI processes.

    python -m benchmarks.large_capture [--operations 50e6] [--ranks 512] [--folder DIR] [--json]
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dxt_replay.traces.schema import (
    APIS,
    FILES_SCHEMA,
    FORMATS,
    NO_STEP,
    OPS_SCHEMA,
    READ,
    SPANS_SCHEMA,
    TRACED,
    CaptureInfo,
    Job,
    table_from_columns,
)
from dxt_replay.traces.store.writer import (
    OpsWriter,
    create_capture,
    write_capture_info,
    write_files,
    write_spans,
)
from dxt_replay.traces.units import NS_PER_S

OPERATIONS = 2_000_000
"""Enough operations to show a scan or a leak, and few enough for continuous integration; the requirement is for 50
million."""

RANKS, PROCESSES = 512, 2
OPERATIONS_PER_RANK = 2_000
LANES, LANES_PER_RANK = 8, 2
FILES = 1_000
BLOCK_BYTES, FILE_BYTES = 1 << 16, 1 << 26
GAP_NS = 2_000
CHUNK_ROWS = 1 << 18
SEED = 7
MAX_RESIDENT_MIB = 300.0
MAX_START_S = 5.0


def measure(operations: int = OPERATIONS, ranks: int = RANKS, folder: Path | None = None) -> dict[str, Any]:
    """Peak memory, start time and rate of both replays.

    `folder`: where captures and twins (all holes) go meanwhile; the system's temporary directory when None.
    Raises: RuntimeError when a replay does not issue every recorded operation.
    """
    with tempfile.TemporaryDirectory(prefix="dxt-replay-bench-", dir=folder) as name:
        one = _one_rank(Path(name), operations)
        many = _many_ranks(Path(name), ranks)
    return {
        "required": {"resident_mib": MAX_RESIDENT_MIB, "start_s": MAX_START_S},
        "one_rank": one,
        "many_ranks": many,
        "passed": one["resident_mib"] < MAX_RESIDENT_MIB and one["start_s"] < MAX_START_S,
    }


def _one_rank(folder: Path, operations: int) -> dict[str, Any]:
    capture = folder / "large.capture"
    written_s = _generate(capture, [operations], LANES)
    return {"operations": operations, "generated_s": written_s, **_replay(folder, capture, 1, operations)}


def _many_ranks(folder: Path, ranks: int) -> dict[str, Any]:
    if _mpiexec() is None:
        return {"ranks": ranks, "note": "mpiexec was not found: install the mpich wheel"}
    capture = folder / "ranks.capture"
    written_s = _generate(capture, [OPERATIONS_PER_RANK] * ranks, LANES_PER_RANK)
    total = OPERATIONS_PER_RANK * ranks
    replay = _replay(folder, capture, PROCESSES, total)
    return {"ranks": ranks, "processes": PROCESSES, "operations": total, "generated_s": written_s, **replay}


def _generate(path: Path, operations: Sequence[int], lanes: int) -> float:
    """Write a capture with `operations` operations of each rank; returns the seconds. Memory: a chunk of rows."""
    began = time.monotonic()
    create_capture(path)
    with OpsWriter(path) as writer:
        for rank, count in enumerate(operations):
            for table in _rows(rank, count, lanes):
                writer.write(table)
    write_files(path, _files())
    write_spans(path, SPANS_SCHEMA.empty_table())
    seconds = max(operations) * GAP_NS / NS_PER_S
    stored = {"operations_stored": sum(operations)}
    job = Job(nprocs=len(operations), run_time_s=seconds)
    write_capture_info(path, CaptureInfo(job=job, ranks=tuple(range(len(operations))), made_by=stored))
    return time.monotonic() - began


def _rows(rank: int, operations: int, lanes: int) -> Iterator[pa.Table]:
    rng = np.random.default_rng((SEED, rank))
    for begin in range(0, operations, CHUNK_ROWS):
        number = np.arange(begin, min(begin + CHUNK_ROWS, operations))
        count = len(number)
        yield table_from_columns(
            {
                "rank": np.full(count, rank, dtype=np.int32),
                "lane": (number % lanes).astype(np.int32),
                "op": np.full(count, READ, dtype=np.int8),
                "api": np.full(count, APIS.index("POSIX"), dtype=np.int8),
                "file_id": rng.integers(0, FILES, count).astype(np.int32),
                "offset": rng.integers(0, FILE_BYTES // BLOCK_BYTES, count) * BLOCK_BYTES,
                "length": np.full(count, BLOCK_BYTES, dtype=np.int64),
                "start_ns": number * GAP_NS,
                "end_ns": number * GAP_NS + GAP_NS // 2,
                "step": np.full(count, NO_STEP, dtype=np.int32),
                "origin": np.full(count, TRACED, dtype=np.int8),
            },
            OPS_SCHEMA,
        )


def _files() -> pa.Table:
    number = np.arange(FILES)
    return table_from_columns(
        {
            "file_id": number.astype(np.int32),
            "record_id": number.astype(np.uint64),
            "path": [f"/data/{i:05d}.bin" for i in range(FILES)],
            "size": np.full(FILES, FILE_BYTES, dtype=np.int64),
            "format": np.full(FILES, FORMATS.index("other"), dtype=np.int8),
            "mount": "/",
            "fs_type": "ext4",
        },
        FILES_SCHEMA,
    )


def _replay(folder: Path, capture: Path, processes: int, operations: int) -> dict[str, Any]:
    """Stage `capture` as holes, and replay it in processes that report their memory and start (`_CHILD`)."""
    twin, output = folder / "twin", folder / "replay.capture"
    command = ["stage", str(capture), "--target", str(twin), "--sparse", "--json"]
    subprocess.run([sys.executable, "-m", "dxt_replay.replay.commands.main", *command], check=True, capture_output=True)
    launcher = [str(_mpiexec()), "-n", str(processes)] if processes > 1 else []
    run = ["run", str(capture), "--target", str(twin), "-o", str(output), "--pace", "none", "--api", "null", "--json"]
    began = time.monotonic_ns()
    done = subprocess.run([*launcher, sys.executable, "-c", _CHILD, *run], capture_output=True, text=True, check=False)
    whole_s = (time.monotonic_ns() - began) / NS_PER_S
    shutil.rmtree(twin)
    if done.returncode:
        raise RuntimeError(f"the replay failed: {done.stderr.strip()[-1000:]}")
    reports = [json.loads(line.partition(" ")[2]) for line in done.stderr.splitlines() if line.startswith("child ")]
    result = json.loads(done.stdout)
    shutil.rmtree(output)
    if result["operations"] != operations or result["failed"] or len(reports) != processes:
        raise RuntimeError(f"{result['operations']} of {operations} operations were done, {result['failed']} failed")
    return {
        "resident_mib": max(process["resident_kib"] for process in reports) / 1024,
        "start_s": (max(process["start_ns"] for process in reports) - began) / NS_PER_S,
        "elapsed_s": result["elapsed_s"],
        "operations_per_s": operations / result["elapsed_s"],
        "whole_s": whole_s,
    }


_CHILD = """
import json, resource, sys
from dxt_replay.replay.engine import clock
from dxt_replay.replay.commands.main import main
opened = clock.StartGate.open
started = []
def noting(gate, t0_ns):
    started.append(t0_ns)
    opened(gate, t0_ns)
clock.StartGate.open = noting
status = main(sys.argv[1:])
usage = resource.getrusage(resource.RUSAGE_SELF)
line = json.dumps({"resident_kib": usage.ru_maxrss, "start_ns": started[0] if started else 0})
sys.stderr.write(f"child {line}\\n")
sys.exit(status)
"""
"""`dxt-replay` that finally prints when its lanes could begin (CLOCK_MONOTONIC) and its peak of resident memory."""


def _mpiexec() -> str | None:
    return shutil.which("mpiexec", path=str(Path(sys.executable).parent)) or shutil.which("mpiexec")


def table(result: dict[str, Any]) -> str:
    """The result as a table for people."""
    lines = ["                   operations   peak memory   start     rate, operations/s   whole command"]
    for name, title in (("one_rank", "one rank"), ("many_ranks", "many ranks")):
        row = result[name]
        if "note" in row:
            lines.append(f"{title}: {row['note']}")
            continue
        ranks = f"{row['ranks']} ranks on {row['processes']}" if "ranks" in row else title
        lines.append(
            f"{ranks:17s} {row['operations']:12,d} {row['resident_mib']:9.0f} MiB {row['start_s']:6.2f} s"
            f" {row['operations_per_s']:17,.0f} {row['whole_s']:13.1f} s"
        )
    lines.append(
        f"required of one rank: below {MAX_RESIDENT_MIB:.0f} MiB and {MAX_START_S:.0f} s to the start: "
        f"{'reached' if result['passed'] else 'NOT reached'}"
    )
    return "\n".join(lines)


def main() -> int:
    """0 when memory and start time are as required."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--operations", type=float, default=OPERATIONS, metavar="N")
    parser.add_argument("--ranks", type=int, default=RANKS)
    parser.add_argument("--folder", type=Path, help="where there is room: 50 million operations need about 8 GB")
    arguments = parser.parse_args()
    result = measure(int(arguments.operations), arguments.ranks, arguments.folder)
    print(json.dumps(result) if arguments.json else table(result))
    return 0 if result["passed"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
