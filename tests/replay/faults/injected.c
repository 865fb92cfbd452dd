/* A library for LD_PRELOAD that lets calls of libc fail, move fewer bytes or hang, for the tests of this folder.

   Rules come from the environment variable INJECTED_FAULTS, or from inject_faults() in a program that loaded the library.
   Rules are separated by newlines; the fields of a rule by '|':

     CALL|ACTION|NUMBER|PATH|SKIP|COUNT

   CALL: a name below, such as write (for pwrite, writev and so on too), or clock (CLOCK_REALTIME alone); create and
   wclose are an open and a close of a descriptor for writing.
   ACTION: fail with errno NUMBER; short: move half of the bytes, NUMBER at most; stall: sleep NUMBER ms first;
   jump: the clock shows NUMBER s more; cut: truncate the file to NUMBER bytes first;
   gone: remove the file first.
   PATH: text that the file's path holds; empty for any. The first SKIP calls that match are left alone, and COUNT calls
   are met (0: all that follow).   Build: cc -shared -fPIC -O1 injected.c -o injected.so -ldl */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define MOST_RULES 16

typedef struct {
    char call[16], action[8], path[256];
    long number, skip, count, seen;
} Rule;

static Rule rules[MOST_RULES];
static int rule_count = -1;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void inject_faults(const char *text)
{
    char *copy = strdup(text), *rest = copy, *line;
    pthread_mutex_lock(&lock);
    rule_count = 0;
    while ((line = strsep(&rest, "\n")) != NULL && rule_count < MOST_RULES) {
        Rule *rule = &rules[rule_count];
        char *field[6] = {"", "", "", "", "0", "0"};
        int i;
        for (i = 0; i < 6 && line != NULL; i++)
            field[i] = strsep(&line, "|");
        if (i < 4)
            continue;
        memset(rule, 0, sizeof *rule);
        strncpy(rule->call, field[0], sizeof rule->call - 1);
        strncpy(rule->action, field[1], sizeof rule->action - 1);
        rule->number = atol(field[2]);
        strncpy(rule->path, field[3], sizeof rule->path - 1);
        rule->skip = atol(field[4]);
        rule->count = atol(field[5]);
        rule_count++;
    }
    pthread_mutex_unlock(&lock);
    free(copy);
}

static void begin(void)
{
    const char *text = getenv("INJECTED_FAULTS");
    if (rule_count < 0)
        inject_faults(text ? text : "");
}

static void pause_ms(long ms)
{
    struct timespec left = {ms / 1000, ms % 1000 * 1000000};
    while (syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &left, &left) == EINTR)
        ;
}

/* The rule that this call meets, NULL for none. `path`: of the file, or NULL with its descriptor. */
static Rule *met(const char *call, const char *path, int fd)
{
    Rule *found = NULL;
    char link[32], name[PATH_MAX] = "";
    int kept = errno, i;
    begin();
    for (i = 0; i < rule_count && found == NULL; i++) {
        Rule *rule = &rules[i];
        if (strcmp(rule->call, call) != 0)
            continue;
        if (rule->path[0] && path == NULL && name[0] == 0) {
            ssize_t length;
            snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
            length = readlink(link, name, sizeof name - 1);
            name[length < 0 ? 0 : length] = 0;
        }
        if (rule->path[0] && strstr(path ? path : name, rule->path) == NULL)
            continue;
        pthread_mutex_lock(&lock);
        rule->seen++;
        if (rule->seen > rule->skip && (rule->count == 0 || rule->seen <= rule->skip + rule->count))
            found = rule;
        pthread_mutex_unlock(&lock);
    }
    errno = kept;
    if (found && strcmp(found->action, "stall") == 0)
        pause_ms(found->number);
    if (found && strcmp(found->action, "cut") == 0) {
        int cut = syscall(SYS_open, path ? path : name, O_WRONLY | O_CLOEXEC);
        if (cut >= 0) {
            syscall(SYS_ftruncate, cut, found->number);
            syscall(SYS_close, cut);
        }
    }
    if (found && strcmp(found->action, "gone") == 0)
        syscall(SYS_unlinkat, AT_FDCWD, path ? path : name, 0);
    return found;
}

static int fails(Rule *rule)
{
    if (rule == NULL || strcmp(rule->action, "fail") != 0)
        return 0;
    errno = (int)rule->number;
    return 1;
}

static size_t shortened(Rule *rule, size_t count)
{
    if (rule == NULL || strcmp(rule->action, "short") != 0 || count < 2)
        return count;
    return count / 2 < (size_t)rule->number ? count / 2 : (size_t)rule->number;
}

#define REAL(name) \
    static __typeof__(&name) real; \
    if (real == NULL) \
        real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

#define MOVE(name, call, data_type, size_type, more, ...) \
    ssize_t name(int fd, data_type data, size_type count more) \
    { \
        REAL(name); \
        Rule *rule = met(call, NULL, fd); \
        return fails(rule) ? -1 : real(fd, data, __VA_ARGS__); \
    }
#define COMMA ,
MOVE(read, "read", void *, size_t, , shortened(rule, count))
MOVE(pread, "read", void *, size_t, COMMA off_t at, shortened(rule, count), at)
MOVE(pread64, "read", void *, size_t, COMMA off64_t at, shortened(rule, count), at)
MOVE(write, "write", const void *, size_t, , shortened(rule, count))
MOVE(pwrite, "write", const void *, size_t, COMMA off_t at, shortened(rule, count), at)
MOVE(pwrite64, "write", const void *, size_t, COMMA off64_t at, shortened(rule, count), at)
MOVE(readv, "read", const struct iovec *, int, , count)
MOVE(writev, "write", const struct iovec *, int, , count)
MOVE(preadv, "read", const struct iovec *, int, COMMA off_t at, count, at)
MOVE(preadv64, "read", const struct iovec *, int, COMMA off64_t at, count, at)
MOVE(pwritev, "write", const struct iovec *, int, COMMA off_t at, count, at)
MOVE(pwritev64, "write", const struct iovec *, int, COMMA off64_t at, count, at)

#define OPEN(name, folder_parameter, folder_argument) \
    int name(folder_parameter const char *path, int flags, ...) \
    { \
        REAL(name); \
        va_list more; \
        va_start(more, flags); \
        mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(more, mode_t) : 0; \
        va_end(more); \
        int writes = flags & (O_WRONLY | O_RDWR | O_CREAT); \
        if (fails(met("open", path, -1)) || (writes && fails(met("create", path, -1)))) \
            return -1; \
        return real(folder_argument path, flags, mode); \
    }
OPEN(open, , )
OPEN(open64, , )
OPEN(openat, int folder COMMA, folder COMMA)
OPEN(openat64, int folder COMMA, folder COMMA)

#define ON_FD(name, call) \
    int name(int fd) \
    { \
        REAL(name); \
        return fails(met(call, NULL, fd)) ? -1 : real(fd); \
    }
/* The descriptor is gone all the same, close(2). */
int close(int fd)
{
    REAL(close);
    int writes = (fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDONLY;
    int failed = fails(met("close", NULL, fd)) || (writes && fails(met("wclose", NULL, fd)));
    int number = errno, result = real(fd);
    if (failed)
        errno = number;
    return failed ? -1 : result;
}

ON_FD(fsync, "sync")
ON_FD(fdatasync, "sync")
ON_FD(syncfs, "sync")

#define RENAME(name, parameters, ...) \
    int name parameters \
    { \
        REAL(name); \
        return fails(met("rename", to, -1)) ? -1 : real(__VA_ARGS__); \
    }
RENAME(rename, (const char *from, const char *to), from, to)
RENAME(renameat, (int a, const char *from, int b, const char *to), a, from, b, to)
RENAME(renameat2, (int a, const char *from, int b, const char *to, unsigned flags), a, from, b, to, flags)

int ftruncate64(int fd, off64_t length)
{
    REAL(ftruncate64);
    return fails(met("write", NULL, fd)) ? -1 : real(fd, length);
}

int ftruncate(int fd, off_t length) { return ftruncate64(fd, length); }

#define FOPEN(name) \
    FILE *name(const char *path, const char *mode) \
    { \
        REAL(name); \
        return fails(met("open", path, -1)) ? NULL : real(path, mode); \
    }
FOPEN(fopen)
FOPEN(fopen64)

/* What a failed call of the stream leaves: the mark that ferror() shows (glibc, libio.h). */
static size_t failed_stream(FILE *file)
{
    file->_flags |= 0x20;
    return 0;
}

#define STREAM(name, call, data_type) \
    size_t name(data_type data, size_t size, size_t count, FILE *file) \
    { \
        REAL(name); \
        Rule *rule = met(call, NULL, fileno(file)); \
        return fails(rule) ? failed_stream(file) : real(data, size, shortened(rule, count), file); \
    }
STREAM(fread, "read", void *)
STREAM(fwrite, "write", const void *)

int fclose(FILE *file)
{
    REAL(fclose);
    Rule *rule = met("close", NULL, fileno(file));
    int result = real(file);
    return fails(rule) ? EOF : result;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int result = (int)syscall(SYS_clock_gettime, clock, now);
    Rule *rule = result == 0 && clock == CLOCK_REALTIME ? met("clock", "", -1) : NULL;
    if (rule && strcmp(rule->action, "jump") == 0)
        now->tv_sec += rule->number;
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec exact;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *into)
{
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (into)
        *into = exact.tv_sec;
    return exact.tv_sec;
}
