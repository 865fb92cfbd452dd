"""How many workers of a DataLoader read at once, and how often they began: made ones, and recorded ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from dxt_replay.profiler_merge.analysis.analyse import WorkerStarts, worker_starts
from dxt_replay.profiler_merge.analysis.findings import findings
from dxt_replay.profiler_merge.given_files import find_profiles
from dxt_replay.profiler_merge.merge import merge
from dxt_replay.traces.schema import CaptureInfo, Job, RankClock
from dxt_replay.traces.store.reader import Capture, open_capture
from tests.capture_builder import Op, Span, build_capture, read
from tests.places import recorded

MS = 1_000_000
S = 1_000_000_000


def training(directory: Path, ops: Sequence[Op], *, workers: int, spans: Sequence[Span]) -> Capture:
    """Ten steps of a second. The processes are a rank and its workers."""
    clock = tuple(
        RankClock(rank=0, method="wall", offset_ns=0, residual_ns=1, interval_ns=(0, 1), worker=worker)
        for worker in range(workers + 1)
    )
    job = Job(nprocs=1, run_time_s=10.0, exe="torchrun train.py")
    steps = [Span("step", start_ns=step * S, end_ns=(step + 1) * S, step=step) for step in range(10)]
    described = CaptureInfo(job=job, ranks=(0,), clock=clock)
    return build_capture(directory, files=["/d/1.png"], ops=ops, spans=[*steps, *spans], info=described)


def waited(step: int) -> Span:
    return Span("input_wait", start_ns=step * S, end_ns=step * S + S // 2, step=step)


@pytest.mark.parametrize(
    ("lives", "said", "again"),
    [
        ([], None, None),
        ([(0, 9)], "1 worker of", None),
        ([(0, 4), (0, 4), (5, 9), (5, 9)], "2 workers of", "started again 1 time:"),
        ([(0, 2), (3, 5), (6, 9)], "1 worker of", "started again 2 times:"),
        ([(0, 9), (0, 9), (2, 3), (5, 6)], "3 workers of", None),  # a loader for validation beside one that stays
        ([(0, 9), (0, 9), (11, 12)], "2 workers of", None),  # after the last step
    ],
)
def test_the_remedy_for_a_dataloader_follows_the_recorded_workers(
    tmp_path: Path, lives: list[tuple[int, int]], said: str | None, again: str | None
) -> None:
    """`lives`: the steps of the first and the last read of each worker."""
    ops = [
        read(0, start_ns=step * S, end_ns=step * S + MS, lane=lane)
        for lane, life in enumerate([(0, 9), *lives])
        for step in life
    ]
    capture = training(tmp_path, ops, workers=len(lives), spans=[waited(step) for step in range(10)])
    (remedy,) = [each.remedy for each in findings(capture) if each.code == "input-bound"]
    assert "num_workers=N" in remedy
    assert ("persistent_workers" in remedy) == (again is not None)
    for text in (said, again):
        assert (text or "") in remedy
    if said is not None:  # half of the loop waits: twice as many are needed
        assert f"{2 * int(said[0])} would keep up" in remedy


def test_workers_of_an_evaluation_are_no_new_start(tmp_path: Path) -> None:
    ops = [read(0, start_ns=at * S, end_ns=at * S + MS, lane=lane) for lane, at in ((0, 0), (1, 1), (2, 5), (3, 8))]
    evaluation = Span("other", start_ns=5 * S, end_ns=6 * S, name="evaluation")
    capture = training(tmp_path, ops, workers=3, spans=[evaluation])
    assert worker_starts(capture) == WorkerStarts(at_once=1, starts=2)


@pytest.mark.parametrize(("name", "at_once", "starts"), [("images", 2, 4), ("eval", 2, 1), ("shards", 2, 1)])
def test_workers_of_recorded_jobs(tmp_path: Path, name: str, at_once: int, starts: int) -> None:
    """images: 4 epochs without persistent_workers; eval: with them, and 6 evaluations; shards: one epoch."""
    folder = recorded(f"captures/torch_{name}")
    merge(sorted(folder.glob("logs/*.darshan")), find_profiles(folder / "profile"), tmp_path / "a.capture")
    assert worker_starts(open_capture(tmp_path / "a.capture")) == WorkerStarts(at_once=at_once, starts=starts)
