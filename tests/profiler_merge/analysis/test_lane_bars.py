"""Bars of lanes: exact totals whatever the budget and the batches, single operations in windows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dxt_replay.profiler_merge.analysis.bars import COLUMNS, Drawn
from dxt_replay.profiler_merge.analysis.bars import lane_bars as drawn
from dxt_replay.profiler_merge.analysis.queries import relations
from dxt_replay.traces.part import Part
from dxt_replay.traces.store.part_capture import part_of
from dxt_replay.traces.store.reader import Capture
from tests.capture_builder import Op, build_capture, read, write


def lane_bars(capture: Capture, **options: Any) -> Drawn[tuple[int, int, str]]:
    with relations(capture, COLUMNS, keep=True) as database:
        return drawn(database, capture.ranks, **options)


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Capture:
    """Two ranks with two lanes of 400 short reads each, a long write and a few others."""
    rng = np.random.default_rng(7)
    ops = []
    for rank in (0, 1):
        for lane in (0, 1):
            starts = np.cumsum(rng.integers(2_000, 40_000, 400))
            ops += [
                read(0, offset=i * 100, length=100 + i, rank=rank, lane=lane, start_ns=start, end_ns=start + 1_000)
                for i, start in enumerate(starts.tolist())
            ]
        ops += [
            write(1, length=10_000, rank=rank, lane=2, start_ns=1_000_000, end_ns=5_000_000),
            Op("open", 1, rank=rank, lane=2, start_ns=900_000),
            read(1, length=77, rank=rank, lane=2, start_ns=6_000_000, origin="reconstructed"),
        ]
    return build_capture(tmp_path_factory.mktemp("lanes"), ops=ops, files=["/a", "/b"])


@pytest.mark.parametrize("budget", [20, 100, 700, 10_000])
def test_totals_are_exact_at_every_budget(busy: Capture, budget: int) -> None:
    found = lane_bars(busy, most_bars=budget)
    assert sum(int(bars.operations.sum()) for bars in found.tracks.values()) == busy.operation_count()
    assert sum(map(len, (bars.start_ns for bars in found.tracks.values()))) <= budget
    for bars in found.tracks.values():
        joined, several = bars.operations > 1, bars.operations == 1
        assert (bars.busy_ns <= bars.end_ns - bars.start_ns).all()
        assert ((bars.end_ns - bars.start_ns)[joined] <= 514 * found.resolution_ns).all()
        assert (bars.offset[joined] == -1).all()
        assert (bars.busy_ns == bars.end_ns - bars.start_ns)[several].all()
    for (_, lane, kind), bars in found.tracks.items():
        expected = {("read", 0): 400, ("read", 1): 400}.get((kind, lane), 1)
        assert bars.operations.sum() == expected
    reads = sum(int(bars.bytes.sum()) for (_, _, kind), bars in found.tracks.items() if kind == "read")
    assert reads == 4 * sum(range(100, 500))
    assert (found.resolution_ns == 0) == (budget == 10_000)


def test_tracks_are_in_order_and_apart_by_kind(busy: Capture) -> None:
    tracks = list(lane_bars(busy).tracks)
    assert tracks == [
        (rank, lane, kind)
        for rank in (0, 1)
        for lane, kind in ((0, "read"), (1, "read"), (2, "write"), (2, "metadata"), (2, "reconstructed"))
    ]


def test_every_operation_of_a_window_is_a_bar(busy: Capture) -> None:
    found = lane_bars(busy, most_bars=30, centres_ns=[("middle", 2_000_000, 2_400_000)])
    (window,) = found.windows
    assert (window.name, window.from_ns, window.until_ns) == ("middle", 2_000_000, 2_400_000)
    inside = 0
    for bars in found.tracks.values():
        within = (bars.start_ns >= window.from_ns) & (bars.start_ns < window.until_ns)
        assert (bars.operations[within] == 1).all()
        inside += int(within.sum())
    assert inside > 20


def test_a_window_is_cut_at_its_budget(busy: Capture) -> None:
    found = lane_bars(busy, most_bars=30, centres_ns=[("all", 0, 20_000_000)], window_operations=50)
    (window,) = found.windows
    assert window.until_ns < 20_000_000
    starts = np.concatenate([bars.start_ns for bars in lane_bars(busy).tracks.values()])
    assert (starts < window.until_ns).sum() == 50


def test_filters_choose_ranks(busy: Capture) -> None:
    found = lane_bars(part_of(busy, Part(ranks=(1,))))
    assert {rank for rank, _, _ in found.tracks} == {1}
