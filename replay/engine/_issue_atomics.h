/* What Cython lacks: atomic loads and stores, the clock, futexes, a mutex that spins before it blocks.
 *
 * The atomics are GCC's __atomic builtins (clang has them too) instead of <stdatomic.h>, because the start and stop
 * cells are plain int64 words inside NumPy arrays. A cell is an aligned int64 that several threads use. Counters lie in
 * memory that several processes share. Times are in ns of CLOCK_MONOTONIC, durations in ns. No function here allocates,
 * takes a lock or needs the interpreter lock, and all may be called from any thread, unless its comment says otherwise.
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
/* The value of a cell before 1 is added to it: each caller gets another number. Orders no other memory access. */
static inline int64_t take_ticket(int64_t *cell) { return __atomic_fetch_add(cell, 1, __ATOMIC_RELAXED); }

/* Keeps an earlier store from passing a later load, which release and acquire allow. */
static inline void full_barrier(void) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

/* The low 32 bits of a cell, which are its futex (futex(2)). FUTEX_PRIVATE is not used, since processes share
 * counters. */
static inline uint32_t *low_word(int64_t *cell)
{
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    return (uint32_t *)cell + 1;
#else
    return (uint32_t *)cell;
#endif
}

/* Sleeps until `wake_all`, for `at_most_ns` at most. Returns at once if the cell does not hold `seen` any more, and
 * early on a signal. No result: callers look at the cell again. */
static inline void sleep_while_cell_is(int64_t *cell, int64_t seen, long at_most_ns)
{
    struct timespec limit = {.tv_sec = at_most_ns / 1000000000, .tv_nsec = at_most_ns % 1000000000};
    syscall(SYS_futex, low_word(cell), FUTEX_WAIT, (uint32_t)seen, &limit, NULL, 0);
}

/* Wakes all threads of all processes that sleep on a cell. Change the cell before the call. */
static inline void wake_all(int64_t *cell)
{
    syscall(SYS_futex, low_word(cell), FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* A counter is a cache line of eight cells (replay.engine.clock): first its sum, then the times at which the
 * sum reached its last seven multiples. The time of the u-th multiple is in cell 1 + u % COUNTER_STAMPS. */
enum { COUNTER_WORDS = 8, COUNTER_STAMPS = 7 };

/* Sets a cell to the larger of its value and `value`. */
static inline void raise_to(int64_t *cell, int64_t value)
{
    int64_t seen = load_relaxed(cell);
    while (seen < value && !__atomic_compare_exchange_n(cell, &seen, value, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
}

/* Stamps with `now` every multiple that this addition crosses, and the next one, which it brings nearer. A later stamp
 * of another adder stays. Only the last COUNTER_STAMPS of them are written: they would overwrite the others. */
static inline void stamp_multiples(int64_t *counter, int64_t before, int64_t amount, int64_t multiple, int64_t now)
{
    int64_t last = (before + amount - 1) / multiple + 1;
    int64_t unit = before / multiple + 1;
    if (last - unit >= COUNTER_STAMPS)
        unit = last - COUNTER_STAMPS + 1;
    for (; unit <= last; unit++)
        raise_to(&counter[1 + unit % COUNTER_STAMPS], now);
}

/* Adds `amount` (> 0) to a counter at the time `now`, and wakes its waiters if the sum reaches a multiple of `multiple`
 * (> 0), the same for all users of the counter.
 *
 * The stamp is written before the sum, so that whoever sees the sum finds its time. If another lane adds meanwhile, the
 * exchange fails and the new sum is stamped. If several additions reach the same multiple, the latest stamp stays. */
static __attribute__((noinline)) void add_and_wake(int64_t *counter, int64_t amount, int64_t multiple, int64_t now)
{
    int64_t before = load_acquire(counter);
    do
        stamp_multiples(counter, before, amount, multiple, now);
    while (!__atomic_compare_exchange_n(counter, &before, before + amount, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE));
    if ((before + amount) / multiple != before / multiple)
        wake_all(counter);
}

/* The time at which a counter reached `least`, a multiple of `multiple`, or the oldest time that it still knows, which
 * is later (see Counters.reached_ns); 0 for a `least` below the first multiple. The counter must have reached `least`.
 *
 * One stamp fewer than there are counts as known: an addition in progress may have overwritten it, since stamps come
 * before the sum. */
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

/* Sleeps until a time of CLOCK_MONOTONIC. Returns early on a signal: callers look at the clock again. */
static inline void sleep_until_ns(int64_t deadline)
{
    struct timespec until = {.tv_sec = deadline / 1000000000, .tv_nsec = deadline % 1000000000};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
}

/* Lanes of this process that spin now, and how many may. More lanes than processors would only hold each other up.
 * Static, so one pair for each module that includes this header: only the issue loop does. */
static int64_t spinning_lanes;
static int64_t most_spinning_lanes = 2;

/* 1 if the caller may spin, and must call `has_spun` afterwards; 0 if it has to sleep. */
static inline int may_spin(void)
{
    if (__atomic_add_fetch(&spinning_lanes, 1, __ATOMIC_RELAXED) <= load_relaxed(&most_spinning_lanes))
        return 1;
    __atomic_sub_fetch(&spinning_lanes, 1, __ATOMIC_RELAXED);
    return 0;
}
static inline void has_spun(void) { __atomic_sub_fetch(&spinning_lanes, 1, __ATOMIC_RELAXED); }
static inline void let_spin(int64_t lanes) { store_relaxed(&most_spinning_lanes, lanes); }
static inline int any_may_spin(void) { return load_relaxed(&most_spinning_lanes) > 0; }

/* The calling thread's timer slack in ns, by which the kernel may lengthen a sleep; 50,000 unless changed (prctl(2)).
 * -1 if it cannot be read; setting it reports no error. */
static inline long get_timer_slack(void) { return prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0); }
static inline void set_timer_slack(long slack) { prctl(PR_SET_TIMERSLACK, (unsigned long)slack, 0, 0, 0); }

/* Initialises a mutex that spins before it sleeps, where the C library has such mutexes: its holders keep it for some
 * ns except while a file is opened or closed, so spinning mostly saves the 50 us of a futex. The caller destroys it. */
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
