"""Spans of PyTorch's profiles (Kineto): steps, input wait, compute, collectives, checkpoints, annotations. Pure.

The names are those of PyTorch 1.8 to 2.13, and `next_batch`, `allreduce` and `checkpoint` as annotations.
"""

from __future__ import annotations

import numpy as np

from dxt_replay.profiler_merge.profiles.event_table import GPU_LAUNCH, GPU_WORK, Profile, TorchFacts
from dxt_replay.profiler_merge.profiles.span_parts import (
    COLLECTIVE,
    COMPUTE,
    INPUT_WAIT,
    OTHER,
    STEP,
    LoopParts,
    SpanColumns,
    between_steps,
    covered,
    in_order,
    joined,
    made_spans,
    of_events,
    of_intervals,
    outermost,
    rows_of,
    times_of,
)
from dxt_replay.traces.measures.intervals import Intervals
from dxt_replay.traces.schema import BACKGROUND_SAVE, BACKGROUND_WAIT, EVALUATION_NAMES, GPU_COMPUTE, NO_STEP

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
_BACKWARD = r"autograd::engine::.*|.*Backward\d*"
_LAUNCHED = r"(?:cuda|hip|cu)\w*Launch\w*"


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
    which delays nothing. `gpu compute` is the busy union of the work on one GPU that one step launched, and belongs to
    that step even if it ran later. A `collective` on a GPU is the time at which only NCCL ran there. Only a program
    without a GPU has `compute` of the CPU: the busy union of operators, optimiser and forward pass outside of the other
    kinds, cut at step bounds. A mark of the profiler in which nothing was trained is `other`.
    """
    facts, on_cpu, is_main = _facts(profile), _on_cpu(profile), _is_main(profile)
    steps = _steps(profile)
    collective = rows_of(profile, _COLLECTIVE, on_cpu)
    if facts.in_categories(*GPU_WORK).any():
        collective = collective[~profile.names_matching(_ENQUEUE)[profile.name[collective]]]
    waits = between_steps(profile, rows_of(profile, _WAIT, is_main), is_main, len(steps))
    saves = rows_of(profile, _SAVE, on_cpu), rows_of(profile, _RESTORE, on_cpu)
    loop = LoopParts.of(profile, steps, joined(profile, INPUT_WAIT, waits), collective, *saves)
    on_gpu = np.flatnonzero(facts.in_categories(*GPU_WORK) & (profile.duration_ns > 0))
    busy = Intervals()
    if not len(on_gpu) and not len(rows_of(profile, _LAUNCHED, on_cpu)):
        busy = loop.outside(_cpu_work(profile))
    # Annotations of the main thread of no other kind: the outermost ones within the steps.
    known = "|".join((_MARK, _WAIT, _COLLECTIVE, _SAVE, _RESTORE, _INTERNAL))
    rows = rows_of(profile, r".*", is_main, but=known)
    rows = rows[facts.in_categories(*_ANNOTATIONS)[rows] & (profile.duration_ns[rows] > 0)]
    other = loop.phases(profile, outermost(profile.start_ns, profile.end_ns, rows))
    told = covered(other[np.isin(other.name, EVALUATION_NAMES)])
    found = of_intervals(OTHER, _evaluations(profile), EVALUATION_NAMES[0], profile.lines[main_line(profile)].id)
    evaluations = found[told.covered_within(found.start_ns, found.end_ns) == 0]
    # The profiler's marks that are no steps, such as the time after the last step.
    marks, _ = profile.stat("step_num")
    marks = marks[is_main[profile.line[marks]] & (profile.duration_ns[marks] > 0)]
    untrained = of_events(profile, OTHER, marks[~np.isin(profile.start_ns[marks], steps.start_ns)])
    parts = [
        *(steps, *loop.waits_beside(times_of(profile, on_gpu)), loop.collective, loop.checkpoint, loop.restore),
        *(of_intervals(COMPUTE, busy, "compute"), *_gpu_work(profile, loop, on_gpu), other, evaluations, untrained),
    ]
    return in_order(parts, steps)


def _facts(profile: Profile) -> TorchFacts:
    assert profile.torch is not None
    return profile.torch


def _on_cpu(profile: Profile) -> np.ndarray:
    """bool per line: a thread, not a GPU stream."""
    return np.array([line.plane == 0 for line in profile.lines], bool)


def _is_main(profile: Profile) -> np.ndarray:
    return np.arange(len(profile.lines)) == main_line(profile)


def _steps(profile: Profile) -> SpanColumns:
    """The steps: the profiler's own marks, else from batch to batch, else from optimiser step to optimiser step."""
    main = _is_main(profile)
    rows, numbers = profile.stat("step_num")
    keep = main[profile.line[rows]] & (profile.duration_ns[rows] > 0)
    if keep.any():
        numbers, rows = numbers[keep], rows[keep]
        if len(rows) > 1 and (_stopped_in(profile, rows) or not _worked(profile, rows[-1])):
            numbers, rows = numbers[:-1], rows[:-1]
        if not (np.diff(numbers) > 0).all():
            numbers = np.arange(len(rows))
        trains = _trains(profile, profile.start_ns[rows], profile.end_ns[rows])
        if trains is not None and trains.any():
            numbers, rows = (numbers - np.cumsum(~trains))[trains], rows[trains]
        found = of_events(profile, STEP, rows)
        found.step = numbers
        return found
    return _between(profile, main)


def _between(profile: Profile, main: np.ndarray) -> SpanColumns:
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
    found = of_events(profile, STEP, rows)
    found.start_ns, found.end_ns = start, end
    if len(requests) and len(updates):
        # A request that only reached the end of the data, or an evaluation's batch, trained nothing.
        trained = _trains(profile, start, end)
        if trained is None:
            trained = np.diff(np.searchsorted(profile.start_ns[updates], np.append(start, end_of_all))) > 0
        found = found[trained]
    found.step = np.arange(len(found))
    return found


def _trains(profile: Profile, start: np.ndarray, end: np.ndarray) -> np.ndarray | None:
    """bool per time: an optimizer's step or a backward pass begins in it. None where the profile does not show both, so
    that a batch without them may be one of several for which gradients accumulate."""
    updates = rows_of(profile, _OPTIMIZER, _is_main(profile))
    backward = rows_of(profile, _BACKWARD, _on_cpu(profile))
    if not len(updates) or not len(backward):
        return None
    begins = np.sort(profile.start_ns[np.concatenate((updates, backward))])
    found: np.ndarray = np.searchsorted(begins, end) > np.searchsorted(begins, start)
    return found


def _evaluations(profile: Profile) -> Intervals:
    """Passes over batches without a step of an optimizer, from the first request to the one that ended the data."""
    main = _is_main(profile)
    rows = rows_of(profile, _NEXT, main)
    rows = outermost(profile.start_ns, profile.end_ns, rows)
    start, end = profile.start_ns[rows], profile.end_ns[rows]
    following = np.append(start[1:], profile.end_ns[main[profile.line]].max(initial=0))[: len(rows)]
    trains = _trains(profile, start, following)
    if trains is None or not trains.any():
        return Intervals()
    worked = _work(profile, main).covered_within(end, np.maximum(following, end)) > 0
    edges = np.flatnonzero(np.diff(np.concatenate(([True], trains, [True]))))
    begins, lasts = edges[::2], edges[1::2] - 1
    begins = begins + (begins > 0)  # the request before ended the data of the training
    # Not batches that a resumed training passes over, nor several loaders of which each step takes a batch.
    kept = np.array([worked[a:b].any() for a, b in zip(begins, lasts, strict=True)], bool)
    if 2 * kept.sum() > trains.sum():
        return Intervals()
    return Intervals.union_of(start[begins[kept]], end[lasts[kept]])


def _work(profile: Profile, lines: np.ndarray) -> Intervals:
    """Times at which these lines run an operator or launch work of a GPU."""
    chosen = _facts(profile).in_categories("cpu_op", *GPU_LAUNCH)
    chosen |= profile.names_matching("aten::.*")[profile.name]
    return times_of(profile, np.flatnonzero(chosen & lines[profile.line]))


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
    asked = times_of(profile, rows_of(profile, _WAIT, _is_main(profile)))
    everywhere = np.ones(len(profile.lines), bool)
    return bool(_work(profile, everywhere).minus(asked).covered_within(start, end)[0] > 0)


def _cpu_work(profile: Profile) -> Intervals:
    """Times at which some thread runs an operator, a forward pass or the optimiser."""
    facts = _facts(profile)
    work = facts.in_categories("cpu_op") | profile.names_matching(_STEP_PARTS)[profile.name]
    if "Operator" in facts.categories:  # 2021: annotations have the operators' category
        work |= facts.in_categories("Operator") & profile.names_matching(r"\w+::.*")[profile.name]
    work &= ~profile.names_matching(_ENQUEUE)[profile.name] & _on_cpu(profile)[profile.line]
    return times_of(profile, np.flatnonzero(work))


def _gpu_work(profile: Profile, loop: LoopParts, rows: np.ndarray) -> list[SpanColumns]:
    """The busy union of each GPU without NCCL, in pieces that each belong to one step; and when only NCCL ran.

    `rows`: all events on GPUs."""
    is_nccl = profile.names_matching(r"nccl.*")[profile.name[rows]]
    work, nccl = rows[~is_nccl], rows[is_nccl]
    step = _launch_steps(profile, loop, work)
    gpu = np.array([line.pid for line in profile.lines], np.int64)[profile.line[work]]
    parts = []
    for each in np.unique(gpu).tolist():
        done = Intervals()
        # In the order of the steps: an instant that two of them share belongs to the earlier one.
        for number in np.unique(step[gpu == each]).tolist():
            mine = times_of(profile, work[(step == number) & (gpu == each)]).minus(done)
            done = done.union(mine)
            part = made_spans(COMPUTE, mine.starts, mine.ends, GPU_COMPUTE, each)
            part.step = number
            parts.append(part)
    alone = times_of(profile, nccl).minus(times_of(profile, work))
    return [*parts, of_intervals(COLLECTIVE, alone, profile.names[profile.name[nccl[0]]] if len(nccl) else "")]


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
