"""A lane between its source and its recorder: what is read ahead, and what is not after a stop."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dxt_replay.replay.engine.items import PLAN_ROW, READ_AT, RING_BATCHES, Completed
from dxt_replay.replay.plan.lane_plan import LaneSource
from dxt_replay.replay.ranks.comm import Solo
from dxt_replay.replay.run.options import RunOptions
from dxt_replay.replay.run.process import Progress
from dxt_replay.replay.run.rank_lanes import FedLane, NoRecorder
from dxt_replay.replay.run.runner import run_replay
from dxt_replay.replay.target.stage import plan_stage, stage
from dxt_replay.traces.errors import ReplayError
from dxt_replay.traces.store.reader import Capture, open_capture
from tests.capture_builder import build_capture, read

HOUR_NS = 3600 * 10**9


class Source(LaneSource):
    """Gives so many batches of one read each, and counts them."""

    def __init__(self, batches: int) -> None:
        self.left = batches

    def next_rows(self) -> np.ndarray:
        rows = np.zeros(min(self.left, 1), dtype=PLAN_ROW)
        rows["kind"] = READ_AT
        self.left -= len(rows)
        return rows


class Ring:
    """A lane that does nothing by itself."""

    def __init__(self) -> None:
        self.queued: list[np.ndarray] = []
        self.finished = False

    def submit(self, items: np.ndarray) -> bool:
        if len(self.queued) == RING_BATCHES:
            return False
        self.queued.append(items)
        return True

    def finish(self) -> None:
        self.finished = True

    def collect(self) -> Completed | None:
        if not self.queued:
            return None
        none = np.zeros(1, dtype=np.int64)
        return Completed(items=self.queued.pop(0), due_ns=none, begin_ns=none, end_ns=none, result=none)


class Recorder(NoRecorder):
    """Notes how many results each call brought."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    def record(self, planned: np.ndarray, done: Completed) -> None:
        assert len(planned) == done.count
        self.counts.append(done.count)


def fed(batches: int, recorder: NoRecorder | None = None, record_items: int = 1) -> tuple[FedLane, Ring, Source]:
    ring, source = Ring(), Source(batches)
    lane: Any = ring
    return FedLane(lane, source, recorder or NoRecorder(), "0.0", record_items=record_items), ring, source


def test_a_lane_is_filled_and_told_when_nothing_more_comes() -> None:
    lane, ring, source = fed(RING_BATCHES + 1)
    lane.pump()
    assert (len(ring.queued), source.left, ring.finished) == (RING_BATCHES, 1, False)
    lane.pump()
    assert (len(ring.queued), ring.finished) == (1, True)


def test_to_collect_is_not_to_feed() -> None:
    lane, ring, source = fed(3 * RING_BATCHES)
    lane.pump()
    left = source.left
    lane.collect()
    assert (ring.queued, source.left) == ([], left)


def test_results_are_recorded_together_and_the_rest_at_the_end() -> None:
    recorder = Recorder()
    lane, _, _ = fed(7, recorder, record_items=3)
    lane.pump()
    lane.pump()
    assert recorder.counts == [3, 3]
    lane.end()
    assert recorder.counts == [3, 3, 1]
    lane.end()
    assert recorder.counts == [3, 3, 1]


def two_lanes(folder: Path) -> Capture:
    """The first operations are at once, the others in an hour."""
    ops = [
        read(0, lane=lane, offset=4096 * i, length=4096, start_ns=(HOUR_NS if i > 1 else 0) + 1000 * i + lane)
        for lane in range(2)
        for i in range(200)
    ]
    return build_capture(folder, ops=ops, files=["/data/train"], name="source")


def options(target: Path, capture: Capture) -> RunOptions:
    return RunOptions(target=target)


def test_a_stopped_run_keeps_what_was_done(tmp_path: Path) -> None:
    source = two_lanes(tmp_path)
    stage(plan_stage(source, tmp_path / "twin"))

    def stop_after_the_first(progress: Progress) -> None:
        if progress.done == 4:
            signal.raise_signal(signal.SIGINT)

    result = run_replay(
        source, tmp_path / "r.capture", options(tmp_path / "twin", source), Solo(), stop_after_the_first
    )
    assert result is not None
    assert (result.stopped, result.succeeded, result.tally.operations) == (True, False, 4)
    assert open_capture(tmp_path / "r.capture").operation_count() == 4


def test_a_system_without_threads_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = two_lanes(tmp_path)
    stage(plan_stage(source, tmp_path / "twin"))
    started: list[threading.Thread] = []

    class Thread(threading.Thread):
        def start(self) -> None:
            if self.name.startswith("lane-"):
                if started:
                    raise RuntimeError("can't start new thread")
                started.append(self)
            super().start()

    monkeypatch.setattr(threading, "Thread", Thread)
    with pytest.raises(ReplayError, match=r"each of its 2 lanes, and the system refused number 2.*--ranks"):
        run_replay(source, tmp_path / "r.capture", options(tmp_path / "twin", source), Solo())
    started[0].join()
    assert not (tmp_path / "r.capture").exists()
