"""Spans of PyTorch's profiles (Kineto): steps, input wait, compute, collectives, checkpoints, annotations. Pure.

The names are those of PyTorch 1.8 to 2.13, and `next_batch`, `allreduce` and `checkpoint` as annotations.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dxt_replay.profiler_merge.profiles.event_table import GPU_LAUNCH, GPU_WORK, Profile, TorchFacts
from dxt_replay.profiler_merge.profiles.span_parts import (
    CHECKPOINT,
    COLLECTIVE,
    COMPUTE,
    INPUT_WAIT,
    OTHER,
    STEP,
    LoopParts,
    SpanColumns,
    SpanPart,
    between_steps,
    cut,
    events_part,
    joined,
    outermost,
    rows_of,
    span_columns,
    times_of,
    union_part,
)
from dxt_replay.traces.measures.intervals import Intervals
from dxt_replay.traces.schema import BACKGROUND_SAVE, BACKGROUND_WAIT, NO_STEP

_ANNOTATIONS = ("user_annotation", "Operator")

_MARK = r"ProfilerStep"
_NEXT = r"enumerate\(DataLoader\)#.*__next__"
_OPTIMIZER = r"Optimizer\.step#.*"
_WAIT = rf"{_NEXT}|next_batch"
_BACKEND = r"(?:nccl|gloo|mpi|ucc|xccl)"
_COLLECTIVE = rf"allreduce|{_BACKEND}:.*"
_ENQUEUE = rf"{_BACKEND}:.*|c10d::.*|record_param_comms"
"""Event names of a collective on a CPU: if a GPU works, these events are only its launch."""
_SAVE = rf"checkpoint|{BACKGROUND_SAVE}|{BACKGROUND_WAIT}|torch/serialization\.py\(\d+\): save"
_RESTORE = r"restore|torch/serialization\.py\(\d+\): load"
_STEP_PARTS = rf"{_OPTIMIZER}|DistributedDataParallel\.forward|FullyShardedDataParallel\.forward"
_INTERNAL = rf"{_STEP_PARTS}|between_steps|detach_?|Optimizer\.zero_grad#.*|.*::.*|\[.*\]|torch/.*"
_BLOCKED = r"(?:cuda|hip)(?:Stream|Device|Event)Synchronize"


def main_line(profile: Profile) -> int:
    """Row of `profile.lines` of the training loop: the one with most step marks, else with most batch requests, else
    with optimiser steps, else the busiest thread."""
    on_cpu = _on_cpu(profile)
    for pattern in (_MARK, _NEXT, _OPTIMIZER, r".*"):
        rows = rows_of(profile, pattern, on_cpu)
        if len(rows):
            break
    return int(np.argmax(np.bincount(profile.line[rows], minlength=len(profile.lines))))


def profile_spans(profile: Profile) -> SpanColumns:
    """All spans of one rank's profile.

    `input_wait`: the loader's `__next__` while the GPU is idle; `other` spans of the same name are the rest of it,
    which delays nothing. `compute` on the CPU is the busy union of operators, optimiser and forward pass outside of the
    other kinds, cut at step bounds. `gpu compute` is the busy union of the GPU work that one step launched, and belongs
    to that step even if it ran later. A `collective` on a GPU is the time at which only NCCL ran there.
    """
    loop = _loop(profile)
    gpu = _GpuWork.of(profile, loop)
    texts = [*profile.names, "compute", "gpu compute", "restore"]
    compute_name, gpu_name, restore_name = range(len(profile.names), len(texts))
    busy = _cpu_work(profile, gpu)
    start, end = cut(loop.outside(busy).minus(gpu.busy), loop.bounds)
    parts = [
        loop.steps,
        _within(loop.wait, loop.wait.intervals.minus(gpu.busy)),
        replace(_within(loop.wait, gpu.busy), kind=OTHER),
        loop.collective,
        loop.checkpoint,
        replace(loop.restore, name=np.full(len(loop.restore.name), restore_name)),
        union_part(COMPUTE, start, end, compute_name),
        *gpu.parts(gpu_name),
        _other(profile, loop),
    ]
    return span_columns(parts, texts, loop.steps, loop.numbers)


def _facts(profile: Profile) -> TorchFacts:
    assert profile.torch is not None
    return profile.torch


def _on_cpu(profile: Profile) -> np.ndarray:
    """bool per line: a thread, not a GPU stream."""
    return np.array([line.plane == 0 for line in profile.lines], bool)


def _is_main(profile: Profile) -> np.ndarray:
    return np.arange(len(profile.lines)) == main_line(profile)


def _loop(profile: Profile) -> LoopParts:
    on_cpu = _on_cpu(profile)
    numbers, steps = _steps(profile)
    collective = rows_of(profile, _COLLECTIVE, on_cpu)
    if _facts(profile).in_categories(*GPU_WORK).any():
        collective = collective[~profile.names_matching(_ENQUEUE)[profile.name[collective]]]
    return LoopParts(
        numbers=numbers,
        steps=steps,
        wait=joined(profile, INPUT_WAIT, _waits(profile, len(numbers))),
        collective=joined(profile, COLLECTIVE, collective),
        checkpoint=joined(profile, CHECKPOINT, rows_of(profile, _SAVE, on_cpu)),
        restore=joined(profile, CHECKPOINT, rows_of(profile, _RESTORE, on_cpu)),
    )


def _waits(profile: Profile, steps: int) -> np.ndarray:
    main = _is_main(profile)
    return between_steps(profile, rows_of(profile, _WAIT, main), main, steps)


def _steps(profile: Profile) -> tuple[np.ndarray, SpanPart]:
    """Numbers and intervals of the steps: the profiler's own marks, else from batch to batch, else from one step of
    the optimiser to the next."""
    main = _is_main(profile)
    rows, numbers = profile.stat("step_num")
    keep = main[profile.line[rows]] & (profile.duration_ns[rows] > 0)
    if keep.any():
        numbers, rows = numbers[keep], rows[keep]
        if len(rows) > 1 and (_stopped_in(profile, rows) or not _worked(profile, rows[-1])):
            numbers, rows = numbers[:-1], rows[:-1]
        if not (np.diff(numbers) > 0).all():
            numbers = np.arange(len(rows))
        return numbers.astype(np.int32), events_part(profile, STEP, rows)
    return _between(profile, main)


def _between(profile: Profile, main: np.ndarray) -> tuple[np.ndarray, SpanPart]:
    """Steps of a profile without marks: each begins with a batch request, or ends with the optimiser."""
    end_of_all = profile.end_ns[main[profile.line]].max(initial=0)
    requests = rows_of(profile, _NEXT, main)
    updates = rows_of(profile, _OPTIMIZER, main)
    if len(requests):
        rows = outermost(profile.start_ns, profile.end_ns, requests)
        start = profile.start_ns[rows]
        end = np.append(start[1:], end_of_all)
    else:
        rows = outermost(profile.start_ns, profile.end_ns, updates)
        end = profile.end_ns[rows]
        start = np.append(profile.start_ns[main[profile.line]].min(initial=end_of_all), end[:-1])[: len(end)]
    part = replace(events_part(profile, STEP, rows), start=start, end=end)
    if len(requests) and len(updates):
        # A request that only reached the end of the data, or an evaluation's batch, trained nothing.
        trained = np.diff(np.searchsorted(profile.start_ns[updates], np.append(start, end_of_all))) > 0
        part = replace(part, **{name: getattr(part, name)[trained] for name in ("start", "end", "thread", "name")})
    return np.arange(len(part.start), dtype=np.int32), part


def _stopped_in(profile: Profile, marks: np.ndarray) -> bool:
    """Whether the last mark holds anchors of the end, and none came after the first mark: the profiler was stopped in
    it.

    Such a mark began with the last `step()` and is not a training step.
    """
    anchors, _ = profile.stat("i")
    set_ns = profile.start_ns[anchors]
    of_mark = np.searchsorted(profile.start_ns[marks], set_ns, side="right") - 1
    in_last = (of_mark == len(marks) - 1) & (set_ns < profile.end_ns[marks[-1]])
    return bool(in_last.any() and not ((of_mark > 0) & (of_mark < len(marks) - 1)).any())


def _worked(profile: Profile, mark: int) -> bool:
    """Whether the program computed in a step besides requesting a batch; the time after the last step has no
    computation."""
    start, end = profile.start_ns[mark : mark + 1], profile.end_ns[mark : mark + 1]
    facts = _facts(profile)
    rows = np.flatnonzero(facts.in_categories("cpu_op", *GPU_LAUNCH) | profile.names_matching("aten::.*")[profile.name])
    asked = times_of(profile, rows_of(profile, _WAIT, _is_main(profile)))
    return bool(times_of(profile, rows).minus(asked).covered_within(start, end)[0] > 0)


def _cpu_work(profile: Profile, gpu: _GpuWork) -> Intervals:
    """Times at which some thread runs an operator, a forward pass or the optimiser."""
    facts = _facts(profile)
    work = facts.in_categories("cpu_op") | profile.names_matching(_STEP_PARTS)[profile.name]
    if "Operator" in facts.categories:  # 2021: annotations have the operators' category
        work |= facts.in_categories("Operator") & profile.names_matching(r"\w+::.*")[profile.name]
    work &= ~profile.names_matching(_ENQUEUE)[profile.name] & _on_cpu(profile)[profile.line]
    busy = times_of(profile, np.flatnonzero(work))
    if gpu.exists:
        busy = busy.minus(times_of(profile, rows_of(profile, _BLOCKED, _is_main(profile))))
    return busy


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _GpuWork:
    """Work on the GPUs of the rank. `start`, `end`, `step`: pieces of the busy union without NCCL, each of one step.

    `busy`: the union of all of it, NCCL included; `nccl`: the times at which only NCCL ran.
    """

    exists: bool
    start: np.ndarray
    end: np.ndarray
    step: np.ndarray
    busy: Intervals
    nccl: Intervals
    nccl_name: int

    @classmethod
    def of(cls, profile: Profile, loop: LoopParts) -> _GpuWork:
        facts = _facts(profile)
        rows = np.flatnonzero(facts.in_categories(*GPU_WORK) & (profile.duration_ns > 0))
        is_nccl = profile.names_matching(r"nccl.*")[profile.name[rows]]
        work = rows[~is_nccl]
        step = _launch_steps(profile, loop, work)
        starts, ends, steps = [], [], []
        done = Intervals()
        # In the order of the steps: an instant that two of them share belongs to the earlier one.
        for number in np.unique(step).tolist():
            mine = times_of(profile, work[step == number]).minus(done)
            done = done.union(mine)
            starts.append(mine.starts)
            ends.append(mine.ends)
            steps.append(np.full(len(mine), number, np.int32))
        none = [np.empty(0, np.int64)]
        nccl = rows[is_nccl]
        return cls(
            exists=len(rows) > 0,
            start=np.concatenate(starts or none),
            end=np.concatenate(ends or none),
            step=np.concatenate(steps or none).astype(np.int32),
            busy=times_of(profile, rows),
            nccl=times_of(profile, nccl).minus(done),
            nccl_name=int(profile.name[nccl[0]]) if len(nccl) else 0,
        )

    def parts(self, name: int) -> tuple[SpanPart, ...]:
        """The work under the name of row `name`, and the collectives."""
        return (
            replace(union_part(COMPUTE, self.start, self.end, name), step=self.step),
            union_part(COLLECTIVE, self.nccl.starts, self.nccl.ends, self.nccl_name),
        )


def _launch_steps(profile: Profile, loop: LoopParts, work: np.ndarray) -> np.ndarray:
    """int32 step that launched each piece of GPU work; without a profiled launch, the step in which it ran."""
    facts = _facts(profile)
    steps = loop.step_at(profile.start_ns[work])
    launches = np.flatnonzero(facts.in_categories(*GPU_LAUNCH) & (facts.correlation != 0))
    if len(launches) == 0 or len(work) == 0:
        return steps
    launches = launches[np.argsort(facts.correlation[launches], kind="stable")]
    known = facts.correlation[launches]
    wanted = facts.correlation[work]
    place = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    found = (known[place] == wanted) & (wanted != 0)
    launched = loop.step_at(profile.start_ns[launches[place]])
    result: np.ndarray = np.where(found & (launched != NO_STEP), launched, steps)
    return result


def _other(profile: Profile, loop: LoopParts) -> SpanPart:
    """Annotations of the main thread of no other kind: the outermost ones within the steps."""
    known = "|".join((_MARK, _WAIT, _COLLECTIVE, _SAVE, _RESTORE, _INTERNAL))
    rows = rows_of(profile, r".*", _is_main(profile), but=known)
    rows = rows[_facts(profile).in_categories(*_ANNOTATIONS)[rows] & (profile.duration_ns[rows] > 0)]
    rows = outermost(profile.start_ns, profile.end_ns, rows)
    return events_part(profile, OTHER, loop.phases(profile, rows))


def _within(part: SpanPart, times: Intervals) -> SpanPart:
    """The pieces of the part's disjoint spans that lie within `times`, with their threads and names."""
    kept = part.intervals.minus(part.intervals.minus(times))
    start, end = cut(kept, np.unique(np.concatenate([part.start, part.end])))
    owner = np.searchsorted(part.start, start, side="right") - 1
    return replace(part, start=start, end=end, thread=part.thread[owner], name=part.name[owner])
