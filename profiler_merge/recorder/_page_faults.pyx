# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Decodes the kernel's records of page faults, mappings and context switches (perf_event_open(2)).

Without NumPy: it starts threads, and the recorder holds signals back before any thread starts.
"""

from bisect import bisect_right

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, qsort, realloc
from libc.string cimport memcpy

cdef extern from *:
    """
    static inline uint64_t load_head(const char *page) { return __atomic_load_n((const uint64_t *)(page + 1024), __ATOMIC_ACQUIRE); }
    static inline uint64_t load_tail(const char *page) { return *(const uint64_t *)(page + 1032); }
    static inline void store_tail(char *page, uint64_t tail) { __atomic_store_n((uint64_t *)(page + 1032), tail, __ATOMIC_RELEASE); }
    """
    uint64_t load_head(const char *page) nogil
    uint64_t load_tail(const char *page) nogil
    void store_tail(char *page, uint64_t tail) nogil

cdef enum:
    LOST = 2, COMM = 3, FORK = 7, SAMPLE = 9, MMAP2 = 10, SWITCH = 14
    OF_EXEC = 1 << 13, NOT_PROGRAM = 1 << 13, SWITCHED_OUT = 1 << 13, PREEMPTED = 1 << 14
    SAMPLE_BYTES = 40, TRAILER_BYTES = 24
    PROT_WRITE = 2, SHARED = 1
    WINDOW_BYTES = 65536  # fault-around: a fault maps what the cache holds of its aligned 64 KiB
    AGAIN_NS = 50000      # a wait that begins this soon after the last one belongs to the same fault

cdef struct Header:
    uint32_t type
    uint16_t misc
    uint16_t size

cdef struct Place:
    uint64_t time
    int64_t at

cdef packed struct Row:
    int64_t start_ns
    int64_t end_ns
    int64_t offset
    int64_t length
    int32_t pid
    int32_t tid
    int32_t file
    int32_t kind

cdef struct Wait:
    bint in_fault
    uint64_t begin
    uint64_t resumed
    uint64_t last_end


cdef int by_time(const void *a, const void *b) noexcept nogil:
    cdef const Place *one = <const Place *>a
    cdef const Place *two = <const Place *>b
    if one.time != two.time:
        return -1 if one.time < two.time else 1
    return -1 if one.at < two.at else one.at > two.at


cdef class FaultDecoder:
    """Follows the mappings of processes and keeps the page faults on files that `wanted(path)` chooses.

    major, begins: the kernel's ids of the events at the end of a fault that sent a request, and at the begin of any
    fault. With the latter, a minor fault that slept, as the page was on its way, is known to have waited too. `files`: paths by number; `programs`: numbers of those that were mapped to run. `lost`: records that the
    kernel dropped. `began`: [id, program] of each process that began, a thread is none. `taken`: the rows since the last `take_rows`. Row: int64 start_ns, end_ns, offset, length; int32
    pid, tid, file, kind (0: no wait, 1: a wait, 2: a mapping was made, 3: one as PyTorch makes them, private and
    writable, in a process that has mapped libtorch). `length` of a fault: to the end of the 64 KiB, or of the mapping,
    around it.
    """

    cdef char *held
    cdef int64_t held_bytes, room
    cdef Place *places
    cdef int64_t places_room
    cdef Wait *waits
    cdef int64_t waits_count
    cdef dict wait_of, mappings, number_of, place_of
    cdef set major, begins, torch
    cdef object wanted
    cdef bytearray rows
    cdef readonly list files, began
    cdef readonly set programs
    cdef readonly int64_t lost

    def __cinit__(self, major, begins, wanted):
        self.major, self.begins, self.wanted = set(major), set(begins), wanted
        self.wait_of, self.mappings, self.number_of, self.place_of, self.began = {}, {}, {}, {}, []
        self.files, self.programs, self.rows, self.torch = [], set(), bytearray(), set()

    def __dealloc__(self):
        free(self.held)
        free(self.places)
        free(self.waits)

    def drain(self, const unsigned char[::1] ring, int64_t page_bytes):
        """Take all records out of a ring, which `decode` then knows. The ring: a page of its own, then the data."""
        cdef char *page = <char *>&ring[0]
        cdef char *data = page + page_bytes
        cdef uint64_t size = ring.shape[0] - page_bytes
        cdef uint64_t head = load_head(page), tail = load_tail(page)
        cdef uint64_t count = head - tail, at = tail % size, first
        if not count:
            return
        self._make_room(count)
        first = count if at + count <= size else size - at
        memcpy(self.held + self.held_bytes, data + at, first)
        memcpy(self.held + self.held_bytes + first, data, count - first)
        self.held_bytes += count
        store_tail(page, head)

    cdef _make_room(self, int64_t more):
        cdef int64_t room = self.room or 1 << 16
        while room < self.held_bytes + more:
            room *= 2
        if room != self.room:
            self.held = <char *>realloc(self.held, room)
            if self.held == NULL:
                raise MemoryError
            self.room = room

    def decode(self, uint64_t until):
        """Decode the records of before `until` (ns of the events' clock) in order of time; later ones are kept."""
        cdef int64_t at = 0, count = 0, kept = 0, i
        cdef Header *header
        cdef Place *places
        cdef bytes later
        while at < self.held_bytes:
            header = <Header *>(self.held + at)
            if count == self.places_room:
                self.places_room = 2 * self.places_room + 1024
                places = <Place *>realloc(self.places, self.places_room * sizeof(Place))
                if places == NULL:
                    raise MemoryError
                self.places = places
            self.places[count].at = at
            if header.type == SAMPLE:
                self.places[count].time = (<uint64_t *>(self.held + at + 16))[0]
            else:
                self.places[count].time = (<uint64_t *>(self.held + at + header.size - 16))[0]
            count += 1
            at += header.size
        qsort(self.places, count, sizeof(Place), by_time)
        i = 0
        while i < count and self.places[i].time < until:
            self._record(<Header *>(self.held + self.places[i].at), self.places[i].time)
            i += 1
        later = b"".join(
            [PyBytes_FromStringAndSize(self.held + self.places[j].at, (<Header *>(self.held + self.places[j].at)).size)
             for j in range(i, count)]
        )
        kept = len(later)
        if kept:
            memcpy(self.held, <char *>later, kept)
        self.held_bytes = kept

    def take_rows(self):
        """The rows since the last call, as bytes."""
        taken, self.rows = bytes(self.rows), bytearray()
        return taken

    cdef _record(self, Header *header, uint64_t time):
        cdef char *data = <char *>header + sizeof(Header)
        cdef int32_t pid, tid
        if header.type == SAMPLE:
            pid, tid = (<int32_t *>data)[0], (<int32_t *>data)[1]
            self._fault(pid, tid, time, (<uint64_t *>data)[2], (<uint64_t *>data)[3])
        elif header.type == SWITCH:
            data = <char *>header + header.size - TRAILER_BYTES
            self._switch((<int32_t *>data)[0], (<int32_t *>data)[1], time, header.misc)
        elif header.type == MMAP2:
            self._mapping(header, data, time)
        elif header.type == FORK:
            pid, tid = (<int32_t *>data)[0], (<int32_t *>data)[1]  # the second: the parent's process
            if pid != tid and tid in self.mappings:
                starts, entries = self.mappings[tid]
                self.mappings[pid] = (list(starts), list(entries))
            if pid != tid and tid in self.torch:
                self.torch.add(pid)
            if pid != tid:
                parent = self.place_of.get(tid)
                self.place_of[pid] = len(self.began)
                self.began.append([pid, b"" if parent is None else self.began[parent][1]])
        elif header.type == COMM and header.misc & OF_EXEC:
            self.mappings.pop((<int32_t *>data)[0], None)
            self.torch.discard((<int32_t *>data)[0])
            if (<int32_t *>data)[0] in self.place_of:
                self.began[self.place_of[(<int32_t *>data)[0]]][1] = <bytes>(data + 8)
        elif header.type == LOST:
            self.lost += (<uint64_t *>data)[1]

    cdef _mapping(self, Header *header, char *data, uint64_t time):
        cdef int32_t pid = (<int32_t *>data)[0], tid = (<int32_t *>data)[1]
        cdef uint64_t begin = (<uint64_t *>data)[1], length = (<uint64_t *>data)[2], offset = (<uint64_t *>data)[3]
        cdef uint32_t protection = (<uint32_t *>data)[14], flags = (<uint32_t *>data)[15]
        path = data + 64
        name = <bytes>path
        if name.endswith(b"/libtorch_cpu.so"):
            self.torch.add(pid)
        mine = self.mappings.get(pid)
        if mine is not None:
            _unmap(mine, begin, begin + length)
        if protection & PROT_WRITE and flags & SHARED or not self.wanted(name):
            return
        if mine is None:
            mine = self.mappings[pid] = ([], [])
        number = self.number_of.setdefault(name, len(self.files))
        if not header.misc & NOT_PROGRAM:
            self.programs.add(number)
        if number == len(self.files):
            self.files.append(name)
        place = bisect_right(mine[0], begin)
        mine[0].insert(place, begin)
        mine[1].insert(place, (begin + length, offset, number))
        kind = 3 if protection & PROT_WRITE and pid in self.torch else 2
        self._note(time, time, offset, length, pid, tid, number, kind)

    cdef _fault(self, int32_t pid, int32_t tid, uint64_t time, uint64_t address, uint64_t event):
        cdef uint64_t start = time
        mine = self.mappings.get(pid)
        if mine is None:
            return
        cdef Wait *wait = self._wait(tid)
        if event in self.begins:
            wait.in_fault, wait.begin = True, 0
            return
        cdef bint waited = event in self.major
        if (waited or wait.in_fault) and wait.begin > wait.last_end and wait.resumed >= wait.begin:
            waited, start = True, wait.begin
        wait.in_fault, wait.begin, wait.last_end = False, 0, time
        cdef int64_t place = bisect_right(mine[0], address) - 1
        if place < 0:
            return
        cdef uint64_t begin = mine[0][place], end, offset, at
        end, offset, number = mine[1][place]
        if address >= end:
            return
        at = offset + (address - begin) // 4096 * 4096
        cdef uint64_t reach = min((at // WINDOW_BYTES + 1) * WINDOW_BYTES, offset + (end - begin))
        self._note(start, time, at, reach - at, pid, tid, number, waited)

    cdef _switch(self, int32_t pid, int32_t tid, uint64_t time, uint16_t misc):
        if pid not in self.mappings:
            return
        cdef Wait *wait = self._wait(tid)
        if not misc & SWITCHED_OUT:
            wait.resumed = time
        elif not misc & PREEMPTED and (not wait.begin or time - wait.resumed > AGAIN_NS):
            wait.begin = time

    cdef Wait *_wait(self, int32_t tid) except NULL:
        cdef int64_t number = self.wait_of.setdefault(tid, self.waits_count)
        cdef Wait *grown
        if number == self.waits_count:
            grown = <Wait *>realloc(self.waits, (number + 1) * sizeof(Wait))
            if grown == NULL:
                raise MemoryError
            self.waits = grown
            self.waits[number] = Wait(False, 0, 0, 0)
            self.waits_count += 1
        return &self.waits[number]

    cdef _note(self, start, end, offset, length, int32_t pid, int32_t tid, int32_t number, int32_t kind):
        cdef Row row
        row.start_ns, row.end_ns, row.offset, row.length = start, end, offset, length
        row.pid, row.tid, row.file, row.kind = pid, tid, number, kind
        self.rows += PyBytes_FromStringAndSize(<char *>&row, sizeof(Row))


cdef _unmap(tuple mine, begin, end):
    """Take out the mappings that a new one replaces. A part that stays is kept."""
    starts, entries = mine
    place = max(bisect_right(starts, begin) - 1, 0)
    while place < len(starts) and starts[place] < end:
        old, (old_end, offset, number) = starts[place], entries[place]
        if old_end <= begin:
            place += 1
            continue
        del starts[place], entries[place]
        if old < begin:
            starts.insert(place, old)
            entries.insert(place, (begin, offset, number))
            place += 1
        if old_end > end:
            starts.insert(place, end)
            entries.insert(place, (old_end, offset + end - old, number))
            place += 1
