# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The compiled core of `replay.engine.issue` and `replay.engine.jitter`: the same behaviour, without the interpreter lock.

A lane's ring is shared by two threads. The feeder fills a place and releases it as READY; the lane does its items and
releases it as FINISHED; the feeder takes it out and makes it EMPTY. Items travel as records of 32 bytes, and the lane
writes an item's stamps over its record: one cache line every other item, where nine arrays at the same offset in their
pages cost 50 ns per item. The records of a batch are one array that the feeder makes and gets back: nothing is copied
out, for this thread takes its time from the lanes where they fill the processors. All memory that a running lane
touches belongs to the lane or to its table of files, which it keeps alive.

One module in parts that are included here, each after what it uses: `_issue_system.pxi`, `_issue_waiting.pxi`,
`_issue_files.pxi`, `_issue_lane.pxi`, `_issue_transfers.pxi`, `_issue_operations.pxi`, `_issue_loop.pxi`.
"""

import numpy as np

from dxt_replay.replay.engine.backends.base import FileFailure
from dxt_replay.replay.engine.items import Completed

include "_issue_system.pxi"

# Numbers of dxt_replay.replay.engine.issue and dxt_replay.replay.engine.backends.base, which say what they mean; a test compares them.
cdef enum:
    C_READ = 0
    C_WRITE = 1
    C_OPEN = 2
    C_CLOSE = 3
    C_STAT = 4
    C_SYNC = 5
    C_SEEK = 6
    C_RENAME = 7
    C_SLEEP = 8
    C_SPIN = 9
    C_WAIT = 11
    C_ADD = 12
    C_ABSOLUTE = 0
    C_THINK = 1
    C_NONE = 2
    C_RING_BATCHES = 8
    C_WINDOW_NS = 60000
    C_PIECE_NS = 50000000
    C_FEED_POLL_NS = 50000
    C_FEED_POLLS_NS = 32000000
    C_LONG_PIECE_NS = 250000000
    C_CROWDED_WAITS = 16
    C_STOPPED = -1
    C_OPENS = 1
    C_AWAITS_OPEN = 2
    C_END_OF_FILE_READ_BYTES = 4096
    C_MAX_TRANSFER_BYTES = 0x7FFFF000
    C_CONSUMED_BYTES = 524288
    C_BLOCK_BYTES = 4096
    C_CACHE_LINE_BYTES = 64
    C_EXACT_BUCKETS = 128
    C_SUB_BUCKET_BITS = 6

CONSTANTS = {
    "OPENS": C_OPENS,
    "AWAITS_OPEN": C_AWAITS_OPEN,
    "RING_BATCHES": C_RING_BATCHES,
    "WINDOW_NS": C_WINDOW_NS,
    "PIECE_NS": C_PIECE_NS,
    "FEED_POLL_NS": C_FEED_POLL_NS,
    "FEED_POLLS_NS": C_FEED_POLLS_NS,
    "END_OF_FILE_READ_BYTES": C_END_OF_FILE_READ_BYTES,
    "CONSUMED_BYTES": C_CONSUMED_BYTES,
    "CACHE_LINE_BYTES": C_CACHE_LINE_BYTES,
    "BLOCK_BYTES": C_BLOCK_BYTES,
    "MAX_TRANSFER_BYTES": C_MAX_TRANSFER_BYTES,
    "EXACT_BUCKETS": C_EXACT_BUCKETS,
    "SUB_BUCKET_BITS": C_SUB_BUCKET_BITS,
}

cdef enum:
    EMPTY = 0
    READY = 1
    FINISHED = 2

cdef enum:
    PAGE_BYTES = 4096
    FIRST_PAYLOAD_BYTES = 1 << 20

include "_issue_waiting.pxi"
include "_issue_files.pxi"
include "_issue_lane.pxi"
include "_issue_transfers.pxi"
include "_issue_operations.pxi"
include "_issue_loop.pxi"


cdef class CompiledLane:
    """A lane over POSIX, streams and null: see `replay.engine.issue.Lane`."""

    cdef State lane
    cdef CompiledFiles files
    cdef const int64_t[::1] start_cell
    cdef const int64_t[::1] stop_cell
    cdef int64_t[:, ::1] counter_cells
    cdef list batches   # of the places of the ring, and their records: int64 arrays of shape (items, 4)
    cdef list records
    cdef int tail       # next place to fill
    cdef int oldest     # next place to collect
    cdef readonly bint began

    def __cinit__(self, CompiledFiles files not None, *, pace, start, stop, counters=None):
        self.files = files
        self.start_cell = start.cell
        self.stop_cell = stop.cell
        self.batches = [None] * C_RING_BATCHES
        self.records = [None] * C_RING_BATCHES
        self.lane.table = &files.table
        self.lane.start = &self.start_cell[0]
        self.lane.stop = &self.stop_cell[0]
        if counters is not None and len(counters):
            self.counter_cells = counters
            self.lane.counters = &self.counter_cells[0, 0]
            self.lane.counter_count = len(counters)
        self.lane.rare.prepare_other = prepare_other
        self.lane.rare.call_other = call_other
        self.lane.rare.call_counter = call_counter
        self.lane.rare.prepare_special = prepare_special
        self.lane.rare.transfer_special = transfer_special
        self.lane.pace = pace
        self.lane.room = 2 * C_BLOCK_BYTES if files.table.direct else 0
        self.lane.ready = -self.lane.room
        self.lane.held = -1
        self.lane.error = EBADF

    def __dealloc__(self):
        free(self.lane.buffer)

    def submit(self, batch):
        """See `Lane`."""
        cdef Place *place = &self.lane.ring[self.tail]
        cdef const uint8_t[::1] kind
        cdef const int32_t[::1] slot
        cdef const int64_t[::1] offset, length, due
        cdef int64_t[:, ::1] cells
        cdef int64_t i, count
        cdef Item *item
        if self.lane.no_more:
            raise RuntimeError("a batch was submitted after finish()")
        if load_acquire(&place.state) != EMPTY:
            return False
        kind, slot, offset, length, due = batch.kind, batch.slot, batch.offset, batch.length, batch.due_ns
        count = kind.shape[0]
        records = np.empty((count, 4), dtype=np.int64)
        cells = records
        place.records = <Record *>&cells[0, 0]
        place.count, place.done = count, 0
        for i in range(count):
            item = &place.records[i].item
            item.kind, item.slot, item.offset = kind[i], slot[i], offset[i]
            item.length, item.due = length[i], due[i]
        self.batches[self.tail], self.records[self.tail] = batch, records
        store_release(&place.state, READY)
        self._tell()
        self.tail = (self.tail + 1) % C_RING_BATCHES
        return True

    def finish(self):
        """See `Lane`."""
        store_release(&self.lane.no_more, 1)
        self._tell()

    cdef void _tell(self):
        """Wake the lane if it sleeps, or is about to: it does not fall asleep once `told` has changed."""
        store_release(&self.lane.told, self.lane.told + 1)
        full_barrier()
        if load_relaxed(&self.lane.asleep):
            wake_all(&self.lane.told)

    def collect(self):
        """See `Lane`."""
        cdef Place *place = &self.lane.ring[self.oldest]
        if load_acquire(&place.state) != FINISHED:
            return None
        columns = self.records[self.oldest][: place.done]
        completed = Completed(
            batch=self.batches[self.oldest],
            due_ns=columns[:, 0],
            begin_ns=columns[:, 1],
            end_ns=columns[:, 2],
            result=columns[:, 3],
        )
        self.batches[self.oldest] = self.records[self.oldest] = None
        place.records = NULL
        store_release(&place.state, EMPTY)
        self.oldest = (self.oldest + 1) % C_RING_BATCHES
        return completed

    def run(self):
        """See `Lane`. Without the interpreter lock from beginning to end."""
        if self.began:
            raise RuntimeError("a lane runs once")
        self.began = True
        with nogil:
            run_lane(&self.lane)

    @property
    def done(self):
        """See `Lane`."""
        return load_acquire(&self.lane.run_ended) != 0

    @property
    def items_done(self):
        """See `Lane`."""
        return load_relaxed(&self.lane.items_done)

    @property
    def opening(self):
        """See `Lane`."""
        return load_relaxed(&self.lane.opening)

    @property
    def last_end_ns(self):
        """See `Lane`."""
        return load_relaxed(&self.lane.previous_end)

    @property
    def starved_ns(self):
        """See `Lane`."""
        return load_relaxed(&self.lane.starved_ns)

    @property
    def not_direct(self):
        """See `Lane`."""
        return load_relaxed(&self.lane.not_direct)


# ----------------------------------------------------------------------------------------------------- jitter probe

cdef int64_t bucket_of(int64_t value) noexcept nogil:
    """See `replay.engine.jitter.bucket_of`."""
    cdef int64_t shift = 0
    while (value >> shift) >= C_EXACT_BUCKETS:
        shift += 1
    return (shift << C_SUB_BUCKET_BITS) + (value >> shift)


def record_lateness(int64_t[::1] counts not None, const int64_t[::1] stop not None, int64_t period_ns):
    """See `replay.engine.jitter.JitterProbe`: count lateness by bucket until stopped; its maximum in ns."""
    cdef const int64_t *stop_cell = &stop[0]
    cdef int64_t never = 0, latest = 0
    cdef const int64_t *heeded = &never  # one wait is made whatever comes
    cdef int64_t *count = &counts[0]
    cdef int64_t now, due
    cdef long slack = get_timer_slack()
    with nogil:
        set_timer_slack(1)
        now = due = now_ns()
        while True:
            due += period_ns
            now = wait_until(due, now, heeded)
            if now < 0:
                break
            count[bucket_of(now - due)] += 1
            latest = now - due if now - due > latest else latest
            if load_relaxed(stop_cell):
                break
            heeded = stop_cell
        if slack > 0:
            set_timer_slack(slack)
    return latest


def add_to_counter(int64_t[:, ::1] cells, int64_t index, int64_t amount, int64_t multiple, int64_t now):
    """Add to a counter (`replay.engine.wait_counters`) atomically, and wake who waits for it at multiples."""
    if not 0 <= index < cells.shape[0] or multiple < 1:
        raise IndexError(index)
    add_and_wake(&cells[index, 0], amount, multiple, now)


def wake_waiting(int64_t[::1] cell not None):
    """Wake the lanes that wait for a cell to change."""
    wake_all(&cell[0])


def let_lanes_spin(int64_t lanes):
    """How many lanes of this process may spin at once (`replay.engine.clock`)."""
    let_spin(lanes)


def bucket_index(int64_t value):
    """`bucket_of` for the tests."""
    return bucket_of(value)
