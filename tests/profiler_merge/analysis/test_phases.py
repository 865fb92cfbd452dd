from __future__ import annotations

import pytest

from dxt_replay.profiler_merge.analysis.phases import phases, steps
from tests.capture_builder import Span, spans_table

S = 1_000_000_000


def test_steps_are_those_of_the_rank_with_the_most() -> None:
    spans = [Span("step", start_ns=k * S, end_ns=(k + 1) * S, step=k) for k in range(3)]
    spans.append(Span("step", rank=1, start_ns=0, end_ns=5 * S, step=0))
    found = steps(spans_table(spans))
    assert (found.count, found.mean_s) == (3, 2.0)


def test_steps_that_no_profile_shows_are_counted_apart() -> None:
    spans = [
        Span("step", start_ns=k * S, end_ns=(k + 1) * S, step=k, origin="traced" if k == 1 else "reconstructed")
        for k in range(3)
    ]
    assert (steps(spans_table(spans)).count, steps(spans_table(spans)).extended) == (3, 2)


def test_without_spans_nothing_is_known() -> None:
    table = spans_table([])
    assert (steps(table).count, steps(table).mean_s) == (0, None)
    found = phases(table)
    assert found.profiled_ranks == ()
    assert found.mean_s(found.compute) is None


def test_busy_times_are_unions_and_their_mean_is_over_the_profiled_ranks() -> None:
    found = phases(
        spans_table(
            [
                Span("compute", rank=0, start_ns=0, end_ns=2 * S),
                Span("compute", rank=0, start_ns=S, end_ns=4 * S),
                Span("pipeline", rank=3, start_ns=0, end_ns=S),
            ]
        )
    )
    assert found.profiled_ranks == (0, 3)
    assert found.mean_s(found.compute) == pytest.approx(2.0)
    assert found.mean_s(found.input_wait) == 0
