"""Feeds the lanes of a process while they run: batches of items in, results out, and an eye on calls that hang."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from dxt_replay.replay.engine.clock import StartGate, StopFlag
from dxt_replay.replay.engine.issue import Lane, lanes_to_feed
from dxt_replay.replay.engine.items import (
    BATCH_ITEMS,
    MAX_TIME_NS,
    NO_OPEN,
    OPENS,
    OPERATION_ROW,
    RING_BATCHES,
    SLEEP,
    WAIT,
    Completed,
    LoopPace,
    is_operation,
)
from dxt_replay.replay.ranks.stopping import StopRelay, TimeLimit
from dxt_replay.traces.errors import ReplayError
from dxt_replay.traces.schema import OPS
from dxt_replay.traces.text import printable
from dxt_replay.traces.units import NS_PER_MS, NS_PER_S, format_count, ns_to_seconds

REPORT_PERIOD_NS = 50 * NS_PER_MS  # between two reports of progress, each of which looks at every lane
FEED_PERIOD_S, MOST_FEED_PERIOD_S = 0.004, 0.1  # between two rounds: at 1 million/s a full ring lasts 60 ms
STUCK_NS = 10 * NS_PER_S  # time after which lanes that all wait for each other end the run
STOP_PATIENCE_NS = 10 * NS_PER_S  # for the operations in flight after a stop; beyond it they hang, and are left alone
LAST_JOIN_S = 1.0  # in which the lanes may end where the run ends by an error
FEEDER_SHARE = 0.25  # most of a processor that the feeder takes: with thousands of lanes a round lasts tens of ms
REPORT_SHARE = 0.02  # most of a processor that reports of progress take
MOST_TURN_S = 0.001  # the feeder then sleeps within a round: Linux was seen to keep lanes that wait for its processor
# waiting until it does.


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Operations of this process, done and in all. `expected_ns`: recorded duration at the speed of the replay;
    `lag_ns`: of the next operation of the lane that is furthest behind, None without due times."""

    done: int
    total: int
    elapsed_ns: int
    expected_ns: int
    lag_ns: int | None = None


class FedLane:
    """A lane of the issue loop with the source of its items and the recorder of its results. `name`: RANK.LANE.

    `next_rows`: the next items (`PLAN_ROW`), at most BATCH_ITEMS; empty when there are no more.
    `calls_python`: whether it calls a back end in Python.
    `record_items`: results that are recorded together, since each call takes the feeder some 300 us.
    """

    def __init__(
        self,
        loop: Lane,
        name: str,
        next_rows: Callable[[], np.ndarray],
        record: Callable[[Completed], None] = lambda done: None,
        *,
        calls_python: bool = False,
        record_items: int = 1,
    ) -> None:
        self.loop, self.name, self.calls_python = loop, name, calls_python
        self._next_rows, self._record, self._record_items = next_rows, record, record_items
        self._unrecorded: list[Completed] = []
        self._in_flight: deque[np.ndarray] = deque()
        self._collected = self._operations_collected = 0
        self._finished = False

    def pump(self) -> None:
        self.collect()
        while not self._finished and len(self._in_flight) < RING_BATCHES:
            if len(rows := self._next_rows()):
                self.loop.submit(rows)
                self._in_flight.append(rows)
            else:
                self.loop.finish()
                self._finished = True

    def collect(self, *, last: bool = False) -> None:
        """Take the results that there are. `last`: record all of them."""
        while (done := self.loop.collect()) is not None:
            rows = self._in_flight.popleft()[: done.count]
            self._unrecorded.append(done)
            self._collected += done.count
            self._operations_collected += int(np.count_nonzero(is_operation(rows)))
        if self._unrecorded and (last or sum(each.count for each in self._unrecorded) >= self._record_items):
            self._record(Completed.joined(self._unrecorded))
            self._unrecorded = []

    @property
    def operations_done(self) -> int:
        found, place = self._operations_collected, self.loop.items_done - self._collected
        for rows in self._in_flight:
            if place <= 0:
                break
            found += int(np.count_nonzero(is_operation(rows[:place])))
            place -= len(rows)
        return found

    def next_row(self) -> np.ndarray | None:
        """The plan's row (a `PLAN_ROW`) of the lane's current item; None without one, or after the end."""
        place = self.loop.items_done - self._collected
        for rows in () if self.loop.done else tuple(self._in_flight):
            if place < len(rows):
                row: np.ndarray = rows[place]
                return row
            place -= len(rows)
        return None


def rows_of_lane(rows: np.ndarray) -> Callable[[], np.ndarray]:
    """The source of a lane with all items known from the beginning: a training thread, or an input pipeline."""
    batches = iter([rows[at : at + BATCH_ITEMS] for at in range(0, len(rows), BATCH_ITEMS)])
    return lambda: next(batches, rows[:0])


class Feeder:
    """Runs the lanes of a process, each in its thread. The calling thread feeds them.

    `path_of`: slot -> path. `pace`: of all lanes. `total`: operations. `expected_ns`: as of `Progress`.
    `hung`: after `run`, duration in ns and a sentence about the call that does not return; None without one.
    """

    def __init__(
        self,
        lanes: Sequence[FedLane],
        path_of: Callable[[int], bytes],
        gate: StartGate,
        stop: StopFlag,
        pace: LoopPace,
        total: int,
        expected_ns: int,
    ) -> None:
        self.lanes = lanes
        self.hung: tuple[int, str] | None = None
        self._path_of, self._gate, self._stop, self._pace = path_of, gate, stop, pace
        self._total, self._expected_ns = total, expected_ns
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Fill the lanes and start their threads, which wait for the gate.

        Raises: ReplayError when the system refuses a thread.
        """
        for lane in self.lanes:
            lane.pump()
        for lane in self.lanes:  # after all lanes are filled, because waiting threads would slow the filling
            thread = threading.Thread(target=lane.loop.run, name=f"lane-{lane.name}", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                self._stop.set()  # let the started threads end
                raise ReplayError(
                    f"this process needs a thread for each of its {len(self.lanes)} lanes, and the system refused "
                    f"number {len(self._threads) + 1}: raise the limits (ulimit -u, pids.max), start more processes "
                    "or choose fewer ranks (--part ranks=A-B)"
                ) from error
            self._threads.append(thread)

    def run(
        self,
        start_ns: int,
        report_progress: Callable[[Progress], None],
        relay: StopRelay,
        limit: TimeLimit,
        *,
        bound: bool,
        alone: bool,
    ) -> None:
        """Issue all operations; returns when every lane is done or stopped, or hangs (`hung`).

        `start_ns`: the start in ns of CLOCK_MONOTONIC.
        `bound`: lanes may wait for other processes in collective calls, which only the end of the processes can break
            off. Raises: ReplayError at once when such a run is stopped; the caller must then end the other processes.
        `alone`: no other process takes part, whose lanes could end a wait.
        """
        self._gate.open(start_ns)
        next_report_ns, patient_until_ns = 0, MAX_TIME_NS
        next_look_ns = start_ns + STUCK_NS if alone else MAX_TIME_NS
        loops = [lane.loop for lane in self.lanes]
        with self._ended_on_error(join=not bound):
            while any(thread.is_alive() for thread in self._threads):
                rest = _Rest()
                for place in lanes_to_feed(loops):
                    self.lanes[place].pump()
                    rest.within_round()
                relay.heed()
                if (now_ns := time.monotonic_ns()) >= next_report_ns:
                    report_progress(self._progress(now_ns))
                    took_ns = time.monotonic_ns() - now_ns
                    next_report_ns = now_ns + max(REPORT_PERIOD_NS, round(took_ns / REPORT_SHARE))
                if bound and (self._stop.is_set() or limit.expired):
                    ended = limit.message(self._where()[1]) if limit.expired else "the replay was stopped"
                    raise ReplayError(f"{ended} during collective operations; its output was discarded")
                if limit.expired:
                    since_ns, sentence = self._where()
                    self.hung = since_ns, limit.message(sentence)
                elif now_ns >= next_look_ns:
                    next_look_ns = now_ns + STUCK_NS
                    self.hung = self._stuck()
                elif self._stop.is_set():
                    patient_until_ns = min(patient_until_ns, now_ns + STOP_PATIENCE_NS)
                    if now_ns > patient_until_ns:
                        since_ns, sentence = self._where()
                        self.hung = since_ns, f"the replay was stopped, but a call does not return: {sentence}"
                if self.hung is not None:
                    self._stop.set()
                    return
                rest.after_round()
        for lane in self.lanes:
            lane.collect(last=True)  # after a stop, the rest of the plan is not read

    @contextmanager
    def _ended_on_error(self, *, join: bool) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._stop.set()
            until = time.monotonic() + LAST_JOIN_S
            for thread in self._threads if join else ():
                thread.join(max(0.0, until - time.monotonic()))
            raise

    @property
    def operations_done(self) -> int:
        return sum(lane.operations_done for lane in self.lanes)

    def _progress(self, now_ns: int) -> Progress:
        elapsed_ns, lag_ns = now_ns - self._gate.t0_ns, None
        if self._pace is LoopPace.ABSOLUTE:
            due = [int(row["due_ns"]) for lane in self.lanes if (row := lane.next_row()) is not None]
            lag_ns = max(0, elapsed_ns - min(due, default=elapsed_ns))
        return Progress(
            done=self.operations_done,
            total=self._total,
            elapsed_ns=elapsed_ns,
            expected_ns=self._expected_ns,
            lag_ns=lag_ns,
        )

    # ------------------------------------------------------------------------------------------------ what hangs

    def standing(self) -> str | None:
        """A sentence about the operation that has been running longest; None where none hangs."""
        found = self._longest_call()
        return None if found is None else found[1]

    def _where(self) -> tuple[int, str]:
        none = (
            f"{format_count(self.operations_done)} of {format_count(self._total)} operations were done, and none hangs"
        )
        return self._longest_call() or (0, none)

    def _longest_call(self) -> tuple[int, str] | None:
        """Duration in ns of the longest running operation, and a sentence about it."""
        found = [at for lane in self.lanes if (at := self._standing(lane)) is not None]
        calls = sorted(((since_ns, sentence) for in_call, _, since_ns, sentence in found if in_call), reverse=True)
        if not calls:
            return None
        others = f", and {format_count(len(calls) - 1)} other lanes are in one" if len(calls) > 1 else ""
        return calls[0][0], f"{calls[0][1]}{others}"

    def _stuck(self) -> tuple[int, str] | None:
        """STUCK_NS and a sentence, if all lanes have waited for each other for so long that none can ever go on."""
        alive = [lane for lane, thread in zip(self.lanes, self._threads, strict=True) if thread.is_alive()]
        found = [self._standing(lane) for lane in alive]
        if not found or not all(at is not None and at[1] and at[2] >= STUCK_NS for at in found):
            return None
        return STUCK_NS, (
            f"{format_count(len(found))} lanes wait for each other: the causal model contradicts itself. "
            "Replay with --pace timed or think, which need no model"
        )

    def _standing(self, lane: FedLane) -> tuple[bool, bool, int, str] | None:
        """What a lane is executing: whether it is in a call (an operation that was due, or the open before one),
        whether it waits until other lanes have done something, since when (ns ago), and a sentence about it. None for a
        lane that has ended, or that its feeder has not filled."""
        if (row := lane.next_row()) is None:
            return None
        now_ns, begun_ns, kind = time.monotonic_ns(), lane.loop.last_end_ns, int(row["kind"])
        own = row.view(OPERATION_ROW)
        operation = ""
        if kind < SLEEP:
            op = OPS[int(own["op"])]
            operation = f"its {op} of {printable(self._path_of(int(own['slot'])))}"
            if op in ("read", "write"):
                operation += f" (offset {int(own['offset'])}, {format_count(int(own['length']))} bytes)"
        if (opening := lane.loop.opening) != NO_OPEN:
            in_call = opening == OPENS
            item = f"the open before {operation}" if in_call else "a wait for another lane's open"
        else:
            if self._pace is not LoopPace.NONE:
                counted_from_ns = self._gate.t0_ns if self._pace is LoopPace.ABSOLUTE else begun_ns
                begun_ns = max(begun_ns, counted_from_ns + int(row["due_ns"]))
            in_call = kind < SLEEP and now_ns > begun_ns
            item = operation or ("a wait for other lanes" if kind == WAIT else "its compute")
        since_ns = max(0, now_ns - begun_ns)
        rank, _, number = lane.name.partition(".")
        sentence = f"rank {rank}, lane {number} has been in {item} for {ns_to_seconds(since_ns):.1f} s"
        return in_call, opening == NO_OPEN and kind == WAIT, since_ns, sentence


class _Rest:
    """The sleeps of the feeder in and after one round, MOST_FEED_PERIOD_S at most: FEED_PERIOD_S, or what FEEDER_SHARE
    leaves to others."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._left_s = MOST_FEED_PERIOD_S

    def within_round(self) -> None:
        if time.monotonic() - self._began > MOST_TURN_S and self._left_s > 0:
            self._sleep(0)

    def after_round(self) -> None:
        self._sleep(min(FEED_PERIOD_S, self._left_s))

    def _sleep(self, least_s: float) -> None:
        owed_s = (time.monotonic() - self._began) * (1 / FEEDER_SHARE - 1)
        pause_s = max(least_s, min(owed_s, self._left_s))
        time.sleep(pause_s)
        self._left_s -= pause_s
        self._began = time.monotonic()
