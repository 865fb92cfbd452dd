"""The profiled steps of a rank as columns: when each fetched its batch, and its activity afterwards. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dxt_replay.traces.measures.intervals import Intervals
from dxt_replay.traces.schema import NO_STEP, SPAN_KINDS, codes

_STEP, _WAIT, _COMPUTE, _COLLECTIVE, _CHECKPOINT = (
    SPAN_KINDS.index(kind) for kind in ("step", "input_wait", "compute", "collective", "checkpoint")
)
_OUTLIER = 3.0
"""Steps that are busy this many times the median also did something else: an evaluation, a stall."""
_SLOW_FIRST = 1.3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Phase:
    """Activity of a step after it had its batch: times from then on (int64 ns), of one kind and name."""

    kind: int
    name: str
    thread: int
    begin_ns: np.ndarray
    end_ns: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProfiledSteps:
    """The profiled steps, ascending; columns (p,), int64.

    number: of the step.
    begin_ns, end_ns: of the step.
    wait_ns: when the step began to wait for its batch; without an input wait, when it began.
    fetch_ns: when it had the batch.
    busy_ns: from then until it ended, without checkpoints.
    typical: rows of typical steps, at least one.
    waits: whether the profile shows input waits.
    wait_name, thread, name: of the spans.
    """

    number: np.ndarray
    begin_ns: np.ndarray
    end_ns: np.ndarray
    wait_ns: np.ndarray
    fetch_ns: np.ndarray
    busy_ns: np.ndarray
    typical: np.ndarray
    waits: bool
    wait_name: str
    thread: int
    name: str

    def __len__(self) -> int:
        """Number of profiled steps."""
        return len(self.number)

    @property
    def firsts(self) -> np.ndarray:
        """bool by step: the first one of a cycle of the profiler's schedule."""
        return np.append(True, np.diff(self.number) > 1)


def profiled_steps(spans: pa.Table) -> ProfiledSteps | None:
    """The steps in the spans of one rank (`SPANS_SCHEMA`); None without any."""
    kind, step = codes(spans, "kind"), spans["step"].to_numpy()
    start, end = spans["start_ns"].to_numpy(), spans["end_ns"].to_numpy()
    rows = np.flatnonzero((kind == _STEP) & (step != NO_STEP))
    if not len(rows):
        return None
    rows = rows[np.argsort(start[rows], kind="stable")]
    begin, until, number = start[rows], end[rows], step[rows].astype(np.int64)
    waits = np.flatnonzero(kind == _WAIT)
    wait, fetch, named = _fetches(begin, until, start[waits], end[waits])
    follows = np.append(number[1:] == number[:-1] + 1, False)
    next_wait = np.where(follows, np.append(wait[1:], 0), until)
    saved = Intervals.union_of(start[kind == _CHECKPOINT], end[kind == _CHECKPOINT])
    in_checkpoint = saved.covered_within(fetch, np.maximum(next_wait, fetch))
    busy = np.maximum(next_wait - fetch - in_checkpoint, 0)
    return ProfiledSteps(
        number=number,
        begin_ns=begin,
        end_ns=until,
        wait_ns=wait,
        fetch_ns=fetch,
        busy_ns=busy,
        typical=_typical(number, busy, in_checkpoint == 0),
        waits=len(waits) > 0,
        wait_name=spans["name"][int(waits[named])].as_py() if len(waits) else "",
        thread=int(spans["thread"][int(rows[0])].as_py()),
        name=spans["name"][int(rows[0])].as_py(),
    )


def _fetches(
    begin: np.ndarray, until: np.ndarray, wait_begin: np.ndarray, wait_end: np.ndarray
) -> tuple[np.ndarray, np.ndarray, int]:
    """When each step began to wait and had its batch, and the row of a typical wait.

    A step that reached the end of the data waits twice, and an evaluation in it fetches batches of its own. The step's
    own wait is the one with the longest time behind it.
    """
    wait, fetch, row = begin.copy(), begin.copy(), 0
    order = np.argsort(wait_begin, kind="stable")
    for place, (first, last) in enumerate(zip(begin.tolist(), until.tolist(), strict=True)):
        mine = order[(wait_begin[order] >= first) & (wait_begin[order] < last)]
        if not len(mine):
            continue
        goes_on = np.append(wait_begin[mine][1:], last) - wait_end[mine]
        row = int(mine[np.argmax(goes_on)])
        wait[place], fetch[place] = wait_begin[row], min(wait_end[row], last)
    return wait, fetch, row


def _typical(number: np.ndarray, busy: np.ndarray, plain: np.ndarray) -> np.ndarray:
    """Rows of the typical steps: without checkpoint or stall, and without the slow first step that starts the
    profiler."""
    usual = plain & (busy <= _OUTLIER * np.median(busy))
    first = np.append(True, np.diff(number) > 1)
    later = usual & ~first
    if later.any():
        usual &= ~first | (busy <= _SLOW_FIRST * np.median(busy[later]))
    return np.flatnonzero(usual) if usual.any() else np.arange(len(busy))


def phases_after_fetch(spans: pa.Table, steps: ProfiledSteps) -> dict[int, list[Phase]]:
    """Compute and collectives of each typical step, by its row: one `Phase` per kind, name and thread."""
    kind, step = codes(spans, "kind"), spans["step"].to_numpy()
    start, end = spans["start_ns"].to_numpy(), spans["end_ns"].to_numpy()
    wanted = np.isin(kind, (_COMPUTE, _COLLECTIVE))
    names, threads = np.array(spans["name"].to_pylist(), dtype=object), spans["thread"].to_numpy()
    found: dict[int, list[Phase]] = {}
    for row in steps.typical.tolist():
        mine = np.flatnonzero(wanted & (step == steps.number[row]) & (end > steps.fetch_ns[row]))
        found[row] = []
        for code, name, thread in sorted({(int(kind[one]), names[one], int(threads[one])) for one in mine}):
            part = mine[(kind[mine] == code) & (names[mine] == name) & (threads[mine] == thread)]
            times = Intervals.union_of(np.maximum(start[part], steps.fetch_ns[row]), end[part])
            found[row].append(
                Phase(
                    kind=code,
                    name=name,
                    thread=thread,
                    begin_ns=times.starts - steps.fetch_ns[row],
                    end_ns=times.ends - steps.fetch_ns[row],
                )
            )
    return found
