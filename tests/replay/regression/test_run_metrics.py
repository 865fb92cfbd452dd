from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dxt_replay.replay.plan.pacing import Pace, RunOptions
from dxt_replay.replay.ranks.mpi import Solo
from dxt_replay.replay.regression.run_metrics import METRICS, measure, measure_run, primary_metric
from dxt_replay.replay.run.recorded import Tally
from dxt_replay.replay.run.story import run_replay
from dxt_replay.replay.target.stage import plan_stage, stage
from dxt_replay.traces.measures.distribution import Distribution
from dxt_replay.traces.store.reader import Capture, open_capture
from dxt_replay.traces.units import MIB
from tests.capture_builder import Op, Span, build_capture, read, write

MS = 1_000_000


def replayed(folder: Path) -> Capture:
    """Two ranks. Rank 0 reads for 2 + 4 ms and writes 3 ms; its open overlaps its stat; rank 1 reads 5 ms."""
    ops = [
        read(0, start_ns=0, end_ns=2 * MS, length=MIB),
        read(0, start_ns=10 * MS, end_ns=14 * MS, length=MIB),
        write(0, start_ns=12 * MS, end_ns=15 * MS, length=MIB),
        Op("open", 0, start_ns=20 * MS, end_ns=24 * MS),
        Op("stat", 0, start_ns=22 * MS, end_ns=26 * MS),
        read(0, start_ns=10 * MS, end_ns=15 * MS, length=MIB, rank=1),
    ]
    spans = [
        Span("step", 5 * MS, 20 * MS, step=0),
        Span("step", 20 * MS, 40 * MS, step=1),
        Span("step", 6 * MS, 50 * MS, rank=1, step=0),
        Span("input_wait", 5 * MS, 8 * MS, step=0),
        Span("input_wait", 6 * MS, 9 * MS, rank=1, step=0),
    ]
    return build_capture(folder, ops=ops, files=["/a"], spans=spans)


def tally() -> Tally:
    times = Distribution.of(np.array([2, 4, 3, 4, 4, 5]) * MS)
    return Tally(operations=6, last_end_ns=26 * MS, latency_ns=times, response_ns=times + times)


def test_the_metrics_of_a_run_with_steps(tmp_path: Path) -> None:
    found = measure(replayed(tmp_path), tally(), training=True)
    assert found == {
        "elapsed_s": pytest.approx(0.045),
        "total_s": pytest.approx(0.050),
        "io_time_s": pytest.approx((0.002 + 0.005 + 0.005) / 2),
        "metadata_time_s": pytest.approx(0.006 / 2),
        "input_wait_per_step_s": pytest.approx(0.006 / 3),
        "latency_mean_us": pytest.approx(22_000 / 6),
        "response_mean_us": pytest.approx(22_000 / 6),
        "read_latency_p50_us": pytest.approx(4_000),
        "read_latency_p99_us": pytest.approx(4_980),
        "write_latency_p50_us": pytest.approx(3_000),
        "write_latency_p99_us": pytest.approx(3_000),
        "bandwidth_mib_s": pytest.approx(4 / 0.007),
    }
    assert list(found) == list(METRICS)


def test_closes_that_failed_are_counted(tmp_path: Path) -> None:
    source = build_capture(tmp_path, ops=[write(0, length=9)], files=["/a"])
    stage(plan_stage(source, tmp_path / "twin"))
    result = run_replay(source, tmp_path / "r.capture", RunOptions(target=tmp_path / "twin"), Solo())
    assert result is not None
    refused = replace(result, tally=replace(result.tally, close_errors={errno.ENOSPC: 2, errno.EIO: 1}))
    assert measure_run(open_capture(result.capture), refused, side="baseline", pair=1, kept=True).failed_closes == 3


def test_without_steps_the_replay_ends_with_its_last_operation(tmp_path: Path) -> None:
    found = measure(replayed(tmp_path), tally(), training=False)
    assert found["elapsed_s"] == pytest.approx(0.026)
    assert not {"total_s", "input_wait_per_step_s"} & found.keys()


def test_what_a_run_did_none_of_is_no_metric(tmp_path: Path) -> None:
    only_read = build_capture(tmp_path, ops=[read(0, start_ns=0, end_ns=MS, length=9)], files=["/a"])
    found = measure(only_read, tally(), training=True)
    assert not {"write_latency_p50_us", "metadata_time_s", "total_s"} & found.keys()
    idle = measure(build_capture(tmp_path, ops=[], files=["/a"], name="idle"), Tally(), training=False)
    assert idle == {}


@pytest.mark.parametrize(
    ("pace", "before", "metric"),
    [
        (Pace.STEPS, 1, "elapsed_s"),
        (Pace.STEPS, 9, "total_s"),
        (Pace.THINK, 9, "elapsed_s"),
        (Pace.NONE, 9, "elapsed_s"),
        (Pace.TIMED, 1, "latency_mean_us"),
    ],
)
def test_what_decides(tmp_path: Path, pace: Pace, before: int, metric: str) -> None:
    """Where most of the bytes are read before the first step, the training time would not show a slow storage."""
    ops = [read(0, start_ns=i * MS, end_ns=i * MS + 1, length=100) for i in range(10)]
    source = build_capture(tmp_path, ops=ops, files=["/a"], spans=[Span("step", before * MS, 30 * MS, step=0)])
    assert primary_metric(source, pace) == metric
