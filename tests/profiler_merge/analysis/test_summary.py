from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dxt_replay.profiler_merge.analysis.summary import summarise
from dxt_replay.traces.measures.operation_rows import operation_rows
from dxt_replay.traces.part import Part
from dxt_replay.traces.schema import RECONSTRUCTED, CaptureInfo, Coverage, Job
from dxt_replay.traces.store.part_capture import part_of
from dxt_replay.traces.store.reader import Capture, open_capture
from dxt_replay.traces.units import MIB
from tests.capture_builder import File, Op, Span, build_capture, read, write
from tests.places import SHARED

MS = 1_000_000
S = 1_000_000_000
PRINTED_NS = 100_000

NO_PYTHON = ("*.py*",)
"""VaniDL leaves out paths with .py."""

COUNTERS = {
    "posix_reads": 10,
    "posix_writes": 0,
    "posix_seq_reads": 9,
    "posix_consec_reads": 4,
    "posix_bytes_read": 3 * MIB,
    "posix_bytes_written": 0,
}


def small_capture(tmp_path: Path, **job: float) -> Capture:
    """Three ranks, of which the third does nothing: 3 reads, 1 write, 1 open, 2 reconstructed writes."""
    return build_capture(
        tmp_path,
        files=["/data", "/out", "/ckpt"],
        ops=[
            Op("open", 0, start_ns=0, end_ns=MS, rank=0),
            read(0, offset=0, length=MIB, start_ns=1 * MS, end_ns=3 * MS, rank=0),
            read(0, offset=MIB, length=MIB, start_ns=2 * MS, end_ns=4 * MS, rank=0, lane=1),
            read(0, offset=0, length=2 * MIB, start_ns=2 * MS, end_ns=6 * MS, rank=1),
            write(1, offset=0, length=MIB, start_ns=10 * MS, end_ns=11 * MS, rank=1),
            write(
                2, offset=0, length=999, start_ns=20 * MS, end_ns=30 * MS, rank=0, api="STDIO", origin="reconstructed"
            ),
            write(
                2, offset=999, length=1, start_ns=31 * MS, end_ns=32 * MS, rank=0, api="STDIO", origin="reconstructed"
            ),
        ],
        spans=[
            Span("step", start_ns=0, end_ns=10 * MS, step=0),
            Span("step", start_ns=10 * MS, end_ns=16 * MS, step=1),
            Span("compute", start_ns=3 * MS, end_ns=9 * MS),
            Span("input_wait", start_ns=0, end_ns=2 * MS),
        ],
        ranks=[2],
    )


def test_every_number_of_a_small_capture(tmp_path: Path) -> None:
    found = summarise(small_capture(tmp_path)).as_json()
    assert found["job"] == {"nprocs": 3, "run_time_s": pytest.approx(0.032), "exe": ""}
    assert found["operations"] == {"read": 3, "write": 1, "other": 1}
    assert found["bytes"] == {"read": 4 * MIB, "written": MIB}
    assert found["files"] == 2
    assert found["reconstructed"].pop("pct") == pytest.approx(100 / 3)
    assert found["reconstructed"] == {"read": 0, "write": 2, "other": 0, "bytes_read": 0, "bytes_written": 1000}
    assert found["io_time_s"] == {
        "union_per_rank_mean": pytest.approx((3 + 5) / 3 / 1000),
        "union_per_rank_max": pytest.approx(0.005),
        "sum_per_rank_mean": pytest.approx((4 + 5) / 3 / 1000),
        "sum_per_rank_max": pytest.approx(0.005),
    }
    assert found["in_flight_s"] == pytest.approx(0.006)
    assert found["aggregate_bandwidth_mib_s"] == pytest.approx(5 / 0.006)
    assert found["transfer_size_bytes"] == {"min": MIB, "median": MIB, "mean": 1.25 * MIB, "max": 2 * MIB}
    assert found["bandwidth_per_op_mib_s"] == pytest.approx({"min": 500, "median": 500, "mean": 625, "max": 1000})
    assert found["access_pattern_source"] == "operations"
    assert found["sequential_pct"] == found["consecutive_pct"] == 25
    assert found["steps"] == {"count": 2, "mean_s": pytest.approx(0.008), "extended": 0}
    assert found["compute"] == {
        "busy_s_per_rank_mean": pytest.approx(0.006),
        "io_hidden_pct": pytest.approx(100 / 3),
        "input_wait_s_per_rank_mean": pytest.approx(0.002),
        "profiled_ranks": 1,
    }
    assert {name: totals["operations"] for name, totals in found["interfaces"].items()} == {"POSIX": 4, "STDIO": 0}
    assert "groups" not in found
    json.dumps(found, allow_nan=False)


def test_an_empty_capture_has_zeros_and_nulls(tmp_path: Path) -> None:
    found = summarise(build_capture(tmp_path)).as_json()
    assert found["operations"] == {"read": 0, "write": 0, "other": 0}
    assert found["transfer_size_bytes"] == {"min": None, "median": None, "mean": None, "max": None}
    assert found["aggregate_bandwidth_mib_s"] is None
    assert found["sequential_pct"] is None
    assert found["compute"]["io_hidden_pct"] is None
    assert found["io_time_s"]["union_per_rank_mean"] == 0
    json.dumps(found, allow_nan=False)


def test_io_time_is_over_all_ranks_of_the_job(tmp_path: Path) -> None:
    info = CaptureInfo(job=Job(nprocs=8, run_time_s=1), ranks=(0,))
    capture = build_capture(tmp_path, files=["/a"], ops=[read(0, start_ns=0, end_ns=80 * MS, length=1)], info=info)
    assert summarise(capture).io_time_s.union_per_rank_mean == pytest.approx(0.010)


def test_darshans_own_pattern_is_preferred_and_said_so(tmp_path: Path) -> None:
    capture = build_capture(tmp_path, files=[File("/a", counters=COUNTERS)], ops=[read(0, length=1)])
    found = summarise(capture)
    assert (found.sequential_pct, found.consecutive_pct, found.access_pattern_source) == (90, 40, "counters")
    assert found.interfaces["POSIX"].operations == 10


def test_a_replay_is_not_described_by_the_counters_of_its_source(tmp_path: Path) -> None:
    info = CaptureInfo(job=Job(nprocs=1, run_time_s=1), ranks=(0,), made_by={"pace": "timed"})
    capture = build_capture(tmp_path, files=[File("/a", counters=COUNTERS)], ops=[read(0, length=1)], info=info)
    found = summarise(capture)
    assert found.access_pattern_source == "operations"
    assert found.interfaces["POSIX"].operations == 1


def test_what_the_merge_warned_of_is_repeated_with_the_coverage(tmp_path: Path) -> None:
    warnings = ("the trace is partial",)
    coverage = Coverage(bytes=0.31, operations=0.4)
    info = CaptureInfo(job=Job(nprocs=1, run_time_s=1), ranks=(0,), coverage=coverage, warnings=warnings, partial=True)
    found = summarise(build_capture(tmp_path, files=["/a"], ops=[read(0, length=1)], info=info))
    assert (found.coverage.bytes, found.coverage.operations, found.partial) == (0.31, 0.4, True)
    assert found.warnings == warnings


def test_io_longer_than_the_job_is_warned_about(tmp_path: Path) -> None:
    info = CaptureInfo(job=Job(nprocs=1, run_time_s=1), ranks=(0,))
    capture = build_capture(tmp_path, files=["/a"], ops=[read(0, start_ns=0, end_ns=5 * S, length=1)], info=info)
    (warning,) = summarise(capture).warnings
    assert "rank 0 spent more time in I/O than the job ran" in warning


@pytest.fixture(scope="module")
def theta(tmp_path_factory: pytest.TempPathFactory) -> Capture:
    log = SHARED / "theta" / "cosmictagger_8ranks.darshan"
    if not log.is_file():
        pytest.skip(f"{log} is not on this machine")
    merge = pytest.importorskip("dxt_replay.profiler_merge.merge", exc_type=ImportError).merge
    path = tmp_path_factory.mktemp("theta") / "theta.capture"
    merge([log], [], path)
    return open_capture(path)


def test_theta_with_and_without_python_files(theta: Capture) -> None:
    found, every = summarise(part_of(theta, Part(exclude=NO_PYTHON))), summarise(theta)
    assert (found.operations.read + found.operations.write, found.files) == (313_240, 21)
    assert every.operations.read + every.operations.write == 313_872
    times_s = found.io_time_s.sum_per_rank_mean, every.io_time_s.sum_per_rank_mean
    assert times_s == pytest.approx((16.118, 16.228), abs=5e-4)
    speeds = found.bandwidth_per_op_mib_s.mean, found.bandwidth_per_op_mib_s.median
    assert speeds == pytest.approx((266.7, 243.0), abs=0.1)
    shares = round(found.sequential_pct or 0, 2), round(found.consecutive_pct or 0, 2)
    assert (*shares, found.access_pattern_source) == (95.71, 88.18, "counters")
    moved = (found.interfaces["POSIX"].bytes, found.interfaces["STDIO"].bytes)
    assert [round((size or 0) / 2**30, 2) for size in moved] == [1.51, 0.93]
    assert found.io_time_s.union_per_rank_max < found.job.run_time_s == 988


def test_theta_as_vanidl_prints_it(theta: Capture) -> None:
    """VaniDL reads the text of darshan-dxt-parser, which has the log's own times to 0.1 ms, and makes 1 ms of 0."""
    offsets = {clock.rank: clock.offset_ns for clock in theta.info.clock}
    printed, lengths = [], []
    for rows in operation_rows(part_of(theta, Part(exclude=NO_PYTHON))):
        rows = rows.where(rows.data & (rows.origin != RECONSTRUCTED))
        begin, end = (
            (time - offsets.get(rows.rank, 0) + PRINTED_NS // 2) // PRINTED_NS * PRINTED_NS
            for time in (rows.start_ns, rows.end_ns)
        )
        printed.append(np.where(end == begin, MS, end - begin))
        lengths.append(rows.length)
    duration_ns, length = np.concatenate(printed), np.concatenate(lengths)
    assert duration_ns.sum() / 1e9 / theta.info.job.nprocs == pytest.approx(46.40235, abs=1e-9)
    bandwidth = (length / duration_ns * 1e9 / 2**20)[length > 0]
    assert (bandwidth.mean(), np.median(bandwidth)) == pytest.approx((10.02, 5.95), abs=0.005)
    assert (np.median(length), round(length.mean())) == (2529, 5170)


@pytest.mark.parametrize("origin", ["generated", "transformed", "modelled"])
def test_what_no_log_holds_but_is_known_one_by_one_counts(tmp_path: Path, origin: str) -> None:
    ops = [read(0, length=100, end_ns=50 * MS, origin=origin), Op("open", 0, origin=origin)]
    found = summarise(build_capture(tmp_path, files=["/a"], ops=ops))
    assert (found.operations.read, found.operations.other, found.bytes.read) == (1, 1, 100)
    assert (found.reconstructed.read, found.reconstructed.other) == (0, 0)
