"""A capture whose dependencies are known is replayed by them, and its replay is such a capture again."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from dxt_replay.replay.plan.pacing import Pace, Pacing
from dxt_replay.replay.plan.plan_row import Wait
from dxt_replay.replay.ranks.comm import Solo
from dxt_replay.replay.run.options import RunOptions
from dxt_replay.replay.run.runner import run_replay
from dxt_replay.replay.target.stage import plan_stage, stage
from dxt_replay.traces.errors import ReplayError
from dxt_replay.traces.schema import DEPENDENCY_COLUMNS
from dxt_replay.traces.store.reader import Capture, open_capture
from tests.simulated_application import MS, US, Storage
from tests.simulated_known_loader import KnownJob, run

JOB = KnownJob(steps=6, readers=2, compute_ns=2 * MS, ready_ns=300 * US, evaluation_steps=2, checkpoint_every=4)


def columns(capture: Capture) -> list[tuple[Any, ...]]:
    """What each operation does and waits for, lane by lane in their order."""
    names = ["rank", "lane", "op", "file_id", "offset", "length", *DEPENDENCY_COLUMNS]
    rows = [tuple(row.values()) for batch in capture.operations(columns=names) for row in batch.to_pylist()]
    return sorted(rows, key=lambda row: row[:2])


def replayed(source: Capture, folder: Path, name: str, pace: Pace) -> Capture:
    options = RunOptions(target=folder / "twin", pacing=Pacing(pace=pace))
    run_replay(source, folder / name, options, Solo())
    return open_capture(folder / name)


@pytest.mark.parametrize("readers", [0, 2])
def test_the_columns_pass_through_replays(tmp_path: Path, readers: int) -> None:
    job = dataclasses.replace(JOB, readers=readers)
    source = run(job, Storage(latency_ns=100 * US)).capture(tmp_path, job)
    stage(plan_stage(source, tmp_path / "twin"))
    first = replayed(source, tmp_path, "first.capture", Pace.STEPS)
    assert first.info.dependencies == "known"
    assert columns(first) == columns(source)
    second = replayed(first, tmp_path, "second.capture", Pace.STEPS)
    assert columns(second) == columns(source)


def test_a_replay_without_batch_fetches_has_no_dependencies(tmp_path: Path) -> None:
    source = run(JOB, Storage(latency_ns=100 * US)).capture(tmp_path, JOB)
    stage(plan_stage(source, tmp_path / "twin"))
    timed = replayed(source, tmp_path, "timed.capture", Pace.TIMED)
    assert timed.info.dependencies == "inferred"
    assert {row[-3:] for row in columns(timed)} == {(None, None, None)}


def test_a_batch_is_fetched_only_after_its_reads(tmp_path: Path) -> None:
    source = run(JOB, Storage(latency_ns=100 * US)).capture(tmp_path, JOB)
    stage(plan_stage(source, tmp_path / "twin"))
    replay = replayed(source, tmp_path, "replay.capture", Pace.STEPS)
    for rank in replay.ranks:
        spans = [row for row in replay.spans.to_pylist() if row["rank"] == rank and row["kind"] == "input_wait"]
        rows = [row for batch in replay.operations(rank) for row in batch.to_pylist()]
        late = [row for row in rows if row["feeds"] is not None and row["end_ns"] > spans[row["feeds"]]["end_ns"]]
        assert not late
        early = [row for row in rows if row["follows"] is not None and row["start_ns"] < _moment(spans, row)]
        assert not early


def test_lanes_that_wait_for_each_other_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = run(JOB, Storage(latency_ns=100 * US)).capture(tmp_path, JOB)
    stage(plan_stage(source, tmp_path / "twin"))

    def never(**fields: Any) -> Wait:
        return Wait(**{**fields, "until": fields["until"] + 1_000_000})

    monkeypatch.setattr("dxt_replay.replay.causal.items.Wait", never)
    monkeypatch.setattr("dxt_replay.replay.run.process.STUCK_NS", 50 * MS)
    with pytest.raises(ReplayError, match="lanes wait for each other: the causal model contradicts itself"):
        replayed(source, tmp_path, "stuck", Pace.STEPS)
    assert not (tmp_path / "stuck.capture").exists()


def _moment(spans: list[dict[str, Any]], row: dict[str, Any]) -> int:
    return spans[row["follows"]]["end_ns" if row["follows_end"] else "start_ns"]
