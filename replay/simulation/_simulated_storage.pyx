# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# distutils: language = c++
"""A storage model at work: it says when each operation ends.

Operations come in the order of their begins. Each one joins all queues on its way at its begin. Times are in ns from
the start of the run. Everything runs in one thread, without the interpreter lock.

One module in parts that are included here: `_page_caches.pxi`, what the nodes hold, and `_request_queues.pxi`, the
limits, servers and tables of times.
"""

from types import SimpleNamespace

import numpy as np

from cython.operator cimport dereference, preincrement
from libc.math cimport ceil, floor
from libc.stdint cimport INT64_MAX, int64_t, uint64_t
from libcpp.algorithm cimport lower_bound
from libcpp.list cimport list as cpp_list
from libcpp.queue cimport priority_queue
from libcpp.set cimport multiset
from libcpp.unordered_map cimport unordered_map
from libcpp.utility cimport pair
from libcpp.vector cimport vector

from dxt_replay.replay.causal._lane_events cimport Service
from dxt_replay.replay.engine.items cimport Item

from dxt_replay.replay.engine import items
from dxt_replay.replay.simulation.model import KIND_NAMES, SCOPES, PageCache, RequestTime
from dxt_replay.traces.schema import APIS

cdef int READ = items.READ_AT, WRITE = items.WRITE_AT, OPEN = items.OPEN, CLOSE = items.CLOSE
cdef int SYNC = items.SYNC, SEEK = items.SEEK
cdef int HIT = len(KIND_NAMES), HELD_WRITE = len(KIND_NAMES) + 1  # their times stand behind those of the operations
cdef int SERVER = SCOPES.index("server"), NODE = SCOPES.index("node")
cdef int SYSTEM = SCOPES.index("system"), METADATA = SCOPES.index("metadata")
cdef int STDIO = APIS.index("STDIO")
cdef int64_t STREAM_BYTES = 4096  # what is written through a C stream waits until it is so much, synced or closed

include "_page_caches.pxi"
include "_request_queues.pxi"


cdef struct Object:
    int64_t reach  # end of the last byte that was written
    bint changed   # since it was put


cdef class SimulatedStorage(Service):
    """A storage at the begin of a run. `scale`: factor of all times. `file_bytes`: int64 by file, its size."""

    cdef Queues queues
    cdef Caches caches  # None without
    cdef unordered_map[uint64_t, int64_t] buffered  # by rank and file: bytes that wait in a C stream
    cdef bint on_objects
    cdef unordered_map[int64_t, Object] objects  # by file, those that were written
    cdef int64_t ranks_per_node, hits, hit_bytes
    cdef const int64_t[::1] file_bytes
    cdef vector[int64_t] operations, operation_bytes  # by kind
    cdef vector[double] operation_ns
    cdef bint works  # whether readers need processors
    cdef int64_t processors  # of a node; 0: any number
    cdef vector[priority_queue[int64_t]] busy  # by node: minus the ends of the work on its processors
    cdef unordered_map[uint64_t, int64_t] begun  # by rank and file: the begin of its last read

    def __init__(self, model, *, ranks, file_bytes, seed=1, scale=1.0):
        nodes = model.nodes(ranks)
        self.ranks_per_node = model.ranks_per_node or ranks
        self.on_objects = model.objects
        self.file_bytes = np.ascontiguousarray(file_bytes, dtype=np.int64)
        self.queues = Queues(model, nodes, seed, scale)
        self.caches = None if model.cache is None else Caches(model.cache, nodes)
        self.works = model.client is not None and model.client.sample is not None
        self.processors = 0 if model.client is None else model.client.processors
        self.busy.resize(nodes)
        self.operations.resize(len(KIND_NAMES))
        self.operation_bytes.resize(len(KIND_NAMES))
        self.operation_ns.resize(len(KIND_NAMES))

    @property
    def use(self):
        """Use of the storage so far. Requests are those that reached a server: with read-ahead, without hits.

        operations, operation_bytes, operation_ns, requests, request_bytes: by kind (KIND_NAMES).
        hits, hit_bytes: reads that the cache served alone. busy_ns: for each limit by what has one of its own, how long
        it took to let everything through. turn_ns, pipe_ns: by limit: how long requests waited for their turn, and
        longer than their own time for their bytes. server_ns, metadata_ns: by server, what its requests took alone.
        """
        cdef Queues queues = self.queues
        cdef int64_t number, limits = queues.limits.size()
        own_ns = [queues.servers[number].own_ns for number in range(<int64_t>queues.servers.size())]
        return SimpleNamespace(
            operations=np.array(self.operations, dtype=np.int64),
            operation_bytes=np.array(self.operation_bytes, dtype=np.int64),
            operation_ns=np.array(self.operation_ns, dtype=np.float64),
            hits=self.hits,
            hit_bytes=self.hit_bytes,
            requests=np.array(queues.requests, dtype=np.int64),
            request_bytes=np.array(queues.request_bytes, dtype=np.int64),
            busy_ns=tuple([queues.busy_ns(number) for number in range(limits)]),
            turn_ns=np.array([queues.limits[number].turn_ns for number in range(limits)]),
            pipe_ns=np.array([queues.limits[number].pipe_ns for number in range(limits)]),
            server_ns=np.array(own_ns[: queues.data_servers]),
            metadata_ns=np.array(own_ns[queues.data_servers :]),
        )

    cdef int64_t serve(self, int64_t now, int64_t rank, int64_t file_shift, const Item *item) except -1 nogil:
        """See `Service.serve`: the end in ns, rounded up. Fails only without memory."""
        cdef int kind = item.kind
        cdef int64_t length = item.amount if kind <= WRITE else 0, file = item.subject + file_shift
        cdef int64_t node = rank // self.ranks_per_node, held, ends
        cdef double end
        if item.subject < 0:
            return self._worked(now, node, _key(rank, item.place + file_shift), item.amount)
        if kind == READ and self.works:
            self.begun[_key(rank, file)] = now
        if self.on_objects:
            end = self._request(now, node, kind, file, item.place, length)
        elif kind == READ and self.caches is not None:
            end = self._read(now, rank, file, item.place, length, self._size(item.subject))
        elif kind == WRITE:
            end = self._streamed(now, rank, file, item.place, length, item.api == STDIO)
        elif kind == SEEK:
            end = now + self.queues.scale * self.queues.time_of(kind, 0, 1)
        else:
            held = self.caches.synced(node, file) if kind == SYNC and self.caches is not None else 0
            end = self.queues.request(now, node, WRITE, file, 0, held, now) - now if held else 0
            end += self.queues.request(now, node, kind, file, item.place, length, now)
        if kind == OPEN and self.caches is not None:
            self.caches.opened(node, file)
        if (kind == SYNC or kind == CLOSE) and not self.on_objects:
            held = self._let_go(rank, file)
            if held:
                end += self._write(now, rank, file, 0, held) - now
        ends = <int64_t>ceil(end)
        self.operations[kind] += 1
        self.operation_bytes[kind] += length
        self.operation_ns[kind] += ends - now
        return ends

    cdef int64_t _worked(self, int64_t now, int64_t node, uint64_t key, int64_t work_ns) except -1 nogil:
        """When work ends, ns, that a reader began with the read that ended `now`, on the processor of its node that is
        free first. `key`: of the rank and the file."""
        cdef int64_t begin = self.begun[key]
        if self.processors:
            if <int64_t>self.busy[node].size() == self.processors:
                begin = max(begin, -self.busy[node].top())
                self.busy[node].pop()
            self.busy[node].push(-(begin + work_ns))
        return max(now, begin + work_ns)

    cdef int64_t _size(self, int64_t file) noexcept nogil:
        return self.file_bytes[file] if self.file_bytes.shape[0] else 0

    cdef double _request(
        self, int64_t now, int64_t node, int kind, int64_t file, int64_t offset, int64_t length
    ) except -1 nogil:
        """When an operation on an object store ends, ns: see `StorageModel.objects`."""
        cdef Object *own
        if kind == WRITE or kind == CLOSE:
            own = &self.objects[file]
            if kind == WRITE:
                own.reach, own.changed = max(own.reach, offset + length), True
            if kind == WRITE or not own.changed:
                return now
            own.changed = False
            return self.queues.request(now, node, WRITE, file, 0, own.reach, now)
        if kind == SYNC or kind == SEEK or (kind == READ and not length):
            return now
        return self.queues.request(now, node, kind, file, offset, length, now)

    cdef double _read(
        self, int64_t now, int64_t rank, int64_t file, int64_t offset, int64_t length, int64_t size
    ) except -1 nogil:
        """When a read ends, ns, through the page cache of its node. `size`: bytes of the file."""
        cdef int64_t node = rank // self.ranks_per_node, first, until, largest, at, part
        cdef double end = now + self.queues.scale * self.queues.time_of(HIT, length, 1), ready, got, reached
        cdef CachedFile *held = self.caches.file(node, file)
        cdef Reader *reader = self.caches.reader(rank, file)
        cdef Range fetch, gap
        cdef bint whole = True
        if not length:
            return end
        first = offset - offset % PAGE_BYTES
        until = (offset + length + PAGE_BYTES - 1) // PAGE_BYTES * PAGE_BYTES
        largest = self.caches.largest_fetch if self.caches.largest_fetch else until - first
        ready = max(<double>now, _ready(held, first, until))
        at = first
        while self.caches.wanted(held, reader, &at, until, size, &fetch):
            # The reader meets a mark or a gap when it has what lies before it.
            reached = max(<double>now, _ready(held, first, min(fetch.first, at - PAGE_BYTES)))
            gap = _missing(held, fetch.first, fetch.until)
            while gap.first < gap.until:
                part = min(gap.first + largest, gap.until)
                got = self.queues.request(now, node, READ, file, gap.first, part - gap.first, reached)
                self.caches.insert(&self.caches.nodes[node], held, gap.first, part, got, now)
                if gap.first < until:
                    whole, ready = False, max(ready, got)
                gap = _missing(held, part, fetch.until)
        if whole:
            self.hits += 1
            self.hit_bytes += length
        return max(end, ready)

    cdef double _streamed(
        self, int64_t now, int64_t rank, int64_t file, int64_t offset, int64_t length, bint stream
    ) except -1 nogil:
        """When a write ends, ns. A write through a C stream waits in its buffer until STREAM_BYTES are there."""
        cdef int64_t held = 0
        if stream:
            held = self._let_go(rank, file)
            if held + length < STREAM_BYTES:
                self.buffered.insert(pair[uint64_t, int64_t](_key(rank, file), held + length))
                return now
        return self._write(now, rank, file, max(offset - held, 0), held + length)

    cdef int64_t _let_go(self, int64_t rank, int64_t file) noexcept nogil:
        """Empty the buffer of a rank's C stream of a file. Returns the bytes that it held."""
        cdef unordered_map[uint64_t, int64_t].iterator found = self.buffered.find(_key(rank, file))
        cdef int64_t held
        if found == self.buffered.end():
            return 0
        held = dereference(found).second
        self.buffered.erase(found)
        return held

    cdef double _write(self, int64_t now, int64_t rank, int64_t file, int64_t offset, int64_t length) except -1 nogil:
        """When a write ends, ns, through the page cache of its node if that has room for dirty bytes."""
        cdef int64_t node = rank // self.ranks_per_node
        cdef Node *cache
        cdef CachedFile *held
        cdef double end
        if self.caches is None:
            return self.queues.request(now, node, WRITE, file, offset, length, now)
        cache, held = &self.caches.nodes[node], self.caches.file(node, file)
        end = now + self.queues.scale * self.queues.time_of(HELD_WRITE, length, 1)
        if not self.caches.takes(cache, held, length):
            end = max(end, self.queues.request(now, node, WRITE, file, offset, length, now))
        if length:
            self.caches.insert(
                cache, held, offset - offset % PAGE_BYTES,
                (offset + length + PAGE_BYTES - 1) // PAGE_BYTES * PAGE_BYTES, end, now,
            )
        return end
