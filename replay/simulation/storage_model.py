"""The model of a storage system: times of requests, their queues, and the page cache. Pure.

When a request starts, it joins all of its queues at once, as data flow through pipes in a row. The slowest one decides:

* Each limit (a link, a drive's bandwidth, a throttle) lets the request begin when it has served the earlier requests,
  and end no earlier than its own bytes are through.
* From its begin a request takes the time of its operation, by its size and by how many requests are in flight there.
* A request that spans several stripes is one piece for each server, and ends with the last of them.

`replay.simulation.model_file` reads and writes a model as YAML or JSON; docs/storage-models.md explains each key.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import NormalDist, fmean
from typing import Any

from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.schema import OPS

DATA_OPERATIONS = ("read", "write")
"""Operations that go to the servers; the others go to the metadata service."""

SCOPES = ("server", "node", "system", "metadata")
"""What may have a limit of its own: each server, each node, the whole system, or each metadata server."""

QUANTILES = 1024
"""How many factors a jitter is drawn from."""

MAX_SERVERS = 1 << 16
"""Most servers of a model."""


def stated(form: str, *, key: str = "", optional: bool = False) -> Mapping[str, Any]:
    """How documents state a field: metadata for `replay.simulation.model_file`, which knows the forms.

    key: where it is not the name of the field. optional: whether it is only written where it differs from its default.
    """
    return {"form": form, "key": key, "optional": optional}


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTime:
    """How long a request takes that waits for nothing, by its size and the number of requests in flight.

    in_flight: ascending, with the request itself. sizes: bytes, ascending.
    time_ns: for each number in flight, a time for each size.
    Between its values the table is linear; beyond the last ones it goes on as between the last two, but never falls.
    Raises: UsageError for a table that is empty, uneven, not ascending or negative.
    """

    in_flight: tuple[int, ...] = (1,)
    sizes: tuple[int, ...] = (0,)
    time_ns: tuple[tuple[float, ...], ...] = ((0.0,),)

    def __post_init__(self) -> None:
        for name, values, least in (("requests in flight", self.in_flight, 1), ("sizes", self.sizes, 0)):
            if not values or values[0] < least or any(a >= b for a, b in itertools.pairwise(values)):
                raise UsageError(f"the {name} {list(values)} must ascend, from {least} or more")
        if len(self.time_ns) != len(self.in_flight) or any(len(row) != len(self.sizes) for row in self.time_ns):
            raise UsageError("each number of requests in flight needs a time for the same sizes")
        if not all(0 <= value < 1e18 for row in self.time_ns for value in row):
            raise UsageError("a time of requests is negative or longer than 30 years")

    @classmethod
    def affine(cls, latency_ns: float, bytes_per_s: float | None = None) -> RequestTime:
        """A latency, and the bytes at a bandwidth; None for no limit."""
        if bytes_per_s is None:
            return cls(time_ns=((float(latency_ns),),))
        size = 1 << 20
        return cls(sizes=(0, size), time_ns=((float(latency_ns), latency_ns + size * 1e9 / bytes_per_s),))


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A queue with a rate: a token bucket that is full at first.

    name: how the results call it. each: one of SCOPES, what has such a bucket of its own.
    operations: which operations pass it. per_s: bytes per second, or requests where `counts_requests`.
    burst: bytes or requests that pass at once after a pause. 0: a pipe, in which each request takes its own time, as
        does one that is larger than the burst.
    request_bytes: where requests count, one counts for each so many bytes; 0: one, however large.
    step_ns: the rate is granted in steps of this time, as a control group of Linux does it (block/blk-throttle.c): all
        of a step may pass at its begin, and `burst` means nothing. 0: the rate is granted continuously.
    Raises: UsageError for a rate that is not positive, or an unknown operation or scope.
    """

    name: str = field(metadata=stated("text"))
    each: str = field(metadata=stated("text"))
    operations: tuple[str, ...] = field(default=DATA_OPERATIONS, metadata=stated("texts", key="of"))
    per_s: float = field(metadata=stated("bandwidth", key="rate"))
    counts_requests: bool = False
    burst: float = field(default=0.0, metadata=stated("size"))
    request_bytes: int = field(default=0, metadata=stated("size", key="request_size", optional=True))
    step_ns: float = field(default=0.0, metadata=stated("time", key="step", optional=True))

    def __post_init__(self) -> None:
        if self.each not in SCOPES:
            raise UsageError(f"each {self.each!r}: choose {', '.join(SCOPES)}")
        others = tuple(name for name in OPS if name not in DATA_OPERATIONS)
        allowed = {"server": DATA_OPERATIONS, "metadata": others}.get(self.each, OPS)
        wrong = [operation for operation in self.operations if operation not in allowed]
        if wrong or not self.operations:
            raise UsageError(f"operations {list(self.operations)} of limit {self.name!r}: choose {', '.join(allowed)}")
        if not 0 < self.per_s < 1e18 or not 0 <= self.burst < 1e18 or min(self.request_bytes, self.step_ns) < 0:
            raise UsageError(f"limit {self.name!r} needs a rate above 0, and a burst and a step that are not negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """Servers of one kind.

    count: how many. slots: requests that one serves at a time, the others wait in order; 0: any number.
    stripe_bytes: bytes of a file that lie on one server before the next one follows; 0: files are not striped.
    stripe_count: over how many servers a file is striped. File f begins on server f * stripe_count modulo count.
    Raises: UsageError for impossible numbers.
    """

    count: int = field(default=1, metadata=stated("whole"))
    slots: int = field(default=0, metadata=stated("whole"))
    stripe_bytes: int = field(default=0, metadata=stated("size", key="stripe_size", optional=True))
    stripe_count: int = field(default=1, metadata=stated("whole", optional=True))

    def __post_init__(self) -> None:
        if not 1 <= self.count <= MAX_SERVERS or self.slots < 0 or self.stripe_bytes < 0:
            raise UsageError(f"servers need a count of 1 to {MAX_SERVERS}; slots and a stripe size are not negative")
        if not 1 <= self.stripe_count <= self.count:
            raise UsageError(f"stripe_count {self.stripe_count} is not a number from 1 to the {self.count} servers")
        if self.stripe_count > 1 and not self.stripe_bytes:
            raise UsageError("a stripe_count above 1 needs a stripe_size")


@dataclass(frozen=True, slots=True, kw_only=True)
class PageCache:
    """The page cache of a node; what leaves it first is what entered it first.

    size: bytes. hit: how long a read of cached bytes takes. write: a write into the cache; None: as long as a hit.
    read_ahead: bytes that are fetched ahead at most, as Linux does it, of a rank that reads a file from its begin, goes
        on where it stopped or reads behind a run of cached pages; and largest request for what is missing; 0: none.
    largest_fetch: a read of more than `read_ahead` fetches so many bytes at a time, or `read_ahead` if that is more,
        and waits for them before it goes on; 0: it fetches all at once.
    dirty: bytes of writes that the cache holds until they are synced; what exceeds them is written at once.
    dropped_at_open: whether each open of a file drops what the cache holds of it, as FUSE does by default.
    Raises: UsageError for negative sizes.
    """

    size: int = field(metadata=stated("size"))
    hit: RequestTime = field(default=RequestTime(), metadata=stated("times"))
    read_ahead: int = field(default=0, metadata=stated("size"))
    dirty: int = field(default=0, metadata=stated("size"))
    largest_fetch: int = field(default=0, metadata=stated("size"))
    dropped_at_open: bool = field(default=False, metadata=stated("truth"))
    write: RequestTime | None = field(default=None, metadata=stated("times", optional=True))

    def __post_init__(self) -> None:
        if self.size <= 0 or min(self.read_ahead, self.dirty, self.largest_fetch) < 0:
            raise UsageError("a cache needs a size above 0, and other sizes that are not negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class Jitter:
    """By which factors the times of requests vary, drawn anew for each.

    quantiles: factors at equally spaced probabilities, ascending. seed: of the first of several runs.
    Raises: UsageError for factors that are negative or do not ascend.
    """

    quantiles: tuple[float, ...] = field(metadata=stated("factors"))
    seed: int = field(default=1, metadata=stated("whole"))

    def __post_init__(self) -> None:
        if not self.quantiles or self.quantiles[0] < 0 or any(a > b for a, b in itertools.pairwise(self.quantiles)):
            raise UsageError("the quantiles of a jitter are factors of 0 or more, in ascending order")

    @classmethod
    def lognormal(cls, spread: float, seed: int = 1) -> Jitter:
        """Log-normal factors with mean 1; `spread`: the standard deviation of their logarithm."""
        if not 0 <= spread <= 3:
            raise UsageError(f"the spread {spread} of a jitter is not a number from 0 to 3")
        normal = NormalDist()
        raw = [2.718281828459045 ** (spread * normal.inv_cdf((at + 0.5) / QUANTILES)) for at in range(QUANTILES)]
        return cls(quantiles=tuple(value / fmean(raw) for value in raw), seed=seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageModel:
    """A storage system.

    operations: time of each operation (`traces.schema.OPS`); what is not listed takes no time.
    servers, metadata: where reads and writes go, and all other operations but seeks, which never leave the node.
    limits: the queues besides. cache: of each node, None for none.
    ranks_per_node: 0 where all ranks run on one node.
    objects: whether this is an object store, on which files are what docs/objects.md says: a write takes no time, and
        the close of a file that was written puts it whole, in the time of a `write` of its bytes. A read of no bytes, a
        sync and a seek take no time.
    jitter: None where times do not vary. uncertainty: by which share all times may be wrong, 0.1 for 10 %.
    Raises: UsageError for an unknown operation or an impossible number.
    """

    name: str = field(metadata=stated("text"))
    about: str = field(default="", metadata=stated("text", optional=True))
    uncertainty: float = field(default=0.0, metadata=stated("share"))
    ranks_per_node: int = field(default=0, metadata=stated("whole", optional=True))
    operations: Mapping[str, RequestTime] = field(default_factory=dict, metadata=stated("operations"))
    servers: Servers = field(default=Servers(), metadata=stated("servers"))
    metadata: Servers = field(default=Servers(), metadata=stated("servers"))
    limits: tuple[Limit, ...] = field(default=(), metadata=stated("limits"))
    objects: bool = field(default=False, metadata=stated("truth", optional=True))
    cache: PageCache | None = field(default=None, metadata=stated("cache", optional=True))
    jitter: Jitter | None = field(default=None, metadata=stated("jitter", optional=True))

    def __post_init__(self) -> None:
        unknown = [name for name in self.operations if name not in OPS]
        if unknown:
            raise UsageError(f"operation {unknown[0]!r}: choose {', '.join(OPS)}")
        if not 0 <= self.uncertainty < 1:
            raise UsageError(f"uncertainty {self.uncertainty} is not a share from 0 to below 1")
        if self.ranks_per_node < 0:
            raise UsageError(f"ranks_per_node {self.ranks_per_node} is negative")
        if self.metadata.stripe_bytes or self.metadata.stripe_count > 1:
            raise UsageError("the metadata servers have no stripes")
        if self.objects and self.cache is not None:
            raise UsageError("an object store has no page cache: leave out cache, or objects")
        names = [limit.name for limit in self.limits]
        if len(set(names)) < len(names):
            raise UsageError("two limits have the same name")

    def nodes(self, ranks: int) -> int:
        """On how many nodes so many ranks run."""
        return -(-ranks // self.ranks_per_node) if self.ranks_per_node else 1
