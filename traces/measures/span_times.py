"""Spans of a capture as times: the union of one kind per rank, and the durations of steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dxt_replay.traces.measures.intervals import Intervals
from dxt_replay.traces.schema import (
    EVALUATION_NAMES,
    GPU_COMPUTE,
    GPU_STEP,
    LOG_WRITING,
    NO_STEP,
    RECONSTRUCTED,
    SPAN_KINDS,
    TPU_COMPUTE,
    codes,
)
from dxt_replay.traces.units import ns_to_seconds

ALIKE = 1.05
"""Longest compute of several ranks in a step, as a multiple of the mean, up to which copies need no draws of their
own."""


def union_by_rank(spans: pa.Table, kind: str) -> dict[int, Intervals]:
    """Times in which a rank was in at least one span of `kind` (of `SPAN_KINDS`); ranks without any are absent."""
    return {rank: Intervals.union_of(starts, ends) for rank, _, starts, ends in spans_by_rank(spans, kind)}


def are_evaluations(spans: pa.Table) -> np.ndarray:
    """bool (rows,): the spans of an evaluation of the model."""
    named = pc.is_in(spans["name"], pa.array(EVALUATION_NAMES)).to_numpy()
    found: np.ndarray = named & (codes(spans, "kind") == SPAN_KINDS.index("other"))
    return found


def evaluations_by_rank(spans: pa.Table) -> dict[int, Intervals]:
    """Times in which each rank evaluated the model, or waited for a log; ranks that never did are absent."""
    return union_by_rank(spans.filter(pa.array(are_evaluations(spans) | are_log_waits(spans))), "other")


def are_log_waits(spans: pa.Table) -> np.ndarray:
    """bool (rows,): the spans LOG_WRITING, which `log_waits.with_log_waits` adds."""
    found: np.ndarray = pc.equal(spans["name"], LOG_WRITING).to_numpy()
    return found & (codes(spans, "kind") == SPAN_KINDS.index("other"))


def whole_steps(spans: pa.Table) -> pa.Table:
    """The rows that are whole training steps: spans of kind `step` with a number.

    A step that the window of a part cuts has no number (`traces.part`): its duration would be too short."""
    step = spans["step"].to_numpy()
    return spans.filter(pa.array((codes(spans, "kind") == SPAN_KINDS.index("step")) & (step != NO_STEP)))


def training_ns(spans: pa.Table) -> int | None:
    """Duration of the training, ns: from the begin of the first step of any rank to the end of the last; None without
    steps."""
    limits = training_limits_ns(spans)
    return int(limits[1] - limits[0]) if len(limits) else None


def training_limits_ns(spans: pa.Table) -> np.ndarray:
    """int64 (2,): begin of the first step of any rank and end of the last, ns; (0,) without steps."""
    steps = whole_steps(spans)
    ends = [steps["start_ns"].to_numpy().min(), steps["end_ns"].to_numpy().max()] if steps.num_rows else []
    return np.array(ends, dtype=np.int64)


def computed_in_loops(spans: pa.Table) -> tuple[int, int]:
    """(compute, loops), ns over all ranks. Accelerator utilisation is compute as a share of the loops.

    Compute: inside the loop and outside of evaluations. On GPUs all that runs there, collectives too, the mean of those
    of a rank; on a CPU what is outside of waits, collectives and checkpoints. Loop: from the first step's start to the
    last one's end, without evaluations.
    """
    evaluated, computed, gpus = evaluations_by_rank(spans), union_by_rank(spans, "compute"), gpus_by_rank(spans)
    held = [union_by_rank(spans, kind) for kind in ("input_wait", "collective", "checkpoint")]
    compute_ns = loops_ns = 0
    for rank, _, starts, ends in spans_by_rank(whole_steps(spans), "step"):
        first, last = starts[:1], ends.max(keepdims=True)
        evaluation, on_cpu = evaluated.get(rank, Intervals()), computed.get(rank, Intervals())
        for others in held:
            on_cpu = on_cpu.minus(others.get(rank, Intervals()))
        busy = [times.minus(evaluation) for times in gpus.get(rank, [on_cpu])]
        compute_ns += sum(int(times.covered_within(first, last)[0]) for times in busy) // len(busy)
        loops_ns += int((last - first - evaluation.covered_within(first, last))[0])
    return compute_ns, loops_ns


def copies_alike(spans: pa.Table, ranks: int) -> tuple[str, ...]:
    """A sentence where `ranks` ranks, among them copies, would wait for each other if each had compute times of its
    own, drawn from those of the recorded ranks' steps (without the first); else none."""
    computed, drawn, recorded = union_by_rank(spans, "compute"), [], 0
    for rank, _, starts, ends in spans_by_rank(whole_steps(spans), "step"):
        recorded += 1
        drawn.append(computed.get(rank, Intervals()).covered_within(starts[1:], ends[1:]))
    times = np.sort(np.concatenate(drawn or [np.zeros(0)]))
    if ranks <= recorded or not times.sum():
        return ()
    below = (np.arange(len(times) + 1) / len(times)) ** ranks
    longer = float((times * np.diff(below)).sum() / times.mean())
    if longer < ALIKE:
        return ()
    return (
        f"copied ranks compute for as long as their source in each step; with times of its own, the slowest of {ranks} "
        f"would take {longer:.2f} times the mean, and ranks that meet in each step wait for it",
    )


def are_on_gpu(spans: pa.Table) -> np.ndarray:
    """bool (rows,): the spans of compute on a GPU or TPU."""
    named = pc.is_in(spans["name"], pa.array((GPU_COMPUTE, TPU_COMPUTE, GPU_STEP))).to_numpy()
    found: np.ndarray = named & (codes(spans, "kind") == SPAN_KINDS.index("compute"))
    return found


def gpus_by_rank(spans: pa.Table) -> dict[int, list[Intervals]]:
    """Times in which something ran on each GPU of a rank that worked; ranks without compute on a GPU are absent.

    A collective of NCCL counts for all GPUs of its rank."""
    nccl = union_by_rank(spans.filter(pc.starts_with(spans["name"], "nccl")), "collective")
    mine = spans.filter(pa.array(are_on_gpu(spans)))
    rank, gpu, start, end = (mine[name].to_numpy() for name in ("rank", "thread", "start_ns", "end_ns"))
    order = np.lexsort((gpu, rank))
    edges = np.flatnonzero((np.diff(rank[order]) != 0) | (np.diff(gpu[order]) != 0)) + 1
    found: dict[int, list[Intervals]] = {}
    for rows in np.split(order, edges) if len(order) else ():
        times = Intervals.union_of(start[rows], end[rows]).union(nccl.get(each := int(rank[rows[0]]), Intervals()))
        found.setdefault(each, []).append(times)
    return found


def gpu_busy_in_profile(spans: pa.Table) -> tuple[int, int, int]:
    """(busy, whole, number) of the GPUs that worked, ns over all: the union of what ran on each, collectives included,
    and the time from the first step to the end of the profile, evaluations included. Zeros where no kernels are shown.
    """
    shown = spans.filter(pc.not_equal(spans["name"], GPU_STEP))
    gpus = gpus_by_rank(shown)
    ends = shown.select(("rank", "end_ns")).group_by("rank").aggregate([("end_ns", "max")])
    end_of = dict(zip(ends["rank"].to_pylist(), ends["end_ns_max"].to_pylist(), strict=True))
    busy_ns = whole_ns = number = 0
    for rank, _, starts, _ in spans_by_rank(whole_steps(shown), "step"):
        last = np.array([end_of[rank]])
        for times in gpus.get(rank, ()):
            number += 1
            busy_ns += int(times.covered_within(starts[:1], last)[0])
            whole_ns += int((last - starts[:1])[0])
    return busy_ns, whole_ns, number


def gpu_steps(spans: pa.Table) -> tuple[int, int]:
    """Number of steps of which timing events show the time on a GPU, and of those on whose end it had work left."""
    mine, steps = spans.filter(pc.equal(spans["name"], GPU_STEP)), whole_steps(spans)
    end_of = dict(
        zip(zip(steps["rank"].to_pylist(), steps["step"].to_pylist(), strict=True), steps["end_ns"].to_pylist(),
            strict=True)
    )  # fmt: skip
    keys = zip(mine["rank"].to_pylist(), mine["step"].to_pylist(), strict=True)
    late = [end > end_of[key] for key, end in zip(keys, mine["end_ns"].to_pylist(), strict=True) if key in end_of]
    return len(late), sum(late)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingTime:
    """Duration of the training as recorded and in a replay.

    recording_wait_s: seconds of recorded_s that the recording itself caused (`log_waits`); None where that is not
    known.
    replayed_s: without the time in which the machine stood still, which is `stood_still_s`.
    ratio: replayed_s / (recorded_s - recording_wait_s); None where that is 0.
    """

    recorded_s: float
    recording_wait_s: float | None
    replayed_s: float
    ratio: float | None
    stood_still_s: float = 0.0

    @classmethod
    def of(
        cls, source: pa.Table, replay: pa.Table, recording_wait_ns: int | None = None, *, stood_still_ns: int = 0
    ) -> TrainingTime | None:
        """From the spans of both captures; None if one has no steps."""
        recorded, replayed = training_ns(source), training_ns(replay)
        if recorded is None or replayed is None:
            return None
        replayed -= stood_still_ns
        rest = recorded - (recording_wait_ns or 0)
        return cls(
            recorded_s=ns_to_seconds(recorded),
            recording_wait_s=None if recording_wait_ns is None else ns_to_seconds(recording_wait_ns),
            replayed_s=ns_to_seconds(replayed),
            ratio=replayed / rest if rest else None,
            stood_still_s=ns_to_seconds(stood_still_ns),
        )


def extended_steps(spans: pa.Table) -> tuple[int, int]:
    """(extended, all) steps of the rank with the most extended ones.

    Extended steps were not profiled: they are inferred from the reads and from the profiled steps."""
    table = whole_steps(spans)
    valid = table["origin"].is_valid()
    known = table.filter(valid)
    ranks = known["rank"].to_numpy()[codes(known, "origin") == RECONSTRUCTED]
    if not len(ranks):
        return 0, 0
    counts = np.bincount(ranks)
    most = int(np.argmax(counts))
    return int(counts[most]), int((table["rank"].to_numpy() == most).sum())


def spans_by_rank(spans: pa.Table, kind: str) -> Iterator[tuple[int, np.ndarray, np.ndarray, np.ndarray]]:
    """For each rank that has spans of `kind`: rank, and columns step, start_ns, end_ns in start order."""
    chosen = codes(spans, "kind") == SPAN_KINDS.index(kind)
    rank, step, start, end = (spans[name].to_numpy()[chosen] for name in ("rank", "step", "start_ns", "end_ns"))
    order = np.lexsort((start, rank))
    rank, step, start, end = rank[order], step[order], start[order], end[order]
    cuts = np.flatnonzero(np.diff(rank)) + 1
    for begin, stop in zip([0, *cuts.tolist()], [*cuts.tolist(), len(rank)], strict=True):
        if stop > begin:
            yield int(rank[begin]), step[begin:stop], start[begin:stop], end[begin:stop]
