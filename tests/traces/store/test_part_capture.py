from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.profiler_merge.analysis.loop import overlap
from dxt_replay.profiler_merge.analysis.summary import summarise
from dxt_replay.replay.compare.timing import step_error
from dxt_replay.replay.engine.items import GAP_ROW
from dxt_replay.replay.plan.operations import compute_rows
from dxt_replay.replay.plan.pacing import Pace, Pacing
from dxt_replay.traces.errors import CaptureError, UsageError
from dxt_replay.traces.part import Part
from dxt_replay.traces.schema import NO_STEP, CaptureInfo, Job
from dxt_replay.traces.store.part_capture import part_of, part_replayed
from dxt_replay.traces.store.reader import Capture, open_capture
from tests.capture_builder import Span, build_capture, read, write


def three_ranks(folder: Path) -> Capture:
    """Ranks 0, 1, 4: a read each 10 ns from 100 on, steps of 30 ns from 100 + rank on."""
    ops = [
        read(i % 3, rank=rank, lane=i % 2, start_ns=100 + 10 * i, end_ns=105 + 10 * i, offset=i, length=8)
        for rank in (0, 1, 4)
        for i in range(12)
    ]
    ops.append(write(3, rank=4, start_ns=300, end_ns=310, length=4))
    spans = [
        Span("step", 100 + rank + 30 * k, 130 + rank + 30 * k, rank=rank, step=k)
        for rank in (0, 1, 4)
        for k in range(4)
    ]
    return build_capture(folder, ops=ops, files=["/a", "/b", "/c", "/out"], spans=spans)


def starts(capture: Capture, rank: int) -> list[int]:
    return [t for batch in capture.operations(rank, columns=["start_ns"]) for t in batch.column(0).to_pylist()]


def test_a_step_that_the_window_cuts_keeps_its_time_and_is_not_a_step(tmp_path: Path) -> None:
    """Half a step would look fast to a summary; a replay would lose its computing if it were left out."""
    part = part_of(three_ranks(tmp_path), Part(from_ns=115, until_ns=180, ranks=(0,)))
    rows = [(row["step"], row["start_ns"], row["end_ns"]) for row in part.spans.to_pylist()]
    assert rows == [(NO_STEP, 115, 130), (1, 130, 160), (NO_STEP, 160, 180)]
    found = summarise(part).steps
    assert (found.count, found.mean_s) == (1, 30e-9)
    assert overlap(part).steps["step"].to_pylist() == [1]
    gaps = compute_rows(part.spans, Pacing(pace=Pace.THINK), "sleep", origin_ns=115)
    assert int(gaps.view(GAP_ROW)["duration_ns"].sum()) == 180 - 115
    assert step_error(part.spans, part.spans).steps == 1


def test_a_part_of_a_part_is_the_part_of_both(tmp_path: Path) -> None:
    capture = three_ranks(tmp_path)
    window = part_of(capture, Part(from_ns=110, until_ns=160))
    part = part_of(window, Part(ranks=(1, 4), paths=("/[ab]",)))
    assert part.ranks == (1, 4)
    assert starts(part, 1) == [110, 130, 140]
    assert starts(part, 0) == []
    assert part.operation_count() == 6
    assert sum(part.usage(4)["operations"].to_pylist()) == 3
    assert part.time_span_ns == window.time_span_ns
    assert part.whole is capture
    assert part.file_mask.tolist() == [True, True, False, False]
    assert not part.takes_whole_files
    later = part_of(part, Part(from_ns=130))
    assert starts(later, 1) == [130, 140]
    assert part_of(capture, Part(paths=("/a",))).takes_whole_files


def test_files_operations_and_interfaces_are_chosen_by_row(tmp_path: Path) -> None:
    ops = [read(0, start_ns=0), write(0, start_ns=1), read(1, start_ns=2, api="MPIIO_COLL"), write(1, start_ns=3)]
    capture = build_capture(tmp_path, ops=ops, files=["/a.h5", "/b"])

    def left(**conditions: tuple[str, ...]) -> list[int]:
        part = part_of(capture, Part.parse(**conditions))
        assert part.operation_count() == len(starts(part, 0)) == sum(part.usage(0)["operations"].to_pylist())
        assert part.operation_count(7) == 0
        assert part.time_span_ns == capture.time_span_ns
        columns = [batch.column_names for batch in part.operations(columns=["length"])]
        assert columns == [["length"]] * len(columns)
        return starts(part, 0)

    assert left(paths=("*.h5",)) == [0, 1]
    assert left(exclude=("*.h5",)) == [2, 3]
    assert left(operations=("READ",)) == [0, 2]
    assert left(interfaces=("mpiio",)) == [2]
    assert left(operations=("write",), paths=("/b",)) == [3]


def test_steps_are_those_of_each_rank(tmp_path: Path) -> None:
    parsed = Part.parse(ranks="4, 0-2,1", begin="500ms", until="1.5")
    assert (parsed.ranks, parsed.from_ns, parsed.until_ns) == ((0, 1, 2, 4), 500_000_000, 1_500_000_000)
    assert Part.parse(steps="7").steps == (7, 7)
    part = part_of(three_ranks(tmp_path), Part.parse(steps="1-2"))
    assert starts(part, 0) == [130, 140, 150, 160, 170, 180]
    assert starts(part, 4) == [140, 150, 160, 170, 180, 190]
    assert sorted(set(part.spans["step"].to_pylist())) == [1, 2]
    assert part.time_span_ns == (130, 195)


def test_row_groups_outside_of_the_window_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ops, groups = [read(0, start_ns=i, end_ns=i + 1) for i in range(40)], list[int]()
    part = part_of(build_capture(tmp_path, ops=ops, files=["/a"], row_group_rows=16), Part(from_ns=35))
    read_row_group = pq.ParquetFile.read_row_group

    def noted(self: pq.ParquetFile, group: int, **options: Any) -> Any:
        groups.append(group)
        return read_row_group(self, group, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", noted)
    assert starts(part, 0) == [35, 36, 37, 38, 39]
    assert set(groups) == {2}


@given(st.sets(st.integers(0, 20), min_size=1), st.integers(-50, 400) | st.none(), st.integers(-50, 400) | st.none())
def test_a_part_survives_json_and_holds_what_a_plain_loop_finds(
    tmp_path_factory: pytest.TempPathFactory, ranks: set[int], begin: int | None, until: int | None
) -> None:
    if begin is not None and until is not None and until <= begin:
        return
    chosen = Part(ranks=tuple(sorted(ranks)), from_ns=begin, until_ns=until)
    assert Part.from_json(chosen.as_json()) == chosen
    folder = tmp_path_factory.getbasetemp() / "filtered"
    if not (folder / "test.capture").exists():
        folder.mkdir(exist_ok=True)
        three_ranks(folder)
    capture = open_capture(folder / "test.capture")
    if not ranks <= {0, 1, 4}:
        with pytest.raises(UsageError, match="has no rank"):
            part_of(capture, chosen)
        return
    low, high = -(10**9) if begin is None else begin, 10**9 if until is None else until
    wanted = {rank: [t for t in starts(capture, rank) if low <= t < high] for rank in ranks}
    try:
        part = part_of(capture, chosen)
    except UsageError:
        assert not any(wanted.values())
        return
    assert {rank: starts(part, rank) for rank in ranks} == wanted
    for rank in ranks:
        assert np.sum(part.usage(rank)["operations"].to_numpy()) == part.operation_count(rank) == len(wanted[rank])
    counted = Counter[int]()
    for table in part.usages():
        for row in table.to_pylist():
            counted[row["rank"]] += row["operations"]
    assert counted == {rank: len(times) for rank, times in wanted.items() if times}
    assert part.operation_count() == counted.total()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"ranks": "7"}, "has no rank 7: it has 3 ranks: 0, 1, 4"),
        ({"ranks": "3-1"}, "first rank first"),
        ({"ranks": "a"}, "not a number or a range"),
        ({"ranks": ""}, "not a number or a range"),
        ({"steps": "9-12"}, "it has steps 0 to 3"),
        ({"steps": "2-1"}, "first step first"),
        ({"begin": "1w"}, "is not a time"),
        ({"begin": "nan"}, "is not a time"),
        ({"begin": "2", "until": "1"}, "window of --part is empty"),
        ({"begin": "1s"}, "nothing in that window"),
        ({"until": "90ns"}, "nothing in that window"),
        ({"begin": "1", "steps": "1"}, "one of them"),
        ({"ranks": "0", "begin": "299ns"}, "no operation and no span"),
        ({"paths": ("*.zip", "a")}, r"no file left with path='\*.zip' path='a', of 4: '/a', '/b', '/c', '/out'"),
        ({"exclude": ("*",)}, r"no file left with exclude='\*', of 4"),
        ({"paths": ("/out",), "ranks": "0"}, "no operation in that part"),
        ({"operations": ("stat",)}, "no operation with op=stat: there are read, write of the interfaces POSIX"),
        ({"interfaces": ("hdf5",), "ranks": "0"}, "with api=HDF5: there are read of the interfaces POSIX"),
        ({"operations": ("reed",)}, "no operation 'reed'"),
        ({"interfaces": ("NFS",)}, "no interface 'NFS'"),
    ],
)
def test_a_part_that_there_is_not_is_reported(tmp_path: Path, given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        part_of(three_ranks(tmp_path), Part.parse(**given))


def test_a_comparison_looks_at_what_was_replayed(tmp_path: Path) -> None:
    capture = three_ranks(tmp_path)
    chosen = Part(ranks=(1,), from_ns=120)

    def replay(document: object) -> Capture:
        info = CaptureInfo(
            job=Job(nprocs=2, run_time_s=1), ranks=(1,), made_by={"pace": "timed", "selection": document}
        )
        return build_capture(tmp_path, ops=[read(0, rank=1)], files=["/a"], info=info, name="replay")

    part = part_replayed(capture, replay(chosen.as_json()))
    assert part.part == chosen
    assert part_replayed(capture, replay(None)) is capture
    one = replay(chosen.as_json())
    assert part_replayed(one, one) is one
    with pytest.raises(CaptureError, match="damaged"):
        part_replayed(capture, replay({"ranks": "x"}))


def test_a_window_counts_its_batch_fetches_from_its_first(tmp_path: Path) -> None:
    """Fetch k lies in step k, at its begin; read k feeds fetch k + 2 and begins at the end of fetch k."""
    fetches = [Span("input_wait", 100 * k, 100 * k + 10, "input_wait", step=k) for k in range(6)]
    steps = [Span("step", 100 * k, 100 * k + 100, step=k) for k in range(6)]
    ops = [
        read(0, start_ns=100 * k + 10, end_ns=100 * k + 50, feeds=k + 2, follows=k, follows_end=True) for k in range(6)
    ]
    info = CaptureInfo(job=Job(nprocs=1, run_time_s=1), ranks=(0,), dependencies="known")
    capture = build_capture(tmp_path, ops=ops, files=["/a"], spans=fetches + steps, info=info)

    def columns(part: Part) -> list[tuple[Any, ...]]:
        rows = [row for batch in part_of(capture, part).operations() for row in batch.to_pylist()]
        return [(row["start_ns"], row["feeds"], row["follows"], row["follows_end"]) for row in rows]

    assert columns(Part.parse(steps="2-4")) == [(210, 2, 0, True), (310, None, 1, True), (410, None, 2, True)]
    assert columns(Part(from_ns=205, until_ns=315)) == [(210, None, 0, True), (310, None, 1, True)]
    assert columns(Part(from_ns=220)) == [(310, 2, 0, True), (410, None, 1, True), (510, None, 2, True)]
    assert columns(Part(from_ns=211, until_ns=312)) == [(310, None, 0, True)]
    only = part_of(capture, Part(from_ns=220)).operations(columns=["feeds"])
    assert [batch.column("feeds").to_pylist() for batch in only] == [[2, None, None]]
    (only,) = part_of(capture, Part(from_ns=211, until_ns=412)).operations(columns=["follows_end"])
    assert only.to_pylist() == [{"follows_end": True}, {"follows_end": True}]
    before = [read(0, start_ns=350, feeds=3, follows=1, follows_end=True)]
    earlier = build_capture(tmp_path, name="before", ops=before, files=["/a"], spans=fetches + steps, info=info)
    (only,) = part_of(earlier, Part(from_ns=250)).operations(columns=["follows_end"])
    assert only.to_pylist() == [{"follows_end": None}]
