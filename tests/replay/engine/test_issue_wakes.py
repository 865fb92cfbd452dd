"""A lane that falls asleep just as the feeder has something for it: no wake-up is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.places import ROOT
from tests.replay.engine.issue_lanes import built

PROGRAM = """
import ctypes, sys, threading, time
from dxt_replay.replay.engine.clock import StopFlag
from dxt_replay.replay.engine.issue import Files, Lane
from dxt_replay.replay.engine.items import MARK, LoopPace
from tests.fakes import make_batch
from tests.replay.engine.issue_lanes import started

held = ctypes.CDLL(sys.argv[1])
sleeps, let_go, timed_out = (ctypes.c_int.in_dll(held, name) for name in ("sleeps", "let_go", "timed_out"))
lane = Lane(Files([]), pace=LoopPace.THINK, start=started(), stop=StopFlag())
thread = threading.Thread(target=lane.run)
thread.start()

def as_it_falls_asleep(tell, number):
    while sleeps.value < number:
        time.sleep(0.001)
    tell()
    let_go.value = number

as_it_falls_asleep(lambda: lane.submit(make_batch((MARK, -1, 0, 0, 0))), 1)
as_it_falls_asleep(lane.finish, 2)
thread.join()
print(lane.items_done, sleeps.value, timed_out.value)
"""


def test_what_the_feeder_says_as_a_lane_falls_asleep_is_heard(tmp_path: Path) -> None:
    library = built("held_sleep", tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(library)],
        cwd=ROOT,
        env={**os.environ, "LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["1", "2", "0"], done.stderr
