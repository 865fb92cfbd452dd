"""Spans of TensorFlow's and JAX's profiles: steps, input wait, compute, collectives, checkpoints, pipeline work. Pure.

The names are those of TensorFlow 2.3 to 2.21, and `next_batch`, `allreduce` and `checkpoint` as annotations.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

import numpy as np

from dxt_replay.profiler_merge.profiles.event_table import ACCELERATOR, Profile
from dxt_replay.profiler_merge.profiles.input_chain import fetched_ns, outermost_on_lines
from dxt_replay.profiler_merge.profiles.span_parts import (
    CHECKPOINT,
    COLLECTIVE,
    COMPUTE,
    INPUT_WAIT,
    OTHER,
    PIPELINE,
    STEP,
    LoopParts,
    SpanColumns,
    SpanPart,
    between_steps,
    cut,
    events_part,
    joined,
    outermost,
    overlaps,
    rows_of,
    span_columns,
    times_of,
    union_part,
    within,
)
from dxt_replay.traces.measures.intervals import Intervals
from dxt_replay.traces.schema import GPU_COMPUTE, TPU_COMPUTE

# Regular expressions over whole event names. A kernel is `op_name:OpType`, an eager operation
# `EagerLocalExecute: OpType`; an annotation of the application is whatever it was called.
_KERNEL = r"[^:$]+:_?[A-Z]\w*"
_EAGER = r"EagerLocalExecute: .+"
_GET_NEXT = r"IteratorGetNext\w*::DoCompute"
_GET_NEXT_OP = r"(?:.*:|EagerLocalExecute: )(?:IteratorGetNext\w*|MultiDeviceIteratorGetNextFromShard)"
_INPUT_LABEL = r"next_batch"
_COLLECTIVE_OPS = r"(?:Horovod|Collective|_?Nccl)(?:All|Reduce|Broadcast|Bcast|Gather|Grouped|Allreduce)\w*"
_COLLECTIVE = rf"allreduce|(?:.*:|EagerLocalExecute: ){_COLLECTIVE_OPS}|nccl(?:Dev)?Kernel\w*"
_SAVE_LABEL = r"checkpoint"
_SAVE = rf"{_SAVE_LABEL}|(?:.*:|EagerLocalExecute: )(?:SaveV2|SaveSlices|MergeV2Checkpoints)"
_RESTORE = r"(?:.*:|EagerLocalExecute: )(?:RestoreV2|RestoreSlice)"
_PRODUCE = rf"Iterator::.*|\w+Produce|ParallelInterleaveInitializeInput|ExecutorState::Process|{_KERNEL}"
_PIPELINE_LINES = r"tf_data_(?!iterator_get_next).*"
_INTERNAL = (
    r"\$.*|.*::.*|between_steps|_send_.*|tf\..*|convert_to_tensor|Eager.*|TFE_.*|ValidateInputTypeAndPlacement|FunctionRun|SessionRun"
    rf"|ExecutorDoneCallback|\w+Allocation|\w+Deallocation|\w+Produce|\w+Consume|TfOpRun.*|RunGraph.*|{_KERNEL}"
)


def main_line(profile: Profile) -> int:
    """Row of `profile.lines` of the training loop: the one with most step markers.

    Without any step it is the busiest thread that TensorFlow did not name, such as `python`.
    """
    rows, _ = profile.stat("step_num")
    if len(rows) == 0:
        lines = profile.lines_matching(r"(?!tf_|Stream).*") & (_accelerator(profile) < 0)
        rows = np.flatnonzero(lines[profile.line])
    return int(np.argmax(np.bincount(profile.line[rows], minlength=len(profile.lines))))


def profile_spans(profile: Profile) -> SpanColumns:
    """All spans of one rank's profile.

    `input_wait` is named after the iterator operation that the loop waited for; if it has the annotation's name, the
    training thread read or made the batch itself; while an accelerator works it is `other`, which delays nothing.
    `gpu compute` and `tpu compute` are the busy union of each accelerator, cut at step bounds. Only a program without
    one has `compute` of the CPU: the busy union of kernels, eager operations and Eigen regions outside of the other
    kinds. `checkpoint` spans named `restore` read.
    `pipeline` holds the outermost events of each tf.data thread, back-pressure included.
    """
    loop = _loop(profile)
    texts = [*profile.names, "compute", "restore", GPU_COMPUTE, TPU_COMPUTE]
    compute_name, restore_name = len(texts) - 4, len(texts) - 3
    works = _accelerator_work(profile, loop)
    worked = reduce(Intervals.union, (part.intervals for part in works), Intervals())
    is_main = np.arange(len(profile.lines)) == main_line(profile)
    start, end = cut(Intervals() if works else loop.outside(_busy(profile, is_main)), loop.bounds)
    parts = [
        loop.steps,
        *works,
        within(loop.wait, loop.wait.intervals.minus(worked)),
        replace(within(loop.wait, worked), kind=OTHER),
        loop.collective,
        loop.checkpoint,
        replace(loop.restore, name=np.full(len(loop.restore.name), restore_name)),
        union_part(COMPUTE, start, end, compute_name),
        _pipeline(profile, loop.wait.intervals),
        _other(profile, loop),
    ]
    return span_columns(parts, texts, loop.steps, loop.numbers)


def _loop(profile: Profile) -> LoopParts:
    main = main_line(profile)
    is_main = np.arange(len(profile.lines)) == main
    is_pipeline = profile.lines_matching(_PIPELINE_LINES)
    numbers, steps = _steps(profile, main)
    wait_rows = np.concatenate([rows_of(profile, _GET_NEXT, ~is_pipeline), rows_of(profile, _INPUT_LABEL, is_main)])
    wait_rows = between_steps(profile, wait_rows, is_main, len(numbers))
    wait = joined(profile, INPUT_WAIT, wait_rows, name_from=_GET_NEXT)
    collective = joined(profile, COLLECTIVE, rows_of(profile, _COLLECTIVE, ~is_pipeline))
    checkpoint = joined(profile, CHECKPOINT, rows_of(profile, _SAVE, ~is_pipeline))
    restore = joined(profile, CHECKPOINT, rows_of(profile, _RESTORE, ~is_pipeline))
    return LoopParts(
        numbers=numbers,
        steps=steps,
        wait=wait,
        collective=collective,
        checkpoint=checkpoint,
        restore=restore,
    )


def _steps(profile: Profile, main: int) -> tuple[np.ndarray, SpanPart]:
    """Numbers and intervals of the steps: events of the main line with `step_num`, never nested.

    Markers of several names (a loop's own inside Keras's) compete: the most frequent name wins, then the longest. The
    number is `step_num` when it rises from step to step, else the position (training and validation both from 0). A
    marker in which the loop only reached the end of its data is not a step.
    """
    rows, values = profile.stat("step_num")
    keep = (profile.line[rows] == main) & (profile.duration_ns[rows] > 0)
    rows, values = rows[keep], values[keep]
    if not len(rows):
        return _device_steps(profile)
    start, end = profile.start_ns[rows], profile.end_ns[rows]
    names, codes, counts = np.unique(profile.name[rows], return_inverse=True, return_counts=True)
    total = np.bincount(codes, weights=end - start, minlength=len(names))
    chosen = np.empty(0, np.int64)
    for code in np.lexsort((-total, -counts)):
        own = outermost(start, end, np.flatnonzero(codes == code))
        chosen = np.sort(np.concatenate([chosen, own[~overlaps(start, end, own, chosen)]]))
    chosen = chosen[~_met_the_end(profile, main, values[chosen], start[chosen], end[chosen])]
    rows, values = rows[chosen], values[chosen]
    rising = len(values) == 0 or (values[0] >= 0 and values[-1] < 1 << 31 and bool((np.diff(values) > 0).all()))
    numbers = values if rising else np.arange(len(values))
    thread = np.full(len(rows), profile.lines[main].id, np.int64)
    part = SpanPart(kind=STEP, start=start[chosen], end=end[chosen], thread=thread, name=profile.name[rows])
    return numbers.astype(np.int32), part


def _met_the_end(profile: Profile, main: int, numbers: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """bool per marker: it requested a batch from an iterator, ran no operation, and its number is reused or the last.

    An attempt to take a batch after the last of an epoch looks like this. If such markers are not few, they are no
    evidence.
    """
    lines = (np.arange(len(profile.lines)) == main) | profile.lines_matching("tf_Compute")
    asked = times_of(profile, rows_of(profile, f"{_GET_NEXT}|{_GET_NEXT_OP}", lines))
    # Without Eigen's regions, because tf.data also works in them.
    but = "|".join((_GET_NEXT_OP, _COLLECTIVE, _SAVE, _RESTORE))
    worked = times_of(profile, rows_of(profile, rf"{_KERNEL}|{_EAGER}", lines, but=but))
    found: np.ndarray = (asked.covered_within(start, end) > 0) & (worked.covered_within(start, end) == 0)
    found &= np.append(numbers[1:] == numbers[:-1], True)[: len(numbers)]
    return found if 4 * np.count_nonzero(found) <= len(found) else np.zeros(len(found), bool)


def _accelerator(profile: Profile) -> np.ndarray:
    """int64 per line: the number of its GPU or TPU, -1 for a thread."""
    found = [ACCELERATOR.fullmatch(profile.planes[line.plane]) for line in profile.lines]
    return np.array([-1 if each is None else int(each[2]) for each in found], np.int64)


def _accelerator_work(profile: Profile, loop: LoopParts) -> list[SpanPart]:
    """The busy times of each accelerator that worked: streams of a GPU, collectives aside; a TPU's operations, or its
    modules where it shows none."""
    found, numbers = [], _accelerator(profile)
    for number in np.unique(numbers[numbers >= 0]).tolist():
        for name, line in ((GPU_COMPUTE, "Stream.*"), (TPU_COMPUTE, "XLA Ops"), (TPU_COMPUTE, "XLA Modules")):
            rows = rows_of(profile, ".*", (numbers == number) & profile.lines_matching(line), but=_COLLECTIVE)
            start, end = cut(times_of(profile, rows), loop.bounds)
            if len(start):
                part = union_part(COMPUTE, start, end, len(profile.names) + (3 if name == TPU_COMPUTE else 2))
                found.append(replace(part, thread=np.full(len(start), number)))
                break
    return found


def _device_steps(profile: Profile) -> tuple[np.ndarray, SpanPart]:
    """The steps that accelerators show, for a loop that marks none: from the first begin on any of them to the last
    end, at most until the next."""
    lines = profile.lines_matching("Steps") & (_accelerator(profile) >= 0)
    rows = np.flatnonzero(lines[profile.line] & (profile.duration_ns > 0))
    rows = rows[np.argsort(profile.start_ns[rows], kind="stable")]
    texts = np.array(profile.names)[profile.name[rows]]
    _, first, of_row = np.unique(texts, return_index=True, return_inverse=True)
    last = np.zeros(len(first), np.int64)
    np.maximum.at(last, of_row, profile.end_ns[rows])
    order = np.argsort(first)
    part = events_part(profile, STEP, rows[first[order]])
    end = np.minimum(last[order], np.append(part.start[1:], np.iinfo(np.int64).max)[: len(order)])
    return np.arange(len(order), dtype=np.int32), replace(part, end=end)


def _busy(profile: Profile, is_main: np.ndarray) -> Intervals:
    """Times at which some thread of the rank runs an operation of the training loop."""
    compute_lines = is_main | profile.lines_matching("tf_Compute")
    not_compute = "|".join((_GET_NEXT_OP, _COLLECTIVE, _SAVE, _RESTORE))
    rows = rows_of(profile, rf"{_KERNEL}|{_EAGER}", compute_lines, but=not_compute)
    regions = [_eigen_regions(profile, int(line)) for line in np.flatnonzero(profile.lines_matching(".*Eigen"))]
    return Intervals.union_of(
        np.concatenate([profile.start_ns[rows], *(region.starts for region in regions)]),
        np.concatenate([profile.end_ns[rows], *(region.ends for region in regions)]),
    )


def _eigen_regions(profile: Profile, line: int) -> Intervals:
    """Busy intervals of a thread of the intra-op pool, which only marks where they start and stop."""
    lines = np.arange(len(profile.lines)) == line
    starts = profile.names_matching("ThreadpoolListener::StartRegion")
    marks = rows_of(profile, "ThreadpoolListener::St(?:art|op)Region", lines)
    if len(marks) < 2:
        return Intervals()
    opens = starts[profile.name[marks]]
    pairs = np.flatnonzero(opens[:-1] & ~opens[1:])
    return Intervals.union_of(profile.start_ns[marks[pairs]], profile.end_ns[marks[pairs + 1]])


def _pipeline(profile: Profile, waits: Intervals) -> SpanPart:
    """Outermost producer events of every tf.data thread: iterators, and the map functions of its private pool.

    waits: the batch fetches of the loop.
    """
    is_pipeline = profile.lines_matching(_PIPELINE_LINES)
    rows = rows_of(profile, _PRODUCE, is_pipeline)
    rows = outermost_on_lines(profile, rows[profile.duration_ns[rows] > 0])
    fetched = fetched_ns(profile, rows, rows_of(profile, _GET_NEXT, ~is_pipeline), waits)
    return replace(events_part(profile, PIPELINE, rows), fetched=fetched)


def _other(profile: Profile, loop: LoopParts) -> SpanPart:
    """Annotations of the main thread of no other kind: the outermost ones within the steps."""
    main = np.arange(len(profile.lines)) == main_line(profile)
    rows = rows_of(profile, ".*", main, but=r"\$.*")
    rows = rows[~np.isin(rows, profile.stat("step_num")[0]) & (profile.duration_ns[rows] > 0)]
    rows = outermost(profile.start_ns, profile.end_ns, rows)
    known = "|".join((_INTERNAL, _INPUT_LABEL, _GET_NEXT_OP, _COLLECTIVE, _SAVE, _RESTORE))
    rows = rows[~profile.names_matching(known)[profile.name[rows]]]
    rows = rows[~np.isin(rows, profile.stat("tf_function_call")[0])]
    return events_part(profile, OTHER, loop.phases(profile, rows))
