# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The compiled core of `replay.causal.lane_events`, which says what it does: the same lanes, the same times.

Only operations that a service gives their time are events. All other items of a lane are done as soon as they can be,
ahead of the events: whoever waits for a counter learns when it got there. A counter remembers this for as long as a
lane may still ask, that is, since the latest event.
"""

import numpy as np

from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free, malloc, realloc

from dxt_replay.replay.engine.items cimport ADD, SLEEP, SPIN, WAIT, Item

from dxt_replay.replay.engine.items import PLAN_ROW

cdef enum:
    C_KINDS = 13
    C_CODES = 32
    NOBODY = -1

CONSTANTS = {
    "KINDS": C_KINDS,
    "CODES": C_CODES,
}

cdef struct Stamp:
    int64_t reached
    int64_t time

cdef struct Counter:
    int64_t reached
    int64_t time          # of the latest addition
    int64_t forgotten     # highest sum that was reached before every lane's present
    int64_t least         # lowest sum that a lane waits for
    Stamp *stamps         # a ring of `room`, a power of two
    int64_t first
    int64_t held
    int64_t room
    int32_t waiting       # first of the lanes that wait

cdef struct Event:
    int64_t time
    int64_t lane

cdef int64_t NEVER = 0x7FFFFFFFFFFFFFFF


cdef class Service:
    """What gives operations their time; this one gives them none."""

    cdef int64_t serve(self, int64_t now, const Lane *lane, const Item *item) noexcept nogil:
        """When an operation ends that begins now; negative where memory ran out."""
        return now


cdef class CompiledLanes:
    """See `replay.causal.lane_events.run_lanes`."""

    cdef Lane *lanes
    cdef Counter *counters
    cdef Event *heap
    cdef int64_t lane_count, counter_count, heaped, horizon, events
    cdef int64_t first_shared
    cdef int32_t ready
    cdef bint out_of_memory
    cdef list kept
    cdef Service service
    cdef const uint8_t[::1] class_of
    cdef int64_t[:, ::1] spent
    cdef int64_t first_step

    def __cinit__(self, lanes, service, watch, int64_t first_rank_counter):
        cdef int64_t number
        self.kept = []
        self.first_shared = first_rank_counter
        self.service = Service() if service is None else service
        self.lane_count = len(lanes)
        self.lanes = <Lane *>calloc(max(self.lane_count, 1), sizeof(Lane))
        self.heap = <Event *>malloc(max(self.lane_count, 1) * sizeof(Event))
        if self.lanes is NULL or self.heap is NULL:
            raise MemoryError
        if watch is not None:
            self.class_of, self.spent, self.first_step = watch.class_of, watch.spent_ns, watch.first_step
            if len(self.class_of) != C_KINDS * C_CODES:
                raise ValueError(f"class_of is not uint8[{C_KINDS * C_CODES}]")
        self._place(lanes, watch is not None)
        self.counters = <Counter *>calloc(max(self.counter_count, 1), sizeof(Counter))
        if self.counters is NULL:
            raise MemoryError
        for number in range(self.counter_count):
            self.counters[number].waiting = NOBODY
            self.counters[number].least = NEVER

    def __dealloc__(self):
        cdef int64_t number
        if self.counters is not NULL:
            for number in range(self.counter_count):
                free(self.counters[number].stamps)
        free(self.counters)
        free(self.lanes)
        free(self.heap)

    cdef _place(self, lanes, bint watched):
        cdef Lane *own
        cdef const uint8_t[::1] raw
        cdef const int64_t[::1] durations
        cdef int64_t[::1] begins, ends
        cdef int64_t number
        cdef dict highest = {}
        for number, lane in enumerate(lanes):
            own = &self.lanes[number]
            items = lane.items
            own.count = len(items)
            own.counter_shift, own.rank, own.file_shift = lane.counter_shift, lane.rank, lane.file_shift
            own.watched = lane.watched and watched
            if own.count:
                if items.dtype != PLAN_ROW or not items.flags.c_contiguous:
                    raise ValueError("the items of a lane are not contiguous PLAN_ROWs")
                raw = items.view(np.uint8)
                own.items = <const Item *>&raw[0]
                if id(items) not in highest:
                    highest[id(items)] = _highest_counter(items)
                self.counter_count = max(self.counter_count, highest[id(items)] + max(own.counter_shift, 0) + 1)
                if lane.durations_ns is not None:
                    durations = lane.durations_ns
                    if len(durations) != own.count:
                        raise ValueError("a lane needs a duration for each item")
                    own.durations = &durations[0]
                    self.kept.append(lane.durations_ns)
            self.kept.append(items)
            if lane.times is not None:
                begins, ends = lane.times.begin_ns, lane.times.end_ns
                if len(begins) != own.count or len(ends) != own.count:
                    raise ValueError("a lane needs room for the times of each item")
                if own.count:
                    own.begins, own.ends = &begins[0], &ends[0]
                self.kept.append(lane.times)

    def run(self):
        """Do all items; bool: whether none was left."""
        cdef int64_t number
        with nogil:
            self.ready = NOBODY
            for number in range(self.lane_count - 1, -1, -1):
                self.lanes[number].next = self.ready
                self.ready = <int32_t>number
            self._run()
        if self.out_of_memory:
            raise MemoryError
        for number in range(self.lane_count):
            if self.lanes[number].at < self.lanes[number].count:
                return False
        return True

    def undone(self):
        """The numbers of the lanes that have items left."""
        return [number for number in range(self.lane_count) if self.lanes[number].at < self.lanes[number].count]

    def end_ns(self):
        """When each lane ended, int64 (n,)."""
        found = np.empty(self.lane_count, dtype=np.int64)
        cdef int64_t[::1] ends = found
        cdef int64_t number
        for number in range(self.lane_count):
            ends[number] = self.lanes[number].now
        return found

    @property
    def served(self):
        """Operations that the service was asked for."""
        return self.events

    cdef void _run(self) noexcept nogil:
        cdef int32_t number
        cdef Event event
        while not self.out_of_memory:
            while self.ready != NOBODY:
                number = self.ready
                self.ready = self.lanes[number].next
                self._go_on(number)
            if not self.heaped:
                return
            event = self.heap[0]
            self._pop()
            self.horizon = event.time
            self._serve(<int32_t>event.lane, event.time)

    cdef void _serve(self, int32_t number, int64_t begin) noexcept nogil:
        """Do the operation that a lane has come to, and go on."""
        cdef Lane *lane = &self.lanes[number]
        cdef int64_t end = self.service.serve(begin, lane, &lane.items[lane.at])
        self.events += 1
        if end < begin:
            self.out_of_memory = True
            return
        self._done(lane, begin, end)
        self._go_on(number)

    cdef void _go_on(self, int32_t number) noexcept nogil:
        cdef Lane *lane = &self.lanes[number]
        cdef const Item *item
        cdef int64_t begin, end
        cdef int kind
        while lane.at < lane.count:
            item = &lane.items[lane.at]
            kind = item.kind
            begin = end = lane.now + item.due_ns
            if kind == SLEEP or kind == SPIN:
                end = begin + item.amount
            elif kind == WAIT:
                end = self._reached(self._counter(lane, item), item.amount)
                if end < 0:
                    self._wait(number, self._counter(lane, item), item.amount)
                    return
                end = max(end, begin)
            elif kind == ADD:
                self._add(self._counter(lane, item), item.amount, begin)
            elif lane.durations is not NULL:
                end = begin + lane.durations[lane.at]
            elif kind < SLEEP:
                self._push(begin, number)
                return
            self._done(lane, begin, end)

    cdef inline Counter *_counter(self, const Lane *lane, const Item *item) noexcept nogil:
        return &self.counters[item.slot + (lane.counter_shift if item.slot >= self.first_shared else 0)]

    cdef inline void _done(self, Lane *lane, int64_t begin, int64_t end) noexcept nogil:
        cdef const Item *item = &lane.items[lane.at]
        cdef int64_t row
        if lane.begins is not NULL:
            lane.begins[lane.at] = begin
            lane.ends[lane.at] = end
        if lane.watched:
            row = item.step - self.first_step
            if item.step < 0 or row < 0 or row >= self.spent.shape[0] - 1:
                row = self.spent.shape[0] - 1
            self.spent[row, self.class_of[item.kind * C_CODES + ((item.code + 1) & (C_CODES - 1))]] += end - lane.now
        lane.now = end
        lane.at += 1

    cdef int64_t _reached(self, Counter *counter, int64_t least) noexcept nogil:
        """When a counter got to `least`; 0 where that was before every lane's present, negative where it has not."""
        cdef int64_t low, high, middle
        if least > counter.reached:
            return -1
        if least <= counter.forgotten or least <= 0:
            return 0
        low, high = 0, counter.held - 1
        while low < high:
            middle = (low + high) >> 1
            if counter.stamps[(counter.first + middle) & (counter.room - 1)].reached < least:
                low = middle + 1
            else:
                high = middle
        return counter.stamps[(counter.first + low) & (counter.room - 1)].time

    cdef void _wait(self, int32_t number, Counter *counter, int64_t least) noexcept nogil:
        cdef Lane *lane = &self.lanes[number]
        lane.least = least
        lane.next = counter.waiting
        counter.waiting = number
        counter.least = min(counter.least, least)

    cdef void _add(self, Counter *counter, int64_t amount, int64_t now) noexcept nogil:
        cdef Stamp *stamp
        cdef int32_t number, following
        # Additions of several lanes are met out of order; a sum is there when the last of them is.
        counter.time = max(counter.time, now)
        counter.reached += amount
        while counter.held and counter.stamps[counter.first].time <= self.horizon:
            counter.forgotten = counter.stamps[counter.first].reached
            counter.first = (counter.first + 1) & (counter.room - 1)
            counter.held -= 1
        if counter.held == counter.room and not self._grown(counter):
            self.out_of_memory = True
            return
        stamp = &counter.stamps[(counter.first + counter.held) & (counter.room - 1)]
        stamp.reached = counter.reached
        stamp.time = counter.time
        counter.held += 1
        if counter.reached < counter.least:
            return
        number = counter.waiting
        counter.waiting, counter.least = NOBODY, NEVER
        while number != NOBODY:
            following = self.lanes[number].next
            if self.lanes[number].least <= counter.reached:
                self.lanes[number].next = self.ready
                self.ready = number
            else:
                self._wait(number, counter, self.lanes[number].least)
            number = following

    cdef bint _grown(self, Counter *counter) noexcept nogil:
        cdef int64_t room = max(4, 2 * counter.room), at
        cdef Stamp *larger = <Stamp *>malloc(room * sizeof(Stamp))
        if larger is NULL:
            return False
        for at in range(counter.held):
            larger[at] = counter.stamps[(counter.first + at) & (counter.room - 1)]
        free(counter.stamps)
        counter.stamps, counter.first, counter.room = larger, 0, room
        return True

    cdef void _push(self, int64_t time, int64_t lane) noexcept nogil:
        cdef int64_t at = self.heaped, parent
        self.heaped += 1
        while at:
            parent = (at - 1) >> 2
            if not _before(time, lane, &self.heap[parent]):
                break
            self.heap[at] = self.heap[parent]
            at = parent
        self.heap[at].time, self.heap[at].lane = time, lane

    cdef void _pop(self) noexcept nogil:
        """Remove the first event; a heap of four children, which is flatter than one of two."""
        cdef Event last
        cdef int64_t at = 0, child, least, until
        self.heaped -= 1
        last = self.heap[self.heaped]
        while True:
            child = 4 * at + 1
            if child >= self.heaped:
                break
            least, until = child, min(child + 4, self.heaped)
            for child in range(least + 1, until):
                if _before(self.heap[child].time, self.heap[child].lane, &self.heap[least]):
                    least = child
            if not _before(self.heap[least].time, self.heap[least].lane, &last):
                break
            self.heap[at] = self.heap[least]
            at = least
        self.heap[at] = last


cdef inline bint _before(int64_t time, int64_t lane, const Event *other) noexcept nogil:
    return time < other.time or (time == other.time and lane < other.lane)


def _highest_counter(items):
    """The highest counter that items name, -1 for none."""
    of_counters = items["kind"] >= WAIT
    slots = items["_slot"][of_counters]
    if len(slots) and slots.min() < 0:
        raise ValueError("an item names a negative counter")
    return int(slots.max()) if len(slots) else -1
