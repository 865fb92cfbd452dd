"""The training loop: times of ranks and steps, and what storage can have cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dxt_replay.profiler_merge.analysis.loop import CAUSES, overlap
from dxt_replay.profiler_merge.analysis.steady_loop import SteadyLoop
from dxt_replay.profiler_merge.analysis.summary import summarise
from dxt_replay.replay.show.summary import summary_sections
from dxt_replay.traces.measures.span_times import computed_in_loops
from dxt_replay.traces.part import Part
from dxt_replay.traces.schema import READING_WAITS, CaptureInfo, Job
from dxt_replay.traces.store.part_capture import part_of
from dxt_replay.traces.store.reader import Capture
from tests.capture_builder import Op, Span, build_capture, read, write
from tests.examples import examples

MS = 1_000_000


def loop_capture(tmp_path: Path, **columns: Any) -> Capture:
    """Two steps of 10 ms: waiting 0-2, compute 2-8, a collective 8-9; the second waits 4 ms and saves 2 ms after it."""
    return build_capture(
        tmp_path,
        files=["/a", "/ckpt"],
        ops=[
            read(0, length=100, start_ns=1 * MS, end_ns=4 * MS),
            read(0, length=200, start_ns=3 * MS, end_ns=5 * MS, lane=1),
            read(0, length=50, start_ns=11 * MS, end_ns=13 * MS),
            write(1, length=9, start_ns=20 * MS, end_ns=22 * MS, api="STDIO", origin="reconstructed"),
        ],
        spans=[
            Span("step", start_ns=0, end_ns=10 * MS, step=0),
            Span("input_wait", start_ns=0, end_ns=2 * MS, name="IteratorGetNextOp::DoCompute"),
            Span("compute", start_ns=2 * MS, end_ns=8 * MS),
            Span("collective", start_ns=8 * MS, end_ns=9 * MS),
            Span("pipeline", start_ns=0, end_ns=2 * MS, name="MapAndBatchProduce", thread=7),
            Span("step", start_ns=10 * MS, end_ns=20 * MS, step=1),
            Span("input_wait", start_ns=10 * MS, end_ns=14 * MS, name="next_batch"),
            Span("compute", start_ns=14 * MS, end_ns=19 * MS),
            Span("checkpoint", start_ns=20 * MS, end_ns=22 * MS),
            Span("step", start_ns=23 * MS, end_ns=29 * MS, step=2),
            Span("compute", start_ns=23 * MS, end_ns=29 * MS),
        ],
        **columns,
    )


def test_shares_are_of_the_run_and_of_the_loop(tmp_path: Path) -> None:
    shares = overlap(loop_capture(tmp_path, ranks=[1])).shares()
    assert shares == pytest.approx(
        {
            "io_of_run_pct": 100 * 6 / 58,
            "pipeline_of_run_pct": 100 * 9 / 29,
            "io_hidden_pct": 50,
            "io_of_loop_pct": 100 * 6 / 29,
            "input_wait_pct": 100 * 6 / 29,
            "compute_pct": 100 * 17 / 29,
            "collective_pct": 100 / 29,
            "checkpoint_pct": 100 * 2 / 29,
        }
    )


def test_the_slowest_steps_come_first_and_none_below_the_median(tmp_path: Path) -> None:
    spans = [
        Span("step", start_ns=100 * step * MS, end_ns=(100 * step + took) * MS, step=step)
        for step, took in enumerate((10, 10, 40, 9, 25))
    ]
    found = overlap(build_capture(tmp_path, spans=spans)).slowest(10)
    assert found["step"].to_pylist() == [2, 4]
    assert found["why"].to_pylist() == ["rest", "rest"]


@pytest.mark.parametrize(
    ("cause", "spans", "ops"),
    [
        ("compute", [Span("compute", start_ns=200 * MS, end_ns=250 * MS)], []),
        ("collective", [Span("collective", start_ns=200 * MS, end_ns=250 * MS)], []),
        ("checkpoint", [Span("checkpoint", start_ns=200 * MS, end_ns=250 * MS)], []),
        ("input wait", [Span("input_wait", start_ns=200 * MS, end_ns=250 * MS)], []),
        (
            "exposed I/O",
            [Span("input_wait", start_ns=200 * MS, end_ns=250 * MS)],
            [read(0, length=1, start_ns=205 * MS, end_ns=245 * MS)],
        ),
        ("exposed I/O", [], [read(0, length=1, start_ns=205 * MS, end_ns=245 * MS)]),
        (
            "compute",
            [Span("compute", start_ns=200 * MS, end_ns=250 * MS)],
            [read(0, length=1, start_ns=205 * MS, end_ns=245 * MS)],
        ),
        ("rest", [], []),
    ],
)
def test_why_a_step_was_slow(tmp_path: Path, cause: str, spans: list[Span], ops: list[Any]) -> None:
    steps = [Span("step", start_ns=100 * n * MS, end_ns=(100 * n + 10) * MS, step=n) for n in range(5)]
    steps[2] = Span("step", start_ns=200 * MS, end_ns=260 * MS, step=2)
    found = overlap(build_capture(tmp_path, files=["/a"], ops=ops, spans=[*steps, *spans])).slowest(1)
    assert found["why"].to_pylist() == [cause]
    assert cause in CAUSES


KINDS = ("compute", "input_wait", "collective", "checkpoint")
SPAN = st.tuples(
    st.sampled_from(["compute", "input_wait", "collective", "checkpoint", "pipeline", "evaluation"]),
    st.integers(0, 300),
    st.integers(1, 80),
)
IO = st.tuples(st.integers(0, 300), st.integers(0, 60))


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(SPAN, max_size=12),
    st.lists(IO, max_size=20),
    st.lists(st.tuples(st.integers(1, 60), st.integers(0, 20)), min_size=1, max_size=6),
    st.integers(1, 7),
)
def test_all_times_are_those_of_every_nanosecond(
    tmp_path: Path,
    spans: list[tuple[str, int, int]],
    io: list[tuple[int, int]],
    steps: list[tuple[int, int]],
    group: int,
) -> None:
    """A mask of nanoseconds for each kind, compared with the sets of intervals."""
    mask = {name: np.zeros(600, dtype=bool) for name in ("evaluation", *KINDS, "io", "pipeline")}
    for kind, start, length in spans:
        mask[kind][start : start + length] = True
    for start, length in io:
        mask["io"][start : start + length] = True
    # All waits have a name by which the loop itself reads.
    mask["pipeline"] |= mask["input_wait"] | mask["io"]
    trained = ~mask["evaluation"]
    rest = trained.copy()
    for kind in ("input_wait", "collective", "checkpoint", "compute"):
        mask[kind] &= rest
        rest &= ~mask[kind]
    bounds, begin = [], 0
    for length, gap in steps:
        bounds.append((begin, begin + length))
        begin += length + gap
    capture = build_capture(
        tmp_path,
        files=["/a"],
        ops=[read(0, length=1, start_ns=start, end_ns=start + length) for start, length in io],
        spans=[
            *(
                Span("other", start, start + length, kind)
                if kind == "evaluation"
                else Span(kind, start, start + length, READING_WAITS[0])
                for kind, start, length in spans
            ),
            *(Span("step", start_ns=start, end_ns=end, step=number) for number, (start, end) in enumerate(bounds)),
        ],
        row_group_rows=group,
    )
    found = overlap(capture)
    (rank,) = found.ranks.to_pylist()
    assert rank["io_ns"] == mask["io"].sum()
    assert rank["io_hidden_ns"] == (mask["io"] & mask["compute"]).sum()
    assert rank["io_in_wait_ns"] == (mask["io"] & mask["input_wait"]).sum()
    assert rank["io_in_checkpoint_ns"] == (mask["io"] & mask["checkpoint"]).sum()
    assert rank["pipeline_ns"] == mask["pipeline"].sum()
    loop = slice(bounds[0][0], bounds[-1][1])
    assert (rank["loop_ns"], rank["evaluation_ns"]) == (trained[loop].sum(), mask["evaluation"].sum())
    assert computed_in_loops(capture.spans) == (mask["compute"][loop].sum(), trained[loop].sum())
    assert rank["io_in_evaluation_ns"] == (mask["io"] & mask["evaluation"]).sum()
    assert rank["io_in_loop_ns"] == (mask["io"] & trained)[loop].sum()
    assert rank["compute_in_loop_ns"] == mask["compute"][loop].sum()
    for row, (start, end) in zip(found.steps.to_pylist(), bounds, strict=True):
        part = {name: times[start:end] for name, times in mask.items()}
        part["io"] = part["io"] & trained[start:end]
        for kind in ("evaluation", *KINDS, "io"):
            assert row[f"{kind}_ns"] == part[kind].sum()
        assert row["duration_ns"] == trained[start:end].sum()
        assert row["rest_ns"] == rest[start:end].sum()
        assert row["io_exposed_ns"] == (part["io"] & ~part["compute"]).sum()
        assert row["io_in_wait_ns"] == (part["io"] & part["input_wait"]).sum()


def test_the_overlap_of_many_ranks_is_that_of_each(tmp_path: Path) -> None:
    ranks = range(7)
    spans = [
        Span(kind, rank=rank, start_ns=begin, end_ns=begin + 20 + 3 * rank, step=step)
        for rank in ranks
        if rank != 4
        for step, begin in enumerate((0, 100 + rank, 200, 500))
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


def loop_of(directory: Path, **columns: Any) -> SteadyLoop | None:
    return summarise(build_capture(directory, files=["/a"], **columns)).loop


def steps(lengths: list[int], waits: list[int], rank: int = 0) -> list[Span]:
    """Steps after each other of so many ms, each of which begins with a wait."""
    spans, begin = [], 0
    for number, (length, wait) in enumerate(zip(lengths, waits, strict=True)):
        spans.append(Span("step", start_ns=begin * MS, end_ns=(begin + length) * MS, step=number, rank=rank))
        spans.append(Span("input_wait", start_ns=begin * MS, end_ns=(begin + wait) * MS, step=number, rank=rank))
        spans.append(
            Span("compute", start_ns=(begin + wait) * MS, end_ns=(begin + length) * MS, step=number, rank=rank)
        )
        begin += length
    return spans


def test_the_first_step_counts_like_the_others_unless_it_dominates(tmp_path: Path) -> None:
    found = loop_of(tmp_path / "a", spans=steps([10, 10, 10, 10], [5, 1, 1, 1]))
    assert found is not None
    assert (found.steps, found.warm_up_s, found.input_wait_pct) == (4, 0.0, 20.0)
    found = loop_of(tmp_path / "b", spans=steps([30, 10, 10, 10], [25, 1, 1, 1]))
    assert found is not None
    assert (found.steps, found.warm_up_s, found.loop_s) == (3, 0.02, 0.03)
    assert found.input_wait_pct == 10.0
    assert found.compute_pct == pytest.approx(100 * (5 + 27) / 60)  # accelerator utilisation is of the whole loop


def test_storage_cannot_gain_more_than_the_time_in_which_it_was_busy(tmp_path: Path) -> None:
    spans = steps([10, 10, 10, 10], [5, 5, 5, 5])
    ops = [read(0, length=1, start_ns=n * 10 * MS, end_ns=n * 10 * MS + MS) for n in range(4)]
    found = loop_of(tmp_path, spans=spans, ops=ops)
    assert found is not None
    assert (found.storage_gain_s, found.storage_gain_pct) == (0.004, 10.0)
    assert found.io_in_wait_pct == 20.0


def test_storage_cannot_gain_more_than_the_waits(tmp_path: Path) -> None:
    """Reads fill the loop, hidden behind compute but for the waits of 1 ms a step."""
    spans = steps([10, 10, 10, 10], [1, 1, 1, 1])
    found = loop_of(tmp_path, spans=spans, ops=[read(0, length=1, start_ns=0, end_ns=40 * MS)])
    assert found is not None
    assert found.storage_gain_s == 0.004


def test_of_each_step_the_rank_that_waits_longest_counts(tmp_path: Path) -> None:
    """The ranks wait in different steps; each may have waited for the other in a collective."""
    spans = [*steps([10, 10, 10, 10], [4, 0, 4, 0]), *steps([10, 10, 10, 10], [0, 3, 0, 3], rank=1)]
    ops = [read(0, length=1, start_ns=0, end_ns=40 * MS, rank=rank) for rank in range(2)]
    found = loop_of(tmp_path, spans=spans, ops=ops)
    assert found is not None
    assert found.storage_gain_s == pytest.approx(0.014)


@pytest.mark.parametrize(("pace", "known"), [("timed", False), ("none", False), ("steps", True), ("think", True)])
def test_a_replay_that_keeps_to_recorded_times_has_no_waits(tmp_path: Path, pace: str, known: bool) -> None:
    info = CaptureInfo(job=Job(nprocs=1, run_time_s=1.0), ranks=(0,), made_by={"command": "run", "pace": pace})
    assert (loop_of(tmp_path, spans=steps([10, 10], [1, 1]), info=info) is not None) == known


def test_an_evaluation_is_no_part_of_its_step_nor_of_the_loop(tmp_path: Path) -> None:
    """Four steps of 10 ms; the last one's mark stays open over an evaluation that waits for its data for 400 ms."""
    spans = steps([10, 10, 10, 510], [1, 1, 1, 1])
    spans[-1] = Span("compute", start_ns=31 * MS, end_ns=40 * MS, step=3)
    spans += [
        Span("other", start_ns=40 * MS, end_ns=540 * MS, name="evaluation", step=3),
        Span("input_wait", start_ns=50 * MS, end_ns=450 * MS, name="next_batch", step=3),
        Span("compute", start_ns=450 * MS, end_ns=500 * MS, step=3),
    ]
    capture = build_capture(tmp_path, files=["/a"], spans=spans, ops=[read(0, length=1, start_ns=60 * MS)])
    found = summarise(capture)
    assert found.loop is not None
    assert (found.loop.evaluations, found.loop.evaluation_s, found.loop.loop_s) == (1, 0.5, 0.04)
    assert (found.loop.input_wait_s, found.loop.storage_gain_s) == (0.004, 0.0)
    assert (found.steps.mean_s, found.compute.input_wait_s_per_rank_mean) == (0.01, 0.004)
    assert overlap(capture).slowest().num_rows == 0
    (row,) = (row for section in summary_sections(found) for row in section.rows if row[0] == "evaluations")
    assert row[1].startswith("1, 500 ms")
