# The table of files that the lanes of a process share: see dxt_replay.replay.engine.backends.base.

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
    int64_t opens_begun # more than have ended: a lane that holds the file is opening it, without the lock
    int64_t opens_ended # for which lanes wait that want the file meanwhile
    int64_t awaiting    # those lanes

cdef struct Payload:
    # Older and smaller ones stay until the table goes: a lane may be writing from them.
    char *data
    int64_t bytes
    Payload *older

cdef struct Table:
    File *files
    int64_t count
    bint direct         # O_DIRECT, of POSIX files
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
    cdef int fd = -EINTR
    while fd == -EINTR:
        if flags & O_RDWR:
            fd = open_link_free(file.path, flags, 0o666)
        else:
            fd = c_open(file.path, flags, 0o666)
            fd = fd if fd >= 0 else -errno
    return fd


cdef Handle open_handle(File *file) noexcept nogil:
    cdef Stream *stream = NULL
    cdef int error
    if file.backend != STDIO:
        return open_descriptor(file, file.flags)
    error = open_stream(file.path, file.flags & O_RDWR, file.flags & O_CREAT, &stream)
    return error if error else <Handle><uintptr_t>stream


cdef bint lacks_descriptors(Handle opened) noexcept nogil:
    return opened == -EMFILE or opened == -ENFILE


cdef int64_t size_of_handle(File *file, Handle handle) noexcept nogil:
    """Bytes or -errno."""
    cdef stat status
    if file.backend == STDIO:
        return size_of_stream(stream_of(handle))
    return status.st_size if fstat(<int>handle, &status) == 0 else -errno


cdef void own_handle(File *file, Handle handle, int64_t size) noexcept nogil:
    """Make a handle the file's own, or close it and note the error where its size is one. The caller has its lock."""
    file.open_error = <int>-size if size < 0 else 0
    if size < 0:
        close_handle(file, handle)
        return
    file.handle, file.size = handle, size


cdef void keep_spare(File *file, Handle handle) noexcept nogil:
    """Keep a handle beside the file's own. The caller has its lock."""
    cdef int64_t room
    cdef void *grown
    if file.spare_count == file.spare_room:
        room = 2 * file.spare_room + 4
        grown = realloc(file.spares, room * sizeof(Handle))
        if grown == NULL:
            give_up(file, handle)
            return
        file.spares, file.spare_room = <Handle *>grown, room
    file.spares[file.spare_count] = handle
    file.spare_count += 1


cdef int open_file(Table *table, File *file) noexcept nogil:
    """Open a closed file that the caller holds and has the lock of, which is free meanwhile: the open may hang. Returns
    errno or 0. Where there are no descriptors left, idle files are closed. It is tried once more where none was idle:
    other lanes that looked for one may have closed them all."""
    cdef Handle handle
    cdef int64_t size = 0
    cdef int error
    cdef bint more = True
    file.opens_begun += 1
    pthread_mutex_unlock(&file.lock)
    handle = open_handle(file)
    while more and lacks_descriptors(handle):
        more = close_idle(table, file)
        handle = open_handle(file)
    if handle >= 0:
        size = size_of_handle(file, handle)
    pthread_mutex_lock(&file.lock)
    if file.handle >= 0 and handle >= 0:  # an OPEN item was faster
        keep_spare(file, handle)
    elif file.handle < 0 and handle >= 0:
        own_handle(file, handle, size)
    elif file.handle < 0:
        file.open_error = <int>-handle
    error = file.open_error
    if file.detached:
        file.open_error = 0  # of the name that the file had
    store_release(&file.opens_ended, file.opens_begun)
    if file.awaiting:
        wake_all(&file.opens_ended)
    return error


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
    """The files of one process, for compiled lanes: see `replay.engine.backends.base.PythonFiles`.

    `backends`: one of BACKENDS a slot. `direct` is of the POSIX ones.
    Raises: KeyError for another back end; ValueError where there is not one a slot.
    """

    cdef Table table
    cdef tuple paths
    cdef readonly str core

    def __cinit__(self, slots, *, backends, bint direct=False):
        cdef File *file
        slots = tuple(slots)
        self.core = "compiled"
        self.paths = tuple(slot.path for slot in slots)
        self.table.direct = direct
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
            file.special = file.backend == STDIO or (file.backend == POSIX and direct)
            file.flags = O_CLOEXEC | (O_RDWR if slot.writable else O_RDONLY)
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
