# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The compiled core of `replay.simulation.simulated_storage`, which says what it does: the same times, to the last bit.

One module in parts that are included here, each after what it uses: `_cached_files.pxi`, the page caches, and
`_request_queues.pxi`, the limits, servers and tables of times.
"""

import numpy as np

from libc.math cimport ceil, floor
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memmove, memset

from dxt_replay.replay.causal._lane_events cimport Lane, Service
from dxt_replay.replay.engine.items cimport Item

from dxt_replay.replay.simulation.cached_files import LEAST_ENTRIES, PAGE_BYTES
from dxt_replay.replay.simulation.model_numbers import HIT, KIND_NAMES, StorageUse

cdef enum:
    C_READ = 0
    C_WRITE = 1
    C_SYNC = 5
    C_SEEK = 6
    C_KINDS = 8
    C_HIT = 8
    C_HELD_WRITE = 9
    C_OPEN = 2
    C_CLOSE = 3
    C_STDIO = 3
    C_STREAM_BYTES = 4096
    C_TABLES = 10
    C_PAGE_BYTES = 4096
    C_LEAST_ENTRIES = 64
    C_SERVER = 0
    C_NODE = 1
    C_SYSTEM = 2
    C_METADATA = 3

CONSTANTS = {
    "STDIO": C_STDIO, "STREAM_BYTES": C_STREAM_BYTES, "OPEN": C_OPEN, "CLOSE": C_CLOSE,
    "HIT": C_HIT, "HELD_WRITE": C_HELD_WRITE, "PAGE_BYTES": C_PAGE_BYTES, "LEAST_ENTRIES": C_LEAST_ENTRIES, "SERVER": C_SERVER, "NODE": C_NODE,
    "SYSTEM": C_SYSTEM, "METADATA": C_METADATA, "READ": C_READ, "WRITE": C_WRITE, "SYNC": C_SYNC, "SEEK": C_SEEK,
}

include "_cached_files.pxi"
include "_request_queues.pxi"


cdef class CompiledStorage(Service):
    """See `replay.simulation.simulated_storage.PythonStorage`."""

    cdef Queues queues
    cdef Caches caches
    cdef bint has_cache
    cdef int64_t ranks_per_node, known_files, hits, hit_bytes
    cdef const int64_t[::1] file_bytes
    cdef int64_t[::1] operations
    cdef int64_t[::1] operation_bytes
    cdef double[::1] operation_ns
    cdef object counted

    def __init__(self, numbers, seed, double scale):
        self.ranks_per_node = numbers.ranks_per_node
        self.file_bytes = numbers.file_bytes
        self.known_files = len(numbers.file_bytes)
        self.queues = Queues(numbers, seed, scale)
        cache = numbers.model.cache
        self.has_cache = cache is not None
        self.caches = Caches(cache, numbers.nodes)
        self.counted = self.queues.counted
        self.operations, self.operation_bytes = self.counted.operations, self.counted.operation_bytes
        self.operation_ns = self.counted.operation_ns

    @property
    def use(self):
        """What was done so far."""
        import dataclasses

        return dataclasses.replace(
            self.counted,
            hits=self.hits,
            hit_bytes=self.hit_bytes,
            slot_ns=self.queues.slot_ns,
            own_ns=self.queues.own_ns,
        )

    cdef int64_t serve(self, int64_t now, const Lane *lane, const Item *item) noexcept nogil:
        cdef int kind = item.kind
        cdef int64_t offset = item.place, length = item.amount if kind <= C_WRITE else 0
        cdef int64_t node = lane.rank // self.ranks_per_node, ends, held, dirty = 0
        cdef int64_t file = <int64_t>item.subject + lane.file_shift
        cdef double end, written
        if kind == C_READ and self.has_cache:
            end = self._read(
                now, node, lane.rank, file, offset, length,
                self.file_bytes[item.subject] if self.known_files else 0,
            )
        elif kind == C_WRITE:
            end = self._streamed(now, node, lane.rank, file, offset, length, item.api == C_STDIO)
        elif kind == C_SEEK:
            end = now + self.queues.scale * self.queues.time_of(kind, 0, 1)
        else:
            if kind == C_SYNC and self.has_cache:
                dirty = self.caches.synced(node, file)
            if dirty:
                written = self.queues.request(now, node, C_WRITE, file, 0, dirty, now)
                end = self.queues.request(now, node, kind, file, 0, 0, now) + (written - now)
            else:
                end = self.queues.request(now, node, kind, file, offset, length, now)
        if kind == C_OPEN and self.has_cache:
            self.caches.opened(node, file)
        if kind == C_SYNC or kind == C_CLOSE:
            held = self._let_go(lane.rank, file)
            if held:
                end += self._write(now, node, file, 0, held) - now
        if self.queues.failed or self.caches.failed:
            return -1
        ends = <int64_t>ceil(end)
        self.operations[kind] += 1
        self.operation_bytes[kind] += length
        self.operation_ns[kind] += ends - now
        return ends

    cdef double _read(
        self, int64_t now, int64_t node, int64_t rank, int64_t file, int64_t offset, int64_t length, int64_t size
    ) noexcept nogil:
        cdef double end = now + self.queues.scale * self.queues.time_of(C_HIT, length, 1), ready = now, got, reached
        cdef int64_t first, until, largest, at, part, begin, stop, fetch, last
        cdef bint whole = True
        if not length:
            return end
        first = offset - offset % C_PAGE_BYTES
        until = (offset + length + C_PAGE_BYTES - 1) // C_PAGE_BYTES * C_PAGE_BYTES
        largest = self.caches.largest_fetch if self.caches.largest_fetch else until - first
        ready = max(ready, self.caches.ready(node, file, first, until))
        at = first
        while self.caches.wanted(node, rank, file, &at, until, size, &fetch, &last):
            reached = max(<double>now, self.caches.ready(node, file, first, min(fetch, at - C_PAGE_BYTES)))
            while not self.caches.failed and self.caches.missing(node, file, fetch, last, &begin, &stop):
                part = min(begin + largest, stop)
                got = self.queues.request(now, node, C_READ, file, begin, part - begin, reached)
                self.caches.insert(node, file, begin, part, got, now)
                if begin < until:
                    whole, ready = False, max(ready, got)
                fetch = part
        if whole:
            self.hits += 1
            self.hit_bytes += length
        return max(end, ready)

    cdef double _streamed(
        self, int64_t now, int64_t node, int64_t rank, int64_t file, int64_t offset, int64_t length, bint stream
    ) noexcept nogil:
        """When a write ends, which a stream may hold back."""
        cdef int64_t held = 0
        if stream:
            held = self._let_go(rank, file)
            if held + length < C_STREAM_BYTES:
                if not self.caches.failed:
                    self.caches._stream(rank, file).held = held + length
                return now
        return self._write(now, node, file, max(offset - held, 0), held + length)

    cdef int64_t _let_go(self, int64_t rank, int64_t file) noexcept nogil:
        """What the stream of a rank's file holds, which is nothing from now on."""
        cdef Stream *stream = self.caches._stream(rank, file)
        cdef int64_t held
        if stream is NULL:
            self.caches.failed = True
            return 0
        held = stream.held
        stream.held = 0
        return held

    cdef double _write(self, int64_t now, int64_t node, int64_t file, int64_t offset, int64_t length) noexcept nogil:
        cdef double end
        if not self.has_cache:
            return self.queues.request(now, node, C_WRITE, file, offset, length, now)
        end = now + self.queues.scale * self.queues.time_of(C_HELD_WRITE, length, 1)
        if not self.caches.takes(node, file, length):
            end = max(end, self.queues.request(now, node, C_WRITE, file, offset, length, now))
        if length:
            self.caches.insert(
                node, file, offset - offset % C_PAGE_BYTES,
                (offset + length + C_PAGE_BYTES - 1) // C_PAGE_BYTES * C_PAGE_BYTES, end, now,
            )
        return end
