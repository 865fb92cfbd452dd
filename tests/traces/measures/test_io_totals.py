from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dxt_replay.traces.measures.intervals import Intervals
from dxt_replay.traces.measures.io_totals import IoCollector, IoTotals
from dxt_replay.traces.measures.operation_rows import operation_rows
from dxt_replay.traces.units import MIB
from tests.capture_builder import build_capture, read, write


def totals_of(tmp_path: Path, ops: list, compute: dict[int, Intervals] | None = None) -> IoTotals:
    capture = build_capture(tmp_path, files=["/a", "/b", "/unused"], ops=ops)
    collector = IoCollector(3, compute or {})
    for rows in operation_rows(capture):
        collector.add(rows)
    return collector.totals()


def test_union_and_sum_of_overlapping_operations(tmp_path: Path) -> None:
    totals = totals_of(
        tmp_path,
        [
            read(0, start_ns=0, end_ns=100, length=10),
            read(0, start_ns=50, end_ns=150, length=20, lane=1),
            write(1, start_ns=140, end_ns=160, length=5, rank=1),
            write(1, start_ns=300, end_ns=310, length=5, rank=1),
        ],
    )
    first, second = totals.ranks
    assert (first.reads, first.bytes_read, first.sum_ns, first.union_ns) == (2, 30, 200, 150)
    assert (second.writes, second.bytes_written, second.sum_ns, second.union_ns) == (2, 10, 30, 30)
    assert totals.total("reads") == totals.total("writes") == 2
    assert totals.bytes_moved == 40
    assert totals.files_used.tolist() == [True, True, False]
    assert totals.busy.length_ns == 160 + 10
    assert totals.busy_excess_ns == 0


def test_bandwidth_leaves_out_what_moved_nothing_or_took_no_time(tmp_path: Path) -> None:
    totals = totals_of(
        tmp_path,
        [
            read(0, start_ns=0, end_ns=1_000_000, length=MIB),
            read(0, start_ns=2_000_000, end_ns=2_000_000, length=MIB),
            read(0, start_ns=3_000_000, end_ns=3_000_100, length=0),
        ],
    )
    assert totals.bandwidth_mib_s.values.tolist() == pytest.approx([1000.0])
    assert totals.unmeasured == 1
    assert totals.size_bytes.count == 3


def test_hidden_time_is_what_compute_covers(tmp_path: Path) -> None:
    compute = {0: Intervals.union_of(np.array([50, 200]), np.array([120, 400]))}
    totals = totals_of(
        tmp_path,
        [
            read(0, start_ns=0, end_ns=100),
            read(0, start_ns=90, end_ns=130, lane=1),
            read(0, start_ns=390, end_ns=410),
            read(0, start_ns=50, end_ns=60, rank=1),
        ],
        compute,
    )
    assert [rank.hidden_ns for rank in totals.ranks] == [70 + 10, 0]
