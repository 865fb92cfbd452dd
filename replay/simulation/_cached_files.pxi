# The page caches of the nodes: see `replay.simulation.cached_files`.

cdef struct Extent:
    int64_t first
    int64_t until
    double ready

cdef struct CachedFile:
    Extent *extents
    int64_t count
    int64_t room
    int64_t dirty
    int64_t *marks
    int64_t mark_count
    int64_t mark_room

cdef struct Stream:
    int64_t previous
    int64_t window
    int64_t ahead
    int64_t marker
    int64_t held

cdef struct Entry:
    int64_t file
    int64_t first
    int64_t until

cdef struct Node:
    int64_t held
    int64_t dirty
    Entry *entered        # a ring of `room`, a power of two
    int64_t first
    int64_t count
    int64_t room

cdef struct Places:       # numbers by key, with open addressing
    uint64_t *keys
    int64_t *values
    int64_t count
    int64_t room


cdef inline uint64_t _mixed(uint64_t key) noexcept nogil:
    key = (key ^ (key >> 30)) * <uint64_t>0xBF58476D1CE4E5B9
    key = (key ^ (key >> 27)) * <uint64_t>0x94D049BB133111EB
    return key ^ (key >> 31)


cdef int64_t _place_of(Places *places, int64_t owner, int64_t file, int64_t following) noexcept nogil:
    """The number of an owner's file; `following` and remembered where it is new, -1 where memory ran out."""
    cdef uint64_t key = (<uint64_t>owner << 32) + <uint64_t>file + 1, at
    cdef int64_t old
    cdef Places larger
    if 2 * places.count >= places.room:
        larger.room = max(64, 2 * places.room)
        larger.count = places.count
        larger.keys = <uint64_t *>calloc(larger.room, sizeof(uint64_t))
        larger.values = <int64_t *>malloc(larger.room * sizeof(int64_t))
        if larger.keys is NULL or larger.values is NULL:
            free(larger.keys)
            free(larger.values)
            return -1
        for old in range(places.room):
            if places.keys[old]:
                at = _mixed(places.keys[old]) & (larger.room - 1)
                while larger.keys[at]:
                    at = (at + 1) & (larger.room - 1)
                larger.keys[at], larger.values[at] = places.keys[old], places.values[old]
        free(places.keys)
        free(places.values)
        places[0] = larger
    at = _mixed(key) & (places.room - 1)
    while places.keys[at] and places.keys[at] != key:
        at = (at + 1) & (places.room - 1)
    if not places.keys[at]:
        places.keys[at], places.values[at] = key, following
        places.count += 1
    return places.values[at]


cdef int64_t _first_window(int64_t request, int64_t most) noexcept nogil:
    cdef int64_t size = C_PAGE_BYTES
    while size < request:
        size *= 2
    if size <= most // 32:
        return 4 * size
    return 2 * size if size <= most // 4 else most


cdef int64_t _next_window(int64_t window, int64_t most) noexcept nogil:
    if window < most // 16:
        return 4 * window
    return 2 * window if window <= most // 2 else most


cdef class Caches:
    cdef int64_t size, read_ahead, largest_fetch, dirty, node_count, file_room, stream_room
    cdef bint bounded, dropped_at_open
    cdef Node *nodes
    cdef CachedFile *files
    cdef Stream *streams
    cdef Places file_places, stream_places
    cdef bint failed

    def __cinit__(self, model, int64_t nodes):
        self.node_count = nodes
        self.nodes = <Node *>calloc(max(nodes, 1), sizeof(Node))
        if self.nodes is NULL:
            raise MemoryError
        if model is not None:
            self.size, self.dirty = model.size, model.dirty
            self.read_ahead = <int64_t>model.read_ahead // C_PAGE_BYTES * C_PAGE_BYTES
            self.largest_fetch = max(<int64_t>model.largest_fetch // C_PAGE_BYTES * C_PAGE_BYTES, self.read_ahead)
            self.bounded, self.dropped_at_open = model.largest_fetch > 0, model.dropped_at_open

    def __dealloc__(self):
        cdef int64_t at
        if self.nodes is not NULL:
            for at in range(self.node_count):
                free(self.nodes[at].entered)
        for at in range(self.file_places.count):
            free(self.files[at].extents)
            free(self.files[at].marks)
        free(self.nodes)
        free(self.files)
        free(self.streams)
        free(self.file_places.keys)
        free(self.file_places.values)
        free(self.stream_places.keys)
        free(self.stream_places.values)

    cdef CachedFile *_file(self, int64_t node, int64_t file) noexcept nogil:
        """A node's file; NULL where memory ran out."""
        cdef int64_t known = self.file_places.count, at = _place_of(&self.file_places, node, file, known)
        cdef CachedFile *larger
        if self.file_places.count > self.file_room:
            larger = <CachedFile *>realloc(self.files, max(64, 2 * self.file_room) * sizeof(CachedFile))
            if larger is NULL:
                at = -1
            else:
                self.files, self.file_room = larger, max(64, 2 * self.file_room)
        if at < 0:
            self.failed = True
            self.file_places.count = min(self.file_places.count, known)
            return NULL
        if at == known:
            memset(&self.files[at], 0, sizeof(CachedFile))
        return &self.files[at]

    cdef int64_t _from(self, const CachedFile *file, int64_t at) noexcept nogil:
        """The first extent that ends behind `at`."""
        cdef int64_t low = 0, high = file.count, middle
        while low < high:
            middle = (low + high) >> 1
            if file.extents[middle].until <= at:
                low = middle + 1
            else:
                high = middle
        return low

    cdef double ready(self, int64_t node, int64_t file, int64_t first, int64_t until) noexcept nogil:
        """When what is held of a range is there; 0 where nothing is held."""
        cdef CachedFile *own = self._file(node, file)
        cdef double latest = 0
        cdef int64_t at
        if own is NULL:
            return 0
        at = self._from(own, first)
        while at < own.count and own.extents[at].first < until:
            latest = max(latest, own.extents[at].ready)
            at += 1
        return latest

    cdef bint missing(
        self, int64_t node, int64_t file, int64_t first, int64_t until, int64_t *begin, int64_t *stop
    ) noexcept nogil:
        """The first part of a range that is not held, if any."""
        cdef CachedFile *own = self._file(node, file)
        cdef int64_t at
        if own is NULL:
            return False
        at = self._from(own, first)
        begin[0] = first
        while at < own.count and own.extents[at].first <= begin[0]:
            begin[0] = max(begin[0], own.extents[at].until)
            at += 1
        stop[0] = min(until, own.extents[at].first) if at < own.count else until
        return begin[0] < until

    cdef void insert(
        self, int64_t node, int64_t file, int64_t first, int64_t until, double ready, int64_t now
    ) noexcept nogil:
        cdef int64_t begin, stop, at = first
        cdef Entry oldest
        cdef Node *cache = &self.nodes[node]
        while not self.failed and self.missing(node, file, at, until, &begin, &stop):
            self._hold(node, file, begin, stop, ready, now)
            at = stop
        while not self.failed and cache.held > self.size:
            oldest = cache.entered[cache.first]
            cache.first = (cache.first + 1) & (cache.room - 1)
            cache.count -= 1
            self._drop(node, oldest)

    cdef void _hold(
        self, int64_t node, int64_t file, int64_t first, int64_t until, double ready, int64_t now
    ) noexcept nogil:
        cdef CachedFile *own = self._file(node, file)
        cdef Node *cache = &self.nodes[node]
        cdef Entry *latest
        cdef Extent *left
        cdef int64_t at, place
        if own is NULL or not self._room(own):
            self.failed = True
            return
        cache.held += until - first
        latest = &cache.entered[(cache.first + cache.count - 1) & (cache.room - 1)] if cache.count else NULL
        if (
            latest is not NULL and latest.file == file and latest.until == first
            and until - latest.first <= self.size // C_LEAST_ENTRIES
        ):
            latest.until = until
        elif not self._entered(cache, file, first, until):
            self.failed = True
            return
        at = self._from(own, first)
        memmove(&own.extents[at + 1], &own.extents[at], (own.count - at) * sizeof(Extent))
        own.extents[at].first, own.extents[at].until, own.extents[at].ready = first, until, ready
        own.count += 1
        for place in range(at + 1, at - 3, -1):
            if 0 < place < own.count:
                left = &own.extents[place - 1]
                if left.until == left[1].first and left.ready <= now and left[1].ready <= now:
                    left.until, left.ready = left[1].until, max(left.ready, left[1].ready)
                    memmove(&left[1], &left[2], (own.count - place - 1) * sizeof(Extent))
                    own.count -= 1

    cdef bint _room(self, CachedFile *file) noexcept nogil:
        """Make room for two more extents."""
        cdef Extent *larger
        if file.count + 2 > file.room:
            larger = <Extent *>realloc(file.extents, max(4, 2 * file.room) * sizeof(Extent))
            if larger is NULL:
                return False
            file.extents, file.room = larger, max(4, 2 * file.room)
        return True

    cdef bint _entered(self, Node *cache, int64_t file, int64_t first, int64_t until) noexcept nogil:
        cdef Entry *larger
        cdef Entry *entry
        cdef int64_t at
        if cache.count == cache.room:
            larger = <Entry *>malloc(max(16, 2 * cache.room) * sizeof(Entry))
            if larger is NULL:
                return False
            for at in range(cache.count):
                larger[at] = cache.entered[(cache.first + at) & (cache.room - 1)]
            free(cache.entered)
            cache.entered, cache.first, cache.room = larger, 0, max(16, 2 * cache.room)
        entry = &cache.entered[(cache.first + cache.count) & (cache.room - 1)]
        entry.file, entry.first, entry.until = file, first, until
        cache.count += 1
        return True

    cdef void _drop(self, int64_t node, Entry entry) noexcept nogil:
        cdef CachedFile *own = self._file(node, entry.file)
        cdef int64_t at, begin, end
        cdef Extent whole
        if own is NULL or not self._room(own):
            self.failed = True
            return
        self._forget_marks(own, entry.first, entry.until)
        at = self._from(own, entry.first)
        while at < own.count and own.extents[at].first < entry.until:
            whole = own.extents[at]
            begin, end = max(whole.first, entry.first), min(whole.until, entry.until)
            self.nodes[node].held -= end - begin
            if whole.first < begin:
                own.extents[at].until = begin
                at += 1
                if end < whole.until:
                    memmove(&own.extents[at + 1], &own.extents[at], (own.count - at) * sizeof(Extent))
                    own.count += 1
                    own.extents[at].first, own.extents[at].until, own.extents[at].ready = end, whole.until, whole.ready
                    return
            elif end < whole.until:
                own.extents[at].first = end
                return
            else:
                memmove(&own.extents[at], &own.extents[at + 1], (own.count - at - 1) * sizeof(Extent))
                own.count -= 1

    cdef bint wanted(
        self, int64_t node, int64_t rank, int64_t file, int64_t *at, int64_t until, int64_t size,
        int64_t *begin, int64_t *stop,
    ) noexcept nogil:
        """The next range that a read from `at` on makes be fetched, if any; `at` becomes where the read goes on."""
        cdef Stream *stream = self._stream(rank, file)
        cdef CachedFile *own = self._file(node, file)
        cdef int64_t marked, unused_begin, unused_stop, end = (size + C_PAGE_BYTES - 1) // C_PAGE_BYTES * C_PAGE_BYTES
        cdef bint lacks
        if stream is NULL or own is NULL:
            self.failed = True
            return False
        lacks = self.missing(node, file, at[0], until, begin, stop)
        marked = self._met(own, at[0], begin[0] if lacks else until)
        if marked >= 0:
            at[0] = marked + C_PAGE_BYTES
            if not self._follow(node, file, stream, marked, until):
                begin[0] = stop[0] = marked
                return True
            begin[0], stop[0] = stream.ahead - stream.window, min(stream.ahead, end)
        elif not lacks:
            stream.previous = until - C_PAGE_BYTES
            return False
        elif self.read_ahead and self._start(own, stream, begin[0], until):
            stop[0], at[0] = min(stream.ahead, max(until, end)), min(stream.marker, until)
        else:
            stop[0] = at[0] = until
            return True
        if stream.marker < stop[0] and self.missing(
            node, file, stream.marker, stream.marker + C_PAGE_BYTES, &unused_begin, &unused_stop
        ):
            self._mark(own, stream.marker)
        return True

    cdef int64_t _mark_from(self, const CachedFile *file, int64_t at) noexcept nogil:
        """The first mark that is not before `at`."""
        cdef int64_t low = 0, high = file.mark_count, middle
        while low < high:
            middle = (low + high) >> 1
            if file.marks[middle] < at:
                low = middle + 1
            else:
                high = middle
        return low

    cdef void _mark(self, CachedFile *file, int64_t page) noexcept nogil:
        cdef int64_t *larger
        cdef int64_t at = self._mark_from(file, page)
        if file.mark_count == file.mark_room:
            larger = <int64_t *>realloc(file.marks, max(4, 2 * file.mark_room) * sizeof(int64_t))
            if larger is NULL:
                self.failed = True
                return
            file.marks, file.mark_room = larger, max(4, 2 * file.mark_room)
        memmove(&file.marks[at + 1], &file.marks[at], (file.mark_count - at) * sizeof(int64_t))
        file.marks[at] = page
        file.mark_count += 1

    cdef void _forget_marks(self, CachedFile *file, int64_t first, int64_t until) noexcept nogil:
        cdef int64_t low, high
        if not file.mark_count:
            return
        low, high = self._mark_from(file, first), self._mark_from(file, until)
        memmove(&file.marks[low], &file.marks[high], (file.mark_count - high) * sizeof(int64_t))
        file.mark_count -= high - low

    cdef int64_t _met(self, CachedFile *file, int64_t first, int64_t until) noexcept nogil:
        """The first marked page of a range, which is marked no more; -1 where there is none."""
        cdef int64_t at, page
        if not file.mark_count:
            return -1
        at = self._mark_from(file, first)
        if at == file.mark_count or file.marks[at] >= until:
            return -1
        page = file.marks[at]
        self._forget_marks(file, page, page + 1)
        return page

    cdef int64_t _most(self, int64_t request) noexcept nogil:
        cdef int64_t most = max(self.read_ahead, request)
        return min(most, self.largest_fetch) if self.bounded else most

    cdef bint _start(self, CachedFile *file, Stream *stream, int64_t begin, int64_t until) noexcept nogil:
        cdef int64_t request = until - begin, most = self._most(until - begin), before, window, late
        if not begin or request > most or 0 <= begin - stream.previous <= C_PAGE_BYTES:
            window = _first_window(request, most)
            late = window - request if window > request else window // 2 // C_PAGE_BYTES * C_PAGE_BYTES
        else:
            before = self._held_before(file, begin, most)
            if before <= request:
                return False
            window, late = min(request + before * (2 if before == begin else 1), most), C_PAGE_BYTES
        stream.window, stream.ahead, stream.marker = window, begin + window, begin + window - late
        return True

    cdef bint _follow(
        self, int64_t node, int64_t file, Stream *stream, int64_t marked, int64_t until
    ) noexcept nogil:
        cdef int64_t request = until - marked, most = self._most(until - marked), begin, stop, window
        if marked == stream.marker:
            begin, window = stream.ahead, stream.window
        elif self.missing(node, file, marked + C_PAGE_BYTES, marked + C_PAGE_BYTES + most, &begin, &stop):
            window = begin - marked + request
        else:
            return False
        stream.window, stream.marker = _next_window(window, most), begin
        stream.ahead = begin + stream.window
        return True

    cdef int64_t _held_before(self, const CachedFile *file, int64_t at, int64_t most) noexcept nogil:
        cdef int64_t begin = at, place = self._from(file, at) - 1
        while place >= 0 and file.extents[place].until == begin and at - begin < most:
            begin = file.extents[place].first
            place -= 1
        return min(at - begin, most)

    cdef Stream *_stream(self, int64_t rank, int64_t file) noexcept nogil:
        """How a rank reads a file; NULL where memory ran out."""
        cdef int64_t known = self.stream_places.count, at = _place_of(&self.stream_places, rank, file, known)
        cdef Stream *larger
        if self.stream_places.count > self.stream_room:
            larger = <Stream *>realloc(self.streams, max(64, 2 * self.stream_room) * sizeof(Stream))
            if larger is NULL:
                return NULL
            self.streams, self.stream_room = larger, max(64, 2 * self.stream_room)
        if at < 0:
            return NULL
        if at == known:
            self.streams[at].previous, self.streams[at].marker = -2 * C_PAGE_BYTES, -1
            self.streams[at].window = self.streams[at].ahead = self.streams[at].held = 0
        return &self.streams[at]

    cdef void opened(self, int64_t node, int64_t file) noexcept nogil:
        cdef CachedFile *own
        cdef int64_t at
        if not self.dropped_at_open:
            return
        own = self._file(node, file)
        if own is NULL:
            return
        for at in range(own.count):
            self.nodes[node].held -= own.extents[at].until - own.extents[at].first
        own.count = own.mark_count = 0

    cdef bint takes(self, int64_t node, int64_t file, int64_t length) noexcept nogil:
        cdef CachedFile *own
        if self.nodes[node].dirty + length > self.dirty:
            return False
        own = self._file(node, file)
        if own is NULL:
            return False
        self.nodes[node].dirty += length
        own.dirty += length
        return True

    cdef int64_t synced(self, int64_t node, int64_t file) noexcept nogil:
        cdef CachedFile *own = self._file(node, file)
        cdef int64_t dirty
        if own is NULL:
            return 0
        dirty = own.dirty
        own.dirty = 0
        self.nodes[node].dirty -= dirty
        return dirty
