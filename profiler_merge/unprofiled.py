"""The steps of a rank outside its profile, from the bytes that its readers read ahead of the loop. Pure.

A loop takes about as many bytes with each batch, and its readers stay about as far ahead of it. So the profiled steps
show how much a step takes, and how much was read when it had its batch; any other step had its batch when the reads
reached its own place on that line. What it did then is taken from a profiled step. Where that leaves too much open, no
step is inferred, and a sentence says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePosixPath

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dxt_replay.profiler_merge.recording import ANNOTATION
from dxt_replay.traces.measures.intervals import Intervals
from dxt_replay.traces.measures.span_times import evaluations_by_rank
from dxt_replay.traces.schema import (
    APIS,
    NO_STEP,
    ORIGINS,
    READ,
    RECONSTRUCTED,
    SPAN_KINDS,
    SPANS_SCHEMA,
    TRACED,
    codes,
    dictionary_array,
    table_from_columns,
)
from dxt_replay.traces.units import format_count

_STEP, _WAIT, _COMPUTE, _COLLECTIVE, _PIPELINE = (
    SPAN_KINDS.index(kind) for kind in ("step", "input_wait", "compute", "collective", "pipeline")
)
_DIGITS = re.compile(r"\d+")
_MANY_NAMES = 8  # name patterns from which files are alike by folder and suffix: their names are digests, not numbers
_OWN_SHARE = 0.9  # of the reads in the steps' own waits, from which the training thread itself is the reader
_MOST_AHEAD = 32.0  # steps that the threads of an input pipeline with unknown buffers may have read ahead
_MOST_UNSURE = 1.3  # largest ratio of a step's largest and smallest possible amount with which steps are placed
_PARTIAL = 0.1  # least size of a last batch that counts as a step, as a share of a whole one
_PAUSES = 5  # usual steps without a step after which the training had ended, or paused
_LEAST_APART = 0.5  # of a step's busy time, between inferred fetches: reads come in bursts, and steps do not
_MOST_STEPS = 1 << 22
_NEVER = np.iinfo(np.int64).max

Columns = dict[str, np.ndarray]
_PROFILED = np.dtype([(name, "i8") for name in ("number", "begin", "wait", "fetch", "end", "busy")])
"""A step: when it began to wait for its batch and had it (without an input wait, when it began), and how long it was
busy from then until it waited again or ended."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Extended:
    """The spans of a rank (`SPANS_SCHEMA`) with those of the steps that were not profiled, `first` to `last`.

    steps, profiled: number of all steps, and of the profiled ones. unsure: relative error of `steps`, 0.1 for 10 %.
    """

    spans: pa.Table
    first: int
    last: int
    steps: int
    profiled: int
    unsure: float


def text_of(extended: Extended) -> str:
    """The sentence for people."""
    added = extended.steps - extended.profiled
    share = min(100 * added / extended.steps, 99.9)
    unsure = f", of which there may be {100 * extended.unsure:.0f} % more or fewer" if extended.unsure >= 0.01 else ""
    return (
        f"the profile shows {format_count(extended.profiled)} training steps; the other {format_count(added)} of steps "
        f"{extended.first} to {extended.last} ({share:.3g} %) are inferred{unsure}: their starts from the "
        "reads, their compute times from the profiled steps"
    )


def extended_spans(
    spans: pa.Table,
    operations: Columns,
    process: np.ndarray,
    path: Callable[[int], str],
    limits: tuple[int, int] | None = None,
) -> Extended | str | None:
    """The spans of one rank (`SPANS_SCHEMA`) with those of the steps outside of its profile.

    None if the reads show no others; a text if there may be others but the evidence does not place them.
    `operations`: columns of the rank in start order, as `OPS_SCHEMA`. `process`: of each, 0 is the rank's own.
    `path`: of a file_id. `limits`: first and last step, if another rank shows them.
    """
    steps = _profiled(spans)
    if not len(steps) or _saw_all_reads(spans, operations):
        return None
    traced = (operations["op"] == READ) & (operations["origin"] == TRACED) & (operations["length"] > 0)
    start, end = operations["start_ns"], operations["end_ns"]
    before, after = traced & (start < steps["begin"][0]), traced & (start >= steps["end"][-1])
    during = traced & ~before & ~after
    others = max(after.sum(), before.sum() * (steps["number"][0] > 1)) > during.sum()
    rows = _loop_reads(operations, process, path, traced & ~_untrained(spans, steps, start), during)
    if not len(rows):
        return "no reads were traced that feed the profiled steps" if others else None
    start, end, length, process = start[rows], end[rows], operations["length"][rows], process[rows]
    waits = bool((steps["fetch"] > steps["wait"]).any())
    # Whether the training thread itself reads: in its input waits or, if the profile shows none, in its steps.
    at = np.maximum(np.searchsorted(steps["begin"], start, side="right") - 1, 0)
    inside = (start >= steps["begin"][at]) & (start < steps["end"][at])
    in_wait = inside & (process == 0) & (start >= steps["wait"][at]) & (end <= steps["fetch" if waits else "end"][at])
    own = bool(inside.any() and in_wait.sum() >= _OWN_SHARE * inside.sum())
    total = np.concatenate(([0], np.cumsum(length)))
    reached = total[np.searchsorted(start, steps["wait" if own else "fetch"])]
    readers = sum(
        bool((start[process == one] < steps["end"][-1]).any() and (end[process == one] > steps["begin"][0]).any())
        for one in np.unique(process[process != 0])
    )
    low, high = _bytes_of_step(steps, reached, total[np.searchsorted(start, steps["end"])], own, readers)
    if not 0 < low <= high <= _MOST_UNSURE * low:
        reason = "the profiled steps are too few, or too early in the job, to show how much one step reads"
        return reason if others else None
    each = (low + high) / 2
    first, last = int(steps["number"][0]), int(steps["number"][-1])
    counted_from = 0
    if first > 1 and first > reached[0] / low + 0.5:  # the profile counts from the first step of an earlier run
        counted_from = max(first - round(reached[0] / each), 0)
    until = last
    if total[-1] - reached[-1] > ((0 if own else max(readers, 1)) + 1.5) * each:
        until = counted_from + int(np.ceil(total[-1] / each - _PARTIAL)) - 1
    begin, until = limits or (counted_from if first > 1 else first, until)
    number = np.arange(min(begin, first), max(until, last) + 1)
    if len(number) == len(steps) or len(number) > _MOST_STEPS:
        return None
    # Each step's place on the line through the profiled step that is nearest to it.
    near = np.searchsorted((steps["number"][1:] + steps["number"][:-1]) / 2, number)
    place = reached[near] + each * (number - steps["number"][near])
    begun = np.append(start, _NEVER)[np.searchsorted(total[1:], place + 1e-6 * each, side="right")]
    # Of reads by the training thread itself the middle of the batch, because bytes miss its bounds slightly.
    share = 0.5 if own else 1 - 1e-6
    done = np.append(np.maximum.accumulate(end), _NEVER)[np.searchsorted(total[1:], place + share * each)]
    added = _inferred(spans, steps, _times(steps, number, begun, done, own))
    origin = dictionary_array(np.full(spans.num_rows, TRACED, np.int8), ORIGINS)
    marked = spans.set_column(SPANS_SCHEMA.get_field_index("origin"), SPANS_SCHEMA.field("origin"), origin)
    return Extended(
        spans=pa.concat_tables([marked, added]),
        first=int(number[0]),
        last=int(number[-1]),
        steps=len(number),
        profiled=len(steps),
        unsure=high / low - 1,
    )


def _profiled(spans: pa.Table) -> np.ndarray:
    """_PROFILED (p,), ascending.

    A step that reached the end of the data waits twice, and an evaluation in it fetches batches of its own. The step's
    own wait is the one with the longest time behind it."""
    kind, number = codes(spans, "kind"), spans["step"].to_numpy()
    start, end = spans["start_ns"].to_numpy(), spans["end_ns"].to_numpy()
    rows = np.flatnonzero((kind == _STEP) & (number != NO_STEP))
    rows = rows[np.argsort(start[rows], kind="stable")]
    steps = np.zeros(len(rows), _PROFILED)
    steps["number"], steps["begin"], steps["end"] = number[rows], start[rows], end[rows]
    steps["wait"] = steps["fetch"] = steps["begin"]
    waits = np.flatnonzero(kind == _WAIT)
    waits = waits[np.argsort(start[waits], kind="stable")]
    bounds = np.searchsorted(start[waits], np.stack([steps["begin"], steps["end"]])).T.tolist()
    for step, (a, b) in enumerate(bounds):
        if a < b:
            mine = waits[a:b]
            free = np.append(start[mine][1:], steps["end"][step]) - end[mine]
            row = mine[np.argmax(free)]
            steps["wait"][step], steps["fetch"][step] = start[row], min(end[row], steps["end"][step])
    follows = np.append(steps["number"][1:] == steps["number"][:-1] + 1, False)[: len(steps)]
    until = np.where(follows, np.append(steps["wait"][1:], 0)[: len(steps)], steps["end"])
    steps["busy"] = np.maximum(until - steps["fetch"], 0)
    return steps


def _saw_all_reads(spans: pa.Table, operations: Columns) -> bool:
    """Whether tf.data's own events cover all reads of the files that they read.

    If so, reads beyond the last step were made ahead, for batches that were never fetched.
    """
    seen = spans.filter(spans["fetched_ns"].is_valid())
    if not seen.num_rows:
        return False
    begin = seen["start_ns"].to_numpy().min()
    end = spans.filter(pa.array(codes(spans, "kind") == _PIPELINE))["end_ns"].to_numpy().max()
    read = (operations["op"] == READ) & (operations["origin"] == TRACED)
    inside = (operations["start_ns"][read] >= begin) & (operations["start_ns"][read] < end)
    return not np.isin(operations["file_id"][read][~inside], operations["file_id"][read][inside]).any()


def _untrained(spans: pa.Table, steps: np.ndarray, times: np.ndarray) -> np.ndarray:
    """bool by time: the profile shows that the rank did not train then, in an evaluation or after the last step."""
    shown = spans.filter(pc.invert(pc.starts_with(spans["name"], ANNOTATION)))  # anchors need no profile around them
    last, end = steps["end"][-1:], shown["end_ns"].to_numpy().max(keepdims=True)
    found = evaluations_by_rank(spans).get(int(spans["rank"][0].as_py()), Intervals())
    # A pipeline reads ahead for the next step until the profiler has stopped.
    goes_on = end - last > _PAUSES * np.median(steps["end"] - steps["begin"])
    found = found.union(Intervals.union_of(last[goes_on], end[goes_on]))
    inside: np.ndarray = found.covered_within(times, times + 1) > 0
    return inside


def _loop_reads(
    operations: Columns, process: np.ndarray, path: Callable[[int], str], reads: np.ndarray, during: np.ndarray
) -> np.ndarray:
    """Rows of the `reads` of files like those read `during` the profiled steps, by processes like those that read then.

    Files are alike if their names are, numbers aside. The rank's own process or its workers read, whichever read more.
    """
    api = APIS.index("POSIX") if (reads & (operations["api"] == APIS.index("POSIX"))).any() else APIS.index("MPIIO")
    reads = reads & ((operations["api"] == api) | (operations["api"] == APIS.index("MMAP")))
    inside = reads & during
    by_process = np.bincount((process != 0) + 0, weights=operations["length"] * inside, minlength=2)
    by_workers = by_process[1] > by_process[0]
    reads, inside = (rows & ((process != 0) == by_workers) for rows in (reads, inside))
    file_id = operations["file_id"]
    names = {file: _DIGITS.sub("#", path(file)) for file in np.unique(file_id[reads]).tolist()}
    shown = np.unique(file_id[inside]).tolist()
    if len({names[file] for file in shown}) > _MANY_NAMES:
        places = ((file, PurePosixPath(name)) for file, name in names.items())
        names = {file: f"{place.parent}/{place.suffix}" for file, place in places}
    wanted = {names[file] for file in shown}
    return np.flatnonzero(reads & np.isin(file_id, [file for file, name in names.items() if name in wanted]))


def _bytes_of_step(
    steps: np.ndarray, reached: np.ndarray, ended: np.ndarray, own: bool, readers: int
) -> tuple[float, float]:
    """Least and most bytes of one step; (0, 0) if the profiled steps contradict what was read before them.

    `reached`, `ended`: bytes read when each step had its batch, and when it ended. `own`: the training thread reads.
    `readers`: processes that read for it, 0 for its own threads.
    """
    if own:
        each = (ended - reached).astype(np.float64)
        error = 0.01 if len(each) < 2 else max(2 * each.std() / max(each.mean(), 1) / len(each) ** 0.5, 0.01)
        return each.mean() / (1 + error), each.mean() * (1 + error)
    most = 2.0 * readers + 0.5 if readers else _MOST_AHEAD
    first, apart = float(steps["number"][0]), float(steps["number"][-1] - steps["number"][0])
    low, high = 0.0, np.inf
    if first > 1 and reached[0]:
        # All of the first profiled batch had been read, and at most `most` batches behind the previous one.
        low, high = reached[0] / (first + most), reached[0] / (first + 0.5)
    read, slack = float(reached[-1] - reached[0]), min(2.0 * max(readers, 1), most)
    if apart > slack and read:
        low, high = max(low, read / (apart + slack)), min(high, read / (apart - slack))
    # How far the readers are ahead changes by no more than that: rare reads, such as those of saved checkpoints, do not
    # feed the steps.
    ahead = reached / max((low + high) / 2, 1e-9) - steps["number"]
    return (low, high) if low <= high < np.inf and np.ptp(ahead) <= most + 1 else (0.0, 0.0)


def _times(steps: np.ndarray, number: np.ndarray, begun: np.ndarray, done: np.ndarray, own: bool) -> Columns:
    """The columns of _PROFILED, save `busy`, of those steps `number` that were not profiled.

    `begun`, `done`: when the reads at each step's place began, and when its batch had been read; _NEVER for none."""
    known = np.isin(number, steps["number"])
    busy = int(np.median(steps["busy"]))
    usual = int(np.median(steps["fetch"] - steps["wait"]))
    fetch = np.where(done != _NEVER, done + usual // 2, _NEVER) if own else begun
    for row in np.flatnonzero((fetch == _NEVER) & ~known).tolist():  # after the last read, steps follow each other
        previous = fetch[row - 1] if row else steps["fetch"][0] - busy
        fetch[row] = previous + busy if done[row] == _NEVER else max(previous + busy, done[row])
    fetch[known] = steps["fetch"]
    least = (_LEAST_APART * busy * np.arange(len(number))).astype(np.int64)
    fetch = np.minimum.accumulate((fetch - least)[::-1])[::-1] + least
    fetch[known] = steps["fetch"]
    following = np.minimum.accumulate(np.where(known, fetch, _NEVER)[::-1])[::-1]
    fetch = np.maximum.accumulate(np.minimum(fetch, following))
    # A step waits from the end of the one before, and at least as long as profiled steps do.
    wait = np.minimum(np.append(fetch[0] - usual, fetch[:-1] + busy), fetch - usual)
    wait = np.clip(fetch - usual if own else wait, np.append(fetch[0] - usual, fetch[:-1]), fetch)
    wait[known] = steps["wait"]
    begin = wait - max(int(np.median(steps["wait"] - steps["begin"])), 0)
    begin[known] = steps["begin"]
    begin = np.maximum(begin, np.append(begin[0], fetch[:-1]))
    end = np.append(begin[1:], fetch[-1] + busy)
    end[known] = steps["end"]
    begin[1:][known[:-1]] = np.maximum(begin[1:], end[:-1])[known[:-1]]
    columns = {"number": number, "begin": begin, "wait": np.maximum(wait, begin), "fetch": fetch}
    return {name: each[~known] for name, each in {**columns, "end": np.maximum(begin, end)}.items()}


def _inferred(spans: pa.Table, steps: np.ndarray, new: Columns) -> pa.Table:
    """The spans of the `new` steps: the step, its wait, and the compute and collectives of a profiled step of usual
    length, each as one stretch."""
    kind, step, thread = codes(spans, "kind"), spans["step"].to_numpy(), spans["thread"].to_numpy()
    names, start, end = spans["name"], spans["start_ns"].to_numpy(), spans["end_ns"].to_numpy()
    shown = int(np.flatnonzero((kind == _STEP) & (step == steps["number"][0]))[0])
    stretches = [(_STEP, names[shown].as_py(), thread[shown], new["begin"], new["end"])]
    waits = np.flatnonzero(kind == _WAIT)
    if len(waits):
        stretches.append((_WAIT, names[int(waits[0])].as_py(), thread[shown], new["wait"], new["fetch"]))
    like = steps[np.argsort(steps["busy"], kind="stable")[(len(steps) - 1) // 2]]
    mine = np.flatnonzero(np.isin(kind, (_COMPUTE, _COLLECTIVE)) & (step == like["number"]) & (end > like["fetch"]))
    groups: dict[tuple[int, str, int], list[int]] = {}
    for row in mine.tolist():
        groups.setdefault((int(kind[row]), names[row].as_py(), int(thread[row])), []).append(row)
    for (code, name, of_thread), rows in sorted(groups.items()):
        busy = Intervals.union_of(np.maximum(start[rows], like["fetch"]), end[rows])
        begin = new["fetch"] + (busy.starts[0] - like["fetch"])
        stretches.append((code, name, of_thread, begin, np.minimum(begin + busy.length_ns, new["end"])))
    parts = []
    for code, name, of_thread, begin, until in stretches:
        kept = np.flatnonzero((until > begin) | (code == _STEP))
        columns = {"rank": spans["rank"][0].as_py(), "thread": of_thread, "kind": np.int8(code), "name": name}
        columns |= {"step": new["number"][kept], "start_ns": begin[kept], "end_ns": until[kept]}
        parts.append(table_from_columns({**columns, "origin": np.int8(RECONSTRUCTED)}, SPANS_SCHEMA))
    return pa.concat_tables(parts).sort_by([("start_ns", "ascending")])
