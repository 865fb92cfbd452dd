"""Speed and memory of the DXT reader against pydarshan: `python -m benchmarks.dxt_decode [--json]`.

The logs are written here: one record of a million segments, and 20,001 records of one segment.
Both sides go from a path to a DataFrame. Each measurement runs in a child of its own, the two sides in turn, and the
best of the repetitions counts; the ratio is of CPU time, which a busy machine disturbs least.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.measured_child import measured_child
from tests.darshan_writer import DxtRecord, ModuleSpec, encode_dxt, segment_dtype, write_log

LARGE_SEGMENTS = 1_000_000
SMALL_RECORDS = 20_001
REPEATS = 3
REQUIRED = {"ratio_large_record": 8.0, "ratio_many_records": 40.0}
MOST_BYTES_PER_SEGMENT = 150.0

# A child first imports everything and decodes a tiny log, so that only the reading is measured.
_OURS = """
from dxt_replay.profiler_merge.darshan.log import open_log
from dxt_replay.profiler_merge.darshan.dxt import read_dxt
def run(path):
    blocks = list(read_dxt(open_log(path)))  # held together, as pydarshan holds its records
    return sum(len(block.record) for block in blocks)
"""
PYDARSHAN = """
import warnings
warnings.simplefilter("ignore")
import darshan
def run(path):
    report = darshan.DarshanReport(path, read_all=False)
    report.mod_read_all_dxt_records("DXT_POSIX", dtype="pandas")
    return sum(
        len(record[part]) for record in report.records["DXT_POSIX"] for part in ("read_segments", "write_segments")
    )
"""


def measure() -> dict[str, float]:
    """Ratios (times faster than pydarshan, CPU), absolute times in s, and peak memory per segment of the large log."""
    with tempfile.TemporaryDirectory() as folder:
        logs = _write_logs(Path(folder))
        result: dict[str, float] = {}
        for case in ("large_record", "many_records"):
            runs: dict[str, list[dict[str, float]]] = {"ours": [], "pydarshan": []}
            for _ in range(REPEATS):
                for side, setup in (("ours", _OURS), ("pydarshan", PYDARSHAN)):
                    runs[side].append(measured_child(setup, logs[case], f"run({str(logs['warm_up'])!r})"))
            rows = {run["rows"] for side in runs.values() for run in side}
            expected = LARGE_SEGMENTS if case == "large_record" else SMALL_RECORDS
            if rows != {expected}:
                raise RuntimeError(f"{case}: the readers found {sorted(rows)} segments, {expected} were written")
            for side, measured in runs.items():
                for clock in ("cpu_s", "wall_s"):
                    result[f"{case}_{side}_{clock}"] = min(run[clock] for run in measured)
            result[f"ratio_{case}"] = result[f"{case}_pydarshan_cpu_s"] / result[f"{case}_ours_cpu_s"]
            result[f"ratio_{case}_wall"] = result[f"{case}_pydarshan_wall_s"] / result[f"{case}_ours_wall_s"]
            if case == "large_record":
                for side, suffix in (("ours", ""), ("pydarshan", "_pydarshan")):
                    peak = max(run["peak_bytes"] - run["start_bytes"] for run in runs[side])
                    result[f"peak_bytes_per_segment{suffix}"] = peak / LARGE_SEGMENTS
    return result


def main(argv: list[str] | None = None) -> int:
    """Print the table or JSON; exit status 1 when a requirement is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args(argv)
    result = measure()
    if arguments.json:
        print(json.dumps(result, indent=2))
    else:
        print(table(result))
    fast = all(result[name] >= least for name, least in REQUIRED.items())
    return 0 if fast and result["peak_bytes_per_segment"] <= MOST_BYTES_PER_SEGMENT else 1


def _write_logs(folder: Path) -> dict[str, Path]:
    segments = _segments(LARGE_SEGMENTS)
    small = [DxtRecord(record_id=number + 1, reads=segments[number : number + 1]) for number in range(SMALL_RECORDS)]
    records = {
        "large_record": [DxtRecord(record_id=1, reads=segments)],
        "many_records": small,
        "warm_up": small[:2],
    }
    logs = {}
    for case, case_records in records.items():
        module = ModuleSpec(version=1, streams=[encode_dxt(case_records)])
        names = {record.record_id: f"/data/part-{record.record_id:05}.tfrecord".encode() for record in case_records}
        logs[case] = write_log(folder / f"{case}.darshan", names=names, modules={"DXT_POSIX": module})
    return logs


def _segments(count: int) -> np.ndarray:
    """A stream of 256 KiB reads, one after the other through the file.

    Times have the quantum of Darshan's clock, a double of about 1.8e9 s, so that the log compresses to what real ones
    do, some 7 bytes a segment.
    """
    generator = np.random.default_rng(20261121)
    quantum_s = 2.0**-22
    gaps = generator.integers(4, 40, count)
    durations = generator.integers(120, 400, count)
    ticks = np.cumsum(gaps + durations)
    segments = np.zeros(count, segment_dtype("DXT_POSIX", 1))
    segments["offset"] = np.arange(count) * 262_144
    segments["length"] = 262_144
    segments["start_s"] = (ticks - durations) * quantum_s
    segments["end_s"] = ticks * quantum_s
    return segments


def table(result: dict[str, float]) -> str:
    """For a person."""
    lines = [f"{'':14}{'ours CPU':>10}{'wall':>9}{'pydarshan CPU':>15}{'wall':>9}{'ratio':>8}{'least':>8}"]
    for case in ("large_record", "many_records"):
        times = [result[f"{case}_{side}_{clock}"] for side in ("ours", "pydarshan") for clock in ("cpu_s", "wall_s")]
        least = REQUIRED[f"ratio_{case}"]
        lines.append(
            f"{case:14}{times[0]:>8.3f} s{times[1]:>7.3f} s{times[2]:>13.3f} s{times[3]:>7.3f} s"
            f"{result[f'ratio_{case}']:>8.1f}{least:>8.0f}"
        )
    lines.append(
        f"peak memory per segment: {result['peak_bytes_per_segment']:.0f} B (at most {MOST_BYTES_PER_SEGMENT:.0f}), "
        f"pydarshan {result['peak_bytes_per_segment_pydarshan']:.0f} B"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
