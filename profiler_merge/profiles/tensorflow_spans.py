"""Spans of TensorFlow's and JAX's profiles: steps, input wait, compute, collectives, checkpoints, pipeline work. Pure.

The names are those of TensorFlow 2.3 to 2.21, and `next_batch`, `allreduce` and `checkpoint` as annotations.
"""

from __future__ import annotations

import re
from functools import reduce

import numpy as np

from dxt_replay.profiler_merge.profiles.event_table import ACCELERATOR, Profile
from dxt_replay.profiler_merge.profiles.span_parts import (
    COMPUTE,
    INPUT_WAIT,
    NOT_FETCHED,
    PIPELINE,
    STEP,
    LoopParts,
    SpanColumns,
    between_steps,
    covered,
    in_order,
    joined,
    of_events,
    of_intervals,
    outermost,
    rows_of,
    times_of,
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
_PRODUCES, _CONSUMES = re.compile(r"(?P<stage>\w+)Produce"), re.compile(r"(?P<stage>\w+)Consume")
_STARTED, _RUNS = "FunctionRun", "ExecutorState::Process"
_MOST_STAGES = 64
"""Most buffers between a read and the loop; no pipeline has more."""


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
    main = main_line(profile)
    is_main = np.arange(len(profile.lines)) == main
    is_pipeline = profile.lines_matching(_PIPELINE_LINES)
    steps = _steps(profile, main)
    waits = np.concatenate([rows_of(profile, _GET_NEXT, ~is_pipeline), rows_of(profile, _INPUT_LABEL, is_main)])
    wait = joined(profile, INPUT_WAIT, between_steps(profile, waits, is_main, len(steps)), name_from=_GET_NEXT)
    others = (rows_of(profile, pattern, ~is_pipeline) for pattern in (_COLLECTIVE, _SAVE, _RESTORE))
    loop = LoopParts.of(profile, steps, wait, *others)
    works = _accelerator_work(profile, loop)
    worked = reduce(Intervals.union, map(covered, works), Intervals())
    busy = Intervals() if works else loop.outside(_busy(profile, is_main))
    # Producer events of every tf.data thread: iterators, and the map functions of its private pool.
    made = rows_of(profile, _PRODUCE, is_pipeline)
    made = _outermost_on_lines(profile, made[profile.duration_ns[made] > 0])
    pipeline = of_events(profile, PIPELINE, made)
    asked = rows_of(profile, _GET_NEXT, ~is_pipeline)
    pipeline.fetched_ns = _fetched_ns(profile, made, asked, covered(loop.wait))
    # Annotations of the main thread of no other kind: the outermost ones within the steps.
    rows = rows_of(profile, ".*", is_main, but=r"\$.*")
    rows = rows[~np.isin(rows, profile.stat("step_num")[0]) & (profile.duration_ns[rows] > 0)]
    rows = outermost(profile.start_ns, profile.end_ns, rows)
    known = "|".join((_INTERNAL, _INPUT_LABEL, _GET_NEXT_OP, _COLLECTIVE, _SAVE, _RESTORE))
    rows = rows[~profile.names_matching(known)[profile.name[rows]]]
    rows = rows[~np.isin(rows, profile.stat("tf_function_call")[0])]
    parts = [
        *(steps, *works, *loop.waits_beside(worked), loop.collective, loop.checkpoint, loop.restore),
        *(of_intervals(COMPUTE, busy, "compute"), pipeline, loop.phases(profile, rows)),
    ]
    return in_order(parts, steps)


def _steps(profile: Profile, main: int) -> SpanColumns:
    """The steps: events of the main line with `step_num`, never nested.

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
        # Those that overlap none of the chosen ones, which are disjoint and sorted.
        following = np.searchsorted(end[chosen], start[own], side="right")
        free = np.append(start[chosen], np.iinfo(np.int64).max)[following] >= end[own]
        chosen = np.sort(np.concatenate([chosen, own[free]]))
    chosen = chosen[~_met_the_end(profile, main, values[chosen], start[chosen], end[chosen])]
    rows, values = rows[chosen], values[chosen]
    rising = len(values) == 0 or (values[0] >= 0 and values[-1] < 1 << 31 and bool((np.diff(values) > 0).all()))
    found = of_events(profile, STEP, rows)
    found.step = values if rising else np.arange(len(values))
    return found


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


def _accelerator_work(profile: Profile, loop: LoopParts) -> list[SpanColumns]:
    """The busy times of each accelerator that worked: streams of a GPU, collectives aside; a TPU's operations, or its
    modules where it shows none."""
    found, numbers = list[SpanColumns](), _accelerator(profile)
    for number in np.unique(numbers[numbers >= 0]).tolist():
        for name, line in ((GPU_COMPUTE, "Stream.*"), (TPU_COMPUTE, "XLA Ops"), (TPU_COMPUTE, "XLA Modules")):
            rows = rows_of(profile, ".*", (numbers == number) & profile.lines_matching(line), but=_COLLECTIVE)
            work = of_intervals(COMPUTE, loop.cut(times_of(profile, rows)), name, number)
            if len(work):
                found.append(work)
                break
    return found


def _device_steps(profile: Profile) -> SpanColumns:
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
    found = of_events(profile, STEP, rows[first[order]])
    found.end_ns = np.minimum(last[order], np.append(found.start_ns[1:], np.iinfo(np.int64).max)[: len(order)])
    found.step = np.arange(len(order))
    return found


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


# tf.data passes elements between its threads through buffers, and names each of them: `PrefetchProduce` and the later
# `PrefetchConsume` of one element have the same `element_id`. So the events form a chain, for example
#     a read in ParallelInterleaveProduce 7   -> ParallelInterleaveConsume 7 in ParallelMapProduce 9
#     -> ParallelMapConsume 9 in PrefetchProduce 3 -> PrefetchConsume 3 in the batch fetch
# A captured function (of `map`) runs on another thread under the same step `id` as the `FunctionRun` that started it.


def _fetched_ns(profile: Profile, made: np.ndarray, get_next: np.ndarray, waits: Intervals) -> np.ndarray:
    """int64 (n,): the end of the batch fetch that first used what each event of `made` produced, else NOT_FETCHED.

    made: rows of `profile` (n,), the outermost events of the pipeline's threads, ascending. get_next: rows in which the
    loop asks for a batch. waits: the batch fetches that these make up, on the profile's clock.
    """
    asked = _outermost_on_lines(profile, get_next)
    contexts = np.sort(np.concatenate((made, asked)))
    fetched = np.full(len(contexts), NOT_FETCHED)
    roots = np.searchsorted(contexts, asked)
    place = np.searchsorted(waits.starts, profile.start_ns[asked], side="right") - 1
    inside = (place >= 0) & (profile.end_ns[asked] <= waits.ends[np.maximum(place, 0)])
    fetched[roots[inside]] = waits.ends[place[inside]]
    follows = _user(profile, contexts)
    known = follows >= 0
    for _ in range(_MOST_STAGES):
        before = fetched.copy()
        fetched[known] = np.maximum(fetched[known], fetched[follows[known]])
        if (fetched == before).all():
            break
    return fetched[np.searchsorted(contexts, made)]


def _outermost_on_lines(profile: Profile, rows: np.ndarray) -> np.ndarray:
    """The `rows` (ascending) that no other one of their line contains, ascending."""
    groups = np.split(rows, np.flatnonzero(np.diff(profile.line[rows])) + 1)
    return np.concatenate([outermost(profile.start_ns, profile.end_ns, group) for group in groups])


def _user(profile: Profile, contexts: np.ndarray) -> np.ndarray:
    """int64 (n,): the context that first used the product of each context; -1 if none is known."""
    found = np.full(len(contexts), -1)
    stages: dict[str, list[list[int]]] = {}
    for code, name in enumerate(profile.names):
        for kind, pattern in enumerate((_PRODUCES, _CONSUMES)):
            if match := pattern.fullmatch(name):
                stages.setdefault(match["stage"], [[], []])[kind].append(code)
    ids = profile.stat_column("element_id", -1)
    pairs = [(np.isin(profile.name, produce), np.isin(profile.name, consume)) for produce, consume in stages.values()]
    links = [(ids, made & (ids >= 0), used & (ids >= 0)) for made, used in pairs]
    runs = profile.stat_column("id", 0)
    by_name = [profile.names_matching(re.escape(name))[profile.name] for name in (_RUNS, _STARTED)]
    links.append((runs, by_name[0] & (runs != 0), by_name[1] & (runs != 0)))
    for key, makes, uses in links:
        maker, user = np.flatnonzero(makes), np.flatnonzero(uses)
        if not len(maker) or not len(user):
            continue
        user = user[np.lexsort((profile.start_ns[user], key[user]))]
        first = user[np.append(True, key[user][1:] != key[user][:-1])]
        at = np.minimum(np.searchsorted(key[first], key[maker]), len(first) - 1)
        same = key[first][at] == key[maker]
        own, its_user = _context(profile, contexts, maker[same]), _context(profile, contexts, first[at[same]])
        linked = (own >= 0) & (its_user >= 0) & (own != its_user)
        own, its_user = own[linked], its_user[linked]
        # A function may run in several events, and an event may hold several products: the first user counts.
        order = np.argsort(profile.start_ns[contexts[its_user]], kind="stable")[::-1]
        found[own[order]] = its_user[order]
    return found


def _context(profile: Profile, contexts: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The context (its index in `contexts`) that is or contains each event of `rows`; -1 for none."""
    if not len(contexts):
        return np.full(len(rows), -1)
    # Rows of a profile are sorted by line and start, the outer event first, so an event follows those that contain it.
    place = np.searchsorted(contexts, rows, side="right") - 1
    holder = contexts[np.maximum(place, 0)]
    holds = (
        (place >= 0) & (profile.line[holder] == profile.line[rows]) & (profile.end_ns[holder] >= profile.end_ns[rows])
    )
    return np.where(holds, place, -1)
