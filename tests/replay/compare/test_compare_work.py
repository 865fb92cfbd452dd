"""A replay that did not do the recorded work is caught: operations, bytes, files, order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dxt_replay.replay.compare.comparison import compare
from dxt_replay.replay.compare.exactness import MAX_DIFFERENCES
from dxt_replay.traces.schema import CaptureInfo, Job
from dxt_replay.traces.store.reader import Capture
from tests.capture_builder import Op, build_capture, read, write
from tests.replay.compare.comparing import MS, STEPS, replay_of, replayed_ops, source_fixture  # noqa: F401


def test_a_dropped_operation(source: Capture, tmp_path: Path) -> None:
    ops = replayed_ops()
    del ops[7]
    found = compare(source, replay_of(tmp_path, ops))
    assert (found.exact.operations, found.exact.bytes, found.exact.files, found.exact.order) == (
        False,
        False,
        True,
        False,
    )
    assert "rank 0, /data/a: 200 reads of 800 KiB recorded, 199 reads of 796 KiB replayed" in found.exact.differences
    assert any("lane 1, operation 2: read of 4096 B at" in text for text in found.exact.differences)
    assert (found.verdict.exact, found.verdict.similarity, found.passed) == ("fail", "pass", False)


def test_two_operations_that_changed_places(source: Capture, tmp_path: Path) -> None:
    ops = replayed_ops()
    first, second = [place for place, op in enumerate(ops) if op.file_id == 0 and op.lane == 0][3:5]
    ops[first], ops[second] = (
        replace(ops[first], offset=ops[second].offset),
        replace(ops[second], offset=ops[first].offset),
    )
    found = compare(source, replay_of(tmp_path, ops))
    assert (found.exact.operations, found.exact.bytes, found.exact.files, found.exact.order) == (
        True,
        True,
        True,
        False,
    )
    (difference,) = found.exact.differences
    assert difference == (
        f"rank 0, /data/a, lane 0, operation 3: read of 4096 B at {ops[second].offset} recorded, "
        f"read of 4096 B at {ops[first].offset} replayed"
    )
    assert found.verdict.exact == "fail"


def test_a_moved_offset(source: Capture, tmp_path: Path) -> None:
    ops = replayed_ops()
    place = next(place for place, op in enumerate(ops) if op.file_id == 1 and op.offset == 500)
    ops[place] = replace(ops[place], offset=501)
    found = compare(source, replay_of(tmp_path, ops))
    assert (found.exact.operations, found.exact.bytes, found.exact.order) == (True, True, False)
    (difference,) = found.exact.differences
    assert "/data/b, lane 0, operation 5: read of 100 B at 500 recorded, read of 100 B at 501 replayed" in difference


@pytest.mark.parametrize(("length", "result"), [(4097, 4097), (4095, 4095), (0, -5), (4096, -5), (4096, 100)])
def test_a_length_that_is_not_the_recorded_one(source: Capture, tmp_path: Path, length: int, result: int) -> None:
    """Longer, short, failed: what counts is what the call returned, whatever the row calls its length."""
    ops = replayed_ops()
    ops[0] = replace(ops[0], length=length, result=result)
    found = compare(source, replay_of(tmp_path, ops))
    assert (found.exact.operations, found.exact.bytes) == (True, False)
    assert found.exact.failed == (result < 0)
    assert found.verdict.exact == "fail"


def test_a_failed_operation_that_had_nothing_to_move(tmp_path: Path) -> None:
    source = build_capture(tmp_path, files=["/a"], ops=[read(0, length=0)], name="source")
    replay = build_capture(tmp_path, files=["/a"], ops=[read(0, length=0, result=-5)], name="replay")
    assert compare(source, source).exact.bytes
    assert not compare(source, replay).exact.bytes
    assert compare(replay, replay).exact.bytes


def test_another_file(source: Capture, tmp_path: Path) -> None:
    found = compare(source, replay_of(tmp_path, replayed_ops(), files=("/data/a", "/data/B", "/out/c")))
    assert not found.exact.files
    assert "/data/b is only recorded (1 such files)" in found.exact.differences
    assert found.verdict.exact == "fail"


def test_files_are_matched_by_path_and_not_by_number(source: Capture, tmp_path: Path) -> None:
    number = {0: 3, 1: 1, 2: 0}
    ops = [replace(op, file_id=number[op.file_id]) for op in replayed_ops()]
    found = compare(source, replay_of(tmp_path, ops, files=("/out/c", "/data/b", "/unused", "/data/a")))
    assert found.passed, found.verdict.reasons


def test_operations_on_another_rank(source: Capture, tmp_path: Path) -> None:
    ops = [replace(op, rank=1 - op.rank) if op.file_id == 2 else op for op in replayed_ops()]
    assert compare(source, replay_of(tmp_path, ops)).exact.order, "both ranks write the same"
    ops = [replace(op, rank=1) if op.file_id == 2 else op for op in replayed_ops()]
    assert not compare(source, replay_of(tmp_path, ops)).exact.operations


def test_lanes_may_change_places_with_each_other(source: Capture, tmp_path: Path) -> None:
    """Lane 1 of rank 0 runs 5 ms late: each lane's own sequence is as recorded, their interleaving is not."""
    late = 5 * MS
    ops = [
        replace(op, start_ns=op.start_ns + late, end_ns=(op.end_ns or 0) + late) if (op.rank, op.lane) == (0, 1) else op
        for op in replayed_ops()
    ]
    found = compare(source, replay_of(tmp_path, ops))
    assert found.exact.order
    assert found.exact.inversions.count == 2 * STEPS
    assert found.exact.inversions.pairs == 5 * STEPS - 1 - (STEPS - 1)
    assert found.verdict.exact == "pass"


def test_lanes_may_be_numbered_otherwise(source: Capture, tmp_path: Path) -> None:
    ops = [replace(op, lane=9 - op.lane) for op in replayed_ops()]
    assert compare(source, replay_of(tmp_path, ops)).exact.order


def test_only_what_a_replay_issues_is_compared(tmp_path: Path) -> None:
    """A file recorded at two layers is replayed at one."""
    rows = [
        read(0, api="MPIIO", length=8, start_ns=10),
        read(0, api="POSIX", length=8, start_ns=11),
    ]
    source = build_capture(tmp_path, files=["/a"], ops=rows, name="source")
    replay = build_capture(tmp_path, files=["/a"], ops=[replace(rows[1], result=8)], name="replay")
    found = compare(source, replay)
    assert found.exact.operations
    assert found.exact.order
    assert found.similarity.factors["bytes"].source == 8


def test_state_is_carried_over_row_groups(tmp_path: Path) -> None:
    """Many row groups; one of the last operations differs."""
    count = 5_000
    rng = np.random.default_rng(4)
    starts, lanes = np.cumsum(rng.integers(1, 2000, count)).tolist(), rng.integers(0, 3, count).tolist()
    ops = [
        read(0, lane=lane, offset=10 * place, length=10, start_ns=start, end_ns=start + 500)
        for place, (start, lane) in enumerate(zip(starts, lanes, strict=True))
    ]
    source = build_capture(tmp_path, files=["/a"], ops=ops, name="source", row_group_rows=700)
    assert len(list(source.operations(0))) == 8
    assert compare(source, source).passed
    ops[-5] = replace(ops[-5], offset=3)
    replay = build_capture(tmp_path, files=["/a"], ops=ops, name="replay", row_group_rows=700)
    found = compare(source, replay)
    place = sum(lane == lanes[-5] for lane in lanes[:-5])
    assert found.exact.differences[0].startswith(f"rank 0, /a, lane {lanes[-5]}, operation {place}: read of 10 B at")


def test_operations_that_move_no_data_are_compared_in_number(tmp_path: Path) -> None:
    def made(name: str, opens: int, result: int = 0, api: str = "auto", reconstruct: bool = True) -> Capture:
        ops = [Op("open", 0, offset=-1, start_ns=i, origin="reconstructed", result=result) for i in range(opens)]
        info = CaptureInfo(
            job=Job(nprocs=1, run_time_s=1),
            ranks=(0,),
            made_by={"pace": "timed", "api": api, "reconstruct": reconstruct},
        )
        return build_capture(
            tmp_path, name=name, files=["/a"], ops=[*ops, read(0, length=8, start_ns=90, result=8)], info=info
        )

    source = made("source", 3)
    assert compare(source, made("same", 3)).exact.operations
    fewer = compare(source, made("fewer", 2)).exact
    assert not fewer.operations
    assert fewer.differences == ("rank 0, /a: 3 operations open recorded, 2 operations open replayed",)
    failed = compare(source, made("failed", 3, result=-5)).exact
    assert (failed.failed, failed.bytes) == (3, False)
    refused = compare(source, made("refused", 3, result=-2)).exact
    assert (refused.failed, refused.bytes) == (0, True), "an inferred open that finds nothing is not a failure"
    assert compare(source, made("without", 0, reconstruct=False)).exact.operations


@pytest.mark.parametrize("replayed", [2, 1])
def test_captures_with_metadata_alone_are_compared_by_their_operations(tmp_path: Path, replayed: int) -> None:
    """No read or write has a similarity: it is not judged, and fails nothing."""
    ops = [Op("stat", 0, start_ns=place * MS, due_ns=place * MS, result=0) for place in range(2)]
    recorded = [replace(op, due_ns=None, result=None) for op in ops]
    source = build_capture(tmp_path, ops=recorded, files=["/data/a"], name="looked")
    found = compare(source, replay_of(tmp_path, ops[:replayed], files=("/data/a",), span_list=[]))
    assert found.passed is (replayed == 2)
    same = "The replay did the same work: 2 of 2 operations"
    assert found.headline.startswith(same if replayed == 2 else "FAILED: the replay did not do the same work")
    assert found.verdict.similarity == "skipped"


def test_only_the_first_differences_are_described(tmp_path: Path) -> None:
    files = [f"/data/{number}" for number in range(40)]
    ops = [
        made(file_id, rank=rank, length=10, start_ns=1000 * file_id)
        for rank in range(3)
        for file_id in range(len(files))
        for made in (read, write)
    ]
    source = build_capture(tmp_path, files=files, ops=ops, name="source")
    replay = build_capture(tmp_path, files=files, ops=[*ops, *ops], name="replay")
    found = compare(source, replay).exact
    assert not found.operations
    assert len(found.differences) == MAX_DIFFERENCES
