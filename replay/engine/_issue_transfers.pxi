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
    """One request, of a stream, direct or in pieces; bytes or -errno. See `replay.engine.backends`."""
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
