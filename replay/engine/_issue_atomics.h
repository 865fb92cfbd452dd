/* What Cython cannot say: atomic loads and stores, the clock, a mutex that spins before it blocks.
 *
 * GCC's __atomic builtins (clang has them too) rather than <stdatomic.h>, because the start and stop cells are
 * plain int64 words inside NumPy arrays.
 */
#ifndef DXT_REPLAY_ISSUE_ATOMICS_H
#define DXT_REPLAY_ISSUE_ATOMICS_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static inline int64_t load_relaxed(const int64_t *cell) { return __atomic_load_n(cell, __ATOMIC_RELAXED); }
static inline int64_t load_acquire(const int64_t *cell) { return __atomic_load_n(cell, __ATOMIC_ACQUIRE); }
static inline void store_relaxed(int64_t *cell, int64_t value) { __atomic_store_n(cell, value, __ATOMIC_RELAXED); }
static inline void store_release(int64_t *cell, int64_t value) { __atomic_store_n(cell, value, __ATOMIC_RELEASE); }
static inline int64_t take_ticket(int64_t *cell) { return __atomic_fetch_add(cell, 1, __ATOMIC_RELAXED); }

static inline void full_barrier(void) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

/* A cell's low word is the futex (futex(2)). Not FUTEX_PRIVATE: processes share counters. */
static inline uint32_t *low_word(int64_t *cell)
{
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    return (uint32_t *)cell + 1;
#else
    return (uint32_t *)cell;
#endif
}

/* Sleeps until woken, `at_most_ns` at most, unless the cell is not `seen` any more. Returns early on a signal. */
static inline void sleep_while_cell_is(int64_t *cell, int64_t seen, long at_most_ns)
{
    struct timespec limit = {.tv_sec = at_most_ns / 1000000000, .tv_nsec = at_most_ns % 1000000000};
    syscall(SYS_futex, low_word(cell), FUTEX_WAIT, (uint32_t)seen, &limit, NULL, 0);
}

static inline void wake_all(int64_t *cell)
{
    syscall(SYS_futex, low_word(cell), FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* A counter is a cache line: its sum, and the times at which it reached the last seven multiples (replay.engine.wait_counters). */
enum { COUNTER_WORDS = 8, COUNTER_STAMPS = 7 };

static inline void raise_to(int64_t *cell, int64_t value)
{
    int64_t seen = load_relaxed(cell);
    while (seen < value && !__atomic_compare_exchange_n(cell, &seen, value, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
}

/* Stamp every multiple that this addition crosses, or is on the way to, with `now`. A later stamp of another adder
 * stays. */
static inline void stamp_multiples(int64_t *counter, int64_t before, int64_t amount, int64_t multiple, int64_t now)
{
    int64_t last = (before + amount - 1) / multiple + 1;
    int64_t unit = before / multiple + 1;
    if (last - unit >= COUNTER_STAMPS)
        unit = last - COUNTER_STAMPS + 1;
    for (; unit <= last; unit++)
        raise_to(&counter[1 + unit % COUNTER_STAMPS], now);
}

/* Write the stamp before the sum that it belongs to. If another lane adds meanwhile, the sum is another one and is
 * stamped anew. If several additions reach the same multiple, the latest stamp stays. */
static __attribute__((noinline)) void add_and_wake(int64_t *counter, int64_t amount, int64_t multiple, int64_t now)
{
    int64_t before = load_acquire(counter);
    do
        stamp_multiples(counter, before, amount, multiple, now);
    while (!__atomic_compare_exchange_n(counter, &before, before + amount, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE));
    if ((before + amount) / multiple != before / multiple)
        wake_all(counter);
}

/* When a counter that is at least `least` became so, or the oldest time that it still knows, which is later: see
 * Counters.reached_ns. An addition that is in progress has its stamps before its sum, hence one place less. */
static __attribute__((noinline)) int64_t reached_ns(const int64_t *counter, int64_t least, int64_t multiple)
{
    int64_t unit = least / multiple, oldest = load_acquire(counter) / multiple - (COUNTER_STAMPS - 2);
    if (unit <= 0)
        return 0;
    return load_relaxed(&counter[1 + (unit > oldest ? unit : oldest) % COUNTER_STAMPS]);
}

/* CLOCK_MONOTONIC in ns: the same clock as Python's time.monotonic_ns. */
static inline int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Returns early on a signal: callers look at the clock again. */
static inline void sleep_until_ns(int64_t deadline)
{
    struct timespec until = {.tv_sec = deadline / 1000000000, .tv_nsec = deadline % 1000000000};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
}

/* Lanes of this process that spin now, and how many may: more than there are processors would only hold each other up. */
static int64_t spinning_lanes;
static int64_t most_spinning_lanes = 2;

static inline int may_spin(void)
{
    if (__atomic_add_fetch(&spinning_lanes, 1, __ATOMIC_RELAXED) <= load_relaxed(&most_spinning_lanes))
        return 1;
    __atomic_sub_fetch(&spinning_lanes, 1, __ATOMIC_RELAXED);
    return 0;
}
static inline void has_spun(void) { __atomic_sub_fetch(&spinning_lanes, 1, __ATOMIC_RELAXED); }
static inline void let_spin(int64_t lanes) { store_relaxed(&most_spinning_lanes, lanes); }

/* The calling thread's timer slack in ns; 50,000 unless changed (prctl(2)). */
static inline long get_timer_slack(void) { return prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0); }
static inline void set_timer_slack(long slack) { prctl(PR_SET_TIMERSLACK, (unsigned long)slack, 0, 0, 0); }

/* Held for some ns except while a file is opened: spinning first saves the futex's 50 us. */
static inline void make_mutex(pthread_mutex_t *mutex)
{
    pthread_mutexattr_t kind;
    pthread_mutexattr_init(&kind);
#ifdef PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP
    pthread_mutexattr_settype(&kind, PTHREAD_MUTEX_ADAPTIVE_NP);
#endif
    pthread_mutex_init(mutex, &kind);
    pthread_mutexattr_destroy(&kind);
}

#endif
