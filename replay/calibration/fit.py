"""From the times of trials to a storage model: medians with intervals, figures that others contradict, throttles, and
the fit, which is checked on reads that it left out. Pure.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

import msgspec
import numpy as np

from dxt_replay.replay.simulation.model import Jitter, Limit, PageCache, RequestTime, StorageModel
from dxt_replay.replay.simulation.predict import read_times_ns

LEVEL = 0.95  # Least probability with which an interval contains the median, given 6 trials or more


def interval(values: Sequence[float] | np.ndarray) -> tuple[float, float, float]:
    """(median, low, high) of one value of each trial, at least one; with fewer than 6 trials their whole range.

    The interval is that of order statistics: it assumes nothing about the distribution (David and Nagaraja, Order
    Statistics, 3rd ed., 7.1)."""
    ranked = np.sort(np.asarray(values, dtype=float))
    trials, outside, probability = len(ranked), -1, 0.0
    while probability <= (1 - LEVEL) / 2 and outside < trials:
        outside += 1
        probability += math.comb(trials, outside) * 0.5**trials
    outside = max(outside - 1, 0)
    return float(np.median(ranked)), float(ranked[outside]), float(ranked[-1 - outside])


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The result of all trials of one call of a probe.

    call: "read", "write", "open", "create", ... state: "cold", "cached", "sequential" or "" of a read.
    time_ns: median of the trials' mean times of a request, known from low_ns to high_ns. p50_ns to p99_ns: quantiles of
        all requests.
    spread: times of all requests over the mean of their trial, ascending, at most 256 of them.
    between_trials: half of the range of 9 in 10 trials as a share of their median. A run meets conditions of its own,
        as a trial does: unlike the interval of the median, this does not shrink with the number of trials."""

    call: str
    state: str
    size: int
    in_flight: int
    requests: int
    trials: int
    time_ns: float
    low_ns: float
    high_ns: float
    p50_ns: float
    p95_ns: float
    p99_ns: float
    spread: tuple[float, ...]
    between_trials: float = 0.0

    @classmethod
    def of(cls, call: str, state: str, size: int, in_flight: int, trials: Sequence[np.ndarray]) -> Measured:
        """From the times of the requests of each trial, int64 ns (n,), n at least 1."""
        every = np.concatenate(list(trials))
        p50, p95, p99 = np.quantile(every, (0.5, 0.95, 0.99)).tolist()
        relative = np.concatenate([trial / max(trial.mean(), 1.0) for trial in trials])
        places = (np.arange(min(len(relative), 256)) + 0.5) / min(len(relative), 256)
        means = np.sort([float(trial.mean()) for trial in trials])
        outside, (value, low, high) = len(means) // 20, interval(means)
        return cls(
            call=call,
            state=state,
            size=size,
            in_flight=in_flight,
            requests=len(every),
            trials=len(means),
            time_ns=value,
            low_ns=low,
            high_ns=high,
            p50_ns=p50,
            p95_ns=p95,
            p99_ns=p99,
            spread=tuple(np.quantile(relative, places).tolist()),
            between_trials=float((means[-1 - outside] - means[outside]) / 2 / max(value, 1.0)),
        )

    @property
    def bytes_per_s(self) -> float:
        """Of all lanes: in a closed loop, what is in flight over the time of a request (Little's law); 0 where no bytes
        are moved."""
        return self.size * self.in_flight * 1e9 / self.time_ns if self.time_ns else 0.0

    def as_json(self) -> dict[str, Any]:
        """The figures for the file and for `--json`; times in us."""
        us = 1e3
        return {
            "call": self.call,
            "state": self.state,
            "size_bytes": self.size,
            "in_flight": self.in_flight,
            "requests": self.requests,
            "mean_us": {
                "value": self.time_ns / us,
                "low": self.low_ns / us,
                "high": self.high_ns / us,
                "trials": self.trials,
            },
            "p50_us": self.p50_ns / us,
            "p95_us": self.p95_ns / us,
            "p99_us": self.p99_ns / us,
            "mb_per_s": self.bytes_per_s / 1e6,
        }


# ----------------------------------------------------------------------------------------------------- disturbed trials

DOUBT_FACTOR = 2.0  # A figure is in doubt if it exceeds its upper bound by this factor


def doubtful(measured: Sequence[Measured]) -> list[Measured]:
    """Figures that exceed an upper bound given by other figures.

    A request takes at most as long as a larger one. A cached read takes at most as long as a cold one, and as most
    cached reads of its size. Without a larger one, a request takes at most the time of the next smaller one times the
    ratio of their sizes. A figure is in doubt only if most of its requests were far quicker than its mean: a call that
    is always slow was not disturbed."""

    def bound(one: Measured) -> float:
        alike = [each for each in measured if each.call == one.call and each.in_flight == one.in_flight]
        same = [each for each in alike if each.state == one.state]
        bounds = [each.time_ns for each in same if each.size > one.size]
        if one.state == "cached":
            bounds.append(DOUBT_FACTOR * one.p50_ns)  # memory has no slow requests of its own
            bounds += [each.time_ns for each in alike if each.state == "cold" and each.size == one.size]
        below = max((each for each in same if 0 < each.size < one.size), key=lambda each: each.size, default=None)
        if not bounds and below is not None:
            bounds.append(below.time_ns * one.size / below.size)
        return DOUBT_FACTOR * min(bounds, default=math.inf)

    uneven = [each for each in measured if DOUBT_FACTOR * each.p50_ns < each.time_ns]
    return [each for each in uneven if each.time_ns > bound(each)]


def settled(one: Measured, *, disturbed: bool) -> Measured:
    """The figure with at most `p95_ns` as its value, since what 1 in 20 requests cost is not the storage's usual time;
    if it was disturbed, with the median of its requests. The interval includes it."""
    value = one.p50_ns if disturbed else min(one.time_ns, one.p95_ns)
    return dataclasses.replace(one, time_ns=value, low_ns=min(one.low_ns, value))


# ------------------------------------------------------------------------------------------------------------ throttles

LEAST_BURST_S = 0.02  # Least burst of a throttle, as its time at the rate that follows, s. A smaller burst is a queue.
SAME = 1.3  # Rates of two sizes that differ by less than this factor count as equal
STEADY = 1.15
"""Largest factor between the rates in two parts of a trial. Storage that slows down further has no throttle."""

LEAST_STEPS, EVEN = 3, 0.7
"""Least number of steps by which a throttle in steps is known, and share of them within 20 % of the typical one."""


class Passed(NamedTuple):
    """The course of reads of one size after a pause: `burst` requests at once, then `per_s` requests a second.

    throttled: False if the burst is only a queue.
    step_s: time of the steps in which the rate is granted, as a control group does it; 0 where none were seen."""

    size: int
    burst: float
    per_s: float
    throttled: bool
    step_s: float = 0.0


def passed(size: int, in_flight: int, end_ns: np.ndarray) -> Passed | None:
    """The course of a closed loop, from the ends of its requests: ascending int64 ns from its start. None for fewer
    than 4.

    A line through the second half of the time gives the rate. Its value at the start is the burst. A throttle that
    grants its rate in steps, as a control group does every 100 ms, has a burst of half a step."""
    if len(end_ns) < 4 or end_ns[0] >= end_ns[-1]:
        return None
    ended = end_ns / 1e9

    def line(begin: float, until: float) -> tuple[float, float]:
        """Slope (per s) and intercept of the count of requests between two shares of the time. It is sampled at even
        times, because the ends of the requests themselves would give the quick ones of each step more weight."""
        times = np.linspace(begin * ended[-1], until * ended[-1], 128)
        slope, intercept = np.polyfit(times, np.searchsorted(ended, times, side="right"), 1).tolist()
        return slope, intercept

    per_s, burst = line(0.5, 1.0)
    slower, faster = sorted((line(0.4, 0.7)[0], line(0.7, 1.0)[0]))
    early = ended[ended < ended[-1] / 2]
    ahead = np.arange(1, len(early) + 1) - per_s * early
    # Only of requests that came at twice the later rate or faster.
    at_once = float(np.max(ahead[ahead >= per_s * early], initial=0.0))
    throttled = slower > 0 and faster < STEADY * slower and at_once > max(in_flight + 2, LEAST_BURST_S * per_s)
    step_s = 0.0
    if throttled:  # a rush of requests begins after a pause that is at least half of the longest one
        pauses = np.diff(ended)
        between = np.diff(ended[1:][pauses > pauses.max() / 2])
        if len(between) >= LEAST_STEPS and len(ended) > 2 * in_flight * (len(between) + 1):
            typical = float(np.median(between))
            step_s = typical if np.mean(np.abs(between - typical) < 0.2 * typical) > EVEN else 0.0
    return Passed(size, max(burst, 0.0), per_s, throttled, step_s)


def throttles(found: Sequence[Passed]) -> tuple[Limit, ...]:
    """The limits of reads: of bytes, of requests, or of both; none if no size was throttled.

    A rate in bytes or in requests that at least two sizes have in common is a limit. A throttled size with another
    rate has the other limit."""
    seen = [each for each in found if each.throttled]
    if not seen:
        return ()
    most_bytes, most_requests = max(each.per_s * each.size for each in found), max(each.per_s for each in found)
    by_bytes = [each for each in found if each.per_s * each.size * SAME >= most_bytes]
    by_requests = [each for each in found if each.per_s * SAME >= most_requests]
    if len(by_bytes) >= len(by_requests):
        by_requests = [each for each in seen if each not in by_bytes and each.size < by_bytes[0].size]
    else:
        by_bytes = [each for each in seen if each not in by_requests and each.size > by_requests[-1].size]
    # Without a limit of bytes, a large request that passes at a part of the rate counts as several.
    largest, several = found[-1], 1
    if by_requests and not by_bytes:
        several = round(float(np.median([each.per_s for each in by_requests])) / largest.per_s)
    limits = []
    for group, name, counts in ((by_bytes, "bytes", False), (by_requests, "requests", True)):
        if group:
            amount = {each.size: 1 if counts else each.size for each in group}
            per_s = float(np.median([each.per_s * amount[each.size] for each in group]))
            burst = max((each.burst * amount[each.size] for each in group if each.throttled), default=0.0)
            # The step of the smallest requests: of larger ones too few pass in a step.
            step_s = next((each.step_s for each in group if each.step_s), 0.0)
            limits.append(
                Limit(
                    name=f"throttle of {name}",
                    each="server",
                    operations=("read",),
                    per_s=per_s,
                    burst=round(burst),
                    step_ns=round(1e9 * step_s),
                    counts_requests=counts,
                    request_bytes=largest.size // several if counts and several > 1 else 0,
                )
            )
    return tuple(limits)


# ------------------------------------------------------------------------------------------------------------ the model

LEAST_UNCERTAINTY, MOST_UNCERTAINTY = 0.01, 0.5  # Bounds of the uncertainty of all times of the model, as a share
UNCACHED = 0.8
"""If all cached reads take this share of the time of cold ones, or more, the file system has no page cache."""

QUANTILES = 64  # Number of quantiles that describe the jitter
DECIDING_BYTES = 1 << 20
"""Largest write that decides whether writes end in the page cache. Larger ones fill it, and become slower then."""


def fit_model(
    measured: Sequence[Measured],
    limits: Sequence[Limit],
    cache: PageCache | None,
    *,
    least_uncertainty: float = 0.0,
    **named: Any,
) -> StorageModel:
    """The storage model of these measurements of a file system.

    limits: of a throttle, if there is one; the model then has the times of single reads only.
    cache: what the system says of its page cache; None if pages could not be dropped before cold reads. Without it, or
    if cached reads are as slow as cold ones, the model has no page cache.
    least_uncertainty: lower bound of the model's uncertainty, as a share. named: its `name` and `about`."""
    cold = _of(measured, "read", "cold")
    cached, alone = (_alone(_of(measured, "read", state)) for state in ("cached", "cold"))
    writes, synced = _alone(_of(measured, "write")), _alone(_of(measured, "sync"))
    operations = {call: _table(found) for call in ("open", "close", "stat", "rename") if (found := _of(measured, call))}
    operations["read"] = _table(alone if limits else cold)
    # A write only fills the page cache if its bytes cost more in the sync after it than in the write.
    in_write = {each.size: each.time_ns for each in _alone(_of(measured, "write", "synced"))}
    in_sync = {each.size: each.time_ns for each in synced if each.size in in_write}
    deciding = [size for size in sorted(in_sync) if size <= DECIDING_BYTES]
    in_cache = False
    if len(deciding) > 1:
        sync_grows, write_grows = (times[deciding[-1]] - times[deciding[0]] for times in (in_sync, in_write))
        in_cache = sync_grows > write_grows
    if synced:
        base = min(each.time_ns for each in synced)
        operations["sync"] = RequestTime.affine(round(base, 1))
        if in_cache:  # the shortest sync is the time of a sync, and the rest of each that of its bytes
            rest = [max(round(each.time_ns - base, 1), 0.0) for each in synced]
            times = (tuple(np.maximum.accumulate(rest).tolist()),)
            operations["write"] = RequestTime(sizes=tuple(each.size for each in synced), time_ns=times)
    if writes and "write" not in operations:
        operations["write"] = _table(writes)
    cold_ns = {each.size: each.time_ns for each in alone}
    both = [each for each in cached if each.size in cold_ns]
    if both and all(each.time_ns >= UNCACHED * cold_ns[each.size] for each in both):
        cache = None
    if cache is not None:
        write, dirty = (_table(writes), cache.dirty) if in_cache else (None, 0)
        cache = msgspec.structs.replace(cache, hit=_table(cached), write=write, dirty=dirty)
    model = StorageModel(**named, operations=operations, limits=tuple(limits), cache=cache, jitter=_jitter(cold))
    model = with_largest_fetch(model, measured)
    return _uncertain(model, max(math.hypot(_uncertainty(cold), model_error(model, measured)), least_uncertainty))


def fit_objects(
    measured: Sequence[Measured],
    limits: Sequence[Limit],
    *,
    opens_ask: bool,
    least_uncertainty: float = 0.0,
    **named: Any,
) -> StorageModel:
    """As `fit_model`, of the requests to an object store. `opens_ask`: whether an open sends a HEAD.

    A request that was not measured takes no time there."""
    gets, heads = _of(measured, "GET"), _of(measured, "HEAD")
    found = {
        "read": _alone(gets) if limits else gets,
        "write": _of(measured, "PUT"),
        "open": heads if opens_ask else [],
        "stat": heads,
        "rename": _of(measured, "CopyObject and DELETE"),
        "list": _of(measured, "LIST"),
        "delete": _of(measured, "DELETE"),
    }
    operations = {operation: _table(times) for operation, times in found.items() if times}
    model = StorageModel(**named, operations=operations, limits=tuple(limits), objects=True, jitter=_jitter(gets))
    return _uncertain(model, max(_uncertainty(gets), least_uncertainty))


def _of(measured: Sequence[Measured], call: str, state: str = "") -> list[Measured]:
    return [each for each in measured if each.call == call and each.state == state]


def _alone(measured: Sequence[Measured]) -> list[Measured]:
    return [each for each in measured if each.in_flight == 1]


def _uncertain(model: StorageModel, share: float) -> StorageModel:
    return msgspec.structs.replace(model, uncertainty=round(min(share, MOST_UNCERTAINTY), 4))


def _table(measured: Sequence[Measured]) -> RequestTime:
    """Times by requests in flight and size. A size that was not measured with so many in flight grows with the size as
    it does with fewer. Raises: ValueError where none has one request in flight."""
    found = {(each.in_flight, each.size): each.time_ns for each in measured}
    sizes = sorted(size for count, size in found if count == 1)
    counts = sorted({count for count, _ in found})
    rows: list[tuple[float, ...]] = []
    for count in counts:
        row: list[float] = []
        for place, size in enumerate(sizes):
            time = found.get((count, size))
            if time is None:
                below = rows[-1]
                grown = below[place] / max(below[place - 1], 1.0)
                time = max(row[-1] * grown, row[-1]) if row else below[place]
            row.append(round(time, 1))
        rows.append(tuple(row))
    return RequestTime(in_flight=tuple(counts), sizes=tuple(sizes), time_ns=tuple(rows))


def _jitter(cold: Sequence[Measured]) -> Jitter | None:
    """Variation of single reads as factors with mean 1: the median over the sizes."""
    alone = [each for each in _alone(cold) if len(each.spread) >= QUANTILES]
    if not alone:
        return None
    places = (np.arange(QUANTILES) + 0.5) / QUANTILES
    factors = np.median([np.quantile(each.spread, places) for each in alone], axis=0)
    return Jitter(quantiles=tuple((factors / factors.mean()).round(4).tolist()))


def _uncertainty(cold: Sequence[Measured]) -> float:
    """Uncertainty of the times of a run, as a share: the median, over the sizes, of the spread between trials of single
    reads."""
    widths = [each.between_trials for each in _alone(cold) if each.trials > 1]
    return max(median(widths) if widths else MOST_UNCERTAINTY, LEAST_UNCERTAINTY)


# --------------------------------------------------------------------------------------------- held against simulations

FAR_BYTES = 1 << 40  # Size of the simulated file. For a read in its middle nothing was fetched ahead.
MOST_READS = 1 << 14  # Most reads of a simulated trial
CLEAR = 0.2  # Least gain, in the mean absolute logarithm of simulated / measured time, for which large reads are cut
ALIKE = 0.05
"""Sizes whose mean absolute logarithm is within this of the best one are equally good; the smallest is taken."""


def with_largest_fetch(model: StorageModel, measured: Sequence[Measured]) -> StorageModel:
    """The model with the size into which the cache cuts large cold reads, if their times show one: a read that waits
    for each of its parts takes longer than one with all of them in flight."""
    cache = model.cache
    large = [] if cache is None else [e for e in _alone(_of(measured, "read", "cold")) if e.size > cache.read_ahead]
    if cache is None or not cache.read_ahead or not large:
        return model

    def cut_at(size: int) -> StorageModel:
        return msgspec.structs.replace(model, cache=msgspec.structs.replace(cache, largest_fetch=size))

    def error(size: int) -> float:
        free = msgspec.structs.replace(cut_at(size), limits=())  # cold reads were measured with pauses for a throttle
        return _error(free, large, np.mean, lambda each: np.array([FAR_BYTES // 2]))

    sizes = [cache.read_ahead << power for power in range(16)]
    errors = {size: error(size) for size in sizes if any(each.size > size for each in large)}
    if min(errors.values()) + CLEAR > error(0):
        return model
    return cut_at(next(size for size, found in errors.items() if found < min(errors.values()) + ALIKE))


def model_error(model: StorageModel, measured: Sequence[Measured]) -> float:
    """Relative error of the model for sequential cold reads, which were left out of the fit: the median over their
    sizes; 0 without any."""
    left_out = _alone(_of(measured, "read", "sequential"))
    if not left_out:
        return 0.0

    def offsets(each: Measured) -> np.ndarray:
        return each.size * np.arange(min(each.requests // each.trials + 1, MOST_READS))

    return math.expm1(_error(model, left_out, np.median, offsets))


def _error(
    model: StorageModel,
    measured: Sequence[Measured],
    middle: Callable[[list[float]], Any],
    offsets: Callable[[Measured], np.ndarray],
) -> float:
    """The mean or median, over figures, of the absolute logarithm of simulated / measured time of reads."""
    simulated = [float(read_times_ns(model, offsets(each), each.size, FAR_BYTES).mean()) for each in measured]
    pairs = zip(simulated, measured, strict=True)
    return float(middle([abs(math.log(max(time, 1.0) / max(each.time_ns, 1.0))) for time, each in pairs]))
