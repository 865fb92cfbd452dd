"""A storage model at work: when each operation ends. Pure.

`PythonStorage` is the specification; `replay.simulation._simulated_storage.CompiledStorage` does the same. Operations
come in the order of the times at which they begin, and take their places in all queues at that moment.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from dxt_replay.replay.causal.lane_events import EventLane
from dxt_replay.replay.engine.items import CLOSE, OPEN, READ_AT, SEEK, SYNC, WRITE_AT
from dxt_replay.replay.simulation.cached_files import PAGE_BYTES, CachedFiles
from dxt_replay.replay.simulation.model_numbers import (
    HELD_WRITE,
    HIT,
    KIND_NAMES,
    METADATA,
    NODE,
    SERVER,
    STREAM_BYTES,
    ModelNumbers,
    StorageUse,
)
from dxt_replay.traces.schema import APIS

if TYPE_CHECKING:
    from dxt_replay.replay.simulation._simulated_storage import CompiledStorage

SimulatedStorage: TypeAlias = "PythonStorage | CompiledStorage"
"""A storage in either core, for `replay.causal.lane_events.run_lanes`."""

STDIO = APIS.index("STDIO")
"""Code of the interface whose small writes wait in a buffer."""

_MASK = (1 << 64) - 1


def simulated_storage(numbers: ModelNumbers, *, seed: int = 1, scale: float = 1.0) -> CompiledStorage:
    """A storage at the begin of a run. `scale`: all times are so many times as long."""
    from dxt_replay.replay.simulation._simulated_storage import CompiledStorage

    return CompiledStorage(numbers, seed, scale)


@dataclass(slots=True)
class _Server:
    """in_flight: ends of requests, a heap. free: when each slot is free, a heap."""

    in_flight: list[float] = field(default_factory=list)
    free: list[float] = field(default_factory=list)


@dataclass(slots=True)
class _Step:
    """A limit that grants its rate in steps, as a slice of the kernel's throttle (block/blk-throttle.c); ns.

    begin: of the slice. until: when it ends if nothing passes. used: the cost of what has passed in it.
    """

    begin: float = 0.0
    until: float = -1.0
    used: float = 0.0

    def pass_at(self, now: float, cost: float, step: float) -> float:
        """When a request passes that comes to the head of the queue at `now` (tg_within_bps_limit)."""
        if now > self.until:
            self.begin, self.used = now, 0.0
        granted = max(step, math.ceil((now - self.begin) / step) * step)
        turn = now if self.used + cost <= granted else self.begin + self.used + cost
        self.used += cost
        self.until = math.ceil(turn / step) * step + step
        over = (math.floor((turn - self.begin) / step) - 1) * step  # throtl_trim_slice keeps one step
        if over >= step:
            self.begin, self.used = self.begin + over, max(self.used - over, 0.0)
        return turn


class PythonStorage:
    """The specification of a simulated storage, a `replay.causal.lane_events.Service`."""

    def __init__(self, numbers: ModelNumbers, *, seed: int = 1, scale: float = 1.0) -> None:
        model = numbers.model
        self._numbers, self._scale = numbers, scale
        self._state = seed & _MASK
        self._available = [0.0] * numbers.buckets
        self._steps = [_Step() for _ in range(numbers.buckets)]
        self._servers = [
            [_Server(free=[0.0] * kind.slots) for _ in range(kind.count)] for kind in (model.servers, model.metadata)
        ]
        self._cache = None if model.cache is None else CachedFiles(model.cache, numbers.nodes)
        self._streams: dict[tuple[int, int], int] = {}
        self._use = StorageUse.none(numbers)
        self._hits = [0, 0]
        self._slot_ns = self._own_ns = 0.0

    @property
    def use(self) -> StorageUse:
        """What was done so far."""
        return dataclasses.replace(
            self._use, hits=self._hits[0], hit_bytes=self._hits[1], slot_ns=self._slot_ns, own_ns=self._own_ns
        )

    def serve(self, now: int, lane: EventLane, item: np.void) -> int:
        """See `replay.causal.lane_events.Service`."""
        kind, offset = int(item["kind"]), int(item["_place"])
        length = int(item["_amount"]) if kind <= WRITE_AT else 0
        node, subject = lane.rank // self._numbers.ranks_per_node, int(item["_subject"])
        file = subject + lane.file_shift
        if kind == READ_AT and self._cache is not None:
            known = self._numbers.file_bytes
            end = self._read(now, node, lane.rank, file, offset, length, int(known[subject]) if len(known) else 0)
        elif kind == WRITE_AT:
            end = self._streamed(now, node, lane.rank, file, offset, length, int(item["_api"]))
        elif kind == SEEK:
            end = now + self._scale * self._time(kind, 0, 1)
        elif kind == SYNC and self._cache is not None and (dirty := self._cache.synced(node, file)):
            written = self._request(now, node, WRITE_AT, file, 0, dirty)
            end = self._request(now, node, kind, file, 0, 0) + (written - now)
        else:
            end = self._request(now, node, kind, file, offset, length)
        if kind == OPEN and self._cache is not None:
            self._cache.opened(node, file)
        if kind in (SYNC, CLOSE) and (held := self._streams.pop((lane.rank, file), 0)):
            end += self._write(now, node, file, 0, held) - now
        ends = math.ceil(end)
        self._use.operations[kind] += 1
        self._use.operation_bytes[kind] += length
        self._use.operation_ns[kind] += ends - now
        return ends

    def _read(self, now: int, node: int, rank: int, file: int, offset: int, length: int, size: int) -> float:
        """When a read ends that may find its bytes in the cache of its node."""
        cache = self._cache
        assert cache is not None
        end = now + self._scale * self._time(HIT, length, 1)
        if not length:
            return end
        first, until = offset - offset % PAGE_BYTES, -(-(offset + length) // PAGE_BYTES) * PAGE_BYTES
        largest = cache.largest_fetch or until - first
        ready = max(float(now), cache.ready(node, file, first, until))
        at, whole = first, True
        while (wanted := cache.wanted(node, rank, file, at, until, size)) is not None:
            begin, stop, at = wanted
            # The reader meets a mark or a gap when it has what lies before it.
            reached = max(float(now), cache.ready(node, file, first, min(begin, at - PAGE_BYTES)))
            while (gap := cache.missing(node, file, begin, stop)) is not None:
                begin, ends = gap[0], min(gap[0] + largest, gap[1])
                got = self._request(now, node, READ_AT, file, begin, ends - begin, reached)
                cache.insert(node, file, begin, ends, got, now)
                if begin < until:
                    whole, ready = False, max(ready, got)
                begin = ends
        if whole:
            self._hits[0] += 1
            self._hits[1] += length
        return max(end, ready)

    def _streamed(self, now: int, node: int, rank: int, file: int, offset: int, length: int, api: int) -> float:
        """When a write ends, which a stream may hold back."""
        held = 0
        if api == STDIO:
            held = self._streams.pop((rank, file), 0)
            if held + length < STREAM_BYTES:
                self._streams[rank, file] = held + length
                return float(now)
        return self._write(now, node, file, max(offset - held, 0), held + length)

    def _write(self, now: int, node: int, file: int, offset: int, length: int) -> float:
        """When a write ends that the cache of its node may take."""
        cache = self._cache
        if cache is None:
            return self._request(now, node, WRITE_AT, file, offset, length)
        end = now + self._scale * self._time(HELD_WRITE, length, 1)
        if not cache.takes(node, file, length):
            end = max(end, self._request(now, node, WRITE_AT, file, offset, length))
        if length:
            until = -(-(offset + length) // PAGE_BYTES) * PAGE_BYTES
            cache.insert(node, file, offset - offset % PAGE_BYTES, until, end, now)
        return end

    def _request(
        self, now: int, node: int, kind: int, file: int, offset: int, length: int, start: float = 0.0
    ) -> float:
        """When a request that reaches the servers ends. `start`: when it is sent, if that is later than now: it has its
        place in the limits from now on, so that they never idle for it."""
        start = max(start, float(now))
        self._use.requests[kind] += 1
        self._use.request_bytes[kind] += length
        turn, through, slow, narrow = self._passed(now, kind, length, {NODE: node}, (start, start, -1, -1))
        end = start
        model, data = self._numbers.model, kind <= WRITE_AT
        group = 0 if data else 1
        for server, size in self._pieces(file, offset, length) if data else [(file % model.metadata.count, 0)]:
            place = {SERVER: server} if data else {METADATA: server}
            piece = self._passed(now, kind, size, place, (turn, through, slow, narrow))
            end = max(end, self._served(now, start, kind, size, (group, server), piece))
        return end

    def _passed(
        self, now: int, kind: int, size: int, place: dict[int, int], before: tuple[float, float, int, int]
    ) -> tuple[float, float, int, int]:
        """When a request has its turn at the limits of a scope, when its bytes are through, and which limits decide:
        the later of those and what `before` says. `place`: the server, or the node, for which the system counts too."""
        turn, through, slow, narrow = before
        for number, limit in enumerate(self._numbers.model.limits):
            scope = self._numbers.scopes[number]
            instance = place.get(scope, 0 if NODE in place and scope == 2 else None)
            if instance is None or KIND_NAMES[kind] not in limit.operations:
                continue
            amount = size
            if limit.counts_requests:
                amount = max(1, -(-size // limit.request_bytes)) if limit.request_bytes else 1
            unit = 1e9 / limit.per_s * self._scale
            cost, burst = amount * unit, limit.burst * unit
            bucket = self._numbers.first[number] + instance
            self._use.busy_ns[bucket] += cost
            if limit.step_ns:
                level = max(self._available[bucket], float(now))
                self._available[bucket] = level = self._steps[bucket].pass_at(level, cost, limit.step_ns * self._scale)
                if level > turn:
                    turn, slow = level, number
                through, narrow = (level, number) if level > through else (through, narrow)
                continue
            if cost > burst:  # as in the kernel: what does not fit into the bucket passes as in a pipe
                burst = 0.0
            level = max(self._available[bucket], float(now))
            self._available[bucket] = level + cost
            if level - burst > turn:
                turn, slow = level - burst, number
            if level + cost - burst > through:
                through, narrow = level + cost - burst, number
        return turn, through, slow, narrow

    def _served(
        self, now: int, start: float, kind: int, size: int, place: tuple[int, int], piece: tuple[float, float, int, int]
    ) -> float:
        """When a server has done its piece of a request. place: group and number of the server."""
        (group, number), (turn, through, slow, narrow) = place, piece
        server, use = self._servers[group][number], self._use
        while server.in_flight and server.in_flight[0] <= now:
            heapq.heappop(server.in_flight)
        count, begin = sum(each > start for each in server.in_flight) + 1, turn
        if server.free:
            count, begin = min(count, len(server.free)), max(turn, server.free[0])
        own = self._scale * self._drawn() * self._time(kind, size, count)
        end = max(begin + own, through)
        heapq.heappush(server.in_flight, end)
        if server.free:
            heapq.heapreplace(server.free, end)
        if slow >= 0:
            use.turn_ns[slow] += turn - start
        if narrow >= 0 and through > begin + own:
            use.pipe_ns[narrow] += through - (begin + own)
        self._slot_ns += begin - turn
        self._own_ns += own
        use.server_ns[number + group * self._numbers.model.servers.count] += own
        return end

    def _pieces(self, file: int, offset: int, length: int) -> list[tuple[int, int]]:
        """Server and bytes of each piece of a request."""
        servers = self._numbers.model.servers
        width, count = servers.stripe_bytes, servers.stripe_count
        origin = file * count
        if not width or not length:
            column = offset // width % count if width else 0
            return [((origin + column) % servers.count, length)]
        first, last = offset // width, (offset + length - 1) // width
        pieces = []
        for stripe in range(first, min(last, first + count - 1) + 1):
            size = ((last - stripe) // count + 1) * width
            size -= offset - first * width if stripe == first else 0
            size -= (last + 1) * width - offset - length if (last - stripe) % count == 0 else 0
            pieces.append(((origin + stripe % count) % servers.count, size))
        return pieces

    def _time(self, table: int, size: int, in_flight: int) -> float:
        return self._numbers.tables[table].ns(size, in_flight)

    def _drawn(self) -> float:
        """The next factor of the jitter; the generator is splitmix64 (Steele, Lea and Flood, OOPSLA 2014)."""
        factors = self._numbers.factors
        if len(factors) == 1:
            return float(factors[0])
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        mixed = self._state
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        mixed ^= mixed >> 31
        return float(factors[((mixed >> 32) * len(factors)) >> 32])
