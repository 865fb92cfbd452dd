/* The bare loop that the issue loop is measured against: pread after pread at given offsets, no clock, no records.
 *
 *     pread_loop FILE OFFSETS BLOCK_BYTES THREADS
 *
 * OFFSETS holds int64 offsets in the machine's byte order; every thread reads at all of them, in order, once all
 * threads are ready. Prints the ns from the first begin to the last end.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static int file;
static int64_t *offsets;
static size_t count, block;
static pthread_barrier_t ready;

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void *read_all(void *span)
{
    int64_t *stamps = span;
    char *buffer;
    if (posix_memalign((void **)&buffer, 4096, block) != 0)
        exit(2);
    pthread_barrier_wait(&ready);
    stamps[0] = now_ns();
    for (size_t i = 0; i < count; i++)
        if (pread(file, buffer, block, offsets[i]) != (ssize_t)block)
            exit(3);
    stamps[1] = now_ns();
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t thread[64];
    int64_t stamps[64][2], first = INT64_MAX, last = 0;
    struct stat status;
    int threads = argc == 5 ? atoi(argv[4]) : 0;
    if (threads < 1 || threads > 64)
        return 1;
    block = strtoull(argv[3], NULL, 10);
    int list = open(argv[2], O_RDONLY);
    file = open(argv[1], O_RDONLY);
    if (file < 0 || list < 0 || fstat(list, &status) != 0)
        return 2;
    count = status.st_size / sizeof *offsets;
    offsets = malloc(status.st_size);
    if (offsets == NULL || read(list, offsets, status.st_size) != status.st_size)
        return 2;
    pthread_barrier_init(&ready, NULL, threads);
    for (int i = 0; i < threads; i++)
        pthread_create(&thread[i], NULL, read_all, stamps[i]);
    for (int i = 0; i < threads; i++) {
        pthread_join(thread[i], NULL);
        first = stamps[i][0] < first ? stamps[i][0] : first;
        last = stamps[i][1] > last ? stamps[i][1] : last;
    }
    printf("%lld\n", (long long)(last - first));
    return 0;
}
