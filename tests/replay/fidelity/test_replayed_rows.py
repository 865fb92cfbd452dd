from __future__ import annotations

from pathlib import Path

from dxt_replay.replay.fidelity.replayed_rows import NOT_GIVEN, ReplayedCapture, first_start_ns
from tests.capture_builder import Op, build_capture, read, write


def test_reads_and_writes_with_what_they_returned(tmp_path: Path) -> None:
    capture = build_capture(
        tmp_path,
        files=["/a"],
        ops=[
            Op("open", 0, start_ns=0),
            read(0, length=8, start_ns=1, due_ns=1, result=8),
            read(0, length=8, start_ns=2, due_ns=1, result=5),
            write(0, length=8, start_ns=3, due_ns=2, result=-28),
            write(0, length=8, start_ns=4),
        ],
    )
    (part,) = ReplayedCapture(capture).rows(0)
    assert part.rows.length.tolist() == [8, 5, 0, 8]
    assert part.failed.tolist() == [False, False, True, False]
    assert part.due_ns.tolist() == [1, 1, 2, NOT_GIVEN]
    assert (len(part.others), part.others_failed.tolist()) == (1, [False])


def test_a_capture_that_is_no_replay_has_neither_results_nor_due_times(tmp_path: Path) -> None:
    capture = build_capture(tmp_path, files=["/a"], ops=[read(0, length=8)])
    (part,) = ReplayedCapture(capture).rows(0)
    assert (part.rows.length.tolist(), part.due_ns.tolist(), part.failed.tolist()) == ([8], [NOT_GIVEN], [False])


def test_first_start_is_that_of_a_read_or_write_of_any_rank(tmp_path: Path) -> None:
    ops = [Op("open", 0, start_ns=-50), read(0, start_ns=7), write(0, rank=2, start_ns=-3), Op("close", 0, start_ns=99)]
    assert first_start_ns(build_capture(tmp_path, files=["/a"], ops=ops)) == -3
    assert first_start_ns(build_capture(tmp_path, name="empty")) == 0
