from __future__ import annotations

from pathlib import Path

import pytest

from dxt_replay.profiler_merge.analysis.durations import recorded_durations, vanidl_durations
from dxt_replay.traces.measures.operation_rows import OperationRows, operation_rows
from dxt_replay.traces.schema import CaptureInfo, Job, RankClock
from tests.capture_builder import build_capture, read

MS = 1_000_000


def rows_of(tmp_path: Path, start_ns: int, end_ns: int) -> OperationRows:
    capture = build_capture(tmp_path, files=["/a"], ops=[read(0, start_ns=start_ns, end_ns=end_ns)])
    return next(operation_rows(capture))


def info_with_offset(offset_ns: int) -> CaptureInfo:
    clock = RankClock(rank=0, method="wall", offset_ns=offset_ns, residual_ns=0, interval_ns=(offset_ns, offset_ns))
    return CaptureInfo(job=Job(nprocs=1, run_time_s=1), ranks=(0,), clock=(clock,))


@pytest.mark.parametrize(
    ("start_ns", "end_ns", "duration_ns"),
    [
        (0, 100_000, 100_000),
        (10_000, 40_000, MS),  # both print as 0.0000, and VaniDL makes that a millisecond
        (40_000, 60_000, 100_000),  # 0.0000 to 0.0001
        (49_999, 50_000, 100_000),
        (2 * MS, 7 * MS, 5 * MS),
    ],
)
def test_vanidl_subtracts_printed_times(tmp_path: Path, start_ns: int, end_ns: int, duration_ns: int) -> None:
    rows = rows_of(tmp_path, start_ns, end_ns)
    assert vanidl_durations(info_with_offset(0))(rows).tolist() == [duration_ns]
    assert recorded_durations(rows).tolist() == [end_ns - start_ns]


def test_vanidl_prints_the_time_of_the_log_and_not_of_the_capture(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, 77_040_000, 77_060_000)
    assert vanidl_durations(info_with_offset(77_000_000))(rows).tolist() == [100_000]
    assert vanidl_durations(info_with_offset(77_020_000))(rows).tolist() == [MS]
