"""What a page shows: which ranks and moments are chosen, bars of the training loop."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from dxt_replay.profiler_merge.analysis.analyse import analyse
from dxt_replay.profiler_merge.analysis.bars import loop_bars
from dxt_replay.profiler_merge.analysis.overview import moments, overview, shown_ranks
from dxt_replay.profiler_merge.analysis.timeline import timeline
from dxt_replay.traces.units import MIB
from tests.capture_builder import Span, build_capture, read

MS = 1_000_000


def test_all_of_few_ranks_are_shown_and_the_busiest_of_many(tmp_path: Path) -> None:
    durations = [1 + (rank * 7) % 40 for rank in range(40)]
    ops = [read(0, length=10, rank=rank, start_ns=0, end_ns=MS * last) for rank, last in enumerate(durations)]
    found = analyse(build_capture(tmp_path, ops=ops, files=["/a"]))
    assert shown_ranks(found, most=40) == tuple(range(40))
    shown = shown_ranks(found, most=8)
    busiest = sorted(range(40), key=lambda rank: -durations[rank])[:4]
    assert set(busiest) < set(shown)
    assert len(shown) == 8
    assert shown == tuple(sorted(shown))


def test_lanes_are_those_of_the_shown_ranks_and_totals_of_all(tmp_path: Path) -> None:
    ops = [read(0, length=10, rank=rank, start_ns=rank * MS) for rank in range(40)]
    found = overview(build_capture(tmp_path, ops=ops, files=["/a"]))
    assert len(found.shown_ranks) == 16
    assert {rank for rank, _, _ in found.lanes.tracks} == set(found.shown_ranks)
    assert sum(int(bars.operations.sum()) for bars in found.lanes.tracks.values()) == 16
    assert found.analysis.summary.operations.read == 40
    assert found.by_rank.ranks == tuple(range(40))


def test_the_moments_are_the_busiest_bin_and_the_slowest_step(tmp_path: Path) -> None:
    ops = [
        read(0, length=10, start_ns=0),
        read(0, length=10_000, start_ns=70 * MS),
        read(0, length=10, start_ns=99 * MS),
    ]
    steps = [(0, 10), (20, 30), (40, 65), (70, 80), (85, 95)]
    spans = [Span("step", low * MS, high * MS, step=number) for number, (low, high) in enumerate(steps)]
    capture = build_capture(tmp_path, ops=ops, files=["/a"], spans=spans)
    course = timeline(capture, bin_ns=10 * MS)
    assert moments(analyse(capture), course) == [
        ("busiest moment", 70 * MS, 80 * MS),
        ("slowest step", 40 * MS, 65 * MS),
    ]


def test_bars_of_the_loop(tmp_path: Path) -> None:
    spans = []
    for step in range(100):
        begin = step * MS
        spans += [
            Span("step", begin, begin + 900_000, "train", step=step),
            Span("input_wait", begin, begin + 100_000, "IteratorGetNext", step=step),
            Span("compute", begin + 200_000, begin + 700_000, step=step),
            Span("compute", begin, begin + 900_000, rank=1, step=step),
        ]
    capture = build_capture(tmp_path, spans=spans)
    with duckdb.connect() as database:
        every = loop_bars(database, capture.spans, (0,))
        few = loop_bars(database, capture.spans, (0,), most_bars=30)
    assert every.resolution_ns == 0
    assert {track: len(bars.start_ns) for track, bars in every.tracks.items()} == {
        (0, kind): 100 for kind in ("step", "compute", "input wait")
    }
    assert every.tracks[0, "step"].offset.tolist() == list(range(100))
    assert sum(len(bars.start_ns) for bars in few.tracks.values()) <= 30
    assert few.resolution_ns > 0
    for (_, kind), bars in few.tracks.items():
        assert bars.operations.sum() == 100
        assert bars.busy_ns.sum() == 100 * {"step": 900_000, "compute": 500_000, "input wait": 100_000}[kind]


S = 1_000_000_000


def quiet_s(folder: Path, ops: list, spans: tuple[Span, ...] = ()) -> float:
    return overview(build_capture(folder, ops=ops, files=["/a"], spans=spans)).quiet_until_ns / S


def test_an_idle_start_up_ends_before_the_first_work(tmp_path: Path) -> None:
    early = read(0, length=4, start_ns=0)
    work = [read(0, offset=step, length=MIB, start_ns=4 * S + step * S // 10, end_ns=4 * S + step * S // 10 + MS)
            for step in range(60)]  # fmt: skip
    assert quiet_s(tmp_path / "idle", [early, *work]) == pytest.approx(4, abs=0.05)
    step = Span("step", 2 * S, 3 * S, "train", step=0)
    assert quiet_s(tmp_path / "step", [early, *work], (step,)) == pytest.approx(2, abs=0.05)
    compute = Span("compute", S, 3 * S, "compute", step=0)
    assert quiet_s(tmp_path / "compute", [early, *work], (compute,)) == pytest.approx(1, abs=0.05)


def test_a_short_start_up_or_an_empty_capture_is_not_folded(tmp_path: Path) -> None:
    ops = [read(0, length=MIB, start_ns=0), read(0, length=MIB, start_ns=10 * S)]
    assert quiet_s(tmp_path / "busy", ops) == 0
    late = [read(0, length=4, start_ns=0)] + [read(0, length=MIB, start_ns=S // 2 + step * S) for step in range(10)]
    assert quiet_s(tmp_path / "short", late) == 0
    assert quiet_s(tmp_path / "empty", []) == 0
