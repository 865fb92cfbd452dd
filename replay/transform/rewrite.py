"""Transforms a capture: reads its ranks one by one, changes them, schedules them together, and writes a capture."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dxt_replay.replay.causal.paced_ranks import Steps, steps_of
from dxt_replay.replay.causal.storage_limit import doubt_of_capture
from dxt_replay.replay.plan.chosen_layers import LayerChoice, choose_layers
from dxt_replay.replay.plan.pacing import Pace, Pacing
from dxt_replay.replay.plan.survey import spans_by_rank
from dxt_replay.replay.transform.changes import Changes
from dxt_replay.replay.transform.loop_schedule import (
    Outline,
    Scheduled,
    outlined,
    scheduled,
    with_batches_in_order,
    with_ready,
)
from dxt_replay.replay.transform.new_spans import loop_spans, making_spans, spans_of, wait_name
from dxt_replay.replay.transform.rank_work import MODELLED, NOTHING, TRANSFORMED, RankState, RankWork
from dxt_replay.replay.transform.read_data import DataSet, check_memory, data_set_of
from dxt_replay.replay.transform.readers import with_pipeline
from dxt_replay.replay.transform.requests import with_requests
from dxt_replay.replay.transform.source_work import source_state
from dxt_replay.replay.transform.spill_file import Kept, SpillFile
from dxt_replay.replay.transform.strong_scaling import SharedSource, shared_out
from dxt_replay.replay.transform.weak_scaling import Copies
from dxt_replay.traces.benchmark_run import BENCHMARK
from dxt_replay.traces.doubt import NO_DOUBT, UNKNOWN, Doubt
from dxt_replay.traces.memory import available_bytes
from dxt_replay.traces.schema import (
    COUNTERS,
    FILES_SCHEMA,
    OPS,
    OPS_SCHEMA,
    READ,
    SPANS_SCHEMA,
    CaptureInfo,
    Coverage,
    RankClock,
    table_from_columns,
)
from dxt_replay.traces.store.lanes import with_facts, write_lanes
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
from dxt_replay.traces.units import format_bytes, format_duration, ns_to_seconds
from dxt_replay.traces.version import VERSION

_AS_THEY_ARE = ("lane", "op", "api", "file_id", "offset", "length", "origin", "other_file_id", "open_flags")
"""Columns of the operations that no schedule changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Totals of the operations of a capture that a replay issues. elapsed_ns: from its first to its last moment."""

    ranks: int
    operations: int
    reads: int
    bytes_read: int
    elapsed_ns: int

    @classmethod
    def of(cls, work: RankWork) -> Totals:
        """Those of one rank, without the time."""
        is_read = work.op == READ
        return cls(
            ranks=1,
            operations=len(work),
            reads=int(is_read.sum()),
            bytes_read=int(work.length[is_read].sum()),
            elapsed_ns=0,
        )

    @classmethod
    def sum_of(cls, ranks: Iterable[Totals], elapsed_ns: int) -> Totals:
        """The sums over ranks."""
        names = ("ranks", "operations", "reads", "bytes_read")
        sums = np.sum([[getattr(each, name) for name in names] for each in ranks], axis=0, dtype=object)
        return cls(**dict(zip(names, sums, strict=True)), elapsed_ns=elapsed_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformed:
    """The capture that `transform` wrote.

    path: its folder. changes: by name, in the order in which they were applied. assumptions: sentences.
    before, after: totals of the source and of the result. same: whether nothing changed.
    doubt: how far `after` may be believed.
    """

    path: Path
    changes: Mapping[str, Any]
    assumptions: tuple[str, ...]
    before: Totals
    after: Totals
    same: bool
    doubt: Doubt = NO_DOUBT

    def as_json(self) -> dict[str, Any]:
        """The object that `dxt-replay transform --json` prints."""
        return {**dataclasses.asdict(self), "path": str(self.path), "assumptions": list(self.assumptions)}


class _FileSizes:
    """Collects which of `files` files changed requests use, and how large these must be, rank by rank."""

    def __init__(self, files: int) -> None:
        self._touched, self._ends = np.zeros(files, dtype=bool), np.zeros(files, dtype=np.int64)

    def add(self, work: RankWork) -> None:
        """Count the operations of a rank."""
        self._touched[work.file_id[np.isin(work.origin, (TRANSFORMED, MODELLED))]] = True
        moves = np.isin(work.op, (READ, OPS.index("write")))
        np.maximum.at(self._ends, work.file_id[moves], np.maximum(work.offset, 0)[moves] + work.length[moves])

    def table(self, files: pa.Table) -> pa.Table:
        """The files table. A file with changed requests loses its counters, and gets the size that the requests
        need."""
        touched = pa.array(self._touched)
        columns = {name: files[name] for name in FILES_SCHEMA.names}
        columns["size"] = pa.array(np.where(self._touched, self._ends, files["size"].to_numpy()))
        for name in ("coverage", *COUNTERS):
            nothing = pa.nulls(files.num_rows, FILES_SCHEMA.field(name).type)
            columns[name] = pc.if_else(touched, nothing, files[name])
        return pa.table(columns, schema=FILES_SCHEMA)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Rank:
    """A changed rank.

    operations: in the spill file: columns `_AS_THEY_ARE` of `OPS_SCHEMA` (-1 for null), feeds and
    follows as in `RankWork`, duration_ns, ready_ns (0 for none), and `run` and `since_ns` of `loop_schedule.outlined`.
    spans: see `RankState`. readers, readers_before: lanes that read the batches, and how many did in the capture.
    same_lanes: whether its lanes are those of the capture.
    """

    operations: Kept
    outline: Outline
    totals: Totals
    spans: pa.Table | None
    readers: int
    readers_before: int
    same_lanes: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Written:
    """The contents of the new capture, before ranks are copied.

    operations: yields rows of `OPS_SCHEMA` of a rank in start order, when they are written. spans: by rank, rows of
    `SPANS_SCHEMA`. files, hdf5, lanes: `FILES_SCHEMA`, `HDF5_SCHEMA` and `LANES_SCHEMA`. elapsed_ns: of the job.
    """

    operations: Callable[[int], Iterable[pa.Table]]
    spans: Mapping[int, pa.Table]
    files: pa.Table
    hdf5: pa.Table
    lanes: pa.Table
    elapsed_ns: int


def transform_capture(capture: Capture, changes: Changes, output: Path, *, force: bool = False) -> Transformed:
    """Write `capture` with these changes to `output`.

    Raises: UsageError if a change has no meaning for the capture; CaptureError for a damaged capture; TargetError for
    `output`.
    """
    check_capture_output(output, force=force)
    layers = choose_layers(capture)
    data = data_set_of(capture, layers)
    if changes.compression is not None:
        data.check_not_compressed(capture)
    if changes.transfer_bytes is not None:
        data.check_streams()
    if changes.chunk_bytes is not None:
        data.check_chunks(capture)
    check_memory(capture, changes, data, available_bytes())
    steps = steps_of(capture, layers)
    doubt = doubt_of_capture(capture, steps)
    working = begin_capture(output, force=force)
    try:
        with SpillFile(working) as spill:
            sizes = _FileSizes(capture.files.num_rows)
            ranks, before, notes, unchanged = _changed(capture, steps, layers, changes, data, spill, sizes)
            written = _as_recorded(capture) if unchanged else _as_scheduled(capture, ranks, sizes, changes, data, spill)
            copies = Copies.of(capture, changes.ranks) if changes.ranks is not None and changes.weak else None
            same = unchanged and copies is None
            assumptions = () if same else (*_assumptions_of(changes, data, copies is not None), *notes)
            transform = {"changes": changes.as_json(), "assumptions": list(assumptions)}
            reason = doubt.reason if doubt.state == UNKNOWN else None
            _write(capture, written, copies, transform, reason, working, known=not unchanged)
        publish_capture(working, output, force=force)
    except BaseException:
        discard_capture(working)
        raise
    begin_ns, end_ns = capture.time_span_ns
    after = [ranks[rank].totals for rank in (ranks if copies is None else copies.source_of.values())]
    return Transformed(
        path=output,
        changes=changes.as_json(),
        assumptions=assumptions,
        before=Totals.sum_of(before, end_ns - begin_ns),
        after=Totals.sum_of(after, written.elapsed_ns),
        same=same,
        doubt=doubt,
    )


def _changed(
    capture: Capture,
    steps: Steps,
    layers: LayerChoice,
    changes: Changes,
    data: DataSet,
    spill: SpillFile,
    sizes: _FileSizes,
) -> tuple[Mapping[int, _Rank], Sequence[Totals], tuple[str, ...], bool]:
    """Read and change each rank; its operations go to the spill file.

    Returns the ranks by number, the totals of the recorded ones, the assumptions as sentences, and whether nothing
    changed, before ranks are copied.
    Raises: CaptureError when a part is damaged; UsageError if a change has no meaning for the capture.
    """
    shares = changes.ranks not in (None, len(capture.ranks)) and not changes.weak
    before, ranks, shared = [], {}, []
    notes: dict[str, None] = {}
    same = changes.compute_speed == 1.0 and not shares
    for rank in capture.ranks:
        recorded = source_state(_rows(capture, rank, layers), steps, rank)
        readers, lanes = recorded.readers, np.unique(recorded.work.lane)
        before.append(Totals.of(recorded.work))
        state = dataclasses.replace(recorded, work=with_requests(recorded.work, changes, data))
        if changes.readers is not None or changes.prefetch is not None:
            state, assumed = with_pipeline(state, changes)
            notes |= dict.fromkeys(assumed)
        same &= state.loop is recorded.loop and state.work.same_requests(recorded.work)
        del recorded
        work = with_ready(with_batches_in_order(state.work), state.loop.ready_ns)
        state = dataclasses.replace(state, work=work)
        if shares:
            shared.append(SharedSource.of(state, spill))
        else:
            same_lanes = state.readers == readers and np.array_equal(np.unique(work.lane), lanes)
            ranks[rank] = _spilled(state, readers, spill, sizes, same_lanes=same_lanes)
        del state, work  # two ranks would be in memory while the next one is read
    if shares:
        states, dealt = shared_out(shared, changes.ranks or 0, capture.paths(), spill)
        notes |= dict.fromkeys(dealt)

        def kept(state: RankState) -> _Rank:
            return _spilled(state, state.readers, spill, sizes, same_lanes=False)

        ranks = dict(enumerate(map(kept, states)))  # `map` holds on to no rank while the next one is made
    return ranks, before, tuple(notes), same


def _rows(capture: Capture, rank: int, layers: LayerChoice) -> pa.Table:
    """The operations of a rank that a replay issues. Raises: CaptureError when a part is damaged."""
    tables = [pa.Table.from_batches([batch.filter(layers.replayed(batch))]) for batch in capture.operations(rank)]
    return pa.concat_tables(tables) if tables else OPS_SCHEMA.empty_table()


def _spilled(state: RankState, readers_before: int, spill: SpillFile, sizes: _FileSizes, *, same_lanes: bool) -> _Rank:
    """Put the operations of a changed rank in the spill file."""
    work = state.work
    sizes.add(work)
    outline, run, since_ns = outlined(state)
    columns = {name: getattr(work, name) for name in (*_AS_THEY_ARE, "feeds", "follows", "duration_ns")}
    ready_ns = np.where(_ends_batch(work), work.busy_ns, 0)
    return _Rank(
        operations=spill.put({**columns, "ready_ns": ready_ns, "run": run, "since_ns": since_ns}),
        outline=outline,
        totals=Totals.of(work),
        spans=state.spans,
        readers=state.readers,
        readers_before=readers_before,
        same_lanes=same_lanes,
    )


def _as_recorded(capture: Capture) -> _Written:
    """All rows of the capture."""
    begin_ns, end_ns = capture.time_span_ns
    return _Written(
        operations=lambda rank: (pa.Table.from_batches([batch]) for batch in capture.operations(rank)),
        spans=spans_by_rank(capture.spans, capture.ranks),
        files=capture.files,
        hdf5=capture.hdf5,
        lanes=capture.lanes,
        elapsed_ns=end_ns - begin_ns,
    )


def _as_scheduled(
    capture: Capture,
    ranks: Mapping[int, _Rank],
    sizes: _FileSizes,
    changes: Changes,
    data: DataSet,
    spill: SpillFile,
) -> _Written:
    """Schedule the changed ranks by their dependencies."""
    pacing = Pacing(pace=Pace.STEPS, compute_speed=changes.compute_speed)
    begin_ns = capture.time_span_ns[0]
    times = scheduled({rank: each.outline for rank, each in ranks.items()}, pacing, begin_ns)
    hdf5 = capture.hdf5
    if changes.chunk_bytes is not None or changes.compression is not None:
        gone = pa.array(list(data.chunk_bytes), type=pa.int32())
        hdf5 = hdf5.filter(pc.invert(pc.is_in(hdf5["file_id"], gone)))
    same_lanes = all(each.same_lanes for each in ranks.values())
    return _Written(
        operations=lambda rank: [_operations(rank, spill.take(ranks[rank].operations), times[rank])],
        spans={rank: _spans(rank, each, times[rank]) for rank, each in ranks.items()},
        files=sizes.table(capture.files),
        hdf5=hdf5,
        lanes=with_facts(capture.lanes if same_lanes else capture.lanes.slice(0, 0), ["role"]),
        elapsed_ns=max(each.end_ns for each in times.values()) - begin_ns,
    )


def _spans(rank: int, found: _Rank, times: Scheduled) -> pa.Table:
    """The spans of a rank at their new times."""
    if found.spans is None:
        spans = loop_spans(rank, times.loop, own_reads=not found.readers)
    else:
        name = wait_name(found.readers, found.readers_before)
        spans = spans_of(found.spans, found.outline.model.loop, times.loop, name)
    if times.made_ns is None:
        return spans
    return pa.concat_tables([spans, making_spans(spans, times.loop, times.made_ns)])


def _operations(rank: int, columns: dict[str, np.ndarray], times: Scheduled) -> pa.Table:
    """The operations of a rank at their new times. columns: those of `_Rank.operations`."""
    start = times.run_ns[columns.pop("run")] + columns.pop("since_ns")
    order = np.argsort(start, kind="stable")
    start, columns = start[order], {name: values[order] for name, values in columns.items()}
    follows = np.ma.masked_less(columns["follows"], 0)
    found = {
        "rank": np.full(len(start), rank, dtype=np.int32),
        **{name: columns[name] for name in _AS_THEY_ARE},
        "start_ns": start,
        "end_ns": start + columns["duration_ns"],
        "step": times.loop.step_at(start),
        **{name: np.ma.masked_less(columns[name], 0) for name in ("other_file_id", "open_flags")},
        "feeds": np.ma.masked_equal(columns["feeds"], NOTHING),
        # What waits for the exit from the loop has no number: a reader knows it by its begin.
        "follows": follows // 2,
        "follows_end": follows % 2,
        "ready_ns": np.ma.masked_equal(columns["ready_ns"], 0),
    }
    return table_from_columns(found, OPS_SCHEMA)


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
    if changes.compute_speed != 1.0:
        found.append(
            "all time of the training thread between its events is compute; collectives keep their recorded times"
        )
    if changes.requests_change or changes.pipeline_changes or changes.compute_speed != 1.0:
        found.append("storage serves each request as in the capture, however many are in flight")
    if copied:
        found.append("copied ranks take the recorded times: neither storage nor collectives slow down with more ranks")
    return tuple(found)


def _write(
    source: Capture,
    written: _Written,
    copies: Copies | None,
    transform: Mapping[str, Any],
    reason: str | None,
    working: Path,
    *,
    known: bool,
) -> None:
    """Fill the folder `working` with the capture, rank by rank. `known`: whether the rows hold their dependencies.

    `reason`: why no prediction of this training may be believed.

    Raises: TargetError for `working`; CaptureError for a damaged source.
    """
    files, hdf5, source_of = written.files, written.hdf5, {rank: rank for rank in written.spans}
    lanes = written.lanes
    if copies is not None:
        lanes = copies.lanes_table(lanes)
        files, hdf5, source_of = copies.files_table(files), copies.hdf5_table(hdf5), copies.source_of
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
    info = _info(source, source_of, written.elapsed_ns, known=known)
    made_by = {
        **info.made_by,
        "operations_stored": writer.rows,
        "transforms": [*source.info.made_by.get("transforms", []), transform],
        **({} if reason is None else {"doubt": reason}),
    }
    write_lanes(working, lanes)
    write_capture_info(working, dataclasses.replace(info, made_by=made_by))


def _info(source: Capture, source_of: Mapping[int, int], elapsed_ns: int, *, known: bool) -> CaptureInfo:
    """capture.json of a changed capture, without its rows and changes. source_of: the recorded rank behind each."""
    info, ranks = source.info, tuple(source_of)
    copies_of = {source: [rank for rank in ranks if source_of[rank] == source] for source in source_of.values()}
    made_by: dict[str, Any] = {"program": "dxt-replay", "version": VERSION, "command": "transform"}
    clock: list[RankClock] = []
    # Rows with known dependencies are at the times of one clock. The dependencies of others are inferred from these
    # facts, for a copy as for its source.
    if not known:
        of_ranks = [(each, rank) for each in info.clock for rank in copies_of.get(each.rank, ())]
        clock = [dataclasses.replace(each, rank=rank) for each, rank in sorted(of_ranks, key=lambda pair: pair[1])]
        if logs := info.made_by.get("log_writing"):
            made_by["log_writing"] = [[rank, *at] for source, *at in logs for rank in copies_of.get(source, ())]
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
        clock=tuple(clock),
        # No counters count the rows.
        coverage=Coverage(bytes=None, operations=None, unseen=info.coverage.unseen),
        dependencies="known" if known else info.dependencies,
        made_by=made_by,
    )
