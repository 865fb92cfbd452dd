from __future__ import annotations

from dxt_replay.traces.measures.span_times import spans_by_rank, union_by_rank
from tests.capture_builder import Span, spans_table

SPANS = spans_table(
    [
        Span("step", rank=1, start_ns=10, end_ns=20, step=0),
        Span("compute", rank=1, start_ns=12, end_ns=15),
        Span("step", rank=0, start_ns=30, end_ns=40, step=1),
        Span("step", rank=0, start_ns=5, end_ns=30, step=0),
        Span("input_wait", rank=0, start_ns=6, end_ns=9),
        Span("input_wait", rank=0, start_ns=8, end_ns=12),
    ]
)


def test_spans_of_a_kind_by_rank_in_start_order() -> None:
    found = [
        (rank, step.tolist(), start.tolist(), end.tolist()) for rank, step, start, end in spans_by_rank(SPANS, "step")
    ]
    assert found == [(0, [0, 1], [5, 30], [30, 40]), (1, [0], [10], [20])]


def test_union_joins_spans_that_overlap() -> None:
    unions = union_by_rank(SPANS, "input_wait")
    assert {rank: union.length_ns for rank, union in unions.items()} == {0: 6}
    assert union_by_rank(SPANS, "checkpoint") == {}
