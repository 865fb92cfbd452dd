# The page caches of the nodes, and read-ahead into them as in Linux (mm/readahead.c). Offsets and lengths are in bytes,
# ranges are half-open, times are in ns. A function that is `except` can fail only for lack of memory.

cdef enum:
    PAGE_BYTES = 4096   # a read fetches whole pages
    LEAST_ENTRIES = 64  # in how many pieces a full cache is remembered at least, by the order in which they entered it

cdef struct Range:  # empty where `until` is not above `first`
    int64_t first
    int64_t until

cdef struct Extent:  # bytes of a file, which are there from `ready` on, ns
    int64_t first
    int64_t until
    double ready

cdef struct CachedFile:  # what a node holds of a file
    vector[Extent] extents  # ascending
    vector[int64_t] marks   # ascending: pages whose reader makes the next window be fetched
    int64_t dirty

cdef struct Reader:  # how a rank reads a file, as in the kernel's file_ra_state
    int64_t previous  # the page in which the latest read ended
    int64_t window    # bytes of the latest window
    int64_t ahead     # its end
    int64_t marker    # the page of it that is marked

cdef struct Entry:
    CachedFile *file
    int64_t first
    int64_t until

cdef struct Node:
    int64_t held
    int64_t dirty
    cpp_list[Entry] entered  # in order


cdef inline uint64_t _key(int64_t owner, int64_t file) noexcept nogil:
    """The key of a file of a node or of a rank."""
    return (<uint64_t>owner << 32) + <uint64_t>file


cdef int64_t _first_window(int64_t request, int64_t most) noexcept nogil:
    """The first window of a row of reads, bytes (get_init_ra_size)."""
    cdef int64_t size = PAGE_BYTES
    while size < request:
        size *= 2
    if size <= most // 32:
        return 4 * size
    return 2 * size if size <= most // 4 else most


cdef int64_t _next_window(int64_t window, int64_t most) noexcept nogil:
    """The window after another one, bytes (get_next_ra_size)."""
    if window < most // 16:
        return 4 * window
    return 2 * window if window <= most // 2 else most


cdef int64_t _from(const CachedFile *file, int64_t at) noexcept nogil:
    """The first extent that ends behind `at`."""
    cdef int64_t low = 0, high = file.extents.size(), middle
    while low < high:
        middle = (low + high) >> 1
        if file.extents[middle].until <= at:
            low = middle + 1
        else:
            high = middle
    return low


cdef double _ready(const CachedFile *file, int64_t first, int64_t until) noexcept nogil:
    """The time at which all held bytes of a range have arrived; 0 if none are held."""
    cdef double latest = 0
    cdef int64_t at = _from(file, first), count = file.extents.size()
    while at < count and file.extents[at].first < until:
        latest = max(latest, file.extents[at].ready)
        at += 1
    return latest


cdef Range _missing(const CachedFile *file, int64_t first, int64_t until) noexcept nogil:
    """The first part of a range that is not held."""
    cdef int64_t at = _from(file, first), count = file.extents.size()
    while at < count and file.extents[at].first <= first:
        first = max(first, file.extents[at].until)
        at += 1
    return Range(first, min(until, file.extents[at].first) if at < count else until)


cdef int64_t _held_before(const CachedFile *file, int64_t at, int64_t most) noexcept nogil:
    """Bytes directly before `at` that are held without a hole, `most` at most."""
    cdef int64_t begin = at, place = _from(file, at) - 1
    while place >= 0 and file.extents[place].until == begin and at - begin < most:
        begin = file.extents[place].first
        place -= 1
    return min(at - begin, most)


cdef int64_t _met(CachedFile *file, int64_t first, int64_t until) except -2 nogil:
    """The first marked page of a range, -1 if there is none. Takes its mark away."""
    cdef vector[int64_t].iterator mark = lower_bound(file.marks.begin(), file.marks.end(), first)
    cdef int64_t page
    if mark == file.marks.end() or dereference(mark) >= until:
        return -1
    page = dereference(mark)
    file.marks.erase(mark)
    return page


cdef int64_t _drop(CachedFile *file, int64_t first, int64_t until) except -1 nogil:
    """Drop a range and its marks. Returns the bytes of it that were held."""
    cdef int64_t dropped = 0, at = _from(file, first)
    cdef Extent whole
    file.marks.erase(
        lower_bound(file.marks.begin(), file.marks.end(), first),
        lower_bound(file.marks.begin(), file.marks.end(), until),
    )
    while at < <int64_t>file.extents.size() and file.extents[at].first < until:
        whole = file.extents[at]
        file.extents.erase(file.extents.begin() + at)
        dropped += min(whole.until, until) - max(whole.first, first)
        if whole.first < first:
            file.extents.insert(file.extents.begin() + at, Extent(whole.first, first, whole.ready))
            at += 1
        if until < whole.until:
            file.extents.insert(file.extents.begin() + at, Extent(until, whole.until, whole.ready))
            at += 1
    return dropped


cdef class Caches:
    cdef int64_t size, read_ahead, largest_fetch, dirty
    cdef bint bounded, dropped_at_open
    cdef vector[Node] nodes
    cdef unordered_map[uint64_t, CachedFile] files   # by node and file
    cdef unordered_map[uint64_t, Reader] readers     # by rank and file

    def __init__(self, model, nodes):
        self.nodes.resize(nodes)
        self.size, self.dirty, self.dropped_at_open = model.size, model.dirty, model.dropped_at_open
        self.read_ahead = model.read_ahead // PAGE_BYTES * PAGE_BYTES
        self.bounded = model.largest_fetch > 0
        self.largest_fetch = max(model.largest_fetch // PAGE_BYTES * PAGE_BYTES, self.read_ahead)

    cdef CachedFile *file(self, int64_t node, int64_t file) except NULL nogil:
        """What a node holds of a file, made if absent. The pointer stays valid as long as the caches."""
        cdef pair[uint64_t, CachedFile] new
        cdef unordered_map[uint64_t, CachedFile].iterator found = self.files.find(_key(node, file))
        if found == self.files.end():
            new.first, new.second.dirty = _key(node, file), 0
            found = self.files.insert(new).first
        return &dereference(found).second

    cdef Reader *reader(self, int64_t rank, int64_t file) except NULL nogil:
        """How a rank reads a file, made if absent. The pointer stays valid as long as the caches."""
        cdef pair[uint64_t, Reader] new
        cdef unordered_map[uint64_t, Reader].iterator found = self.readers.find(_key(rank, file))
        if found == self.readers.end():
            new.first, new.second = _key(rank, file), Reader(-2 * PAGE_BYTES, 0, 0, -1)
            found = self.readers.insert(new).first
        return &dereference(found).second

    cdef int insert(
        self, Node *node, CachedFile *file, int64_t first, int64_t until, double ready, int64_t now
    ) except -1 nogil:
        """Hold a range that is there from `ready` on. What of it was held already stays as it is."""
        cdef Range gap = _missing(file, first, until)
        cdef Entry oldest
        while gap.first < gap.until:
            self._hold(node, file, gap, ready, now)
            gap = _missing(file, gap.until, until)
        while node.held > self.size:
            oldest = node.entered.front()
            node.entered.pop_front()
            node.held -= _drop(oldest.file, oldest.first, oldest.until)
        return 0

    cdef int _hold(self, Node *node, CachedFile *file, Range gap, double ready, int64_t now) except -1 nogil:
        """Hold a range of which nothing is held yet; neighbours that are all there become one."""
        cdef Entry *latest = NULL
        cdef Extent *left
        cdef int64_t at = _from(file, gap.first), place
        node.held += gap.until - gap.first
        if not node.entered.empty():
            latest = &node.entered.back()
        if (
            latest is not NULL and latest.file == file and latest.until == gap.first
            and gap.until - latest.first <= self.size // LEAST_ENTRIES
        ):
            latest.until = gap.until
        else:
            node.entered.push_back(Entry(file, gap.first, gap.until))
        file.extents.insert(file.extents.begin() + at, Extent(gap.first, gap.until, ready))
        for place in range(at + 1, at - 3, -1):
            if 0 < place < <int64_t>file.extents.size():
                left = &file.extents[place - 1]
                if left.until == left[1].first and left.ready <= now and left[1].ready <= now:
                    left.until, left.ready = left[1].until, max(left.ready, left[1].ready)
                    file.extents.erase(file.extents.begin() + place)
        return 0

    cdef int wanted(
        self, CachedFile *file, Reader *reader, int64_t *at, int64_t until, int64_t size, Range *fetch
    ) except -1 nogil:
        """Whether a read of the bytes `at` to `until` (whole pages) triggers a fetch, at the first marked or missing
        page.

        If so, `fetch` gets the range to fetch, which may be empty or partly held, and `at` the place where the read
        goes on: call again with it. `size`: bytes of the file; nothing is fetched ahead beyond it."""
        cdef int64_t marked, end = (size + PAGE_BYTES - 1) // PAGE_BYTES * PAGE_BYTES
        cdef Range gap = _missing(file, at[0], until), page
        marked = _met(file, at[0], gap.first if gap.first < gap.until else until)
        if marked >= 0:
            at[0] = marked + PAGE_BYTES
            if not self._follow(file, reader, marked, until):
                fetch[0] = Range(marked, marked)
                return True
            fetch[0] = Range(reader.ahead - reader.window, min(reader.ahead, end))
        elif gap.first >= gap.until:
            reader.previous = until - PAGE_BYTES
            return False
        elif self.read_ahead and self._start(file, reader, gap.first, until):
            fetch[0] = Range(gap.first, min(reader.ahead, max(until, end)))
            at[0] = min(reader.marker, until)
        else:
            fetch[0] = Range(gap.first, until)
            at[0] = until
            return True
        if reader.marker < fetch.until:
            page = _missing(file, reader.marker, reader.marker + PAGE_BYTES)
            if page.first < page.until:
                file.marks.insert(lower_bound(file.marks.begin(), file.marks.end(), reader.marker), reader.marker)
        return True

    cdef int64_t _most(self, int64_t request) noexcept nogil:
        """The largest window for a request of so many bytes (ractl_max_pages)."""
        cdef int64_t most = max(self.read_ahead, request)
        return min(most, self.largest_fetch) if self.bounded else most

    cdef bint _start(self, const CachedFile *file, Reader *reader, int64_t begin, int64_t until) noexcept nogil:
        """Give a reader a first window, where a page is missing (page_cache_sync_ra). False: it reads at random."""
        cdef int64_t request = until - begin, most = self._most(until - begin), before, window, late
        if not begin or request > most or 0 <= begin - reader.previous <= PAGE_BYTES:
            window = _first_window(request, most)
            late = window - request if window > request else window // 2 // PAGE_BYTES * PAGE_BYTES
        else:
            before = _held_before(file, begin, most)
            if before <= request:
                return False
            window, late = min(request + before * (2 if before == begin else 1), most), PAGE_BYTES
        reader.window, reader.ahead, reader.marker = window, begin + window, begin + window - late
        return True

    cdef bint _follow(self, const CachedFile *file, Reader *reader, int64_t marked, int64_t until) noexcept nogil:
        """Give a reader its next window behind a marked page (page_cache_async_ra), its own or another one's."""
        cdef int64_t request = until - marked, most = self._most(until - marked), begin, window
        cdef Range gap
        if marked == reader.marker:
            begin, window = reader.ahead, reader.window
        else:
            gap = _missing(file, marked + PAGE_BYTES, marked + PAGE_BYTES + most)
            if gap.first >= gap.until:
                return False
            begin, window = gap.first, gap.first - marked + request
        reader.window, reader.marker = _next_window(window, most), begin
        reader.ahead = begin + reader.window
        return True

    cdef int opened(self, int64_t number, int64_t of) except -1 nogil:
        """Drop what is held of a file, where an open does that."""
        if self.dropped_at_open:
            self.nodes[number].held -= _drop(self.file(number, of), 0, INT64_MAX)
        return 0

    cdef bint takes(self, Node *node, CachedFile *file, int64_t length) noexcept nogil:
        """Whether the cache takes a write as dirty bytes; it then holds them until the file is synced."""
        if node.dirty + length > self.dirty:
            return False
        node.dirty += length
        file.dirty += length
        return True

    cdef int64_t synced(self, int64_t number, int64_t of) except -1 nogil:
        """Make the dirty bytes of a file clean. Returns how many they were."""
        cdef CachedFile *file = self.file(number, of)
        cdef int64_t dirty = file.dirty
        file.dirty = 0
        self.nodes[number].dirty -= dirty
        return dirty
