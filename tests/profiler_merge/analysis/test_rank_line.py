"""Ranks on one line of time: what is computed there is what each rank has by itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dxt_replay.profiler_merge.analysis.overlap import overlap
from dxt_replay.profiler_merge.analysis.rank_line import rank_lines
from dxt_replay.traces.part import Part
from dxt_replay.traces.store.part_capture import part_of
from tests.capture_builder import Op, Span, build_capture

FAR = 1 << 60
"""A time at which few ranks have room on a line."""


def test_times_come_back_from_the_line() -> None:
    (line,) = rank_lines((3, 5, 9), -10, 90)
    places = line.places(np.array([5, 5, 9]))
    on_line = line.put(np.array([-10, 90, 7]), places)
    assert line.places_at(on_line).tolist() == places.tolist() == [1, 1, 2]
    assert line.taken(on_line, places).tolist() == [-10, 90, 7]


def test_ranks_without_room_have_lines_of_their_own() -> None:
    assert [line.ranks.tolist() for line in rank_lines(range(5), -FAR // 2, FAR // 2)] == [[0, 1, 2], [3, 4]]
    assert [line.ranks.tolist() for line in rank_lines(range(2), -2 * FAR, 2 * FAR)] == [[0], [1]]


@pytest.mark.parametrize("latest", [500, FAR])
def test_the_overlap_of_many_ranks_is_that_of_each(tmp_path: Path, latest: int) -> None:
    ranks = range(7)
    spans = [
        Span(kind, rank=rank, start_ns=begin, end_ns=begin + 20 + 3 * rank, step=step)
        for rank in ranks
        if rank != 4
        for step, begin in enumerate((0, 100 + rank, 200, latest))
        for kind in ("step", "compute", "input_wait")[: 1 + rank % 3]
    ]
    ops = [
        Op("read" if place % 3 else "write", 0, rank=rank, start_ns=7 * place, end_ns=7 * place + 9 + rank, length=rank)
        for rank in ranks
        if rank != 5
        for place in range(40)
    ]
    capture = build_capture(tmp_path, files=["/a"], ranks=ranks, spans=spans, ops=ops)
    found = overlap(capture)
    alone = [overlap(part_of(capture, Part(ranks=(rank,)))) for rank in ranks]
    assert found.ranks.to_pylist() == [rank for each in alone for rank in each.ranks.to_pylist()]
    assert found.steps.to_pylist() == [row for each in alone for row in each.steps.to_pylist()]
    assert found.total("io_hidden_ns") > 0
