# A lane: its ring of batches, and the file and the buffer that it holds.

cdef struct Stamps:
    int64_t due
    int64_t begin
    int64_t end
    int64_t result
    int64_t unused      # as long as an item

cdef union Record:
    Item item           # until the item is done
    Stamps stamps       # afterwards

cdef struct Place:
    # One place of the ring. `state` hands the rest over between feeder and lane.
    int64_t state
    int64_t count
    int64_t done
    Record *records     # of the array in `Lane.records`

cdef struct Call:
    int64_t begin
    int64_t end
    int64_t result

cdef struct State

# Calls that only some lanes make go through pointers: inlined, they would cost every read and write some instructions.
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
    Place ring[RING_BATCHES]
    int64_t no_more
    int64_t told        # how often the feeder has filled a place or said that no more comes
    int64_t asleep      # whether the lane sleeps until it is told
    int64_t run_ended
    int64_t starved_ns
    int64_t items_done
    int64_t not_direct
    int64_t opening     # see `Lane.opening`
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
    int64_t crowded     # waits left in which this lane only sleeps, because too many lanes spun at an earlier one or exist
    int64_t held        # slot, -1 for none
    int64_t left_before # uses of the held slot that were left when it was taken up
    int64_t left        # and now, as far as this lane knows; below 0 where the plan did not say
    # Of the held slot:
    File *file
    Handle handle
    int error
    bint moves_data
    bint special
    int buffered_fd
    int64_t room        # what a read's buffer needs beyond its length
    int64_t size
    char *buffer
    int64_t capacity
    int64_t ready       # bytes of the buffer whose pages are there, less `room`
    char *payload
    int64_t payload_bytes


cdef void release_file(State *lane) noexcept nogil:
    """Give the held file back, and close it after its last use. Takes the lock of the file."""
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


cdef bint await_open(State *lane, File *file) noexcept nogil:
    """Wait until the open of a file by another lane has ended, which may hang. Returns False if the run is stopped.

    The caller has the lock of the file; it is free during the wait."""
    cdef int64_t begun = file.opens_begun, opened
    file.awaiting += 1
    pthread_mutex_unlock(&file.lock)
    store_relaxed(&lane.opening, AWAITS_OPEN)
    opened = await_counter(lane, &file.opens_ended, begun, now_ns())
    store_relaxed(&lane.opening, NO_OPEN)
    pthread_mutex_lock(&file.lock)
    file.awaiting -= 1
    return opened >= 0


cdef bint hold_file(State *lane, int64_t slot) noexcept nogil:
    """Hold the file in `slot` instead of the held one, and open it if it is closed. Returns False if the run is stopped
    during the open of another lane. A failed open is no reason for False: `lane.error` has its errno (> 0)."""
    cdef File *file
    release_file(lane)
    lane.held = slot
    lane.moves_data = lane.special = False
    if slot < 0 or slot >= lane.table.count:
        return True
    file = &lane.table.files[slot]
    if file.backend == NULL_IO:
        lane.error = 0
        return True
    pthread_mutex_lock(&file.lock)
    while file.opens_ended < file.opens_begun:
        if not await_open(lane, file):
            pthread_mutex_unlock(&file.lock)
            lane.held = -1
            return False
    lane.moves_data, lane.special = True, file.special
    file.holders += 1
    lane.error = file.open_error
    if file.handle < 0 and file.open_error == 0:
        store_relaxed(&lane.opening, OPENS)
        lane.error = open_file(lane.table, file)
        store_relaxed(&lane.opening, NO_OPEN)
    lane.file, lane.handle = file, file.handle
    lane.buffered_fd, lane.size = file.buffered_fd, file.size
    lane.left_before = lane.left = file.remaining
    pthread_mutex_unlock(&file.lock)
    return True


cdef int make_room(State *lane, int64_t asked, int64_t available) noexcept nogil:
    """Make the read buffer large enough for `asked` bytes. Returns 0 or ENOMEM.

    Touches the pages that a read of a file with `available` bytes left can fill, so that their page faults are not part
    of a latency."""
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
    if reach > CONSUMED_BYTES:
        reach = CONSUMED_BYTES
    while place < reach:
        lane.buffer[place] += 1
        place += CACHE_LINE_BYTES


cdef int find_payload(State *lane, int64_t asked) noexcept nogil:
    """Let the lane write from a payload of at least `asked` bytes, which the table of files owns. Returns 0 or
    ENOMEM."""
    cdef Payload *payload = payload_of(lane.table, asked)
    if payload == NULL:
        return ENOMEM
    lane.payload, lane.payload_bytes = payload.data, payload.bytes
    return 0
