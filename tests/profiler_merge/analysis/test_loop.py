"""The training loop: times of ranks and steps, and what storage can have cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dxt_replay.profiler_merge.analysis.loop import overlap
from dxt_replay.profiler_merge.analysis.summary import summarise
from dxt_replay.replay.show.summary import summary_sections
from dxt_replay.traces.measures.span_times import computed_in_loops
from dxt_replay.traces.schema import READING_WAITS, CaptureInfo, Job
from tests.capture_builder import Op, Span, build_capture, read
from tests.examples import examples

MS = 1_000_000


@pytest.mark.parametrize(
    ("cause", "kind", "io"),
    [
        *((kind.replace("_", " "), kind, False) for kind in ("compute", "collective", "checkpoint", "input_wait")),
        ("exposed I/O", "input_wait", True),
        ("exposed I/O", "", True),
        ("compute", "compute", True),
        ("rest", "", False),
    ],
)
def test_slow_steps_and_why(tmp_path: Path, cause: str, kind: str, io: bool) -> None:
    """Steps of 10 ms but for one of 60, most of which is a span or a read or both, one of 25 and one of 9."""
    took = (10, 10, 60, 9, 25)
    spans = [Span("step", 100 * n * MS, (100 * n + ms) * MS, step=n) for n, ms in enumerate(took)]
    spans += [Span(kind, 200 * MS, 250 * MS)] * bool(kind)
    ops = [read(0, length=1, start_ns=205 * MS, end_ns=245 * MS)] * io
    found = overlap(build_capture(tmp_path, files=["/a"], ops=ops, spans=spans)).slowest(10)
    assert (found["step"].to_pylist(), found["why"].to_pylist()) == ([2, 4], [cause, "rest"])


KINDS = ("compute", "input_wait", "collective", "checkpoint")
SPAN = st.tuples(st.sampled_from([*KINDS, "pipeline", "evaluation"]), st.integers(0, 300), st.integers(1, 80))
IO = st.tuples(st.integers(0, 300), st.integers(0, 60))


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(SPAN, max_size=12),
    st.lists(IO, max_size=20),
    st.lists(st.tuples(st.integers(1, 60), st.integers(0, 20)), min_size=1, max_size=6),
    st.integers(1, 7),
)
def test_all_times_are_those_of_every_nanosecond(
    tmp_path: Path, spans: list[Any], io: list[Any], steps: list[Any], group: int
) -> None:
    """A mask of nanoseconds for each kind, compared with the sets of intervals."""
    mask = {name: np.zeros(600, dtype=bool) for name in ("evaluation", *KINDS, "io", "pipeline")}
    for kind, start, length in [*spans, *(("io", *each) for each in io)]:
        mask[kind][start : start + length] = True
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
    found, (computed, whole) = overlap(capture), computed_in_loops(capture.spans)
    (rank,) = found.ranks.to_pylist()
    loop = slice(bounds[0][0], bounds[-1][1])
    wanted = {
        "io_ns": mask["io"].sum(), "io_hidden_ns": (mask["io"] & mask["compute"]).sum(),
        "io_in_wait_ns": (mask["io"] & mask["input_wait"]).sum(),
        "io_in_collective_ns": (mask["io"] & mask["collective"]).sum(),
        "io_in_checkpoint_ns": (mask["io"] & mask["checkpoint"]).sum(), "pipeline_ns": mask["pipeline"].sum(),
        "loop_ns": trained[loop].sum(), "evaluation_ns": mask["evaluation"].sum(),
        "io_in_evaluation_ns": (mask["io"] & mask["evaluation"]).sum(),
        "io_in_loop_ns": (mask["io"] & trained)[loop].sum(),
        **{f"{kind}_in_loop_ns": mask[kind][loop].sum() for kind in KINDS},
    }  # fmt: skip
    assert {name: rank[name] for name in wanted} == wanted
    assert (computed, whole) == (wanted["compute_in_loop_ns"], wanted["loop_ns"])
    run_ns, busy_ns = capture.info.job.run_time_s * 1e9, wanted["io_ns"] - wanted["io_in_evaluation_ns"]
    shares = {"io_of_run_pct": (wanted["io_ns"], run_ns), "pipeline_of_run_pct": (wanted["pipeline_ns"], run_ns)}
    shares |= {"io_hidden_pct": (wanted["io_hidden_ns"], busy_ns), "io_of_loop_pct": (wanted["io_in_loop_ns"], whole)}
    shares |= {f"{kind}_pct": (wanted[f"{kind}_in_loop_ns"], whole) for kind in KINDS}
    assert found.shares() == {
        name: pytest.approx(100 * part / of) if of else None for name, (part, of) in shares.items()
    }
    for row, (start, end) in zip(found.steps.to_pylist(), bounds, strict=True):
        part = {name: times[start:end] for name, times in mask.items()}
        part["io"] = part["io"] & trained[start:end]
        wanted = {f"{kind}_ns": part[kind].sum() for kind in ("evaluation", *KINDS, "io")}
        wanted |= {"duration_ns": trained[start:end].sum(), "rest_ns": rest[start:end].sum()}
        wanted["io_exposed_ns"] = (part["io"] & ~part["compute"]).sum()
        wanted["io_in_wait_ns"] = (part["io"] & part["input_wait"]).sum()
        assert {name: row[name] for name in wanted} == wanted


def steps(lengths: list[int], waits: list[int], rank: int = 0) -> list[Span]:
    """Steps after each other of so many ms, each of which begins with a wait."""
    spans, begin = [], 0
    for number, (length, wait) in enumerate(zip(lengths, waits, strict=True)):
        for kind, low, high in (("step", 0, length), ("input_wait", 0, wait), ("compute", wait, length)):
            spans.append(Span(kind, (begin + low) * MS, (begin + high) * MS, rank=rank, step=number))
        begin += length
    return spans


def reading(ms: int, count: int = 1, ranks: int = 1) -> list[Op]:
    times = [(rank, n * 10 * MS) for rank in range(ranks) for n in range(count)]
    return [read(0, length=1, start_ns=begin, end_ns=begin + ms * MS, rank=rank) for rank, begin in times]


TENS = [10, 10, 10, 10]


@pytest.mark.parametrize(
    ("spans", "ops", "wanted"),
    [
        (steps(TENS, [5, 1, 1, 1]), [], {"steps": 4, "warm_up_s": 0, "input_wait_pct": 20}),
        # a first step that dominates is a warm-up; accelerator utilisation is of the whole loop
        (
            steps([30, 10, 10, 10], [25, 1, 1, 1]), [],
            {"steps": 3, "warm_up_s": 0.02, "loop_s": 0.03, "input_wait_pct": 10, "compute_pct": 100 * (5 + 27) / 60},
        ),
        # no more than the time in which storage was busy
        (
            steps(TENS, [5] * 4), reading(1, 4),
            {"storage_gain_s": 0.004, "storage_gain_pct": 10, "io_in_wait_pct": 20, "io_exposed_pct": 10},
        ),
        (steps(TENS, [1] * 4), reading(40), {"storage_gain_s": 0.004}),  # nor than the waits
        # of each step the rank that waits longest: each may have waited for the other in a collective
        ([*steps(TENS, [4, 0, 4, 0]), *steps(TENS, [0, 3, 0, 3], 1)], reading(40, ranks=2), {"storage_gain_s": 0.014}),
    ],
)  # fmt: skip
def test_what_storage_can_have_cost(tmp_path: Path, spans: list[Span], ops: list[Op], wanted: dict[str, float]) -> None:
    loop = summarise(build_capture(tmp_path, files=["/a"], spans=spans, ops=ops)).loop
    assert {name: getattr(loop, name) for name in wanted} == pytest.approx(wanted)


@pytest.mark.parametrize(("pace", "known"), [("timed", False), ("none", False), ("steps", True), ("think", True)])
def test_a_replay_that_keeps_to_recorded_times_has_no_waits(tmp_path: Path, pace: str, known: bool) -> None:
    info = CaptureInfo(job=Job(nprocs=1, run_time_s=1.0), ranks=(0,), made_by={"command": "run", "pace": pace})
    capture = build_capture(tmp_path, files=["/a"], spans=steps([10, 10], [1, 1]), info=info)
    assert (summarise(capture).loop is not None) == known


def test_an_evaluation_is_no_part_of_its_step_nor_of_the_loop(tmp_path: Path) -> None:
    """Four steps of 10 ms; the last one's mark stays open over an evaluation that waits for its data for 400 ms."""
    spans = steps([10, 10, 10, 510], [1, 1, 1, 1])[:-1]
    for kind, begin, end, name in (
        ("compute", 31, 40, ""), ("other", 40, 540, "evaluation"), ("input_wait", 50, 450, "next_batch"),
        ("compute", 450, 500, ""),
    ):  # fmt: skip
        spans.append(Span(kind, begin * MS, end * MS, name, step=3))
    capture = build_capture(tmp_path, files=["/a"], spans=spans, ops=[read(0, length=1, start_ns=60 * MS)])
    found = summarise(capture)
    assert found.loop is not None
    assert (found.loop.evaluations, found.loop.evaluation_s, found.loop.loop_s) == (1, 0.5, 0.04)
    assert (found.loop.input_wait_s, found.loop.storage_gain_s) == (0.004, 0.0)
    assert (found.steps.mean_s, found.compute.input_wait_s_per_rank_mean) == (0.01, 0.004)
    assert overlap(capture).slowest().num_rows == 0
    (row,) = (row for section in summary_sections(found) for row in section.rows if row[0] == "evaluations")
    assert row[1].startswith("1, 500 ms")
