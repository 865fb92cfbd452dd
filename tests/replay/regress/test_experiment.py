"""Real runs, small and few: what is run, in which order, what is left behind, and what is measured of a run."""

import signal
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from dxt_replay.replay.plan.pacing import Pace, Pacing, RunOptions
from dxt_replay.replay.ranks.mpi import Solo
from dxt_replay.replay.regress.comparison import BASELINE, CANDIDATE
from dxt_replay.replay.regress.experiment import (
    Experiment,
    check_room,
    default_pace,
    plan_staging,
    run_experiment,
    schedule,
)
from dxt_replay.replay.regress.metrics import METRICS, measure, primary_metric
from dxt_replay.replay.run.result import Tally
from dxt_replay.replay.target.posix import PosixTarget
from dxt_replay.replay.target.stage import stage
from dxt_replay.traces.errors import TargetError, UsageError
from dxt_replay.traces.measures.distribution import Distribution
from dxt_replay.traces.store.reader import open_capture
from dxt_replay.traces.units import MIB
from tests.capture_builder import Op, Span, build_capture, read, write

MS = 1_000_000


def source_of(folder):
    ops = [read(0, start_ns=i * 1000, offset=4096 * i, length=4096) for i in range(20)]
    return build_capture(folder, ops=[*ops, write(1, start_ns=90_000, length=500)], files=["/a", "/out"], name="s")


def experiment(folder, candidate="new", *, pace=Pace.NONE, cold=True, **choices):
    sides = {}
    for name, place in (("baseline", "old"), ("candidate", candidate)):
        (folder / place).mkdir(exist_ok=True)
        sides[name] = RunOptions(target=folder / place, pacing=Pacing(pace=pace), cold=cold)
    return Experiment(**{**sides, "repeats": 2, **choices})


def ran(source, chosen, comm=None, **choices):
    for plan in plan_staging(source, chosen):
        stage(plan)
    return run_experiment(source, chosen, comm or Solo(), **choices)


@pytest.mark.parametrize("repeats", [1, 2, 7, 10, 25])
def test_both_sides_run_in_every_pair_and_are_first_equally_often(repeats):
    order = schedule(repeats)
    assert order[:2] == [(0, BASELINE), (0, CANDIDATE)]
    assert [pair for pair, _ in order[2:]] == [pair for pair in range(1, repeats + 1) for _ in (0, 1)]
    assert all({order[i][1], order[i + 1][1]} == {BASELINE, CANDIDATE} for i in range(0, len(order), 2))
    first = Counter(side for _, side in order[2::2])
    assert abs(first[BASELINE] - first[CANDIDATE]) <= repeats % 2
    assert schedule(repeats, (CANDIDATE,)) == [(pair, CANDIDATE) for pair in range(repeats + 1)]


def test_an_experiment_leaves_nothing_behind_but_what_is_kept(tmp_path, monkeypatch):
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    source, labels = source_of(tmp_path), []
    with pytest.raises(TargetError, match="dxt-replay stage"):
        run_experiment(source, experiment(tmp_path), Solo())
    found = ran(source, experiment(tmp_path, repeats=1), report=lambda label, progress: labels.append(label))
    assert not list((tmp_path / "scratch").iterdir())
    assert [(run.pair, run.side) for run in found.runs] == schedule(1)
    assert (found.verdict.value, found.primary) == ("inconclusive", "elapsed_s"), "one pair shows nothing"
    assert all(run.operations == 21 and run.capture is None for run in found.runs)
    assert all(value > 0 for value in found.metrics["elapsed_s"].baseline)
    assert list(dict.fromkeys(labels))[:2] == ["run 1 of 4, baseline", "run 2 of 4, candidate"]
    kept = ran(source, experiment(tmp_path, keep=tmp_path / "runs", repeats=1))
    names = ["pair-001-baseline", "pair-001-candidate", "warmup-001-baseline", "warmup-002-candidate"]
    assert sorted(path.stem for path in (tmp_path / "runs").iterdir()) == names
    assert {open_capture(run.capture).operation_count() for run in kept.runs if run.capture} == {21}


def test_a_target_compared_with_itself_is_staged_once(tmp_path):
    source, same = source_of(tmp_path), experiment(tmp_path, "old", repeats=1)
    assert len(plan_staging(source, same)) == 1
    assert (len(ran(source, same).runs), plan_staging(source, same)) == (4, [])
    (plan,) = plan_staging(source, experiment(tmp_path))
    assert plan.target == (tmp_path / "new").resolve(), "the other one is staged"


def test_two_targets_are_of_one_kind_and_must_fit_together(tmp_path):
    with pytest.raises(UsageError, match="the other an object store"):
        replace(experiment(tmp_path), candidate=RunOptions(target="s3://b/t", pacing=Pacing(pace=Pace.NONE)))
    plans = plan_staging(source_of(tmp_path), experiment(tmp_path))
    one, other = (replace(plan, room=replace(plan.room, free_bytes=plan.bytes_on_disk * 3 // 2)) for plan in plans)
    with pytest.raises(TargetError, match="share a file system"):
        check_room([one, other])
    check_room([one])
    with pytest.raises(TargetError, match="short"):
        check_room([replace(one, room=replace(one.room, free_bytes=one.bytes_on_disk - 1))])
    assert not list((tmp_path / "old").iterdir())


def test_other_work_on_one_side_forbids_a_verdict(tmp_path):
    blocked = tmp_path / "new/dxt-replay-twin/out"

    class Blocking(Solo):
        """A directory is in the place of the candidate's output from before its operations until after them."""

        def barrier(self):
            blocked.rmdir() if blocked.is_dir() else blocked.mkdir()

    source, chosen = source_of(tmp_path), experiment(tmp_path, repeats=1)
    for plan in plan_staging(source, chosen):
        stage(plan)
    blocked.mkdir()
    found = run_experiment(source, chosen, Blocking())
    assert [run.failed for run in found.runs if run.side == CANDIDATE] == [1] * 2
    assert (found.verdict.value, "not valid" in found.reason) == ("inconclusive", True)
    assert any("failed operations from 0 to 1" in text for text in found.obstacles)


def test_a_signal_ends_the_experiment_with_what_it_has(tmp_path):
    ops = [read(0, start_ns=at, length=9) for at in (0, 60 * 10**9)]
    source = build_capture(tmp_path, ops=ops, files=["/a"], name="s")
    interrupt = lambda label, progress: progress.done and signal.raise_signal(signal.SIGTERM)  # noqa: E731
    found = ran(source, experiment(tmp_path, pace=Pace.TIMED), report=interrupt)
    assert [run.stopped for run in found.runs] == [True]
    assert (found.as_json()["stopped"], found.verdict.value) == (True, "inconclusive")


def test_the_storage_comes_to_rest_before_each_run(tmp_path, monkeypatch):
    """What is written to a target during a run is on its disk when the next run begins."""
    source, chosen, order = source_of(tmp_path), experiment(tmp_path, cold=False, repeats=1), []
    for plan in plan_staging(source, chosen):
        stage(plan)
    monkeypatch.setattr(PosixTarget, "sync", lambda target: order.append("sync"))
    run_experiment(source, chosen, Solo(), lambda label, progress: order.append(label[:5]))
    shown = [label for before, label in zip([None, *order], order, strict=False) if label == "sync" or label != before]
    assert shown == [label for number in range(1, 5) for label in ("sync", "sync", f"run {number}")]


def replayed(folder):
    """Two ranks. Rank 0 reads for 2 + 4 ms and writes 3 ms; its open overlaps its stat; rank 1 reads 5 ms."""
    given = [("read", 0, 2, 0), ("read", 10, 14, 0), ("write", 12, 15, 0), ("read", 10, 15, 1)]
    ops = [Op(op, 0, start_ns=a * MS, end_ns=b * MS, length=MIB, rank=rank) for op, a, b, rank in given]
    ops += [Op(op, 0, start_ns=a * MS, end_ns=b * MS) for op, a, b in (("open", 20, 24), ("stat", 22, 26))]
    given = [("step", 5, 20, 0, 0), ("step", 20, 40, 0, 1), ("step", 6, 50, 1, 0)]
    given += [("input_wait", 5, 8, 0, 0), ("input_wait", 6, 9, 1, 0)]
    spans = [Span(kind, a * MS, b * MS, rank=rank, step=step) for kind, a, b, rank, step in given]
    return build_capture(folder, ops=ops, files=["/a"], spans=spans)


def test_the_metrics_of_a_run(tmp_path):
    times = Distribution.of(np.array([2, 4, 3, 4, 4, 5]) * MS)
    tally = Tally(operations=6, last_end_ns=26 * MS, latency_ns=times, response_ns=times + times)
    found = measure(replayed(tmp_path), tally, training=True)
    assert found == pytest.approx({
        "elapsed_s": 0.045,
        "total_s": 0.050,
        "io_time_s": (0.002 + 0.005 + 0.005) / 2,
        "metadata_time_s": 0.006 / 2,
        "input_wait_per_step_s": 0.006 / 3,
        "latency_mean_us": 22_000 / 6,
        "response_mean_us": 22_000 / 6,
        "read_latency_p50_us": 4_000,
        "read_latency_p99_us": 4_980,
        "write_latency_p50_us": 3_000,
        "write_latency_p99_us": 3_000,
        "bandwidth_mib_s": 4 / 0.007,
    })  # fmt: skip
    assert list(found) == list(METRICS)
    whole = measure(replayed(tmp_path / "whole"), tally, training=False)
    assert whole["elapsed_s"] == pytest.approx(0.026), "without steps it ends with its last operation"
    assert not {"total_s", "input_wait_per_step_s"} & whole.keys()
    only_read = build_capture(tmp_path, ops=[read(0, start_ns=0, end_ns=MS, length=9)], files=["/a"], name="read")
    none = {"write_latency_p50_us", "metadata_time_s", "total_s"} & measure(only_read, tally, training=True).keys()
    assert not none, "what a run did none of is no metric"
    assert measure(build_capture(tmp_path, ops=[], files=["/a"], name="idle"), Tally(), training=False) == {}


def test_what_decides(tmp_path):
    """Where most of the bytes are read before the first step, the training time would not show a slow storage."""
    ops = [read(0, start_ns=i * MS, end_ns=i * MS + 1, length=100) for i in range(10)]
    late, early = (
        build_capture(tmp_path, ops=ops, files=["/a"], spans=[Span("step", at * MS, 30 * MS)], name=f"from-{at}")
        for at in (9, 1)
    )
    assert primary_metric(early, Pace.STEPS) == "elapsed_s"
    assert [primary_metric(late, pace) for pace in (Pace.STEPS, Pace.THINK, Pace.NONE, Pace.TIMED)] == [
        "total_s", "elapsed_s", "elapsed_s", "latency_mean_us",
    ]  # fmt: skip
    assert (default_pace(early), default_pace(source_of(tmp_path))) == (Pace.STEPS, Pace.THINK)
