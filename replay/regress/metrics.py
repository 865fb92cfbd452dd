"""One run, measured from its replay capture and its totals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from dxt_replay.replay.plan.pacing import Pace
from dxt_replay.replay.run.result import RunResult, Tally
from dxt_replay.traces.measures.distribution import DistributionCollector
from dxt_replay.traces.measures.intervals import StreamingUnion
from dxt_replay.traces.measures.io_totals import IoCollector
from dxt_replay.traces.measures.operation_rows import operation_rows
from dxt_replay.traces.measures.span_times import spans_by_rank
from dxt_replay.traces.plain import plain
from dxt_replay.traces.records import disturbed, percentiles_us
from dxt_replay.traces.schema import READ, WRITE
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.units import NS_PER_US, ns_to_seconds

METRICS: Mapping[str, str] = {
    "elapsed_s": "elapsed time",
    "total_s": "whole replay",
    "io_time_s": "I/O time per rank (union)",
    "metadata_time_s": "metadata time per rank (union)",
    "input_wait_per_step_s": "input wait per step",
    "latency_mean_us": "latency, mean",
    "response_mean_us": "response, mean",
    "read_latency_p50_us": "read latency p50",
    "read_latency_p99_us": "read latency p99",
    "write_latency_p50_us": "write latency p50",
    "write_latency_p99_us": "write latency p99",
    "bandwidth_mib_s": "bandwidth while I/O is in flight",
}
"""Labels by name, in the order in which they are shown. The unit is in the name (`traces.text.unit_of`).

`elapsed_s`: under the pace `steps` the training, from the begin of the first step to the end of the last. Otherwise the
whole replay, from its start to the end of its last operation. `total_s` is the whole replay under the pace `steps`."""

MORE_IS_BETTER = frozenset({"bandwidth_mib_s"})

# What a record may hold.
Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
Seconds = Annotated[float, msgspec.Meta(ge=0, lt=1e9)]
Value = Annotated[float, msgspec.Meta(ge=1e-15, le=1e18)]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """One run; docs/regress-records.md has its fields. `pair`: from 1, 0 for a run that does not count. `capture`:
    where it was kept. `whole_s`: until its last operation ended. `keeps_pages`: as of `CacheState`. `start_ns`:
    CLOCK_REALTIME."""

    side: str
    pair: Count
    metrics: Mapping[str, Value]
    operations: Count
    failed: Count
    short: Count
    left_out: Count
    bytes_read: Count
    bytes_written: Count
    whole_s: Seconds
    starved_s: Seconds
    overhead_pct: float | None
    lag_us: Mapping[str, float] | None
    jitter_us: Mapping[str, float] | None
    cache_policy: str
    resident_pct: float | None
    stopped: bool
    warnings: tuple[str, ...] = ()
    failed_closes: Count = 0
    keeps_pages: bool = False
    start_ns: Count = 0
    stood_still_s: Seconds = 0.0
    capture: Path | None = None

    @property
    def disturbed(self) -> str | None:
        """A sentence where the machine stood still for too much of the run to judge it; else None."""
        return disturbed(self.stood_still_s, self.whole_s)

    @property
    def counts(self) -> bool:
        return bool(self.pair) and not self.stopped and self.disturbed is None

    def as_json(self) -> dict[str, Any]:
        found = plain(self)
        del found["bytes_read"], found["bytes_written"], found["cache_policy"], found["resident_pct"]
        del found["keeps_pages"], found["whole_s"]
        found["warmup"] = self.pair == 0
        found["bytes"] = {"read": self.bytes_read, "written": self.bytes_written}
        found["cache"] = {"policy": self.cache_policy, "resident_before_pct": self.resident_pct}
        return dict(found)


def measure_run(replay: Capture, result: RunResult, *, side: str, pair: int, kept: bool) -> MeasuredRun:
    """One pass over a replay. `kept`: whether its capture stays. Raises: CaptureError when a part is damaged."""
    tally = result.tally
    return MeasuredRun(
        side=side,
        pair=pair,
        capture=result.capture if kept else None,
        metrics=measure(replay, tally, training=result.pacing.pace.follows_training),
        operations=tally.operations,
        failed=tally.failed,
        failed_closes=sum(tally.close_errors.values()),
        short=tally.short,
        left_out=tally.left_out,
        bytes_read=tally.bytes_read,
        bytes_written=tally.bytes_written,
        whole_s=ns_to_seconds(tally.last_end_ns),
        starved_s=ns_to_seconds(tally.starved_ns) / max(result.lanes, 1),
        overhead_pct=result.overhead_pct,
        lag_us=percentiles_us(tally.lag_ns),
        jitter_us=result.jitter_us,
        cache_policy="cold" if result.cold else "as found",
        resident_pct=result.resident_before_pct,
        stopped=result.stopped,
        warnings=result.conditions,
        keeps_pages=tally.keeps_pages,
        start_ns=replay.info.job.start_ns,
        stood_still_s=result.stood_still_s,
    )


def measure(replay: Capture, tally: Tally, *, training: bool) -> dict[str, float]:
    """The metrics of one run. `training`: whether the elapsed time is that of its steps. A metric
    of something that the run did not do, such as writing, is left out. Raises: CaptureError when a part is damaged."""
    io, reads, writes = IoCollector(replay.files.num_rows, {}), DistributionCollector(), DistributionCollector()
    metadata: dict[int, StreamingUnion] = {}
    for rows in operation_rows(replay, without=("lane", "step")):
        data, other = rows.where(rows.data), rows.where(~rows.data)
        io.add(data)
        reads.add(data.duration_ns[data.op == READ])
        writes.add(data.duration_ns[data.op == WRITE])
        metadata.setdefault(rows.rank, StreamingUnion()).add(other.start_ns, other.end_ns)
    window, totals, ranks = training_window(replay) if training else None, io.totals(), max(len(replay.ranks), 1)
    whole_s = ns_to_seconds(max(tally.last_end_ns, window[1] if window else 0))
    metrics = {
        "elapsed_s": whole_s if window is None else ns_to_seconds(window[1] - window[0]),
        "io_time_s": ns_to_seconds(totals.total("union_ns")) / ranks,
        "metadata_time_s": ns_to_seconds(sum(union.length_ns for union in metadata.values())) / ranks,
        "bandwidth_mib_s": totals.aggregate_mib_s or 0.0,
    }
    if window is not None:
        steps = sum(len(step) for _, step, _, _ in spans_by_rank(replay.spans, "step"))
        waits = [int((ends - starts).sum()) for _, _, starts, ends in spans_by_rank(replay.spans, "input_wait")]
        metrics |= {"total_s": whole_s, "input_wait_per_step_s": ns_to_seconds(sum(waits)) / steps}
    if tally.operations:
        metrics["latency_mean_us"] = tally.latency_ns.mean / NS_PER_US
        metrics["response_mean_us"] = tally.response_ns.mean / NS_PER_US
    for name, latency_ns in (("read", reads.distribution()), ("write", writes.distribution())):
        for percent in (50, 99) if latency_ns.count else ():
            metrics[f"{name}_latency_p{percent}_us"] = latency_ns.quantile(percent / 100) / NS_PER_US
    return {name: metrics[name] for name in METRICS if metrics.get(name, 0.0) > 0}


def primary_metric(source: Capture, pace: Pace) -> str:
    """The metric that decides. `timed` keeps the recorded times, so that only what operations take can show a slowdown:
    the mean latency. Else the elapsed time, and where most of the bytes move before the first step (a data set that is
    loaded whole), which training cannot show, the whole replay."""
    if pace is Pace.TIMED:
        return "latency_mean_us"
    window = training_window(source) if pace.follows_training else None
    if window is None:
        return "elapsed_s"
    before = moved = 0
    for rows in operation_rows(source, without=("lane", "step")):
        data = rows.where(rows.data)
        moved += int(data.length.sum())
        before += int(data.length[data.start_ns < window[0]].sum())
    return "total_s" if 2 * before > moved else "elapsed_s"


def training_window(replay: Capture) -> tuple[int, int] | None:
    """First step's begin and last one's end over all ranks, ns; None without steps."""
    steps = [(int(starts.min()), int(ends.max())) for _, _, starts, ends in spans_by_rank(replay.spans, "step")]
    return (min(begin for begin, _ in steps), max(end for _, end in steps)) if steps else None
