# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The compiled core of `replay.issue` and `replay.jitter`: the same behaviour, without the interpreter lock.

A lane's ring is shared by two threads. The feeder fills a place and releases it as READY; the lane does its items and
releases it as FINISHED; the feeder takes it out and makes it EMPTY. Items travel as records of 32 bytes, and the lane
writes an item's stamps over its record: one cache line every other item, where nine arrays at the same offset in their
pages cost 50 ns per item. The records of a batch are one array that the feeder makes and gets back: nothing is copied
out, for this thread takes its time from the lanes where they fill the processors. All memory that a running lane
touches belongs to the lane or to its table of files, which it keeps alive.
"""

from libc.errno cimport EBADF, EINTR, EINVAL, EMFILE, ENFILE, ENOMEM, EROFS, errno
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t, uintptr_t
from libc.stdio cimport rename
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memset, strdup

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
    int COUNTER_WORDS
    void add_and_wake(int64_t *counter, int64_t amount, int64_t multiple, int64_t now)
    int64_t reached_ns(const int64_t *counter, int64_t least, int64_t multiple)
    long get_timer_slack()
    void set_timer_slack(long slack)
    void make_mutex(pthread_mutex_t *mutex)
    int pthread_mutex_lock(pthread_mutex_t *mutex)
    int pthread_mutex_trylock(pthread_mutex_t *mutex)
    int pthread_mutex_unlock(pthread_mutex_t *mutex)
    int pthread_mutex_destroy(pthread_mutex_t *mutex)

cdef extern from "_issue_streams.h" nogil:
    ctypedef struct Stream:
        pass
    int open_stream(const char *path, bint writable, bint create, Stream **stream)
    int duplicate_stream(Stream *of, Stream **stream)
    int close_stream(Stream *stream)
    int64_t size_of_stream(Stream *stream)
    int seek_stream(Stream *stream, int64_t offset)
    int flush_stream(Stream *stream)
    int64_t transfer_stream(Stream *stream, bint writes, char *data, int64_t length, int64_t offset)

cdef extern from "<stdlib.h>" nogil:
    int posix_memalign(void **memory, size_t alignment, size_t size)

cdef extern from "<fcntl.h>" nogil:
    int c_open "open"(const char *path, int flags, int mode)
    int c_fcntl "fcntl"(int fd, int command, int argument)
    int O_RDONLY, O_RDWR, O_CREAT, O_CLOEXEC, O_NOFOLLOW, O_DIRECT
    int F_DUPFD_CLOEXEC, AT_FDCWD, AT_SYMLINK_NOFOLLOW

cdef extern from "<sys/stat.h>" nogil:
    struct stat:
        int64_t st_size
    int fstat(int fd, stat *status)
    int fstatat(int folder, const char *path, stat *status, int flags)

cdef extern from "<sys/uio.h>" nogil:
    struct iovec:
        void *iov_base
        size_t iov_len
    ssize_t preadv(int fd, const iovec *pieces, int count, int64_t offset)
    ssize_t pwritev(int fd, const iovec *pieces, int count, int64_t offset)

cdef extern from "<unistd.h>" nogil:
    ssize_t pread(int fd, void *buffer, size_t count, int64_t offset)
    ssize_t pwrite(int fd, const void *buffer, size_t count, int64_t offset)
    int c_close "close"(int fd)
    int fsync(int fd)
    int64_t lseek(int fd, int64_t offset, int whence)
    int SEEK_SET

# Numbers of replay.issue and replay.backends.base, which say what they mean; a test compares them.
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
    C_MAX_FEED_POLL_NS = 4000000
    C_GATE_POLL_NS = 5000000
    C_END_OF_FILE_READ_BYTES = 4096
    C_MAX_TRANSFER_BYTES = 0x7FFFF000
    C_CONSUMED_BYTES = 524288
    C_BLOCK_BYTES = 4096
    C_CACHE_LINE_BYTES = 64
    C_EXACT_BUCKETS = 128
    C_SUB_BUCKET_BITS = 6

CONSTANTS = {
    "RING_BATCHES": C_RING_BATCHES,
    "WINDOW_NS": C_WINDOW_NS,
    "PIECE_NS": C_PIECE_NS,
    "FEED_POLL_NS": C_FEED_POLL_NS,
    "MAX_FEED_POLL_NS": C_MAX_FEED_POLL_NS,
    "GATE_POLL_NS": C_GATE_POLL_NS,
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

cdef enum:
    POSIX = 0
    STDIO = 1
    NULL_IO = 2

BACKENDS = {"posix": POSIX, "stdio": STDIO, "null": NULL_IO}

# What a file is used through: a descriptor, or the address of a Stream; below 0 for none, and where a function returns
# it, -errno. No address is below 0: that half of the address space is the kernel's.
ctypedef int64_t Handle

cdef struct File:
    # Everything below `lock` is read and written under it.
    char *path
    int backend
    int flags           # of a stream too: whether it is writable, and made
    bint special        # requests are more than one pread or pwrite
    pthread_mutex_t lock
    Handle handle
    int buffered_fd     # beside a direct one that was written to in parts of blocks, below 0 for none
    Handle *spares      # that OPEN items made, which nobody uses
    int64_t spare_count
    int64_t spare_room
    bint detached       # renamed while it was held: the last holder closes it
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
    bint direct         # O_DIRECT, of POSIX files
    int64_t pieces      # buffers of a request, 0 for a plain one
    int64_t hand        # of the clock that looks for idle files
    pthread_mutex_t payload_lock
    Payload *payload


cdef inline Stream *stream_of(Handle handle) noexcept nogil:
    return <Stream *><uintptr_t>handle


cdef int close_handle(File *file, Handle handle) noexcept nogil:
    """0 or -errno."""
    if file.backend == STDIO:
        return close_stream(stream_of(handle))
    # After EINTR Linux has closed the descriptor all the same (close(2)).
    return -errno if c_close(<int>handle) != 0 and errno != EINTR else 0


cdef void give_up(File *file, Handle handle) noexcept nogil:
    """Close a handle, if it is one, that no item is about; an error is noted."""
    cdef int error = close_handle(file, handle) if handle >= 0 else 0
    if error:
        file.close_error = -error


cdef void give_up_buffered(File *file) noexcept nogil:
    if file.buffered_fd >= 0 and c_close(file.buffered_fd) != 0 and errno != EINTR:
        file.close_error = errno
    file.buffered_fd = -1


cdef bint close_unheld(File *file) noexcept nogil:
    """Close a file that nobody holds; whether anything was open. The caller has its lock."""
    cdef bint was_open = file.handle >= 0 or file.spare_count > 0
    if file.holders > 0:
        return False
    give_up(file, file.handle)
    give_up_buffered(file)
    file.handle = -1
    while file.spare_count > 0:
        file.spare_count -= 1
        give_up(file, file.spares[file.spare_count])
    file.detached = False
    return was_open


cdef bint close_idle(Table *table, File *wanted) noexcept nogil:
    """Close one file that nobody holds or one spare, going round the table; False when there is none."""
    cdef int64_t step
    cdef bint closed
    cdef File *file
    for step in range(table.count):
        file = &table.files[take_ticket(&table.hand) % table.count]
        # Never blocks on another slot: its lock may be held by a lane that looks for an idle file too.
        if file == wanted or pthread_mutex_trylock(&file.lock) != 0:
            continue
        closed = file.spare_count > 0
        if closed:
            file.spare_count -= 1
            give_up(file, file.spares[file.spare_count])
        else:
            closed = close_unheld(file)
        pthread_mutex_unlock(&file.lock)
        if closed:
            return True
    return False


cdef int open_descriptor(File *file, int flags) noexcept nogil:
    """A descriptor or -errno."""
    cdef int fd = c_open(file.path, flags, 0o666)
    while fd < 0 and errno == EINTR:
        fd = c_open(file.path, flags, 0o666)
    return fd if fd >= 0 else -errno


cdef Handle open_handle(File *file) noexcept nogil:
    cdef Stream *stream = NULL
    cdef int error
    if file.backend != STDIO:
        return open_descriptor(file, file.flags)
    error = open_stream(file.path, file.flags & O_RDWR, file.flags & O_CREAT, &stream)
    return error if error else <Handle><uintptr_t>stream


cdef bint lacks_descriptors(Handle opened) noexcept nogil:
    return opened == -EMFILE or opened == -ENFILE


cdef void own_handle(File *file, Handle handle) noexcept nogil:
    """Make a handle the file's own, or close it and note the error. The caller has its lock."""
    cdef stat status
    cdef int64_t size
    if file.backend == STDIO:
        size = size_of_stream(stream_of(handle))
    else:
        size = status.st_size if fstat(<int>handle, &status) == 0 else -errno
    file.open_error = <int>-size if size < 0 else 0
    if size < 0:
        close_handle(file, handle)
        return
    file.handle, file.size = handle, size


cdef void open_file(Table *table, File *file) noexcept nogil:
    """Open a closed file or note the error; where there are no descriptors left, idle files are closed. The caller has
    its lock."""
    cdef Handle handle = open_handle(file)
    while lacks_descriptors(handle) and close_idle(table, file):
        handle = open_handle(file)
    if handle >= 0:
        own_handle(file, handle)
    else:
        file.open_error = <int>-handle


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
    """The files of one process, for compiled lanes: see `replay.backends.base.PythonFiles`.

    `backends`: one of BACKENDS a slot. `direct` and `pieces` are of the POSIX ones.
    Raises: KeyError for another back end; ValueError where there is not one a slot.
    """

    cdef Table table
    cdef tuple paths
    cdef readonly str core

    def __cinit__(self, slots, *, backends, bint direct=False, int pieces=0):
        cdef File *file
        slots = tuple(slots)
        self.core = "compiled"
        self.paths = tuple(slot.path for slot in slots)
        self.table.direct = direct
        self.table.pieces = pieces
        make_mutex(&self.table.payload_lock)
        self.table.files = <File *>calloc(max(len(self.paths), 1), sizeof(File))
        if self.table.files == NULL:
            raise MemoryError
        for slot, backend in zip(slots, backends, strict=True):
            file = &self.table.files[self.table.count]
            file.backend = BACKENDS[backend]
            file.path = strdup(slot.path)
            if file.path == NULL:
                raise MemoryError
            file.special = file.backend == STDIO or (file.backend == POSIX and (direct or pieces > 0))
            file.flags = O_CLOEXEC | (O_RDWR | O_NOFOLLOW if slot.writable else O_RDONLY)
            if direct and file.backend == POSIX:
                file.flags |= O_DIRECT
            if slot.writable and slot.create:
                file.flags |= O_CREAT
            file.handle = file.buffered_fd = -1
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
            free(self.table.files[index].spares)
        free(self.table.files)
        while payload != NULL:
            self.table.payload = payload.older
            free(payload.data)
            free(payload)
            payload = self.table.payload

    def __len__(self):
        return self.table.count

    def prepare_payload(self, int64_t length):
        """See `FileTable`."""
        with nogil:
            payload_of(&self.table, length)

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
    Record *records     # of the array in `CompiledLane.records`

cdef struct Call:
    int64_t begin
    int64_t end
    int64_t result

cdef struct State

# What only some lanes do is called through pointers: inlined, it would cost every read and write some instructions.
cdef struct Rare:
    int (*prepare_other)(State *lane, int kind, int64_t slot, int64_t offset) noexcept nogil
    Call (*call_other)(State *lane, int kind, int64_t slot, int64_t offset, int error) noexcept nogil
    Call (*call_counter)(
        State *lane, int kind, int64_t slot, int64_t amount, int64_t multiple, int64_t begin
    ) noexcept nogil
    int (*prepare_special)(State *lane, int kind, int64_t asked, int64_t offset) noexcept nogil
    int64_t (*transfer_special)(State *lane, int kind, int64_t asked, int64_t offset) noexcept nogil

cdef struct State:
    # Shared with the feeder.
    Place ring[C_RING_BATCHES]
    int64_t no_more
    int64_t run_ended
    int64_t starved_ns
    int64_t items_done
    int64_t not_direct
    # The lane's own.
    Rare rare
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
    # Of the held slot:
    int error
    bint moves_data
    bint special
    int fd
    int buffered_fd
    Stream *stream      # NULL for a descriptor
    int64_t room        # what a read's buffer needs beyond its length
    iovec *pieces
    int piece_count     # of the next request
    int64_t size
    char *buffer
    int64_t capacity
    int64_t ready       # bytes of the buffer whose pages are there, less `room`
    const char *payload
    int64_t payload_bytes


cdef void release_file(State *lane) noexcept nogil:
    """Give the held file back; when all its uses are done, this closes it."""
    cdef File *file
    if 0 <= lane.held < lane.table.count and lane.table.files[lane.held].backend != NULL_IO:
        file = &lane.table.files[lane.held]
        pthread_mutex_lock(&file.lock)
        file.holders -= 1
        file.remaining -= lane.left_before - lane.left
        if file.remaining <= 0 or file.detached:
            close_unheld(file)
        pthread_mutex_unlock(&file.lock)
    lane.held, lane.error = -1, EBADF
    lane.left_before = lane.left = 0


cdef void hold_file(State *lane, int64_t slot) noexcept nogil:
    """Change over to another file, opening it if it is not."""
    cdef File *file
    release_file(lane)
    lane.held = slot
    lane.moves_data = lane.special = False
    if slot < 0 or slot >= lane.table.count:
        return
    file = &lane.table.files[slot]
    if file.backend == NULL_IO:
        lane.error = 0
        return
    lane.moves_data, lane.special = True, file.special
    pthread_mutex_lock(&file.lock)
    if file.handle < 0 and file.open_error == 0:
        open_file(lane.table, file)
    file.holders += 1
    lane.stream = stream_of(file.handle) if file.backend == STDIO else NULL
    lane.fd = <int>file.handle if file.backend == POSIX else -1
    lane.buffered_fd, lane.size, lane.error = file.buffered_fd, file.size, file.open_error
    lane.left_before = lane.left = file.remaining
    pthread_mutex_unlock(&file.lock)


cdef int make_room(State *lane, int64_t asked, int64_t available) noexcept nogil:
    """Grow the read buffer, and touch what the read can fill: page faults are no part of a latency. 0 or ENOMEM."""
    cdef int64_t capacity, reach
    cdef void *memory = NULL
    asked += lane.room
    if asked > lane.capacity:
        capacity = PAGE_BYTES
        while capacity < asked:
            capacity *= 2
        free(lane.buffer)
        lane.buffer, lane.capacity, lane.ready = NULL, 0, -lane.room
        if posix_memalign(&memory, PAGE_BYTES, capacity) != 0:
            return ENOMEM
        lane.buffer, lane.capacity = <char *>memory, capacity
    reach = asked if asked < available + lane.room else available + lane.room
    if reach > lane.ready + lane.room:
        memset(lane.buffer + lane.ready + lane.room, 0, reach - lane.ready - lane.room)
        lane.ready = reach - lane.room
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
    """The clock after a look that found a counter at `least` or more, -1 when stopped. Spins first, then sleeps."""
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


cdef void split(State *lane, char *data, int64_t length, int64_t align) noexcept nogil:
    """Describe a buffer as up to `table.pieces` parts, each but the last of one size, a multiple of `align`."""
    cdef int64_t size = (length + lane.table.pieces * align - 1) // (lane.table.pieces * align) * align
    lane.piece_count = 0
    while length > 0 or lane.piece_count == 0:
        if size > length:
            size = length
        lane.pieces[lane.piece_count].iov_base = data
        lane.pieces[lane.piece_count].iov_len = size
        lane.piece_count += 1
        data += size
        length -= size


cdef inline int64_t whole_blocks(int64_t length) noexcept nogil:
    return (length + C_BLOCK_BYTES - 1) // C_BLOCK_BYTES * C_BLOCK_BYTES


cdef int open_buffered(State *lane) noexcept nogil:
    """Open the held file once more for what is not to go past the page cache. 0 or errno."""
    cdef File *file = &lane.table.files[lane.held]
    cdef int flags = file.flags & ~(O_DIRECT | O_CREAT)
    pthread_mutex_lock(&file.lock)
    if file.buffered_fd < 0:
        file.buffered_fd = open_descriptor(file, flags)
        while lacks_descriptors(file.buffered_fd) and close_idle(lane.table, file):
            file.buffered_fd = open_descriptor(file, flags)
    lane.buffered_fd = file.buffered_fd
    pthread_mutex_unlock(&file.lock)
    return -lane.buffered_fd if lane.buffered_fd < 0 else 0


cdef int prepare_special(State *lane, int kind, int64_t asked, int64_t offset) noexcept nogil:
    """The parts of a request's buffer, and the descriptor that it needs. 0 or errno."""
    cdef int64_t align = C_BLOCK_BYTES if lane.table.direct else 1
    if lane.stream != NULL:
        return 0
    if lane.table.direct and kind == C_READ:
        asked = whole_blocks(offset % C_BLOCK_BYTES + asked)
    elif lane.table.direct and (offset | asked) % C_BLOCK_BYTES:
        align = 1
        if lane.buffered_fd < 0 and open_buffered(lane) != 0:
            return -lane.buffered_fd
    if lane.table.pieces:
        split(lane, lane.buffer if kind == C_READ else <char *>lane.payload, asked, align)
    return 0


cdef int64_t transfer_special(State *lane, int kind, int64_t asked, int64_t offset) noexcept nogil:
    """One request, of a stream, direct or in pieces; bytes or -errno. See `replay.backends`."""
    cdef int fd = lane.fd
    cdef int64_t before = 0, reach = asked
    cdef ssize_t moved
    if lane.stream != NULL:
        return transfer_stream(
            lane.stream, kind == C_WRITE, lane.buffer if kind == C_READ else <char *>lane.payload, asked, offset
        )
    if lane.table.direct:
        if kind == C_READ:
            before = offset % C_BLOCK_BYTES
            reach = whole_blocks(before + asked)
        elif (offset | asked) % C_BLOCK_BYTES:
            fd = lane.buffered_fd
            store_relaxed(&lane.not_direct, lane.not_direct + 1)
    while True:
        if lane.table.pieces and kind == C_READ:
            moved = preadv(fd, lane.pieces, lane.piece_count, offset - before)
        elif lane.table.pieces:
            moved = pwritev(fd, lane.pieces, lane.piece_count, offset)
        elif kind == C_READ:
            moved = pread(fd, lane.buffer, reach, offset - before)
        else:
            moved = pwrite(fd, lane.payload, asked, offset)
        if moved >= 0:
            break
        if errno != EINTR:
            return -errno
    if kind == C_WRITE:
        return moved
    moved -= before
    return 0 if moved < 0 else asked if moved > asked else moved


# ----------------------------------------------------------------------- operations beside read and write: see lane_files

cdef inline bint has_slot(State *lane, int64_t slot) noexcept nogil:
    return 0 <= slot < lane.table.count


cdef void count_use(State *lane, int64_t slot) noexcept nogil:
    """Count an operation on a file that is not held for it."""
    cdef File *file
    if not has_slot(lane, slot):
        return
    file = &lane.table.files[slot]
    pthread_mutex_lock(&file.lock)
    file.remaining -= 1
    if file.remaining <= 0:
        close_unheld(file)
    pthread_mutex_unlock(&file.lock)


cdef void detach(File *file) noexcept nogil:
    """Close a file whose name is about to mean another; where lanes hold it, the last of them does."""
    pthread_mutex_lock(&file.lock)
    file.open_error = 0
    file.detached = file.holders > 0
    close_unheld(file)
    pthread_mutex_unlock(&file.lock)


cdef int prepare_other(State *lane, int kind, int64_t slot, int64_t offset) noexcept nogil:
    """All that is outside of the latency; errno that refuses the item, 0 for none."""
    release_file(lane)
    if not has_slot(lane, slot):
        return EBADF
    if kind == C_RENAME:
        if not has_slot(lane, offset):
            return EBADF
        if not (lane.table.files[slot].flags & lane.table.files[offset].flags & O_RDWR):
            return EROFS
        detach(&lane.table.files[slot])
        detach(&lane.table.files[offset])
        return 0
    if kind == C_SEEK and offset < 0:
        return EINVAL
    if kind == C_STAT or kind == C_OPEN:
        return 0
    hold_file(lane, slot)
    return lane.error


cdef Handle another(File *file) noexcept nogil:
    """A further handle on the same open file, or -errno."""
    cdef Stream *stream = NULL
    cdef int made
    if file.backend == STDIO:
        made = duplicate_stream(stream_of(file.handle), &stream)
        return made if made else <Handle><uintptr_t>stream
    made = c_fcntl(<int>file.handle, F_DUPFD_CLOEXEC, 0)
    return made if made >= 0 else -errno


cdef Handle take(State *lane, int64_t slot) noexcept nogil:
    """Give up the held file and get a handle of it to close, or -errno: see `PythonFiles.take`."""
    cdef File *file = &lane.table.files[slot]
    cdef Handle handle
    pthread_mutex_lock(&file.lock)
    file.holders -= 1
    if file.spare_count > 0:
        file.spare_count -= 1
        handle = file.spares[file.spare_count]
    elif file.holders > 0:
        handle = another(file)
    else:
        handle = file.handle
        file.handle = -1
        give_up_buffered(file)
    pthread_mutex_unlock(&file.lock)
    lane.held, lane.error = -1, EBADF
    lane.left_before = lane.left = 0
    return handle


cdef void keep_open(File *file, Handle handle) noexcept nogil:
    """Keep what an OPEN item made: as the file's own when it has none, else beside it."""
    cdef int64_t room
    cdef void *grown
    pthread_mutex_lock(&file.lock)
    file.open_error = 0
    if file.spare_count == file.spare_room:
        room = 2 * file.spare_room + 4
        grown = realloc(file.spares, room * sizeof(Handle))
        if grown != NULL:
            file.spares, file.spare_room = <Handle *>grown, room
    if file.handle < 0:
        own_handle(file, handle)
    elif file.spare_count < file.spare_room:
        file.spares[file.spare_count] = handle
        file.spare_count += 1
    else:
        give_up(file, handle)  # no memory to keep it in
    pthread_mutex_unlock(&file.lock)


cdef int call_on_path(File *file, File *renamed_to) noexcept nogil:
    """STAT, or RENAME where there is another file; 0 or -errno. The same calls for descriptors and streams."""
    cdef stat status
    cdef int result
    if renamed_to == NULL:
        result = fstatat(AT_FDCWD, file.path, &status, AT_SYMLINK_NOFOLLOW if file.flags & O_RDWR else 0)
    else:
        result = rename(file.path, renamed_to.path)
    return -errno if result < 0 else 0


cdef int call_on_handle(State *lane, int kind, int64_t offset) noexcept nogil:
    """SYNC or SEEK on the held file; 0 or -errno."""
    cdef bint failed
    if lane.stream != NULL:
        return flush_stream(lane.stream) if kind == C_SYNC else seek_stream(lane.stream, offset)
    if kind == C_SYNC:
        failed = fsync(lane.fd) != 0
    else:
        failed = lseek(lane.fd, offset, SEEK_SET) < 0
    return -errno if failed else 0


cdef Call call_open(State *lane, File *file) noexcept nogil:
    """OPEN, once more from its beginning for each idle file that had to be closed for it."""
    cdef Call call
    cdef Handle handle
    while True:
        call.begin = now_ns()
        handle = open_handle(file)
        call.end = now_ns()
        if not lacks_descriptors(handle) or not close_idle(lane.table, NULL):
            break
    call.result = handle if handle < 0 else 0
    if handle >= 0:
        keep_open(file, handle)
    return call


cdef Call call_other(State *lane, int kind, int64_t slot, int64_t offset, int error) noexcept nogil:
    """The one call of an item that moves no data, unless `error` refuses it."""
    cdef Call call
    cdef File *file = &lane.table.files[slot] if has_slot(lane, slot) else NULL
    cdef Handle taken
    if error or file.backend == NULL_IO:
        call.begin = now_ns()
        call.end = now_ns()
        call.result = -error
    elif kind == C_OPEN:
        call = call_open(lane, file)
    else:
        taken = take(lane, slot) if kind == C_CLOSE else 0
        call.begin = now_ns()
        if kind == C_CLOSE:
            call.result = taken if taken < 0 else close_handle(file, taken)
        elif kind == C_SYNC or kind == C_SEEK:
            call.result = call_on_handle(lane, kind, offset)
        else:
            call.result = call_on_path(file, &lane.table.files[offset] if kind == C_RENAME else NULL)
        call.end = now_ns()
    if lane.held == slot and slot >= 0:
        lane.left -= 1
        if lane.left == 0:
            release_file(lane)
    else:
        count_use(lane, slot)
        if kind == C_RENAME and not error:
            count_use(lane, offset)
    return call


cdef Call call_counter(
    State *lane, int kind, int64_t slot, int64_t amount, int64_t multiple, int64_t begin
) noexcept nogil:
    """A WAIT or ADD item; its end is -1 when it was given up for a stop."""
    cdef Call call
    cdef int64_t *counter
    call.begin = call.end = begin
    call.result = 0
    if not 0 <= slot < lane.counter_count:
        call.result = -EINVAL
        return call
    counter = &lane.counters[slot * COUNTER_WORDS]
    if kind == C_ADD:
        add_and_wake(counter, amount, multiple, begin)
        call.end = now_ns()
    elif await_counter(lane, counter, amount, begin) < 0:
        call.end = -1
    else:
        # Not when this lane woke up: what follows is due after what it waited for.
        call.end = reached_ns(counter, amount, multiple)
        if call.end < begin:
            call.end = begin
    return call


cdef void issue(State *lane, Place *batch) noexcept nogil:
    """Do the items of a batch, or those before a stop. One read of the clock per item when nothing is waited for."""
    cdef int64_t i, slot, offset, length, asked, due, begin, end, result
    cdef int64_t now = 0, t0 = lane.t0, items_before = lane.items_done
    cdef int kind, error
    cdef Record *record
    cdef Call call
    cdef bint moves_data = lane.moves_data, special = lane.special  # of the held file
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
                moves_data, special = lane.moves_data, lane.special
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
                if special and error == 0:
                    error = lane.rare.prepare_special(lane, kind, asked, offset)
                    stale = True
        elif kind < C_SLEEP:
            error = lane.rare.prepare_other(lane, kind, record.item.slot, offset)
            moves_data, special = lane.moves_data, lane.special
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
            if error:
                result = -error
            elif not moves_data:
                result = length
            elif not special:
                result = transfer(lane, kind, asked, offset)
            else:
                result = lane.rare.transfer_special(lane, kind, asked, offset)
            end = now_ns()
            lane.left -= 1
            if lane.left == 0:
                release_file(lane)
                stale = True
        elif kind >= C_WAIT:
            call = lane.rare.call_counter(lane, kind, record.item.slot, length, offset, begin)
            end, result = call.end, call.result
            if end < 0:
                batch.done = i
                break
            stale = True
        elif kind < C_SLEEP:
            call = lane.rare.call_other(lane, kind, record.item.slot, offset, error)
            begin, end, result = call.begin, call.end, call.result
            if lane.pace == C_NONE:
                due = begin
            stale = True
        else:
            result = 0
            # After another item compute is due with its end: a late wake-up does not lengthen it.
            end = compute(lane, kind, begin, length + (due - begin if lane.pace == C_THINK else 0))
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
        sleep_until_ns(now + min(max(C_FEED_POLL_NS, (now - waiting_since) >> 3), C_MAX_FEED_POLL_NS))
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
    """A lane over POSIX, streams and null: see `replay.issue.Lane`."""

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
        if files.table.pieces:
            self.lane.pieces = <iovec *>malloc(files.table.pieces * sizeof(iovec))
            if self.lane.pieces == NULL:
                raise MemoryError
        self.lane.held = -1
        self.lane.error = EBADF

    def __dealloc__(self):
        free(self.lane.buffer)
        free(self.lane.pieces)

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
        self.tail = (self.tail + 1) % C_RING_BATCHES
        return True

    def finish(self):
        """See `Lane`."""
        store_release(&self.lane.no_more, 1)

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
    def starved_ns(self):
        """See `Lane`."""
        return load_relaxed(&self.lane.starved_ns)

    @property
    def not_direct(self):
        """See `Lane`."""
        return load_relaxed(&self.lane.not_direct)


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


def add_to_counter(int64_t[:, ::1] cells, int64_t index, int64_t amount, int64_t multiple, int64_t now):
    """Add to a counter (`replay.counters`) atomically, and wake who waits for it at multiples."""
    if not 0 <= index < cells.shape[0] or multiple < 1:
        raise IndexError(index)
    add_and_wake(&cells[index, 0], amount, multiple, now)


def bucket_index(int64_t value):
    """`bucket_of` for the tests."""
    return bucket_of(value)
