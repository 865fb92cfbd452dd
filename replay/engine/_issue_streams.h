/* A libc stream that lanes share: see NATIVE_BACKENDS in replay.engine.files.
 *
 * The calls are the plain ones (fread instead of fread_unlocked, and no buffer of our own), because a tracer wraps
 * those calls, and a replay should look to it as the application did.
 *
 * Functions return bytes or 0, or -errno. Lengths and offsets are in bytes. Any thread may call them, without the
 * interpreter lock; a stream must not be used after `close_stream`, nor by another thread during it. */
#ifndef DXT_REPLAY_ISSUE_STREAMS_H
#define DXT_REPLAY_ISSUE_STREAMS_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "_issue_paths.h"

/* Everything but `file` itself is read and written under the file's own lock (flockfile). */
typedef struct {
    FILE *file;
    int64_t position; /* offset of the next byte; -1 if unknown, after an error */
    int wrote;        /* 1 if the last transfer was a write */
} Stream;

/* -errno after a failed call of the library, -EIO if it left errno at 0. Callers set errno to 0 before that call, since
 * some failures do not set it. */
static int stream_error(void) { return errno ? -errno : -EIO; }

/* fopen(3). 0 or -errno. */
static int fopen_as(const char *path, const char *mode, FILE **file)
{
    errno = 0;
    *file = fopen(path, mode);
    return *file ? 0 : stream_error();
}

/* Opens a file that a replay writes, for reading and writing; `create`: make it if it is absent. 0 or -errno.
 *
 * Where only the last component is checked, a tracer may be watching, so fopen itself makes the call. It has no
 * O_NOFOLLOW: the name is looked at before, and must name the opened file afterwards. */
static int fopen_written(const char *path, int create, FILE **file)
{
    struct stat opened, named;
    int error, fd;
    if (looks_at_whole_paths()) {
        fd = open_link_free(path, O_RDWR | O_CLOEXEC | (create ? O_CREAT : 0), 0666);
        if (fd < 0)
            return fd;
        errno = 0;
        *file = fdopen(fd, "r+");
        error = *file ? 0 : stream_error();
        if (error != 0)
            close(fd);
        return error;
    }
    error = lstat(path, &named) != 0 ? -errno : S_ISLNK(named.st_mode) ? -ELOOP : 0;
    if (error == 0 || (error == -ENOENT && create))
        error = fopen_as(path, error == 0 ? "r+e" : "w+xe", file);
    if (error != 0)
        return error;
    if (fstat(fileno(*file), &opened) != 0 || lstat(path, &named) != 0)
        error = -errno;
    else if (opened.st_dev != named.st_dev || opened.st_ino != named.st_ino)
        error = -ELOOP;
    else
        error = refuse_shared(fileno(*file));
    if (error != 0)
        fclose(*file);
    return error;
}

/* Opens a file for reading, or as `fopen_written`. 0 or -errno. */
static int fopen_path(const char *path, int writable, int create, FILE **file)
{
    int error;
    if (!writable)
        return fopen_as(path, "re", file);
    do /* -EEXIST: another process made the file after the look at its name */
        error = fopen_written(path, create, file);
    while (error == -EEXIST);
    return error;
}

/* Wraps `file` into a stream that owns it. On failure `file` is closed. 0 or -ENOMEM. */
static int make_stream(FILE *file, Stream **stream)
{
    *stream = (Stream *)calloc(1, sizeof(Stream));
    if (*stream == NULL) {
        fclose(file);
        return -ENOMEM;
    }
    (*stream)->file = file;
    return 0;
}

/* Opens a stream, which the caller closes by `close_stream`; `writable`, `create`: not 0 for yes. 0 or -errno. */
static int open_stream(const char *path, int writable, int create, Stream **stream)
{
    FILE *file;
    int error = fopen_path(path, writable, create, &file);
    return error ? error : make_stream(file, stream);
}

/* A stream on a duplicate of an open descriptor, whose position it shares. 0 or -errno. */
static int stream_on(int opened, int writable, Stream **stream)
{
    FILE *file;
    int error, fd = fcntl(opened, F_DUPFD_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    errno = 0;
    file = fdopen(fd, writable ? "r+" : "r");
    if (file != NULL)
        return make_stream(file, stream);
    error = stream_error();
    close(fd);
    return error;
}

/* A further stream for a CLOSE item to close. 0 or -errno. */
static int duplicate_stream(Stream *of, Stream **stream) { return stream_on(fileno(of->file), 0, stream); }

/* Flushes and closes a stream and frees it, also on failure. 0 or -errno. */
static int close_stream(Stream *stream)
{
    int error = 0;
    errno = 0;
    if (fclose(stream->file) != 0)
        error = stream_error();
    free(stream);
    return error;
}

/* Bytes of the file, without those that the stream still buffers, or -errno. */
static int64_t size_of_stream(Stream *stream)
{
    struct stat status;
    return fstat(fileno(stream->file), &status) == 0 ? (int64_t)status.st_size : -errno;
}

/* fseeko(3) to an offset from the begin. 0 or -errno. The caller holds the lock of the file. */
static int move_stream(Stream *stream, int64_t offset)
{
    errno = 0;
    if (fseeko(stream->file, (off_t)offset, SEEK_SET) != 0) {
        int error = stream_error();
        stream->position = -1;
        return error;
    }
    stream->position = offset;
    return 0;
}

/* As `move_stream`, and takes the lock. */
static int seek_stream(Stream *stream, int64_t offset)
{
    int error;
    flockfile(stream->file);
    error = move_stream(stream, offset);
    funlockfile(stream->file);
    return error;
}

/* fflush(3): hands buffered bytes to the kernel, not to the disk. 0 or -errno. */
static int flush_stream(Stream *stream)
{
    int error = 0;
    flockfile(stream->file);
    errno = 0;
    if (fflush(stream->file) != 0)
        error = stream_error();
    funlockfile(stream->file);
    return error;
}

/* The result of a transfer of fewer bytes than asked for: `count` at the end of the file, or if an error came after
 * some bytes; -errno if an error came before any. Clears the state of the stream. The caller holds the lock. */
static int64_t check_stream(Stream *stream, int64_t count)
{
    int error = stream_error(), failed = ferror(stream->file);
    clearerr(stream->file);
    if (!failed)
        return count;
    stream->position = -1;
    return count ? count : error;
}

/* One fread or fwrite of `length` bytes at `offset`. Bytes moved, fewer than `length` at the end of the file, or
 * -errno.
 *
 * An fseeko comes before it only if the stream is elsewhere or the direction changes (C11 7.21.5.3 demands that),
 * because it would empty the buffer of the stream. */
static int64_t transfer_stream(Stream *stream, int writes, char *data, int64_t length, int64_t offset)
{
    int64_t count = 0;
    flockfile(stream->file);
    if (stream->position != offset || stream->wrote != writes)
        count = move_stream(stream, offset);
    if (count == 0) {
        stream->wrote = writes;
        errno = 0;
        count = (int64_t)(writes ? fwrite(data, 1, (size_t)length, stream->file)
                                 : fread(data, 1, (size_t)length, stream->file));
        stream->position += count;
        if (count < length)
            count = check_stream(stream, count);
    }
    funlockfile(stream->file);
    return count;
}

#endif
