# Limits, servers and tables of times: see `replay.simulation.simulated_storage`.

cdef struct Table:
    int64_t counts
    int64_t sizes
    const int64_t *in_flight
    const int64_t *size
    const double *time

cdef struct Bound:
    int scope
    bint counts_requests
    uint8_t passes[C_KINDS]
    int64_t first
    int64_t request_bytes
    double unit
    double burst
    double step

cdef struct Step:
    double begin
    double until
    double used

cdef struct Heap:
    double *values
    int64_t count
    int64_t room

cdef struct Turn:
    double turn
    double through
    int slow
    int narrow


cdef inline double _between(double first, double second, double share) noexcept nogil:
    return second if share > 1.0 and second < first else first + share * (second - first)


cdef inline int64_t _interval(const int64_t *values, int64_t count, int64_t value, double *share) noexcept nogil:
    """The interval that a value lies in or goes on from, and how far it lies in it."""
    cdef int64_t low, high, middle
    share[0] = 0.0
    if count == 1 or value <= values[0]:
        return 0
    low, high = 0, count - 2
    while low < high:
        middle = (low + high + 1) >> 1
        if values[middle] <= value:
            low = middle
        else:
            high = middle - 1
    share[0] = <double>(value - values[low]) / <double>(values[low + 1] - values[low])
    return low


cdef double _row_time(const Table *table, int64_t row, int64_t size) noexcept nogil:
    cdef double share
    cdef int64_t at = _interval(table.size, table.sizes, size, &share)
    cdef const double *times = &table.time[row * table.sizes]
    return times[at] if share == 0.0 else _between(times[at], times[at + 1], share)


cdef void _sift_down(Heap *heap, double value) noexcept nogil:
    """Replace the least value of a heap."""
    cdef int64_t at = 0, child
    while True:
        child = 2 * at + 1
        if child >= heap.count:
            break
        if child + 1 < heap.count and heap.values[child + 1] < heap.values[child]:
            child += 1
        if heap.values[child] >= value:
            break
        heap.values[at] = heap.values[child]
        at = child
    heap.values[at] = value


cdef double _pass_at(Step *own, double now, double cost, double step) noexcept nogil:
    """When a request passes a limit that grants its rate in steps."""
    cdef double turn = now, over
    if now > own.until:
        own.begin, own.used = now, 0.0
    if own.used + cost > max(step, ceil((now - own.begin) / step) * step):
        turn = own.begin + own.used + cost
    own.used += cost
    own.until = ceil(turn / step) * step + step
    over = (floor((turn - own.begin) / step) - 1) * step
    if over >= step:
        own.begin, own.used = own.begin + over, max(own.used - over, 0.0)
    return turn


cdef void _drop_least(Heap *heap) noexcept nogil:
    heap.count -= 1
    if heap.count:
        _sift_down(heap, heap.values[heap.count])


cdef bint _add_value(Heap *heap, double value) noexcept nogil:
    cdef int64_t at = heap.count
    cdef double *larger
    if heap.count == heap.room:
        larger = <double *>realloc(heap.values, max(8, 2 * heap.room) * sizeof(double))
        if larger is NULL:
            return False
        heap.values, heap.room = larger, max(8, 2 * heap.room)
    heap.count += 1
    while at and heap.values[(at - 1) >> 1] > value:
        heap.values[at] = heap.values[(at - 1) >> 1]
        at = (at - 1) >> 1
    heap.values[at] = value
    return True


cdef class Queues:
    cdef double scale, slot_ns, own_ns
    cdef uint64_t state
    cdef Table tables[C_TABLES]
    cdef Bound *limits
    cdef int64_t limit_count, servers, metadata, slots, metadata_slots, stripe_bytes, stripe_count, factor_count
    cdef Heap *in_flight   # of servers, then of metadata servers
    cdef Heap *free_slots
    cdef double[::1] available
    cdef Step *steps
    cdef double[::1] busy_ns
    cdef double[::1] turn_ns
    cdef double[::1] pipe_ns
    cdef double[::1] server_ns
    cdef int64_t[::1] requests
    cdef int64_t[::1] request_bytes
    cdef const double[::1] factors
    cdef bint failed
    cdef bint counts[C_KINDS]   # whether the time of a kind depends on how many requests are in flight
    cdef object counted
    cdef list kept

    def __cinit__(self, numbers, seed, double scale):
        model = numbers.model
        self.scale, self.state, self.kept = scale, seed & 0xFFFFFFFFFFFFFFFF, []
        self.counted = StorageUse.none(numbers)
        self.busy_ns, self.server_ns = self.counted.busy_ns, self.counted.server_ns
        self.turn_ns, self.pipe_ns = self.counted.turn_ns, self.counted.pipe_ns
        self.requests, self.request_bytes = self.counted.requests, self.counted.request_bytes
        self.available = np.zeros(max(numbers.buckets, 1))
        self.steps = <Step *>calloc(max(numbers.buckets, 1), sizeof(Step))
        if self.steps is NULL:
            raise MemoryError
        for at in range(numbers.buckets):
            self.steps[<int64_t>at].until = -1.0
        self.factors, self.factor_count = numbers.factors, len(numbers.factors)
        self.servers, self.slots = model.servers.count, model.servers.slots
        self.stripe_bytes, self.stripe_count = model.servers.stripe_bytes, model.servers.stripe_count
        self.metadata, self.metadata_slots = model.metadata.count, model.metadata.slots
        self._place_tables(numbers)
        self._place_limits(numbers)
        self._place_servers()

    def __dealloc__(self):
        cdef int64_t at
        for at in range(self.servers + self.metadata):
            if self.in_flight is not NULL:
                free(self.in_flight[at].values)
            if self.free_slots is not NULL:
                free(self.free_slots[at].values)
        free(self.in_flight)
        free(self.free_slots)
        free(self.limits)
        free(self.steps)

    cdef _place_tables(self, numbers):
        cdef const int64_t[::1] in_flight, sizes
        cdef const double[::1] times
        cdef Table *own
        for number, table in enumerate(numbers.tables):
            arrays = (
                np.array(table.in_flight, dtype=np.int64),
                np.array(table.sizes, dtype=np.int64),
                np.array(table.time_ns, dtype=np.float64).ravel(),
            )
            self.kept.append(arrays)
            in_flight, sizes, times = arrays
            own = &self.tables[<int>number]
            own.counts, own.sizes = len(in_flight), len(sizes)
            own.in_flight, own.size, own.time = &in_flight[0], &sizes[0], &times[0]
            if number < C_KINDS:
                self.counts[<int>number] = own.counts > 1

    cdef _place_limits(self, numbers):
        cdef Bound *own
        cdef int kind
        self.limit_count = len(numbers.model.limits)
        self.limits = <Bound *>calloc(max(self.limit_count, 1), sizeof(Bound))
        if self.limits is NULL:
            raise MemoryError
        for number, limit in enumerate(numbers.model.limits):
            own = &self.limits[<int>number]
            own.scope, own.first = numbers.scopes[number], numbers.first[number]
            own.counts_requests, own.request_bytes = limit.counts_requests, limit.request_bytes
            own.unit = 1e9 / limit.per_s * self.scale
            own.burst = limit.burst * own.unit
            own.step = limit.step_ns * self.scale
            for kind in range(C_KINDS):
                own.passes[kind] = KIND_NAMES[kind] in limit.operations

    cdef _place_servers(self):
        cdef int64_t at, slots
        self.in_flight = <Heap *>calloc(self.servers + self.metadata, sizeof(Heap))
        self.free_slots = <Heap *>calloc(self.servers + self.metadata, sizeof(Heap))
        if self.in_flight is NULL or self.free_slots is NULL:
            raise MemoryError
        for at in range(self.servers + self.metadata):
            slots = self.slots if at < self.servers else self.metadata_slots
            if slots:
                self.free_slots[at].values = <double *>calloc(slots, sizeof(double))
                if self.free_slots[at].values is NULL:
                    raise MemoryError
                self.free_slots[at].count = self.free_slots[at].room = slots

    cdef double time_of(self, int kind, int64_t size, int64_t in_flight) noexcept nogil:
        cdef const Table *table = &self.tables[kind]
        cdef double share
        cdef int64_t row = _interval(table.in_flight, table.counts, in_flight, &share)
        cdef double time = _row_time(table, row, size)
        return time if share == 0.0 else _between(time, _row_time(table, row + 1, size), share)

    cdef double request(
        self, int64_t now, int64_t node, int kind, int64_t file, int64_t offset, int64_t length, double start
    ) noexcept nogil:
        """When a request that reaches the servers ends that is sent at `start`."""
        cdef Turn passed
        cdef double end = start
        cdef int64_t width = self.stripe_bytes, count = self.stripe_count, first, last, stripe, size, server
        self.requests[kind] += 1
        self.request_bytes[kind] += length
        passed.turn = passed.through = start
        passed.slow = passed.narrow = -1
        self._pass(now, kind, length, C_NODE, node, &passed)
        if kind > C_WRITE:
            return max(end, self._server(now, kind, 0, C_METADATA, file % self.metadata, passed, start))
        if not width or not length:
            stripe = offset // width % count if width else 0
            stripe = (file * count + stripe) % self.servers
            return max(end, self._server(now, kind, length, C_SERVER, stripe, passed, start))
        first, last = offset // width, (offset + length - 1) // width
        for stripe in range(first, min(last, first + count - 1) + 1):
            size = ((last - stripe) // count + 1) * width
            if stripe == first:
                size -= offset - first * width
            if (last - stripe) % count == 0:
                size -= (last + 1) * width - offset - length
            server = (file * count + stripe % count) % self.servers
            end = max(end, self._server(now, kind, size, C_SERVER, server, passed, start))
        return end

    cdef void _pass(
        self, int64_t now, int kind, int64_t size, int scope, int64_t instance, Turn *passed
    ) noexcept nogil:
        """Pass the limits of a scope; the system's with those of a node."""
        cdef Bound *limit
        cdef int64_t number, amount, bucket
        cdef double cost, level, burst
        for number in range(self.limit_count):
            limit = &self.limits[number]
            if not limit.passes[kind]:
                continue
            if limit.scope == scope:
                bucket = limit.first + instance
            elif limit.scope == C_SYSTEM and scope == C_NODE:
                bucket = limit.first
            else:
                continue
            amount = size
            if limit.counts_requests:
                amount = max(1, (size + limit.request_bytes - 1) // limit.request_bytes) if limit.request_bytes else 1
            cost = amount * limit.unit
            burst = limit.burst if cost <= limit.burst else 0.0
            level = max(self.available[bucket], <double>now)
            self.busy_ns[bucket] += cost
            if limit.step:
                level = _pass_at(&self.steps[bucket], level, cost, limit.step)
                self.available[bucket] = level
                cost = burst = 0.0  # it has its turn and is through at once
            else:
                self.available[bucket] = level + cost
            if level - burst > passed.turn:
                passed.turn, passed.slow = level - burst, <int>number
            if level + cost - burst > passed.through:
                passed.through, passed.narrow = level + cost - burst, <int>number

    cdef double _server(
        self, int64_t now, int kind, int64_t size, int scope, int64_t instance, Turn passed, double start
    ) noexcept nogil:
        """When a server has done its piece of a request."""
        cdef int64_t number = instance if scope == C_SERVER else self.servers + instance, count = 1, at
        cdef Heap *in_flight = &self.in_flight[number]
        cdef Heap *slots = &self.free_slots[number]
        cdef double begin, own, end
        self._pass(now, kind, size, scope, instance, &passed)
        begin = passed.turn
        if self._counted(scope):
            while in_flight.count and in_flight.values[0] <= now:
                _drop_least(in_flight)
            count = in_flight.count + 1
            if start > now:
                for at in range(in_flight.count):
                    count -= in_flight.values[at] <= start
        if slots.count:
            count, begin = min(count, slots.count), max(passed.turn, slots.values[0])
        own = self.scale * self._drawn() * self.time_of(kind, size, count)
        end = max(begin + own, passed.through)
        if self._counted(scope) and not _add_value(in_flight, end):
            self.failed = True
        if slots.count:
            _sift_down(slots, end)
        if passed.slow >= 0:
            self.turn_ns[passed.slow] += passed.turn - start
        if passed.narrow >= 0 and passed.through > begin + own:
            self.pipe_ns[passed.narrow] += passed.through - (begin + own)
        self.slot_ns += begin - passed.turn
        self.own_ns += own
        self.server_ns[number] += own
        return end

    cdef inline bint _counted(self, int scope) noexcept nogil:
        """Whether requests in flight are counted: where the time of any kind of the server depends on it."""
        if scope == C_SERVER:
            return self.counts[0] or self.counts[1]
        return self.counts[2] or self.counts[3] or self.counts[4] or self.counts[5] or self.counts[7]

    cdef inline double _drawn(self) noexcept nogil:
        cdef uint64_t mixed
        if self.factor_count == 1:
            return self.factors[0]
        self.state += <uint64_t>0x9E3779B97F4A7C15
        mixed = self.state
        mixed = (mixed ^ (mixed >> 30)) * <uint64_t>0xBF58476D1CE4E5B9
        mixed = (mixed ^ (mixed >> 27)) * <uint64_t>0x94D049BB133111EB
        mixed ^= mixed >> 31
        return self.factors[<int64_t>(((mixed >> 32) * <uint64_t>self.factor_count) >> 32)]
