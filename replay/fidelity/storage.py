"""Compares the speed of the storage in a replay with the recorded run. Pure; does not judge the replay."""

from __future__ import annotations

from dataclasses import dataclass

FASTER, SLOWER, SAME, UNKNOWN = "faster", "slower", "same", "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One quantity of both sides. `ratio`: replay / source, None where the source's value is 0."""

    source: float
    replay: float
    ratio: float | None

    @classmethod
    def between(cls, source: float, replay: float) -> Change:
        """The change between two values, each 0 or more."""
        return cls(source=source, replay=replay, ratio=replay / source if source > 0 else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """The performance of the storage with the same operations.

    `verdict`: faster, slower, same (within the threshold) or unknown (no I/O time recorded), by `io_time_s`.
    `io_time_s`: time in reads and writes per rank, parallel threads added.
    `latency_p50_us`, `latency_p99_us`: duration of one read or write.
    `bandwidth_mib_s`: while any rank had an operation in flight.
    `elapsed_s`: first to last event; None where the pace decides it and not the storage.
    `resident_before_pct`: data in the page cache before the replay; for the recorded run it is not known.
    `from_page_cache`: whether reads of the replay may have come from it.
    """

    verdict: str
    io_time_s: Change
    latency_p50_us: Change | None
    latency_p99_us: Change | None
    bandwidth_mib_s: Change | None
    elapsed_s: Change | None
    resident_before_pct: float | None
    from_page_cache: bool = False


def storage_verdict(io_time_s: Change, threshold_pct: float) -> str:
    """Faster, slower or same, by the logarithm: twice as long is as far from the same as half as long."""
    if io_time_s.ratio is None or io_time_s.replay <= 0:
        return UNKNOWN
    limit = 1 + threshold_pct / 100
    if io_time_s.ratio > limit:
        return SLOWER
    return FASTER if io_time_s.ratio < 1 / limit else SAME
