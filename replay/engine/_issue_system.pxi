# What the core takes from the system and from Python: calls, and what its C headers hold.

from cpython.buffer cimport PyBUF_WRITE
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc.errno cimport EBADF, EINTR, EINVAL, EIO, EMFILE, ENFILE, ENOMEM, EROFS, errno
from libc.stdint cimport INT64_MAX, int64_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memset, strdup
from posix.stat cimport fstat, fstatat, struct_stat
from posix.stdlib cimport posix_memalign
from posix.time cimport CLOCK_PROCESS_CPUTIME_ID, clock_gettime, timespec
from posix.unistd cimport SEEK_CUR, SEEK_SET, close as c_close, fsync, lseek, pread, pwrite

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
    void full_barrier()
    void sleep_while_cell_is(int64_t *cell, int64_t seen, long at_most_ns)
    void wake_all(int64_t *cell)
    bint may_spin()
    void has_spun()
    void let_spin(int64_t lanes)
    bint any_may_spin()
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
    int stream_on(int opened, bint writable, Stream **stream)
    int duplicate_stream(Stream *of, Stream **stream)
    int close_stream(Stream *stream)
    int64_t size_of_stream(Stream *stream)
    int seek_stream(Stream *stream, int64_t offset)
    int flush_stream(Stream *stream)
    int64_t transfer_stream(Stream *stream, bint writes, char *data, int64_t length, int64_t offset)

cdef extern from "_issue_mapped.h" nogil:
    ctypedef struct Mapping:
        int64_t size
    int make_mapping(int fd, bint random, Mapping **mapping)
    int duplicate_mapping(Mapping *of, Mapping **mapping)
    int close_mapping(Mapping *mapping)
    int64_t touch_mapping(Mapping *mapping, int64_t offset, int64_t length)

cdef extern from "<fcntl.h>" nogil:
    int c_open "open"(const char *path, int flags, int mode)
    int c_fcntl "fcntl"(int fd, int command, int argument)
    int O_RDONLY, O_RDWR, O_CREAT, O_CLOEXEC, O_NOFOLLOW, O_DIRECT
    int posix_fadvise(int fd, int64_t offset, int64_t length, int advice)
    int POSIX_FADV_SEQUENTIAL, F_DUPFD_CLOEXEC, AT_FDCWD, AT_SYMLINK_NOFOLLOW

cdef extern from "_issue_paths.h" nogil:
    int open_link_free(const char *path, int flags, int mode)
    int rename_link_free(const char *path, const char *new_path)
    int unlink_link_free(const char *path)
    int list_folder(const char *path)
