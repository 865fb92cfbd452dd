from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from dxt_replay.profiler_merge.analysis.interfaces import InterfaceCollector, InterfaceTotals
from dxt_replay.profiler_merge.analysis.summary import summarise
from dxt_replay.traces.measures.operation_rows import operation_rows
from dxt_replay.traces.schema import CaptureInfo, Job, Source
from tests.capture_builder import File, build_capture, files_table, read, write

OPS = [
    read(0, length=10, start_ns=0),
    write(0, length=4, start_ns=1),
    read(0, api="MPIIO", length=5, start_ns=2),
    read(0, api="MPIIO_COLL", length=6, start_ns=3),
    write(1, api="STDIO", length=100, start_ns=4, origin="reconstructed"),
]


def totals(tmp_path: Path, counted: pa.Table | None) -> dict[str, InterfaceTotals]:
    collector = InterfaceCollector()
    for rows in operation_rows(build_capture(tmp_path, files=["/a", "/b"], ops=OPS)):
        collector.add(rows)
    return collector.totals(counted)


def test_rows_decide_without_counters(tmp_path: Path) -> None:
    found = totals(tmp_path, None)
    assert list(found) == ["POSIX", "STDIO", "MPIIO"]
    assert found["POSIX"] == InterfaceTotals(
        operations=2, bytes=14, reads=1, writes=1, reconstructed=0, source="operations"
    )
    assert (found["MPIIO"].operations, found["MPIIO"].bytes) == (2, 11)
    assert (found["STDIO"].operations, found["STDIO"].reconstructed) == (0, 1)


@pytest.mark.parametrize(("recorder", "source"), [("darshan", "counters"), ("strace", "operations")])
def test_only_a_darshan_log_has_counters(tmp_path: Path, recorder: str, source: str) -> None:
    counted = {"posix_reads": 1, "posix_writes": 0, "posix_bytes_read": 10, "posix_bytes_written": 0}
    info = CaptureInfo(
        job=Job(nprocs=1, run_time_s=1.0), ranks=(0,), sources=(Source(name="a", sha256="0", kind=recorder),)
    )
    capture = build_capture(tmp_path, files=[File("/a", counters=counted)], ops=[read(0, length=10)], info=info)
    assert summarise(capture).interfaces["POSIX"].source == source


def test_counters_are_preferred_per_interface(tmp_path: Path) -> None:
    counters = {"stdio_reads": 0, "stdio_writes": 3, "stdio_bytes_read": -1, "stdio_bytes_written": 250}
    found = totals(tmp_path, files_table([File("/b", counters=counters), "/a"]))
    assert found["STDIO"] == InterfaceTotals(
        operations=3, bytes=250, reads=0, writes=3, reconstructed=1, source="counters"
    )
    assert found["POSIX"].source == "operations"
