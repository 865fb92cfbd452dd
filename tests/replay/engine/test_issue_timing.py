"""When items are due and begin: exactly on a fake clock, in `on_fake_clock`, and on the real one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from dxt_replay.replay.engine.files import FileSlot
from dxt_replay.replay.engine.issue import Files
from dxt_replay.replay.engine.items import READ_AT, LoopPace
from tests.fakes import make_batch
from tests.places import ROOT
from tests.replay.engine.issue_lanes import built, run_lane


def test_times_are_exact_on_a_fake_clock(tmp_path: Path) -> None:
    library = built("fake_clock", tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/replay/engine/on_fake_clock.py"],
        cwd=ROOT,
        env={**os.environ, "LD_PRELOAD": str(library), "FAKE_CLOCK": str(library)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def gaps(count):
    return [(i * 7919) % 90_000 for i in range(count)]


def test_think_items_are_due_a_gap_after_the_previous_end(data):
    files = Files([FileSlot(path=data, uses=100)])
    first, second = (make_batch(*((READ_AT, 0, 0, 10, gap) for gap in gaps(30))) for _ in range(2))
    completed, _ = run_lane(files, first, second, pace=LoopPace.THINK)
    due, begin, end = (
        np.concatenate([getattr(done, name) for done in completed]) for name in ("due_ns", "begin_ns", "end_ns")
    )
    assert due[0] == gaps(1)[0]
    assert np.array_equal(due[1:], end[:-1] + (gaps(30) * 2)[1:])
    assert np.all(begin >= due)
