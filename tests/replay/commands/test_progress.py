from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import numpy as np
import pytest

from dxt_replay.replay.commands.progress import run_progress, run_text, time_left_text
from dxt_replay.replay.engine.items import MARK, PLAN_ROW, READ_AT, SLEEP
from dxt_replay.replay.plan.lane_plan import LaneSource
from dxt_replay.replay.run.process import Progress
from dxt_replay.replay.run.rank_lanes import FedLane
from dxt_replay.replay.run.recording import NoRecorder
from dxt_replay.traces.units import NS_PER_MS, NS_PER_S

if TYPE_CHECKING:
    from dxt_replay.replay.engine.issue import Lane


def test_a_timed_run_says_how_late_it_is_and_how_long_it_will_take() -> None:
    progress = Progress(
        done=1500, total=6000, elapsed_ns=3 * NS_PER_S, expected_ns=10 * NS_PER_S, lag_ns=1500 * NS_PER_MS
    )
    assert run_text(progress) == "replaying 1,500 of 6,000 operations, 500/s, lag 1.500 s, 8 s left"


@pytest.mark.parametrize(("done", "left"), [(1500, "9 s left"), (0, "time left unknown")])
def test_a_run_without_due_times_is_judged_by_its_rate(done: int, left: str) -> None:
    progress = Progress(done=done, total=6000, elapsed_ns=3 * NS_PER_S, expected_ns=10 * NS_PER_S)
    assert run_text(progress).endswith(f"/s, {left}")


def test_nothing_is_shown_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    with run_progress(True) as report:
        report(Progress(done=1, total=2, elapsed_ns=1, expected_ns=2))
    assert capsys.readouterr() == ("", "")


def test_the_time_that_all_runs_take_is_judged_by_those_that_are_done() -> None:
    assert time_left_text(5.0, 0, 22) == "", "nobody knows yet"
    assert time_left_text(15.0, 2, 6) == "; all runs: 30 s left"
    assert time_left_text(15.0, 2, 22) == "; all runs: 2 min left"


class LoopLane:
    """A lane that has done as many items as a test says, and takes whatever it is given."""

    items_done = 0
    done = False

    def collect(self) -> None:
        return None

    def submit(self, items: np.ndarray) -> bool:
        return True

    def finish(self) -> None:
        """No more."""


class Rows(LaneSource):
    def __init__(self, *batches: np.ndarray) -> None:
        self._batches = list(batches)

    def next_rows(self) -> np.ndarray:
        return self._batches.pop(0) if self._batches else plan_rows([])


@pytest.fixture
def fed() -> Callable[..., tuple[LoopLane, FedLane]]:
    """A lane of the loop and what feeds it, which has handed over the first of the given batches."""

    def make(*batches: np.ndarray) -> tuple[LoopLane, FedLane]:
        lane = LoopLane()
        feeding = FedLane(cast("Lane", lane), Rows(*batches), NoRecorder(), "0.0")
        feeding.pump()
        return lane, feeding

    return make


def plan_rows(due_ns: list[int]) -> np.ndarray:
    rows = np.zeros(len(due_ns), dtype=PLAN_ROW)
    rows["due_ns"] = due_ns
    return rows


def test_the_lag_is_that_of_the_next_operation_of_a_lane(fed: Callable[..., tuple[LoopLane, FedLane]]) -> None:
    lane, feeding = fed(plan_rows([10, 20, 30]), plan_rows([40, 50]))
    behind = []
    for lane.items_done in range(6):
        behind.append(feeding.behind_ns(45))
    assert behind == [35, 25, 15, 5, 0, 0]


def test_waits_and_compute_are_not_operations_done(fed: Callable[..., tuple[LoopLane, FedLane]]) -> None:
    """Two operations among five items: never more are done than the survey counts."""
    rows = plan_rows([10, 20, 30, 40, 50])
    rows["kind"] = [MARK, READ_AT, SLEEP, READ_AT, MARK]
    lane, feeding = fed(rows)
    done = []
    for lane.items_done in range(6):
        done.append(feeding.operations_done)
    assert done == [0, 0, 1, 1, 2, 2]
