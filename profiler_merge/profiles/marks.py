"""Reads the marks that `recording` writes: the spans of a rank, the clock of each process, the batch of each operation.

docs/recording.md explains the file, `recording.KINDS` its records.

A step reaches from one batch of a training pass to the next. A pass without a step of an optimizer is an evaluation,
unless no pass of the rank had one: then nothing tells training from evaluation, and all batches count as steps.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from dxt_replay.profiler_merge import recording as made
from dxt_replay.profiler_merge.profiles.pools import CLOCK_NS, Pool, asked, pool_of, spread
from dxt_replay.profiler_merge.profiles.span_parts import (
    CHECKPOINT,
    COMPUTE,
    INPUT_WAIT,
    OTHER,
    STEP,
    SpanColumns,
    in_order,
    made_spans,
    of_intervals,
)
from dxt_replay.traces.errors import ProfileError
from dxt_replay.traces.gzip_blocks import ExpansionError, unpacked_blocks
from dxt_replay.traces.measures.intervals import Intervals
from dxt_replay.traces.row_order import order_by_start, step_at
from dxt_replay.traces.schema import (
    BACKGROUND_SAVE,
    BACKGROUND_WAIT,
    BETWEEN_STEPS,
    GPU_STEP,
    OPS,
    OWN_IO,
    READ,
    RECONSTRUCTED,
    WRITE,
)
from dxt_replay.traces.units import format_count, format_duration

MARK = np.dtype([("t", "<i8"), ("cpu", "<i8"), ("number", "<i8"), ("thread", "<u4"), ("group", "<u2"), ("kind", "<u2")])
"""A record of the file, its time in CLOCK_REALTIME."""

BETWEEN = -2
"""Number of workers of the time between two marked steps."""

NO_FETCH = -1
"""In the columns `feeds` and `follows`: none; in `ready_ns`: not known."""

MARKS_FILE = re.compile(r"(?:.*/)?(?P<host>.+)\.(?P<pid>\d+)\.\d+\.marks", re.DOTALL)
"""Matches (`fullmatch`) the recorded path of a file of marks."""

_BATCH_OF = "enumerate(DataLoader)#_{}Iter.__next__"
"""Batches of a DataLoader have the names that PyTorch's profiler gives them."""

_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProcessMarks:
    """The marks of one process. rows: MARK (n,) in the order in which they were made, without anchors.

    anchors: int64 (a, 4), number of the record, begin and end of the system call that wrote it, and its thread.
    """

    path: Path
    host: str
    pid: int
    parent: int
    rank: int
    rows: np.ndarray
    anchors: np.ndarray

    def of(self, *kinds: int) -> np.ndarray:
        """The rows of these kinds."""
        return self.rows[np.isin(self.rows["kind"], kinds)]

    @property
    def loops(self) -> bool:
        """Whether it runs a training loop, not only makes batches for one."""
        return bool(np.isin(self.rows["kind"], (made.PASS, made.FETCH, made.STEP, made.OPTIMIZER)).any())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankMarks:
    """The marks of a rank: its own process, and those that it started, by process id.

    own_io: when the thread of the loop itself read or wrote outside of its fetches and checkpoints."""

    own: ProcessMarks
    processes: Mapping[int, ProcessMarks] = field(default_factory=dict)
    own_io: Intervals = field(default_factory=Intervals)


def read_process(path: Path) -> ProcessMarks:
    """The marks of one process, up to the last whole record. Raises: ProfileError for a file that is no such file."""
    try:
        with path.open("rb") as file:
            data = b"".join(unpacked_blocks(file, _BLOCK_BYTES))
    except (OSError, EOFError, ExpansionError) as error:
        raise ProfileError(f"{path} cannot be read: {error}") from error
    if len(data) < made.HEADER_BYTES or not data.startswith(made.MAGIC):
        raise ProfileError(f"{path} has no marks of a training: a file of them begins with {made.MAGIC.decode()}")
    _, pid, parent, rank, size, monotonic, realtime, _ = made.HEADER.unpack_from(data)
    if size != MARK.itemsize:
        raise ProfileError(f"{path} has records of {size} bytes, and this release reads {MARK.itemsize}: update it")
    host = data[made.HEADER.size : made.HEADER_BYTES].split(b"\0")[0].decode("utf-8", "replace")
    whole = (len(data) - made.HEADER_BYTES) // MARK.itemsize
    rows = np.frombuffer(data, MARK, whole, made.HEADER_BYTES).copy()
    if abs(realtime - monotonic) >= 1 << 62:
        raise ProfileError(f"{path} is damaged: its header has no times of a clock")
    rows["t"] += realtime - monotonic
    begun = np.flatnonzero(rows["kind"] == made.ANCHOR)
    ended = rows[rows["kind"] == made.ANCHOR_END]
    end = dict(zip(ended["number"].tolist(), ended["t"].tolist(), strict=True))
    anchors = [
        (slot, int(rows["t"][slot]), end[slot], int(rows["thread"][slot])) for slot in begun.tolist() if slot in end
    ]
    named = rows[rows["kind"] == made.RANK]
    kept = (rows["kind"] > 0) & (rows["kind"] < made.KINDS)
    kept &= ~np.isin(rows["kind"], (made.ANCHOR, made.ANCHOR_END, made.RANK))
    return ProcessMarks(
        path=path,
        host=host,
        pid=pid,
        parent=parent,
        rank=int(named["number"][-1]) - 1 if len(named) and named["number"][-1] else rank,
        rows=rows[kept],
        anchors=np.array(anchors, dtype=np.int64).reshape(-1, 4),
    )


def ranks_of(files: Iterable[Path]) -> list[tuple[Path, ...]]:
    """The files of each rank: that of the process with the loop first, then those of processes below it.

    A process may have several files, if two copies of `recording` mark it. Processes without a loop above them, such as
    a server of workers, belong to the loop that has their process id in its marks of workers.
    """
    processes = [read_process(path) for path in files]
    loops = {(each.host, each.pid): [] for each in processes if each.loops}  # type: dict[tuple[str, int], list[Path]]
    for each in processes:
        started = each.of(made.WORKER)["number"] & 0xFFFFFFFF
        for pid in started.tolist():
            loops.pop((each.host, pid), None)  # a worker with a loader of its own
    worker_of = {
        (each.host, pid): (each.host, each.pid)
        for each in processes
        if (each.host, each.pid) in loops
        for pid in (each.of(made.WORKER)["number"] & 0xFFFFFFFF).tolist()
    }
    parent_of = {(each.host, each.pid): (each.host, each.parent) for each in processes}
    for each in sorted(processes, key=lambda each: not each.loops):
        key: tuple[str, int] | None = (each.host, each.pid)
        while key is not None and key not in loops:
            key = worker_of.get(key) or parent_of.get(key)
        if key is not None:
            loops[key].append(each.path)
    return [tuple(paths) for paths in loops.values() if paths]


def read_rank(files: Sequence[Path]) -> RankMarks:
    """The marks of a rank from a group of `ranks_of`. Raises: ProfileError."""
    processes: dict[int, ProcessMarks] = {}
    for path in files:
        found = read_process(path)
        if found.pid in processes:  # another copy of `recording` in the same process
            other = processes[found.pid]
            rows = np.concatenate((other.rows, found.rows))
            rows = rows[np.argsort(rows["t"], kind="stable")]
            found = replace(other, rank=max(other.rank, found.rank), rows=rows)
        processes[found.pid] = found
    own = next(iter(processes.values()))
    return RankMarks(own=own, processes=processes)


def _pairs(rows: np.ndarray, begin: int, *ends: int) -> tuple[np.ndarray, np.ndarray]:
    """Places of the begins of one thread that have an end, and of their ends; neither nests."""
    begins = np.flatnonzero(rows["kind"] == begin)
    ended = np.flatnonzero(np.isin(rows["kind"], ends))
    place = np.searchsorted(ended, begins)
    whole = place < len(ended)
    following = np.append(begins[1:], len(rows))
    whole[whole] &= ended[place[whole]] < following[whole]
    return begins[whole], ended[place[whole]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Loop:
    """The batches that the training thread of a rank took, and its steps.

    thread: of the loop. begin, end: int64 (f,), of each fetch; group, number: its pass, and its place in the pass, or
    group 0 and the number of the fetch; workers: of its loader, -1 where it is none of PyTorch's, BETWEEN where none is
    seen. steps: int64 (s, 2), begin and end of each step. passes: int64 (p, 4), group, begin, workers, and how many
    batches they may be ahead of the loop.
    evaluations: of the model. got: whether another thread of the program makes the batches.
    """

    thread: int
    begin: np.ndarray
    end: np.ndarray
    group: np.ndarray
    number: np.ndarray
    workers: np.ndarray
    steps: np.ndarray
    passes: np.ndarray
    evaluations: Intervals
    got: bool


def training_loop(process: ProcessMarks) -> Loop:
    """The loop of a rank's own process."""
    rows = process.rows
    thread = _thread_of(rows)
    mine = rows["thread"] == thread
    if not np.isin(rows["kind"][mine], (made.TAKE, made.FETCH)).any():
        mine |= np.isin(rows["kind"], (made.FETCH, made.FETCH_END))  # inside a `tf.function` other threads fetch
        # An asyncio program steps its optimizer in any thread of a pool (`to_thread`).
        optimizers = rows["group"][mine & (rows["kind"] == made.OPTIMIZER)]
        mine |= (rows["kind"] == made.OPTIMIZER) & np.isin(rows["group"], optimizers)
    rows = rows[mine]
    rows, last = _with_gets(rows)
    passes = _passes(rows)
    kinds = (made.TAKE, made.TAKE_END), (made.FETCH, made.FETCH_END), (made.GET, made.GET_END)
    if got := bool((rows["kind"] == made.GET).any()):
        rows, more = _taken_elsewhere(rows, last, process.rows[~mine])
        passes = np.concatenate((passes, more))
    begins, ends = np.concatenate([_pairs(rows, *each) for each in kinds], axis=1)
    begins, ends = (each[begins < last] for each in (begins, ends)) if got else (begins, ends)
    of_pytorch = -1 if len(begins) else BETWEEN
    order = np.argsort(begins, kind="stable")
    begins, ends = begins[order], ends[order]
    if not len(begins):
        begins, ends = _between_steps(rows)
        rows = rows if len(begins) else _steps_of_optimizer(rows)
    group = np.where(rows["kind"][begins] == made.TAKE, rows["group"][begins], 0).astype(np.int64)
    workers_of = dict(zip(passes[:, 0].tolist(), passes[:, 2].tolist(), strict=True))
    begin, end = rows["t"][begins], rows["t"][ends]
    explicit = Intervals.union_of(*_times(rows, made.EVALUATION))
    optimized = rows["t"][rows["kind"] == made.OPTIMIZER]
    of_fetch = np.searchsorted(end, optimized, side="right") - 1
    trained = set(group[of_fetch[of_fetch >= 0]].tolist())
    in_evaluation = explicit.covered_within(begin, begin + 1) > 0
    training = ~in_evaluation
    if trained:  # else nothing tells training from evaluation
        training &= np.isin(group, list(trained)) | (group == 0)
    steps = _steps(rows, begins, ends, training & ~_untrained(rows, group, of_fetch))
    found = np.flatnonzero(~training & ~in_evaluation)
    by_rule = [
        (begin[mine[0]], _last_moment(rows, ends[mine[-1]]))
        for mine in (found[group[found] == each] for each in np.unique(group[found]))
    ]
    evaluations = explicit.union(Intervals.union_of(*np.array(by_rule, dtype=np.int64).reshape(-1, 2).T))
    return Loop(
        thread=thread,
        begin=begin,
        end=end,
        group=group,
        number=rows["number"][begins],
        workers=np.array([workers_of.get(each, of_pytorch) for each in group.tolist()], dtype=np.int64),
        steps=steps,
        passes=passes,
        evaluations=evaluations,
        got=got,
    )


def trained(process: ProcessMarks) -> tuple[bool, int, int, int]:
    """Whether a process stepped an optimizer, or marked steps; its number of steps, their begin and end. Of several
    programs that a script runs, the training is the one for which this is most."""
    steps = training_loop(process).steps
    marked = bool(np.isin(process.rows["kind"], (made.OPTIMIZER, made.STEP)).any())
    return (marked, len(steps), int(steps.min()), int(steps.max())) if len(steps) else (marked, 0, 0, 0)


def _with_gets(rows: np.ndarray) -> tuple[np.ndarray, int]:
    """The rows with the gets alone that take a loop's batches from another thread: from one queue, or the results of
    futures, at least as many as it makes steps of its optimizer; of several that for which it waits longest, since a
    library may keep its books in another. What it gets one right after the other is one batch. And the place of the
    last step, behind which a get takes no batch."""
    is_get = np.isin(rows["kind"], (made.GET, made.GET_END))
    optimized = (rows["kind"] == made.OPTIMIZER) & (rows["group"] == 0)
    groups, counts = np.unique(rows["group"][rows["kind"] == made.GET], return_counts=True)
    shown = np.isin(rows["kind"], (made.TAKE, made.FETCH, made.STEP)).any()
    if shown or not optimized.any() or not len(groups) or counts.max() < np.count_nonzero(optimized):
        return rows[~is_get], 0
    enough = groups[counts >= np.count_nonzero(optimized)]
    waited = [sum(np.diff(_times(rows[rows["group"] == each], made.GET), axis=0)[0].tolist()) for each in enough]
    rows = rows[~is_get | (rows["group"] == enough[np.argmax(waited)])]
    # The answers of `executor.map` are got one by one, and are one batch.
    times, ends = rows["t"][rows["kind"] == made.OPTIMIZER], np.flatnonzero(rows["kind"][:-1] == made.GET_END)
    joined_ns = max(JOINED_NS, int(AT_ONCE * np.ptp(times) / len(times)))
    inner = ends[(rows["kind"][ends + 1] == made.GET) & (rows["t"][ends + 1] - rows["t"][ends] <= joined_ns)]
    rows = np.delete(rows, np.concatenate((inner, inner + 1)))
    return rows, int(np.flatnonzero((rows["kind"] == made.OPTIMIZER) & (rows["group"] == 0))[-1])


def _passes(rows: np.ndarray) -> np.ndarray:
    """`Loop.passes` of a thread."""
    begun = rows[rows["kind"] == made.PASS]
    workers, prefetch = begun["number"] >> 32, begun["number"] & 0xFFFFFFFF
    ahead = np.maximum(workers * prefetch, 1)
    return np.stack([begun["group"], begun["t"], workers, ahead], axis=1).astype(np.int64)


def _taken_elsewhere(rows: np.ndarray, last: int, others: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Another thread of the program takes the batches of a loader with workers, and the loop gets them from its queue
    in the same order: the gets up to the place `last` as the takes of these batches, and `Loop.passes`. As they are
    where the times contradict it. The workers are ahead by what the queue holds too."""
    takes, taken = _pairs(others, made.TAKE, made.TAKE_END)
    gets, ends = (each[each < last] for each in _pairs(rows, made.GET, made.GET_END))
    passes, count = _passes(others), len(gets)
    took = others[takes[:count]]
    fits = len(np.unique(took["thread"])) == 1 and len(took) == count and (passes[:, 2] > 0).all()
    if not fits or (others["t"][taken[:count]] > rows["t"][ends]).any():
        return rows, passes[:0]
    passes[:, 3] += int((np.arange(count) - np.searchsorted(rows["t"][ends], took["t"])).max(initial=0))
    rows = rows.copy()
    for places, kind in ((gets, made.TAKE), (ends, made.TAKE_END)):
        rows["kind"][places] = kind
        for name in ("number", "group"):
            rows[name][places] = took[name]
    return rows, passes


def _between_steps(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Places from the end of each marked step to the begin of the next one: the loop fetches there, where it hides its
    batches and has neither an evaluation nor the begin of an epoch between the two."""
    marked, done = _pairs(rows, made.STEP, made.STEP_END)
    begins, ends = done[:-1], marked[1:]
    other = np.cumsum(np.isin(rows["kind"], (made.EVALUATION, made.EPOCH)))
    plain = other[ends] == other[begins] if len(begins) else np.zeros(0, dtype=bool)
    return begins[plain], ends[plain]


def _steps_of_optimizer(rows: np.ndarray) -> np.ndarray:
    """The rows of a loop that shows nothing but the steps of its optimizers, with marks of steps: each reaches from one
    step of the first optimizer to its next. The begin of the first step is not known, so it is none."""
    times = np.flatnonzero((rows["kind"] == made.OPTIMIZER) & (rows["group"] == 0))
    if len(times) < 2 or (rows["kind"] == made.STEP).any():
        return rows
    again = np.repeat(rows[times], 2)[1:-1]
    again["kind"] = np.tile((made.STEP, made.STEP_END), len(times) - 1)
    return np.insert(rows, np.repeat(times, 2)[1:-1] + 1, again)


def _untrained(rows: np.ndarray, group: np.ndarray, of_optimizer: np.ndarray) -> np.ndarray:
    """bool (f,): the last batch of a pass that the loop left, if the optimizer's steps do not account for it.

    Accelerate fetches one batch ahead, and a loop may be left by `break` before it trains on a batch. of_optimizer: the
    fetch before each step of an optimizer."""
    found = np.zeros(len(group), dtype=bool)
    whole = rows["group"][rows["kind"] == made.PASS_END]
    for each in np.setdiff1d(np.unique(group), np.append(whole, 0)).tolist():
        fetches = np.flatnonzero(group == each)
        stepped = np.searchsorted(fetches, np.unique(of_optimizer[np.isin(of_optimizer, fetches)]))
        apart = np.unique(np.diff(stepped))  # batches for which gradients accumulate
        if len(apart) == 1 and len(stepped) * apart[0] == len(fetches) - 1:
            found[fetches[-1]] = True
    return found


def _thread_of(rows: np.ndarray) -> int:
    """The thread of the loop: the one with most steps, else with most batches."""
    for kinds in ((made.OPTIMIZER, made.STEP), (made.TAKE, made.FETCH), (made.PASS,)):
        threads, counts = np.unique(rows["thread"][np.isin(rows["kind"], kinds)], return_counts=True)
        if len(threads):
            return int(threads[np.argmax(counts)])
    return int(rows["thread"][0]) if len(rows) else 0


def _times(rows: np.ndarray, kind: int) -> tuple[np.ndarray, np.ndarray]:
    """Begins and ends (ns) of the phases of a kind, also of those that nest; one that never ended is left out."""
    mine = rows[np.isin(rows["kind"], (kind, kind + 1))]
    depth = np.cumsum(np.where(mine["kind"] == kind, 1, -1))
    opening = (mine["kind"] == kind) & (depth == 1)
    closing = (mine["kind"] == kind + 1) & (depth == 0)
    count = int(min(opening.sum(), closing.sum()))
    return mine["t"][opening][:count], mine["t"][closing][:count]


_BOUNDS = (made.TAKE, made.FETCH, made.GET, made.PASS, made.PASS_END, made.LOOP_END, made.EPOCH, made.EVALUATION)


def _last_moment(rows: np.ndarray, place: int) -> int:
    """The time at which the loop asked for something else after the record at `place`, or was last seen."""
    later = np.flatnonzero(np.isin(rows["kind"][place + 1 :], _BOUNDS))
    return int(rows["t"][place + 1 + later[0]] if len(later) else rows["t"][-1])


def _steps(rows: np.ndarray, begins: np.ndarray, ends: np.ndarray, training: np.ndarray) -> np.ndarray:
    """int64 (s, 2): marked steps, else from each batch of a training pass to what the loop asked for next.

    The first step of a pass begins with the pass, which starts the workers."""
    marked, done = _pairs(rows, made.STEP, made.STEP_END)
    if len(marked):
        begin, end = rows["t"][marked].copy(), rows["t"][done]
        first = begins[training]
        # A marked step has its batch before it, unless the framework fetches within the step.
        before = np.searchsorted(first, marked) - 1
        has = before >= 0
        previous = np.append(-1, done[:-1])
        has[has] &= first[before[has]] >= previous[has]
        begin[has] = rows["t"][first[before[has]]]
        return np.stack([begin, end], axis=1)
    bounds = np.flatnonzero(np.isin(rows["kind"], _BOUNDS))
    mine = begins[training]
    following = np.searchsorted(bounds, ends[training], side="right")
    known = following < len(bounds)
    begin = rows["t"][mine].copy()
    end = np.full(len(mine), np.int64(0))
    end[known] = rows["t"][bounds[following[known]]]
    if len(mine) and not known.all():  # the loop was left by `break`, an error or a signal
        usual = int(np.median(end[known] - rows["t"][ends[training]][known])) if known.any() else 0
        seen = int(rows["t"][-1])
        end[~known] = np.minimum(rows["t"][ends[training]][~known] + usual, max(seen, int(begin[-1])))
    opened = np.flatnonzero(rows["kind"] == made.PASS)
    place = np.searchsorted(opened, mine) - 1
    new = place >= 0
    new[new] &= np.append(-1, ends[training][:-1])[new] < opened[place[new]]
    begin[new] = rows["t"][opened[place[new]]]
    steps = np.stack([begin, np.maximum(end, begin)], axis=1)
    # After a sum of batches the end of a step is not known.
    after = bounds[np.minimum(following, len(bounds) - 1)] if len(bounds) else mine
    again = (
        known & np.isin(rows["kind"][after], (made.TAKE, made.FETCH)) & (rows["group"][after] == rows["group"][mine])
    )
    whole: np.ndarray = steps[~(again & (rows["number"][after] != rows["number"][mine] + 1))]
    return whole


def marked_spans(marks: RankMarks) -> SpanColumns:
    """The spans of a rank in CLOCK_REALTIME: steps, waits for batches, evaluations, checkpoints and restores, and the
    times of a GPU for its steps. Nothing else is compute: marks do not show what a step does outside of these."""
    loop = training_loop(marks.own)
    rows = marks.own.rows
    steps = made_spans(STEP, loop.steps[:, 0], loop.steps[:, 1], "step", loop.thread)
    steps.step = np.arange(len(steps))
    names = [_BATCH_OF.format("MultiProcessingDataLoader"), _BATCH_OF.format("SingleProcessDataLoader"), BETWEEN_STEPS]
    of_loader = np.select([loop.workers > 0, loop.workers == 0, loop.workers == BETWEEN], [0, 1, 2], 3)
    name = np.array([*names, "fetch"], dtype=object)[of_loader]
    parts = [
        steps,
        made_spans(INPUT_WAIT, loop.begin, loop.end, name, loop.thread),
        of_intervals(INPUT_WAIT, marks.own_io, OWN_IO, loop.thread),
        of_intervals(INPUT_WAIT, _pass_ends(marks.own, loop), "end of pass", loop.thread),
        of_intervals(OTHER, loop.evaluations, "evaluation", loop.thread),
    ]
    saves = ("checkpoint", made.CHECKPOINT), ("restore", made.RESTORE), (BACKGROUND_SAVE, made.CHECKPOINT_ASYNC)
    for text, kind in (*saves, (BACKGROUND_WAIT, made.CHECKPOINT_WAIT)):
        for thread in np.unique(rows["thread"][rows["kind"] == kind]).tolist():
            starts, ends = _times(rows[rows["thread"] == thread], kind)
            parts.append(made_spans(CHECKPOINT, starts, ends, text, thread))
            parts += _in_background(rows, loop, thread) if kind == made.CHECKPOINT else []
    parts.append(_gpu_steps(rows[rows["thread"] == loop.thread], loop))
    return in_order(parts, steps)


def _in_background(rows: np.ndarray, loop: Loop, thread: int) -> list[SpanColumns]:
    """When the loop's thread started a thread that saves, and waited for its end; none for its own saves."""
    own, found = rows[rows["thread"] == loop.thread], []
    for kind, text in ((made.START, BACKGROUND_SAVE), (made.JOIN, BACKGROUND_WAIT)) if thread != loop.thread else ():
        begins, ends = _pairs(own, kind, kind + 1)
        mine = own["number"][ends] == thread
        found.append(made_spans(CHECKPOINT, own["t"][begins[mine]], own["t"][ends[mine]], text, loop.thread))
    return found


def _gpu_steps(rows: np.ndarray, loop: Loop) -> SpanColumns:
    """The time of a GPU for each batch, at most: gaps between its kernels are included, and a step whose timing events
    were not read counts whole. None where batches are known as sums alone, or without a GPU.

    A stream works in order, so it begins with a batch when the loop has it or when it is done with the one before. The
    time itself is measured; an idle stream bounds its end."""
    timed = rows[rows["kind"] == made.DEVICE]
    if not len(timed) or (rows["kind"] == made.SUM).any():
        return of_intervals(COMPUTE, Intervals(), GPU_STEP)
    keys = zip((timed["group"] & (made.IDLE - 1)).tolist(), timed["number"].tolist(), strict=True)
    found = dict(zip(keys, zip(timed["cpu"].tolist(), (timed["group"] & made.IDLE).tolist(), strict=True), strict=True))
    asks = np.append(rows["t"][rows["kind"] == made.TAKE], rows["t"][-1])
    asked = asks[np.minimum(np.searchsorted(asks, loop.end), len(asks) - 1)]
    starts, ends, done = [], [], 0
    batches = zip(loop.group.tolist(), loop.number.tolist(), loop.end.tolist(), asked.tolist(), strict=True)
    for group, number, had, ask in batches:
        lasts, idle = found.get((group, number), (None, 0))
        begin = max(had, done)
        done = max(ask, begin) if lasts is None else begin + lasts
        done = max(min(done, ask), had) if idle else max(done, ask + 1) if lasts is not None else done
        starts.append(min(begin, done))
        ends.append(done)
    found_spans = made_spans(COMPUTE, np.array(starts, np.int64), np.array(ends, np.int64), GPU_STEP)
    found_spans.step = step_at(loop.end, loop.steps[:, 0], loop.steps[:, 1], np.arange(len(loop.steps), dtype=np.int32))
    return found_spans


def summed(marks: RankMarks) -> str | None:
    """A sentence on batches of the loop that are known as sums alone; None where each has its marks."""
    rows = marks.own.rows
    sums = rows[(rows["kind"] == made.SUM) & np.isin(rows["group"], (made.TAKE, made.FETCH, made.STEP))]
    if not len(sums):
        return None
    batches, waited = format_count(int(sums["number"].sum())), format_duration(int(sums["cpu"].sum()))
    return (
        f"rank {max(marks.own.rank, 0)}: {batches} batches more are known as sums by the minute, because marks end at "
        f"{made.WHOLE_BYTES >> 20} MiB: the loop waited {waited} for them in all"
    )


def processor_times(marks: RankMarks) -> dict[str, int]:
    """A rank's loop and its waits for batches, and in each the processor time that the marks hold, in ns.

    loop_ns, cpu_ns: of the loop, and of its thread meanwhile: storage took at most the rest. device_ns: of the
    accelerator. wait_ns: input waits within the loop. made_ns: processor time in these waits, of the loop's thread and
    of the workers that made batches.
    """
    loop = training_loop(marks.own)
    rows = marks.own.rows[(marks.own.rows["thread"] == loop.thread) & (marks.own.rows["kind"] != made.SUM)]
    found = dict.fromkeys(("loop_ns", "cpu_ns", "device_ns", "wait_ns", "made_ns"), 0)
    if not len(loop.steps):
        return found
    first, last = int(loop.steps[0, 0]), int(loop.steps[:, 1].max())
    during, of_device = (rows["t"] >= first) & (rows["t"] <= last), rows["kind"] == made.DEVICE
    found["device_ns"] = int(rows["cpu"][during & of_device].sum())
    rows, during = rows[~of_device], during[~of_device]
    inside = rows[during & (np.diff(rows["cpu"], prepend=-1) != 0)]  # others repeat the time of the record before
    if len(inside) > 1:
        found["cpu_ns"] = int(inside["cpu"][-1] - inside["cpu"][0])
    waits = Intervals.union_of(np.maximum(loop.begin, first), np.minimum(loop.end, last))
    used = [_used_within(waits, inside)]
    for pid, process in marks.processes.items():
        if pid != marks.own.pid:
            rows = process.of(made.MAKE, made.MAKE_END)
            threads = (rows[rows["thread"] == each] for each in np.unique(rows["thread"]))
            used += [_used_within(waits, _with_begin(waits, each)) for each in threads]
    return {**found, "loop_ns": last - first, "wait_ns": waits.length_ns, "made_ns": sum(used)}


def _used_within(waits: Intervals, rows: np.ndarray) -> int:
    """Processor time of one thread during these times: what it took from mark to mark, spread evenly."""
    rows = rows[np.diff(rows["cpu"], prepend=-1) != 0]
    begin, end = rows["t"][:-1], rows["t"][1:]
    share = waits.covered_within(begin, end) / np.maximum(end - begin, 1)
    return int((np.maximum(np.diff(rows["cpu"]), 0) * share).sum())


def _with_begin(waits: Intervals, rows: np.ndarray) -> np.ndarray:
    """The marks of a worker's thread with one of its begin: where its first batch is waited for, it began in that wait,
    and what it did before, such as the imports of a process that was spawned, was waited for too."""
    at = int(np.searchsorted(waits.starts, rows["t"][0])) - 1
    if at < 0 or rows["t"][0] >= waits.ends[at]:
        return rows
    begin = rows[:1].copy()
    begin["t"], begin["cpu"] = waits.starts[at], 0
    return np.concatenate((begin, rows))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankOperations:
    """Operations (n,) of a rank, on the clock of its marks.

    pid: of its process, -1 where it is not known. lane: its thread, as far as that is known. start_ns, end_ns: in
    CLOCK_REALTIME. op, origin, file_id: as in `OPS_SCHEMA`. threads: the thread of a lane, where something tells it.
    """

    pid: np.ndarray
    lane: np.ndarray
    start_ns: np.ndarray
    end_ns: np.ndarray
    op: np.ndarray
    origin: np.ndarray
    file_id: np.ndarray
    threads: Mapping[int, int]


SYNC = OPS.index("sync")

JOINED_NS = 100_000
"""Operations of the loop's thread that follow each other so closely are one wait."""

AT_ONCE = 0.01
"""Share of a step within which a loop gets what it makes one batch of."""

UNKNOWN_SHARE = 0.01
"""Share of the time of the reads, opens and the like in the loop that may belong to no known batch."""


def chain_lanes(columns: dict[str, np.ndarray], pid: np.ndarray, apart: np.ndarray) -> None:
    """Give lanes of one process that never overlap one number, the lowest of them, in columns of `OPS_SCHEMA` by start.

    Some libraries (zarr, aiohttp) hand each request to another thread and wait for it: what never overlapped in the
    whole recording is one sequence. Operations that were made from counters do not count, since their times are not
    exact: they are moved behind what they would overlap, and shortened where there is no room. apart: bool, operations
    whose lanes stay by themselves, unless nothing else of their process was traced.
    """
    lane, start, end = columns["lane"].copy(), columns["start_ns"].copy(), columns["end_ns"].copy()
    made_up = columns["origin"] == RECONSTRUCTED
    rebuilt = made_up & np.isin(columns["op"], (READ, WRITE))
    for process in np.unique(pid[pid >= 0]).tolist():
        mine = pid == process
        mine &= ~apart if (mine & ~apart & ~made_up).any() else True
        timed, made_rows = np.flatnonzero(mine & ~made_up), np.flatnonzero(mine & made_up)
        overlap = (end[timed][:-1] > start[timed][1:]).any()
        if len(np.unique(lane[mine])) < 2 or not len(timed) or rebuilt[mine].any() or overlap:
            continue
        lane[mine] = lane[timed].min()
        following = np.searchsorted(start[timed], start[made_rows], side="right")
        before = np.append(end[timed], np.iinfo(np.int64).min)[following - 1]
        after = np.append(start[timed], np.iinfo(np.int64).max)[following]
        first, last = np.maximum(start[made_rows], before), end[made_rows]
        last = np.clip(last, first, np.maximum(after, first))
        for _ in range(2):  # first behind the one before, with their durations; then without an overlap
            behind = np.concatenate(([np.iinfo(np.int64).min], np.maximum.accumulate(last)[:-1]))
            moved = np.maximum(first, behind)
            last = np.clip(last + (moved - first), moved, np.maximum(after, moved))
            first = moved
        last = np.minimum(last, np.append(first[1:], np.iinfo(np.int64).max))
        start[made_rows], end[made_rows] = first, np.maximum(last, first)
    if (lane == columns["lane"]).all():
        return
    columns.update(lane=lane, start_ns=start, end_ns=end)
    sort_by_start(columns)


def sort_by_start(columns: dict[str, np.ndarray]) -> None:
    """Sort columns of `OPS_SCHEMA`, some of whose times have changed."""
    start, end = columns["start_ns"], columns["end_ns"]
    order = order_by_start(start, [end > start, -end], columns["rank"])
    columns.update({name: values[order] for name, values in columns.items()})


def by_loop(marks: RankMarks, loop: Loop, operations: RankOperations) -> np.ndarray:
    """bool (n,): operations that the thread of the loop issued itself; none where that is not known.

    A thread that makes a mark in the middle of an operation did not issue it, and none while it waits for another."""
    rows = marks.own.rows
    made_ns = rows["t"][(rows["thread"] == loop.thread) & ~np.isin(rows["kind"], (made.DEVICE, made.SUM))]
    mine = operations.pid == marks.own.pid
    first = np.searchsorted(made_ns, operations.start_ns + CLOCK_NS)
    within = np.searchsorted(made_ns, operations.end_ns - CLOCK_NS) > first
    if loop.got:
        got = rows["t"][np.isin(rows["kind"], (made.GET, made.GET_END))]
        within |= np.searchsorted(got, operations.start_ns + CLOCK_NS) % 2 == 1
    traced, every = operations.origin != RECONSTRUCTED, mine
    rebuilt = mine & ~traced & np.isin(operations.op, (READ, WRITE))
    if rebuilt.any():  # nothing tells which thread opened them either
        mine = mine & traced
    lanes = [lane for lane, thread in operations.threads.items() if thread == loop.thread]
    if not lanes:
        lanes = np.setdiff1d(operations.lane[mine], list(operations.threads)).tolist()
        lanes = [each for each in lanes if not (mine & traced & (operations.lane == each) & within).any()]
        lanes = lanes if len(lanes) == 1 else []
    own, files = mine & np.isin(operations.lane, lanes), operations.file_id[rebuilt]
    if not len(files) or (own != mine).any():
        return own
    # Nothing is traced of other threads. Where this one reads or writes the same files itself (np.load, np.save), it
    # made their rebuilt operations too; the times of a file's only one are counted.
    once = rebuilt & np.isin(operations.file_id, np.flatnonzero(np.bincount(files) == 1))
    seen = operations.file_id[own & np.isin(operations.op, (READ, WRITE))]
    return own if (once & within).any() or not np.isin(files, seen).all() else every


def own_io(marks: RankMarks, loop: Loop, operations: RankOperations, mine: np.ndarray) -> Intervals:
    """When the loop's thread itself waited for its operations `mine` during the loop, outside of what marks show."""
    bounds = np.concatenate((loop.begin, loop.end, loop.steps.ravel()))
    if not len(bounds):
        return Intervals()
    mine = mine & (operations.start_ns >= bounds.min()) & (operations.start_ns < bounds.max())
    start = operations.start_ns[mine]
    end = np.maximum(operations.end_ns[mine], start + 1)  # a page that was there took no time, and is waited for too
    found = Intervals.union_of(start, end + JOINED_NS)
    found = Intervals(starts=found.starts, ends=found.ends - JOINED_NS)
    found = found.minus(Intervals.union_of(loop.begin, loop.end))
    for kind in (made.CHECKPOINT, made.RESTORE, made.CHECKPOINT_ASYNC, made.CHECKPOINT_WAIT):
        found = found.minus(Intervals.union_of(*_times(marks.own.rows, kind)))
    return found.minus(_pass_ends(marks.own, loop))


def _pass_ends(process: ProcessMarks, loop: Loop) -> Intervals:
    """When the loop asked for a batch and there was none: it waits there for the workers of the pass to end."""
    rows = process.rows[process.rows["thread"] == loop.thread]
    asked, ended = _pairs(rows, made.TAKE, made.PASS_END)
    return Intervals.union_of(rows["t"][asked], rows["t"][ended])


def batches_of(
    marks: RankMarks, loop: Loop, operations: RankOperations, mine: np.ndarray
) -> dict[str, np.ndarray] | None:
    """The columns `feeds`, `follows`, `follows_end` and `ready_ns` of the operations of a rank, NO_FETCH for none. They
    number the fetches, the times of `marks.own_io` and the ends of passes together, in the order of time. Also `lane`,
    `start_ns` and `end_ns` anew, on the clock of the marks.

    mine: bool, operations of the loop's own thread. None if much of what may be input, not written, during the loop
    belongs to no known batch.
    """
    waits = marks.own_io, _pass_ends(marks.own, loop)
    pid, start_ns, end_ns = operations.pid, operations.start_ns, operations.end_ns
    begins = np.concatenate((loop.begin, *(each.starts for each in waits)))
    ends = np.concatenate((loop.end, *(each.ends for each in waits)))
    if not len(begins):
        return None
    order = np.lexsort((ends, begins))
    begins, ends = begins[order], ends[order]
    number = np.empty(len(order), dtype=np.int64)
    number[order] = np.arange(len(order))  # of each fetch, then of each other wait
    by_thread = np.append(loop.workers == 0, np.zeros(len(begins) - len(loop.begin), dtype=bool))[order]
    feeds, follows = np.full(len(pid), NO_FETCH), np.full(len(pid), NO_FETCH)
    follows_end, ready = np.zeros(len(pid), dtype=bool), np.full(len(pid), np.int64(NO_FETCH))
    at = np.searchsorted(begins, start_ns, side="right") - 1
    inside = (at >= 0) & (start_ns < ends[at])
    own = inside & (mine | ((pid == marks.own.pid) & by_thread[at]))
    feeds[own] = follows[own] = at[own]
    tasks = _tasks(marks, loop)
    known, anew = own | mine, {name: getattr(operations, name).copy() for name in ("lane", "start_ns", "end_ns")}
    for each in np.unique(pid).tolist():
        of_worker = np.flatnonzero(pid == each)
        task = tasks[tasks["pid"] == each]
        if not len(task):
            continue
        known[of_worker] = True
        place = np.searchsorted(task["end"], start_ns[of_worker])
        of_worker, place = of_worker[place < len(task)], place[place < len(task)]
        for column, name in ((feeds, "fetch"), (follows, "follows")):
            fetch = task[name][place]
            column[of_worker] = np.where(fetch >= 0, number[fetch], NO_FETCH)
        follows_end[of_worker] = (follows[of_worker] >= 0) & ~task["asked"][place]
        last = np.full(len(task), -1)
        order = np.argsort(end_ns[of_worker], kind="stable")
        last[place[order]] = of_worker[order]
        some = last >= 0
        ready[last[some]] = np.maximum(task["end"][some] - end_ns[last[some]], 0)
    for pool, task in _pools(marks, loop, operations, mine, tasks):
        known[pool.rows] = True
        for column, values in zip(anew.values(), spread(pool, operations), strict=True):
            column[pool.rows] = values
        fetch_of = np.append(task["fetch"], NO_FETCH)
        fetch = fetch_of[pool.batch]
        feeds[pool.rows] = np.where(fetch >= 0, number[fetch], NO_FETCH)
        made_by_worker = task["pid"][0] != marks.own.pid
        after = task["follows"][np.maximum(pool.after, 0)] if made_by_worker else fetch_of[pool.after]
        follows[pool.rows] = np.where(after >= 0, number[after], NO_FETCH)
        asked = task["asked"][np.maximum(pool.after, 0)]
        follows_end[pool.rows] = made_by_worker & (after >= 0) & ~asked
        ready[pool.rows] = NO_FETCH
        order = np.argsort(end_ns[pool.rows], kind="stable")
        last = np.full(len(task) + 1, -1)
        last[pool.batch[order]] = pool.rows[order]
        some = (last[:-1] >= 0) & made_by_worker
        begun_ns = np.maximum(end_ns[last[:-1][some]], task["begin"][some])
        ready[last[:-1][some]] = np.maximum(task["end"][some] - begun_ns, 0)
    reads, writes = (operations.file_id[operations.op == each] for each in (READ, WRITE))
    output = np.isin(operations.file_id, np.setdiff1d(writes, reads)) | np.isin(operations.op, (SYNC, WRITE))
    during = (start_ns < ends.max()) & (end_ns > begins[0]) & ~output
    lasted = np.where(during, end_ns - start_ns, 0)
    if lasted[~known].sum() > UNKNOWN_SHARE * lasted.sum():
        return None
    # An operation that ran ahead of its batch, in another thread of the worker, keeps the order of its lane.
    lane = anew["lane"]
    order = np.lexsort((anew["start_ns"], lane))
    for one in np.unique(lane).tolist():
        of_lane = order[lane[order] == one]
        for column in (feeds, follows):
            some = of_lane[column[of_lane] >= 0]
            column[some] = np.maximum.accumulate(column[some])
    wrong = (feeds >= 0) & (follows_end & (follows >= feeds) | (follows > feeds))
    follows[wrong], follows_end[wrong] = NO_FETCH, False
    return anew | {"feeds": feeds, "follows": follows, "follows_end": follows_end, "ready_ns": ready}


def _pools(
    marks: RankMarks, loop: Loop, operations: RankOperations, mine: np.ndarray, tasks: np.ndarray
) -> Iterator[tuple[Pool, np.ndarray]]:
    """The pools of threads of workers, and of the loop's process, with the batches that are made of what they read."""
    makers = [
        tasks[(tasks["pid"] == pid) & (tasks["group"] == group) & ~tasks["stop"]]
        for pid, group in np.unique(tasks[["pid", "group"]]).tolist()
    ]
    if len(np.unique(loop.group)) == 1 and (loop.workers <= 0).all():
        own = np.zeros(len(loop.begin), dtype=_TASK)
        own["pid"], own["begin"], own["end"], own["fetch"] = marks.own.pid, loop.begin, loop.end, np.arange(len(own))
        makers.append(own)
    for task in filter(len, makers):
        later = [other["begin"][0] for other in makers if len(other) and other["pid"][0] == task["pid"][0]]
        until = min((each for each in later if each > task["begin"][0]), default=np.iinfo(np.int64).max)
        rows = np.flatnonzero((operations.pid == task["pid"][0]) & ~mine & (operations.start_ns < until))
        tries = [(rows[operations.start_ns[rows] >= task["begin"].min()], False)]
        if loop.got and task["pid"][0] == marks.own.pid:  # its threads may have begun before the loop, even long before
            started = marks.own.of(made.START)["t"].min(initial=task["begin"].min())
            tries += [(rows[operations.start_ns[rows] >= started], False), (tries[0][0], True), (rows, True)]
        pool = None
        for tried, elsewhere in tries:
            found = pool_of(operations, tried, task["begin"], task["end"], elsewhere=elsewhere)
            whole = found is not None and np.count_nonzero(operations.op[found.rows] == READ) % len(task) == 0
            pool = found if whole else pool or found
            if whole:
                break
        if pool is not None:
            if loop.got and task["pid"][0] == marks.own.pid:
                pool = asked(pool, operations, task["begin"], task["end"])
            yield pool, task


_TASK = np.dtype([("pid", "i8"), ("group", "i8"), ("number", "i8"), ("begin", "i8"), ("end", "i8"), ("stop", "?"),
                  ("fetch", "i8"), ("follows", "i8"), ("asked", "?")])  # fmt: skip


def _tasks(marks: RankMarks, loop: Loop) -> np.ndarray:
    """_TASK (t,): the batches that workers made, by pid and end. fetch: the fetch that took a batch, follows: the one
    whose end, or with `asked` whose begin, let the worker have the task; NO_FETCH for none.

    An answer that a worker's data have ended takes the number of a task, but no fetch."""
    started = marks.own.of(made.WORKER)
    groups: dict[int, list[int]] = {}
    for pid, group in zip((started["number"] & 0xFFFFFFFF).tolist(), started["group"].tolist(), strict=True):
        groups.setdefault(pid, []).append(group)
    parts = []
    for pid, of_worker in groups.items():
        if pid not in marks.processes:
            continue
        rows = marks.processes[pid].of(made.MAKE, made.MAKE_END, made.RESUME)
        begins, ends = _pairs(rows, made.MAKE, made.MAKE_END)
        resumed = np.searchsorted(np.flatnonzero(rows["kind"] == made.RESUME), begins)
        task = np.zeros(len(begins), dtype=_TASK)
        task["pid"], task["number"] = pid, rows["number"][begins]
        task["group"] = np.array(of_worker)[np.minimum(resumed, len(of_worker) - 1)]
        task["begin"], task["end"] = rows["t"][begins], rows["t"][ends]
        task["stop"] = rows["group"][ends] == 1
        parts.append(task)
    tasks = np.concatenate(parts) if parts else np.zeros(0, dtype=_TASK)
    tasks["fetch"] = tasks["follows"] = NO_FETCH
    for group, begun, _, ahead in loop.passes.tolist():
        mine = np.flatnonzero((tasks["group"] == group) & ~tasks["stop"])
        mine = mine[np.argsort(tasks["number"][mine], kind="stable")]
        fetches = np.flatnonzero(loop.group == group)
        fetches = fetches[np.argsort(loop.number[fetches], kind="stable")]
        taken = min(len(mine), len(fetches))
        tasks["fetch"][mine[:taken]] = fetches[:taken]
        before = int(np.searchsorted(loop.end, begun, side="right")) - 1
        tasks["follows"][mine] = before
        since = loop.end[before] if before >= 0 else marks.own.rows["t"][0]
        if taken and loop.begin[fetches[0]] - begun < begun - since:
            # Not the batch before, but what the loop did after it let the pass begin, such as a checkpoint.
            first = mine[tasks["number"][mine] < ahead]
            tasks["follows"][first], tasks["asked"][first] = fetches[0], True
        later = tasks["number"][mine] >= ahead
        at = np.searchsorted(tasks["number"][mine], tasks["number"][mine][later] - ahead, side="right") - 1
        known = (at >= 0) & (at < taken)
        let = np.full(len(at), before)
        let[known] = fetches[at[known]]
        tasks["follows"][mine[later]] = let
    return tasks[np.lexsort((tasks["end"], tasks["pid"]))]
