# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The compiled core of `replay.issue` and `replay.jitter`: the same behaviour, without the interpreter lock.

A lane's ring is shared by two threads. The feeder fills a place and releases it as READY; the lane does its items and
releases it as FINISHED; the feeder takes it out and makes it EMPTY. Items travel as records of 32 bytes, and the lane
writes an item's stamps over its record: one cache line every other item, where nine arrays at the same offset in their
pages cost 50 ns per item. All memory that a running lane touches belongs to the lane or to its table of files, which
it keeps alive.
"""

from libc.errno cimport EBADF, EINTR, EINVAL, EMFILE, ENFILE, ENOMEM, errno
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset, strdup

import numpy as np

from replay.backends.base import FileFailure
from replay.items import Completed

cdef extern from "_issue_atomics.h" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    int64_t load_relaxed(const int64_t *cell)
    int64_t load_acquire(const int64_t *cell)
    void store_relaxed(int64_t *cell, int64_t value)
    void store_release(int64_t *cell, int64_t value)
    int64_t take_ticket(int64_t *cell)
    int64_t now_ns()
    void sleep_until_ns(int64_t deadline)
    void sleep_while_counter_is(int64_t *cell, int64_t seen, long at_most_ns)
    void add_and_wake(int64_t *cell, int64_t amount, int64_t multiple)
    long get_timer_slack()
    void set_timer_slack(long slack)
    void make_mutex(pthread_mutex_t *mutex)
    int pthread_mutex_lock(pthread_mutex_t *mutex)
    int pthread_mutex_trylock(pthread_mutex_t *mutex)
    int pthread_mutex_unlock(pthread_mutex_t *mutex)
    int pthread_mutex_destroy(pthread_mutex_t *mutex)

cdef extern from "<stdlib.h>" nogil:
    int posix_memalign(void **memory, size_t alignment, size_t size)

cdef extern from "<fcntl.h>" nogil:
    int c_open "open"(const char *path, int flags, int mode)
    int O_RDONLY, O_RDWR, O_CREAT, O_CLOEXEC, O_NOFOLLOW

cdef extern from "<sys/stat.h>" nogil:
    struct stat:
        int64_t st_size
    int fstat(int fd, stat *status)

cdef extern from "<unistd.h>" nogil:
    ssize_t pread(int fd, void *buffer, size_t count, int64_t offset)
    ssize_t pwrite(int fd, const void *buffer, size_t count, int64_t offset)
    int c_close "close"(int fd)

# Numbers of replay.issue and replay.backends.base, which say what they mean; a test compares them.
cdef enum:
    C_READ = 0
    C_WRITE = 1
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
    C_GATE_POLL_NS = 200000
    C_END_OF_FILE_READ_BYTES = 4096
    C_MAX_TRANSFER_BYTES = 0x7FFFF000
    C_CONSUMED_BYTES = 524288
    C_CACHE_LINE_BYTES = 64
    C_EXACT_BUCKETS = 128
    C_SUB_BUCKET_BITS = 6

CONSTANTS = {
    "RING_BATCHES": C_RING_BATCHES,
    "WINDOW_NS": C_WINDOW_NS,
    "PIECE_NS": C_PIECE_NS,
    "FEED_POLL_NS": C_FEED_POLL_NS,
    "GATE_POLL_NS": C_GATE_POLL_NS,
    "END_OF_FILE_READ_BYTES": C_END_OF_FILE_READ_BYTES,
    "CONSUMED_BYTES": C_CONSUMED_BYTES,
    "CACHE_LINE_BYTES": C_CACHE_LINE_BYTES,
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


# ---------------------------------------------------------------------------------------------------------- waiting

cdef int64_t sleep_near(int64_t deadline, int64_t now, const int64_t *stop) noexcept nogil:
    """Sleep to shortly before the deadline; the last read of the clock, -1 when stopped."""
    cdef int64_t wake
    while deadline - now > C_WINDOW_NS:
        wake = now + C_PIECE_NS
        sleep_until_ns(wake if wake < deadline - C_WINDOW_NS else deadline - C_WINDOW_NS)
        if load_relaxed(stop):
            return -1
        now = now_ns()
    return now


cdef int64_t wait_until(int64_t deadline, int64_t now, const int64_t *stop) noexcept nogil:
    """Sleep to shortly before the deadline, then spin; the last read of the clock, -1 when stopped."""
    now = sleep_near(deadline, now, stop)
    while 0 <= now < deadline:
        now = now_ns()
    return now


cdef int64_t spin_until(int64_t deadline, int64_t now, const int64_t *stop) noexcept nogil:
    """Busy to the deadline; the last read of the clock, -1 when stopped."""
    while now < deadline:
        if load_relaxed(stop):
            return -1
        now = now_ns()
    return now


# ------------------------------------------------------------------------------------------------------------ files

cdef struct File:
    # Everything below `lock` is read and written under it.
    char *path
    int flags
    pthread_mutex_t lock
    int fd              # -1 while closed
    int open_error
    int close_error
    int64_t size
    int64_t holders
    int64_t remaining

cdef struct Payload:
    # Older and smaller ones stay until the table goes: a lane may be writing from them.
    char *data
    int64_t bytes
    Payload *older

cdef struct Table:
    File *files
    int64_t count
    bint moves_data
    int64_t hand        # of the clock that looks for idle files
    pthread_mutex_t payload_lock
    Payload *payload


cdef bint close_unheld(File *file) noexcept nogil:
    """Close an open file that nobody holds. The caller has its lock."""
    if file.fd < 0 or file.holders > 0:
        return False
    # After EINTR Linux has closed the descriptor all the same (close(2)).
    if c_close(file.fd) != 0 and errno != EINTR:
        file.close_error = errno
    file.fd = -1
    return True


cdef bint close_idle(Table *table, File *wanted) noexcept nogil:
    """Close one file that nobody holds, going round the table; False when there is none."""
    cdef int64_t step
    cdef bint closed
    cdef File *file
    for step in range(table.count):
        file = &table.files[take_ticket(&table.hand) % table.count]
        # Never blocks on another slot: its lock may be held by a lane that looks for an idle file too.
        if file == wanted or pthread_mutex_trylock(&file.lock) != 0:
            continue
        closed = close_unheld(file)
        pthread_mutex_unlock(&file.lock)
        if closed:
            return True
    return False


cdef void open_file(Table *table, File *file) noexcept nogil:
    """Open a closed file or note the error. The caller has its lock."""
    cdef stat status
    cdef int fd, error
    while True:
        fd = c_open(file.path, file.flags, 0o666)
        if fd >= 0:
            break
        error = errno
        if error == EINTR:
            continue
        if (error == EMFILE or error == ENFILE) and close_idle(table, file):
            continue
        file.open_error = error
        return
    if fstat(fd, &status) != 0:
        file.open_error = errno
        c_close(fd)
        return
    file.fd = fd
    file.size = status.st_size


cdef Payload *payload_of(Table *table, int64_t length) noexcept nogil:
    """At least `length` bytes that do not compress, the same for all lanes; NULL without memory."""
    cdef Payload *payload
    cdef int64_t size, word
    cdef uint64_t state
    pthread_mutex_lock(&table.payload_lock)
    payload = table.payload
    if payload == NULL or payload.bytes < length:
        size = FIRST_PAYLOAD_BYTES if payload == NULL else 2 * payload.bytes
        if size > C_MAX_TRANSFER_BYTES:
            size = C_MAX_TRANSFER_BYTES
        if size < length:
            size = (length + PAGE_BYTES - 1) // PAGE_BYTES * PAGE_BYTES
        payload = new_payload(size)
        if payload != NULL:
            state = <uint64_t>0x9E3779B97F4A7C15 ^ <uint64_t>size
            for word in range(size // 8):  # xorshift64 (Marsaglia 2003)
                state ^= state << 13
                state ^= state >> 7
                state ^= state << 17
                (<uint64_t *>payload.data)[word] = state
            payload.older = table.payload
            table.payload = payload
    pthread_mutex_unlock(&table.payload_lock)
    return payload


cdef Payload *new_payload(int64_t size) noexcept nogil:
    cdef void *memory = NULL
    cdef Payload *payload
    if posix_memalign(&memory, PAGE_BYTES, size) != 0:
        return NULL
    payload = <Payload *>malloc(sizeof(Payload))
    if payload == NULL:
        free(memory)
        return NULL
    payload.data = <char *>memory
    payload.bytes = size
    payload.older = NULL
    return payload


cdef class CompiledFiles:
    """The files of one process, for compiled lanes: see `replay.backends.base.PythonFiles`."""

    cdef Table table
    cdef tuple paths
    cdef readonly str core

    def __cinit__(self, slots, *, bint moves_data):
        cdef File *file
        slots = tuple(slots)
        self.core = "compiled"
        self.paths = tuple(slot.path for slot in slots)
        self.table.moves_data = moves_data
        make_mutex(&self.table.payload_lock)
        self.table.files = <File *>calloc(max(len(self.paths), 1), sizeof(File))
        if self.table.files == NULL:
            raise MemoryError
        for slot in slots:
            file = &self.table.files[self.table.count]
            file.path = strdup(slot.path)
            if file.path == NULL:
                raise MemoryError
            file.flags = O_CLOEXEC | (O_RDWR | O_NOFOLLOW if slot.writable else O_RDONLY)
            if slot.writable and slot.create:
                file.flags |= O_CREAT
            file.fd = -1
            file.remaining = slot.uses
            make_mutex(&file.lock)
            self.table.count += 1

    def __dealloc__(self):
        cdef int64_t index
        cdef Payload *payload = self.table.payload
        for index in range(self.table.count):
            close_unheld(&self.table.files[index])
            pthread_mutex_destroy(&self.table.files[index].lock)
            free(self.table.files[index].path)
        free(self.table.files)
        while payload != NULL:
            self.table.payload = payload.older
            free(payload.data)
            free(payload)
            payload = self.table.payload

    def __len__(self):
        return self.table.count

    def close_all(self):
        """Close every file that no lane holds; the others when their lane gives them back."""
        cdef int64_t index
        cdef File *file
        with nogil:
            for index in range(self.table.count):
                file = &self.table.files[index]
                pthread_mutex_lock(&file.lock)
                file.remaining = 0
                close_unheld(file)
                pthread_mutex_unlock(&file.lock)

    def failures(self):
        """Opens and closes that failed so far, by slot."""
        cdef int64_t index
        cdef int open_error, close_error
        cdef File *file
        found = []
        for index in range(self.table.count):
            file = &self.table.files[index]
            with nogil:
                pthread_mutex_lock(&file.lock)
                open_error, close_error = file.open_error, file.close_error
                pthread_mutex_unlock(&file.lock)
            for call, number in (("open", open_error), ("close", close_error)):
                if number:
                    found.append(FileFailure(slot=index, path=self.paths[index], call=call, errno=number))
        return found


# ------------------------------------------------------------------------------------------------------------ lanes

cdef struct Item:
    uint8_t kind
    int32_t slot
    int64_t offset
    int64_t length
    int64_t due

cdef struct Stamps:
    int64_t due
    int64_t begin
    int64_t end
    int64_t result

cdef union Record:
    Item item           # until the item is done
    Stamps stamps       # afterwards

cdef struct Place:
    # One place of the ring. `state` hands the rest over between feeder and lane.
    int64_t state
    int64_t count
    int64_t done
    int64_t capacity
    Record *records

cdef struct State:
    # Shared with the feeder.
    Place ring[C_RING_BATCHES]
    int64_t no_more
    int64_t run_ended
    int64_t starved_ns
    int64_t items_done
    # The lane's own.
    Table *table
    const int64_t *start
    const int64_t *stop
    int64_t *counters
    int64_t counter_count
    int pace
    int64_t t0
    int64_t previous_end
    int64_t held        # slot, -1 for none
    int64_t left_before # uses of the held slot that were left when it was taken up
    int64_t left        # and now, as far as this lane knows; below 0 where the plan did not say
    int fd
    int error           # of the held slot
    int64_t size
    char *buffer
    int64_t capacity
    int64_t ready       # bytes of the buffer whose pages are there
    const char *payload
    int64_t payload_bytes


cdef void release_file(State *lane) noexcept nogil:
    """Give the held file back; when all its uses are done, this closes it."""
    cdef File *file
    if lane.table.moves_data and 0 <= lane.held < lane.table.count:
        file = &lane.table.files[lane.held]
        pthread_mutex_lock(&file.lock)
        file.holders -= 1
        file.remaining -= lane.left_before - lane.left
        if file.remaining <= 0:
            close_unheld(file)
        pthread_mutex_unlock(&file.lock)
    lane.held, lane.error = -1, EBADF
    lane.left_before = lane.left = 0


cdef void hold_file(State *lane, int64_t slot) noexcept nogil:
    """Change over to another file, opening it if it is not."""
    cdef File *file
    release_file(lane)
    lane.held = slot
    if slot < 0 or slot >= lane.table.count:
        return
    if not lane.table.moves_data:
        lane.error = 0
        return
    file = &lane.table.files[slot]
    pthread_mutex_lock(&file.lock)
    if file.fd < 0 and file.open_error == 0:
        open_file(lane.table, file)
    file.holders += 1
    lane.fd, lane.size, lane.error = file.fd, file.size, file.open_error
    lane.left_before = lane.left = file.remaining
    pthread_mutex_unlock(&file.lock)


cdef int make_room(State *lane, int64_t asked, int64_t available) noexcept nogil:
    """Grow the read buffer, and touch what the read can fill: page faults are no part of a latency. 0 or ENOMEM."""
    cdef int64_t capacity, reach
    cdef void *memory = NULL
    if asked > lane.capacity:
        capacity = PAGE_BYTES
        while capacity < asked:
            capacity *= 2
        free(lane.buffer)
        lane.buffer, lane.capacity, lane.ready = NULL, 0, 0
        if posix_memalign(&memory, PAGE_BYTES, capacity) != 0:
            return ENOMEM
        lane.buffer, lane.capacity = <char *>memory, capacity
    reach = asked if asked < available else available
    if reach > lane.ready:
        memset(lane.buffer + lane.ready, 0, reach - lane.ready)
        lane.ready = reach
    return 0


cdef void consume(State *lane, int64_t asked) noexcept nogil:
    """Write to each cache line that the next read fills first, as an application that has just used its data would."""
    cdef int64_t place = 0, reach = lane.ready
    if reach > asked:
        reach = asked
    if reach > C_CONSUMED_BYTES:
        reach = C_CONSUMED_BYTES
    while place < reach:
        lane.buffer[place] += 1
        place += C_CACHE_LINE_BYTES


cdef int find_payload(State *lane, int64_t asked) noexcept nogil:
    """Let the lane write from a payload of at least `asked` bytes. 0 or ENOMEM."""
    cdef Payload *payload = payload_of(lane.table, asked)
    if payload == NULL:
        return ENOMEM
    lane.payload, lane.payload_bytes = payload.data, payload.bytes
    return 0


cdef int64_t await_counter(State *lane, int64_t *cell, int64_t least, int64_t now) noexcept nogil:
    """When a counter was seen to be at least `least`, -1 when stopped. Spins as long as a wake-up takes, then sleeps."""
    cdef int64_t spun_until = now + C_WINDOW_NS
    cdef int64_t seen
    while True:
        seen = load_acquire(cell)
        now = now_ns()  # after the look: an end before the addition that it waited for would be a lie
        if seen >= least:
            return now
        if load_relaxed(lane.stop):
            return -1
        if now >= spun_until:
            sleep_while_counter_is(cell, seen, C_PIECE_NS)


cdef inline int64_t due_time(State *lane, int64_t due_in) noexcept nogil:
    if lane.pace == C_ABSOLUTE:
        return lane.t0 + due_in
    if lane.pace == C_THINK:
        return lane.previous_end + due_in
    return lane.previous_end


cdef inline int64_t transfer(State *lane, int kind, int64_t asked, int64_t offset) noexcept nogil:
    """One pread or pwrite; bytes or -errno."""
    cdef ssize_t moved
    while True:
        if kind == C_READ:
            moved = pread(lane.fd, lane.buffer, asked, offset)
        else:
            moved = pwrite(lane.fd, lane.payload, asked, offset)
        if moved >= 0:
            return moved
        if errno != EINTR:
            return -errno


cdef void issue(State *lane, Place *batch) noexcept nogil:
    """Do the items of a batch, or those before a stop. One read of the clock per item when nothing is waited for."""
    cdef int64_t i, slot, offset, length, asked, due, begin, end, result
    cdef int64_t now = 0, t0 = lane.t0, items_before = lane.items_done
    cdef int kind, error
    cdef Record *record
    cdef bint moves_data = lane.table.moves_data
    cdef bint stale = True  # something took time since `now` was read
    batch.done = batch.count
    for i in range(batch.count):
        if load_relaxed(lane.stop):
            batch.done = i
            break
        record = &batch.records[i]
        kind, offset, length = record.item.kind, record.item.offset, record.item.length
        error = 0
        asked = length
        if kind <= C_WRITE:
            slot = record.item.slot
            if slot != lane.held:
                hold_file(lane, slot)
                stale = True
            error = lane.error
            if error == 0 and (offset < 0 or length < 0):
                error = EINVAL
            if error == 0 and moves_data:
                if asked > C_MAX_TRANSFER_BYTES:
                    asked = C_MAX_TRANSFER_BYTES
                if kind == C_READ:
                    if length == 0 and lane.size <= offset:
                        asked = C_END_OF_FILE_READ_BYTES
                    if asked > lane.ready:
                        error = make_room(lane, asked, lane.size - offset)
                        stale = True
                elif asked > lane.payload_bytes:
                    error = find_payload(lane, asked)
                    stale = True
        due = due_time(lane, record.item.due)
        if stale:
            now = now_ns()
            stale = False
        if due - now > C_WINDOW_NS and kind == C_READ and moves_data and error == 0:
            now = sleep_near(due, now, lane.stop)
            if now >= 0:
                consume(lane, asked)
                now = now_ns()
        if 0 <= now < due:
            now = wait_until(due, now, lane.stop)
        if now < 0:
            batch.done = i
            break
        begin = now
        if lane.pace == C_NONE:
            due = begin
        if kind <= C_WRITE:
            result = -error if error else transfer(lane, kind, asked, offset) if moves_data else length
            end = now_ns()
            lane.left -= 1
            if lane.left == 0:
                release_file(lane)
                stale = True
        elif kind >= C_WAIT:
            result, end = 0, begin
            slot = record.item.slot
            if not 0 <= slot < lane.counter_count:
                result = -EINVAL
            elif kind == C_WAIT:
                end = await_counter(lane, &lane.counters[slot], length, begin)
            else:
                add_and_wake(&lane.counters[slot], length, offset)
                end = now_ns()
            if end < 0:
                batch.done = i
                break
        else:
            result = 0
            end = compute(lane, kind, begin, length)
            if end < 0:
                batch.done = i
                break
        record.stamps.due = due - t0
        record.stamps.begin = begin - t0
        record.stamps.end = end - t0
        record.stamps.result = result
        lane.previous_end = now = end
        store_relaxed(&lane.items_done, items_before + i + 1)


cdef int64_t compute(State *lane, int kind, int64_t begin, int64_t length) noexcept nogil:
    """End of a SLEEP, SPIN or MARK item, -1 when it was given up for a stop."""
    if length > 0 and kind == C_SLEEP:
        return wait_until(begin + length, begin, lane.stop)
    if length > 0 and kind == C_SPIN:
        return spin_until(begin + length, begin, lane.stop)
    return begin


cdef Place *next_batch(State *lane, Place *place) noexcept nogil:
    """`place` once the feeder has filled it; NULL when nothing more comes or the lane is stopped."""
    cdef int64_t waiting_since = -1, now, could_begin, no_more
    while True:
        no_more = load_acquire(&lane.no_more)  # before the state: a batch is queued before finish()
        if load_acquire(&place.state) == READY:
            break
        if no_more or load_relaxed(lane.stop):
            return NULL
        now = now_ns()
        if waiting_since < 0:
            waiting_since = now
        sleep_until_ns(now + C_FEED_POLL_NS)
    if waiting_since >= 0:
        could_begin = due_time(lane, place.records[0].item.due)
        if could_begin < waiting_since:
            could_begin = waiting_since
        now = now_ns()
        if now > could_begin:
            store_relaxed(&lane.starved_ns, lane.starved_ns + now - could_begin)
    return place


cdef void run_lane(State *lane) noexcept nogil:
    cdef long slack = get_timer_slack()
    cdef Place *batch
    cdef int head = 0
    set_timer_slack(1)
    lane.t0 = load_acquire(lane.start)
    while lane.t0 == 0 and not load_relaxed(lane.stop):
        sleep_until_ns(now_ns() + C_GATE_POLL_NS)
        lane.t0 = load_acquire(lane.start)
    lane.previous_end = lane.t0
    while not load_relaxed(lane.stop):
        batch = next_batch(lane, &lane.ring[head])
        if batch == NULL:
            break
        issue(lane, batch)
        store_release(&batch.state, FINISHED)
        head = (head + 1) % C_RING_BATCHES
    release_file(lane)
    if slack > 0:
        set_timer_slack(slack)
    store_release(&lane.run_ended, 1)


cdef class CompiledLane:
    """A lane over POSIX or null: see `replay.issue.Lane`."""

    cdef State lane
    cdef CompiledFiles files
    cdef const int64_t[::1] start_cell
    cdef const int64_t[::1] stop_cell
    cdef int64_t[::1] counter_cells
    cdef list batches   # of the places of the ring
    cdef int tail       # next place to fill
    cdef int oldest     # next place to collect
    cdef readonly bint began

    def __cinit__(self, CompiledFiles files not None, *, pace, start, stop, counters=None):
        self.files = files
        self.start_cell = start.cell
        self.stop_cell = stop.cell
        self.batches = [None] * C_RING_BATCHES
        self.lane.table = &files.table
        self.lane.start = &self.start_cell[0]
        self.lane.stop = &self.stop_cell[0]
        if counters is not None and len(counters):
            self.counter_cells = counters
            self.lane.counters = &self.counter_cells[0]
            self.lane.counter_count = len(counters)
        self.lane.pace = pace
        self.lane.held = -1
        self.lane.error = EBADF

    def __dealloc__(self):
        cdef int place
        for place in range(C_RING_BATCHES):
            free(self.lane.ring[place].records)
        free(self.lane.buffer)

    def submit(self, batch):
        """See `Lane`."""
        cdef Place *place = &self.lane.ring[self.tail]
        cdef const uint8_t[::1] kind
        cdef const int32_t[::1] slot
        cdef const int64_t[::1] offset, length, due
        cdef int64_t i, count
        cdef Item *item
        if self.lane.no_more:
            raise RuntimeError("a batch was submitted after finish()")
        if load_acquire(&place.state) != EMPTY:
            return False
        kind, slot, offset, length, due = batch.kind, batch.slot, batch.offset, batch.length, batch.due_ns
        count = kind.shape[0]
        if count > place.capacity:
            free(place.records)
            place.capacity = 0
            place.records = <Record *>malloc(count * sizeof(Record))
            if place.records == NULL:
                raise MemoryError
            place.capacity = count
        place.count, place.done = count, 0
        for i in range(count):
            item = &place.records[i].item
            item.kind, item.slot, item.offset = kind[i], slot[i], offset[i]
            item.length, item.due = length[i], due[i]
        self.batches[self.tail] = batch
        store_release(&place.state, READY)
        self.tail = (self.tail + 1) % C_RING_BATCHES
        return True

    def finish(self):
        """See `Lane`."""
        store_release(&self.lane.no_more, 1)

    def collect(self):
        """See `Lane`."""
        cdef Place *place = &self.lane.ring[self.oldest]
        cdef int64_t[:, ::1] rows
        if load_acquire(&place.state) != FINISHED:
            return None
        # One copy, and columns that are views of it: four arrays at the same offset in their pages would evict each
        # other, and this thread takes its time from the lanes where they fill the processors.
        columns = np.empty((place.done, 4), dtype=np.int64)
        if place.done:
            rows = columns
            memcpy(&rows[0, 0], place.records, place.done * sizeof(Record))
        completed = Completed(
            batch=self.batches[self.oldest],
            due_ns=columns[:, 0],
            begin_ns=columns[:, 1],
            end_ns=columns[:, 2],
            result=columns[:, 3],
        )
        self.batches[self.oldest] = None
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
    def starved_ns(self):
        """See `Lane`."""
        return load_relaxed(&self.lane.starved_ns)


# ----------------------------------------------------------------------------------------------------- jitter probe

cdef int64_t bucket_of(int64_t value) noexcept nogil:
    """See `replay.jitter.bucket_of`."""
    cdef int64_t shift = 0
    while (value >> shift) >= C_EXACT_BUCKETS:
        shift += 1
    return (shift << C_SUB_BUCKET_BITS) + (value >> shift)


def record_lateness(int64_t[::1] counts not None, const int64_t[::1] stop not None, int64_t period_ns):
    """See `replay.jitter.JitterProbe`: count lateness by bucket until stopped; its maximum in ns."""
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


def add_to_counter(int64_t[::1] cells, int64_t index, int64_t amount, int64_t multiple):
    """Add to cells[index] atomically, and wake who waits for it when `multiple` divides the sum."""
    if not 0 <= index < cells.shape[0] or multiple < 1:
        raise IndexError(index)
    add_and_wake(&cells[index], amount, multiple)


def bucket_index(int64_t value):
    """`bucket_of` for the tests."""
    return bucket_of(value)
