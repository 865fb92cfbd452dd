"""The totals of a capture, from rows and counters, on Theta, and from any number of pieces and processes.

`tests/same` has every number of recorded jobs."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dxt_replay.profiler_merge.analysis import tables
from dxt_replay.profiler_merge.analysis.named_tables import CONTENTS, views
from dxt_replay.profiler_merge.analysis.overview import overview
from dxt_replay.profiler_merge.analysis.summary import Summary, summarise
from dxt_replay.profiler_merge.merge import merge
from dxt_replay.traces.measures.operation_rows import operation_rows
from dxt_replay.traces.part import Part
from dxt_replay.traces.schema import RECONSTRUCTED, CaptureInfo, Coverage, Job, Source
from dxt_replay.traces.store.part_capture import part_of
from dxt_replay.traces.store.reader import Capture, open_capture
from dxt_replay.traces.units import MIB
from dxt_replay.traces.workers import ALONE, Workers
from tests.capture_builder import File, Op, build_capture, read, write
from tests.examples import examples
from tests.places import CAPTURES, recorded
from tests.workers_equality import OPERATIONS, SPANS, plain

MS, S = 1_000_000, 1_000_000_000
PRINTED_NS = 100_000

NO_PYTHON = Part(exclude=("*.py*",))
"""VaniDL leaves out paths with .py."""

COUNTED = {
    "posix_reads": 10, "posix_writes": 0, "posix_seq_reads": 9, "posix_consec_reads": 4,
    "posix_bytes_read": 3 * MIB, "posix_bytes_written": 0,
}  # fmt: skip
STREAM = {"stdio_reads": 0, "stdio_writes": 3, "stdio_bytes_read": -1, "stdio_bytes_written": 250}


def info(**changes: Any) -> CaptureInfo:
    return CaptureInfo(**{"job": Job(nprocs=1, run_time_s=1), "ranks": (0,), **changes})


def of(folder: Path, *ops: Op, file: File | str = "/a", **changes: Any) -> Summary:
    return summarise(build_capture(folder, files=[file, "/b"], ops=ops, info=info(**changes)))


def test_an_empty_capture_has_zeros_and_nulls(tmp_path: Path) -> None:
    found = summarise(build_capture(tmp_path)).as_json()
    assert found["operations"] == {"read": 0, "write": 0, "other": 0}
    assert found["transfer_size_bytes"] == {"min": None, "median": None, "mean": None, "max": None}
    assert found["aggregate_bandwidth_mib_s"] is found["sequential_pct"] is found["compute"]["io_hidden_pct"] is None
    assert found["io_time_s"]["union_per_rank_mean"] == 0
    json.dumps(found, allow_nan=False)


def test_io_time_is_over_all_ranks_of_the_job_and_no_longer_than_the_job(tmp_path: Path) -> None:
    found = of(tmp_path, read(0, end_ns=8 * S, length=1), job=Job(nprocs=8, run_time_s=1))
    assert found.io_time_s.union_per_rank_mean == pytest.approx(1)
    (warning,) = found.warnings
    assert "rank 0 spent more time in I/O than the job ran" in warning


LAYERS = (
    read(0, length=10, start_ns=0), write(0, length=4, start_ns=1), read(0, api="MPIIO", length=5, start_ns=2),
    read(0, api="MPIIO_COLL", length=6, start_ns=3), write(1, api="STDIO", length=100, origin="reconstructed"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("counters", "changes", "wanted"),
    [
        (COUNTED, {}, (90, 40, "counters", {"POSIX": (10, 3 * MIB, 0, "counters"), "STDIO": (0, 0, 1, "operations")})),
        # counters are preferred by interface
        (STREAM, {}, (0, 0, "operations", {"POSIX": (2, 14, 0, "operations"), "STDIO": (3, 250, 1, "counters")})),
        # those of a replay are its source's, and another recorder has none
        (COUNTED, {"made_by": {"pace": "timed"}}, (0, 0, "operations", {"POSIX": (2, 14, 0, "operations")})),
        *(
            (COUNTED, {"sources": (Source(name="a", sha256="0", kind=kind),)},
             (*shown, {"POSIX": (2 if kind == "strace" else 10, moved, 0, shown[2])}))
            for kind, moved, shown in (("darshan", 3 * MIB, (90, 40, "counters")), ("strace", 14, (0, 0, "operations")))
        ),
    ],
)  # fmt: skip
def test_counters_are_preferred_where_they_are_those_of_the_rows(
    tmp_path: Path, counters: dict[str, int], changes: dict[str, Any], wanted: tuple[Any, ...]
) -> None:
    found = of(tmp_path, *LAYERS, file=File("/a", counters=counters), **changes)
    *shown, interfaces = wanted
    assert [found.sequential_pct, found.consecutive_pct, found.access_pattern_source] == shown
    assert list(found.interfaces) == ["POSIX", "STDIO", "MPIIO"]
    for name, totals in {"MPIIO": (2, 11, 0, "operations"), **interfaces}.items():
        each = found.interfaces[name]
        assert (each.operations, each.bytes, each.reconstructed, each.source) == totals
        assert each.operations == each.reads + each.writes


def test_what_the_merge_warned_of_is_repeated_with_the_coverage(tmp_path: Path) -> None:
    said = {"coverage": Coverage(bytes=0.31, operations=0.4), "warnings": ("the trace is partial",), "partial": True}
    found = of(tmp_path, read(0, length=1), **said)
    assert (found.coverage.bytes, found.coverage.operations, found.partial) == (0.31, 0.4, True)
    assert found.warnings == said["warnings"]


@pytest.mark.parametrize("origin", ["generated", "transformed", "modelled"])
def test_what_no_log_holds_but_is_known_one_by_one_counts(tmp_path: Path, origin: str) -> None:
    found = of(tmp_path, read(0, length=100, end_ns=50 * MS, origin=origin), Op("open", 0, origin=origin))
    assert (found.operations.read, found.operations.other, found.bytes.read) == (1, 1, 100)
    assert (found.reconstructed.read, found.reconstructed.other) == (0, 0)


@pytest.fixture(scope="module")
def theta(tmp_path_factory: pytest.TempPathFactory) -> Capture:
    path = tmp_path_factory.mktemp("theta") / "theta.capture"
    merge([recorded("theta/cosmictagger_8ranks.darshan")], [], path)
    return open_capture(path)


def test_theta_with_and_without_python_files(theta: Capture) -> None:
    found, every = summarise(part_of(theta, NO_PYTHON)), summarise(theta)
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
    for rows in operation_rows(part_of(theta, NO_PYTHON)):
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


# ---- pieces

EACH = tuple(name for name in tables.TABLES if name not in CONTENTS)


def everything(capture: Capture, workers: Workers, by: str = "file") -> object:
    return plain([views(capture, EACH, by=by, workers=workers), overview(capture, workers=workers, most_bars=100)])


@settings(max_examples=examples(8))
@example(ops=[Op("read", rank, length=4096, rank=rank) for rank in (0, 1)], by="rank")
@given(ops=OPERATIONS, by=st.sampled_from(["rank", "file", "format", "step", "size"]))
def test_the_ranks_alone_come_to_the_whole(ops: list[Op], by: str) -> None:
    """Durations are equal and lengths whole numbers, so that means have no rounding that the order could change."""
    with TemporaryDirectory() as folder:
        capture = build_capture(Path(folder), files=["/a", "/b.h5", "/c", "/d"], ops=ops, spans=SPANS, ranks=range(5))
        assert everything(capture, Workers(1, piece_operations=1), by) == everything(capture, ALONE, by)


def test_any_number_of_processes_comes_to_the_same_bits(tmp_path: Path) -> None:
    folder = CAPTURES / "climate"
    if not folder.exists():
        pytest.skip("the recorded captures are not here")
    merge([folder / "job.darshan"], sorted((folder / "profile").rglob("*.xplane.pb*")), tmp_path / "x.capture")
    capture = open_capture(tmp_path / "x.capture")
    assert len(capture.ranks) > 1
    found = everything(capture, Workers(1, piece_operations=1))
    for count in (2, 3):
        with Workers(count, piece_operations=1) as workers:
            assert everything(capture, workers) == found
