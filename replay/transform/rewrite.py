"""Transforms a capture: reads its ranks one by one, changes them, schedules them together, and writes a capture."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dxt_replay.replay.causal.paced_ranks import steps_of
from dxt_replay.replay.plan.chosen_layers import LayerChoice, choose_layers
from dxt_replay.replay.plan.pacing import Pace, Pacing
from dxt_replay.replay.plan.survey import spans_by_rank
from dxt_replay.replay.transform.changes import Changes
from dxt_replay.replay.transform.loop_schedule import Scheduled, scheduled
from dxt_replay.replay.transform.new_spans import loop_spans, making_spans, spans_of, wait_name
from dxt_replay.replay.transform.rank_changes import changed
from dxt_replay.replay.transform.rank_work import MODELLED, NOTHING, TRANSFORMED, RankState, RankWork
from dxt_replay.replay.transform.read_data import DataSet, data_set_of
from dxt_replay.replay.transform.source_work import source_state
from dxt_replay.replay.transform.strong_scaling import shared_out
from dxt_replay.replay.transform.weak_scaling import Copies
from dxt_replay.traces.benchmark_run import BENCHMARK
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.schema import (
    COUNTERS,
    FILES_SCHEMA,
    OPS,
    OPS_SCHEMA,
    READ,
    SPANS_SCHEMA,
    CaptureInfo,
    Coverage,
    table_from_columns,
)
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.store.relation import as_source
from dxt_replay.traces.store.writer import (
    OpsWriter,
    begin_capture,
    check_capture_output,
    discard_capture,
    publish_capture,
    write_capture_info,
    write_files,
    write_hdf5,
    write_spans,
)
from dxt_replay.traces.units import format_bytes, format_count, format_duration, ns_to_seconds
from dxt_replay.traces.version import VERSION

MAX_OPERATIONS = 10_000_000
"""Operations of a capture up to which it is changed: all ranks are scheduled together, in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Totals of the operations of a capture that a replay issues. elapsed_ns: from its first to its last moment."""

    ranks: int
    operations: int
    reads: int
    bytes_read: int
    elapsed_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformed:
    """The capture that `transform` wrote.

    path: its folder. changes: by name, in the order in which they were applied. assumptions: sentences.
    before, after: totals of the source and of the result. same: whether nothing changed.
    """

    path: Path
    changes: Mapping[str, Any]
    assumptions: tuple[str, ...]
    before: Totals
    after: Totals
    same: bool

    def as_json(self) -> dict[str, Any]:
        """The object that `dxt-replay transform --json` prints."""
        return {**dataclasses.asdict(self), "path": str(self.path), "assumptions": list(self.assumptions)}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Written:
    """The contents of the new capture, before ranks are copied.

    operations: yields rows of `OPS_SCHEMA` of a rank in start order, when they are written. spans: by rank, rows of
    `SPANS_SCHEMA`. files, hdf5: `FILES_SCHEMA` and `HDF5_SCHEMA`. elapsed_ns: of the job.
    """

    operations: Callable[[int], Iterable[pa.Table]]
    spans: Mapping[int, pa.Table]
    files: pa.Table
    hdf5: pa.Table
    elapsed_ns: int


def transform_capture(capture: Capture, changes: Changes, output: Path, *, force: bool = False) -> Transformed:
    """Write `capture` with these changes to `output`.

    Raises: UsageError if a change has no meaning for the capture; CaptureError for a damaged capture; TargetError for
    `output`.
    """
    check_capture_output(output, force=force)
    if capture.operation_count() > MAX_OPERATIONS:
        raise UsageError(
            f"{capture.named} has {format_count(capture.operation_count())} operations, and captures of up to "
            f"{format_count(MAX_OPERATIONS)} are changed: choose a part of it with dxt_replay.part"
        )
    layers = choose_layers(capture)
    data = data_set_of(capture, layers)
    _check(capture, changes, data)
    sources = _sources(capture, layers)
    begin_ns, end_ns = capture.time_span_ns
    before = _totals([state.work for state in sources.values()], end_ns - begin_ns)
    found, notes, same = _changed(sources, changes, data)
    copies = None
    if changes.ranks is not None and changes.weak:
        copies = Copies.of(capture, changes.ranks)
    elif changes.ranks not in (None, len(capture.ranks)):
        found, dealt = shared_out(found, changes.ranks, capture.paths())
        same, notes = False, (*notes, *dealt)
    written = _as_recorded(capture) if same else _as_scheduled(capture, sources, found, changes, data)
    if same and copies is None:
        assumptions: tuple[str, ...] = ()
    else:
        assumptions = (*_assumptions_of(changes, data, copies is not None), *notes)
    transform = {"changes": changes.as_json(), "assumptions": list(assumptions)}
    _write(capture, written, copies, transform, output, known=not same, force=force)
    ranks = list(found if copies is None else copies.source_of.values())
    return Transformed(
        path=output,
        changes=changes.as_json(),
        assumptions=assumptions,
        before=before,
        after=_totals([found[rank].work for rank in ranks], written.elapsed_ns),
        same=same and copies is None,
    )


def _check(capture: Capture, changes: Changes, data: DataSet) -> None:
    """Raises: UsageError if a change of the requests has no meaning for the capture."""
    if changes.compression is not None:
        data.check_not_compressed(capture)
    if changes.transfer_bytes is not None:
        data.check_streams()
    if changes.chunk_bytes is not None:
        data.check_chunks(capture)


def _sources(capture: Capture, layers: LayerChoice) -> dict[int, RankState]:
    """All ranks as captured.

    Raises: CaptureError when a part is damaged, or a rank has no training steps.
    """
    steps, found = steps_of(capture, layers), {}
    for rank in capture.ranks:
        tables = [pa.Table.from_batches([batch.filter(layers.replayed(batch))]) for batch in capture.operations(rank)]
        rows = pa.concat_tables(tables) if tables else OPS_SCHEMA.empty_table()
        found[rank] = source_state(rows, steps, rank)
    return found


def _totals(works: Iterable[RankWork], elapsed_ns: int) -> Totals:
    """Totals of the operations of these ranks."""
    ranks = operations = reads = bytes_read = 0
    for work in works:
        is_read = work.op == READ
        ranks += 1
        operations += len(work)
        reads += int(is_read.sum())
        bytes_read += int(work.length[is_read].sum())
    return Totals(ranks=ranks, operations=operations, reads=reads, bytes_read=bytes_read, elapsed_ns=elapsed_ns)


def _changed(
    sources: Mapping[int, RankState], changes: Changes, data: DataSet
) -> tuple[dict[int, RankState], tuple[str, ...], bool]:
    """Change each rank. Returns the ranks, the assumptions, and whether nothing changed."""
    found: dict[int, RankState] = {}
    notes: dict[str, None] = {}
    same = changes.compute_speed == 1.0
    for rank, state in sources.items():
        after, assumed, is_same = changed(state, changes, data)
        same &= is_same
        notes |= dict.fromkeys(assumed)
        found[rank] = after if changes.batch_times in (None, 1) else dataclasses.replace(after, spans=None)
    return found, tuple(notes), same


def _as_recorded(capture: Capture) -> _Written:
    """All rows of the capture."""
    begin_ns, end_ns = capture.time_span_ns
    return _Written(
        operations=lambda rank: (pa.Table.from_batches([batch]) for batch in capture.operations(rank)),
        spans=spans_by_rank(capture.spans, capture.ranks),
        files=capture.files,
        hdf5=capture.hdf5,
        elapsed_ns=end_ns - begin_ns,
    )


def _as_scheduled(
    capture: Capture,
    sources: Mapping[int, RankState],
    found: Mapping[int, RankState],
    changes: Changes,
    data: DataSet,
) -> _Written:
    """Schedule the changed ranks by their dependencies."""
    pacing = Pacing(pace=Pace.STEPS, compute_speed=changes.compute_speed)
    begin_ns = capture.time_span_ns[0]
    times = scheduled(found, pacing, begin_ns)
    spans = {}
    for rank, state in found.items():
        if state.spans is None:
            spans[rank] = loop_spans(rank, times[rank].loop, own_reads=not state.readers)
        else:
            name = wait_name(state.readers, sources[rank].readers)
            spans[rank] = spans_of(state.spans, state.loop.loop, times[rank].loop, name)
        made_ns = times[rank].made_ns
        if made_ns is not None:
            spans[rank] = pa.concat_tables([spans[rank], making_spans(spans[rank], times[rank].loop, made_ns)])
    ends = [int((times[rank].start_ns + state.work.duration_ns).max(initial=0)) for rank, state in found.items()]
    return _Written(
        operations=lambda rank: [_operations(rank, found[rank].work, times[rank])],
        spans=spans,
        files=_changed_files(capture, [state.work for state in found.values()]),
        hdf5=_changed_hdf5(capture, changes, data),
        elapsed_ns=max(*ends, *(each.loop.exit_ns for each in times.values())) - begin_ns,
    )


def _operations(rank: int, work: RankWork, times: Scheduled) -> pa.Table:
    """The operations of a rank at their new times."""
    order = np.argsort(times.start_ns, kind="stable")
    work, start = work.rows(order), times.start_ns[order]
    columns = {
        "rank": np.full(len(work), rank, dtype=np.int32),
        **{name: getattr(work, name) for name in ("lane", "op", "api", "file_id", "offset", "length", "origin")},
        "start_ns": start,
        "end_ns": start + work.duration_ns,
        "step": times.loop.step_at(start),
        "feeds": np.ma.masked_equal(work.feeds, NOTHING),
        "follows": np.ma.masked_equal(work.follows, NOTHING),
        "ready_ns": np.ma.masked_equal(np.where(_ends_batch(work), work.busy_ns, 0), 0),
    }
    return table_from_columns(columns, OPS_SCHEMA)


def _ends_batch(work: RankWork) -> np.ndarray:
    """bool (n,): the last operation of each batch in each lane."""
    found = np.zeros(len(work), dtype=bool)
    for lane in np.unique(work.lane).tolist():
        mine = np.flatnonzero((work.lane == lane) & (work.feeds != NOTHING))
        found[mine[np.flatnonzero(np.diff(work.feeds[mine], append=NOTHING))]] = True
    return found


def _assumptions_of(changes: Changes, data: DataSet, copied: bool) -> tuple[str, ...]:
    """The assumptions of the changes, as sentences."""
    cost, found = data.cost, []
    if changes.requests_change:
        bandwidth = f"{format_bytes(1e9 / cost.ns_per_byte)}/s" if cost.ns_per_byte else "no limit to bandwidth"
        found.append(
            f"a changed read takes a latency of {format_duration(cost.latency_ns)} plus the recorded "
            f"time of its bytes (least squares over {cost.requests} reads of the capture; {bandwidth})"
        )
    if changes.chunk_bytes is not None:
        found.append(
            "index and header reads stay the same, records lie in a row, and a chunk that is larger than a record is "
            "read whole only if records are read in random order"
        )
    if changes.compression is not None:
        speed = format_bytes(changes.compression.bytes_per_s)
        found.append(
            f"all data shrink by the same ratio, and a decoder in the reader's lane puts out {speed}/s after each read"
        )
    if changes.batch_times is not None:
        found.append(
            "a step of a larger batch computes as long as its steps together did, has one collective, and as many "
            "batches are read ahead as before"
        )
    if changes.preprocess_speed != 1.0:
        found.append("all time between the reads of a reader, and after the last one of a batch, is preprocessing")
    if changes.compute_speed != 1.0:
        found.append(
            "all time of the training thread between its events is compute; collectives keep their recorded times"
        )
    if changes.requests_change or changes.pipeline_changes or changes.compute_speed != 1.0:
        found.append("storage serves each request as in the capture, however many are in flight")
    if copied:
        found.append("copied ranks take the recorded times: neither storage nor collectives slow down with more ranks")
    return tuple(found)


def _changed_files(capture: Capture, works: Iterable[RankWork]) -> pa.Table:
    """The files table. A file with changed requests loses its counters, and gets the size that the requests need."""
    files = capture.files
    touched, ends = np.zeros(files.num_rows, dtype=bool), np.zeros(files.num_rows, dtype=np.int64)
    for work in works:
        touched[work.file_id[np.isin(work.origin, (TRANSFORMED, MODELLED))]] = True
        reads = np.isin(work.op, (READ, OPS.index("write")))
        np.maximum.at(ends, work.file_id[reads], np.maximum(work.offset, 0)[reads] + work.length[reads])
    sizes = np.where(touched, ends, files["size"].to_numpy())
    columns = {name: files[name] for name in FILES_SCHEMA.names}
    columns["size"] = pa.array(sizes)
    for name in ("coverage", *COUNTERS):
        columns[name] = pc.if_else(
            pa.array(touched), pa.nulls(files.num_rows, FILES_SCHEMA.field(name).type), files[name]
        )
    return pa.table(columns, schema=FILES_SCHEMA)


def _changed_hdf5(capture: Capture, changes: Changes, data: DataSet) -> pa.Table:
    """The HDF5 datasets of files that did not change."""
    if changes.chunk_bytes is None and changes.compression is None:
        return capture.hdf5
    gone = pa.array(list(data.chunk_bytes), type=pa.int32())
    return capture.hdf5.filter(pc.invert(pc.is_in(capture.hdf5["file_id"], gone)))


def _write(
    source: Capture,
    written: _Written,
    copies: Copies | None,
    transform: Mapping[str, Any],
    output: Path,
    *,
    known: bool,
    force: bool,
) -> None:
    """Write the capture `output`, rank by rank. `known`: whether the rows hold their dependencies.

    Raises: TargetError for `output`; CaptureError for a damaged source.
    """
    files, hdf5, source_of = written.files, written.hdf5, {rank: rank for rank in written.spans}
    if copies is not None:
        files, hdf5, source_of = copies.files_table(files), copies.hdf5_table(hdf5), copies.source_of
    working = begin_capture(output, force=force)
    try:
        spans = [SPANS_SCHEMA.empty_table()]
        with OpsWriter(working) as writer:
            for rank, of_rank in source_of.items():
                own = written.spans[of_rank]
                spans.append(own if copies is None else copies.spans(rank, own))
                for table in written.operations(of_rank):
                    writer.write(table if copies is None else copies.operations(rank, table))
        write_files(working, files)
        write_spans(working, pa.concat_tables(spans))
        write_hdf5(working, hdf5)
        info = _info(source, tuple(source_of), written.elapsed_ns, known=known)
        made_by = {
            **info.made_by,
            "operations_stored": writer.rows,
            "transforms": [*source.info.made_by.get("transforms", []), transform],
        }
        info = dataclasses.replace(info, made_by=made_by)
        write_capture_info(working, info)
        publish_capture(working, output, force=force)
    except BaseException:
        discard_capture(working)
        raise


def _info(source: Capture, ranks: tuple[int, ...], elapsed_ns: int, *, known: bool) -> CaptureInfo:
    """capture.json of a changed capture, without its rows and changes."""
    info = source.info
    job = info.job
    # The benchmark's description of its training is wrong for a changed one.
    metadata = {name: value for name, value in job.metadata.items() if name != BENCHMARK}
    ended = job.end_ns if not job.start_ns else job.start_ns + elapsed_ns
    run_time_s = ns_to_seconds(elapsed_ns)
    return dataclasses.replace(
        info,
        job=dataclasses.replace(job, nprocs=len(ranks), run_time_s=run_time_s, end_ns=ended, metadata=metadata),
        ranks=ranks,
        sources=(as_source(source), *info.sources),
        # The rows are at the times of one clock, and no counters count them.
        clock=() if known else info.clock,
        coverage=Coverage(bytes=None, operations=None, unseen=info.coverage.unseen),
        dependencies="known" if known else info.dependencies,
        made_by={"program": "dxt-replay", "version": VERSION, "command": "transform"},
    )
