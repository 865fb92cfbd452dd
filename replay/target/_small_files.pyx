# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Makes, looks at and removes many files of one directory in one call, and counts the bytes of a file in the page cache,
all without the interpreter lock.

`write`, `look` and `remove` take the descriptor of a directory and goes through the names in order. They count in done[0] (int64) the
files that they finished, and return 0, or the errno of the first that was refused.
"""

from libc.errno cimport EINTR, EIO, ENOENT, errno
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, strerror

cdef extern from "<fcntl.h>" nogil:
    int openat(int directory, const char *name, int flags, int mode)
    int O_WRONLY, O_CREAT, O_EXCL, O_NOFOLLOW, O_CLOEXEC, AT_SYMLINK_NOFOLLOW

cdef extern from "<sys/stat.h>" nogil:
    ctypedef struct status_t "struct stat":
        unsigned int st_mode
        unsigned long st_nlink
        long st_size
        long st_blocks
    int fstatat(int directory, const char *name, status_t *found, int flags)
    int S_ISREG(unsigned int mode)

cdef extern from "<unistd.h>" nogil:
    ssize_t c_write "write"(int fd, const void *data, size_t count)
    int unlinkat(int directory, const char *name, int flags)
    int c_close "close"(int fd)
    int getpagesize()


cdef extern from "<sys/mman.h>" nogil:
    void *mmap(void *address, size_t length, int protection, int flags, int fd, int64_t offset)
    int munmap(void *address, size_t length)
    int mincore(void *address, size_t length, unsigned char *pages)
    int PROT_READ, MAP_SHARED
    void *MAP_FAILED

cdef inline uint64_t mix(uint64_t value) noexcept nogil:
    """See `replay.target.content`."""
    value += <uint64_t>0x9E3779B97F4A7C15
    value = (value ^ (value >> 30)) * <uint64_t>0xBF58476D1CE4E5B9
    value = (value ^ (value >> 27)) * <uint64_t>0x94D049BB133111EB
    return value ^ (value >> 31)


cdef int write_whole(int fd, const char *data, int64_t size) noexcept nogil:
    """Write `size` bytes to a descriptor, again after EINTR or a short write. Returns 0 or errno (> 0)."""
    cdef ssize_t wrote
    while size > 0:
        wrote = c_write(fd, data, size)
        if wrote < 0 and errno != EINTR:
            return errno
        if wrote == 0:
            return EIO
        if wrote > 0:
            data += wrote
            size -= wrote
    return 0


cdef int write_one(
    int directory, const char *name, int64_t size, uint64_t key, const uint64_t *noise, uint64_t *words
) noexcept nogil:
    """Make one file with `size` bytes of noise; a file that exists is refused (EEXIST). Returns 0 or errno (> 0).

    `words`: scratch memory of `size` bytes, rounded up to whole words. On failure the begun file is removed."""
    cdef int64_t word
    cdef int error
    cdef int fd = -1
    while fd < 0:
        fd = openat(directory, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0o666)
        if fd < 0 and errno != EINTR:
            return errno
    for word in range((size + 7) // 8):
        words[word] = noise[word] ^ key
    error = write_whole(fd, <const char *>words, size)
    # After EINTR Linux has closed the descriptor all the same (close(2)).
    if c_close(fd) != 0 and errno != EINTR and error == 0:
        error = errno
    if error:
        unlinkat(directory, name, 0)
    return error


cdef char *name_buffer(const uint8_t[::1] text, const int64_t[::1] begins, const int64_t[::1] ends) except NULL:
    """Memory for the longest of the names text[begins[i]:ends[i]] and a NUL, which the caller frees.

    Raises: ValueError for a name outside of the text; MemoryError."""
    cdef int64_t number
    cdef int64_t room = 0
    cdef char *buffer
    if begins.shape[0] != ends.shape[0]:
        raise ValueError("each name needs a begin and an end")
    for number in range(begins.shape[0]):
        if not 0 <= begins[number] <= ends[number] <= text.shape[0]:
            raise ValueError("a name is not within the text")
        room = max(room, ends[number] - begins[number])
    buffer = <char *>malloc(room + 1)
    if buffer == NULL:
        raise MemoryError
    return buffer


cdef void copy_name(char *name, const uint8_t *text, int64_t begin, int64_t end) noexcept nogil:
    """Copy text[begin:end] and a NUL into `name`, which has room for it (`name_buffer`)."""
    if end > begin:
        memcpy(name, text + begin, end - begin)
    name[end - begin] = 0


def write(
    int directory,
    const uint8_t[::1] text,
    const int64_t[::1] begins,
    const int64_t[::1] ends,
    const int64_t[::1] sizes,
    const uint64_t[::1] record_ids,
    const uint64_t[::1] noise,
    int64_t[::1] done,
):
    cdef int64_t count = begins.shape[0]
    cdef int64_t number
    cdef int64_t room = 0
    cdef int error = 0
    cdef char *name
    cdef uint64_t *words = NULL
    if sizes.shape[0] != count or record_ids.shape[0] != count:
        raise ValueError("a size and a record id are needed for each name")
    for number in range(count):
        room = max(room, sizes[number])
    if room > noise.shape[0] * 8:
        raise ValueError(f"a small file has at most {noise.shape[0] * 8} bytes, not {room}")
    if count == 0:
        return 0
    name = name_buffer(text, begins, ends)
    try:
        words = <uint64_t *>malloc(room + 8)
        if words == NULL:
            raise MemoryError
        with nogil:
            for number in range(count):
                copy_name(name, &text[0], begins[number], ends[number])
                error = write_one(directory, name, sizes[number], mix(record_ids[number] ^ mix(0)), &noise[0], words)
                if error:
                    break
                done[0] = number + 1
    finally:
        free(name)
        free(words)
    return error


def look(
    int directory,
    const uint8_t[::1] text,
    const int64_t[::1] begins,
    const int64_t[::1] ends,
    int64_t[:, ::1] found,
    int64_t[::1] done,
):
    cdef int64_t number
    cdef int error = 0
    cdef status_t status
    cdef char *name
    if found.shape[0] != begins.shape[0] or found.shape[1] != 3:
        raise ValueError("three numbers are needed for each name")
    if begins.shape[0] == 0:
        return 0
    name = name_buffer(text, begins, ends)
    with nogil:
        for number in range(begins.shape[0]):
            copy_name(name, &text[0], begins[number], ends[number])
            found[number, 0] = found[number, 1] = found[number, 2] = 0
            if fstatat(directory, name, &status, AT_SYMLINK_NOFOLLOW) == 0:
                found[number, 0] = status.st_mode
                found[number, 1] = status.st_size
                found[number, 2] = <int64_t>status.st_nlink
            elif errno != ENOENT:
                error = errno
                break
            done[0] = number + 1
    free(name)
    return error


def remove(
    int directory, const uint8_t[::1] text, const int64_t[::1] begins, const int64_t[::1] ends, int64_t[::1] done
):
    cdef int64_t number
    cdef int error = 0
    cdef status_t status
    cdef char *name
    if begins.shape[0] == 0:
        return 0
    name = name_buffer(text, begins, ends)
    with nogil:
        for number in range(begins.shape[0]):
            copy_name(name, &text[0], begins[number], ends[number])
            if fstatat(directory, name, &status, AT_SYMLINK_NOFOLLOW) == 0:
                if S_ISREG(status.st_mode):
                    if unlinkat(directory, name, 0) == 0:
                        done[1] += 1
                    elif errno != ENOENT:
                        error = errno
                        break
            elif errno != ENOENT:
                error = errno
                break
            done[0] = number + 1
    free(name)
    return error


def resident(int fd, int64_t size, int64_t window_bytes):
    cdef int64_t page = getpagesize()
    cdef int64_t begin = 0
    cdef int64_t length, number, pages
    cdef int64_t count = 0
    cdef int error = 0
    cdef void *window
    cdef unsigned char *found = <unsigned char *>malloc((min(size, window_bytes) + page - 1) // page + 1)
    if found == NULL:
        raise MemoryError
    with nogil:
        while begin < size:
            length = min(window_bytes, size - begin)
            pages = (length + page - 1) // page
            window = mmap(NULL, length, PROT_READ, MAP_SHARED, fd, begin)
            if window == MAP_FAILED:
                error = errno
                break
            error = errno if mincore(window, length, found) else 0
            munmap(window, length)
            if error:
                break
            for number in range(pages):
                count += (found[number] & 1) * page
            if found[pages - 1] & 1:
                count -= pages * page - length  # the last page reaches beyond the end of the file
            begin += length
    free(found)
    if error:
        raise OSError(error, strerror(error).decode("ascii", "replace"))
    return count
