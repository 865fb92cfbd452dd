"""Requests of a calibration through the issue loop."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest

from dxt_replay.replay.calibration.issued import LaneItems, issue
from dxt_replay.replay.engine.files import FileSlot
from dxt_replay.replay.engine.issue import Files
from dxt_replay.replay.engine.items import BATCH_ITEMS, OPEN, READ_AT, WRITE_AT
from dxt_replay.traces.errors import TargetError


@pytest.fixture
def path(tmp_path: Path) -> bytes:
    file = tmp_path / "data"
    file.write_bytes(bytes(1 << 20))
    return str(file).encode()


def test_every_lane_does_all_its_items_in_the_order_of_their_ends(path: bytes) -> None:
    count = BATCH_ITEMS + 10
    lanes = [
        LaneItems(kind=READ_AT, slot=0, offset=4096 * (np.arange(count) % 256), length=4096, count=count)
        for _ in range(3)
    ]
    done = issue(Files([FileSlot(path=path, uses=3 * count)]), lanes, seconds=60, doing="test")
    assert len(done) == 3 * count
    assert (np.diff(done.end_ns) >= 0).all()
    assert (done.latency_ns >= 0).all()
    assert set(done.length.tolist()) == {4096}
    assert len(done.of_kind(READ_AT)) == len(done)
    assert len(done.of_kind(WRITE_AT)) == 0


def test_a_lane_pauses_between_two_requests(path: bytes) -> None:
    pause_ns = 3_000_000
    lane = LaneItems(kind=READ_AT, slot=0, offset=np.arange(5) * 4096, length=4096, pause_ns=pause_ns, count=5)
    done = issue(Files([FileSlot(path=path, uses=5)]), [lane], seconds=60, doing="test")
    assert len(done) == 5
    assert (done.begin_ns[1:] - done.end_ns[:-1] >= pause_ns).all()


def test_the_time_ends_a_lane_that_has_more_to_do(path: bytes) -> None:
    lane = LaneItems(kind=READ_AT, slot=0, length=1, pause_ns=1_000_000_000, count=100)
    done = issue(Files([FileSlot(path=path, uses=100)]), [lane], seconds=0.05, doing="test")
    assert len(done) < 100


def test_what_the_file_system_refuses_is_an_error(tmp_path: Path) -> None:
    files = Files([FileSlot(path=str(tmp_path / "absent").encode(), uses=1)])
    with pytest.raises(TargetError, match=r"cannot measure it: No such file or directory; choose another --target"):
        issue(files, [LaneItems(kind=OPEN, slot=0, count=1)], seconds=60, doing="measure it")


def test_a_full_file_system_says_to_free_space() -> None:
    from dxt_replay.replay.calibration.scratch import refused

    assert str(refused(OSError(errno.ENOSPC, ""), "measure /x")) == (
        "cannot measure /x: No space left on device; free space there or choose another --target"
    )
