/* A file system whose calls take at least a given time: a directory shown through FUSE, for benchmarks of slow storage.

   delayed_files DELAY_US MOUNTPOINT [FUSE options]     shows the directory DXT_REPLAY_DELAYED_SOURCE

   Each read, write, sync, open, create and look-up that reaches it waits DELAY_US first; with DXT_REPLAY_DELAYED_CALLS
   set to `metadata`, reads, writes and syncs do not, set to `files`, look-ups do not, and set to `reads`, only reads do.
   Calls wait at the same time, so this bounds latency and not bandwidth; with the FUSE option -s they wait one after the
   other. DXT_REPLAY_DELAYED_BYTES and DXT_REPLAY_DELAYED_REQUESTS bound the bytes and the requests of a second: calls
   that wait also queue for one server of that rate, in the order of their arrival. The kernel's page cache and read-ahead lie above it, as with a network's file
   system. Pages stay after a close; with DXT_REPLAY_DELAYED_PAGES set to `dropped` the kernel drops them at each open,
   which is libfuse's default.
   Build: cc -O2 delayed_files.c -o delayed_files $(pkg-config --cflags --libs fuse3) */

#define FUSE_USE_VERSION 31
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fuse.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

static long delay_ns;
static int source;
static int metadata_only;
static int files_only;
static int reads_only;
static double ns_per_byte, ns_per_request;
static pthread_mutex_t queue = PTHREAD_MUTEX_INITIALIZER;
static long idle_ns; /* when the server of the queue has nothing left to do */

static void wait_for_bytes(size_t bytes)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    long end_ns = until.tv_sec * 1000000000 + until.tv_nsec;
    pthread_mutex_lock(&queue);
    idle_ns = end_ns = (idle_ns > end_ns ? idle_ns : end_ns) + (long)(ns_per_request + ns_per_byte * bytes);
    pthread_mutex_unlock(&queue);
    end_ns += delay_ns;
    until.tv_sec = end_ns / 1000000000;
    until.tv_nsec = end_ns % 1000000000;
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
        ;
}

static void wait_always(void) { wait_for_bytes(0); }

static void wait_first(void)
{
    if (!reads_only)
        wait_always();
}

static void wait_for_data(size_t bytes)
{
    if (!metadata_only && !reads_only)
        wait_for_bytes(bytes);
}

static const char *below(const char *path) { return path[1] ? path + 1 : "."; }

static int answer(long result) { return result < 0 ? -errno : (int)result; }

static void *begin(struct fuse_conn_info *connection, struct fuse_config *config)
{
    (void)connection;
    const char *pages = getenv("DXT_REPLAY_DELAYED_PAGES");
    config->kernel_cache = !(pages && !strcmp(pages, "dropped"));
    config->use_ino = 1;
    return NULL;
}

static int get_attributes(const char *path, struct stat *status, struct fuse_file_info *file)
{
    if (!files_only)
        wait_first();
    return answer(file ? fstat(file->fh, status) : fstatat(source, below(path), status, AT_SYMLINK_NOFOLLOW));
}

static int list(const char *path, void *buffer, fuse_fill_dir_t fill, off_t offset, struct fuse_file_info *file,
                enum fuse_readdir_flags flags)
{
    struct dirent *entry;
    int fd = openat(source, below(path), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *folder = fd < 0 ? NULL : fdopendir(fd);
    (void)offset, (void)file, (void)flags;
    wait_first();
    if (!folder)
        return -errno;
    while ((entry = readdir(folder)))
        if (fill(buffer, entry->d_name, NULL, 0, 0))
            break;
    closedir(folder);
    return 0;
}

static int open_file(const char *path, struct fuse_file_info *file)
{
    wait_first();
    int fd = openat(source, below(path), (file->flags & ~O_NOFOLLOW) | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    file->fh = fd;
    return 0;
}

static int create_file(const char *path, mode_t mode, struct fuse_file_info *file)
{
    wait_first();
    int fd = openat(source, below(path), file->flags | O_CREAT | O_CLOEXEC, mode);
    if (fd < 0)
        return -errno;
    file->fh = fd;
    return 0;
}

static int read_file(const char *path, char *data, size_t length, off_t offset, struct fuse_file_info *file)
{
    (void)path;
    ssize_t read = pread(file->fh, data, length, offset);
    int result = answer(read);
    if (!metadata_only)
        wait_for_bytes(read > 0 ? read : 0);
    return result;
}

static int write_file(const char *path, const char *data, size_t length, off_t offset, struct fuse_file_info *file)
{
    (void)path;
    wait_for_data(length);
    return answer(pwrite(file->fh, data, length, offset));
}

static int sync_file(const char *path, int only_data, struct fuse_file_info *file)
{
    (void)path;
    wait_for_data(0);
    return answer(only_data ? fdatasync(file->fh) : fsync(file->fh));
}

static int release_file(const char *path, struct fuse_file_info *file)
{
    (void)path;
    return answer(close(file->fh));
}

static int truncate_file(const char *path, off_t size, struct fuse_file_info *file)
{
    int fd = file ? (int)file->fh : openat(source, below(path), O_WRONLY | O_CLOEXEC);
    int result = fd < 0 ? -errno : answer(ftruncate(fd, size));
    if (!file && fd >= 0)
        close(fd);
    return result;
}

static int set_mode(const char *path, mode_t mode, struct fuse_file_info *file)
{
    (void)file;
    return answer(fchmodat(source, below(path), mode, 0));
}

static int set_times(const char *path, const struct timespec times[2], struct fuse_file_info *file)
{
    (void)file;
    return answer(utimensat(source, below(path), times, AT_SYMLINK_NOFOLLOW));
}

static int make_directory(const char *path, mode_t mode) { return answer(mkdirat(source, below(path), mode)); }
static int remove_directory(const char *path) { return answer(unlinkat(source, below(path), AT_REMOVEDIR)); }
static int remove_file(const char *path) { return answer(unlinkat(source, below(path), 0)); }

static int rename_file(const char *from, const char *to, unsigned flags)
{
    return answer(renameat2(source, below(from), source, below(to), flags));
}

static int show_space(const char *path, struct statvfs *space)
{
    (void)path;
    return answer(fstatvfs(source, space));
}

static double ns_each(const char *name)
{
    const char *rate = getenv(name);
    return rate ? 1e9 / atof(rate) : 0;
}

static const struct fuse_operations operations = {
    .init = begin, .getattr = get_attributes, .readdir = list, .open = open_file, .create = create_file,
    .read = read_file, .write = write_file, .fsync = sync_file, .release = release_file, .truncate = truncate_file,
    .chmod = set_mode, .utimens = set_times, .mkdir = make_directory, .rmdir = remove_directory,
    .unlink = remove_file, .rename = rename_file, .statfs = show_space,
};

int main(int count, char **arguments)
{
    const char *shown = getenv("DXT_REPLAY_DELAYED_SOURCE");
    if (count < 3 || !shown) {
        fprintf(stderr, "usage: DXT_REPLAY_DELAYED_SOURCE=DIR %s DELAY_US MOUNTPOINT [FUSE options]\n", arguments[0]);
        return 2;
    }
    delay_ns = 1000 * atol(arguments[1]);
    ns_per_byte = ns_each("DXT_REPLAY_DELAYED_BYTES");
    ns_per_request = ns_each("DXT_REPLAY_DELAYED_REQUESTS");
    const char *calls = getenv("DXT_REPLAY_DELAYED_CALLS");
    metadata_only = calls && !strcmp(calls, "metadata");
    files_only = calls && !strcmp(calls, "files");
    reads_only = calls && !strcmp(calls, "reads");
    source = open(shown, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (source < 0) {
        perror(shown);
        return 2;
    }
    arguments[1] = arguments[0];
    return fuse_main(count - 1, arguments + 1, &operations, NULL);
}
