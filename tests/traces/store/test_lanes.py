"""`lanes.parquet`: one row for each lane of the operations, with what is known of it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dxt_replay.traces.errors import CaptureError
from dxt_replay.traces.part import Part
from dxt_replay.traces.schema import LANES_SCHEMA, CaptureInfo, Job
from dxt_replay.traces.store.part_capture import part_of
from dxt_replay.traces.store.reader import Capture, open_capture
from dxt_replay.traces.store.writer import (
    OpsWriter,
    create_capture,
    lanes_with_facts,
    write_capture_info,
    write_files,
    write_lanes,
    write_spans,
    written_lanes,
)
from tests.capture_builder import files_table, lanes_table, ops_table, read, spans_table

OPS = [
    read(0, rank=rank, lane=lane, start_ns=10 * lane + start) for rank in (0, 3) for lane in (0, 2) for start in (0, 5)
]


def build(folder: Path, facts: pa.Table) -> Capture:
    path = folder / "test.capture"
    create_capture(path)
    for rank in (0, 3):  # two writers, as two processes have them
        with OpsWriter(path, row_group_rows=3) as writer:
            writer.write(ops_table(op for op in OPS if op.rank == rank))
    write_files(path, files_table(["/a"], OPS))
    write_spans(path, spans_table([]))
    assert [column.tolist() for column in written_lanes(path)] == [[0, 0, 3, 3], [0, 2, 0, 2]]
    write_lanes(path, facts)
    write_capture_info(path, CaptureInfo(job=Job(nprocs=4, run_time_s=1.0), ranks=(0, 1, 3)))
    return open_capture(path)


def test_each_lane_with_operations_has_one_row_and_no_other(tmp_path: Path) -> None:
    told = [
        (3, 2, "b", 9, "worker"), (0, 0, "a", 7, "main"), (0, 1, "a", 8, "thread"), (1, 0, "a", 8, None),
        (0, 0, "late", 1, "reader"),
    ]  # fmt: skip
    capture = build(tmp_path, lanes_table(told))
    assert [tuple(row.values()) for row in capture.lanes.to_pylist()] == [
        (0, 0, "a", 7, 7, "main"),
        (0, 2, None, None, None, None),
        (3, 0, None, None, None, None),
        (3, 2, "b", 9, 9, "worker"),
    ]
    assert "lanes.parquet" in capture.info.digests
    assert part_of(capture, Part(ranks=(3,))).lanes["lane"].to_pylist() == [0, 2]
    only = lanes_with_facts(capture.lanes, ["role"])
    assert only["host"].null_count == only["pid"].null_count == only.num_rows
    assert only["role"].to_pylist() == ["main", None, None, "worker"]


@pytest.mark.parametrize("facts", [LANES_SCHEMA.empty_table(), lanes_table([(0, 0, None, None, None)])])
def test_where_nothing_is_known_there_is_no_table(facts: pa.Table, tmp_path: Path) -> None:
    capture = build(tmp_path, facts)
    assert not (capture.path / "lanes.parquet").exists()
    assert capture.lanes.equals(LANES_SCHEMA.empty_table())


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([(0, 0, "a", 1, None), (0, 0, "b", 2, None)], "two rows of one lane"),
        ([(2, 0, "a", 1, None)], "a rank that capture.json does not list"),
        ([(0, -1, "a", 1, None)], "below 0"),
    ],
)
def test_damage_is_named(
    rows: list[tuple[int, int, str | None, int | None, str | None]], message: str, tmp_path: Path
) -> None:
    capture = build(tmp_path, lanes_table([(0, 0, "a", 7, "main")]))
    pq.write_table(lanes_table(rows), capture.path / "lanes.parquet")
    with pytest.raises(CaptureError, match=message):
        _ = open_capture(capture.path).lanes
