"""Speed and memory of the summary on a large capture: `python -m benchmarks.summary_scale [--operations N] [--json]`.

The capture is generated (8 ranks, 64 files, 4 lanes, reads and writes of several sizes, steps and compute) into a
temporary directory: 11 bytes an operation on disk; a second one has 512 ranks that use 20,000 files, two million pairs
of rank and file, for the table of files by rank. Each side runs in a child of its own that is pinned to one core.
The peer is VaniDL's method, on a size that it can do: every segment as a line of text, split into a row of Python
objects, a pandas table of all rows, and its totals. The ratio is per operation, because the sizes differ.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.measured_child import measured_child
from dxt_replay.traces.errors import TargetError
from dxt_replay.traces.schema import (
    FILES_SCHEMA,
    OPS_SCHEMA,
    READ,
    SPANS_SCHEMA,
    UNION_THREAD,
    WRITE,
    CaptureInfo,
    Job,
    table_from_columns,
)
from dxt_replay.traces.schema import SPAN_KINDS as KINDS
from dxt_replay.traces.store.writer import (
    OpsWriter,
    create_capture,
    write_capture_info,
    write_files,
    write_spans,
)
from dxt_replay.traces.units import MIB, format_bytes, format_count

OPERATIONS = 10_000_000
TEXT_SEGMENTS = 400_000
RANKS, FILES, LANES = 8, 64, 4
WIDE_RANKS, WIDE_FILES, WIDE_OPERATIONS = 512, 20_000, 512 * 5_000
BATCH = 1 << 18
STEP_NS = 250_000_000
BYTES_PER_OPERATION = 20
"""Bytes of disk space for an operation of the generated capture."""

REQUIRED = {"operations_per_s": 5e6, "ratio_vanidl": 20.0}
MOST_RESIDENT_BYTES = 1_000_000_000

_OURS = {
    "summary": """
from dxt_replay.profiler_merge.analysis.summary import summarise
from dxt_replay.traces.store.reader import open_capture
def run(path):
    found = summarise(open_capture(path))
    return found.operations.read + found.operations.write
""",
    "analyse": """
from dxt_replay.profiler_merge.analysis.analyse import analyse
from dxt_replay.profiler_merge.analysis.findings import findings_of
from dxt_replay.traces.store.reader import open_capture
def run(path):
    found = analyse(open_capture(path))
    findings_of(found)
    return found.summary.operations.read + found.summary.operations.write
""",
    "timeline": """
from dxt_replay.profiler_merge.analysis.timeline import timeline
from dxt_replay.traces.store.reader import open_capture
def run(path):
    found = timeline(open_capture(path), bins=1000)
    return int(found.matrix("reads").sum() + found.matrix("writes").sum())
""",
}
_WIDE = """
from dxt_replay.profiler_merge.analysis.analyse import analyse
from dxt_replay.profiler_merge.analysis.findings import findings_of
from dxt_replay.traces.store.reader import open_capture
def run(path):
    found = analyse(open_capture(path))
    findings_of(found)
    pairs = found.patterns.rank_files
    assert sum(batch.num_rows for batch in pairs.batches()) == pairs.num_rows
    return found.summary.operations.read + found.summary.operations.write
"""
_VANIDL = """
import pandas
def run(path):
    rows, name = [], ""
    with open(path) as text:
        for line in text:
            if line.startswith("#"):
                name = line.rsplit(" ", 1)[-1].strip()
                continue
            module, rank, op, segment, offset, length, start, end = line.split()
            time = float(end) - float(start) or 0.001
            rows.append({"Module": module, "Filename": name, "Rank": int(rank), "Operation": op,
                         "Segment": int(segment), "Offset": int(offset), "Length": int(length),
                         "Start": float(start), "End": float(end), "io_time": time,
                         "bandwidth": int(length) / time})
    table = pandas.DataFrame(rows)
    table["io_time"].sum() / table["Rank"].nunique()
    table["bandwidth"].median(), table["bandwidth"].mean(), table["Length"].median()
    table.groupby("Filename")["Length"].sum()
    return len(table)
"""
_ONE_CORE = "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})"


def measure(operations: int = OPERATIONS, folder: Path | None = None) -> dict[str, float]:
    """Operations per second of CPU time on one core and peak resident bytes of each side, and their ratio.

    `folder`: where the temporary directory is made. Raises: TargetError when the disk has no room.
    """
    with tempfile.TemporaryDirectory(prefix="summary-scale-", dir=folder) as name:
        path, text = Path(name) / "large.capture", Path(name) / "segments.txt"
        wide = Path(name) / "wide.capture"
        _check_room(Path(name), operations + WIDE_OPERATIONS)
        generate(path, operations)
        generate(wide, WIDE_OPERATIONS, WIDE_RANKS, WIDE_FILES)
        result: dict[str, float] = {
            "operations": operations,
            "capture_bytes": sum(part.stat().st_size for part in path.rglob("*.parquet")),
        }
        sides = [(side, setup, path, operations) for side, setup in _OURS.items()]
        for side, setup, capture, rows in [*sides, ("wide", _WIDE, wide, WIDE_OPERATIONS)]:
            found = _run(setup, capture, rows)
            prefix = "" if side == "summary" else f"{side}_"
            result[f"{prefix}operations_per_s"] = rows / found["cpu_s"]
            result[f"{prefix}wall_s"] = found["wall_s"]
            result[f"{prefix}peak_bytes"] = found["peak_bytes"]
        _write_text(text, TEXT_SEGMENTS)
        vanidl = _run(_VANIDL, text, TEXT_SEGMENTS)
        result["vanidl_segments"] = TEXT_SEGMENTS
        result["vanidl_operations_per_s"] = TEXT_SEGMENTS / vanidl["cpu_s"]
        result["vanidl_peak_bytes"] = vanidl["peak_bytes"]
    result["ratio_vanidl"] = result["operations_per_s"] / result["vanidl_operations_per_s"]
    return result


def generate(path: Path, operations: int, ranks: int = RANKS, files: int = FILES) -> None:
    """Write a capture of `operations` rows, in which each rank uses any of the files."""
    create_capture(path)
    generator = np.random.default_rng(20261121)
    last_ns = 0
    with OpsWriter(path) as writer:
        for rank in range(ranks):
            count = operations // ranks + (rank < operations % ranks)
            now = 0
            for begin in range(0, count, BATCH):
                columns, now = _columns(generator, rank, min(BATCH, count - begin), now, files)
                writer.write(table_from_columns(columns, OPS_SCHEMA))
            last_ns = max(last_ns, now)
    write_files(path, _files(files))
    write_spans(path, table_from_columns(_spans(last_ns, ranks), SPANS_SCHEMA))
    job = Job(nprocs=ranks, run_time_s=last_ns / 1e9 + 1)
    write_capture_info(path, CaptureInfo(job=job, ranks=tuple(range(ranks)), lanes="recorded"))


def _columns(
    generator: np.random.Generator, rank: int, count: int, now: int, files: int
) -> tuple[dict[str, object], int]:
    """Rows of one rank from `now` on. Sizes and durations are spread over thousands of values, as real ones are."""
    start = now + np.cumsum(generator.integers(1_000, 100_000, count))
    length = generator.choice([2_096, 4_096, 65_536, 262_144], count) + generator.integers(0, 64, count)
    columns = {
        "rank": np.full(count, rank, dtype=np.int32),
        "lane": (np.arange(count) % LANES).astype(np.int32),
        "op": np.where(generator.random(count) < 0.1, WRITE, READ).astype(np.int8),
        "api": np.zeros(count, dtype=np.int8),
        "file_id": generator.integers(0, files, count).astype(np.int32),
        "offset": generator.integers(0, 1 << 20, count) * 4096,
        "length": length,
        "start_ns": start,
        "end_ns": start + generator.integers(5_000, 200_000, count),
        "step": (start // STEP_NS).astype(np.int32),
        "origin": np.zeros(count, dtype=np.int8),
    }
    return columns, int(start[-1])


def _files(files: int) -> object:
    number = np.arange(files)
    return table_from_columns(
        {
            "file_id": number.astype(np.int32),
            "record_id": (number + 1).astype(np.uint64),
            "path": [f"/data/part-{place:05}.tfrecord" for place in number],
            "size": np.full(files, (1 << 20) * 4096 + MIB),
            "format": np.zeros(files, dtype=np.int8),
            "mount": ["/"] * files,
            "fs_type": ["lustre"] * files,
        },
        FILES_SCHEMA,
    )


def _spans(last_ns: int, ranks: int) -> dict[str, object]:
    """A step each quarter of a second, of which the last three fifths are compute."""
    starts = np.arange(0, max(last_ns, 1), STEP_NS)
    step, compute = KINDS.index("step"), KINDS.index("compute")
    count = 2 * len(starts) * ranks
    begin = np.stack([starts, starts + STEP_NS * 2 // 5], axis=1).ravel()
    return {
        "rank": np.repeat(np.arange(ranks, dtype=np.int32), 2 * len(starts)),
        "thread": np.full(count, UNION_THREAD),
        "kind": np.tile(np.array([step, compute], dtype=np.int8), count // 2),
        "name": ["train", "compute"] * (count // 2),
        "step": np.tile(np.repeat(np.arange(len(starts), dtype=np.int32), 2), ranks),
        "start_ns": np.tile(begin, ranks),
        "end_ns": np.tile(np.repeat(starts + STEP_NS, 2), ranks),
    }


def _write_text(path: Path, segments: int) -> None:
    """What darshan-dxt-parser prints, a record of 10,000 segments after the other."""
    generator = np.random.default_rng(7)
    start = np.cumsum(generator.random(segments) * 1e-3)
    end = start + generator.random(segments) * 1e-3
    with open(path, "w", encoding="ascii") as text:
        for number in range(segments):
            if number % 10_000 == 0:
                text.write(f"# DXT, file_id: {number} file_name: /data/part-{number}.tfrecord\n")
            offset = 4096 * number
            text.write(f" X_POSIX {number % 8} read {number} {offset} 4096 {start[number]:.4f} {end[number]:.4f}\n")


def _check_room(folder: Path, operations: int) -> None:
    needed, free = operations * BYTES_PER_OPERATION, shutil.disk_usage(folder).free
    if needed > free:
        raise TargetError(
            f"{folder} has {format_bytes(free)} free, not the needed {format_bytes(needed)}: set TMPDIR elsewhere"
        )


def _run(setup: str, path: Path, rows: int) -> dict[str, float]:
    measured = measured_child(setup, path, _ONE_CORE)
    if measured["rows"] != rows:
        raise RuntimeError(f"{measured['rows']} rows were read, {rows} were written")
    return measured


def table(result: dict[str, float]) -> str:
    """The result as a table for people."""
    capture = format_bytes(result["capture_bytes"])
    lines = [
        f"{format_count(int(result['operations']))} operations, {capture} on disk; one core",
        f"{'':28}{'operations/s':>14}{'wall':>10}{'resident':>12}",
    ]
    sides = (("summary", ""), ("all analyses, findings", "analyse_"), ("timeline", "timeline_"))
    for side, prefix in (*sides, ("of 512 ranks, files by rank", "wide_")):
        lines.append(
            f"{side:28}{result[f'{prefix}operations_per_s'] / 1e6:>12.2f} M{result[f'{prefix}wall_s']:>8.2f} s"
            f"{format_bytes(result[f'{prefix}peak_bytes']):>12}"
        )
    lines.append(
        f"{'VaniDL way, ' + format_count(int(result['vanidl_segments'])):28}"
        f"{result['vanidl_operations_per_s'] / 1e6:>12.2f} M{'':>10}{format_bytes(result['vanidl_peak_bytes']):>12}"
    )
    lines.append(f"the summary is {result['ratio_vanidl']:.0f} times as fast (at least {REQUIRED['ratio_vanidl']:.0f})")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Print the table or JSON; exit status 1 when a requirement is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operations", type=int, default=OPERATIONS, help="rows of the generated capture")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args(argv)
    result = measure(arguments.operations)
    print(json.dumps(result, indent=2) if arguments.json else table(result))
    fast = all(result[name] >= least for name, least in REQUIRED.items())
    peaks = [result[name] for name in result if name.endswith("peak_bytes") and not name.startswith("vanidl")]
    return 0 if fast and max(peaks) < MOST_RESIDENT_BYTES else 1


if __name__ == "__main__":
    sys.exit(main())
