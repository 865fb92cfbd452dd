# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""The compiled core of `replay.twin.small_files`: the same calls for each file, without the interpreter lock."""

from libc.errno cimport EINTR, EIO, errno
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport free, malloc

cdef extern from "<fcntl.h>" nogil:
    int openat(int directory, const char *name, int flags, int mode)
    int O_WRONLY, O_CREAT, O_EXCL, O_NOFOLLOW, O_CLOEXEC

cdef extern from "<unistd.h>" nogil:
    ssize_t write(int fd, const void *data, size_t count)
    int unlinkat(int directory, const char *name, int flags)
    int c_close "close"(int fd)


cdef inline uint64_t mix(uint64_t value) noexcept nogil:
    value += <uint64_t>0x9E3779B97F4A7C15
    value = (value ^ (value >> 30)) * <uint64_t>0xBF58476D1CE4E5B9
    value = (value ^ (value >> 27)) * <uint64_t>0x94D049BB133111EB
    return value ^ (value >> 31)


cdef int write_whole(int fd, const char *data, int64_t size) noexcept nogil:
    """0 or the error."""
    cdef ssize_t wrote
    while size > 0:
        wrote = write(fd, data, size)
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
    """0 or the error; a file that was begun is then taken away."""
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


def write_small_files(
    int directory,
    list names,
    const int64_t[::1] sizes,
    const uint64_t[::1] record_ids,
    const uint64_t[::1] noise,
    int64_t[::1] done,
):
    cdef int64_t count = len(names)
    cdef int64_t number
    cdef int64_t room = 0
    cdef int error = 0
    cdef const char **texts
    cdef uint64_t *words
    if sizes.shape[0] != count or record_ids.shape[0] != count:
        raise ValueError("a size and a record id are needed for each name")
    for number in range(count):
        room = max(room, sizes[number])
    if room > noise.shape[0] * 8:
        raise ValueError(f"a small file has at most {noise.shape[0] * 8} bytes, not {room}")
    texts = <const char **>malloc(max(count, 1) * sizeof(char *))
    words = <uint64_t *>malloc(room + 8)
    try:
        if texts == NULL or words == NULL:
            raise MemoryError
        for number in range(count):
            texts[number] = names[number]
        with nogil:
            for number in range(count):
                error = write_one(
                    directory, texts[number], sizes[number], mix(record_ids[number] ^ mix(0)), &noise[0], words
                )
                if error:
                    break
                done[0] = number + 1
    finally:
        free(texts)
        free(words)
    return error
