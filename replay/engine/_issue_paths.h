/* Paths of files that a replay writes. No component of such a path may be a symbolic link, even one that somebody made
 * a moment ago, or a replay could write outside of its target.
 *
 * openat2(2) with RESOLVE_NO_SYMLINKS checks that in the call that opens (Linux 5.6). Under LD_PRELOAD a tracer may
 * count the calls of libc, which has no openat2: there, and on older systems, only the last component is checked.
 *
 * Paths are absolute and end in NUL. Functions that return int return a descriptor or 0, or -errno: -ELOOP for a link,
 * -EPERM for what is not a plain file, -EMLINK for a file with several names (hard links), else the system's. They
 * change errno, keep no memory and may be called from any thread, without the interpreter lock. */
#ifndef DXT_REPLAY_ISSUE_PATHS_H
#define DXT_REPLAY_ISSUE_PATHS_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_openat2
#define SYS_openat2 437 /* the same on all architectures */
#endif
#define RESOLVE_WITHOUT_LINKS 0x04 /* RESOLVE_NO_SYMLINKS of linux/openat2.h, which old headers lack */

/* openat2(2) without symbolic links; `flags` and `mode` as of open(2). A descriptor, which the caller closes, or
 * -errno. */
static int open_by_openat2(const char *path, int flags, int mode)
{
    struct { uint64_t flags, mode, resolve; } how = {
        (uint64_t)flags, (flags & O_CREAT) ? (uint64_t)mode : 0, RESOLVE_WITHOUT_LINKS
    };
    long fd = syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof how);
    return fd < 0 ? -errno : (int)fd;
}

/* 1 if all components of a path are checked in this process, 0 if only the last one. Found out at the first call;
 * threads that call it at once find the same. */
static int looks_at_whole_paths(void)
{
    static int known = -1;
    if (known < 0) {
        const char *preloaded = getenv("LD_PRELOAD");
        int fd = preloaded != NULL && *preloaded != '\0' ? -1 : open_by_openat2("/", O_PATH | O_CLOEXEC, 0);
        known = fd >= 0;
        if (fd >= 0)
            close(fd);
    }
    return known;
}

/* 0 if a replay may write into an open file: a plain file that has no other name. -EPERM, -EMLINK or -errno otherwise.
 * AT_STATX_DONT_SYNC asks no server again, so that this check does not lengthen the open that a replay measures. */
static int refuse_shared(int fd)
{
#ifdef STATX_NLINK
    struct statx found;
    if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE | STATX_NLINK, &found) != 0)
        return -errno;
    if (!S_ISREG(found.stx_mode))
        return -EPERM;
    return found.stx_nlink > 1 ? -EMLINK : 0;
#else
    struct stat found;
    if (fstat(fd, &found) != 0)
        return -errno;
    if (!S_ISREG(found.st_mode))
        return -EPERM;
    return found.st_nlink > 1 ? -EMLINK : 0;
#endif
}

/* Opens a file for writing; `flags` and `mode` as of open(2). A descriptor of a plain file with one name, which the
 * caller closes, or -errno (see the top). -EINTR is possible: the caller tries again. */
static int open_link_free(const char *path, int flags, int mode)
{
    int error, fd;
    if (looks_at_whole_paths()) {
        fd = open_by_openat2(path, flags | O_NOFOLLOW, mode);
    } else {
        fd = open(path, flags | O_NOFOLLOW, mode);
        fd = fd < 0 ? -errno : fd;
    }
    error = fd < 0 ? 0 : refuse_shared(fd);
    if (error == 0)
        return fd;
    close(fd);
    return error;
}

/* Opens the directory of a path (O_PATH) and sets `name` to the last component, which points into `path`. `copy`:
 * PATH_MAX bytes of scratch memory. A descriptor, which the caller closes, or -errno; -EINVAL without a slash, or for a
 * path that is too long. */
static int open_directory_of(const char *path, char *copy, const char **name)
{
    const char *slash = strrchr(path, '/');
    size_t length = slash == NULL ? 0 : (size_t)(slash - path);
    if (slash == NULL || length >= PATH_MAX)
        return -EINVAL;
    memcpy(copy, path, length);
    copy[length] = '\0';
    *name = slash + 1;
    return open_by_openat2(length ? copy : "/", O_PATH | O_DIRECTORY | O_CLOEXEC, 0);
}

/* rename(2) between directories that are reached without a link. 0 or -errno. */
static int rename_link_free(const char *path, const char *new_path)
{
    char copy[PATH_MAX];
    const char *name, *new_name;
    int from, to, error;
    if (!looks_at_whole_paths())
        return rename(path, new_path) != 0 ? -errno : 0;
    from = open_directory_of(path, copy, &name);
    if (from < 0)
        return from;
    to = open_directory_of(new_path, copy, &new_name);
    error = to < 0 ? to : renameat(from, name, to, new_name) != 0 ? -errno : 0;
    if (to >= 0)
        close(to);
    close(from);
    return error;
}

/* unlink(2) in a directory that is reached without a link. 0 or -errno. */
static inline int unlink_link_free(const char *path)
{
    char copy[PATH_MAX];
    const char *name;
    int error, folder;
    if (!looks_at_whole_paths())
        return unlink(path) != 0 ? -errno : 0;
    folder = open_directory_of(path, copy, &name);
    if (folder < 0)
        return folder;
    error = unlinkat(folder, name, 0) != 0 ? -errno : 0;
    close(folder);
    return error;
}

/* Reads all names in a folder (not below it). 0 or -errno. */
static inline int list_folder(const char *path)
{
    DIR *folder = opendir(path);
    int error;
    if (folder == NULL)
        return -errno;
    errno = 0;
    while (readdir(folder) != NULL)
        ;
    error = -errno;
    closedir(folder);
    return error;
}

/* Checks a path for a library (HDF5, MPI-IO) that opens it itself just afterwards. A link that is made between the
 * check and that open is not noticed. 0 if the path may be opened or does not exist; -ELOOP, -EPERM, -EMLINK or -errno.
 * */
static inline int refuse_links(const char *path)
{
    char copy[PATH_MAX];
    const char *name;
    struct stat found;
    if (looks_at_whole_paths()) {
        int folder = open_directory_of(path, copy, &name);
        if (folder < 0)
            return folder;
        close(folder);
    }
    if (lstat(path, &found) != 0)
        return errno == ENOENT ? 0 : -errno;
    if (S_ISLNK(found.st_mode))
        return -ELOOP;
    if (!S_ISREG(found.st_mode))
        return -EPERM;
    return found.st_nlink > 1 ? -EMLINK : 0;
}

#endif
