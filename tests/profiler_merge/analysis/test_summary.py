"""The totals of a capture, from rows and counters, on Theta, and from any number of pieces and processes; the training
loop: times of ranks and steps, and what storage can have cost. `tests/same` has every number of recorded jobs."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dxt_replay.profiler_merge.analysis.loop import overlap
from dxt_replay.profiler_merge.analysis.named_tables import views
from dxt_replay.profiler_merge.analysis.summary import Summary, summarise
from dxt_replay.profiler_merge.analysis.timeline import timeline
from dxt_replay.profiler_merge.merge import merge
from dxt_replay.replay.show.summary import summary_sections
from dxt_replay.traces.measures.span_times import computed_in_loops
from dxt_replay.traces.part import Part
from dxt_replay.traces.schema import READING_WAITS, CaptureInfo, Job, Source
from dxt_replay.traces.store.part_capture import part_of
from dxt_replay.traces.store.reader import Capture, open_capture
from dxt_replay.traces.units import MIB
from dxt_replay.traces.workers import ALONE, Workers
from tests.capture_builder import File, Op, Span, build_capture, read, write
from tests.examples import examples
from tests.places import CAPTURES, recorded
from tests.workers_equality import OPERATIONS, SPANS, plain

MS, S = 1_000_000, 1_000_000_000

NO_PYTHON = Part(exclude=("*.py*",))
"""VaniDL leaves out paths with .py."""

COUNTED = {
    "posix_reads": 10, "posix_writes": 0, "posix_seq_reads": 9, "posix_consec_reads": 4,
    "posix_bytes_read": 3 * MIB, "posix_bytes_written": 0,
}  # fmt: skip
STREAM = {"stdio_reads": 0, "stdio_writes": 3, "stdio_bytes_read": -1, "stdio_bytes_written": 250}


def info(**changes: Any) -> CaptureInfo:
    return CaptureInfo(**{"job": Job(nprocs=1, run_time_s=1), "ranks": (0,), **changes})


def of(folder: Path, *ops: Op, file: File | str = "/a", **changes: Any) -> Summary:
    return summarise(build_capture(folder, files=[file, "/b"], ops=ops, info=info(**changes)))


def test_an_empty_capture_has_zeros_and_nulls(tmp_path: Path) -> None:
    found = summarise(build_capture(tmp_path)).as_json()
    assert found["operations"] == {"read": 0, "write": 0, "other": 0}
    assert found["transfer_size_bytes"] == {"min": None, "median": None, "mean": None, "max": None}
    assert found["aggregate_bandwidth_mib_s"] is found["sequential_pct"] is found["compute"]["io_hidden_pct"] is None
    assert found["io_time_s"]["union_per_rank_mean"] == 0
    json.dumps(found, allow_nan=False)


def test_io_time_is_over_all_ranks_of_the_job_and_no_longer_than_the_job(tmp_path: Path) -> None:
    found = of(tmp_path, read(0, end_ns=8 * S, length=1), job=Job(nprocs=8, run_time_s=1))
    assert found.io_time_s.union_per_rank_mean == pytest.approx(1)
    (warning,) = found.warnings
    assert "rank 0 spent more time in I/O than the job ran" in warning


LAYERS = (
    read(0, length=10, start_ns=0), write(0, length=4, start_ns=1), read(0, api="MPIIO", length=5, start_ns=2),
    read(0, api="MPIIO_COLL", length=6, start_ns=3), write(1, api="STDIO", length=100, origin="reconstructed"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("counters", "changes", "wanted"),
    [
        (COUNTED, {}, (90, 40, "counters", {"POSIX": (10, 3 * MIB, 0, "counters"), "STDIO": (0, 0, 1, "operations")})),
        # counters are preferred by interface
        (STREAM, {}, (0, 0, "operations", {"POSIX": (2, 14, 0, "operations"), "STDIO": (3, 250, 1, "counters")})),
        # those of a replay are its source's, and another recorder has none
        (COUNTED, {"made_by": {"pace": "timed"}}, (0, 0, "operations", {"POSIX": (2, 14, 0, "operations")})),
        *(
            (COUNTED, {"sources": (Source(name="a", sha256="0", kind=kind),)},
             (*shown, {"POSIX": (2 if kind == "strace" else 10, moved, 0, shown[2])}))
            for kind, moved, shown in (("darshan", 3 * MIB, (90, 40, "counters")), ("strace", 14, (0, 0, "operations")))
        ),
    ],
)  # fmt: skip
def test_counters_are_preferred_where_they_are_those_of_the_rows(
    tmp_path: Path, counters: dict[str, int], changes: dict[str, Any], wanted: tuple[Any, ...]
) -> None:
    found = of(tmp_path, *LAYERS, file=File("/a", counters=counters), **changes)
    *shown, interfaces = wanted
    assert [found.sequential_pct, found.consecutive_pct, found.access_pattern_source] == shown
    assert list(found.interfaces) == ["POSIX", "STDIO", "MPIIO"]
    for name, totals in {"MPIIO": (2, 11, 0, "operations"), **interfaces}.items():
        each = found.interfaces[name]
        assert (each.operations, each.bytes, each.reconstructed, each.source) == totals
        assert each.operations == each.reads + each.writes


@pytest.fixture(scope="module")
def theta(tmp_path_factory: pytest.TempPathFactory) -> Capture:
    path = tmp_path_factory.mktemp("theta") / "theta.capture"
    merge([recorded("theta/cosmictagger_8ranks.darshan")], [], path)
    return open_capture(path)


def test_theta_with_and_without_python_files(theta: Capture) -> None:
    found, every = summarise(part_of(theta, NO_PYTHON)), summarise(theta)
    assert (found.operations.read + found.operations.write, found.files) == (313_240, 21)
    assert every.operations.read + every.operations.write == 313_872
    times_s = found.io_time_s.sum_per_rank_mean, every.io_time_s.sum_per_rank_mean
    assert times_s == pytest.approx((16.118, 16.228), abs=5e-4)
    speeds = found.bandwidth_per_op_mib_s.mean, found.bandwidth_per_op_mib_s.median
    assert speeds == pytest.approx((266.7, 243.0), abs=0.1)
    shares = round(found.sequential_pct or 0, 2), round(found.consecutive_pct or 0, 2)
    assert (*shares, found.access_pattern_source) == (95.71, 88.18, "counters")
    moved = (found.interfaces["POSIX"].bytes, found.interfaces["STDIO"].bytes)
    assert [round((size or 0) / 2**30, 2) for size in moved] == [1.51, 0.93]
    assert found.io_time_s.union_per_rank_max < found.job.run_time_s == 988


# ---- pieces

BY_WORKERS = ("findings", "overlap", "steps", "files", "ranks", "timeline")


def everything(capture: Capture, workers: Workers, by: str = "file") -> object:
    by_rank = timeline(capture, bins=100, per_rank=True, workers=workers)
    return plain([views(capture, BY_WORKERS, by=by, workers=workers), by_rank])


@settings(max_examples=examples(4))
@example(ops=[Op("read", rank, length=4096, rank=rank) for rank in (0, 1)], by="rank")
@given(ops=OPERATIONS, by=st.sampled_from(["rank", "file", "format", "step", "size"]))
def test_the_ranks_alone_come_to_the_whole(ops: list[Op], by: str) -> None:
    """Durations are equal and lengths whole numbers, so that means have no rounding that the order could change."""
    with TemporaryDirectory() as folder:
        capture = build_capture(Path(folder), files=["/a", "/b.h5", "/c", "/d"], ops=ops, spans=SPANS, ranks=range(5))
        assert everything(capture, Workers(1, piece_operations=1), by) == everything(capture, ALONE, by)


def test_any_number_of_processes_comes_to_the_same_bits(tmp_path: Path) -> None:
    folder = CAPTURES / "climate"
    if not folder.exists():
        pytest.skip("the recorded captures are not here")
    merge([folder / "job.darshan"], sorted((folder / "profile").rglob("*.xplane.pb*")), tmp_path / "x.capture")
    capture = open_capture(tmp_path / "x.capture")
    assert len(capture.ranks) > 1
    with Workers(2, piece_operations=1) as workers:
        assert everything(capture, workers) == everything(capture, Workers(1, piece_operations=1))


# ---- the training loop


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


@settings(max_examples=examples(15), suppress_health_check=[HealthCheck.function_scoped_fixture])
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
            *(Span("step", start, end, step=number) for number, (start, end) in enumerate(bounds)),
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
    spans += [Span("compute", 31 * MS, 40 * MS, step=3), Span("other", 40 * MS, 540 * MS, "evaluation", step=3)]
    spans += [Span("input_wait", 50 * MS, 450 * MS, step=3), Span("compute", 450 * MS, 500 * MS, step=3)]
    found = summarise(build_capture(tmp_path, files=["/a"], spans=spans, ops=[read(0, length=1, start_ns=60 * MS)]))
    assert found.loop is not None
    assert (found.loop.evaluations, found.loop.evaluation_s, found.loop.loop_s) == (1, 0.5, 0.04)
    assert (found.loop.input_wait_s, found.loop.storage_gain_s) == (0.004, 0.0)
    assert (found.steps.mean_s, found.compute.input_wait_s_per_rank_mean) == (0.01, 0.004)
    (row,) = (row for section in summary_sections(found) for row in section.rows if row[0] == "evaluations")
    assert row[1].startswith("1, 500 ms")
