# The table of files that the lanes of a process share, and the calls that open and close them.

cdef enum:
    POSIX, STDIO, MAPPED, NULL_IO, PYTHON               # back ends
    ASK_SIZE = ADD + 1, ASK_ANOTHER, ASK_HOLD           # calls of a back end beside the operations

_NATIVE = {"posix": POSIX, "direct": POSIX, "stdio": STDIO, "mapped": MAPPED, "null": NULL_IO}

# What a file is used through: a descriptor, or the address of a Stream, a Mapping or a Python object; below 0 for none, and
# where a function returns it, -errno. No address is below 0: that half of the address space is the kernel's.
ctypedef int64_t Handle

cdef struct Table

cdef struct File:
    # Everything below `lock` is read and written under it.
    char *path
    int backend
    PyObject *python    # the object of a back end in Python, which `Files` keeps
    Table *table
    File *sibling       # of a mapped file or stream: an earlier one of the same path with descriptors, or NULL
    bint shares         # its descriptor and the position of that, with a stream
    int flags           # of a stream too: whether it is writable, and made
    bint special        # requests are more than one pread or pwrite
    pthread_mutex_t lock
    Handle handle
    int buffered_fd     # beside a direct one that was written to in parts of blocks, below 0 for none
    Handle *spares      # unused handles that OPEN items made
    int64_t spare_count
    int64_t spare_room
    bint detached       # renamed while held: the last holder closes it
    int open_error
    int close_error
    int64_t size
    int64_t holders
    int64_t remaining
    int64_t opens_begun # more than have ended: a lane that holds the file is opening it, without the lock
    int64_t opens_ended # lanes that want the file meanwhile wait for it to change
    int64_t awaiting    # number of waiting lanes

cdef struct Payload:
    # Older and smaller ones stay until the table goes: a lane may be writing from them.
    char *data
    int64_t bytes
    Payload *older

cdef struct Table:
    File *files
    int64_t count
    bint direct         # O_DIRECT, of some file
    int64_t broken      # whether a back end in Python raised another exception than OSError, which is then `bug`
    PyObject *bug
    int64_t hand        # of the clock that looks for idle files
    pthread_mutex_t payload_lock
    Payload *payload


cdef inline Stream *stream_of(Handle handle) noexcept nogil:
    return <Stream *><uintptr_t>handle


cdef inline Mapping *mapping_of(Handle handle) noexcept nogil:
    return <Mapping *><uintptr_t>handle


cdef int64_t call_python(File *file, int call, Handle handle, int64_t at, int64_t length, char *data) noexcept with gil:
    """Call a back end in Python, with the interpreter lock. Returns bytes, a handle or 0; -errno for an OSError.

    `call`: an item's kind, ASK_SIZE, ASK_ANOTHER or ASK_HOLD. `data`: `length` bytes of a read or write, or the new path of a
    rename. Any other exception is a bug: the table keeps the first one, all lanes end, and `Lane.collect` raises it."""
    cdef char nothing = 0
    backend = <object>file.python
    writable = (file.flags & O_RDWR) != 0
    try:
        if call == OPEN:
            return kept_handle(backend.open(file.path, writable=writable, create=(file.flags & O_CREAT) != 0))
        if call == ASK_HOLD:
            return kept_handle(backend.hold(file.path, writable=writable, create=(file.flags & O_CREAT) != 0))
        if call == STAT:
            backend.stat(file.path, follow=not writable)
            return 0
        if call == RENAME:
            backend.rename(file.path, <bytes>data)
            return 0
        if call == LIST:
            backend.list(file.path)
            return 0
        if call == DELETE:
            backend.delete(file.path)
            return 0
        opened = <object><PyObject *><uintptr_t>handle
        if call <= WRITE_AT:
            view = PyMemoryView_FromMemory(data if length else &nothing, length, PyBUF_WRITE)
            return (backend.read if call == READ_AT else backend.write)(opened, at, length, view)
        if call == ASK_SIZE:
            return backend.size(opened)
        if call == ASK_ANOTHER:
            return kept_handle(backend.another(opened))
        if call == SYNC:
            backend.sync(opened)
        elif call == SEEK:
            backend.seek(opened, at)
        else:
            Py_DECREF(opened)
            backend.close(opened)
        return 0
    except OSError as error:
        return -(error.errno or EIO)
    except BaseException as error:
        if file.table.bug == NULL:
            Py_INCREF(error)
            file.table.bug = <PyObject *>error
        store_release(&file.table.broken, 1)
        return -EIO


cdef Handle kept_handle(opened):
    """An object as a handle, with a reference of its own that CLOSE gives back."""
    Py_INCREF(opened)
    return <Handle><uintptr_t><PyObject *>opened


cdef int close_handle(File *file, Handle handle) noexcept nogil:
    """Close a handle, also on failure. Returns 0 or -errno."""
    if file.backend == STDIO:
        return close_stream(stream_of(handle))
    if file.backend == MAPPED:
        return close_mapping(mapping_of(handle))
    if file.backend == PYTHON:
        return <int>call_python(file, CLOSE, handle, 0, 0, NULL)
    # After EINTR Linux has closed the descriptor all the same (close(2)).
    return -errno if c_close(<int>handle) != 0 and errno != EINTR else 0


cdef void give_up(File *file, Handle handle) noexcept nogil:
    """Close a handle (below 0: none) outside of any item. An error is noted in the file, for `Files.failures`."""
    cdef int error = close_handle(file, handle) if handle >= 0 else 0
    if error:
        file.close_error = -error


cdef void give_up_buffered(File *file) noexcept nogil:
    """Close the descriptor without O_DIRECT, if there is one; an error is noted. The caller has the lock."""
    if file.buffered_fd >= 0 and c_close(file.buffered_fd) != 0 and errno != EINTR:
        file.close_error = errno
    file.buffered_fd = -1


cdef bint close_unheld(File *file) noexcept nogil:
    """Close a file, unless a lane holds it. Returns whether a handle was open. The caller has the lock of the file."""
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
    """Close one spare handle, or one file that no lane holds, to free a descriptor. Returns False if there is none.

    Goes round the table from where the last search ended. `wanted`: the file that needs the descriptor, or NULL."""
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
    """open(2), without links for a file that is written. Returns a descriptor or -errno."""
    cdef int fd = -EINTR
    while fd == -EINTR:
        if flags & O_RDWR:
            fd = open_link_free(file.path, flags, 0o666)
        else:
            fd = c_open(file.path, flags, 0o666)
            fd = fd if fd >= 0 else -errno
    return fd


cdef int map_descriptor(int fd, int64_t advice, Mapping **mapping) noexcept nogil:
    """Map the file behind a descriptor, with the advice of an OPEN item. Returns 0 or -errno."""
    if advice == READ_AHEAD:
        posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL)
    return make_mapping(fd, advice == READ_NO_FURTHER, mapping)


cdef Handle open_mapping(File *file, int64_t advice) noexcept nogil:
    """A mapping of the descriptor that was opened last, since a recorded open and its mapping are one; or of its own."""
    cdef Mapping *mapping = NULL
    cdef int fd, error = -EBADF
    cdef File *opened = file.sibling
    if opened != NULL:
        pthread_mutex_lock(&opened.lock)
        if opened.handle >= 0:
            fd = <int>(opened.spares[opened.spare_count - 1] if opened.spare_count else opened.handle)
            error = map_descriptor(fd, advice, &mapping)
        pthread_mutex_unlock(&opened.lock)
    if error:
        fd = open_descriptor(file, O_RDONLY | O_CLOEXEC)
        error = fd if fd < 0 else map_descriptor(fd, advice, &mapping)
        c_close(fd)
    return error if error else <Handle><uintptr_t>mapping


cdef int stream_on_sibling(File *file, Stream **stream) noexcept nogil:
    """A stream on the descriptor that is open, as fdopen(3) makes one: no open was recorded. Returns 0 or -errno."""
    cdef int error = -EBADF
    cdef bint writable = (file.flags & O_RDWR) != 0
    cdef File *opened = file.sibling
    if opened == NULL or (writable and not opened.flags & O_RDWR):
        return error
    pthread_mutex_lock(&opened.lock)
    if opened.handle >= 0:
        error = stream_on(<int>opened.handle, writable, stream)
    pthread_mutex_unlock(&opened.lock)
    return error


cdef Handle open_handle(File *file, int call, int64_t advice) noexcept nogil:
    """Open a file through its back end. Returns a handle, which the caller keeps or closes, or -errno.

    `call`: OPEN, or ASK_HOLD if no item asks for it. `advice`: `place` of the item."""
    cdef Stream *stream = NULL
    cdef int error
    if file.backend == PYTHON:
        return call_python(file, call, -1, 0, 0, NULL)
    if file.backend == POSIX:
        return open_descriptor(file, file.flags)
    if file.backend == MAPPED:
        return open_mapping(file, advice)
    error = -EBADF if call == OPEN else stream_on_sibling(file, &stream)
    if error:
        error = open_stream(file.path, file.flags & O_RDWR, file.flags & O_CREAT, &stream)
    return error if error else <Handle><uintptr_t>stream


cdef bint lacks_descriptors(Handle opened) noexcept nogil:
    """Whether an open failed because the process or the machine can open no more files."""
    return opened == -EMFILE or opened == -ENFILE


cdef int64_t size_of_handle(File *file, Handle handle) noexcept nogil:
    """Size of the file behind a handle, in bytes, or -errno."""
    cdef struct_stat status
    if file.backend == STDIO:
        return size_of_stream(stream_of(handle))
    if file.backend == MAPPED:
        return mapping_of(handle).size
    if file.backend == PYTHON:
        return call_python(file, ASK_SIZE, handle, 0, 0, NULL)
    return status.st_size if fstat(<int>handle, &status) == 0 else -errno


cdef void own_handle(File *file, Handle handle, int64_t size) noexcept nogil:
    """Make a handle the file's own. If `size` is -errno, close the handle and note the error instead. The caller has
    the lock of the file."""
    file.open_error = <int>-size if size < 0 else 0
    if size < 0:
        close_handle(file, handle)
        return
    file.handle, file.size = handle, size


cdef void keep_spare(File *file, Handle handle) noexcept nogil:
    """Keep a handle as a spare for a later CLOSE item, or close it without memory. The caller has the lock of the
    file."""
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
    """Open a closed file, which the caller holds. Returns 0 or errno (> 0).

    The caller has the lock of the file; it is free during the open, which may hang. If the process lacks descriptors,
    an idle file is closed and the open tried again. It is tried once more if no file was idle, since other lanes in
    search of one may have closed them all meanwhile."""
    cdef Handle handle
    cdef int64_t size = 0
    cdef int error
    cdef bint more = True
    file.opens_begun += 1
    pthread_mutex_unlock(&file.lock)
    handle = open_handle(file, ASK_HOLD, -1)
    while more and lacks_descriptors(handle):
        more = close_idle(table, file)
        handle = open_handle(file, ASK_HOLD, -1)
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
        if size > MAX_TRANSFER_BYTES:
            size = MAX_TRANSFER_BYTES
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
    """A payload of `size` bytes whose content is undefined; NULL without memory. The table frees it."""
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


cdef class Files:
    """The files of a process, which its lanes share. A file is opened at its first use.

    A lane *holds* a file while consecutive operations are on that file. A held file is never closed. When the process
    runs out of descriptors, files that no lane holds are closed, and opened again when they are needed. Only an OPEN
    item tries an open again that failed; until then each operation on the file fails with the same errno.
    `slots`: any number of `FileSlot`s, which are not kept. `backends`: see `replay.engine.files.Backends`.
    Raises the soft limit of open files towards the hard limit where there are more slots.
    Raises: KeyError for an unknown native back end; ValueError where there is not one a slot.
    """

    cdef Table table
    cdef tuple backends

    def __cinit__(self, slots, backends="posix"):
        cdef File *file
        one = isinstance(backends, (str, Backend))
        self.backends = (backends,) * len(slots) if one else tuple(backends)
        allow_open_files(len(self.backends))
        make_mutex(&self.table.payload_lock)
        self.table.files = <File *>calloc(max(len(self.backends), 1), sizeof(File))
        if self.table.files == NULL:
            raise MemoryError
        descriptors = {}
        for slot, backend in zip(slots, self.backends, strict=True):
            file = &self.table.files[self.table.count]
            file.backend = _NATIVE[backend] if isinstance(backend, str) else PYTHON
            file.python = <PyObject *>backend
            file.table = &self.table
            file.path = strdup(slot.path)
            if file.path == NULL:
                raise MemoryError
            file.flags = O_CLOEXEC | (O_RDWR if slot.writable else O_RDONLY)
            if backend == "direct":
                file.flags |= O_DIRECT
                self.table.direct = True
            if slot.writable and slot.create:
                file.flags |= O_CREAT
            file.special = file.backend != POSIX or file.flags & O_DIRECT
            file.handle = file.buffered_fd = -1
            file.remaining = slot.uses
            make_mutex(&file.lock)
            if backend == "posix":
                descriptors[slot.path] = self.table.count
            elif backend == "mapped" and slot.path in descriptors:
                file.sibling = &self.table.files[<int64_t>descriptors[slot.path]]
            elif backend == "stdio" and descriptors.get(slot.path, -1) == self.table.count - 1 >= 0:
                file.sibling = &self.table.files[self.table.count - 1]  # another one may be of another rank
                file.sibling.shares = True
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
        if self.table.bug != NULL:
            Py_DECREF(<object>self.table.bug)
        while payload != NULL:
            self.table.payload = payload.older
            free(payload.data)
            free(payload)
            payload = self.table.payload

    def __len__(self):
        return self.table.count

    def prepare_payload(self, int64_t length):
        """Make the data for writes of up to `length` bytes now, and not when the writes are due."""
        with nogil:
            payload_of(&self.table, length)

    def close_all(self):
        """Close every file that no lane holds now; each other file when its lane gives it back."""
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
        """Slot, path, "open" or "close", and errno of each open and close that failed so far, in order."""
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
                    found.append((index, <bytes>file.path, call, number))
        return found
