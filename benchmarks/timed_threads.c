/* Threads that read as a timed replay does, and do nothing else: one thread for each file, READS reads of 4 KiB, one in
 * each 10 ms at a random instant.
 *
 *     timed_threads READS SLACK_NS FILE...
 *
 * SLACK_NS: timer slack of the threads (prctl(2)). Prints JSON: elapsed_s, lag_us (p50, p99, max), cpu_s.
 * Build: cc -O2 -pthread timed_threads.c */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { BLOCK = 4096, PERIOD_NS = 10000000, PLACES = 16 };

static int64_t start, *lag;
static long reads, slack;
static char **files;

static int64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

static void *body(void *number)
{
    long thread = (long)number;
    unsigned seed = thread;
    char *buffer = aligned_alloc(BLOCK, BLOCK);
    int file = open(files[thread], O_RDONLY);
    prctl(PR_SET_TIMERSLACK, slack, 0, 0, 0);
    for (long i = 0; i < reads; i++) {
        int64_t due = start + (int64_t)((i + 0.9 * rand_r(&seed) / RAND_MAX) * PERIOD_NS);
        struct timespec until = {due / 1000000000, due % 1000000000};
        if (now() < due)
            clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
        lag[thread * reads + i] = now() - due;
        if (pread(file, buffer, BLOCK, i % PLACES * BLOCK) != BLOCK)
            exit(2);
    }
    return NULL;
}

static int ascending(const void *one, const void *other)
{
    int64_t a = *(const int64_t *)one, b = *(const int64_t *)other;
    return (a > b) - (a < b);
}

int main(int count, char **words)
{
    long threads = count - 3, total;
    if (threads < 1)
        return 2;
    reads = atol(words[1]);
    slack = atol(words[2]);
    files = words + 3;
    total = threads * reads;
    lag = malloc(total * sizeof *lag);
    pthread_t *started = malloc(threads * sizeof *started);
    start = now() + 300000000;
    for (long i = 0; i < threads; i++)
        if (pthread_create(&started[i], NULL, body, (void *)i) != 0)
            return 2;
    for (long i = 0; i < threads; i++)
        pthread_join(started[i], NULL);
    double elapsed_s = (now() - start) / 1e9;
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    qsort(lag, total, sizeof *lag, ascending);
    printf("{\"elapsed_s\": %.4f, \"lag_us\": {\"p50\": %.1f, \"p99\": %.1f, \"max\": %.1f}, \"cpu_s\": %.3f}\n", elapsed_s,
           lag[total / 2] / 1e3, lag[total * 99 / 100] / 1e3, lag[total - 1] / 1e3,
           used.ru_utime.tv_sec + used.ru_stime.tv_sec + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6);
    return 0;
}
