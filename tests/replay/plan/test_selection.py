from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.plan.selection import Selection, as_replayed, selection_of
from tests.capture_builder import Span, build_capture, read, write
from traces.errors import CaptureError, UsageError
from traces.schema import CaptureInfo, Job
from traces.store import reader as store
from traces.store import writer as capture_writer
from traces.store.reader import Capture, open_capture


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


def test_everything_is_the_capture_itself(tmp_path: Path) -> None:
    capture = three_ranks(tmp_path)
    assert Selection().of(capture) is capture
    assert selection_of(capture).is_everything


def test_ranks_leave_the_others_out(tmp_path: Path) -> None:
    capture = three_ranks(tmp_path)
    part = Selection.parse(ranks="0-1").of(capture)
    assert part.ranks == part.info.ranks == (0, 1)
    assert part.operation_count() == 24
    assert part.operation_count(4) == 0
    assert len(starts(part, 1)) == 12
    assert set(part.spans["rank"].to_pylist()) == {0, 1}
    assert part.time_span_ns == (100, 221)
    assert part.whole is capture
    assert part.files is capture.files


def test_an_operation_belongs_to_the_window_in_which_it_starts(tmp_path: Path) -> None:
    part = Selection(from_ns=110, until_ns=140).of(three_ranks(tmp_path))
    assert starts(part, 0) == [110, 120, 130]
    assert part.operation_count() == 9
    assert part.usage(0)["operations"].to_pylist() == [1, 1, 1]
    assert part.time_span_ns == (110, 140)
    spans = [(s["step"], s["start_ns"], s["end_ns"]) for s in part.spans.to_pylist() if s["rank"] == 1]
    assert spans == [(0, 110, 131), (1, 131, 140)]


def test_a_window_that_begins_before_the_capture_begins_with_it(tmp_path: Path) -> None:
    assert Selection(from_ns=0, until_ns=125).of(three_ranks(tmp_path)).time_span_ns == (100, 125)


def test_steps_are_those_of_each_rank(tmp_path: Path) -> None:
    part = Selection.parse(steps="1-2").of(three_ranks(tmp_path))
    assert starts(part, 0) == [130, 140, 150, 160, 170, 180]
    assert starts(part, 4) == [140, 150, 160, 170, 180, 190]
    assert sorted(set(part.spans["step"].to_pylist())) == [1, 2]
    assert part.time_span_ns == (130, 195)


def test_a_rank_without_the_steps_has_nothing(tmp_path: Path) -> None:
    ops = [read(0, rank=rank, start_ns=10 * i, length=1) for rank in (0, 1) for i in range(5)]
    spans = [Span("step", 0, 20, rank=0, step=0), Span("step", 20, 40, rank=1, step=1)]
    capture = build_capture(tmp_path, ops=ops, files=["/a"], spans=spans)
    part = Selection(steps=(1, 1)).of(capture)
    assert (part.operation_count(0), part.operation_count(1)) == (0, 2)
    assert part.time_span_ns == (20, 1030)


def test_row_groups_outside_of_the_window_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture_writer, "ROW_GROUP_ROWS", 16)
    capture = build_capture(tmp_path, ops=[read(0, start_ns=i, end_ns=i + 1) for i in range(40)], files=["/a"])
    read_groups: list[int] = []
    original = store._read_row_group
    monkeypatch.setattr(store, "_read_row_group", lambda f, g, c: read_groups.append(g.index) or original(f, g, c))
    assert Selection(from_ns=35).of(capture).operation_count() == 5
    assert set(read_groups) == {2}


@given(
    st.sets(st.integers(0, 20), min_size=1),
    st.integers(-50, 400) | st.none(),
    st.integers(-50, 400) | st.none(),
)
def test_a_selection_survives_json_and_selects_what_a_filter_would(
    tmp_path_factory: pytest.TempPathFactory, ranks: set[int], begin: int | None, until: int | None
) -> None:
    if begin is not None and until is not None and until <= begin:
        return
    selection = Selection(ranks=tuple(sorted(ranks)), from_ns=begin, until_ns=until)
    assert Selection.from_json(selection.as_json()) == selection
    folder = tmp_path_factory.getbasetemp() / "filtered"
    if not (folder / "test.capture").exists():
        folder.mkdir(exist_ok=True)
        three_ranks(folder)
    capture = open_capture(folder / "test.capture")
    if not ranks <= {0, 1, 4}:
        with pytest.raises(UsageError, match="has no rank"):
            selection.of(capture)
        return
    low, high = -(10**9) if begin is None else begin, 10**9 if until is None else until
    wanted = {rank: [t for t in starts(capture, rank) if low <= t < high] for rank in ranks}
    try:
        part = selection.of(capture)
    except UsageError:
        assert not any(wanted.values())
        return
    assert {rank: starts(part, rank) for rank in ranks} == wanted
    for rank in ranks:
        assert np.sum(part.usage(rank)["operations"].to_numpy()) == part.operation_count(rank) == len(wanted[rank])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"ranks": "7"}, "has no rank 7: it has 3 others"),
        ({"ranks": "3-1"}, "first rank first"),
        ({"ranks": "a"}, "no number and no range"),
        ({"ranks": ""}, "no number and no range"),
        ({"steps": "9-12"}, "it has steps 0 to 3"),
        ({"steps": "2-1"}, "first step first"),
        ({"begin": "1h"}, "is no time"),
        ({"begin": "nan"}, "is no time"),
        ({"begin": "2", "until": "1"}, "window is empty"),
        ({"begin": "1s"}, "nothing in that window"),
        ({"until": "90ns"}, "nothing in that window"),
        ({"begin": "1", "steps": "1"}, "one of them"),
        ({"ranks": "0", "begin": "299ns"}, "no operation and no span"),
    ],
)
def test_what_cannot_be_selected_is_told(tmp_path: Path, given: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Selection.parse(**given).of(three_ranks(tmp_path))


def test_text_is_parsed() -> None:
    parsed = Selection.parse(ranks="4, 0-2,1", begin="500ms", until="1.5")
    assert (parsed.ranks, parsed.from_ns, parsed.until_ns) == ((0, 1, 2, 4), 500_000_000, 1_500_000_000)
    assert Selection.parse(steps="7").steps == (7, 7)


def test_a_comparison_looks_at_what_was_replayed(tmp_path: Path) -> None:
    capture = three_ranks(tmp_path)
    selection = Selection(ranks=(1,), from_ns=120)

    def replay(chosen: object) -> Capture:
        info = CaptureInfo(job=Job(nprocs=2, run_time_s=1), ranks=(1,), made_by={"selection": chosen})
        return build_capture(tmp_path, ops=[read(0, rank=1)], files=["/a"], info=info, name="replay")

    part = as_replayed(capture, replay(selection.as_json()))
    assert selection_of(part) == selection
    assert as_replayed(capture, replay(None)) is capture
    one = replay(selection.as_json())
    assert as_replayed(one, one) is one
    with pytest.raises(CaptureError, match="damaged"):
        as_replayed(capture, replay({"ranks": "x"}))
