/* Paths of files that a replay writes: no name on the way may be a symbolic link, at whatever moment it came there.
 *
 * openat2(2) with RESOLVE_NO_SYMLINKS does that in one call (Linux 5.6). Under LD_PRELOAD, where a tracer may count the
 * calls of libc, and on older systems, only the last name is looked at. All results are descriptors, 0 or -errno.
 */
#ifndef DXT_REPLAY_ISSUE_PATHS_H
#define DXT_REPLAY_ISSUE_PATHS_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
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

static int open_by_openat2(const char *path, int flags, int mode)
{
    struct { uint64_t flags, mode, resolve; } how = {
        (uint64_t)flags, (flags & O_CREAT) ? (uint64_t)mode : 0, RESOLVE_WITHOUT_LINKS
    };
    long fd = syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof how);
    return fd < 0 ? -errno : (int)fd;
}

/* Whether the whole path is looked at here; found out once. */
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

/* What a replay may write into: a plain file that has no other name. No server is asked again, so that an open takes as
 * long as without the look. */
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

/* The directory of a path, open; `name` is then the last name of it. */
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

/* For a library that opens the path itself just afterwards; 0 for an absent file. */
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
