/* A client of NFS version 4 in user space, for kernels without one: an export shown through FUSE.

   nfs_files URL MOUNTPOINT [FUSE options]     URL as libnfs reads it: nfs://HOST/EXPORT?version=4&nfsport=PORT

   One connection, which calls use one after the other. The kernel's page cache and read-ahead lie above it.
   Build: cc -O2 nfs_files.c -o nfs_files $(pkg-config --cflags --libs fuse3 libnfs) */

#define FUSE_USE_VERSION 31
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <fuse.h>
#include <nfsc/libnfs.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#define WRITE_BYTES 3072

static struct nfs_context *server;

static struct nfsfh *handle(struct fuse_file_info *file) { return (struct nfsfh *)(uintptr_t)file->fh; }

static void *begin(struct fuse_conn_info *connection, struct fuse_config *config)
{
    (void)connection;
    config->kernel_cache = 1; /* pages stay after a close, as those of a file that no other client has changed */
    config->use_ino = 1;
    return NULL;
}

static void fill_status(struct stat *status, const struct nfs_stat_64 *found)
{
    memset(status, 0, sizeof *status);
    status->st_ino = found->nfs_ino;
    status->st_mode = found->nfs_mode;
    status->st_nlink = found->nfs_nlink;
    status->st_uid = found->nfs_uid;
    status->st_gid = found->nfs_gid;
    status->st_size = found->nfs_size;
    status->st_blksize = found->nfs_blksize;
    status->st_blocks = found->nfs_blocks;
    status->st_atim = (struct timespec){found->nfs_atime, found->nfs_atime_nsec};
    status->st_mtim = (struct timespec){found->nfs_mtime, found->nfs_mtime_nsec};
    status->st_ctim = (struct timespec){found->nfs_ctime, found->nfs_ctime_nsec};
}

static int get_attributes(const char *path, struct stat *status, struct fuse_file_info *file)
{
    struct nfs_stat_64 found;
    int result = file ? nfs_fstat64(server, handle(file), &found) : nfs_lstat64(server, path, &found);
    if (!result)
        fill_status(status, &found);
    return result;
}

static int list(const char *path, void *buffer, fuse_fill_dir_t fill, off_t offset, struct fuse_file_info *file,
                enum fuse_readdir_flags flags)
{
    struct nfsdir *folder;
    struct nfsdirent *entry;
    int result = nfs_opendir(server, path, &folder);
    (void)offset, (void)file, (void)flags;
    if (result)
        return result;
    while ((entry = nfs_readdir(server, folder)))
        if (fill(buffer, entry->name, NULL, 0, 0))
            break;
    nfs_closedir(server, folder);
    return 0;
}

static int open_file(const char *path, struct fuse_file_info *file)
{
    struct nfsfh *opened;
    int result = nfs_open(server, path, file->flags & (O_ACCMODE | O_TRUNC), &opened);
    if (!result)
        file->fh = (uintptr_t)opened;
    return result;
}

static int create_file(const char *path, mode_t mode, struct fuse_file_info *file)
{
    struct nfsfh *opened;
    int result = nfs_create(server, path, file->flags & (O_ACCMODE | O_TRUNC | O_EXCL), mode & 07777, &opened);
    if (!result)
        file->fh = (uintptr_t)opened;
    return result;
}

static int read_file(const char *path, char *data, size_t length, off_t offset, struct fuse_file_info *file)
{
    (void)path;
    return nfs_pread(server, handle(file), offset, length, data);
}

/* In pieces, because version 4.0.0 of libnfs refuses to encode writes of 4 KiB and more of this protocol. */
static int write_file(const char *path, const char *data, size_t length, off_t offset, struct fuse_file_info *file)
{
    size_t done = 0;
    (void)path;
    while (done < length) {
        size_t piece = length - done < WRITE_BYTES ? length - done : WRITE_BYTES;
        int result = nfs_pwrite(server, handle(file), offset + done, piece, (void *)(data + done));
        if (result <= 0)
            return done ? (int)done : result;
        done += result;
    }
    return (int)done;
}

static int sync_file(const char *path, int only_data, struct fuse_file_info *file)
{
    (void)path, (void)only_data;
    return nfs_fsync(server, handle(file));
}

static int release_file(const char *path, struct fuse_file_info *file)
{
    (void)path;
    return nfs_close(server, handle(file));
}

static int truncate_file(const char *path, off_t size, struct fuse_file_info *file)
{
    return file ? nfs_ftruncate(server, handle(file), size) : nfs_truncate(server, path, size);
}

static int set_mode(const char *path, mode_t mode, struct fuse_file_info *file)
{
    (void)file;
    return nfs_chmod(server, path, mode & 07777);
}

static int keep_times(const char *path, const struct timespec times[2], struct fuse_file_info *file)
{
    (void)path, (void)times, (void)file;
    return 0; /* the server's own */
}

static int make_directory(const char *path, mode_t mode) { return nfs_mkdir2(server, path, mode & 07777); }
static int remove_directory(const char *path) { return nfs_rmdir(server, path); }
static int remove_file(const char *path) { return nfs_unlink(server, path); }

static int rename_file(const char *from, const char *to, unsigned flags)
{
    return flags ? -EINVAL : nfs_rename(server, from, to);
}

static int show_space(const char *path, struct statvfs *space) { return nfs_statvfs(server, path, space); }

static const struct fuse_operations operations = {
    .init = begin, .getattr = get_attributes, .readdir = list, .open = open_file, .create = create_file,
    .read = read_file, .write = write_file, .fsync = sync_file, .release = release_file, .truncate = truncate_file,
    .chmod = set_mode, .utimens = keep_times, .mkdir = make_directory, .rmdir = remove_directory,
    .unlink = remove_file, .rename = rename_file, .statfs = show_space,
};

int main(int count, char **arguments)
{
    struct nfs_url *url;
    if (count < 3) {
        fprintf(stderr, "usage: %s URL MOUNTPOINT [FUSE options]\n", arguments[0]);
        return 2;
    }
    server = nfs_init_context();
    url = server ? nfs_parse_url_dir(server, arguments[1]) : NULL;
    if (url) {
        nfs_set_uid(server, 0);
        nfs_set_gid(server, 0);
    }
    if (!url || nfs_mount(server, url->server, url->path)) {
        fprintf(stderr, "%s: %s\n", arguments[1], server ? nfs_get_error(server) : "no memory");
        return 1;
    }
    arguments[1] = arguments[0];
    return fuse_main(count - 1, arguments + 1, &operations, NULL);
}
