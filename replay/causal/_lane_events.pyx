# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# distutils: language = c++
"""The lanes of `replay.causal.events`, compiled.

Only operations whose time comes from a service are events, in the order of time. All other items of a lane are done as
soon as they can be, ahead of the events. So a counter keeps the time of each of its sums, and a lane that waits for a
sum learns when it was reached. A counter forgets sums that were reached before the latest event: no lane asks for them.
"""

import numpy as np

from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t
from libcpp.queue cimport priority_queue
from libcpp.utility cimport pair
from libcpp.vector cimport vector

from dxt_replay.replay.engine.items cimport ADD, SLEEP, SPIN, WAIT

from dxt_replay.replay.engine import clock
from dxt_replay.replay.engine.items import PLAN_ROW

cdef int64_t FIRST_RANK_COUNTER = clock.FIRST_RANK_COUNTER

cdef struct Lane:
    const Item *items
    const int64_t *durations    # NULL: the service gives operations their time
    int64_t *begins             # NULL if unused
    int64_t *ends
    int64_t count
    int64_t at
    int64_t now
    int64_t least               # the sum that it waits for at its counter
    int64_t counter_shift
    int64_t file_shift
    int64_t rank
    bint watched

cdef struct Stamp:
    int64_t reached
    int64_t time

cdef struct Counter:
    int64_t reached
    int64_t time                # of the latest addition
    int64_t forgotten           # highest sum that was reached before every lane's present
    int64_t least               # lowest sum that a lane waits for
    int64_t first               # the first stamp that is not forgotten
    vector[Stamp] stamps
    vector[int32_t] waiting


cdef class Service:
    """A service that times operations; in this base class they take no time."""

    cdef int64_t serve(self, int64_t now, int64_t rank, int64_t file_shift, const Item *item) except -1 nogil:
        """When the operation `item` ends that a rank begins `now`, ns. Called in the order of `now`."""
        return now


cdef class Lanes:
    cdef vector[Lane] lanes
    cdef vector[Counter] counters
    cdef vector[int32_t] ready
    cdef priority_queue[pair[int64_t, int64_t]] events  # minus the time and minus the lane: the least is on top
    cdef int64_t horizon, first_step
    cdef int64_t[::1] served
    cdef Service service
    cdef const uint8_t[:, ::1] class_of
    cdef int64_t[:, ::1] spent
    cdef list kept

    def __init__(self, lanes, service, watch, served):
        cdef Counter none
        none.reached = none.time = none.forgotten = none.first = 0
        none.least = INT64_MAX
        self.kept = []
        self.service, self.served = Service() if service is None else service, served
        if watch is not None:
            self.class_of, self.spent, self.first_step = watch.class_of, watch.spent_ns, watch.first_step
        self.counters.resize(self._placed(lanes, watch is not None), none)

    cdef int64_t _placed(self, lanes, bint watched) except -1:
        """Number of counters that the lanes name."""
        cdef Lane *own
        cdef const Item[::1] rows
        cdef const int64_t[::1] durations
        cdef int64_t[::1] begins, ends
        cdef int64_t number, counters = 0
        cdef dict highest = {}
        self.lanes.resize(len(lanes))
        for number, lane in enumerate(lanes):
            items, times, own = lane.items, lane.times, &self.lanes[number]
            own.count, own.watched = len(items), lane.watched and watched
            own.counter_shift, own.file_shift, own.rank = lane.counter_shift, lane.file_shift, lane.rank
            if own.count:
                rows = items
                own.items = &rows[0]
                if id(items) not in highest:
                    highest[id(items)] = _highest_counter(items)
                counters = max(counters, highest[id(items)] + max(own.counter_shift, 0) + 1)
            if own.count and lane.durations_ns is not None:
                durations = lane.durations_ns
                own.durations = &durations[0]
                if len(durations) != own.count:
                    raise ValueError("a lane needs a duration for each item")
            if own.count and times is not None:
                begins, ends = times.begin_ns, times.end_ns
                own.begins, own.ends = &begins[0], &ends[0]
                if len(begins) != own.count or len(ends) != own.count:
                    raise ValueError("a lane needs room for the times of each item")
            self.kept.append((items, lane.durations_ns, times))
        return counters

    cdef int run(self) except -1 nogil:
        """Run all lanes until each has ended or waits for a sum that nobody adds. Returns 0."""
        cdef pair[int64_t, int64_t] event
        cdef int32_t number
        cdef Lane *lane
        for number in range(<int32_t>self.lanes.size() - 1, -1, -1):
            self.ready.push_back(number)
        while True:
            while not self.ready.empty():
                number = self.ready.back()
                self.ready.pop_back()
                self._go_on(number)
            if self.events.empty():
                return 0
            event = self.events.top()
            self.events.pop()
            self.horizon, number = -event.first, <int32_t>-event.second
            lane = &self.lanes[number]
            self.served[0] += 1
            self._done(
                lane, self.horizon,
                self.service.serve(self.horizon, lane.rank, lane.file_shift, &lane.items[lane.at]),
            )
            self._go_on(number)

    cdef int _go_on(self, int32_t number) except -1 nogil:
        """Do the items of a lane up to an operation for the service, or a wait that has not ended."""
        cdef Lane *lane = &self.lanes[number]
        cdef const Item *item
        cdef Counter *counter
        cdef int64_t begin, end
        while lane.at < lane.count:
            item = &lane.items[lane.at]
            begin = end = lane.now + item.due_ns
            if item.kind == SLEEP or item.kind == SPIN:
                end = begin + item.amount
            elif item.kind == WAIT:
                counter = self._counter(lane, item)
                end = max(begin, _reached(counter, item.amount))
                if end == INT64_MAX:
                    lane.least = item.amount
                    counter.least = min(counter.least, item.amount)
                    counter.waiting.push_back(number)
                    return 0
            elif item.kind == ADD:
                self._add(self._counter(lane, item), item.amount, begin)
            elif lane.durations is not NULL:
                end = begin + lane.durations[lane.at]
            elif item.kind < SLEEP:
                self.events.push(pair[int64_t, int64_t](-begin, -number))
                return 0
            self._done(lane, begin, end)
        return 0

    cdef inline Counter *_counter(self, const Lane *lane, const Item *item) noexcept nogil:
        """The counter of a WAIT or ADD item. Copies of a rank have counters of their own, `counter_shift` later."""
        return &self.counters[item.slot + (lane.counter_shift if item.slot >= FIRST_RANK_COUNTER else 0)]

    cdef inline void _done(self, Lane *lane, int64_t begin, int64_t end) noexcept nogil:
        """Note the times of the current item of a lane, ns, and go on to the next."""
        cdef const Item *item = &lane.items[lane.at]
        cdef int64_t row, steps
        if lane.begins is not NULL:
            lane.begins[lane.at] = begin
            lane.ends[lane.at] = end
        if lane.watched:
            row, steps = item.step - self.first_step, self.spent.shape[0] - 1
            if item.step < 0 or row < 0 or row >= steps:
                row = steps
            self.spent[row, self.class_of[item.kind, (item.code + 1) % self.class_of.shape[1]]] += end - lane.now
        lane.now = end
        lane.at += 1

    cdef int _add(self, Counter *counter, int64_t amount, int64_t now) except -1 nogil:
        """Add to a counter at the time `now`, ns; lanes that waited for the new sum become ready."""
        cdef vector[int32_t] waiting
        cdef int32_t number
        # Lanes are simulated out of time order: a sum is reached at the latest time of the additions in it.
        counter.time = max(counter.time, now)
        counter.reached += amount
        self._forget(counter)
        counter.stamps.push_back(Stamp(reached=counter.reached, time=counter.time))
        if counter.reached < counter.least:
            return 0
        counter.least = INT64_MAX
        waiting.swap(counter.waiting)
        for number in waiting:
            if self.lanes[number].least <= counter.reached:
                self.ready.push_back(number)
            else:
                counter.least = min(counter.least, self.lanes[number].least)
                counter.waiting.push_back(number)
        return 0

    cdef inline void _forget(self, Counter *counter) noexcept nogil:
        """Forget the stamps before the latest event, and free their room when they are half of all."""
        cdef int64_t count = counter.stamps.size()
        while counter.first < count and counter.stamps[counter.first].time <= self.horizon:
            counter.forgotten = counter.stamps[counter.first].reached
            counter.first += 1
        if 2 * counter.first >= count:
            counter.stamps.erase(counter.stamps.begin(), counter.stamps.begin() + counter.first)
            counter.first = 0


cdef int64_t _reached(const Counter *counter, int64_t least) noexcept nogil:
    """When a counter got to `least`; 0 where that was before every lane's present, INT64_MAX where it has not."""
    cdef int64_t low = counter.first, high = <int64_t>counter.stamps.size() - 1, middle
    if least > counter.reached:
        return INT64_MAX
    if least <= counter.forgotten or least <= 0:
        return 0
    while low < high:
        middle = (low + high) >> 1
        if counter.stamps[middle].reached < least:
            low = middle + 1
        else:
            high = middle
    return counter.stamps[low].time


def _highest_counter(items):
    """The highest counter that items name, -1 for none."""
    slots = items["_slot"][items["kind"] >= WAIT]
    if len(slots) and slots.min() < 0:
        raise ValueError("an item names a negative counter")
    return int(slots.max()) if len(slots) else -1


def run(lanes, service, watch, served):
    """Run lanes (`EventLane`s). `served`: int64 (1,), to which served operations are added one by one. Returns when
    each lane ended (int64 ns), and the numbers of the lanes that have items left because they wait for each other.
    Raises: ValueError for lanes of uneven arrays."""
    cdef Lanes placed = Lanes(lanes, service, watch, served)
    cdef int64_t number, count = placed.lanes.size()
    cdef list undone = []
    ends = np.empty(count, dtype=np.int64)
    cdef int64_t[::1] end_ns = ends
    with nogil:
        placed.run()
    for number in range(count):
        end_ns[number] = placed.lanes[number].now
        if placed.lanes[number].at < placed.lanes[number].count:
            undone.append(number)
    return ends, undone
