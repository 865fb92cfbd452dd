# Reads and writes: see dxt_replay.replay.engine.backends.posix and dxt_replay.replay.engine.backends.stdio.

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


cdef inline int64_t whole_blocks(int64_t length) noexcept nogil:
    return (length + C_BLOCK_BYTES - 1) // C_BLOCK_BYTES * C_BLOCK_BYTES


cdef int open_buffered(State *lane) noexcept nogil:
    """Open the held file once more for what is not to go past the page cache. 0 or errno."""
    cdef File *file = &lane.table.files[lane.held]
    cdef int flags = file.flags & ~(O_DIRECT | O_CREAT)
    cdef bint more = True
    pthread_mutex_lock(&file.lock)
    if file.buffered_fd < 0:
        file.buffered_fd = open_descriptor(file, flags)
        while more and lacks_descriptors(file.buffered_fd):
            more = close_idle(lane.table, file)
            file.buffered_fd = open_descriptor(file, flags)
    lane.buffered_fd = file.buffered_fd
    pthread_mutex_unlock(&file.lock)
    return -lane.buffered_fd if lane.buffered_fd < 0 else 0


cdef int prepare_special(State *lane, int kind, int64_t asked, int64_t offset) noexcept nogil:
    """Open the descriptor of a write that cannot go direct. 0 or errno."""
    if lane.stream != NULL or kind == C_READ:
        return 0
    if (offset | asked) % C_BLOCK_BYTES and lane.buffered_fd < 0 and open_buffered(lane) != 0:
        return -lane.buffered_fd
    return 0


cdef int64_t transfer_special(State *lane, int kind, int64_t asked, int64_t offset) noexcept nogil:
    """One request, of a stream or direct; bytes or -errno. See `replay.engine.backends`."""
    cdef int fd = lane.fd
    cdef int64_t before = 0, reach = asked
    cdef ssize_t moved
    if lane.stream != NULL:
        return transfer_stream(
            lane.stream, kind == C_WRITE, lane.buffer if kind == C_READ else <char *>lane.payload, asked, offset
        )
    if kind == C_READ:
        before = offset % C_BLOCK_BYTES
        reach = whole_blocks(before + asked)
    elif (offset | asked) % C_BLOCK_BYTES:
        fd = lane.buffered_fd
        store_relaxed(&lane.not_direct, lane.not_direct + 1)
    while True:
        if kind == C_READ:
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
