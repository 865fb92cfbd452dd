"""Files and bytes of each file system."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from dxt_replay.profiler_merge.analysis.patterns import MountTotals, mount_totals, patterns
from tests.capture_builder import build_capture, read, write


def test_files_and_bytes_of_each_mount(tmp_path: Path) -> None:
    ops = [read(0, length=10), read(1, length=5, start_ns=1), write(2, length=99, start_ns=2)]
    capture = build_capture(tmp_path, ops=ops, files=["/a", "/b", "/c", "/never"])
    names = {"mount": ["/data", "/data", "", "/home"], "fs_type": ["lustre", "lustre", "", "nfs"]}
    recorded = capture.files
    for name, values in names.items():
        recorded = recorded.set_column(recorded.column_names.index(name), name, pa.array(values))
    assert mount_totals(recorded, patterns(capture).files) == (
        MountTotals(mount="", fs_type="", files=1, bytes_read=0, bytes_written=99),
        MountTotals(mount="/data", fs_type="lustre", files=2, bytes_read=15, bytes_written=0),
    )
