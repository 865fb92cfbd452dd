"""What a page shows: ranks, moments, bars of lanes and loops, offsets of the busiest files, mounts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dxt_replay.profiler_merge.analysis.analyse import analyse
from dxt_replay.profiler_merge.analysis.bars import COLUMNS, Drawn, lane_bars
from dxt_replay.profiler_merge.analysis.overview import (
    MOST_FILES,
    MountTotals,
    file_offsets,
    moments,
    overview,
    shown_ranks,
)
from dxt_replay.profiler_merge.analysis.patterns import patterns
from dxt_replay.profiler_merge.analysis.queries import relations
from dxt_replay.profiler_merge.analysis.timeline import timeline
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.units import MIB
from tests.capture_builder import File, Op, Span, build_capture, read, write

MS, S = 1_000_000, 1_000_000_000


def test_all_of_few_ranks_are_shown_and_the_busiest_of_many(tmp_path: Path) -> None:
    durations = [1 + (rank * 7) % 40 for rank in range(40)]
    ops = [read(0, length=10, rank=rank, end_ns=MS * last) for rank, last in enumerate(durations)]
    capture = build_capture(tmp_path, ops=ops, files=["/a"])
    found = analyse(capture)
    assert shown_ranks(found, most=40) == tuple(range(40))
    shown = shown_ranks(found, most=8)
    assert {rank for rank in range(40) if durations[rank] > 36} < set(shown)
    assert list(shown) == sorted(set(shown))
    assert len(shown) == 8
    page = overview(capture)
    assert len(page.shown_ranks) == sum(int(bars.operations.sum()) for bars in page.lanes.tracks.values()) == 16
    assert {rank for rank, _, _ in page.lanes.tracks} == set(page.shown_ranks)
    assert (page.analysis.summary.operations.read, page.by_rank.ranks) == (40, tuple(range(40)))


def test_the_moments_are_the_busiest_bin_and_the_slowest_step(tmp_path: Path) -> None:
    ops = [read(0, length=length, start_ns=ms * MS) for length, ms in ((10, 0), (10_000, 70), (10, 99))]
    steps = [(0, 10), (20, 30), (40, 65), (70, 80), (85, 95)]
    spans = [Span("step", low * MS, high * MS, step=number) for number, (low, high) in enumerate(steps)]
    capture = build_capture(tmp_path, ops=ops, files=["/a"], spans=spans)
    found = moments(analyse(capture), timeline(capture, bin_ns=10 * MS))
    assert found == [("busiest moment", 70 * MS, 80 * MS), ("slowest step", 40 * MS, 65 * MS)]


WORK = [read(0, offset=n, length=MIB, start_ns=4 * S + n * S // 10, end_ns=4 * S + n * S // 10 + MS) for n in range(60)]
EARLY = read(0, length=4, start_ns=0)


@pytest.mark.parametrize(
    ("ops", "spans", "quiet_s"),
    [
        ([EARLY, *WORK], [], 4),
        ([EARLY, *WORK], [Span("step", 2 * S, 3 * S, "train", step=0)], 2),
        ([EARLY, *WORK], [Span("compute", S, 3 * S, "compute", step=0)], 1),
        ([read(0, length=MIB, start_ns=at) for at in (0, 10 * S)], [], 0),
        # less than a tenth of the whole
        ([EARLY, *(read(0, length=MIB, start_ns=S // 2 + step * S) for step in range(10))], [], 0),
        ([], [], 0),
    ],
)
def test_an_idle_start_up_ends_before_the_first_work(
    tmp_path: Path, ops: list[Op], spans: list[Span], quiet_s: float
) -> None:
    found = overview(build_capture(tmp_path, ops=ops, files=["/a"], spans=spans))
    assert found.quiet_until_ns / S == pytest.approx(quiet_s, abs=0.05)


def bars_of(capture: Capture, **options: Any) -> Drawn[tuple[int, int, str]]:
    with relations(capture, COLUMNS, keep=True) as database:
        return lane_bars(database, capture.ranks, **options)


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Capture:
    """Two ranks with two lanes of 400 short reads each, a long write and a few others."""
    rng, ops = np.random.default_rng(7), []
    for rank in (0, 1):
        for lane in (0, 1):
            starts = enumerate(np.cumsum(rng.integers(2_000, 40_000, 400)).tolist())
            ops += [read(0, offset=i * 100, length=100 + i, rank=rank, lane=lane, start_ns=at) for i, at in starts]
        ops += [
            write(1, length=10_000, rank=rank, lane=2, start_ns=1_000_000, end_ns=5_000_000),
            Op("open", 1, rank=rank, lane=2, start_ns=900_000),
            read(1, length=77, rank=rank, lane=2, start_ns=6_000_000, origin="reconstructed"),
        ]
    return build_capture(tmp_path_factory.mktemp("lanes"), ops=ops, files=["/a", "/b"])


@pytest.mark.parametrize("budget", [20, 100, 700, 10_000])
def test_totals_are_exact_at_every_budget(busy: Capture, budget: int) -> None:
    found = bars_of(busy, most_bars=budget)
    assert sum(len(bars.start_ns) for bars in found.tracks.values()) <= budget
    for (_, lane, kind), bars in found.tracks.items():
        joined, length = bars.operations > 1, bars.end_ns - bars.start_ns
        assert (bars.busy_ns <= length).all()
        assert (length[joined] <= 514 * found.resolution_ns).all()
        assert (bars.offset[joined] == -1).all()
        assert (bars.busy_ns == length)[~joined].all()
        assert bars.operations.sum() == (400 if kind == "read" and lane < 2 else 1)
    reads = sum(int(bars.bytes.sum()) for (_, _, kind), bars in found.tracks.items() if kind == "read")
    assert reads == 4 * sum(range(100, 500))
    assert (found.resolution_ns == 0) == (budget == 10_000)


def test_every_operation_of_a_window_is_a_bar_up_to_its_budget(busy: Capture) -> None:
    found = bars_of(busy, most_bars=30, centres_ns=[("middle", 2_000_000, 2_400_000)])
    (window,) = found.windows
    assert (window.name, window.from_ns, window.until_ns) == ("middle", 2_000_000, 2_400_000)
    starts = np.concatenate([bars.start_ns for bars in found.tracks.values()])
    counts = np.concatenate([bars.operations for bars in found.tracks.values()])
    within = (starts >= window.from_ns) & (starts < window.until_ns)
    assert set(counts[within].tolist()) == {1}
    assert within.sum() > 20
    cut = bars_of(busy, most_bars=30, centres_ns=[("all", 0, 20_000_000)], window_operations=50).windows[0].until_ns
    every = np.concatenate([bars.start_ns for bars in bars_of(busy).tracks.values()])
    assert (every < cut).sum() == 50


def offsets(folder: Path, ops: list[Op], files: int, most_points: int = 1_000) -> tuple[Any, ...]:
    capture = build_capture(folder, ops=ops, files=[f"/{number}" for number in range(files)])
    with relations(capture, COLUMNS) as database:
        return file_offsets(database, patterns(capture).files, most_points=most_points)


def test_few_operations_are_all_there(tmp_path: Path) -> None:
    ops = [read(0, offset=10 * n, length=5, rank=rank, start_ns=n, end_ns=n + 7) for rank in (0, 1) for n in range(3)]
    ops += [write(1, offset=100, length=3, start_ns=9, end_ns=10)]
    ops += [read(0, offset=0, length=1, start_ns=11, origin="reconstructed")]
    first, second = offsets(tmp_path, ops, 2)
    assert (first.file_id, first.operations, first.one_in) == (0, 6, 1)
    assert first.rank.tolist() == [0, 0, 0, 1, 1, 1]
    assert first.offset.tolist() == [0, 10, 20] * 2
    assert (first.end_ns - first.start_ns).tolist() == [7] * 6
    assert (second.written.tolist(), second.length.tolist()) == ([1], [3])


def test_many_operations_are_chosen_evenly_and_bounded(tmp_path: Path) -> None:
    """Two readers take turns: each second operation is of the second half, and a plain every-other would miss one."""
    ops = [read(0, offset=step // 2 + 5_000 * (step % 2), length=1, start_ns=step * MS) for step in range(10_000)]
    found = {part.file_id: part for part in offsets(tmp_path, [*ops, read(1, length=1, start_ns=1)], 2, 501)}
    assert (len(found[1].rank), found[0].one_in) == (1, 20)
    assert 450 <= len(found[0].rank) <= 550
    assert 0.4 < float((found[0].offset >= 5_000).mean()) < 0.6
    assert float(np.diff(found[0].start_ns).max()) < 60 * MS, "no gap is longer than three times the mean"
    ops = [read(file, offset=0, length=1, start_ns=time * MS + file) for file in range(30) for time in range(40)]
    many = offsets(tmp_path / "many", ops, 30, 160)
    assert len(many) == MOST_FILES
    assert sum(len(part.rank) for part in many) <= 1.3 * 160


def test_files_and_bytes_of_each_mount(tmp_path: Path) -> None:
    ops = [read(0, length=10), read(1, length=5, start_ns=1), write(2, length=99, start_ns=2)]
    files = [File("/a", mount="/data", fs_type="lustre"), File("/b", mount="/data", fs_type="lustre"),
             File("/c", mount="", fs_type=""), File("/never", mount="/home", fs_type="nfs")]  # fmt: skip
    capture = build_capture(tmp_path, ops=ops, files=files)
    assert overview(capture).mounts == (
        MountTotals(mount="", fs_type="", files=1, bytes_read=0, bytes_written=99),
        MountTotals(mount="/data", fs_type="lustre", files=2, bytes_read=15, bytes_written=0),
    )
