/* A library for LD_PRELOAD that holds a lane before it falls asleep for want of items (a FUTEX_WAIT of 250 ms, of which
   a lane makes no other once the start is known) until the test lets it go, and says how the sleep ended.

   Build: cc -shared -fPIC -O1 held_sleep.c -o held_sleep.so -ldl */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <time.h>

int sleeps;       /* that began */
int let_go;       /* how many of them may go on */
int timed_out;    /* that nobody ended */

long syscall(long number, ...)
{
    static long (*real)(long, ...);
    long a[6];
    va_list more;
    va_start(more, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(more, long);
    va_end(more);
    if (real == NULL)
        real = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    const struct timespec *limit = (const struct timespec *)a[3];
    if (number != SYS_futex || a[1] != FUTEX_WAIT || limit == NULL || limit->tv_sec || limit->tv_nsec != 250000000)
        return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    int mine = __atomic_add_fetch(&sleeps, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&let_go, __ATOMIC_SEQ_CST) < mine)
        sched_yield();
    long result = real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    if (result < 0 && errno == ETIMEDOUT)
        __atomic_add_fetch(&timed_out, 1, __ATOMIC_SEQ_CST);
    return result;
}
