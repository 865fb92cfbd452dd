"""The model of a storage system: times of requests, their queues, and the page cache; and its file. Pure.

When a request starts, it joins all of its queues at once, as data flow through pipes in a row. The slowest one decides:

* Each limit (a link, a drive's bandwidth, a throttle) lets the request begin when it has served the earlier requests,
  and end no earlier than its own bytes are through.
* From its begin a request takes the time of its operation, by its size and by how many requests are in flight there.
* A request that spans several stripes is one piece for each server, and ends with the last of them.

A file is YAML or JSON, with quantities as text ("100us", "1.2GB/s", "1MiB"); docs/simulation.md explains each key.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import NormalDist, fmean
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar

import msgspec
import numpy as np
import yaml

from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.schema import OPS

DATA_OPERATIONS = ("read", "write")  # Operations that go to the servers; the others go to the metadata service
SCOPES = ("server", "node", "system", "metadata")
"""What may have a limit of its own: each server, each node, the whole system, or each metadata server."""

KIND_NAMES = ("read", "write", "open", "close", "stat", "sync", "seek", "rename", "list", "delete")
"""Operation by the kind of its item (`replay.engine.items`)."""

QUANTILES = 1024  # How many factors a jitter is drawn from
MAX_SERVERS = 1 << 16
VERSION = 1  # Version of the document, its key `storage_model`
MAX_BYTES = 16 << 20  # Largest document that is read
SHIPPED = Path(__file__).with_name("shipped")  # Folder of the models that can be named without a path
_NUMBER = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?)\s*([A-Za-z%/]*)\s*")
_Kind = TypeVar("_Kind")


class ModelError(UsageError, ValueError):
    """No storage model can be like that. To a ValueError msgspec adds the place in the document."""


if TYPE_CHECKING:
    Time: TypeAlias = float
    Burst: TypeAlias = float
    Rate: TypeAlias = float
    Share: TypeAlias = float
    Size: TypeAlias = int
else:
    # Types of their own, which msgspec leaves to `_quantity`: ns; bytes or requests; those per second; 0.1 for 10 %.
    Time, Burst, Rate, Share = (type(name, (float,), {}) for name in ("Time", "Burst", "Rate", "Share"))
    Size = type("Size", (int,), {})

_BYTES = {"": 1, "B": 1, "KB": 1000, "KiB": 1024} | {
    f"{prefix}{middle}B": base**power
    for middle, base in (("", 1000), ("i", 1024))
    for power, prefix in enumerate("kMGTP", 1)
}
_FACTORS: Mapping[type, Mapping[str, float]] = {
    Time: {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9},
    Size: _BYTES,
    Burst: _BYTES,
    Rate: {f"{unit}/s": factor for unit, factor in _BYTES.items() if unit},
    Share: {"%": 0.01},
}
_REQUESTS = {"/s": 1.0}
_Whole = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of a document. What a part cannot be is a `ModelError` when it is made."""


class RequestTime(_Part, frozen=True, kw_only=True):
    """How long a request takes that waits for nothing, by its size and the number of requests in flight.

    in_flight: ascending, with the request itself. sizes: bytes, ascending. time_ns: a row for each number in flight.
    Between its values the table is linear; beyond the last ones it goes on as between the last two, but never falls.
    """

    in_flight: tuple[int, ...] = (1,)
    sizes: tuple[int, ...] = (0,)
    time_ns: tuple[tuple[float, ...], ...] = ((0.0,),)

    def __post_init__(self) -> None:
        for name, values, least in (("requests in flight", self.in_flight, 1), ("sizes", self.sizes, 0)):
            if not values or values[0] < least or any(a >= b for a, b in itertools.pairwise(values)):
                raise ModelError(f"the {name} {list(values)} must ascend, from {least} or more")
        if len(self.time_ns) != len(self.in_flight) or any(len(row) != len(self.sizes) for row in self.time_ns):
            raise ModelError("each number of requests in flight needs a time for the same sizes")
        if not all(0 <= value < 1e18 for row in self.time_ns for value in row):
            raise ModelError("a time of requests is negative or longer than 30 years")

    @classmethod
    def affine(cls, latency_ns: float, bytes_per_s: float | None = None) -> RequestTime:
        """A latency, and the bytes at a bandwidth; None for no limit."""
        if bytes_per_s is None:
            return cls(time_ns=((float(latency_ns),),))
        size = 1 << 20
        return cls(sizes=(0, size), time_ns=((float(latency_ns), latency_ns + size * 1e9 / bytes_per_s),))


class _Affine(_Part, frozen=True, kw_only=True):
    latency: Time = Time()
    bandwidth: Rate | None = None


class Limit(
    _Part,
    frozen=True,
    kw_only=True,
    rename={"operations": "of", "per_s": "rate", "request_bytes": "request_size", "step_ns": "step"},
):
    """A queue with a rate: a token bucket that is full at first.

    per_s: bytes per second, or requests where `counts_requests`; one for each `request_bytes` if not 0.
    burst: what passes at once after a pause. 0: a pipe, in which each request takes its own time, as does one that is
        larger than the burst.
    step_ns: the rate is granted in steps of this time, as a control group of Linux does it (block/blk-throttle.c): all
        of a step may pass at its begin, and `burst` means nothing. 0: the rate is granted continuously.
    """

    name: str
    each: str
    operations: tuple[str, ...] = DATA_OPERATIONS
    per_s: Rate
    counts_requests: bool = False
    burst: Burst = Burst()
    request_bytes: Size = Size()
    step_ns: Time = Time()

    def __post_init__(self) -> None:
        if self.each not in SCOPES:
            raise ModelError(f"each {self.each!r}: choose {', '.join(SCOPES)}")
        others = tuple(name for name in OPS if name not in DATA_OPERATIONS)
        allowed = {"server": DATA_OPERATIONS, "metadata": others}.get(self.each, OPS)
        if not self.operations or any(operation not in allowed for operation in self.operations):
            raise ModelError(f"operations {list(self.operations)} of limit {self.name!r}: choose {', '.join(allowed)}")
        if not 0 < self.per_s < 1e18 or not 0 <= self.burst < 1e18 or min(self.request_bytes, self.step_ns) < 0:
            raise ModelError(f"limit {self.name!r} needs a rate above 0, and a burst and a step that are not negative")


class Servers(_Part, frozen=True, kw_only=True, rename={"stripe_bytes": "stripe_size"}):
    """Servers of one kind.

    File f begins on server f * stripe_count modulo count. 0 slots: any number; 0 stripe_bytes: files are not striped.
    """

    count: _Whole = 1
    slots: _Whole = 0
    stripe_bytes: Size = Size()
    stripe_count: _Whole = 1

    def __post_init__(self) -> None:
        if not 1 <= self.count <= MAX_SERVERS or self.slots < 0 or self.stripe_bytes < 0:
            raise ModelError(f"servers need a count of 1 to {MAX_SERVERS}; slots and a stripe size are not negative")
        if not 1 <= self.stripe_count <= self.count:
            raise ModelError(f"stripe_count {self.stripe_count} is not a number from 1 to the {self.count} servers")
        if self.stripe_count > 1 and not self.stripe_bytes:
            raise ModelError("a stripe_count above 1 needs a stripe_size")


class PageCache(_Part, frozen=True, kw_only=True):
    """The page cache of a node; what leaves it first is what entered it first. `write`: None for as long as a hit."""

    size: Size
    hit: RequestTime = RequestTime()
    read_ahead: Size = Size()
    dirty: Size = Size()
    largest_fetch: Size = Size()
    dropped_at_open: bool = False
    write: RequestTime | None = None

    def __post_init__(self) -> None:
        if self.size <= 0 or min(self.read_ahead, self.dirty, self.largest_fetch) < 0:
            raise ModelError("a cache needs a size above 0, and other sizes that are not negative")


class Jitter(_Part, frozen=True, kw_only=True):
    """By which factors the times of requests vary, drawn anew for each: quantiles at equally spaced probabilities."""

    quantiles: tuple[float, ...]
    seed: _Whole = 1

    def __post_init__(self) -> None:
        if not self.quantiles or self.quantiles[0] < 0 or any(a > b for a, b in itertools.pairwise(self.quantiles)):
            raise ModelError("the quantiles of a jitter are factors of 0 or more, in ascending order")

    @classmethod
    def lognormal(cls, spread: float, seed: int = 1) -> Jitter:
        """Log-normal factors with mean 1; `spread`: the standard deviation of their logarithm."""
        if not 0 <= spread <= 3:
            raise ModelError(f"the spread {spread} of a jitter is not a number from 0 to 3")
        normal = NormalDist()
        raw = [2.718281828459045 ** (spread * normal.inv_cdf((at + 0.5) / QUANTILES)) for at in range(QUANTILES)]
        return cls(quantiles=tuple(value / fmean(raw) for value in raw), seed=seed)


class Client(_Part, frozen=True, kw_only=True, rename={"step_ns": "step", "meeting_ns": "meeting"}):
    """What the ranks themselves need beside compute and storage.

    step_ns: holds the training thread in each step between its fetch and its compute. meeting_ns: the least time of a
    meeting, by number of ranks; it is linear in log2 of the ranks, beyond the last two as between them.
    sample: processor time of a reader for each sample, by its bytes, beside its read: the kernel reads ahead while the
    reader works, so a sample takes the longer of both. processors: of a node, which its readers share, first come,
    first served; 0: one for each reader.
    """

    step_ns: Time = Time()
    meeting_ns: dict[int, Time] = {}
    sample: RequestTime | None = None
    processors: _Whole = 0

    def __post_init__(self) -> None:
        if self.step_ns < 0 or any(ranks < 1 or time < 0 for ranks, time in self.meeting_ns.items()):
            raise ModelError("meetings need numbers of ranks of 1 or more, and times that are not negative")
        if self.sample is not None and self.sample.in_flight != (1,):
            raise ModelError("the processor time of a sample does not depend on requests in flight")

    def sample_ns(self, size: np.ndarray) -> np.ndarray:
        """float64: processor time of samples of these sizes, ns."""
        times = self.sample or RequestTime()
        sizes, row = times.sizes, times.time_ns[0]
        slope = max(row[-1] - row[-2], 0.0) / (sizes[-1] - sizes[-2]) if len(sizes) > 1 else 0.0
        found: np.ndarray = np.interp(size, sizes, row) + slope * np.maximum(size - sizes[-1], 0)
        return found

    def meeting_at(self, ranks: int) -> float:
        """The least time of a meeting of so many ranks, ns."""
        if not self.meeting_ns:
            return 0.0
        counts, times = np.log2(sorted(self.meeting_ns)), [self.meeting_ns[count] for count in sorted(self.meeting_ns)]
        if len(times) > 1 and ranks > max(self.meeting_ns):
            slope = (times[-1] - times[-2]) / (counts[-1] - counts[-2])
            return max(float(times[-1] + slope * (np.log2(ranks) - counts[-1])), 0.0)
        return float(np.interp(np.log2(ranks), counts, times))


class StorageModel(_Part, frozen=True, kw_only=True):
    """A storage system. An operation that is not listed takes no time.

    objects: whether this is an object store, on which files are what docs/objects.md says: a write takes no time, and
        the close of a file that was written puts it whole, in the time of a `write` of its bytes. A read of no bytes, a
        sync and a seek take no time.
    """

    name: str
    about: str = ""
    uncertainty: Share = Share()
    ranks_per_node: _Whole = 0
    operations: dict[str, RequestTime] = {}
    servers: Servers = Servers()
    metadata: Servers = Servers()
    limits: tuple[Limit, ...] = ()
    objects: bool = False
    cache: PageCache | None = None
    jitter: Jitter | None = None
    client: Client | None = None

    def __post_init__(self) -> None:
        unknown = [name for name in self.operations if name not in OPS]
        if unknown:
            raise ModelError(f"operation {unknown[0]!r}: choose {', '.join(OPS)}")
        if not 0 <= self.uncertainty < 1:
            raise ModelError(f"uncertainty {self.uncertainty} is not a share from 0 to below 1")
        if self.metadata.stripe_bytes or self.metadata.stripe_count > 1:
            raise ModelError("the metadata servers have no stripes")
        if self.objects and self.cache is not None:
            raise ModelError("an object store has no page cache: leave out cache, or objects")
        if len({limit.name for limit in self.limits}) < len(self.limits):
            raise ModelError("two limits have the same name")

    def nodes(self, ranks: int) -> int:
        """On how many nodes so many ranks run."""
        return -(-ranks // self.ranks_per_node) if self.ranks_per_node else 1


def shipped_names() -> list[str]:
    """The names of the shipped models."""
    return sorted(path.stem for path in SHIPPED.glob("*.yaml"))


def read_storage_model(source: str | Path) -> StorageModel:
    """The model in a file, or the shipped model of that name.

    Raises: UsageError when there is no such file or model, or what it says is not a storage model.
    """
    path = Path(source)
    if str(source) in shipped_names() and not path.exists():
        path = SHIPPED / f"{source}.yaml"
    try:
        with path.open("rb") as stream:
            text = stream.read(MAX_BYTES + 1)
    except OSError as error:
        names = ", ".join(shipped_names())
        raise UsageError(
            f"the storage model {source} cannot be read ({error.strerror}): give a file, or one of {names}"
        ) from error
    if len(text) > MAX_BYTES:
        raise UsageError(f"{source} has more than {MAX_BYTES >> 20} MiB: it is not a storage model")
    try:
        return model_of(yaml.safe_load(text))
    except UsageError as error:
        raise UsageError(f"{source}: {error}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UsageError(f"{source} is neither YAML nor JSON: {str(error).splitlines()[0]}") from error


def model_of(document: object) -> StorageModel:
    """The model that a document describes. Raises: UsageError, with the place, for what is not one."""
    if not isinstance(document, Mapping):
        raise ModelError("the document is not a mapping of keys to values")
    top = {name: value for name, value in document.items() if name not in ("storage_model", "measured")}
    if document.get("storage_model") != VERSION:
        said = document.get("storage_model", "is missing")
        raise ModelError(f"storage_model {said}: this release reads version {VERSION}")
    # What has several forms gets one: times, rates of requests, a jitter by its spread.
    for name, form in _FORMS.items():
        if isinstance(top.get(name), Mapping if name != "limits" else list):
            top[name] = form(top[name])
    return _converted(top, StorageModel, "")


def document_of(model: StorageModel) -> dict[str, Any]:
    """The document of a model, as `model_of` reads it: to be written with `yaml.safe_dump` or `json.dump`."""
    return {"storage_model": VERSION, **_document(model)}


def _document(part: _Part) -> dict[str, Any]:
    written = {}
    for each in msgspec.structs.fields(type(part)):
        value = getattr(part, each.name)
        if value == each.default or each.name == "counts_requests":
            continue
        if each.type is Time:
            value = f"{float(value)!r}ns"
        elif each.type in (Size, Burst):
            value = f"{round(value)}B"
        elif each.type is Rate:
            value = f"{float(value)!r}B/s"
        elif isinstance(value, RequestTime):
            value = _table(value)
        elif isinstance(value, _Part):
            value = _document(value)
        elif isinstance(value, Mapping) and isinstance(part, Client):
            value = {count: f"{float(time)!r}ns" for count, time in value.items()}
        elif isinstance(value, Mapping):
            value = {name: _table(time) for name, time in value.items()}
        elif isinstance(value, tuple):
            value = [_document(one) if isinstance(one, _Part) else one for one in value]
        elif isinstance(value, float):
            value = float(value)
        written[each.encode_name] = value
    if isinstance(part, Limit) and part.counts_requests:
        written |= {"rate": f"{float(part.per_s)!r}/s", "burst": float(part.burst)}
    return written


def _table(time: RequestTime) -> Any:
    rows = {
        count: {f"{size}B": f"{each!r}ns" for size, each in zip(time.sizes, row, strict=True)}
        for count, row in zip(time.in_flight, time.time_ns, strict=True)
    }
    return rows if time.in_flight != (1,) else rows[1]


def _converted(value: object, kind: type[_Kind], where: str) -> _Kind:
    try:
        return msgspec.convert(value, kind, dec_hook=_quantity)
    except msgspec.ValidationError as error:
        said, _, place = str(error).partition(" - at `$")
        place = (where + place.removesuffix("`")).lstrip(".")
        if unknown := re.fullmatch(r"Object contains unknown field `(.*)`", said):
            of: Any = _PARTS.get(place.split("[")[0], kind)
            keys = (each.encode_name for each in msgspec.structs.fields(of))
            known = ", ".join(key for key in keys if key != "counts_requests")
            said, place = f"unknown key {unknown[1]!r}{f' of {place}' if place else ''}: choose {known}", ""
        raise ModelError(f"{place}: {said}" if place else said) from error


_PARTS = {
    "servers": Servers,
    "metadata": Servers,
    "limits": Limit,
    "cache": PageCache,
    "jitter": Jitter,
    "client": Client,
}


def _quantity(kind: type, value: object) -> Any:
    """A quantity from text. Numbers without a unit are bytes and shares; 0 is any quantity but a rate."""
    if isinstance(value, kind):
        return value
    factors = _FACTORS[kind]
    if isinstance(value, (int, float)) and not isinstance(value, bool) and (kind in (Size, Burst, Share) or not value):
        found = float(value)
    else:
        found = _number(value, factors)
    if not 0 <= found < 1e18 or (kind is Rate and not found):
        raise ModelError(f"{value!r} is {'too large' if found > 0 else 'not above 0'}")
    return kind(round(found) if kind is Size else found)


def _number(value: object, factors: Mapping[str, float]) -> float:
    found = _NUMBER.fullmatch(value) if isinstance(value, str) else None
    if found is None or found[2] not in factors:
        units = ", ".join(unit for unit in factors if unit)
        raise ModelError(f"{value!r} is not a number with a unit: write one of {units} after the number")
    return float(found[1]) * factors[found[2]]


def _operations(given: Mapping[str, object]) -> object:
    return {name: request_time(value, f"operations.{name}") for name, value in given.items()}


def _cache(given: Mapping[str, object]) -> object:
    times = {name: request_time(given[name], f"cache.{name}") for name in ("hit", "write") if name in given}
    return {**given, **times}


def _limits(given: list[object]) -> object:
    """A limit whose rate is one of requests counts these; one without a name is called by what it limits."""
    found: list[object] = []
    for each in given:
        if isinstance(each, Mapping):
            rate, of = each.get("rate"), each.get("of", DATA_OPERATIONS)
            if "counts_requests" in each:
                raise ModelError("unknown key 'counts_requests' of limits: a rate such as 1000/s counts requests")
            named = "+".join(map(str, of)) if isinstance(of, (list, tuple)) else of
            each = {"name": f"{named} {rate} of each {each.get('each')}", **each}
            if isinstance(rate, str) and re.fullmatch(r"\s*[0-9.eE+]+\s*/s\s*", rate):
                each |= {"rate": Rate(_number(rate, _REQUESTS)), "counts_requests": True}
        found.append(each)
    return found


def _jitter(given: Mapping[str, Any]) -> object:
    if ("quantiles" in given) == ("spread" in given):
        raise ModelError("jitter needs either spread or quantiles")
    if "spread" not in given:
        return given
    spread = _converted(given["spread"], float, "jitter.spread")
    return {
        **{name: each for name, each in given.items() if name != "spread"},
        "quantiles": Jitter.lognormal(spread).quantiles,
    }


def _client(given: Mapping[str, Any]) -> object:
    """Numbers of ranks are text in JSON."""
    meeting, found = given.get("meeting"), dict(given)
    if isinstance(meeting, Mapping):
        found["meeting"] = {int(n) if str(n).isdecimal() else n: each for n, each in meeting.items()}
    if "sample" in given:
        found["sample"] = request_time(given["sample"], "client.sample")
    return found


_FORMS: Mapping[str, Callable[[Any], object]] = {
    "operations": _operations, "cache": _cache, "limits": _limits, "jitter": _jitter, "client": _client,
}  # fmt: skip


def request_time(value: object, where: str) -> RequestTime:
    """The time of a request from one of the forms of the document: a time, a latency with a bandwidth, times by size,
    or those by requests in flight. Raises: UsageError."""
    if not isinstance(value, Mapping):
        return RequestTime.affine(_converted(value, Time, where))
    if not value:
        raise ModelError(f"{where} has no times")
    if value.keys() & {"latency", "bandwidth"}:
        chosen = _converted(value, _Affine, where)
        return RequestTime.affine(chosen.latency, chosen.bandwidth)
    nested = [isinstance(times, Mapping) for times in value.values()]
    if any(nested) and not all(nested):
        raise ModelError(f"{where} mixes times with tables: give times by size, or tables by requests in flight")
    try:
        by_count = {int(count): times for count, times in value.items()} if all(nested) else {1: value}
        rows = {
            count: {round(_quantity(Size, size)): _quantity(Time, time) for size, time in times.items()}
            for count, times in sorted(by_count.items())
        }
        sizes = tuple(sorted(next(iter(rows.values()))))
        if any(tuple(sorted(row)) != sizes for row in rows.values()):
            raise ModelError("each number of requests in flight needs a time for the same sizes")
        times = tuple(tuple(row[size] for size in sizes) for row in rows.values())
        return RequestTime(in_flight=tuple(rows), sizes=sizes, time_ns=times)
    except ValueError as error:
        raise ModelError(f"{where}: {error}") from error
