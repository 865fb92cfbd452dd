"""What a page shows: ranks, moments, bars of lanes and loops, offsets of the busiest files, mounts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from dxt_replay.profiler_merge.analysis.analyse import analyse
from dxt_replay.profiler_merge.analysis.bars import COLUMNS, Drawn, loop_bars
from dxt_replay.profiler_merge.analysis.bars import lane_bars as drawn
from dxt_replay.profiler_merge.analysis.overview import MOST_FILES, file_offsets, moments, overview, shown_ranks
from dxt_replay.profiler_merge.analysis.patterns import MountTotals, mount_totals, patterns
from dxt_replay.profiler_merge.analysis.queries import relations
from dxt_replay.profiler_merge.analysis.timeline import timeline
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.units import MIB
from tests.capture_builder import Op, Span, build_capture, read, write

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


def offsets(capture: Capture, most_points: int = 1_000) -> tuple:
    with relations(capture, COLUMNS) as database:
        return file_offsets(database, patterns(capture).files, most_points=most_points)


def test_few_operations_are_all_there(tmp_path: Path) -> None:
    ops = [
        read(0, offset=10 * step, length=5, rank=rank, start_ns=step, end_ns=step + 7)
        for rank in (0, 1)
        for step in range(3)
    ]
    ops += [write(1, offset=100, length=3, start_ns=9, end_ns=10)]
    ops += [read(0, offset=0, length=1, start_ns=11, origin="reconstructed")]
    first, second = offsets(build_capture(tmp_path, ops=ops, files=["/a", "/b"]))
    assert (first.file_id, first.operations, first.one_in) == (0, 6, 1)
    assert first.rank.tolist() == [0, 0, 0, 1, 1, 1]
    assert first.offset.tolist() == [0, 10, 20] * 2
    assert (first.end_ns - first.start_ns).tolist() == [7] * 6
    assert (second.written.tolist(), second.length.tolist()) == ([1], [3])


def test_many_operations_are_chosen_evenly(tmp_path: Path) -> None:
    """Two readers take turns: each second operation is of the second half, and a plain every-other would miss one."""
    ops = [read(0, offset=step // 2 + 5_000 * (step % 2), length=1, start_ns=step * MS) for step in range(10_000)]
    ops += [read(1, offset=0, length=1, start_ns=1)]
    found = {part.file_id: part for part in offsets(build_capture(tmp_path, ops=ops, files=["/a", "/b"]), 501)}
    assert len(found[1].rank) == 1
    assert found[0].one_in == 20
    assert 450 <= len(found[0].rank) <= 550
    assert 0.4 < float((found[0].offset >= 5_000).mean()) < 0.6
    assert float(np.diff(found[0].start_ns).max()) < 60 * MS, "no gap is longer than three times the mean"


def test_files_and_operations_are_bounded(tmp_path: Path) -> None:
    ops = [read(file, offset=0, length=1, start_ns=time * MS + file) for file in range(30) for time in range(40)]
    found = offsets(build_capture(tmp_path, ops=ops, files=[f"/{number}" for number in range(30)]), 160)
    assert len(found) == MOST_FILES
    assert sum(len(part.rank) for part in found) <= 1.3 * 160


def test_files_and_bytes_of_each_mount(tmp_path: Path) -> None:
    ops = [read(0, length=10), read(1, length=5, start_ns=1), write(2, length=99, start_ns=2)]
    capture = build_capture(tmp_path, ops=ops, files=["/a", "/b", "/c", "/never"])
    names = {"mount": ["/data", "/data", "", "/home"], "fs_type": ["lustre", "lustre", "", "nfs"]}
    recorded = capture.files
    for name, values in names.items():
        recorded = recorded.set_column(recorded.column_names.index(name), name, pa.array(values))
    assert mount_totals(recorded, patterns(capture).files) == (
        MountTotals(mount="", fs_type="", files=1, bytes_read=0, bytes_written=99),
        MountTotals(mount="/data", fs_type="lustre", files=2, bytes_read=15, bytes_written=0),
    )
