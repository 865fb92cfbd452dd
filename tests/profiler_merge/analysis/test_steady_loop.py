from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dxt_replay.profiler_merge.analysis.loop import overlap
from dxt_replay.profiler_merge.analysis.steady_loop import SteadyLoop
from dxt_replay.profiler_merge.analysis.summary import summarise
from dxt_replay.replay.show.summary import summary_sections
from dxt_replay.traces.schema import CaptureInfo, Job
from tests.capture_builder import Span, build_capture, read

MS = 1_000_000


def loop_of(directory: Path, **columns: Any) -> SteadyLoop | None:
    return summarise(build_capture(directory, files=["/a"], **columns)).loop


def steps(lengths: list[int], waits: list[int], rank: int = 0) -> list[Span]:
    """Steps after each other of so many ms, each of which begins with a wait."""
    spans, begin = [], 0
    for number, (length, wait) in enumerate(zip(lengths, waits, strict=True)):
        spans.append(Span("step", start_ns=begin * MS, end_ns=(begin + length) * MS, step=number, rank=rank))
        spans.append(Span("input_wait", start_ns=begin * MS, end_ns=(begin + wait) * MS, step=number, rank=rank))
        spans.append(
            Span("compute", start_ns=(begin + wait) * MS, end_ns=(begin + length) * MS, step=number, rank=rank)
        )
        begin += length
    return spans


def test_the_first_step_counts_like_the_others_unless_it_dominates(tmp_path: Path) -> None:
    found = loop_of(tmp_path / "a", spans=steps([10, 10, 10, 10], [5, 1, 1, 1]))
    assert found is not None
    assert (found.steps, found.warm_up_s, found.input_wait_pct) == (4, 0.0, 20.0)
    found = loop_of(tmp_path / "b", spans=steps([30, 10, 10, 10], [25, 1, 1, 1]))
    assert found is not None
    assert (found.steps, found.warm_up_s, found.loop_s) == (3, 0.02, 0.03)
    assert found.input_wait_pct == 10.0
    assert found.compute_pct == pytest.approx(100 * (5 + 27) / 60)  # accelerator utilisation is of the whole loop


def test_storage_cannot_gain_more_than_the_time_in_which_it_was_busy(tmp_path: Path) -> None:
    spans = steps([10, 10, 10, 10], [5, 5, 5, 5])
    ops = [read(0, length=1, start_ns=n * 10 * MS, end_ns=n * 10 * MS + MS) for n in range(4)]
    found = loop_of(tmp_path, spans=spans, ops=ops)
    assert found is not None
    assert (found.storage_gain_s, found.storage_gain_pct) == (0.004, 10.0)
    assert found.io_in_wait_pct == 20.0


def test_storage_cannot_gain_more_than_the_waits(tmp_path: Path) -> None:
    """Reads fill the loop, hidden behind compute but for the waits of 1 ms a step."""
    spans = steps([10, 10, 10, 10], [1, 1, 1, 1])
    found = loop_of(tmp_path, spans=spans, ops=[read(0, length=1, start_ns=0, end_ns=40 * MS)])
    assert found is not None
    assert found.storage_gain_s == 0.004


def test_of_each_step_the_rank_that_waits_longest_counts(tmp_path: Path) -> None:
    """The ranks wait in different steps; each may have waited for the other in a collective."""
    spans = [*steps([10, 10, 10, 10], [4, 0, 4, 0]), *steps([10, 10, 10, 10], [0, 3, 0, 3], rank=1)]
    ops = [read(0, length=1, start_ns=0, end_ns=40 * MS, rank=rank) for rank in range(2)]
    found = loop_of(tmp_path, spans=spans, ops=ops)
    assert found is not None
    assert found.storage_gain_s == pytest.approx(0.014)


@pytest.mark.parametrize(("pace", "known"), [("timed", False), ("none", False), ("steps", True), ("think", True)])
def test_a_replay_that_keeps_to_recorded_times_has_no_waits(tmp_path: Path, pace: str, known: bool) -> None:
    info = CaptureInfo(job=Job(nprocs=1, run_time_s=1.0), ranks=(0,), made_by={"command": "run", "pace": pace})
    assert (loop_of(tmp_path, spans=steps([10, 10], [1, 1]), info=info) is not None) == known


def test_an_evaluation_is_no_part_of_its_step_nor_of_the_loop(tmp_path: Path) -> None:
    """Four steps of 10 ms; the last one's mark stays open over an evaluation that waits for its data for 400 ms."""
    spans = steps([10, 10, 10, 510], [1, 1, 1, 1])
    spans[-1] = Span("compute", start_ns=31 * MS, end_ns=40 * MS, step=3)
    spans += [
        Span("other", start_ns=40 * MS, end_ns=540 * MS, name="evaluation", step=3),
        Span("input_wait", start_ns=50 * MS, end_ns=450 * MS, name="next_batch", step=3),
        Span("compute", start_ns=450 * MS, end_ns=500 * MS, step=3),
    ]
    capture = build_capture(tmp_path, files=["/a"], spans=spans, ops=[read(0, length=1, start_ns=60 * MS)])
    found = summarise(capture)
    assert found.loop is not None
    assert (found.loop.evaluations, found.loop.evaluation_s, found.loop.loop_s) == (1, 0.5, 0.04)
    assert (found.loop.input_wait_s, found.loop.storage_gain_s) == (0.004, 0.0)
    assert (found.steps.mean_s, found.compute.input_wait_s_per_rank_mean) == (0.01, 0.004)
    assert overlap(capture).slowest().num_rows == 0
    (row,) = (row for section in summary_sections(found) for row in section.rows if row[0] == "evaluations")
    assert row[1].startswith("1, 500 ms")
