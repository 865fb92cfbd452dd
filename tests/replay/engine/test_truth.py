"""Times and results of random plans, held to the truth: formulas, a model of sizes, and lanes without a clock."""

import contextlib
import errno
import math
import os

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dxt_replay.replay.causal.events import EventLane, LaneTimes, StuckLanesError, run_lanes
from dxt_replay.replay.engine.clock import ARRIVALS, COUNTER_STAMPS, FIRST_RANK_COUNTER, Counters, StopFlag
from dxt_replay.replay.engine.files import FileSlot
from dxt_replay.replay.engine.issue import Files, Lane
from dxt_replay.replay.engine.items import (
    ADD,
    CLOSE,
    MARK,
    OPEN,
    READ_AT,
    RENAME,
    SEEK,
    SLEEP,
    SPIN,
    STAT,
    SYNC,
    WAIT,
    WRITE_AT,
    LoopPace,
)
from dxt_replay.replay.engine.limits import check_direct
from dxt_replay.traces.errors import TargetError
from tests.examples import examples
from tests.fakes import PythonPosix, make_batch
from tests.replay.engine.issue_lanes import open_paths, run_lane, run_together, started

NEVER = math.inf
MOST_LANES = 5
COUNTERS = FIRST_RANK_COUNTER + MOST_LANES

Times = list[list[tuple[int, int]]]
"""By lane, begin and end of each item that was done, in ns from the start."""


pieces = st.tuples(
    st.sampled_from(["wait", "wait", "add", "add", "gap", "read", "mark", "meet"]),
    st.integers(0, 20),
    st.one_of(st.integers(0, 9), st.integers(0, 50), st.integers(1, 5_000)),
    st.integers(0, MOST_LANES - 1),
)
"""Items of a lane before they are rows: what they are, how long after the item before they are due, amount, counter."""


@st.composite
def plans(draw):
    """Lanes of one rank as `PLAN_ROW`s, of which lane i alone adds to counter i. They may be stuck.

    A piece "meet" is an arrival at a collective, which ends when all lanes have arrived. A lane waits for nothing
    beyond what is ever added, and comes to as many meetings as all do.
    """
    lanes = draw(st.lists(st.lists(pieces, max_size=12), min_size=1, max_size=MOST_LANES))
    multiples = draw(st.lists(st.integers(1, 4), min_size=MOST_LANES, max_size=MOST_LANES))
    meetings = min(sum(what == "meet" for what, *_ in lane) for lane in lanes)
    added = [sum(amount for what, _, amount, _ in lane if what == "add") for lane in lanes] + [0] * MOST_LANES
    everything = []
    for number, lane in enumerate(lanes):
        rows, met = list[tuple[int, ...]](), 0
        for what, due, amount, other in lane:
            counter = number if what == "add" else other
            multiple, cell = multiples[counter], FIRST_RANK_COUNTER + counter
            if what == "wait":
                rows.append((WAIT, cell, multiple, amount % (added[counter] // multiple + 1) * multiple, due))
            elif what == "add":
                rows.append((ADD, cell, multiple, amount, due))
            elif what == "meet" and met < meetings:
                met += 1
                rows += [(ADD, ARRIVALS, len(lanes), 1, due), (WAIT, ARRIVALS, len(lanes), met * len(lanes))]
            else:
                kind = {"gap": SLEEP, "read": READ_AT}.get(what, MARK)
                rows.append((kind, 0, 0, amount % 50 if kind != MARK else 0, due))
        everything.append(make_batch(*rows))
    return everything


def by_formula(plan):
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


def _ends(rows, additions):
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


def when_reached(additions, counter, least):
    """The earliest time by which additions (time, counter, amount) come to at least this; NEVER where they do not."""
    total = 0
    if least <= 0:
        return -NEVER
    for time, _, amount in sorted(each for each in additions if each[1] == counter):
        total += amount
        if total >= least:
            return time
    return NEVER


def by_lane_events(plan):
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
def test_the_lanes_without_a_clock_come_to_the_true_times(plan):
    assert by_lane_events(plan) == by_formula(plan)


UNIT_NS = 20_000
"""How long one ns of a plan is on the real clock."""


def on_the_real_clock(plan):
    """The lanes of a plan in threads, slower by UNIT_NS. Reads take no time."""
    start, counters = started(), Counters.of(COUNTERS)
    files = Files([FileSlot(path=b"null")], "null")
    lanes = [Lane(files, pace=LoopPace.THINK, start=start, stop=StopFlag(), counters=counters) for _ in plan]
    for lane, rows in zip(lanes, plan, strict=True):
        lane.submit(rows)
    run_together(*lanes)
    return [next(iter(lane.collect, None)) for lane in lanes]


@settings(max_examples=examples(40))
@given(plan=plans())
def test_on_the_real_clock_nothing_is_too_early_and_waits_end_with_what_they_waited_for(plan):
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
    done = on_the_real_clock(slowed)
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
            counter, until, multiple = (int(rows[name][place]) for name in ("_slot", "_amount", "_place"))
            reached = max(int(lane.begin_ns[place]), when_reached(additions, counter, until))
            if is_remembered(additions, counter, until, multiple):
                assert lane.end_ns[place] == reached
            else:
                assert lane.end_ns[place] >= reached


def is_remembered(additions, counter, least, multiple):
    """Whether a counter still knows at the end of all when it reached a sum: a wait for that sum then ends exactly."""
    amounts = [amount for _, number, amount in sorted(additions) if number == counter]
    units = sum(amounts) // multiple - least // multiple
    return units <= COUNTER_STAMPS - 2 or sum(amounts[:-1]) < least


SLOTS = st.integers(-1, 4)
LENGTHS = st.one_of(st.integers(1, 300), st.sampled_from([4096, 5000, 70_000, -1]))
OFFSETS = st.one_of(st.integers(0, 20_000), st.just(-3))
ITEMS = st.one_of(
    st.tuples(st.sampled_from([READ_AT, WRITE_AT]), SLOTS, OFFSETS, LENGTHS, st.integers(-100, 20_000)),
    st.tuples(st.sampled_from([SLEEP, SPIN, MARK]), st.just(-1), st.just(0), st.integers(-5, 20_000), st.just(0)),
    st.tuples(st.sampled_from([OPEN, CLOSE, STAT, SYNC, SEEK]), SLOTS, OFFSETS, st.just(0), st.integers(0, 9_000)),
    st.tuples(st.just(RENAME), SLOTS, SLOTS, st.just(0), st.just(0)),
)
PLANS = st.lists(st.lists(ITEMS, min_size=1, max_size=12), min_size=1, max_size=4)
BACKENDS = st.one_of(
    st.sampled_from(["posix", "direct", "stdio", PythonPosix()]),
    st.lists(st.sampled_from(["posix", "stdio", PythonPosix()]), min_size=4, max_size=4),
)
WRITABLE = (True, False, True, True)
CREATED = 3


class Sizes:
    """What each operation gives, from the sizes of the files by slot; None for one that does not exist."""

    def __init__(self, sizes):
        self.sizes = sizes

    def result(self, kind, slot, place, amount):
        if kind >= SLEEP:
            return 0
        if not 0 <= slot < len(self.sizes):
            return -errno.EBADF
        if kind == RENAME:
            return self._rename(slot, place)
        if kind == SEEK and place < 0:
            return -errno.EINVAL
        if kind != STAT and self.sizes[slot] is None and slot == CREATED:
            self.sizes[slot] = 0
        size = self.sizes[slot]
        if size is None:
            return -errno.ENOENT
        if kind > WRITE_AT:
            return 0
        if place < 0 or amount < 0:
            return -errno.EINVAL
        if kind == READ_AT:
            return max(0, min(amount, size - place))
        if not WRITABLE[slot]:
            return -errno.EBADF
        self.sizes[slot] = max(size, place + amount)
        return amount

    def _rename(self, slot, new):
        if not 0 <= new < len(self.sizes):
            return -errno.EBADF
        if not (WRITABLE[slot] and WRITABLE[new]):
            return -errno.EROFS
        if self.sizes[slot] is None:
            return -errno.ENOENT
        if new != slot:
            self.sizes[new], self.sizes[slot] = self.sizes[slot], None
        return 0


@settings(max_examples=examples(150))
@given(
    plan=PLANS,
    pace=st.sampled_from(list(LoopPace)),
    uses=st.lists(st.integers(0, 12), min_size=4, max_size=4),
    backends=BACKENDS,
)
def test_operations_give_what_the_sizes_say(tmp_path_factory, plan, pace, uses, backends):
    folder = tmp_path_factory.mktemp("plans")
    if backends == "direct":
        try:
            check_direct(folder, [])
        except TargetError as error:
            pytest.skip(str(error))
    model = Sizes([0, 100, 9_000, None])
    paths = [folder / f"f{index}" for index in range(4)]
    for path, size in zip(paths, model.sizes, strict=True):
        if size is not None:
            path.write_bytes(np.random.default_rng(size).bytes(size))
    slots = [
        FileSlot(path=bytes(path), writable=writable, create=index == CREATED, uses=count)
        for index, (path, writable, count) in enumerate(zip(paths, WRITABLE, uses, strict=True))
    ]
    files = Files(slots, backends)
    assert len(files) == len(slots)
    completed, lane = run_lane(files, *(make_batch(*items) for items in plan), pace=pace)
    files.close_all()
    assert [path for path in open_paths() if path.startswith(bytes(folder))] == []
    expected = [[model.result(*item[:4]) for item in items] for items in plan]
    assert [done.result.tolist() for done in completed] == expected
    assert [path.stat().st_size if os.path.exists(path) else None for path in paths] == model.sizes
    assert lane.items_done == sum(map(len, plan))
    for items, done in zip(plan, completed, strict=True):
        assert np.all(done.begin_ns >= done.due_ns)
        assert np.all(done.end_ns >= done.begin_ns)
        assert np.all(done.begin_ns[1:] >= done.end_ns[:-1])
        if pace is LoopPace.NONE:
            assert np.array_equal(done.due_ns, done.begin_ns)
        if pace is LoopPace.ABSOLUTE:
            assert done.due_ns.tolist() == [item[4] for item in items]
