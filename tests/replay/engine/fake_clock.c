/* A library for LD_PRELOAD with a clock that only moves when told: by `read_ns` with each look, and by sleeps, which end
   `oversleep_ns` late. `on_sleep` is called with the deadline before each sleep. Without a time the real clock is read.

   Build: cc -shared -fPIC -O1 fake_clock.c -o fake_clock.so */

#define _GNU_SOURCE
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

long long time_ns, read_ns, oversleep_ns;
void (*on_sleep)(long long deadline_ns);

static struct timespec of_ns(long long ns)
{
    return (struct timespec){.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    if (time_ns == 0 || clock != CLOCK_MONOTONIC)
        return (int)syscall(SYS_clock_gettime, clock, now);
    time_ns += read_ns;
    *now = of_ns(time_ns);
    return 0;
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *until, struct timespec *left)
{
    if (time_ns == 0)
        return (int)syscall(SYS_clock_nanosleep, clock, flags, until, left);
    long long deadline_ns = until->tv_sec * 1000000000LL + until->tv_nsec;
    on_sleep(deadline_ns);
    if (time_ns < deadline_ns + oversleep_ns)
        time_ns = deadline_ns + oversleep_ns;
    return 0;
}
