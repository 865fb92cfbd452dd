"""Fits a storage model to measured times, and checks it on reads that the fit left out: those that the cache cuts or
reads ahead. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

import msgspec
import numpy as np

from dxt_replay.replay.calibration.estimates import Measured
from dxt_replay.replay.simulation.model import Jitter, Limit, PageCache, RequestTime, StorageModel
from dxt_replay.replay.simulation.predict import read_times_ns

LEAST_UNCERTAINTY, MOST_UNCERTAINTY = 0.01, 0.5
"""Bounds of the uncertainty of all times of the model, as a share."""

UNCACHED = 0.8
"""If all cached reads take this share of the time of cold ones, or more, the file system has no page cache."""

QUANTILES = 64
"""Number of quantiles that describe the jitter."""

DECIDING_BYTES = 1 << 20
"""Largest write that decides whether writes end in the page cache. Larger ones fill it, and become slower then."""

METADATA_CALLS = ("open", "close", "stat", "rename")


def fit_model(
    name: str,
    about: str,
    measured: Sequence[Measured],
    limits: Sequence[Limit],
    *,
    read_ahead: int,
    dropped_at_open: bool = False,
    cache_bytes: int,
    dirty_bytes: int,
    drops_pages: bool,
    least_uncertainty: float = 0.0,
) -> StorageModel:
    """The storage model of these measurements.

    limits: of a throttle, if there is one; the model then has the times of single reads only.
    read_ahead, dropped_at_open, cache_bytes, dirty_bytes: of the page cache. drops_pages: whether pages were dropped
    before cold reads. If not, or if cached reads are as slow as cold ones, the model has no page cache.
    least_uncertainty: lower bound of the model's uncertainty, as a share.
    """
    cold = _of(measured, "read", "cold")
    cached = _table([each for each in _of(measured, "read", "cached") if each.in_flight == 1])
    writes = [each for each in _of(measured, "write") if each.in_flight == 1]
    synced = [each for each in _of(measured, "sync") if each.in_flight == 1]
    operations = {call: _table(_of(measured, call)) for call in METADATA_CALLS if _of(measured, call)}
    operations["read"] = _table([each for each in cold if each.in_flight == 1] if limits else cold)
    dirty = dirty_bytes if _ends_in_the_cache(_of(measured, "write", "synced"), synced) else 0
    operations |= _written(writes, synced, in_cache=dirty > 0)
    into_cache = _table(writes) if dirty else None
    cache = PageCache(
        size=cache_bytes,
        hit=cached,
        write=into_cache,
        read_ahead=read_ahead,
        dirty=dirty,
        dropped_at_open=dropped_at_open,
    )
    model = StorageModel(
        name=name,
        about=about,
        operations=operations,
        limits=tuple(limits),
        cache=cache if drops_pages and _caches(measured) else None,
        jitter=_jitter(cold),
    )
    model = with_largest_fetch(model, measured)
    uncertainty = max(math.hypot(_uncertainty(cold), model_error(model, measured)), least_uncertainty)
    return msgspec.structs.replace(model, uncertainty=round(min(uncertainty, MOST_UNCERTAINTY), 4))


def fit_objects(
    name: str,
    about: str,
    measured: Sequence[Measured],
    limits: Sequence[Limit],
    *,
    opens_ask: bool,
    least_uncertainty: float = 0.0,
) -> StorageModel:
    """The storage model of the requests to an object store. `opens_ask`: whether an open sends a HEAD.

    A request that was not measured takes no time there.
    """
    gets = _of(measured, "GET")
    found = {
        "read": [each for each in gets if each.in_flight == 1] if limits else gets,
        "write": _of(measured, "PUT"),
        "open": _of(measured, "HEAD") if opens_ask else [],
        "stat": _of(measured, "HEAD"),
        "rename": _of(measured, "CopyObject and DELETE"),
        "list": _of(measured, "LIST"),
        "delete": _of(measured, "DELETE"),
    }
    uncertainty = max(_uncertainty(gets), least_uncertainty)
    return StorageModel(
        name=name,
        about=about,
        operations={operation: _table(times) for operation, times in found.items() if times},
        limits=tuple(limits),
        objects=True,
        jitter=_jitter(gets),
        uncertainty=round(min(uncertainty, MOST_UNCERTAINTY), 4),
    )


def _caches(measured: Sequence[Measured]) -> bool:
    """Whether any read of cached data is clearly quicker than the cold one of its size."""
    cold = {each.size: each.time_ns.value for each in _of(measured, "read", "cold") if each.in_flight == 1}
    cached = [each for each in _of(measured, "read", "cached") if each.in_flight == 1 and each.size in cold]
    return not cached or any(each.time_ns.value < UNCACHED * cold[each.size] for each in cached)


def _of(measured: Iterable[Measured], call: str, state: str = "") -> list[Measured]:
    return [each for each in measured if each.call == call and each.state == state]


def _table(measured: Sequence[Measured]) -> RequestTime:
    """Times by requests in flight and size. Raises: ValueError where none has one request in flight."""
    found = {(each.in_flight, each.size): each.time_ns.value for each in measured}
    sizes = sorted(size for count, size in found if count == 1)
    counts = sorted({count for count, _ in found})
    rows: list[tuple[float, ...]] = []
    for count in counts:
        row: list[float] = []
        for place, size in enumerate(sizes):
            time = found.get((count, size))
            if time is None:
                time = _unmeasured(row, rows, place, sizes)
            row.append(round(time, 1))
        rows.append(tuple(row))
    return RequestTime(in_flight=tuple(counts), sizes=tuple(sizes), time_ns=tuple(rows))


def _unmeasured(row: Sequence[float], rows: Sequence[tuple[float, ...]], place: int, sizes: Sequence[int]) -> float:
    """The time of a size that was not measured with so many in flight. It grows with the size as it does with fewer."""
    below = rows[-1]
    return below[place] if not row else max(row[-1] * below[place] / max(below[place - 1], 1.0), row[-1])


def _ends_in_the_cache(writes: Sequence[Measured], synced: Sequence[Measured]) -> bool:
    """Whether a write only fills the page cache: its bytes then cost more in the sync after it than in the write."""
    in_write = {each.size: each.time_ns.value for each in writes if each.in_flight == 1}
    in_sync = {each.size: each.time_ns.value for each in synced if each.size in in_write}
    sizes = [size for size in sorted(in_sync) if size <= DECIDING_BYTES]
    if len(sizes) < 2:
        return False
    small, large = sizes[0], sizes[-1]
    return in_sync[large] - in_sync[small] > in_write[large] - in_write[small]


def _written(writes: Sequence[Measured], synced: Sequence[Measured], *, in_cache: bool) -> Mapping[str, RequestTime]:
    """The times of a write that reaches the storage, and of a sync.

    If writes end in the cache, the shortest sync is the time of a sync, and the rest of each sync that of its bytes.
    """
    found = {}
    if synced:
        base = min(each.time_ns.value for each in synced)
        found["sync"] = RequestTime.affine(round(base, 1))
        if in_cache:
            rest = tuple(max(round(each.time_ns.value - base, 1), 0.0) for each in synced)
            found["write"] = RequestTime(sizes=tuple(each.size for each in synced), time_ns=(_never_falling(rest),))
    if writes and "write" not in found:
        found["write"] = _table(writes)
    return found


def _never_falling(values: Sequence[float]) -> tuple[float, ...]:
    return tuple(np.maximum.accumulate(np.asarray(values)).tolist())


def _jitter(cold: Sequence[Measured]) -> Jitter | None:
    """Variation of single reads as factors with mean 1: the median over the sizes."""
    alone = [each for each in cold if each.in_flight == 1 and len(each.spread) >= QUANTILES]
    if not alone:
        return None
    places = (np.arange(QUANTILES) + 0.5) / QUANTILES
    factors = np.median([np.quantile(each.spread, places) for each in alone], axis=0)
    return Jitter(quantiles=tuple((factors / factors.mean()).round(4).tolist()))


def _uncertainty(cold: Sequence[Measured]) -> float:
    """Uncertainty of the times of a run, as a share: the median, over the sizes, of the spread between trials of single
    reads."""
    widths = [each.between_trials for each in cold if each.in_flight == 1 and each.time_ns.trials > 1]
    found = median(widths) if widths else MOST_UNCERTAINTY
    return max(found, LEAST_UNCERTAINTY)


FAR_BYTES = 1 << 40
"""Size of the simulated file. For a read in its middle nothing was fetched ahead."""

MOST_READS = 1 << 14
"""Most reads of a simulated trial."""

CLEAR = 0.2
"""Least gain, in the mean absolute logarithm of simulated / measured time, for which large reads are cut."""

ALIKE = 0.05
"""Sizes whose mean absolute logarithm is within this of the best one are equally good; the smallest is taken."""


def with_largest_fetch(model: StorageModel, measured: Sequence[Measured]) -> StorageModel:
    """The model with the size into which the cache cuts large cold reads, if their times show one: a read that waits
    for each of its parts takes longer than one with all of them in flight."""
    cache = model.cache
    if cache is None or not cache.read_ahead:
        return model
    large = [each for each in _alone(measured, "cold") if each.size > cache.read_ahead]
    free = msgspec.structs.replace(model, limits=())  # cold reads were measured with pauses for a throttle

    def cut_at(size: int, model: StorageModel) -> StorageModel:
        return msgspec.structs.replace(model, cache=msgspec.structs.replace(cache, largest_fetch=size))

    def error(size: int) -> float:
        found = [_log_ratio(cut_at(size, free), each, np.array([FAR_BYTES // 2])) for each in large]
        return float(np.mean(np.abs(found))) if found else 0.0

    sizes = [cache.read_ahead << power for power in range(16)]
    errors = {size: error(size) for size in sizes if any(each.size > size for each in large)}
    if not errors or min(errors.values()) + CLEAR > error(0):
        return model
    return cut_at(next(size for size, found in errors.items() if found < min(errors.values()) + ALIKE), model)


def model_error(model: StorageModel, measured: Sequence[Measured]) -> float:
    """Relative error of the model for sequential cold reads, which were left out of the fit: the median over their
    sizes; 0 without any."""
    found = [
        abs(_log_ratio(model, each, each.size * np.arange(min(each.requests // each.time_ns.trials + 1, MOST_READS))))
        for each in _alone(measured, "sequential")
    ]
    return math.expm1(float(np.median(found))) if found else 0.0


def _alone(measured: Sequence[Measured], state: str) -> list[Measured]:
    return [each for each in measured if each.call == "read" and each.state == state and each.in_flight == 1]


def _log_ratio(model: StorageModel, one: Measured, offsets: np.ndarray) -> float:
    simulated = float(read_times_ns(model, offsets, one.size, FAR_BYTES).mean())
    return math.log(max(simulated, 1.0) / max(one.time_ns.value, 1.0))
