"""Staging many small files beside `cp -r` of the same tree: `python -m benchmarks.many_files [--files N ...] [--json]`.

The capture names N files of 16 KiB in directories of 1,000, read once each. Each side runs in a child of its own and
ends when the files are on the disk: `stage` (plan and writing), then `cp -r` of what it wrote followed by syncfs(2),
then the plan alone beside a target that is complete. The peak is resident memory, the time of the processor that of
all threads. Nothing is removed before the last measurement: ext4 looks for inodes more slowly after a removal.
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
from traces.errors import TargetError
from traces.schema import FILES_SCHEMA, OPS_SCHEMA, READ, SPANS_SCHEMA, CaptureInfo, Job, table_from_columns
from traces.store.writer import OpsWriter, create_capture, write_capture_info, write_files, write_spans
from traces.units import format_bytes, format_count

FILES = (10_000, 100_000)
FILE_BYTES = 16 << 10
FILES_IN_DIRECTORY = 1_000
BYTES_ON_DISK = 3 * FILE_BYTES
"""Disk space for a file of the capture: staged, copied, and half as much again to spare."""

LEAST_RATIO = 0.5
"""Staging is at least this fast beside `cp -r`, in time of the processor."""
MOST_BYTES_A_FILE = 3_000

_STAGE = """
from pathlib import Path
from replay.twin.stage import stage
from replay.twin.stage_plan import plan_stage
from traces.store.reader import open_capture
def run(path):
    plan = plan_stage(open_capture(path), Path(path).parent / "twin")
    stage(plan)
    return len(plan.to_write)
"""
_PLAN = """
from pathlib import Path
from replay.twin.stage_plan import plan_stage
from traces.store.reader import open_capture
def run(path):
    return len(plan_stage(open_capture(path), Path(path).parent / "twin").already_staged)
"""
_COPY = """
import resource, subprocess
from pathlib import Path
from replay.twin.file_writer import sync_file_system
def run(path):
    folder = Path(path).parent
    subprocess.run(["cp", "-r", folder / "twin/dxt-replay-twin", folder / "copy"], check=True)
    with open(path + "/capture.json") as file:
        sync_file_system(file.fileno())
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
"""


def measure(files: tuple[int, ...] = FILES, folder: Path | None = None) -> dict[str, float]:
    """Files per second, microseconds of processor time and bytes of memory a file; keys end in the number of files.

    `folder`: where the temporary directory is made. Raises: TargetError when the disk has no room.
    """
    result: dict[str, float] = {}
    for count in files:
        with tempfile.TemporaryDirectory(prefix="many-files-", dir=folder) as name:
            _check_room(Path(name), count)
            path = Path(name) / "many.capture"
            generate(path, count)
            staged = measured_child(_STAGE, path)
            copied = measured_child(_COPY, path)
            planned = measured_child(_PLAN, path)
        if (staged["rows"], planned["rows"]) != (count, count):
            raise RuntimeError(f"{staged['rows']} files were staged and {planned['rows']} found again, not {count}")
        result[f"files_per_s_{count}"] = count / staged["wall_s"]
        result[f"cp_files_per_s_{count}"] = count / copied["wall_s"]
        result[f"cpu_us_a_file_{count}"] = staged["cpu_s"] / count * 1e6
        result[f"cp_cpu_us_a_file_{count}"] = copied["rows"] / count * 1e6
        result[f"plan_cpu_us_a_file_{count}"] = planned["cpu_s"] / count * 1e6
        result[f"peak_bytes_{count}"] = staged["peak_bytes"]
        result[f"bytes_a_file_{count}"] = (staged["peak_bytes"] - staged["start_bytes"]) / count
        result[f"ratio_cp_{count}"] = copied["wall_s"] / staged["wall_s"]
        result[f"cpu_ratio_cp_{count}"] = copied["rows"] / staged["cpu_s"]
    return result


def generate(path: Path, files: int) -> None:
    """Write a capture in which one rank reads each of `files` files of FILE_BYTES once."""
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
        "length": np.full(files, FILE_BYTES, dtype=np.int64),
        "start_ns": start_ns,
        "end_ns": start_ns + 40_000,
        "step": np.zeros(files, dtype=np.int32),
        "origin": np.zeros(files, dtype=np.int8),
    }
    with OpsWriter(path) as writer:
        writer.write(table_from_columns(columns, OPS_SCHEMA))
    names = [f"/data/train/{n // FILES_IN_DIRECTORY:05}/image-{n:08}.jpg" for n in range(files)]
    write_files(path, _files(names))
    write_spans(path, SPANS_SCHEMA.empty_table())
    job = Job(nprocs=1, run_time_s=float(start_ns[-1]) / 1e9 + 1)
    write_capture_info(path, CaptureInfo(job=job, ranks=(0,), lanes="recorded"))


def _files(names: list[str]) -> object:
    count = len(names)
    return table_from_columns(
        {
            "file_id": np.arange(count, dtype=np.int32),
            "record_id": np.arange(1, count + 1, dtype=np.uint64),
            "path": names,
            "size": np.full(count, FILE_BYTES, dtype=np.int64),
            "format": np.zeros(count, dtype=np.int8),
            "mount": ["/"] * count,
            "fs_type": ["lustre"] * count,
        },
        FILES_SCHEMA,
    )


def _check_room(folder: Path, files: int) -> None:
    needed, free = files * BYTES_ON_DISK, shutil.disk_usage(folder).free
    if needed > free:
        raise TargetError(
            f"{folder} has {format_bytes(free)} free, not the needed {format_bytes(needed)}: set TMPDIR elsewhere"
        )


def counts(result: dict[str, float]) -> list[int]:
    """The numbers of files that a result holds."""
    return [int(key.removeprefix("peak_bytes_")) for key in result if key.startswith("peak_bytes_")]


def table(result: dict[str, float]) -> str:
    """The result as a table for people."""
    lines = [f"{'files of 16 KiB':>16}{'stage':>12}{'cp -r':>12}{'ratio':>7}{'CPU':>9}{'cp':>9}{'plan':>9}{'peak':>12}"]
    lines += [_line(result, count) for count in counts(result)]
    return "\n".join(lines)


def _line(result: dict[str, float], count: int) -> str:
    return (
        f"{format_count(count):>16}{result[f'files_per_s_{count}']:>10,.0f}/s"
        f"{result[f'cp_files_per_s_{count}']:>10,.0f}/s{result[f'ratio_cp_{count}']:>7.2f}"
        f"{result[f'cpu_us_a_file_{count}']:>6.0f} us{result[f'cp_cpu_us_a_file_{count}']:>6.0f} us"
        f"{result[f'plan_cpu_us_a_file_{count}']:>6.0f} us{format_bytes(result[f'peak_bytes_{count}']):>12}"
    )


def main(argv: list[str] | None = None) -> int:
    """Print the table or JSON; exit status 1 when a requirement is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, nargs="+", default=FILES, metavar="N", help="files of each capture")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args(argv)
    result = measure(tuple(arguments.files))
    print(json.dumps(result, indent=2) if arguments.json else table(result))
    most = max(counts(result))
    fast = result[f"cpu_ratio_cp_{most}"] >= LEAST_RATIO
    return 0 if fast and result[f"bytes_a_file_{most}"] <= MOST_BYTES_A_FILE else 1


if __name__ == "__main__":
    sys.exit(main())
