from __future__ import annotations

from pathlib import Path

import pytest

from dxt_replay.profiler_merge.analysis.summary import Summary, summarise
from tests.capture_builder import Span, build_capture

S = 1_000_000_000


def summary(folder: Path, spans: list[Span]) -> Summary:
    return summarise(build_capture(folder, spans=spans))


def test_steps_are_those_of_the_rank_with_the_most(tmp_path: Path) -> None:
    spans = [Span("step", start_ns=k * S, end_ns=(k + 1) * S, step=k) for k in range(3)]
    spans.append(Span("step", rank=1, start_ns=0, end_ns=5 * S, step=0))
    found = summary(tmp_path, spans).steps
    assert (found.count, found.mean_s) == (3, 2.0)


def test_steps_that_no_profile_shows_are_counted_apart(tmp_path: Path) -> None:
    spans = [
        Span("step", start_ns=k * S, end_ns=(k + 1) * S, step=k, origin="traced" if k == 1 else "reconstructed")
        for k in range(3)
    ]
    found = summary(tmp_path, spans).steps
    assert (found.count, found.extended) == (3, 2)


def test_without_spans_nothing_is_known(tmp_path: Path) -> None:
    found = summary(tmp_path, [])
    assert (found.steps.count, found.steps.mean_s) == (0, None)
    assert (found.compute.profiled_ranks, found.compute.busy_s_per_rank_mean) == (0, None)


def test_busy_times_are_unions_and_their_mean_is_over_the_profiled_ranks(tmp_path: Path) -> None:
    spans = [
        Span("compute", rank=0, start_ns=0, end_ns=2 * S),
        Span("compute", rank=0, start_ns=S, end_ns=4 * S),
        Span("pipeline", rank=3, start_ns=0, end_ns=S),
    ]
    found = summary(tmp_path, spans).compute
    assert (found.profiled_ranks, found.input_wait_s_per_rank_mean) == (2, 0)
    assert found.busy_s_per_rank_mean == pytest.approx(2.0)
