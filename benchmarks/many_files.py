"""Staging many small files beside `cp -r` of the same tree: `python -m benchmarks.many_files [--files N ...] [--json]`.

The capture names N files of 16 KiB (`--file-bytes`) in directories of 1,000, read once each. Each side runs in a child
of its own and ends when the files are on the disk: `stage` (plan and writing), then `cp -r` of what it wrote followed
by syncfs(2), then `stage` again, with nothing to do, `run --pace none`, and the removal. The peak is resident memory,
the time of the processor that of all threads. The copy is removed before the run, which needs the room.
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
from dxt_replay.traces.schema import FILES_SCHEMA, OPS_SCHEMA, READ, SPANS_SCHEMA, CaptureInfo, Job, table_from_columns
from dxt_replay.traces.store.writer import OpsWriter, create_capture, write_capture_info, write_files, write_spans
from dxt_replay.traces.units import format_bytes, format_count

FILES = (10_000, 100_000)
SIDES = ("stage", "again", "run", "remove")
FILE_BYTES = 16 << 10
FILES_IN_DIRECTORY = 1_000
COPIES = 3
"""Disk space for a file of the capture, in its size: staged, copied, and half as much again to spare."""

LEAST_RATIO = 0.8
"""Least speed of staging relative to `cp -r`, in processor time; on a loaded machine 1.0 to 1.7."""
MOST_BYTES_A_FILE = 500
FEWEST_FILES = 500_000
"""Number of files from which memory is checked against MOST_BYTES_A_FILE: with fewer, most memory is not for files."""

_STAGE = """
from pathlib import Path
from dxt_replay.replay.target.stage import stage
from dxt_replay.replay.target.stage_plan import plan_stage
from dxt_replay.traces.store.reader import open_capture
def run(path):
    plan = plan_stage(open_capture(path), Path(path).parent / "twin")
    stage(plan)
    return len(plan.to_write)
"""
_AGAIN = """
from pathlib import Path
from dxt_replay.replay.target.stage import stage
from dxt_replay.replay.target.stage_plan import plan_stage
from dxt_replay.traces.store.reader import open_capture
def run(path):
    plan = plan_stage(open_capture(path), Path(path).parent / "twin")
    stage(plan)
    return len(plan.already_staged)
"""
_RUN = """
from pathlib import Path
from dxt_replay.replay.interface.replays import run as replay
def run(path):
    folder = Path(path).parent
    return replay(path, folder / "twin", folder / "replay.capture", pace="none").as_json()["operations"]
"""
_REMOVE = """
from pathlib import Path
from dxt_replay.replay.target.stage import unstage
def run(path):
    return unstage(Path(path).parent / "twin")
"""
_COPY = """
import resource, subprocess
from pathlib import Path
from dxt_replay.replay.target.posix import sync_file_system
def run(path):
    folder = Path(path).parent
    subprocess.run(["cp", "-r", folder / "twin/dxt-replay-twin", folder / "copy"], check=True)
    with open(path + "/capture.json") as file:
        sync_file_system(file.fileno())
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
"""


def measure(
    files: tuple[int, ...] = FILES, folder: Path | None = None, *, file_bytes: int = FILE_BYTES
) -> dict[str, float]:
    """Files per second, microseconds of processor time and bytes of memory a file; keys end in the number of files.

    `folder`: where the temporary directory is made. Raises: TargetError when the disk has no room.
    """
    result: dict[str, float] = {}
    for count in files:
        with tempfile.TemporaryDirectory(prefix="many-files-", dir=folder) as name:
            _check_room(Path(name), count * file_bytes * COPIES)
            path = Path(name) / "many.capture"
            generate(path, count, file_bytes)
            found = {"stage": measured_child(_STAGE, path)}
            copied = measured_child(_COPY, path)
            found["again"] = measured_child(_AGAIN, path)
            shutil.rmtree(Path(name) / "copy")
            found |= {"run": measured_child(_RUN, path), "remove": measured_child(_REMOVE, path)}
        if any(each["rows"] != count for each in found.values()):
            raise RuntimeError(f"not {count} files: { {side: each['rows'] for side, each in found.items()} }")
        for side, each in found.items():
            result[f"{side}_files_per_s_{count}"] = count / each["wall_s"]
            result[f"{side}_cpu_us_a_file_{count}"] = each["cpu_s"] / count * 1e6
            result[f"{side}_cpu_ratio_cp_{count}"] = copied["rows"] / each["cpu_s"]
            result[f"{side}_peak_bytes_{count}"] = each["peak_bytes"]
            result[f"{side}_bytes_a_file_{count}"] = (each["peak_bytes"] - each["start_bytes"]) / count
        result[f"cp_files_per_s_{count}"] = count / copied["wall_s"]
        result[f"cp_cpu_us_a_file_{count}"] = copied["rows"] / count * 1e6
    return result


def generate(path: Path, files: int, file_bytes: int = FILE_BYTES) -> None:
    """Write a capture in which one rank reads each of `files` files of `file_bytes` once."""
    create_capture(path)
    number = np.arange(files)
    start_ns = number * 50_000
    columns = {
        "rank": np.zeros(files, dtype=np.int32),
        "lane": np.zeros(files, dtype=np.int32),
        "op": np.full(files, READ, dtype=np.int8),
        "api": np.zeros(files, dtype=np.int8),
        "file_id": number.astype(np.int32),
        "offset": np.zeros(files, dtype=np.int64),
        "length": np.full(files, file_bytes, dtype=np.int64),
        "start_ns": start_ns,
        "end_ns": start_ns + 40_000,
        "step": np.zeros(files, dtype=np.int32),
        "origin": np.zeros(files, dtype=np.int8),
    }
    with OpsWriter(path) as writer:
        writer.write(table_from_columns(columns, OPS_SCHEMA))
    names = [f"/data/train/{n // FILES_IN_DIRECTORY:05}/image-{n:08}.jpg" for n in range(files)]
    write_files(path, _files(names, file_bytes))
    write_spans(path, SPANS_SCHEMA.empty_table())
    job = Job(nprocs=1, run_time_s=float(start_ns[-1]) / 1e9 + 1)
    write_capture_info(path, CaptureInfo(job=job, ranks=(0,), lanes="recorded"))


def _files(names: list[str], file_bytes: int) -> object:
    count = len(names)
    return table_from_columns(
        {
            "file_id": np.arange(count, dtype=np.int32),
            "record_id": np.arange(1, count + 1, dtype=np.uint64),
            "path": names,
            "size": np.full(count, file_bytes, dtype=np.int64),
            "format": np.zeros(count, dtype=np.int8),
            "mount": ["/"] * count,
            "fs_type": ["lustre"] * count,
        },
        FILES_SCHEMA,
    )


def _check_room(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise TargetError(
            f"{folder} has {format_bytes(free)} free, not the needed {format_bytes(needed)}: set TMPDIR elsewhere"
        )


def counts(result: dict[str, float]) -> list[int]:
    """The numbers of files that a result holds."""
    return [int(key.removeprefix("cp_files_per_s_")) for key in result if key.startswith("cp_files_per_s_")]


def table(result: dict[str, float]) -> str:
    """The result as a table for people."""
    lines = [
        f"{'files':>10}{'side':>8}{'files/s':>11}{'CPU a file':>12}{'cp / it':>9}{'peak':>10}{'memory a file':>15}"
    ]
    for count in counts(result):
        for side in SIDES:
            values = (result[f"{side}_{name}_{count}"] for name in ("files_per_s", "cpu_us_a_file", "cpu_ratio_cp"))
            rate, cpu, ratio = values
            peak, each = format_bytes(result[f"{side}_peak_bytes_{count}"]), result[f"{side}_bytes_a_file_{count}"]
            shown = f"{rate:>11,.0f}{cpu:>9.1f} us{ratio:>9.2f}{peak:>10}{each:>13,.0f} B"
            lines.append(f"{format_count(count):>10}{side:>8}{shown}")
        rate, cpu = result[f"cp_files_per_s_{count}"], result[f"cp_cpu_us_a_file_{count}"]
        lines.append(f"{format_count(count):>10}{'cp -r':>8}{rate:>11,.0f}{cpu:>9.1f} us")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Print the table or JSON; exit status 1 when a requirement is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, nargs="+", default=FILES, metavar="N", help="files of each capture")
    parser.add_argument("--file-bytes", type=int, default=FILE_BYTES, metavar="BYTES", help="bytes of each file")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args(argv)
    result = measure(tuple(arguments.files), file_bytes=arguments.file_bytes)
    print(json.dumps(result, indent=2) if arguments.json else table(result))
    most = max(counts(result))
    fast = result[f"stage_cpu_ratio_cp_{most}"] >= LEAST_RATIO
    return 0 if fast and (most < FEWEST_FILES or result[f"stage_bytes_a_file_{most}"] <= MOST_BYTES_A_FILE) else 1


if __name__ == "__main__":
    sys.exit(main())
