/* A mapped file: see NATIVE_BACKENDS in replay.engine.files.
 *
 * Functions return bytes or 0, or -errno. Any thread may call them; a mapping must not be used after `close_mapping`. */
#ifndef DXT_REPLAY_ISSUE_MAPPED_H
#define DXT_REPLAY_ISSUE_MAPPED_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif
#define MAPPED_PAGE_BYTES 4096

/* `begin`: NULL for an empty file, which cannot be mapped. It keeps no descriptor: closing one costs a request on some
 * file systems (FUSE_FLUSH). */
typedef struct {
    char *begin;
    int64_t size;
} Mapping;

/* Maps the file behind a descriptor. `random`: a fault reads its page alone. */
static int make_mapping(int fd, int random, Mapping **mapping)
{
    int error = 0;
    int64_t size;
    struct stat status;
    if (fstat(fd, &status) != 0)
        return -errno;
    size = (int64_t)status.st_size;
    *mapping = (Mapping *)calloc(1, sizeof(Mapping));
    if (*mapping == NULL)
        return -ENOMEM;
    (*mapping)->size = size;
    if (size > 0)
        (*mapping)->begin = (char *)mmap(NULL, (size_t)size, PROT_READ, MAP_SHARED, fd, 0);
    if ((*mapping)->begin == (char *)MAP_FAILED) {
        error = -errno;
        free(*mapping);
    } else if (random && size > 0) {
        madvise((*mapping)->begin, (size_t)size, MADV_RANDOM);
    }
    return error;
}

/* Another mapping of the same open file: mremap(2) duplicates a shared one of which it moves no byte. */
static int duplicate_mapping(Mapping *of, Mapping **mapping)
{
    int error = 0;
    *mapping = (Mapping *)calloc(1, sizeof(Mapping));
    if (*mapping == NULL)
        return -ENOMEM;
    **mapping = *of;
    if (of->begin != NULL)
        (*mapping)->begin = (char *)mremap(of->begin, 0, (size_t)of->size, MREMAP_MAYMOVE);
    if ((*mapping)->begin == (char *)MAP_FAILED) {
        error = -errno;
        free(*mapping);
    }
    return error;
}

static int close_mapping(Mapping *mapping)
{
    int error = mapping->begin != NULL && munmap(mapping->begin, (size_t)mapping->size) != 0 ? -errno : 0;
    free(mapping);
    return error;
}

/* Takes a page fault on each page of the bytes that is not mapped yet. Bytes up to the end of the file.
 *
 * The kernel walks through the pages as a program that touches them would, with the same read-ahead; but where a page
 * cannot be read, it says so (EFAULT) and sends no SIGBUS. Kernels before 5.14 do not know the call. */
static int64_t touch_mapping(Mapping *mapping, int64_t offset, int64_t length)
{
    int64_t first = offset / MAPPED_PAGE_BYTES * MAPPED_PAGE_BYTES, at;
    int64_t end = offset < mapping->size - length ? offset + length : mapping->size;
    if (offset < 0)
        return -EINVAL;
    if (end <= offset)
        return 0;
    while (madvise(mapping->begin + first, (size_t)(end - first), MADV_POPULATE_READ) != 0) {
        if (errno == EINVAL) {
            for (at = first; at < end; at += MAPPED_PAGE_BYTES)
                (void)*(volatile char *)(mapping->begin + at);
            break;
        }
        if (errno != EINTR && errno != EAGAIN)
            return -errno;
    }
    return end - offset;
}

#endif
