# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The timed issue loop. A process has a table of files (`Files`), and a `Lane` for each recorded thread.

A lane's `run` is the body of a thread, without the interpreter lock; the feeder thread calls its other methods. All
times are in ns of CLOCK_MONOTONIC from the start of the run, t0. A lane does three things with each item, in order:
1. Prepare: open the file at its first use, and make room for the data. This is not part of the latency. When it takes
   long, the item begins late. `replay.engine.items` describes the operations other than read and write.
2. Wait until the item is due. A late item begins at once. Shortly before a read that was waited for, its buffer is
   touched: an application uses the data of a read before the next read, so its buffer is in the cache.
3. Issue: begin is the last time of the clock before the call, end is the first time after it. Of an item that is not
   waited for, begin is the end of the item before.

A lane's ring is shared by two threads. The feeder fills a place and releases it as READY; the lane does its items and
releases it as FINISHED; the feeder takes it out and makes it EMPTY. The lane writes an item's stamps over its record:
one cache line every other item, where nine arrays at the same offset in their pages cost 50 ns per item. The records of
a batch are one array that the feeder makes and gets back: nothing is copied out, for this thread takes its time from
the lanes where they fill the processors. All memory that a running lane touches belongs to the lane or to its table of
files, which it keeps alive. A mutex of a file is never waited for with the interpreter lock held: a back end in Python
is called under it.

One module in parts that are included here, each after what it uses.
"""

import numpy as np

from dxt_replay.replay.engine.items cimport (
    ABSOLUTE, ADD, AWAITS_OPEN, CLOSE, DELETE, LIST, MARK, NO_OPEN, NONE, OPEN, OPENS, READ_AHEAD, READ_AT, READ_NO_FURTHER, RENAME, RING_BATCHES,
    SEEK, SLEEP, SPIN, STAT, SYNC, THINK, WAIT, WRITE_AT, Item,
)

from dxt_replay.replay.engine import items as described
from dxt_replay.replay.engine.limits import allow_open_files
from dxt_replay.replay.engine.files import Backend
from dxt_replay.replay.engine.items import Completed, check_items

include "_issue_system.pxi"

cdef enum:
    WINDOW_NS = 60000               # A lane spins for this long before an item is due: most sleeps overshoot by less.
    PIECE_NS = 50000000             # The longest sleep of a lane, after which it looks for a stop,
    LONG_PIECE_NS = 250000000       # and that of a lane that has nothing to do yet.
    # A wait for the feeder: least ns between two looks, and after how many ns the lane sleeps until it is woken. Until
    # then it looks again after an eighth of the time that it has waited: hundreds of lanes that looked every 50 us
    # would leave the feeder no processor.
    FEED_POLL_NS = 50000
    FEED_POLLS_NS = 32000000
    # How many waits a lane sleeps to the end after one at which too many lanes were spinning already. Such a wait ends
    # late by a wake-up (50 us), but lanes that spin for each other's processors are late by much more.
    CROWDED_WAITS = 16
    STOPPED = -1                    # in place of a time or an errno
    END_OF_FILE_READ_BYTES = 4096
    MAX_TRANSFER_BYTES = 0x7FFFF000 # Linux moves no more in one read or write (read(2)).
    CONSUMED_BYTES = 524288         # Most bytes of a buffer that are touched before a read: about a core's own cache.
    CACHE_LINE_BYTES = 64
    # Alignment of direct requests: a multiple of the logical block of all common devices, and the page size that
    # network file systems ask for (open(2), O_DIRECT).
    BLOCK_BYTES = 4096
    PAGE_BYTES = 4096
    FIRST_PAYLOAD_BYTES = 1 << 20
    LEAST_STALL_NS = 100000000      # What a thread waits for a processor of a busy machine is shorter.
    SUB_BUCKET_BITS = 6
    EXACT_BUCKETS = 128

cdef enum:
    EMPTY, READY, FINISHED

include "_issue_files.pxi"
include "_issue_lane.pxi"
include "_issue_calls.pxi"
include "_issue_loop.pxi"


cdef class Lane:
    """The operations of one thread. `run` has a thread of its own; the feeder thread uses all else.

    `counters`: those of its WAIT and ADD items.
    """

    cdef State lane
    cdef Files files
    cdef const int64_t[::1] start_cell
    cdef const int64_t[::1] stop_cell
    cdef int64_t[:, ::1] counter_cells
    cdef list batches   # of the places of the ring, and their records: copies of the items, which become results
    cdef list records
    cdef int tail       # next place to fill
    cdef int oldest     # next place to collect
    cdef readonly bint began

    def __cinit__(self, Files files not None, *, pace, start, stop, counters=None):
        self.files = files
        self.start_cell = start.cell
        self.stop_cell = stop.cell
        self.batches = [None] * RING_BATCHES
        self.records = [None] * RING_BATCHES
        self.lane.table = &files.table
        self.lane.start = &self.start_cell[0]
        self.lane.stop = &self.stop_cell[0]
        if counters is not None and len(counters):
            self.counter_cells = counters.cells
            self.lane.counters = &self.counter_cells[0, 0]
            self.lane.counter_count = len(counters)
        self.lane.rare.prepare_other = prepare_other
        self.lane.rare.call_other = call_other
        self.lane.rare.call_counter = call_counter
        self.lane.rare.prepare_special = prepare_special
        self.lane.rare.transfer_special = transfer_special
        self.lane.pace = pace
        self.lane.room = 2 * BLOCK_BYTES if files.table.direct else 0
        self.lane.ready = -self.lane.room
        self.lane.held = -1
        self.lane.error = EBADF

    def __dealloc__(self):
        free(self.lane.buffer)

    def submit(self, items):
        """Queue a batch, `PLAN_ROW` (n,), which is copied. Never blocks.

        Returns False when RING_BATCHES are queued or not collected yet.
        Raises: as `check_items`; ValueError for an array of another dtype.
        """
        cdef Place *place = &self.lane.ring[self.tail]
        cdef Item[::1] cells
        if self.lane.no_more:
            raise RuntimeError("a batch was submitted after finish()")
        if load_acquire(&place.state) != EMPTY:
            return False
        check_items(items)
        cells = records = np.array(items)
        place.records = <Record *>&cells[0]
        place.count, place.done = cells.shape[0], 0
        self.batches[self.tail], self.records[self.tail] = items, records
        store_release(&place.state, READY)
        self._tell()
        self.tail = (self.tail + 1) % RING_BATCHES
        return True

    def finish(self):
        """Say that no more batches will come."""
        store_release(&self.lane.no_more, 1)
        self._tell()

    cdef void _tell(self):
        """Wake the lane if it sleeps, or is about to: it does not fall asleep once `told` has changed."""
        store_release(&self.lane.told, self.lane.told + 1)
        full_barrier()
        if load_relaxed(&self.lane.asleep):
            wake_all(&self.lane.told)

    def collect(self):
        """`Completed`, the results of the next batch that is finished or, after a stop, begun; None when there is none
        yet.

        Raises: what a back end in Python raised other than OSError, after all results of the lane are collected.
        """
        cdef Place *place = &self.lane.ring[self.oldest]
        cdef bint done = self.done
        if load_acquire(&place.state) != FINISHED:
            if done and self.files.table.bug != NULL:
                raise <object>self.files.table.bug
            return None
        columns = self.records[self.oldest].view(np.int64).reshape(-1, sizeof(Record) // 8)[: place.done]
        completed = Completed(
            items=self.batches[self.oldest],
            due_ns=columns[:, 0],
            begin_ns=columns[:, 1],
            end_ns=columns[:, 2],
            result=columns[:, 3],
        )
        self.batches[self.oldest] = self.records[self.oldest] = None
        place.records = NULL
        store_release(&place.state, EMPTY)
        self.oldest = (self.oldest + 1) % RING_BATCHES
        return completed

    cdef bint needs_feeder(self):
        """Whether `collect` or `submit` has something to do: results, an empty place, or an error to raise."""
        return (
            load_acquire(&self.lane.ring[self.oldest].state) == FINISHED
            or (not self.lane.no_more and load_acquire(&self.lane.ring[self.tail].state) == EMPTY)
            or (self.files.table.bug != NULL and self.done)
        )

    def run(self):
        """Wait for the start, then do all items. Returns after `finish`, a stop or a bug of a back end in Python."""
        if self.began:
            raise RuntimeError("a lane runs once")
        self.began = True
        with nogil:
            run_lane(&self.lane)

    @property
    def done(self):
        """Whether `run` has ended. Once it has, the next None of `collect` means that there are no more results."""
        return load_acquire(&self.lane.run_ended) != 0

    @property
    def items_done(self):
        """Items done so far, to show progress."""
        return load_relaxed(&self.lane.items_done)

    @property
    def opening(self):
        """What the lane does before its next item: NO_OPEN, OPENS or AWAITS_OPEN (`replay.engine.files`)."""
        return load_relaxed(&self.lane.opening)

    @property
    def last_end_ns(self):
        """When the last item ended, in ns of CLOCK_MONOTONIC; before the first one, the start of the run."""
        return load_relaxed(&self.lane.previous_end)

    @property
    def starved_ns(self):
        """Time in ns in which an item was due but the feeder had not queued it yet."""
        return load_relaxed(&self.lane.starved_ns)

    @property
    def not_direct(self):
        """Writes of a direct back end that were not of whole blocks, and so went through the page cache."""
        return load_relaxed(&self.lane.not_direct)

    def data_read(self, int64_t length):
        """The first bytes of the buffer of reads, `length` at most. Call it when the lane is done."""
        return PyBytes_FromStringAndSize(self.lane.buffer, min(length, self.lane.capacity))


def lanes_to_feed(list lanes not None):
    """The places of those of `lanes` that have results, room for a batch, or an error to raise."""
    cdef Lane lane
    return [place for place, lane in enumerate(lanes) if lane.needs_feeder()]


# ----------------------------------------------------------------------------------------------------- jitter probe

def bucket_of(int64_t value_ns):
    """Index of the bucket that counts `value_ns` (0 <= value < 2**63): see `replay.engine.jitter`."""
    return bucket(value_ns)


cdef int64_t bucket(int64_t value) noexcept nogil:
    cdef int64_t shift = 0
    while (value >> shift) >= EXACT_BUCKETS:
        shift += 1
    return (shift << SUB_BUCKET_BITS) + (value >> shift)


cdef int64_t processor_time_ns() noexcept nogil:
    """Processor time of this process, ns."""
    cdef timespec used
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used)
    return used.tv_sec * 1000000000 + used.tv_nsec


def record_lateness(
    int64_t[::1] counts not None, int64_t[:, ::1] stalls not None, stop, int64_t period_ns, double processors
):
    """Wait for each multiple of a period from now until stopped, and once in any case, as lanes wait.

    `counts`: by bucket, to which the number of waits is added that ended so late. Returns the largest lateness in ns.
    `stalls`: gets begin and end of the first times, in ns of CLOCK_MONOTONIC, of LEAST_STALL_NS or longer in which
    this process used less than half of its `processors`: its own threads did not keep the probe waiting.
    """
    cdef const int64_t[::1] stop_view = stop.cell
    cdef const int64_t *stop_cell = &stop_view[0]
    cdef int64_t never = 0, latest = 0
    cdef const int64_t *heeded = &never  # one wait is made whatever comes
    cdef int64_t *count = &counts[0]
    cdef int64_t now, due, before, looked, used, found = 0
    cdef long slack = get_timer_slack()
    with nogil:
        set_timer_slack(1)
        now = due = looked = now_ns()
        used = processor_time_ns()
        while True:
            due += period_ns
            before = max(due, now)
            now = wait_until(due, now, heeded)
            if now < 0:
                break
            if now - before >= LEAST_STALL_NS and found < stalls.shape[0]:
                if processor_time_ns() - used < processors * (now - looked) / 2:
                    stalls[found, 0], stalls[found, 1] = before, now
                    found += 1
            if now - looked >= LEAST_STALL_NS / 5:  # not at each wait: the kernel adds up all threads
                looked, used = now, processor_time_ns()
            count[bucket(now - due)] += 1
            latest = max(latest, now - due)
            if load_relaxed(stop_cell):
                break
            heeded = stop_cell
        if slack > 0:
            set_timer_slack(slack)
    return latest


# ------------------------------------------------------------------------------------------------- shared by lanes

def add_to_counter(int64_t[:, ::1] cells, int64_t index, int64_t amount, int64_t multiple, int64_t now):
    """Add to a counter (`replay.engine.clock`) atomically, and wake who waits for it at multiples."""
    if not 0 <= index < cells.shape[0] or multiple < 1:
        raise IndexError(index)
    add_and_wake(&cells[index, 0], amount, multiple, now)


def counter_reached_ns(int64_t[:, ::1] cells, int64_t index, int64_t least, int64_t multiple):
    """See `Counters.reached_ns`."""
    return reached_ns(&cells[index, 0], least, multiple)


def wake_waiting(int64_t[::1] cell not None):
    """Wake the lanes that wait for a cell to change."""
    wake_all(&cell[0])


def let_lanes_spin(int64_t lanes):
    """How many lanes of this process may spin at once (`replay.engine.clock`). Holds for lanes that run afterwards."""
    let_spin(lanes)


# ------------------------------------------------------------------------------------------ checked at the import

cdef const Item[::1] _same_columns = np.zeros(1, dtype=described.PLAN_ROW)
_NUMBERS = {
    "READ_AT": READ_AT, "WRITE_AT": WRITE_AT, "OPEN": OPEN, "CLOSE": CLOSE, "STAT": STAT, "SYNC": SYNC, "SEEK": SEEK,
    "RENAME": RENAME, "LIST": LIST, "DELETE": DELETE, "SLEEP": SLEEP, "SPIN": SPIN, "MARK": MARK, "WAIT": WAIT, "ADD": ADD,
    "ABSOLUTE": ABSOLUTE, "THINK": THINK, "NONE": NONE, "RING_BATCHES": RING_BATCHES, "NO_OPEN": NO_OPEN, "OPENS": OPENS, "AWAITS_OPEN": AWAITS_OPEN,
}
_NAMES = {**vars(described), **described.LoopPace.__members__}
if any(_NAMES[name] != number for name, number in _NUMBERS.items()):
    raise ImportError("replay/engine/items.py and items.pxd number the items differently: build again")
