# The limits that a request passes, the servers that do it, and how long it takes by itself.

cdef struct Table:  # see `RequestTime`
    vector[int64_t] in_flight
    vector[int64_t] sizes
    vector[double] time_ns  # row by row

cdef struct Bucket:
    double available  # when it has let everything through, ns
    double begin      # of the slice, where the rate is granted in steps
    double until      # when the slice ends if nothing passes
    double used       # the cost of what has passed in the slice
    double busy_ns

cdef struct LimitQueue:
    int scope
    int64_t kinds  # a bit for each kind that passes it
    bint counts_requests
    int64_t request_bytes
    double unit    # ns of a byte or request
    double burst   # ns
    double step    # ns
    double turn_ns
    double pipe_ns
    vector[Bucket] buckets

cdef struct Server:
    multiset[double] in_flight    # ends of requests
    priority_queue[double] slots  # minus the time from which on each slot is free
    double own_ns

cdef struct Turn:
    double turn     # when a request has its turn at all limits
    double through  # when its bytes are through all of them
    int slow        # the limit that decides over the turn, -1 for none
    int narrow      # and over the end


cdef inline double _between(double first, double second, double share) noexcept nogil:
    """The value `share` of the way from the first to the second; beyond the second it does not fall."""
    return second if share > 1.0 and second < first else first + share * (second - first)


cdef int64_t _interval(const vector[int64_t] &values, int64_t value, double *share) noexcept nogil:
    """The interval that a value lies in or goes on from, and how far it lies in it, from 0; 0 below the first."""
    cdef int64_t low = 0, high = <int64_t>values.size() - 2, middle
    share[0] = 0.0
    if high < 0 or value <= values[0]:
        return 0
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
    cdef int64_t at = _interval(table.sizes, size, &share) + row * <int64_t>table.sizes.size()
    return table.time_ns[at] if share == 0.0 else _between(table.time_ns[at], table.time_ns[at + 1], share)


cdef double _pass_at(Bucket *own, double now, double cost, double step) noexcept nogil:
    """When a request passes a limit that grants its rate in steps, as a slice of the kernel's throttle
    (block/blk-throttle.c, tg_within_bps_limit); `now`: when it comes to the head of the queue."""
    cdef double turn = now, over
    if now > own.until:
        own.begin, own.used = now, 0.0
    if own.used + cost > max(step, ceil((now - own.begin) / step) * step):
        turn = own.begin + own.used + cost
    own.used += cost
    own.until = ceil(turn / step) * step + step
    over = (floor((turn - own.begin) / step) - 1) * step  # throtl_trim_slice keeps one step
    if over >= step:
        own.begin, own.used = own.begin + over, max(own.used - over, 0.0)
    return turn


cdef class Queues:
    cdef double scale
    cdef uint64_t state
    cdef vector[Table] tables
    cdef vector[LimitQueue] limits
    cdef vector[Server] servers  # the data servers, then those of metadata
    cdef int64_t data_servers, metadata_servers, stripe_bytes, stripe_count
    cdef bint data_in_flight, metadata_in_flight  # whether the time of a kind depends on the requests in flight
    cdef vector[double] factors
    cdef vector[int64_t] requests, request_bytes  # by kind

    def __init__(self, model, nodes, seed, scale):
        cdef int64_t at
        self.scale, self.state = scale, seed & 0xFFFFFFFFFFFFFFFF
        self.factors = (1.0,) if model.jitter is None else model.jitter.quantiles
        self.requests.resize(len(KIND_NAMES))
        self.request_bytes.resize(len(KIND_NAMES))
        self.data_servers, self.metadata_servers = model.servers.count, model.metadata.count
        self.stripe_bytes, self.stripe_count = model.servers.stripe_bytes, model.servers.stripe_count
        self.servers.resize(self.data_servers + self.metadata_servers)
        for at in range(self.data_servers + self.metadata_servers):
            for _ in range(model.servers.slots if at < self.data_servers else model.metadata.slots):
                self.servers[at].slots.push(0.0)
        self._place_tables(model)
        self._place_limits(model, nodes)

    cdef _place_tables(self, model):
        cdef Table *own
        cache = model.cache or PageCache(size=1)
        times = [model.operations.get(name, RequestTime()) for name in KIND_NAMES]
        times += [cache.hit, cache.write or cache.hit]
        self.tables.resize(len(times))
        for number, time in enumerate(times):
            own = &self.tables[<int64_t>number]
            own.in_flight, own.sizes = time.in_flight, time.sizes
            own.time_ns = [each for row in time.time_ns for each in row]
            if own.in_flight.size() > 1 and number != SEEK and number < HIT:
                self.data_in_flight |= number <= WRITE
                self.metadata_in_flight |= number > WRITE

    cdef _place_limits(self, model, nodes):
        cdef LimitQueue *own
        instances = {"server": model.servers.count, "node": nodes, "system": 1, "metadata": model.metadata.count}
        self.limits.resize(len(model.limits))
        for number, limit in enumerate(model.limits):
            own = &self.limits[<int64_t>number]
            own.scope = SCOPES.index(limit.each)
            own.kinds = sum(1 << kind for kind, name in enumerate(KIND_NAMES) if name in limit.operations)
            own.counts_requests, own.request_bytes = limit.counts_requests, limit.request_bytes
            own.unit = 1e9 / limit.per_s * self.scale
            own.burst, own.step = limit.burst * own.unit, limit.step_ns * self.scale
            own.buckets.resize(instances[limit.each], Bucket(0.0, 0.0, -1.0, 0.0, 0.0))

    cdef object busy_ns(self, int64_t limit):
        """Time in ns in which each instance (server, node, ...) of a limit was busy with what passed it."""
        cdef int64_t at
        cdef int64_t count = self.limits[limit].buckets.size()
        return np.array([self.limits[limit].buckets[at].busy_ns for at in range(count)])

    cdef double time_of(self, int kind, int64_t size, int64_t in_flight) noexcept nogil:
        """Time in ns that a request of `size` bytes takes by itself with `in_flight` requests in flight, before
        jitter and `scale`."""
        cdef const Table *table = &self.tables[kind]
        cdef double share
        cdef int64_t row = _interval(table.in_flight, in_flight, &share)
        cdef double time = _row_time(table, row, size)
        return time if share == 0.0 else _between(time, _row_time(table, row + 1, size), share)

    cdef double request(
        self, int64_t now, int64_t node, int kind, int64_t file, int64_t offset, int64_t length, double start
    ) except -1 nogil:
        """When a request to the servers ends, ns.

        `start`: when it is sent, `now` or later. Its place in the limits is that of a request at `now`, so that no
        limit idles until it is sent. Requests come in the order of `now`. `offset`, `length`: bytes of the file."""
        cdef Turn passed = Turn(start, start, -1, -1)
        cdef double end = start
        cdef int64_t width = self.stripe_bytes, count = self.stripe_count, first, last, stripe, size, server
        self.requests[kind] += 1
        self.request_bytes[kind] += length
        self._pass(now, kind, length, NODE, node, &passed)
        if kind > WRITE:
            return max(end, self._served(now, kind, 0, METADATA, file % self.metadata_servers, passed, start))
        if not width or not length:
            stripe = offset // width % count if width else 0
            server = (file * count + stripe) % self.data_servers
            return max(end, self._served(now, kind, length, SERVER, server, passed, start))
        first, last = offset // width, (offset + length - 1) // width
        for stripe in range(first, min(last, first + count - 1) + 1):
            size = ((last - stripe) // count + 1) * width
            if stripe == first:
                size -= offset - first * width
            if (last - stripe) % count == 0:
                size -= (last + 1) * width - offset - length
            server = (file * count + stripe % count) % self.data_servers
            end = max(end, self._served(now, kind, size, SERVER, server, passed, start))
        return end

    cdef void _pass(
        self, int64_t now, int kind, int64_t size, int scope, int64_t instance, Turn *passed
    ) noexcept nogil:
        """Pass the limits of a scope, and with those of a node the limits of the system. `passed` gets the latest turn
        and end of all of them, ns, and which limit decided. `size`: bytes; `instance`: number of the server or node."""
        cdef LimitQueue *limit
        cdef Bucket *bucket
        cdef int64_t amount
        cdef int number
        cdef double cost, level, burst
        for number in range(<int>self.limits.size()):
            limit = &self.limits[number]
            if not limit.kinds >> kind & 1:
                continue
            if limit.scope == scope:
                bucket = &limit.buckets[instance]
            elif limit.scope == SYSTEM and scope == NODE:
                bucket = &limit.buckets[0]
            else:
                continue
            amount = size
            if limit.counts_requests:
                amount = max(1, (size + limit.request_bytes - 1) // limit.request_bytes) if limit.request_bytes else 1
            cost = amount * limit.unit
            # As in the kernel: what does not fit into the bucket passes as in a pipe.
            burst = limit.burst if cost <= limit.burst else 0.0
            level = max(bucket.available, <double>now)
            bucket.busy_ns += cost
            if limit.step:
                level = _pass_at(bucket, level, cost, limit.step)
                cost = burst = 0.0  # it has its turn and is through at once
            bucket.available = level + cost
            if level - burst > passed.turn:
                passed.turn, passed.slow = level - burst, number
            if level + cost - burst > passed.through:
                passed.through, passed.narrow = level + cost - burst, number

    cdef double _served(
        self, int64_t now, int kind, int64_t size, int scope, int64_t instance, Turn passed, double start
    ) except -1 nogil:
        """When a server has done its piece of `size` bytes of a request, ns. Passes the limits of that server, takes a
        slot if slots are limited, and adds the time of the request for the number in flight."""
        cdef Server *server = &self.servers[instance + (self.data_servers if scope == METADATA else 0)]
        cdef bint counted = self.data_in_flight if scope == SERVER else self.metadata_in_flight
        cdef int64_t count = 1
        cdef double begin, own, end
        cdef multiset[double].iterator ended
        self._pass(now, kind, size, scope, instance, &passed)
        begin = passed.turn
        if counted:
            while not server.in_flight.empty() and dereference(server.in_flight.begin()) <= now:
                server.in_flight.erase(server.in_flight.begin())
            count += server.in_flight.size()
            ended = server.in_flight.begin()
            while ended != server.in_flight.end() and dereference(ended) <= start:
                count -= 1
                preincrement(ended)
        if not server.slots.empty():
            count, begin = min(count, <int64_t>server.slots.size()), max(begin, -server.slots.top())
        own = self.scale * self._drawn() * self.time_of(kind, size, count)
        end = max(begin + own, passed.through)
        if counted:
            server.in_flight.insert(end)
        if not server.slots.empty():
            server.slots.pop()
            server.slots.push(-end)
        if passed.slow >= 0:
            self.limits[passed.slow].turn_ns += passed.turn - start
        if passed.narrow >= 0 and passed.through > begin + own:
            self.limits[passed.narrow].pipe_ns += passed.through - (begin + own)
        server.own_ns += own
        return end

    cdef inline double _drawn(self) noexcept nogil:
        """The next factor of the jitter; the generator is splitmix64 (Steele, Lea and Flood, OOPSLA 2014)."""
        cdef uint64_t mixed, count = self.factors.size()
        if count == 1:
            return self.factors[0]
        self.state += <uint64_t>0x9E3779B97F4A7C15
        mixed = self.state
        mixed = (mixed ^ (mixed >> 30)) * <uint64_t>0xBF58476D1CE4E5B9
        mixed = (mixed ^ (mixed >> 27)) * <uint64_t>0x94D049BB133111EB
        mixed ^= mixed >> 31
        return self.factors[((mixed >> 32) * count) >> 32]
