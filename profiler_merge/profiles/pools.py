"""Threads of a process that take requests from one queue: which batch each of their operations is read for. Pure.

HuggingFace's streams, Grain and executors read ahead with such a pool, and make batches of its answers in the order of
the requests. A trace shows neither the queue nor the threads, but marks show when each batch was made: its requests had
ended by then.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from dxt_replay.traces.schema import OPS, READ, RECONSTRUCTED, WRITE

if TYPE_CHECKING:
    from dxt_replay.profiler_merge.profiles.marks import RankOperations

CLOSE, OPEN = OPS.index("close"), OPS.index("open")

MIN_IN_TIME = 0.95
"""Share of the batches whose requests must have ended when they were made."""

PERIODS = 4
"""Mean times from batch to batch, after which a read of the same file belongs to another request."""

UNUSUAL = 10
"""Of pauses of a period or more: how many times as long as usual they are where the request is another one."""

USUAL = 0.1
"""Share of the requests of a pool that take no longer than usual from one to the next, and of the opens that take
longer than counters can tell of."""

CLOCK_NS = 100_000
"""By how much the clock of an operation may differ from that of the marks."""

ASKED_NS = 1_000_000
"""By how much sooner than a loop waits for its batch the threads may begin requests that it makes right before."""

TELLING = 0.01
"""Share of the loop that waits must last to tell which batches requests are of."""

_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pool:
    """The operations of a pool, by start; arrays (m,).

    rows: their numbers among the rank's operations. request: which they belong to, numbered in the order of begin.
    batch: number of the batch that they are read for; -1 for one that was never made.
    after: number of the batch whose making let them begin; -1 for those that nothing held back.
    let_ns: when that began. threads: how many read at once. taken: where threads make whole batches, or share each
    batch evenly, the thread of each request (r,), from 0.
    """

    rows: np.ndarray
    request: np.ndarray
    batch: np.ndarray
    after: np.ndarray
    let_ns: np.ndarray
    threads: int
    taken: np.ndarray | None = None


def pool_of(
    operations: RankOperations, rows: np.ndarray, begin_ns: np.ndarray, end_ns: np.ndarray, *, elsewhere: bool = False
) -> Pool | None:
    """The pool of a process that made batches (k,) from begin_ns to end_ns, by these operations of it; None where it
    reads with one thread at a time, unless that is `elsewhere` than the thread that makes batches of what it reads, or
    the batches do not have equally many reads in the order of the requests.

    A request is what is read of a file from one open to the next, or a read of a file that threads read side by side.
    """
    read = operations.file_id[rows[operations.op[rows] == READ]]
    rows = rows[np.isin(operations.file_id[rows], read) & (operations.op[rows] != WRITE)]
    is_read, start, end = operations.op[rows] == READ, operations.start_ns[rows], operations.end_ns[rows]
    traced = np.flatnonzero(is_read & (operations.origin[rows] != RECONSTRUCTED))
    latest = np.maximum.accumulate(end[traced])
    if len(begin_ns) < 2 or not len(traced) or not (elsewhere or (latest[:-1] > start[traced][1:]).any()):
        return None
    number, request = _in_turn(operations, rows, PERIODS * (end_ns.max() - begin_ns.min()) / len(begin_ns))
    begins, ends = np.empty((2, np.count_nonzero(is_read)), dtype=np.int64)
    begins[number[is_read]], ends[number[is_read]] = start[is_read], end[is_read]
    until, made = end_ns + CLOCK_NS, np.arange(1, len(begin_ns) + 1)
    ended = np.searchsorted(np.sort(ends), until, side="right")
    each = len(ends) / len(made)
    if each > 1 and each != int(each):  # reads ran ahead of the last batch that was made
        each = float(int(np.quantile(ended / made, 1.0 - MIN_IN_TIME)))
    under_way = np.arange(1, len(traced) + 1) - np.searchsorted(
        np.sort(end[traced]), np.sort(start[traced]), side="right"
    )
    threads = int(under_way.max())
    late = 0 if len(traced) == len(ends) else threads  # times of reads that counters alone show are about right
    if not each or np.mean(ended + late >= np.floor(made * each)) < MIN_IN_TIME:
        return None
    opened = np.flatnonzero(~is_read & (operations.op[rows] != CLOSE))  # a read begins with its open
    np.minimum.at(begins, number[opened], begins[number[opened]] - (end - start)[opened])
    # Slow storage keeps a thread that reads elsewhere busy, and its buffer empty: it may read a batch beside the loop.
    least = int(each) if elsewhere else 1
    ahead = max(int(np.max(np.searchsorted(np.sort(begins), begin_ns) - (made - 1) * each)), least, 1)
    first = np.full(int(request.max()) + 1, _NEVER)
    np.minimum.at(first, request, number)  # nothing holds a request back that has begun
    after = np.clip(np.ceil((first[request] + 1 - ahead) / each).astype(np.int64) - 1, -1, len(made) - 1)
    batch, taken = _dealt(ends, until, each)[number], None
    left_ns = _unexplained(batch, end, begin_ns, until)
    if left_ns > TELLING * (until[-1] - begin_ns[0]):
        lanes = len(np.unique(operations.lane[rows]))
        whole = _whole_batches(start, end, request, min(threads, lanes), len(made))
        if whole is not None and 2 * _unexplained(whole[1][request], end, begin_ns, until) < left_ns:
            taken, batch = whole[0], whole[1][request]
            begun = np.full(len(made), _NEVER)
            np.minimum.at(begun, batch, start)
            lead = np.searchsorted(np.maximum.accumulate(begun), begin_ns) - np.arange(len(made))
            after = np.maximum(batch - max(int(lead.max()), 1), -1)
    let_ns = begin_ns[np.maximum(after, 0)]
    return Pool(rows=rows, request=request, batch=batch, after=after, let_ns=let_ns, threads=threads, taken=taken)


def asked(pool: Pool, operations: RankOperations, begin_ns: np.ndarray, end_ns: np.ndarray) -> Pool:
    """The pool, whose requests a loop makes when it comes to wait for their batch from begin_ns to end_ns, such as by
    `executor.map` in each step, if nearly all of them begin there; else as it is."""
    begins = np.full(int(pool.request.max()) + 1, _NEVER)
    np.minimum.at(begins, pool.request, operations.start_ns[pool.rows])
    at = np.searchsorted(begin_ns - ASKED_NS, begins, side="right") - 1
    inside = (at >= 0) & (begins <= end_ns[at])
    if np.mean(inside[pool.request] & (at[pool.request] == pool.batch)) < MIN_IN_TIME:
        return pool
    after, turn = np.where(inside, at, -1), np.lexsort((begins, at))
    place = np.empty(len(at), dtype=np.int64)  # of a request among those of its batch
    place[turn] = np.arange(len(at)) - np.searchsorted(at[turn], at[turn])
    threads = min(pool.threads, len(np.unique(operations.lane[pool.rows])))
    after, taken = after[pool.request], place % threads if pool.taken is None else pool.taken
    return replace(pool, after=after, let_ns=begin_ns[np.maximum(after, 0)], taken=taken)


def _whole_batches(
    start: np.ndarray, end: np.ndarray, request: np.ndarray, threads: int, batches: int
) -> tuple[np.ndarray, np.ndarray] | None:
    """Thread and batch of each request if a thread reads all requests of a batch, one after the other; None where there
    are not equally many. A thread goes on with its batch as soon as it has ended a request of it."""
    begins, ends = np.full(int(request.max()) + 1, _NEVER), np.zeros(int(request.max()) + 1, dtype=np.int64)
    np.minimum.at(begins, request, start)
    np.maximum.at(ends, request, end)
    each, rest = divmod(len(begins), batches)
    if threads < 2 or each < 2 or rest:
        return None
    found = np.empty((2, len(begins)), dtype=np.int64)
    free_ns, left, own, following = [0] * threads, [0] * threads, [0] * threads, 0
    for one in np.argsort(begins, kind="stable").tolist():
        free = [thread for thread in range(threads) if free_ns[thread] <= begins[one] + CLOCK_NS]
        if not free:
            return None
        taken = max(free, key=lambda thread: (left[thread] > 0, free_ns[thread]))
        if not left[taken]:
            left[taken], own[taken], following = each, following, following + 1
        left[taken], free_ns[taken] = left[taken] - 1, int(ends[one])
        found[:, one] = taken, own[taken]
    return (found[0], found[1]) if following == batches else None


def _unexplained(batch: np.ndarray, end: np.ndarray, begin_ns: np.ndarray, until_ns: np.ndarray) -> float:
    """How long batches (k,) were waited for after the last of the reads that are dealt to them, in ns; infinite where
    reads ended after their batch."""
    last, some = begin_ns.copy(), batch >= 0
    np.maximum.at(last, batch[some], end[some])
    if np.mean(last <= until_ns) < MIN_IN_TIME:
        return np.inf
    return float(np.maximum(until_ns - last, 0).sum())


def _dealt(ends_ns: np.ndarray, until_ns: np.ndarray, each: float) -> np.ndarray:
    """The batch of each read, in the order of the requests: the first ones that had ended when it was made. Requests
    that wait for a thread or for an open begin in a slightly other order than they are taken."""
    found, waiting, following, missing = np.full(len(ends_ns), -1), list[int](), 0, 0
    ended = ends_ns.tolist()
    for batch, until in enumerate(until_ns.tolist()):
        missing += int((batch + 1) * each) - int(batch * each)
        kept = []
        for read in waiting:
            missing -= (taken := missing > 0 and ended[read] <= until)
            if taken:
                found[read] = batch
            else:
                kept.append(read)
        while missing > 0 and following < len(ended):
            if ended[following] <= until:
                found[following], missing = batch, missing - 1
            else:
                kept.append(following)
            following += 1
        waiting = kept
    return found


def _in_turn(operations: RankOperations, rows: np.ndarray, longest_ns: float) -> tuple[np.ndarray, np.ndarray]:
    """By operation, the number of the read that it is or prepares or ends, and of its request; both in the order in
    which requests began. longest_ns: pause between two reads of a request."""
    order = np.lexsort((operations.start_ns[rows], operations.file_id[rows]))
    op, start, end = (column[rows][order] for column in (operations.op, operations.start_ns, operations.end_ns))
    _, first, file = np.unique(operations.file_id[rows][order], return_index=True, return_inverse=True)
    is_read = op == READ
    reads, opens = (np.bincount(file, weights=op == kind).astype(np.int64) for kind in (READ, OPEN))
    before = np.cumsum(is_read) - is_read
    within = np.clip(before - before[first][file] - (op == CLOSE), 0, np.maximum(reads[file] - 1, 0))
    place = np.minimum(before[first][file] + within, np.count_nonzero(is_read) - 1)
    # As many requests of a file as it was opened times, between its longest pauses. Where threads open side by side,
    # Darshan may count an open for another file.
    of_file, starts = file[is_read], start[is_read]
    pause = np.where(within[is_read] == 0, _NEVER, starts - np.append(0, end[is_read][:-1]))
    longest = np.lexsort((-pause, of_file))
    begins = np.zeros(len(starts), dtype=bool)
    begins[longest] = np.arange(len(starts)) - np.searchsorted(of_file, of_file) < np.maximum(opens, 1)[of_file]
    within_ns = pause[~begins & (pause > 0) & (pause <= longest_ns)]
    if len(within_ns):  # Darshan may count a read of one file, too, for another that a thread beside has just closed
        longest_ns = min(longest_ns, max(longest_ns / PERIODS, UNUSUAL * np.quantile(within_ns, 1.0 - USUAL)))
    begins |= pause > longest_ns
    traced = (operations.origin[rows][order] != RECONSTRUCTED)[is_read]
    apart = ~begins & (pause < 0) & traced & np.append(False, traced[:-1])  # of a file that threads read side by side
    begins |= np.isin(of_file, of_file[apart])
    of_read = np.cumsum(begins) - 1
    turn = np.lexsort((of_read, starts[begins][of_read]))
    number, request = np.empty(len(turn), dtype=np.int64), np.empty(len(turn), dtype=np.int64)
    number[turn] = np.arange(len(turn))
    request[turn] = np.cumsum(begins[turn]) - 1
    found = np.empty((2, len(rows)), dtype=np.int64)
    found[:, order] = number[place], request[place]
    return found[0], found[1]


def spread(pool: Pool, operations: RankOperations) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """int64 (m,), three times: the lane of each operation, and when it began and ended.

    Each thread takes a request in turn: on fast storage one thread may do nearly all work, and on slow storage none
    does. It takes one when it has done another one, so what goes by until the first read is the open, if only counters
    tell of that: Darshan leaves out what opens of one file take side by side. What every request takes is no open.
    """
    request, rows, count = pool.request, pool.rows, int(pool.request.max()) + 1
    op, start, end = operations.op[rows], operations.start_ns[rows].copy(), operations.end_ns[rows].copy()
    counted, lasted = (operations.origin[rows] == RECONSTRUCTED) & ~np.isin(op, (READ, WRITE)), end - start
    begins, ends = np.full(count, _NEVER), np.zeros(count, dtype=np.int64)
    np.minimum.at(begins, request[~counted], start[~counted])
    np.maximum.at(ends, request[~counted], end[~counted])
    behind, before = np.flatnonzero(counted & (op == CLOSE)), np.flatnonzero(counted & (op != CLOSE))
    start[behind] = ends[request[behind]]
    end[behind] = start[behind] + lasted[behind]
    np.maximum.at(ends, request[behind], end[behind])  # an open, whose time is made up, does not keep a thread busy
    lanes = np.unique(operations.lane[rows])[: pool.threads].tolist()
    free_ns = [0] * len(lanes)
    taken, since = np.empty((2, count), dtype=np.int64)
    for one in np.argsort(begins, kind="stable").tolist():
        thread = free_ns.index(min(free_ns)) if pool.taken is None else int(pool.taken[one])
        since[one], taken[one], free_ns[thread] = free_ns[thread], lanes[thread], int(ends[one])
    since = np.where(since > 0, np.minimum(since, begins), begins)
    end[before] = begins[request[before]]
    start[before] = np.maximum(end[before] - lasted[before], since[request[before]])
    opened = before[op[before] == OPEN]
    free_ns, let_ns = since[request[opened]], pool.let_ns[opened]
    waited = (let_ns <= free_ns) & (free_ns < end[opened])
    usual = 0
    if waited.any():
        long = np.quantile(lasted[opened], 1.0 - USUAL)
        usual = max(int(np.quantile((end[opened] - free_ns)[waited], USUAL) - long), 0)
    start[opened] = np.clip(np.maximum(free_ns + usual, let_ns), free_ns, start[opened])
    return taken[request], start, end
