"""Storage models as files: YAML or JSON, with quantities as text ("100us", "1.2GB/s", "1MiB").

Every key is checked; an error names the key by its path in the document, the value, and what is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml

from dxt_replay.replay.simulation.storage_model import (
    DATA_OPERATIONS,
    Jitter,
    Limit,
    PageCache,
    RequestTime,
    Servers,
    StorageModel,
)
from dxt_replay.traces.errors import UsageError

VERSION = 1
"""Version of the document, its key `storage_model`."""

MAX_BYTES = 16 << 20
"""Largest document that is read."""

SHIPPED = Path(__file__).with_name("shipped")
"""Folder of the models that can be named without a path."""

_NUMBER = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?)\s*([A-Za-z%/]*)\s*")
_TIMES = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}
_SIZES = {"": 1, "B": 1} | {
    f"{prefix}{middle}B": base**power
    for middle, base in (("", 1000), ("i", 1024))
    for power, prefix in enumerate("kMGTP", 1)
} | {"KB": 1000, "KiB": 1024}  # fmt: skip

_Made = TypeVar("_Made")


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
        document = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UsageError(f"{source} is neither YAML nor JSON: {str(error).splitlines()[0]}") from error
    try:
        return model_of(document)
    except UsageError as error:
        raise UsageError(f"{source}: {error}") from error


def model_of(document: object) -> StorageModel:
    """The model that a document describes. Raises: UsageError for what is not one."""
    top = _Section(document, "")
    version = top.take("storage_model", _whole)
    if version != VERSION:
        raise UsageError(f"storage_model {version}: this release reads version {VERSION}")
    operations = top.take("operations", _mapping, default={})
    model = {
        "name": top.take("name", _text),
        "about": top.take("about", _text, default=""),
        "operations": {name: request_time(value, f"operations.{name}") for name, value in operations.items()},
        "servers": top.take("servers", _servers, default=Servers()),
        "metadata": top.take("metadata", _servers, default=Servers()),
        "limits": top.take("limits", _limits, default=()),
        "cache": top.take("cache", _cache, default=None),
        "ranks_per_node": top.take("ranks_per_node", _whole, default=0),
        "jitter": top.take("jitter", _jitter, default=None),
        "uncertainty": top.take("uncertainty", _share, default=0.0),
    }
    top.take("measured", _mapping, default={})  # what a calibration adds for people
    top.end()
    return StorageModel(**model)


def document_of(model: StorageModel) -> dict[str, Any]:
    """The document of a model, as `model_of` reads it: to be written with `yaml.safe_dump` or `json.dump`."""
    document: dict[str, Any] = {"storage_model": VERSION, "name": model.name}
    if model.about:
        document["about"] = model.about
    document["uncertainty"] = model.uncertainty
    if model.ranks_per_node:
        document["ranks_per_node"] = model.ranks_per_node
    document["operations"] = {name: _table(time) for name, time in model.operations.items()}
    document["servers"] = _servers_document(model.servers)
    document["metadata"] = _servers_document(model.metadata)
    document["limits"] = [_limit_document(limit) for limit in model.limits]
    if model.cache is not None:
        document["cache"] = {
            "size": f"{model.cache.size}B",
            "hit": _table(model.cache.hit),
            "read_ahead": f"{model.cache.read_ahead}B",
            "dirty": f"{model.cache.dirty}B",
            "largest_fetch": f"{model.cache.largest_fetch}B",
            "dropped_at_open": model.cache.dropped_at_open,
        }
        if model.cache.write is not None:
            document["cache"]["write"] = _table(model.cache.write)
    if model.jitter is not None:
        document["jitter"] = {"quantiles": list(model.jitter.quantiles), "seed": model.jitter.seed}
    return document


def request_time(value: object, where: str) -> RequestTime:
    """The time of a request from one of the forms of the document: a time, a latency with a bandwidth, times by size,
    or those by requests in flight. Raises: UsageError."""
    if not isinstance(value, Mapping):
        return RequestTime.affine(_time(value, where))
    if not value:
        raise UsageError(f"{where} has no times")
    if value.keys() & {"latency", "bandwidth"}:
        section = _Section(value, where)
        latency = section.take("latency", _time, default=0.0)
        bandwidth = section.take("bandwidth", _bandwidth, default=None)
        section.end()
        return RequestTime.affine(latency, bandwidth)
    nested = [isinstance(times, Mapping) for times in value.values()]
    if not all(nested) and any(nested):
        raise UsageError(f"{where} mixes times with tables: give times by size, or tables by requests in flight")
    by_count = {_whole(count, where): times for count, times in value.items()} if all(nested) else {1: value}
    rows = {
        count: {_size(size, where): _time(time, f"{where}.{size}") for size, time in times.items()}
        for count, times in sorted(by_count.items())
    }
    sizes = tuple(sorted(next(iter(rows.values()))))
    if any(tuple(sorted(row)) != sizes for row in rows.values()):
        raise UsageError(f"{where}: each number of requests in flight needs a time for the same sizes")
    return _made(
        where,
        lambda: RequestTime(
            in_flight=tuple(rows),
            sizes=sizes,
            time_ns=tuple(tuple(row[size] for size in sizes) for row in rows.values()),
        ),
    )


class _Section:
    """A mapping of the document, whose keys are taken one after the other."""

    def __init__(self, value: object, where: str) -> None:
        self._left = dict(_mapping(value, where or "the document"))
        self._where = where
        self._known: list[str] = []

    def take(self, key: str, read: Callable[[Any, str], Any], **default: Any) -> Any:
        """The value of a key. Raises: UsageError where it is missing and has no `default`."""
        self._known.append(key)
        where = f"{self._where}.{key}" if self._where else key
        if key in self._left:
            return read(self._left.pop(key), where)
        if "default" not in default:
            raise UsageError(f"{where} is missing")
        return default["default"]

    def end(self) -> None:
        """Raises: UsageError for a key that nobody took."""
        if self._left:
            place = f" of {self._where}" if self._where else ""
            raise UsageError(f"unknown key {next(iter(self._left))!r}{place}: choose {', '.join(self._known)}")


def _servers(value: object, where: str) -> Servers:
    section = _Section(value, where)
    count = section.take("count", _whole, default=1)
    chosen = {
        "count": count,
        "slots": section.take("slots", _whole, default=0),
        "stripe_bytes": section.take("stripe_size", _size, default=0),
        "stripe_count": section.take("stripe_count", _whole, default=1),
    }
    section.end()
    return _made(where, lambda: Servers(**chosen))


def _limits(value: object, where: str) -> tuple[Limit, ...]:
    if not isinstance(value, list):
        raise UsageError(f"{where} is not a list")
    return tuple(_limit(each, f"{where}[{number}]") for number, each in enumerate(value))


def _limit(value: object, where: str) -> Limit:
    section = _Section(value, where)
    rate = section.take("rate", _text)
    counts = re.fullmatch(r"\s*[0-9.eE+]+\s*/s\s*", rate) is not None
    each = section.take("each", _text)
    operations = section.take("of", _texts, default=DATA_OPERATIONS)
    chosen = {
        "name": section.take("name", _text, default=f"{'+'.join(operations)} {rate} of each {each}"),
        "each": each,
        "operations": operations,
        "per_s": _unit(rate, f"{where}.rate", {"/s": 1.0}) if counts else _bandwidth(rate, f"{where}.rate"),
        "counts_requests": counts,
        "burst": section.take("burst", _real if counts else _size, default=0.0),
        "request_bytes": section.take("request_size", _size, default=0),
        "step_ns": section.take("step", _time, default=0.0),
    }
    section.end()
    return _made(where, lambda: Limit(**chosen))


def _cache(value: object, where: str) -> PageCache:
    section = _Section(value, where)
    chosen = {
        "size": section.take("size", _size),
        "hit": section.take("hit", request_time, default=RequestTime()),
        "write": section.take("write", request_time, default=None),
        "read_ahead": section.take("read_ahead", _size, default=0),
        "dirty": section.take("dirty", _size, default=0),
        "largest_fetch": section.take("largest_fetch", _size, default=0),
        "dropped_at_open": section.take("dropped_at_open", _truth, default=False),
    }
    section.end()
    return _made(where, lambda: PageCache(**chosen))


def _jitter(value: object, where: str) -> Jitter:
    section = _Section(value, where)
    seed = section.take("seed", _whole, default=1)
    quantiles = section.take("quantiles", _reals, default=None)
    spread = section.take("spread", _real, default=None)
    section.end()
    if (quantiles is None) == (spread is None):
        raise UsageError(f"{where} needs either spread or quantiles")
    if quantiles is None:
        return _made(where, lambda: Jitter.lognormal(spread, seed))
    return _made(where, lambda: Jitter(quantiles=quantiles, seed=seed))


def _made(where: str, make: Callable[[], _Made]) -> _Made:
    try:
        return make()
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error


def _mapping(value: object, where: str) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, (str, int)) for key in value):
        raise UsageError(f"{where} is not a mapping of keys to values")
    return value


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise UsageError(f"{where} {value!r} is not text")
    return value


def _texts(value: object, where: str) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise UsageError(f"{where} {value!r} is not a list of operations")
    return tuple(_text(each, where) for each in value)


def _whole(value: object, where: str) -> int:
    if isinstance(value, str) and value.isdecimal() and len(value) < 19:
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 62:
        raise UsageError(f"{where} {value!r} is not a whole number of 0 or more")
    return value


def _truth(value: object, where: str) -> bool:
    if not isinstance(value, bool):
        raise UsageError(f"{where} {value!r} is neither true nor false")
    return value


def _real(value: object, where: str) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < 1e18:
        raise UsageError(f"{where} {value!r} is not a number of 0 or more")
    return float(value)


def _reals(value: object, where: str) -> tuple[float, ...]:
    if not isinstance(value, list):
        raise UsageError(f"{where} is not a list of numbers")
    return tuple(_real(each, where) for each in value)


def _share(value: object, where: str) -> float:
    return _unit(value, where, {"%": 0.01}) if isinstance(value, str) else _real(value, where)


def _time(value: object, where: str) -> float:
    """ns; a number without a unit is an error, but for 0."""
    return 0.0 if value == 0 and not isinstance(value, bool) else _unit(value, where, _TIMES)


def _size(value: object, where: str) -> int:
    """Bytes; a number without a unit is bytes."""
    return _whole(value, where) if isinstance(value, int) else round(_unit(value, where, _SIZES))


def _bandwidth(value: object, where: str) -> float:
    """Bytes per second."""
    found = _unit(value, where, {f"{unit}/s": factor for unit, factor in _SIZES.items() if unit})
    if not found:
        raise UsageError(f"{where} {value!r} is not above 0")
    return found


def _unit(value: object, where: str, factors: Mapping[str, float]) -> float:
    found = _NUMBER.fullmatch(value) if isinstance(value, str) else None
    if found is None or found[2] not in factors:
        units = ", ".join(unit for unit in factors if unit)
        raise UsageError(f"{where} {value!r} is not a number with a unit: write one of {units} after the number")
    quantity = float(found[1]) * factors[found[2]]
    if quantity >= 1e18:
        raise UsageError(f"{where} {value!r} is too large")
    return quantity


def _table(time: RequestTime) -> Any:
    rows = {
        count: {f"{size}B": f"{each!r}ns" for size, each in zip(time.sizes, row, strict=True)}
        for count, row in zip(time.in_flight, time.time_ns, strict=True)
    }
    return rows if time.in_flight != (1,) else rows[1]


def _servers_document(servers: Servers) -> dict[str, Any]:
    document: dict[str, Any] = {"count": servers.count, "slots": servers.slots}
    if servers.stripe_bytes:
        document |= {"stripe_size": f"{servers.stripe_bytes}B", "stripe_count": servers.stripe_count}
    return document


def _limit_document(limit: Limit) -> dict[str, Any]:
    document: dict[str, Any] = {
        "name": limit.name,
        "each": limit.each,
        "of": list(limit.operations),
        "rate": f"{limit.per_s!r}{'' if limit.counts_requests else 'B'}/s",
        "burst": limit.burst if limit.counts_requests else f"{limit.burst:.0f}B",
    }
    if limit.request_bytes:
        document["request_size"] = f"{limit.request_bytes}B"
    if limit.step_ns:
        document["step"] = f"{limit.step_ns!r}ns"
    return document
