"""The times of lanes that wait for each other, held to the truth: a formula, and the lanes that run without a clock.

On a virtual clock the Python core comes to the very same times. On the real one both cores may only be later, each wait
ends when the additions that it waited for were made, and what follows lasts as long as it should.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dxt_replay.replay.causal.lane_events import EventLane, LaneTimes, StuckLanesError, run_lanes
from dxt_replay.replay.engine.backends.base import FileSlot, PythonFiles
from dxt_replay.replay.engine.backends.null import NullBackend
from dxt_replay.replay.engine.clock import StartGate, StopFlag
from dxt_replay.replay.engine.issue import PythonLane, make_files, make_lane
from dxt_replay.replay.engine.items import ADD, MARK, READ_AT, SLEEP, WAIT, Completed, LoopPace
from dxt_replay.replay.engine.wait_counters import ARRIVALS, COUNTER_STAMPS, FIRST_RANK_COUNTER
from dxt_replay.replay.plan.plan_row import PLAN_ROW, Add, Gap, Mark, Wait, batch_of, operation_rows, rows_of_each
from tests.replay.engine.issue_lanes import counters_of, started
from tests.replay.engine.lanes_clock import LanesClock, without_spinning

START_NS = 1_000
NEVER = math.inf
MOST_LANES = 5
COUNTERS = FIRST_RANK_COUNTER + MOST_LANES

Times = list[list[tuple[int, int]]]
"""By lane, begin and end of each item that was done, in ns from the start."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some items of a lane before they are rows: what they are, and how long after the item before they are due."""

    what: str
    due: int
    amount: int
    counter: int


pieces = st.builds(
    Piece,
    what=st.sampled_from(["wait", "wait", "add", "add", "gap", "read", "mark", "meet"]),
    due=st.integers(0, 20),
    amount=st.one_of(st.integers(0, 9), st.integers(0, 50), st.integers(1, 5_000)),
    counter=st.integers(0, MOST_LANES - 1),
)


@st.composite
def plans(draw: st.DrawFn, *, one_adder: bool = True) -> list[np.ndarray]:
    """Lanes of one rank as `PLAN_ROW`s. They may be stuck.

    A piece "meet" is an arrival at a collective, which ends when all lanes have arrived.
    one_adder: whether lane i alone adds to counter i, as in the plans of the pace `steps`.
    """
    lanes = draw(st.lists(st.lists(pieces, max_size=12), min_size=1, max_size=MOST_LANES))
    multiples = draw(st.lists(st.integers(1, 4), min_size=COUNTERS, max_size=COUNTERS))
    meetings = min(sum(piece.what == "meet" for piece in lane) for lane in lanes)
    added = [0] * COUNTERS
    for number, lane in enumerate(lanes):
        for piece in lane:
            added[_counter(piece, number, one_adder)] += piece.amount if piece.what == "add" else 0
    return [_rows(lane, number, len(lanes), meetings, multiples, added, one_adder) for number, lane in enumerate(lanes)]


def _counter(piece: Piece, lane: int, one_adder: bool) -> int:
    return FIRST_RANK_COUNTER + (lane if one_adder and piece.what == "add" else piece.counter)


def _rows(
    lane: Sequence[Piece],
    number: int,
    lanes: int,
    meetings: int,
    multiples: Sequence[int],
    added: Sequence[int],
    one_adder: bool,
) -> np.ndarray:
    """The rows of a lane. It waits for nothing beyond what is ever added, and comes to as many meetings as all do."""
    rows, met = [np.zeros(0, dtype=PLAN_ROW)], 0
    for piece in lane:
        counter = _counter(piece, number, one_adder)
        multiple = multiples[counter]
        if piece.what == "wait":
            until = piece.amount % (added[counter] // multiple + 1) * multiple
            rows.append(rows_of_each([Wait(counter=counter, until=until, multiple=multiple, due_ns=piece.due)]))
        elif piece.what == "add":
            rows.append(rows_of_each([Add(counter=counter, amount=piece.amount, multiple=multiple, due_ns=piece.due)]))
        elif piece.what == "meet" and met < meetings:
            met += 1
            arrival = Add(counter=ARRIVALS, multiple=lanes, due_ns=piece.due)
            rows.append(rows_of_each([arrival, Wait(counter=ARRIVALS, until=met * lanes, multiple=lanes)]))
        elif piece.what == "gap":
            rows.append(rows_of_each([Gap(kind=SLEEP, duration_ns=piece.amount % 50, due_ns=piece.due)]))
        elif piece.what == "read":
            zero = np.zeros(1, dtype=np.int64)
            read = operation_rows(
                op=zero + 2, api=0, origin=0, slot=zero, file_id=zero, step=0, offset=zero, length=piece.amount % 50
            )
            read["due_ns"] = piece.due
            rows.append(read)
        else:
            rows.append(rows_of_each([Mark(is_end=0, due_ns=piece.due)]))
    return np.concatenate(rows)


def by_formula(plan: Sequence[np.ndarray]) -> Times:
    """The truth, from its definition alone: ends come down from infinity until nothing changes any more.

    A lane that is stuck never does its next item: what only waits for itself stays at infinity.
    """
    times = [[(NEVER, NEVER)] * len(rows) for rows in plan]
    while True:
        additions = [
            (begin, int(row["_slot"]), int(row["_amount"]))
            for rows, lane in zip(plan, times, strict=True)
            for row, (begin, _) in zip(rows, lane, strict=True)
            if row["kind"] == ADD
        ]
        found = [_ends(rows, additions) for rows in plan]
        if found == times:
            return [[(int(begin), int(end)) for begin, end in lane if end < NEVER] for lane in times]
        times = found


def _ends(rows: np.ndarray, additions: Sequence[tuple[float, int, int]]) -> list[tuple[float, float]]:
    """The times of a lane where others add at these times."""
    now, times = 0.0, []
    for kind, counter, amount, due in rows[["kind", "_slot", "_amount", "due_ns"]].tolist():
        begin = end = now + due
        if kind == WAIT:
            end = max(begin, when_reached(additions, counter, amount))
        elif kind not in (ADD, MARK):
            end = begin + amount
        times.append((begin, end))
        now = end
    return times


def when_reached(additions: Sequence[tuple[float, int, int]], counter: int, least: int) -> float:
    """The earliest time by which additions (time, counter, amount) come to at least this; NEVER where they do not."""
    total = 0
    if least <= 0:
        return -NEVER
    for time, _, amount in sorted(each for each in additions if each[1] == counter):
        total += amount
        if total >= least:
            return time
    return NEVER


class VirtualReads(NullBackend):
    """Each read takes as many ns of the lanes' clock as it has bytes."""

    def __init__(self, clock: LanesClock) -> None:
        self._clock = clock

    def read(self, handle: object, offset: int, length: int, buffer: memoryview) -> int:
        if length:
            self._clock.sleep_until(self._clock.now() + length)
        return length


def by_issue_loop(plan: Sequence[np.ndarray]) -> Times:
    """The Python core on a virtual clock."""
    counters, stop, start = counters_of(COUNTERS), StopFlag(), StartGate()
    clock = LanesClock(START_NS, news=lambda: counters.cells[:, 0].tolist(), stuck=stop.set)
    files = PythonFiles([FileSlot(path=b"null")], VirtualReads(clock))
    start.open(START_NS)
    lanes = [
        PythonLane(files, pace=LoopPace.THINK, start=start, stop=stop, counters=counters, clock=clock) for _ in plan
    ]
    for lane, rows in zip(lanes, plan, strict=True):
        for some in np.array_split(rows, 2):  # two batches: the lane's time goes on from one to the next
            if len(some):
                lane.submit(batch_of(some))
        lane.finish()
    with without_spinning():
        clock.run([lane.run for lane in lanes])
    return [times_of(list(iter(lane.collect, None))) for lane in lanes]


def times_of(batches: Sequence[Completed]) -> Times:
    return [pair for done in batches for pair in zip(done.begin_ns.tolist(), done.end_ns.tolist(), strict=True)]


def by_lane_events(plan: Sequence[np.ndarray]) -> Times:
    """Lanes that run without a clock."""
    lanes = [
        EventLane(
            items=rows,
            durations_ns=np.where(rows["kind"] == READ_AT, rows["_amount"], 0),
            times=LaneTimes(begin_ns=np.full(len(rows), -1), end_ns=np.full(len(rows), -1)),
        )
        for rows in plan
    ]
    with contextlib.suppress(StuckLanesError):
        run_lanes(lanes)
    pairs = [zip(lane.times.begin_ns.tolist(), lane.times.end_ns.tolist(), strict=True) for lane in lanes]
    return [[pair for pair in times if pair[0] >= 0] for times in pairs]


@given(plan=plans())
def test_the_issue_loop_and_the_lanes_without_a_clock_come_to_the_true_times(plan) -> None:
    assert by_issue_loop(plan) == by_lane_events(plan) == by_formula(plan)


@given(plan=plans(one_adder=False))
def test_additions_of_several_lanes_count_from_when_they_are_made(plan) -> None:
    assert by_issue_loop(plan) == by_formula(plan)


UNIT_NS = 20_000
"""How long one ns of a plan is on the real clock."""


def on_the_real_clock(plan: Sequence[np.ndarray], core: str) -> list[Completed]:
    """The lanes of a plan in threads, slower by UNIT_NS. Reads take no time."""
    start, counters = started(), counters_of(COUNTERS)
    files = make_files([FileSlot(path=b"null")], backend=NullBackend(), core=core)
    lanes = [make_lane(files, pace=LoopPace.THINK, start=start, stop=StopFlag(), counters=counters) for _ in plan]
    for lane, rows in zip(lanes, plan, strict=True):
        lane.submit(batch_of(rows))
        lane.finish()
    threads = [threading.Thread(target=lane.run) for lane in lanes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [next(iter(lane.collect, None)) for lane in lanes]


@pytest.fixture(name="every_core", params=["python", "compiled"], scope="module")
def every_core_fixture(request):
    """As `core`, once for all examples."""
    return request.param


@settings(max_examples=40)
@given(plan=plans())
def test_on_the_real_clock_nothing_is_too_early_and_waits_end_with_what_they_waited_for(every_core, plan) -> None:
    plan = [rows[rows["kind"] != READ_AT] for rows in plan]
    truth = by_formula(plan)
    assume(all(plan_rows.size for plan_rows in plan))
    assume([len(rows) for rows in plan] == [len(times) for times in truth])  # no lane is stuck
    slowed = []
    for rows in plan:
        slow = rows.copy()
        slow["due_ns"] *= UNIT_NS
        slow["_amount"][rows["kind"] == SLEEP] *= UNIT_NS
        slowed.append(slow)
    done = on_the_real_clock(slowed, every_core)
    additions = [
        (begin, counter, amount)
        for rows, lane in zip(slowed, done, strict=True)
        for kind, counter, amount, begin in zip(
            rows["kind"].tolist(), rows["_slot"].tolist(), rows["_amount"].tolist(), lane.begin_ns.tolist(), strict=True
        )
        if kind == ADD
    ]
    for rows, lane, times in zip(slowed, done, truth, strict=True):
        assert (lane.end_ns >= UNIT_NS * np.array(times)[:, 1]).all()
        sleeps = rows["kind"] == SLEEP
        assert (lane.end_ns >= lane.due_ns + np.where(sleeps, rows["_amount"], 0)).all()
        assert (lane.end_ns[:-1] <= lane.begin_ns[1:]).all()
        for place in np.flatnonzero(rows["kind"] == WAIT).tolist():
            row = rows[place]
            counter, until, multiple = int(row["_slot"]), int(row["_amount"]), int(row["_place"])
            reached = max(int(lane.begin_ns[place]), when_reached(additions, counter, until))
            if is_remembered(additions, counter, until, multiple):
                assert lane.end_ns[place] == reached
            else:
                assert lane.end_ns[place] >= reached


def is_remembered(additions: Sequence[tuple[float, int, int]], counter: int, least: int, multiple: int) -> bool:
    """Whether a counter still knows at the end of all when it reached a sum: a wait for that sum then ends exactly."""
    amounts = [amount for _, number, amount in sorted(additions) if number == counter]
    units = sum(amounts) // multiple - least // multiple
    return units <= COUNTER_STAMPS - 2 or sum(amounts[:-1]) < least
