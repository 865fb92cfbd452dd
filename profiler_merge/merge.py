"""Sources to one capture: Darshan log(s) or another tool's traces, and the framework's profiles where there are any.

Piece by piece of the ranks, on as many processes as there are workers, and in each rank by rank, or many small ranks at
once: the DXT segments, the rank's profile, the offset between their clocks, then lanes, steps and rows. No more than
one large rank's segments, or some MB of small ranks', and one profile are in memory of a process at a time. What the
pieces say of files is added up in their order, so that the capture does not depend on the workers.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dxt_replay.profiler_merge.capture_info import capture_info, source_files
from dxt_replay.profiler_merge.clocks.alignment import parse_method
from dxt_replay.profiler_merge.clocks.profile_ranks import map_profiles
from dxt_replay.profiler_merge.counted_times import TRACEABLE, counted_times, past_trace
from dxt_replay.profiler_merge.darshan.job_logs import JobLogs, numbered, open_job, process_ids
from dxt_replay.profiler_merge.darshan.rank_segments import RanksInterleavedError
from dxt_replay.profiler_merge.darshan.regions import DamagedLogError
from dxt_replay.profiler_merge.file_table import FileTable
from dxt_replay.profiler_merge.gaps import gap_warnings, refuse_rubbish
from dxt_replay.profiler_merge.given_files import GivenFiles, given_files
from dxt_replay.profiler_merge.hdf5.datasets import hdf5_facts
from dxt_replay.profiler_merge.job_pieces import DividedJob, divided, whole_job
from dxt_replay.profiler_merge.job_spans import JobSpans
from dxt_replay.profiler_merge.merge_options import DEFAULTS, MergeOptions
from dxt_replay.profiler_merge.process_rows import RowTotals
from dxt_replay.profiler_merge.profiles.reading import profile_files
from dxt_replay.profiler_merge.rank_merge import JobSetting, MergedRanks, RankMerge, let_go, opened
from dxt_replay.profiler_merge.rank_sources import left_out
from dxt_replay.profiler_merge.recognise import DARSHAN
from dxt_replay.profiler_merge.span_sources import MoreSpans, more_spans
from dxt_replay.traces.schema import COUNTERS, CaptureInfo, RankClock
from dxt_replay.traces.store.digests import digests_beside
from dxt_replay.traces.store.renumber import RenumberedParts, renumber
from dxt_replay.traces.store.writer import (
    begin_capture,
    check_capture_output,
    create_capture,
    discard_capture,
    publish_capture,
    write_capture_info,
    write_files,
    write_hdf5,
    write_spans,
)
from dxt_replay.traces.units import seconds_to_ns
from dxt_replay.traces.unseen import (
    all_unseen,
    coverage_json,
    mapped_files,
    nothing_recorded,
    unseen_warnings,
    watched,
    with_unseen,
)
from dxt_replay.traces.workers.workers import ALONE, Workers

_MOVED = ("posix_bytes_", "stdio_bytes_")
"""Counters of the bytes that the coverage is a share of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeResult:
    """What a merge made.

    `operations`: the traced ones; `reconstructed` are stored beside them. `counted`: what Darshan's counters say of
    each interface, as {"POSIX": {"reads": ..., "writes": ..., "bytes_read": ..., "bytes_written": ...}}.
    """

    capture: Path
    info: CaptureInfo
    operations: int
    reconstructed: int
    files: int
    spans: int
    counted: Mapping[str, Mapping[str, int]]

    def as_json(self) -> dict[str, Any]:
        """The object that `dxt-replay merge --json` prints."""
        return {
            "capture": str(self.capture),
            "recorded_by": None if nothing_recorded(self.info.coverage.unseen) else self.info.sources[0].kind,
            "ranks": len(self.info.ranks),
            "operations": {"traced": self.operations, "reconstructed": self.reconstructed},
            "files": self.files,
            "spans": self.spans,
            "lanes": self.info.lanes,
            "counted": {name: dict(totals) for name, totals in self.counted.items()},
            "coverage": coverage_json(self.info.coverage),
            "clock": [
                {
                    "rank": clock.rank,
                    "worker": clock.worker,
                    "method": clock.method,
                    "offset_ns": clock.offset_ns,
                    "residual_ns": clock.residual_ns,
                    "interval_ns": list(clock.interval_ns),
                }
                for clock in self.info.clock
            ],
            "rebuilt": dict(self.info.made_by["rebuilt"]),
            "extended": dict(self.info.made_by.get("extended", {})),
            "warnings": list(self.info.warnings),
        }


def merge(
    logs: Sequence[Path],
    profiles: Sequence[Path],
    output: Path,
    options: MergeOptions = DEFAULTS,
    workers: Workers = ALONE,
) -> MergeResult:
    """Write the capture `output` from the logs or traces of one job and the profiles of its ranks, or from these alone.

    workers: who merges the ranks of Darshan logs; the capture does not depend on it.
    Raises: LogError, ProfileError, AlignmentError for sources that cannot be used; TargetError for `output`.
    """
    given = given_files(logs, profiles)
    method = parse_method(options.align)
    check_capture_output(output, force=options.force)
    if given.tool == DARSHAN:
        job = open_job(given.operations, skip_damaged=options.skip_damaged)
        write = partial(_merge_logs, job, given, options, method, workers)
    elif given.tool is None:
        from dxt_replay.profiler_merge.profile_merge import merge_profiles

        write = partial(merge_profiles, given, options)
    else:
        from dxt_replay.profiler_merge.trace_merge import READERS, merge_trace  # what a merge of logs need not wait for

        traced = READERS[given.tool](given.operations, options.exclude, options.include)
        write = partial(merge_trace, traced, given, options, method)
    working = begin_capture(output, force=options.force)
    try:
        made = write(working)
        publish_capture(working, output, force=options.force)
    except BaseException:
        discard_capture(working)
        raise
    info, files, spans = made
    reconstructed = int(info.made_by["operations_reconstructed"])
    return MergeResult(
        capture=output,
        info=info,
        operations=int(info.made_by["operations_stored"]) - reconstructed,
        reconstructed=reconstructed,
        files=files.num_rows,
        spans=spans,
        counted=_counted(files, info.made_by.get("counted_times", {})),
    )


def _merge_logs(
    job: JobLogs, given: GivenFiles, options: MergeOptions, method: str | float, workers: Workers, working: Path
) -> tuple[CaptureInfo, pa.Table, int]:
    def attempt(*, gather: bool, divide: bool) -> tuple[CaptureInfo, pa.Table, int]:
        return _merge_once(job, given, working, options, method, workers, gather=gather, divide=divide)

    try:
        try:
            return attempt(gather=False, divide=True)
        except DividedError:
            create_capture(working)
            return attempt(gather=False, divide=False)
    except RanksInterleavedError:
        create_capture(working)
        return attempt(gather=True, divide=False)
    finally:
        let_go()


class DividedError(Exception):
    """A piece of a divided job cannot be merged apart: its streams are not where they seemed, or the log is damaged."""


def _merge_once(
    job: JobLogs,
    given: GivenFiles,
    working: Path,
    options: MergeOptions,
    method: str | float,
    workers: Workers,
    *,
    gather: bool,
    divide: bool,
) -> tuple[CaptureInfo, pa.Table, int]:
    added_ns = seconds_to_ns(method) if isinstance(method, float) else 0
    ranks = map_profiles(
        profile_files(given.profiles), job, gather=gather, offset_ns=added_ns, skip_damaged=options.skip_damaged
    )
    exports = () if options.keep_profiler_files else ranks.exports
    by_rank = ranks.by_rank
    if ranks.numbers:
        job, new = numbered(job, ranks.numbers)
        by_rank = {new[rank]: files for rank, files in by_rank.items()}
    more = more_spans(given.spans, process_ids(job) if given.spans else ())
    merger = _Merger(job, by_rank, more, working, options, method, gather=gather, exports=frozenset(exports))
    return merger.run([*ranks.warnings, *more.warnings], workers, divide=divide)


class _Merger:
    """One pass over the ranks of a job. `method`: as `clocks.parse_method` returns it."""

    def __init__(
        self,
        job: JobLogs,
        profiles: Mapping[int, tuple[Path, ...]],
        more: MoreSpans,
        output: Path,
        options: MergeOptions,
        method: str | float,
        *,
        gather: bool,
        exports: frozenset[str],
    ) -> None:
        self._job, self._profiles, self._output, self._options = job, profiles, output, options
        self._more = more
        dropped = left_out(job, options.exclude, exports)
        self._warnings = dropped.warnings()
        self._files = FileTable([process.log for process in job.processes], dropped.records)
        self._setting = JobSetting(
            token=secrets.token_hex(8),
            working=output,
            job_start_ns=job.start_ns,
            ranks=job.nprocs,
            method=method,
            left_out=dropped.records,
            reconstruct=options.reconstruct,
            limit=options.reconstruct_limit,
            gather=gather,
            skip_damaged=options.skip_damaged,
            files=self._files.known(),
            rank_segments=options.rank_segments,
            stretch_rows=options.stretch_rows,
        )
        self._spans = JobSpans(
            profiles=profiles,
            start_ns=job.start_ns,
            ranks=job.nprocs,
            skip_damaged=options.skip_damaged,
            extend=options.extend,
            more=more,
        )
        self._digest = digests_beside([path for path, _ in source_files(job, profiles, more.files)])
        self._made = RowTotals()
        self._clock: list[RankClock] = []
        self._ranks: set[int] = set()
        self._stored = 0
        self._renumbered: list[RenumberedParts] = []

    def run(self, warnings: Sequence[str], workers: Workers, *, divide: bool) -> tuple[CaptureInfo, pa.Table, int]:
        """Write everything. Returns the contents of capture.json, the files table, and the number of spans.

        divide: whether the job may be merged in pieces. Raises: DividedError where it may not.
        """
        self._warnings += [*self._job.warnings, *warnings]
        own = self._spans.own_ranks
        known = opened(self._setting).known
        job = divided(self._job, known, own, workers.piece_operations) if divide else whole_job(self._job, own)
        if len(job.pieces) > 1:
            self._setting = replace(self._setting, traced=known.traced_segments())
            with _undivided_again():
                self._merge_pieces(job, workers)
        else:
            self._merge_pieces(job, ALONE)
        return self._finish()

    def _merge_pieces(self, job: DividedJob, workers: Workers) -> None:
        """The rows of all ranks. Those with spans of their own are merged here: these follow from each other."""
        for own, pieces in groupby(job.pieces, key=lambda piece: piece.own):
            spans = self._spans if own else self._spans.shared()
            work = RankMerge(setting=self._setting, spans=spans)
            with (ALONE if own else workers).results(work, list(pieces), operations=job.operations) as results:
                for found in results:
                    self._add(found)
        with workers.results(
            partial(renumber, self._output), self._renumbered, operations=job.operations, named=_named
        ) as done:
            for _ in done:
                pass

    def _add(self, found: MergedRanks) -> None:
        """What became of the next ranks."""
        changed = self._files.add(found.files)
        if changed:
            self._renumbered.append(RenumberedParts(parts=found.parts, numbers=changed))
        self._made.add(found.made)
        self._clock += found.clock
        self._warnings += found.warnings
        self._ranks |= found.ranks
        self._stored += found.stored
        for process in self._job.processes:
            for text in found.log_warnings.get(str(process.log.path), ()):
                process.log.add_warning(text)

    def _counted_times(self) -> Mapping[str, Any]:
        """What the counters say of the I/O that no trace holds."""
        logs = [(process.log, process.rank) for process in self._job.processes]
        traced = self._stored > self._made.reconstructed
        return counted_times(logs, self._files.excluded, but=TRACEABLE if traced else ())

    def _finish(self) -> tuple[CaptureInfo, pa.Table, int]:
        """What follows from all ranks together."""
        self._warnings += self._spans.add_rest()
        self._warnings += self._spans.extension_warnings()
        logs = [process.log for process in self._job.processes]
        self._made.rebuilt.finish({str(log.path): log.names for log in logs})
        table, coverage = self._files.finish([process.rank for process in self._job.processes])
        if self._options.skip_damaged:
            refuse_rubbish(self._job, coverage, table)
        self._warnings += self._files.offset_warnings(table["path"].to_pylist())
        self._warnings += self._files.streams.warnings()
        of_interfaces = self._counted_times()
        unseen = all_unseen(watched([log.path for log in logs]), mapped_files(table))
        unseen += past_trace(of_interfaces, posix_bytes=_moved(table, "posix_bytes_"))
        counted = _moved(table, *_MOVED)
        self._warnings += unseen_warnings(unseen)
        self._warnings += gap_warnings(
            self._job, self._made, coverage, unseen, traced=self._stored - self._made.reconstructed
        )
        coverage = with_unseen(coverage, counted, unseen)
        hdf5 = hdf5_facts(logs, table, inspect=self._options.inspect, maps=self._options.inspect_maps)
        self._warnings += hdf5.warnings
        self._warnings[:0] = self._job.log_warnings()
        spans = self._spans.table()
        info = capture_info(
            self._job,
            self._profiles,
            self._more.files,
            with_operations=self._ranks,
            rows=self._made,
            stored=self._stored,
            clock=self._clock,
            coverage=coverage,
            warnings=self._warnings,
            extended=self._spans.extended_json(),
            counted=of_interfaces,
            options=self._options.repeated(),
            digest=self._digest,
        )
        write_files(self._output, table)
        write_spans(self._output, spans)
        write_hdf5(self._output, hdf5.table)
        write_capture_info(self._output, info)
        return info, table, spans.num_rows


@contextmanager
def _undivided_again() -> Iterator[None]:
    """Where a piece shows that a job cannot be divided. A damaged log is described by who reads it from its start."""
    try:
        yield
    except (RanksInterleavedError, DamagedLogError) as error:
        raise DividedError from error


def _named(parts: RenumberedParts) -> str:
    return parts.parts[0]


def _moved(files: pa.Table, *prefixes: str) -> int:
    """Sum of the counters whose names begin so, over all files."""
    return sum(pc.sum(files[name]).as_py() or 0 for name in COUNTERS if name.startswith(prefixes))


def _counted(files: pa.Table, counted_times: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """Reads, writes and bytes in the counters of each interface that was used, over all files.

    counted_times: has those of interfaces that the files table lacks.
    """
    amounts = ("reads", "writes", "bytes_read", "bytes_written")
    totals = {
        name: {what: pc.sum(files[f"{prefix}_{what}"]).as_py() or 0 for what in amounts}
        for name, prefix in (("POSIX", "posix"), ("STDIO", "stdio"), ("MPIIO", "mpiio"), ("HDF5", "h5d"))
    }
    totals |= {
        name: {what: each[what] for what in amounts}
        for name, each in counted_times.items()
        if name not in totals and each["reads"] is not None
    }
    return {name: counts for name, counts in totals.items() if any(counts.values())}
