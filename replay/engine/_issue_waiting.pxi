# How a lane and the jitter probe wait for an instant: see dxt_replay.replay.engine.clock.

cdef int64_t sleep_near(int64_t deadline, int64_t now, int64_t window, const int64_t *stop) noexcept nogil:
    """Sleep until `window` ns before the deadline; the last read of the clock, -1 when stopped."""
    cdef int64_t wake
    while deadline - now > window:
        wake = now + C_PIECE_NS
        sleep_until_ns(wake if wake < deadline - window else deadline - window)
        if load_relaxed(stop):
            return -1
        now = now_ns()
    return now


cdef int64_t wait_until(int64_t deadline, int64_t now, const int64_t *stop) noexcept nogil:
    """Sleep to shortly before the deadline, then spin; the last read of the clock, -1 when stopped."""
    now = sleep_near(deadline, now, C_WINDOW_NS, stop)
    while 0 <= now < deadline:
        now = now_ns()
    return now


cdef int64_t spin_until(int64_t deadline, int64_t now, const int64_t *stop) noexcept nogil:
    """Busy to the deadline; the last read of the clock, -1 when stopped."""
    while now < deadline:
        if load_relaxed(stop):
            return -1
        now = now_ns()
    return now
