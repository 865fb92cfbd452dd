"""Storage models as files: YAML or JSON, with quantities as text ("100us", "1.2GB/s", "1MiB").

Every key is checked; an error names the key by its path in the document, the value, and what is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
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
    stated,
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
_Reader = Callable[[Any, str], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Affine:
    """The arguments of `RequestTime.affine`."""

    latency_ns: float = field(default=0.0, metadata=stated("time", key="latency"))
    bytes_per_s: float | None = field(default=None, metadata=stated("bandwidth", key="bandwidth"))


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
    top = _mapping(document, "the document")
    if "storage_model" not in top:
        raise UsageError("storage_model is missing")
    version = _whole(top["storage_model"], "storage_model")
    if version != VERSION:
        raise UsageError(f"storage_model {version}: this release reads version {VERSION}")
    _mapping(top.get("measured", {}), "measured")  # what a calibration adds for people
    return _made("", StorageModel, **_fields(StorageModel, top, "", others=("storage_model", "measured")))


def document_of(model: StorageModel) -> dict[str, Any]:
    """The document of a model, as `model_of` reads it: to be written with `yaml.safe_dump` or `json.dump`."""
    return {"storage_model": VERSION, **_document(model)}


def request_time(value: object, where: str) -> RequestTime:
    """The time of a request from one of the forms of the document: a time, a latency with a bandwidth, times by size,
    or those by requests in flight. Raises: UsageError."""
    if not isinstance(value, Mapping):
        return RequestTime.affine(_time(value, where))
    if not value:
        raise UsageError(f"{where} has no times")
    if value.keys() & {"latency", "bandwidth"}:
        return RequestTime.affine(**_fields(_Affine, value, where))
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
    times = tuple(tuple(row[size] for size in sizes) for row in rows.values())
    return _made(where, RequestTime, in_flight=tuple(rows), sizes=sizes, time_ns=times)


def _keys(described: type) -> dict[str, Field[Any]]:
    """The fields of a part of a model that a document states, by their keys."""
    return {each.metadata["key"] or each.name: each for each in fields(described) if each.metadata}


def _fields(
    described: type, value: object, where: str, others: Sequence[str] = (), **readers: _Reader
) -> dict[str, Any]:
    """The fields of a part of a model that a mapping states. readers: for fields that are not read by their form.

    Raises: UsageError for a key that is neither of the part nor one of the `others`, or is missing.
    """
    given, keys, prefix = _mapping(value, where), _keys(described), f"{where}." if where else ""
    unknown = [key for key in given if key not in keys and key not in others]
    if unknown:
        place, known = f" of {where}" if where else "", ", ".join((*others, *keys))
        raise UsageError(f"unknown key {unknown[0]!r}{place}: choose {known}")
    found = {}
    for key, each in keys.items():
        if key in given:
            found[each.name] = readers.get(each.name, _FORMS[each.metadata["form"]][0])(given[key], f"{prefix}{key}")
        elif each.default is MISSING and each.default_factory is MISSING:
            raise UsageError(f"{prefix}{key} is missing")
    return found


def _document(part: Any, **written: object) -> dict[str, Any]:
    """The mapping of a part of a model. written: of fields that are not written by their form."""
    document = {}
    for key, each in _keys(type(part)).items():
        value = getattr(part, each.name)
        if not (each.metadata["optional"] and value == each.default):
            document[key] = written[each.name] if each.name in written else _FORMS[each.metadata["form"]][1](value)
    return document


def _made(where: str, make: Callable[..., _Made], **chosen: Any) -> _Made:
    try:
        return make(**chosen)
    except UsageError as error:
        raise UsageError(f"{where}: {error}" if where else str(error)) from error


def _operations(value: object, where: str) -> dict[str, RequestTime]:
    return {name: request_time(time, f"{where}.{name}") for name, time in _mapping(value, where).items()}


def _servers(value: object, where: str) -> Servers:
    return _made(where, Servers, **_fields(Servers, value, where))


def _cache(value: object, where: str) -> PageCache:
    return _made(where, PageCache, **_fields(PageCache, value, where))


def _limits(value: object, where: str) -> tuple[Limit, ...]:
    if not isinstance(value, list):
        raise UsageError(f"{where} is not a list")
    return tuple(_limit(each, f"{where}[{number}]") for number, each in enumerate(value))


def _limit(value: object, where: str) -> Limit:
    given = {"name": "", **_mapping(value, where)}
    rate = given.get("rate")
    if isinstance(rate, str) and re.fullmatch(r"\s*[0-9.eE+]+\s*/s\s*", rate):
        chosen = _fields(Limit, given, where, per_s=_requests, burst=_real) | {"counts_requests": True}
    else:
        chosen = _fields(Limit, given, where)
    if not chosen["name"]:
        chosen["name"] = f"{'+'.join(chosen.get('operations', DATA_OPERATIONS))} {rate} of each {chosen['each']}"
    return _made(where, Limit, **chosen)


def _limit_document(limit: Limit) -> dict[str, Any]:
    if limit.counts_requests:
        return _document(limit, per_s=f"{limit.per_s!r}/s", burst=limit.burst)
    return _document(limit)


def _jitter(value: object, where: str) -> Jitter:
    given = dict(_mapping(value, where))
    if ("quantiles" in given) == ("spread" in given):
        raise UsageError(f"{where} needs either spread or quantiles")
    if "spread" in given:
        spread = _real(given["spread"], f"{where}.spread")
        given["quantiles"] = list(_made(where, Jitter.lognormal, spread=spread).quantiles)
    return _made(where, Jitter, **_fields(Jitter, given, where, others=("spread",)))


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


def _requests(value: object, where: str) -> float:
    """Requests per second."""
    return _unit(value, where, {"/s": 1.0})


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


_FORMS: dict[str, tuple[_Reader, Callable[[Any], Any]]] = {
    "text": (_text, str),
    "texts": (_texts, list),
    "whole": (_whole, int),
    "truth": (_truth, bool),
    "share": (_share, float),
    "factors": (_reals, list),
    "size": (_size, lambda size: f"{round(size)}B"),
    "time": (_time, "{!r}ns".format),
    "bandwidth": (_bandwidth, "{!r}B/s".format),
    "times": (request_time, _table),
    "operations": (_operations, lambda times: {name: _table(time) for name, time in times.items()}),
    "servers": (_servers, _document),
    "limits": (_limits, lambda limits: [_limit_document(limit) for limit in limits]),
    "cache": (_cache, _document),
    "jitter": (_jitter, _document),
}
"""How a form of `storage_model.stated` is read from a document, and written to one."""
