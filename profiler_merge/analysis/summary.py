"""The totals of a capture: `summarise(capture)` -> `Summary`, in one pass over the op stream.

Traced reads and writes are counted, at one layer per file (`traces.layers`). Rows reconstructed from counters are
counted separately, because their times and sizes are estimates.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from dxt_replay.profiler_merge.analysis.benchmark_figures import benchmark_figures
from dxt_replay.profiler_merge.analysis.collect import Begin, Collector, at_one_layer, collect
from dxt_replay.profiler_merge.analysis.interfaces import (
    InterfaceCollector,
    InterfaceTotals,
    counts_alone,
    counts_of,
    posix_pattern,
)
from dxt_replay.profiler_merge.analysis.queries import GroupTotals, group_totals
from dxt_replay.profiler_merge.analysis.steady_loop import SteadyLoop, steady_loop, waits_are_real
from dxt_replay.profiler_merge.sources import RECORDINGS
from dxt_replay.traces.layers import FileLayers
from dxt_replay.traces.measures.access_pattern import AccessPattern
from dxt_replay.traces.measures.distribution import Spread
from dxt_replay.traces.measures.intervals import Intervals
from dxt_replay.traces.measures.io_totals import IoCollector, IoTotals
from dxt_replay.traces.measures.log_waits import longest_log_wait_ns, with_log_waits
from dxt_replay.traces.measures.operation_rows import OperationRows
from dxt_replay.traces.measures.span_times import (
    evaluations_by_rank,
    extended_steps,
    spans_by_rank,
    union_by_rank,
    whole_steps,
)
from dxt_replay.traces.plain import Result
from dxt_replay.traces.records import benchmark_run, generated, is_replay
from dxt_replay.traces.schema import BETWEEN_STEPS, OPS, RECONSTRUCTED, SPAN_KINDS, WRITE, CaptureInfo, Unseen, codes
from dxt_replay.traces.storage_limit import most_by_processors
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.units import NS_PER_S, format_duration, ns_to_seconds
from dxt_replay.traces.unseen import LEAST_COVERAGE, nothing_recorded, unseen_of, why_not_judged
from dxt_replay.traces.workers import ALONE, Workers

if TYPE_CHECKING:
    from dxt_replay.profiler_merge.analysis.loop import Overlap

_STEP, _WAIT = SPAN_KINDS.index("step"), SPAN_KINDS.index("input_wait")
_OPEN_OR_CLOSE = (OPS.index("open"), OPS.index("close"))


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """Facts about the job.

    run_time_s: from Darshan: whole seconds in logs before 3.4, None if the log has no end.
    exe: the command line.
    """

    nprocs: int
    run_time_s: float | None
    exe: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationCounts:
    """Rows by kind; `other`: open, close, stat, sync and seek."""

    read: int
    write: int
    other: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteCounts:
    """Bytes transferred."""

    read: int
    written: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconstructed:
    """Rows that come from counters instead of the trace; no other total of a summary includes them.

    `pct`: their share of the reads and writes or of the bytes, whichever is larger; None without any.
    """

    read: int
    write: int
    other: int
    bytes_read: int
    bytes_written: int
    pct: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IoTime:
    """Time in reads and writes, over all ranks of the job.

    The union of a rank never exceeds the run time; its sum may if operations are in flight together."""

    union_per_rank_mean: float
    union_per_rank_max: float
    sum_per_rank_mean: float
    sum_per_rank_max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CoverageShare:
    """Traced / counted; None where it is not known.

    traceable: (bytes, operations) of what DXT can trace: all but the C library's streams.
    unseen: I/O that a recording saw and no trace holds, by name.
    """

    bytes: float | None
    operations: float | None
    traceable: tuple[float | None, float | None]
    unseen: tuple[Unseen, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Training steps.

    count: of the rank with the most.
    mean_s: over the steps of all ranks, without evaluations in them; None without any.
    extended: number of steps inferred from the profiled ones, of the rank with the most.
    """

    count: int
    mean_s: float | None
    extended: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """Compute and input wait of the ranks with spans (`profiled_ranks`); None without such ranks.

    `io_hidden_pct`: share of the I/O time (union) that lies inside compute, over the ranks with compute.
    """

    busy_s_per_rank_mean: float | None
    io_hidden_pct: float | None
    input_wait_s_per_rank_mean: float | None
    profiled_ranks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary(Result):
    """All numbers of `dxt-replay summary`; field names are the JSON keys.

    `in_flight_s`: time in which at least one operation of any rank was in flight.
    `other_io_s`: time in opens, closes and similar, and in operations rebuilt from counters, of the rank with most.
    `bandwidth_per_op_mib_s`: length / duration of each operation that moved bytes.
    `unmeasured_operations`: moved bytes in a recorded duration of 0, so they have no bandwidth.
    `aggregate_bandwidth_mib_s`: bytes / `in_flight_s`.
    `access_pattern_source`: counters (Darshan's) or operations.
    `loop`: for a capture with training steps, unless it is a replay at recorded times.
    `probably_mapped`: files that were mapped, or opened and never read, so that their reads are in no trace and no
    counter.
    `recorded_by`: recorder of the operations: darshan, strace, dftracer; capture if it is no longer known; None if
    nothing recorded them. The figures of I/O are then null in the JSON object.
    `counted_times`: Darshan's counters of the I/O that no trace holds, by interface; empty for a part.
    `not_judged`: why the cost of storage is not judged, a clause; None if the trace holds enough.
    `groups`: the rows of the breakdown `by`, if one was requested.
    `generated`: as of `traces.records.generated`; not in the JSON.
    """

    job: JobFacts
    recorded_by: str | None
    operations: OperationCounts
    bytes: ByteCounts
    files: int
    reconstructed: Reconstructed
    io_time_s: IoTime
    in_flight_s: float
    other_io_s: float
    transfer_size_bytes: Spread
    bandwidth_per_op_mib_s: Spread
    unmeasured_operations: int
    aggregate_bandwidth_mib_s: float | None
    sequential_pct: float | None
    consecutive_pct: float | None
    access_pattern_source: str
    coverage: CoverageShare
    steps: Steps
    compute: Compute
    interfaces: Mapping[str, InterfaceTotals]
    partial: bool
    probably_mapped: int
    not_judged: str | None
    counted_times: Mapping[str, Mapping[str, Any]]
    warnings: tuple[str, ...]
    loop: SteadyLoop | None = None
    groups: tuple[GroupTotals, ...] | None = None
    by: str | None = None
    generated: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Plain dictionaries, lists and numbers; without `groups` and `by` if no breakdown was requested."""
        result = dataclasses.asdict(self)
        del result["generated"]
        if self.groups is None:
            del result["groups"], result["by"]
        return _without_io(result) if nothing_recorded(self.coverage.unseen) else result


def _without_io(summary: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON object of a summary with null for figures of I/O: without a recording of I/O, 0 would be a claim."""
    loop = summary["loop"] or {}
    unknown = {name: None for name in loop if name.startswith(("io_", "storage_"))}
    return {
        **summary,
        **{name: dict.fromkeys(summary[name]) for name in ("operations", "bytes", "io_time_s")},
        **dict.fromkeys(("files", "in_flight_s", "other_io_s")),
        "loop": {**loop, **unknown} if loop else None,
    }


def summarise(capture: Capture, *, by: str | None = None, workers: Workers = ALONE) -> Summary:
    """Summary of a capture or of a part of one.

    `by`: one of `tables.GROUPINGS`.
    """
    begins: list[Begin] = [partial(SummaryCollector, by=by)]
    if _STEP in codes(capture.spans, "kind"):
        from dxt_replay.profiler_merge.analysis.loop import OverlapCollector

        begins.append(OverlapCollector)
    summary, *loop = collect(capture, begins, workers=workers)
    return with_loop(summary.summary(), loop[0].overlap(), capture) if loop else summary.summary()


def with_loop(summary: Summary, overlap: Overlap, capture: Capture) -> Summary:
    """The summary with its training loop, if the capture shows what the loop waited for."""
    if not waits_are_real(capture.info):
        return summary
    recorded = capture.info.made_by.get("command") == "merge"
    complete = not recorded or (capture.info.coverage.bytes or 0.0) >= LEAST_COVERAGE
    in_flight_s = summary.in_flight_s if complete else math.inf
    waits = capture.spans.filter(codes(capture.spans, "kind") == _WAIT)["name"].unique().to_pylist()
    hides = waits == [BETWEEN_STEPS]
    in_logs_ns = longest_log_wait_ns(capture.info, capture.spans)
    spans = with_log_waits(capture.info, capture.spans)
    loop = steady_loop(overlap, in_flight_s, spans, in_logs_ns, summary.other_io_s, hides_fetch=hides)
    benchmark = benchmark_run(capture.info)
    if loop is not None and benchmark is not None:
        figures = benchmark_figures(overlap.steps, benchmark)
        loop = dataclasses.replace(loop, benchmark_utilisation_pct=None if figures is None else figures.utilisation_pct)
    return dataclasses.replace(summary, loop=loop)


def _why_not_judged(info: CaptureInfo, unseen: Sequence[Unseen]) -> str | None:
    """As `why_not_judged`, with the most that storage can have cost where marks alone were recorded."""
    why = why_not_judged(info.coverage, unseen)
    marked = info.made_by.get("marks", [])
    return why if why is None or not marked else f"{why}. {most_by_processors(marked)}"


class SummaryCollector(Collector):
    """Collects all totals of a summary in one pass over the op stream."""

    STAY = ("_capture", "_layers", "_spans", "_compute", "_by")

    def __init__(self, capture: Capture, layers: FileLayers, *, by: str | None = None) -> None:
        files = capture.files.num_rows
        self._capture = capture
        self._layers = layers
        self._spans = with_log_waits(capture.info, capture.spans)
        self._compute = union_by_rank(self._spans, "compute")
        self._io = IoCollector(files, self._compute)
        self._pattern = AccessPattern(files)
        self._interfaces = InterfaceCollector()
        self._by = by
        self._other = 0
        self._reconstructed = np.zeros(5, dtype=np.int64)
        self._other_ns: Counter[int] = Counter()

    def add(self, rows: OperationRows) -> None:
        """Add rows of the capture."""
        self._interfaces.add(rows.where(rows.data))
        rows = at_one_layer(rows, self._layers)
        traced, data = rows.origin != RECONSTRUCTED, rows.data
        moved = rows.where(traced & data)
        self._io.add(moved)
        if len(moved) == len(rows):
            self._pattern.add(rows)
            return
        self._other += int((traced & ~data).sum())
        for rank in rows.where(~(traced & data)).each_rank():
            self._other_ns[rank.rank] += int(rank.duration_ns.sum())
        self._pattern.add(rows.where((traced & data) | np.isin(rows.op, _OPEN_OR_CLOSE)))
        written = ~traced & (rows.op == WRITE)
        read = ~traced & data & ~written
        counts = (read.sum(), written.sum(), (~traced & ~data).sum())
        self._reconstructed += [*counts, rows.length[read].sum(), rows.length[written].sum()]

    def summary(self) -> Summary:
        """Totals of all that was added."""
        info, io = self._capture.info, self._io.totals()
        counters, unseen = self._counters(), self._unseen()
        by_interface = {} if counters is None else counts_of(counters)
        counted = info.made_by.get("counted_times", {}) if self._capture.whole is self._capture else {}
        # Darshan's counters include every open and close, and operations beyond the trace's memory.
        by_counters = None if counters is None else posix_pattern(counters)
        pattern = by_counters or self._pattern.counts
        operations = OperationCounts(read=io.total("reads"), write=io.total("writes"), other=self._other)
        moved = ByteCounts(read=io.total("bytes_read"), written=io.total("bytes_written"))
        kinds = [source.kind for source in info.sources]  # also of a capture that was made from another one
        recorder = next((kind for kind in kinds if kind in RECORDINGS), kinds[0] if kinds else None)
        return Summary(
            job=JobFacts(nprocs=info.job.nprocs, run_time_s=info.job.run_time_s or None, exe=info.job.exe),
            recorded_by=None if nothing_recorded(unseen) else recorder,
            generated=generated(info),
            operations=operations,
            bytes=moved,
            files=int(io.files_used.sum()),
            reconstructed=_rebuilt(self._reconstructed.tolist(), operations, moved),
            io_time_s=_io_time(io, self._rank_count()),
            in_flight_s=ns_to_seconds(io.busy.length_ns),
            other_io_s=ns_to_seconds(max(self._other_ns.values(), default=0)),
            transfer_size_bytes=Spread.of(io.size_bytes),
            bandwidth_per_op_mib_s=Spread.of(io.bandwidth_mib_s),
            unmeasured_operations=io.unmeasured,
            aggregate_bandwidth_mib_s=io.aggregate_mib_s,
            sequential_pct=pattern.sequential_pct,
            consecutive_pct=pattern.consecutive_pct,
            access_pattern_source="counters" if by_counters else "operations",
            coverage=CoverageShare(
                bytes=info.coverage.bytes,
                operations=info.coverage.operations,
                traceable=info.coverage.traceable,
                unseen=unseen,
            ),
            steps=_steps(self._spans),
            compute=_compute(self._spans, self._compute, io),
            interfaces=self._interfaces.totals({**by_interface, **counts_alone(counted)}),
            partial=info.partial,
            probably_mapped=sum(each.kind == "mapped" for each in unseen),
            not_judged=_why_not_judged(info, unseen),
            counted_times=counted,
            warnings=(*info.warnings, *_warnings(info, io)),
            groups=None if self._by is None else group_totals(self._capture, self._by),
            by=self._by,
        )

    def _unseen(self) -> tuple[Unseen, ...]:
        """I/O on the files of the part that no trace holds; a replay has its source's counters, not its own."""
        if is_replay(self._capture.info):
            return ()
        files = self._capture.files
        others = set(files["path"].filter(pa.array(~self._capture.file_mask)).to_pylist())
        return tuple(each for each in unseen_of(self._capture.info, files) if each.name not in others)

    def _counters(self) -> pa.Table | None:
        """Darshan's counters if they cover exactly the rows of the capture or part; else None.

        Counters of a capture without a Darshan log were made from its rows, so they add nothing.
        """
        info = self._capture.info
        if is_replay(info) or not self._capture.takes_whole_files:
            return None
        if info.sources and not any(source.kind == "darshan" for source in info.sources):
            return None
        return self._capture.files.filter(pa.array(self._capture.file_mask))

    def _rank_count(self) -> int:
        ranks = self._capture.ranks
        whole = ranks == self._capture.whole.ranks
        return max(self._capture.info.job.nprocs, len(ranks)) if whole else len(ranks)


def _rebuilt(rebuilt: list[int], operations: OperationCounts, moved: ByteCounts) -> Reconstructed:
    names = ("read", "write", "other", "bytes_read", "bytes_written")
    found = dict(zip(names, rebuilt, strict=True))
    pairs = (
        (found["read"] + found["write"], operations.read + operations.write),
        (found["bytes_read"] + found["bytes_written"], moved.read + moved.written),
    )
    shares = [100 * ours / (ours + traced) for ours, traced in pairs if ours + traced]
    return Reconstructed(**found, pct=max(shares, default=None))


def _io_time(io: IoTotals, ranks: int) -> IoTime:
    unions, sums = [rank.union_ns for rank in io.ranks], [rank.sum_ns for rank in io.ranks]
    return IoTime(
        union_per_rank_mean=sum(unions) / max(ranks, 1) / NS_PER_S,
        union_per_rank_max=ns_to_seconds(max(unions, default=0)),
        sum_per_rank_mean=sum(sums) / max(ranks, 1) / NS_PER_S,
        sum_per_rank_max=ns_to_seconds(max(sums, default=0)),
    )


def _steps(spans: pa.Table) -> Steps:
    counts, total_ns, evaluated = [], 0, evaluations_by_rank(spans)
    for rank, _, starts, ends in spans_by_rank(whole_steps(spans), "step"):
        counts.append(len(starts))
        total_ns += int((ends - starts - evaluated.get(rank, Intervals()).covered_within(starts, ends)).sum())
    return Steps(
        count=max(counts, default=0),
        mean_s=ns_to_seconds(total_ns) / sum(counts) if counts else None,
        extended=extended_steps(spans)[0],
    )


def _compute(spans: pa.Table, computed: Mapping[int, Intervals], io: IoTotals) -> Compute:
    """Compute in the loops, or all compute of ranks without steps; waits of training, not those of evaluations."""
    ranks, evaluated = len(np.unique(spans["rank"].to_numpy())), evaluations_by_rank(spans)
    loops = {
        rank: Intervals(starts=starts[:1], ends=ends.max(keepdims=True))
        for rank, _, starts, ends in spans_by_rank(whole_steps(spans), "step")
    }
    busy = [each.minus(each.minus(loops[rank])) if rank in loops else each for rank, each in computed.items()]
    waits = [each.minus(evaluated.get(rank, Intervals())) for rank, each in union_by_rank(spans, "input_wait").items()]
    union_ns = sum(rank.union_ns for rank in io.ranks if rank.rank in computed)
    busy_s, waits_s = (
        ns_to_seconds(sum(each.length_ns for each in times)) / ranks if ranks else None for times in (busy, waits)
    )
    return Compute(
        busy_s_per_rank_mean=busy_s,
        io_hidden_pct=100 * io.total("hidden_ns") / union_ns if union_ns else None,
        input_wait_s_per_rank_mean=waits_s,
        profiled_ranks=ranks,
    )


def _warnings(info: CaptureInfo, io: IoTotals) -> list[str]:
    """Warnings that follow from the totals; the merge has warned of gaps in the trace."""
    found = []
    # Old logs give whole seconds, so an excess of a second is not a contradiction.
    late = [rank.rank for rank in io.ranks if ns_to_seconds(rank.union_ns) > info.job.run_time_s + 1]
    if late and info.job.run_time_s > 0:
        found.append(
            f"rank {late[0]} spent more time in I/O than the job ran: its clock or the log's run time is wrong"
        )
    if io.busy_excess_ns:
        excess = format_duration(io.busy_excess_ns)
        found.append(f"the bandwidth may be too low: the time in flight is too long by up to {excess}")
    return found
