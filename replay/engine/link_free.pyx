# cython: language_level=3
"""Paths of files that a replay writes: no name on the way may be a symbolic link, at whatever moment it came there.

`_issue_paths.h` says how, and under which conditions only the last name is looked at.
"""

import os

from libc.errno cimport EINTR

cdef extern from "_issue_paths.h" nogil:
    int looks_at_whole "looks_at_whole_paths"()
    int open_path "open_link_free"(const char *path, int flags, int mode)
    int look_at_path "refuse_links"(const char *path)
    int rename_path "rename_link_free"(const char *path, const char *new_path)
    int unlink_path "unlink_link_free"(const char *path)


def looks_at_whole_paths():
    """Whether this process looks at each name of a path (openat2)."""
    return bool(looks_at_whole())


def open_link_free(bytes path not None, int flags, int mode=0o666):
    """A descriptor of a plain file that has no other name, to be written. Raises: OSError.

    ELOOP for a link anywhere in the path, EPERM for what is not a plain file, EMLINK for one with several names.
    """
    cdef const char *name = path
    cdef int fd = -EINTR
    flags |= os.O_CLOEXEC
    while fd == -EINTR:
        with nogil:
            fd = open_path(name, flags, mode)
    return _checked(fd, path)


def refuse_links(bytes path not None):
    """For libraries that open a path themselves, to be called just before. Raises: OSError as `open_link_free`; an
    absent file is accepted."""
    _checked(look_at_path(path), path)


def rename_link_free(bytes path not None, bytes new_path not None):
    """rename(2), between directories that are reached through no link. Raises: OSError."""
    cdef const char *name = path
    cdef const char *new_name = new_path
    cdef int result
    with nogil:
        result = rename_path(name, new_name)
    _checked(result, path)


def unlink_link_free(bytes path not None):
    """unlink(2), in a directory that is reached through no link. Raises: OSError."""
    _checked(unlink_path(path), path)


cdef int _checked(int result, path) except -1:
    """Raises: OSError for -errno."""
    if result < 0:
        raise OSError(-result, os.strerror(-result), path)
    return result
