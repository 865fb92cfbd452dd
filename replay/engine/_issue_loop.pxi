# How a lane waits, and its loop: see issue.pyx.

cdef int64_t sleep_near(int64_t deadline, int64_t now, int64_t window, const int64_t *stop) noexcept nogil:
    """Sleep until `window` ns before the deadline. Returns the last read of the clock, -1 if stopped."""
    cdef int64_t wake
    while deadline - now > window:
        wake = now + PIECE_NS
        sleep_until_ns(wake if wake < deadline - window else deadline - window)
        if load_relaxed(stop):
            return -1
        now = now_ns()
    return now


cdef int64_t wait_until(int64_t deadline, int64_t now, const int64_t *stop) noexcept nogil:
    """Sleep until WINDOW_NS before the deadline, then spin. Returns the last read of the clock, -1 if stopped."""
    now = sleep_near(deadline, now, WINDOW_NS, stop)
    while 0 <= now < deadline:
        now = now_ns()
    return now


cdef int64_t spin_until(int64_t deadline, int64_t now, const int64_t *stop) noexcept nogil:
    """Keep the processor busy until the deadline. Returns the last read of the clock, -1 if stopped."""
    while now < deadline:
        if load_relaxed(stop):
            return -1
        now = now_ns()
    return now


cdef int64_t await_counter(State *lane, int64_t *cell, int64_t least, int64_t now) noexcept nogil:
    """Wait until a cell is `least` or more: spin for WINDOW_NS, then sleep. Returns a read of the clock after the look
    that found it so, -1 if stopped."""
    cdef int64_t spun_until = now + WINDOW_NS
    cdef int64_t seen, found = -1
    cdef bint spins = may_spin()
    while True:
        seen = load_acquire(cell)
        now = now_ns()  # after the look: an end before the addition that it waited for would be a lie
        if seen >= least:
            found = now
            break
        if load_relaxed(lane.stop):
            break
        if spins and now >= spun_until:
            has_spun()
            spins = False
        if not spins:
            sleep_while_cell_is(cell, seen, PIECE_NS)
    if spins:
        has_spun()
    return found


cdef int64_t await_due(State *lane, int64_t due, int64_t now) noexcept nogil:
    """Wait until an item is due. Returns the last read of the clock, -1 if stopped.

    Sleeps to the end if too many lanes of the process spin already; else spins for the last WINDOW_NS."""
    if lane.crowded > 0:
        lane.crowded -= 1
        return sleep_near(due, now, 0, lane.stop)
    now = sleep_near(due, now, WINDOW_NS, lane.stop)
    if not 0 <= now < due:
        return now
    if not may_spin():
        lane.crowded = CROWDED_WAITS
        return sleep_near(due, now, 0, lane.stop)
    while now < due:
        now = now_ns()
    has_spun()
    return now


cdef inline bint is_over(State *lane) noexcept nogil:
    """Whether the lane has to end early: the run was stopped, or a back end in Python raised a bug."""
    return load_relaxed(lane.stop) or load_relaxed(&lane.table.broken)


cdef inline int64_t due_time(State *lane, int64_t due_in) noexcept nogil:
    """The time of CLOCK_MONOTONIC, ns, at which an item is due whose column `due_ns` is `due_in` (see `LoopPace`)."""
    if lane.pace == ABSOLUTE:
        return lane.t0 + due_in
    if lane.pace == THINK:
        return lane.previous_end + due_in
    return lane.previous_end


cdef Call call_counter(
    State *lane, int kind, int64_t slot, int64_t amount, int64_t multiple, int64_t begin
) noexcept nogil:
    """A WAIT or ADD item that begins at `begin`. Its end is -1 if the run was stopped, its result 0 or -EINVAL."""
    cdef Call call
    cdef int64_t *counter
    cdef int64_t looked
    call.begin = call.end = begin
    call.result = 0
    if not 0 <= slot < lane.counter_count:
        call.result = -EINVAL
        return call
    counter = &lane.counters[slot * COUNTER_WORDS]
    if kind == ADD:
        add_and_wake(counter, amount, multiple, begin)
        call.end = now_ns()
        return call
    looked = await_counter(lane, counter, amount, begin)
    if looked < 0:
        call.end = -1
        return call
    # Not when this lane woke up: what follows is due after what it waited for.
    call.end = max(begin, min(reached_ns(counter, amount, multiple), looked))
    return call


cdef void issue(State *lane, Place *batch) noexcept nogil:
    """Do the items of a batch, or those before a stop, and write their stamps over them.

    Reads the clock once per item if the item neither waits nor needs preparation, since each read delays the next
    item."""
    cdef int64_t i, slot, offset, length, asked, due, begin, end, result
    cdef int64_t now = 0, t0 = lane.t0, items_before = lane.items_done
    cdef int kind, error
    cdef char *data
    cdef Record *record
    cdef Call call
    cdef bint moves_data = lane.moves_data, special = lane.special  # of the held file
    cdef bint stale = True  # something took time since `now` was read
    for i in range(batch.count):
        if load_relaxed(lane.stop) or (special and load_relaxed(&lane.table.broken)):
            break
        record = &batch.records[i]
        kind, offset, length = record.item.kind, record.item.place, record.item.amount
        error = 0
        asked = length
        if kind <= WRITE_AT:
            slot = record.item.slot
            if slot != lane.held:
                if not hold_file(lane, slot):
                    break
                moves_data, special = lane.moves_data, lane.special
                stale = True
            error = lane.error
            if error == 0 and (offset < 0 or length < 0):
                error = EINVAL
            if error == 0 and moves_data:
                if asked > MAX_TRANSFER_BYTES:
                    asked = MAX_TRANSFER_BYTES
                if kind == READ_AT:
                    if length == 0 and lane.size <= offset:
                        asked = END_OF_FILE_READ_BYTES
                    if asked > lane.ready:
                        error = make_room(lane, asked, lane.size - offset)
                        stale = True
                elif asked > lane.payload_bytes:
                    error = find_payload(lane, asked)
                    stale = True
                if special and error == 0:
                    error = lane.rare.prepare_special(lane, kind, asked, offset)
                    stale = True
        elif kind < SLEEP:
            error = lane.rare.prepare_other(lane, kind, record.item.slot, offset)
            if error == STOPPED:
                break
            moves_data, special = lane.moves_data, lane.special
            stale = True
        due = due_time(lane, record.item.due_ns)
        if stale:
            now = now_ns()
            stale = False
        if due - now > WINDOW_NS and kind == READ_AT and moves_data and error == 0:
            if lane.crowded == 0:
                now = sleep_near(due, now, WINDOW_NS, lane.stop)
            if now >= 0:
                consume(lane, asked)
                now = now_ns()
        if 0 <= now < due:
            now = await_due(lane, due, now)
        if now < 0:
            break
        begin = now
        if lane.pace == NONE:
            due = begin
        if kind <= WRITE_AT:
            if error:
                result = -error
            elif not moves_data:
                result = length
            elif not special:
                data = lane.buffer if kind == READ_AT else lane.payload
                result = transfer(<int>lane.handle, kind, data, asked, offset)
            else:
                result = lane.rare.transfer_special(lane, kind, asked, offset)
            end = now_ns()
            lane.left -= 1
            if lane.left == 0:
                release_file(lane)
                stale = True
        elif kind >= WAIT:
            call = lane.rare.call_counter(lane, kind, record.item.slot, length, offset, begin)
            end, result = call.end, call.result
            if end < 0:
                break
            stale = True
        elif kind < SLEEP:
            call = lane.rare.call_other(lane, kind, record.item.slot, offset, error)
            begin, end, result = call.begin, call.end, call.result
            if lane.pace == NONE:
                due = begin
            stale = True
        else:
            result = 0
            # After another item compute is due with its end: a late wake-up does not lengthen it.
            end = compute(lane, kind, begin, length + (due - begin if lane.pace == THINK else 0))
            if end < 0:
                break
        record.stamps.due = due - t0
        record.stamps.begin = begin - t0
        record.stamps.end = end - t0
        record.stamps.result = result
        now = end
        store_relaxed(&lane.previous_end, end)
        batch.done = i + 1
        store_relaxed(&lane.items_done, items_before + batch.done)


cdef int64_t compute(State *lane, int kind, int64_t begin, int64_t length) noexcept nogil:
    """End of a SLEEP, SPIN or MARK item, -1 when it was given up for a stop."""
    if length > 0 and kind == SLEEP:
        return await_due(lane, begin + length, begin)
    if length > 0 and kind == SPIN:
        return spin_until(begin + length, begin, lane.stop)
    return begin


cdef Place *next_batch(State *lane, Place *place) noexcept nogil:
    """`place`, once the feeder has filled it; NULL if nothing more comes or the run is over. Time in which an item was
    due meanwhile counts as starved."""
    cdef int64_t waiting_since = -1, now, could_begin, no_more, told
    while True:
        no_more = load_acquire(&lane.no_more)  # before the state: a batch is queued before finish()
        if load_acquire(&place.state) == READY:
            break
        if no_more or is_over(lane):
            return NULL
        now = now_ns()
        if waiting_since < 0:
            waiting_since = now
        if now - waiting_since < FEED_POLLS_NS:
            sleep_until_ns(now + max(FEED_POLL_NS, (now - waiting_since) >> 3))
            continue
        store_relaxed(&lane.asleep, 1)
        full_barrier()  # the feeder tells, then looks whether somebody sleeps
        told = load_acquire(&lane.told)  # before the look at what it tells: what comes after that ends the sleep
        if load_acquire(&place.state) != READY and not load_acquire(&lane.no_more):
            sleep_while_cell_is(&lane.told, told, LONG_PIECE_NS)
        store_relaxed(&lane.asleep, 0)
    if waiting_since >= 0:
        could_begin = due_time(lane, place.records[0].item.due_ns)
        if could_begin < waiting_since:
            could_begin = waiting_since
        now = now_ns()
        if now > could_begin:
            store_relaxed(&lane.starved_ns, lane.starved_ns + now - could_begin)
    return place


cdef void run_lane(State *lane) noexcept nogil:
    """The body of the thread of a lane: wait for the start, then do batches until there are no more, a stop or a
    bug."""
    cdef long slack = get_timer_slack()
    cdef Place *batch
    cdef int head = 0
    if not any_may_spin():
        lane.crowded = INT64_MAX
    # With the slack, the kernel wakes lanes that are due within 50 us of each other by one interrupt. That saves a crowd
    # more time than it costs, but at other paces each wait would move all that follow.
    if any_may_spin() or lane.pace != ABSOLUTE:
        set_timer_slack(1)
    lane.t0 = load_acquire(lane.start)
    while lane.t0 == 0 and not load_relaxed(lane.stop):
        sleep_while_cell_is(<int64_t *>lane.start, 0, LONG_PIECE_NS)
        lane.t0 = load_acquire(lane.start)
    store_relaxed(&lane.previous_end, lane.t0)
    while not is_over(lane):
        batch = next_batch(lane, &lane.ring[head])
        if batch == NULL:
            break
        issue(lane, batch)
        store_release(&batch.state, FINISHED)
        head = (head + 1) % RING_BATCHES
    release_file(lane)
    if slack > 0:
        set_timer_slack(slack)
    store_release(&lane.run_ended, 1)
