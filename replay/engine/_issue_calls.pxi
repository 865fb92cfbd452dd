# The calls of operations: reads and writes, and those beside them. See items.py.

cdef inline int64_t transfer(int fd, int kind, char *data, int64_t asked, int64_t offset) noexcept nogil:
    """One pread or pwrite of `asked` bytes, again after EINTR. Returns the bytes moved, or -errno."""
    cdef ssize_t moved
    while True:
        moved = pread(fd, data, asked, offset) if kind == READ_AT else pwrite(fd, data, asked, offset)
        if moved >= 0:
            return moved
        if errno != EINTR:
            return -errno


cdef inline int64_t whole_blocks(int64_t length) noexcept nogil:
    """`length` bytes rounded up to a multiple of BLOCK_BYTES."""
    return (length + BLOCK_BYTES - 1) // BLOCK_BYTES * BLOCK_BYTES


cdef int prepare_special(State *lane, int kind, int64_t asked, int64_t offset) noexcept nogil:
    """Open the held file once more, without O_DIRECT, for a write that is not of whole blocks. Returns 0 or errno (>
    0).

    Takes the lock of the file. The descriptor belongs to the file."""
    cdef File *file = lane.file
    cdef int flags = file.flags & ~(O_DIRECT | O_CREAT)
    cdef bint more = True
    cdef bint goes_direct = kind == READ_AT or (offset | asked) % BLOCK_BYTES == 0
    if goes_direct or lane.buffered_fd >= 0 or not file.flags & O_DIRECT:
        return 0
    pthread_mutex_lock(&file.lock)
    if file.buffered_fd < 0:
        file.buffered_fd = open_descriptor(file, flags)
        while more and lacks_descriptors(file.buffered_fd):
            more = close_idle(lane.table, file)
            file.buffered_fd = open_descriptor(file, flags)
    lane.buffered_fd = file.buffered_fd
    pthread_mutex_unlock(&file.lock)
    return -lane.buffered_fd if lane.buffered_fd < 0 else 0


cdef int64_t transfer_special(State *lane, int kind, int64_t asked, int64_t offset) noexcept nogil:
    """One read or write of a stream, of a mapped file, of a back end in Python, or direct. Returns bytes or -errno.

    A direct read is widened to whole blocks; the bytes before and after those asked for do not count. See
    `replay.engine.files`."""
    cdef char *data = lane.buffer if kind == READ_AT else lane.payload
    cdef int64_t before, moved
    if lane.file.backend == PYTHON:
        return call_python(lane.file, kind, lane.handle, offset, asked, data)
    if lane.file.backend == STDIO:
        return transfer_stream(stream_of(lane.handle), kind == WRITE_AT, data, asked, offset)
    if lane.file.backend == MAPPED:
        return touch_mapping(mapping_of(lane.handle), offset, asked) if kind == READ_AT else -EROFS
    if kind == WRITE_AT and (offset | asked) % BLOCK_BYTES:
        store_relaxed(&lane.not_direct, lane.not_direct + 1)
        return transfer(lane.buffered_fd, kind, data, asked, offset)
    before = offset % BLOCK_BYTES  # 0 of a write
    moved = transfer(<int>lane.handle, kind, data, whole_blocks(before + asked), offset - before)
    return moved if moved < 0 else max(0, min(moved - before, asked))


cdef inline bint has_slot(State *lane, int64_t slot) noexcept nogil:
    """Whether the table of files has this slot: items come from a capture, which may be wrong."""
    return 0 <= slot < lane.table.count


cdef void count_use(State *lane, int64_t slot) noexcept nogil:
    """Count an operation on a file that the lane does not hold, and close the file after its last one."""
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
    """Close a file that is about to get another name, so that the name is opened anew. If lanes hold the file, the last
    of them closes it. Takes the lock of the file."""
    pthread_mutex_lock(&file.lock)
    file.open_error = 0
    file.detached = file.holders > 0
    close_unheld(file)
    pthread_mutex_unlock(&file.lock)


cdef int prepare_other(State *lane, int kind, int64_t slot, int64_t offset) noexcept nogil:
    """Prepare an item that moves no data, which is not part of its latency. Returns 0, the errno (> 0) with which the
    item fails, or STOPPED."""
    release_file(lane)
    if not has_slot(lane, slot):
        return EBADF
    if kind == RENAME:
        if not has_slot(lane, offset):
            return EBADF
        if not (lane.table.files[slot].flags & lane.table.files[offset].flags & O_RDWR):
            return EROFS
        detach(&lane.table.files[slot])
        detach(&lane.table.files[offset])
        return 0
    if kind == SEEK and offset < 0:
        return EINVAL
    if kind == DELETE:
        if not lane.table.files[slot].flags & O_RDWR:
            return EROFS
        detach(&lane.table.files[slot])
        return 0
    if kind == STAT or kind == OPEN or kind == LIST:
        return 0
    return lane.error if hold_file(lane, slot) else STOPPED


cdef Handle another(File *file) noexcept nogil:
    """A further handle of an open file, which the caller closes, or -errno. The caller has the lock of the file."""
    cdef Stream *stream = NULL
    cdef Mapping *mapping = NULL
    cdef int made
    if file.backend == STDIO:
        made = duplicate_stream(stream_of(file.handle), &stream)
        return made if made else <Handle><uintptr_t>stream
    if file.backend == MAPPED:
        made = duplicate_mapping(mapping_of(file.handle), &mapping)
        return made if made else <Handle><uintptr_t>mapping
    if file.backend == PYTHON:
        return call_python(file, ASK_ANOTHER, file.handle, 0, 0, NULL)
    made = c_fcntl(<int>file.handle, F_DUPFD_CLOEXEC, 0)
    return made if made >= 0 else -errno


cdef Handle take(State *lane, int64_t slot) noexcept nogil:
    """Give up the held file, and take a handle of it for a CLOSE item to close; -errno if none can be made.

    It is a spare handle if there is one, a duplicate if other lanes hold the file, else the handle of the file
    itself."""
    cdef File *file = &lane.table.files[slot]
    cdef Handle handle
    cdef bint more = True
    pthread_mutex_lock(&file.lock)
    file.holders -= 1
    if file.spare_count > 0:
        file.spare_count -= 1
        handle = file.spares[file.spare_count]
    elif file.holders > 0:
        handle = another(file)
        while more and lacks_descriptors(handle):
            more = close_idle(lane.table, file)
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
    """Keep the handle that an OPEN item made: as the file's own if it has none, else as a spare. Takes the lock."""
    pthread_mutex_lock(&file.lock)
    file.open_error = 0
    if file.handle < 0:
        own_handle(file, handle, size_of_handle(file, handle))
    else:
        keep_spare(file, handle)
    pthread_mutex_unlock(&file.lock)


cdef int call_on_path(File *file, int kind, File *renamed_to) noexcept nogil:
    """STAT, LIST, DELETE, or RENAME to `renamed_to`. Returns 0 or -errno. Descriptors and streams need the same
    calls."""
    cdef struct_stat status
    cdef int result
    if file.backend == PYTHON:
        return <int>call_python(file, kind, -1, 0, 0, NULL if renamed_to == NULL else renamed_to.path)
    if kind == RENAME:
        return rename_link_free(file.path, renamed_to.path)
    if kind == DELETE:
        return unlink_link_free(file.path)
    if kind == LIST:
        return list_folder(file.path)
    result = fstatat(AT_FDCWD, file.path, &status, AT_SYMLINK_NOFOLLOW if file.flags & O_RDWR else 0)
    return -errno if result < 0 else 0


cdef int call_on_handle(State *lane, int kind, int64_t offset) noexcept nogil:
    """SYNC or SEEK on the held file; 0 or -errno."""
    cdef bint failed
    cdef Stream *stream = stream_of(lane.handle)
    cdef int fd = <int>lane.handle
    if lane.file.backend == PYTHON:
        return <int>call_python(lane.file, kind, lane.handle, offset, 0, NULL)
    if lane.file.backend == STDIO:
        return flush_stream(stream) if kind == SYNC else seek_stream(stream, offset)
    if lane.file.backend == MAPPED:
        return 0  # a mapping has no position, and one that is only read has nothing to sync
    if kind == SYNC:
        failed = fsync(fd) != 0
        while failed and errno == EINTR:
            failed = fsync(fd) != 0
    else:
        # The position of a stream stays where the stream left it: reads here have offsets of their own.
        failed = lseek(fd, 0 if lane.file.shares else offset, SEEK_CUR if lane.file.shares else SEEK_SET) < 0
    return -errno if failed else 0


cdef Call call_open(State *lane, File *file, int64_t offset) noexcept nogil:
    """OPEN. If the process lacks descriptors, an idle file is closed and the item begins again, so that its latency is
    that of one open."""
    cdef Call call
    cdef Handle handle
    cdef bint more = True
    while True:
        call.begin = now_ns()
        handle = open_handle(file, OPEN, offset)
        call.end = now_ns()
        if not more or not lacks_descriptors(handle):
            break
        more = close_idle(lane.table, NULL)
    call.result = handle if handle < 0 else 0
    if handle >= 0:
        if offset == READ_AHEAD and file.backend == POSIX:
            posix_fadvise(<int>handle, 0, 0, POSIX_FADV_SEQUENTIAL)
        keep_open(file, handle)
    return call


cdef Call call_other(State *lane, int kind, int64_t slot, int64_t offset, int error) noexcept nogil:
    """The one call of an item that moves no data, with its times. `error`: errno with which the item fails without a
    call, 0 for none."""
    cdef Call call
    cdef File *file = &lane.table.files[slot] if has_slot(lane, slot) else NULL
    cdef Handle taken
    if error or file.backend == NULL_IO:
        call.begin = now_ns()
        call.end = now_ns()
        call.result = -error
    elif kind == OPEN:
        call = call_open(lane, file, offset)
    else:
        taken = take(lane, slot) if kind == CLOSE else 0
        call.begin = now_ns()
        if kind == CLOSE:
            call.result = taken if taken < 0 else close_handle(file, taken)
        elif kind == SYNC or kind == SEEK:
            call.result = call_on_handle(lane, kind, offset)
        else:
            call.result = call_on_path(file, kind, &lane.table.files[offset] if kind == RENAME else NULL)
        call.end = now_ns()
    if lane.held == slot and slot >= 0:
        lane.left -= 1
        if lane.left == 0:
            release_file(lane)
    else:
        count_use(lane, slot)
        if kind == RENAME and not error:
            count_use(lane, offset)
    return call
