"""A replay that did not do the recorded work is caught: operations, bytes, files, order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dxt_replay.replay.compare.comparison import compare
from dxt_replay.replay.compare.exactness import MAX_DIFFERENCES
from dxt_replay.traces.schema import CaptureInfo, Job
from dxt_replay.traces.store.reader import Capture
from tests.capture_builder import Op, build_capture, read, write
from tests.replay.compare.comparing import FILES, MS, STEPS, replay_of, replayed_ops, source_fixture  # noqa: F401

Change = Callable[[list[Op]], list[Op]]


def changed(place: int, **fields: Any) -> Change:
    return lambda ops: [replace(op, **fields) if k == place else op for k, op in enumerate(ops)]


def swapped(ops: list[Op]) -> list[Op]:
    """Two operations of a lane on a file, the fourth and the fifth, that changed places."""
    first, second = [place for place, op in enumerate(ops) if op.file_id == 0 and op.lane == 0][3:5]
    return changed(second, offset=ops[first].offset)(changed(first, offset=ops[second].offset)(ops))


OTHER_NUMBERS = {0: 3, 1: 1, 2: 0}
ALL = ("operations", "bytes", "files", "order")


@pytest.mark.parametrize(
    ("change", "files", "unequal", "said"),
    [
        (lambda ops: ops, FILES, (), ""),
        (lambda ops: ops[:7] + ops[8:], FILES, ("operations", "bytes", "order"), "lane 1, operation 2: read of 4096 B"),
        (lambda ops: ops[:7] + ops[8:], FILES, ("operations", "bytes", "order"), "200 reads of 800 KiB recorded, 199"),
        (swapped, FILES, ("order",), "rank 0, /data/a, lane 0, operation 3: read of 4096 B at 20480 recorded, read of"),
        (changed(5, offset=77), FILES, ("order",), "read of 100 B at 0 recorded, read of 100 B at 77 replayed"),
        # Longer, short, failed: what counts is what the call returned, whatever the row calls its length.
        (changed(0, length=4097, result=4097), FILES, ("bytes", "order"), "read of 4097 B at 0 replayed"),
        (changed(0, length=4096, result=100), FILES, ("bytes", "order"), "read of 100 B at 0 replayed"),
        (changed(0, length=0, result=-5), FILES, ("bytes", "order"), "read of 0 B at 0 replayed"),
        (lambda ops: ops, ("/data/a", "/data/B", "/out/c"), ALL, "/data/b is only recorded (1 such files)"),
        # Files are matched by path and not by number, and lanes may be numbered otherwise.
        (
            lambda ops: [replace(op, file_id=OTHER_NUMBERS[op.file_id], lane=9 - op.lane) for op in ops],
            ("/out/c", "/data/b", "/unused", "/data/a"),
            (),
            "",
        ),
        # Both ranks write the same.
        (lambda ops: [replace(op, rank=1 - op.rank) if op.file_id == 2 else op for op in ops], FILES, (), ""),
        (lambda ops: [replace(op, rank=1) if op.file_id == 2 else op for op in ops], FILES, ALL[:2] + ALL[3:], "write"),
    ],
)
def test_other_work_is_told(
    source: Capture, tmp_path: Path, change: Change, files: tuple[str, ...], unequal: tuple[str, ...], said: str
) -> None:
    found = compare(source, replay_of(tmp_path, change(replayed_ops()), files=files))
    assert found.exact.unequal_names == unequal
    assert (found.verdict.exact, found.passed) == (("fail", False) if unequal else ("pass", True))
    assert said in "; ".join(found.exact.differences)
    assert bool(found.exact.differences) is bool(unequal)


def test_a_failed_operation_that_had_nothing_to_move(tmp_path: Path) -> None:
    source = build_capture(tmp_path, files=["/a"], ops=[read(0, length=0)], name="source")
    replay = build_capture(tmp_path, files=["/a"], ops=[read(0, length=0, result=-5)], name="replay")
    assert compare(source, source).exact.bytes
    assert not compare(source, replay).exact.bytes
    assert compare(replay, replay).exact.bytes


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
