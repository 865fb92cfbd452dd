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

from dxt_replay.replay.causal.loop import NO_FETCH
from dxt_replay.replay.causal.ranks import Steps, steps_of
from dxt_replay.replay.causal.storage_limit import doubt_of_capture
from dxt_replay.replay.plan.layers import LayerChoice, choose_layers, spans_by_rank
from dxt_replay.replay.plan.operations import rows_by_lane
from dxt_replay.replay.plan.pacing import Pace, Pacing
from dxt_replay.replay.transform.changes import Changes
from dxt_replay.replay.transform.new_spans import loop_spans, making_spans, spans_of, wait_name
from dxt_replay.replay.transform.rank_state import (
    MODELLED,
    TRANSFORMED,
    RankState,
    Scheduled,
    Work,
    by_fetch,
    finished,
    same_requests,
    scheduled,
    source_state,
)
from dxt_replay.replay.transform.read_data import DataSet, check_memory, data_set_of
from dxt_replay.replay.transform.readers import with_pipeline
from dxt_replay.replay.transform.requests import with_requests
from dxt_replay.replay.transform.strong_scaling import SharedSource, shared_out
from dxt_replay.replay.transform.weak_scaling import Copies
from dxt_replay.traces.measures.span_times import copies_alike
from dxt_replay.traces.memory import available_bytes
from dxt_replay.traces.records import BENCHMARK, generated
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
from dxt_replay.traces.storage_limit import NO_DOUBT, UNKNOWN, Doubt
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.store.relation import as_source
from dxt_replay.traces.store.writer import (
    OpsWriter,
    begin_capture,
    check_capture_output,
    discard_capture,
    lanes_with_facts,
    publish_capture,
    write_capture_info,
    write_files,
    write_hdf5,
    write_lanes,
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
    def of(cls, work: Work) -> Totals:
        """Those of one rank, without the time."""
        is_read = work["op"] == READ
        moved = int(work["length"][is_read].sum())
        return cls(ranks=1, operations=len(is_read), reads=int(is_read.sum()), bytes_read=moved, elapsed_ns=0)

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
    doubt: how far `after` may be believed. generated: as of `traces.records`; not in the JSON.
    """

    path: Path
    changes: Mapping[str, Any]
    assumptions: tuple[str, ...]
    before: Totals
    after: Totals
    same: bool
    doubt: Doubt = NO_DOUBT
    generated: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The object that `dxt-replay transform --json` prints."""
        result = {**dataclasses.asdict(self), "path": str(self.path), "assumptions": list(self.assumptions)}
        del result["generated"]
        return result


def _files(files: pa.Table, ranks: Iterable[RankState]) -> pa.Table:
    """The files table. A file with changed requests loses its counters, and gets the size that the requests need."""
    changed, ends = np.zeros(files.num_rows, dtype=bool), np.zeros(files.num_rows, dtype=np.int64)
    for work in (state.work for state in ranks):
        changed[work["file_id"][np.isin(work["origin"], (TRANSFORMED, MODELLED))]] = True
        moves = np.isin(work["op"], (READ, OPS.index("write")))
        np.maximum.at(ends, work["file_id"][moves], np.maximum(work["offset"], 0)[moves] + work["length"][moves])
    columns = {name: files[name] for name in FILES_SCHEMA.names}
    columns["size"] = pa.array(np.where(changed, ends, files["size"].to_numpy()))
    for name in ("coverage", *COUNTERS):
        nothing = pa.nulls(files.num_rows, FILES_SCHEMA.field(name).type)
        columns[name] = pc.if_else(pa.array(changed), nothing, files[name])
    return pa.table(columns, schema=FILES_SCHEMA)


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
        ranks, readers, before, notes, unchanged, same_lanes = _changed(capture, steps, layers, changes, data)
        after = {rank: Totals.of(state.work) for rank, state in ranks.items()}
        lanes = lanes_with_facts(capture.lanes.slice(0, None if same_lanes else 0), ["role"])
        written = _as_recorded(capture) if unchanged else _as_scheduled(capture, ranks, readers, lanes, changes, data)
        copies = Copies.of(capture, changes.ranks) if changes.ranks is not None and changes.weak else None
        same = unchanged and copies is None
        alike = () if copies is None else copies_alike(capture.spans, changes.ranks or 0)
        assumptions = () if same else (*_assumptions_of(changes, data, copies is not None), *notes, *alike)
        transform = {"changes": changes.as_json(), "assumptions": list(assumptions)}
        reason = doubt.reason if doubt.state == UNKNOWN else None
        _write(capture, written, copies, transform, reason, working, known=not unchanged)
        publish_capture(working, output, force=force)
    except BaseException:
        discard_capture(working)
        raise
    begin_ns, end_ns = capture.time_span_ns
    sources = after if copies is None else copies.source_of.values()
    return Transformed(
        path=output,
        changes=changes.as_json(),
        assumptions=assumptions,
        before=Totals.sum_of(before, end_ns - begin_ns),
        after=Totals.sum_of((after[rank] for rank in sources), written.elapsed_ns),
        same=same,
        doubt=doubt,
        generated=generated(capture.info),
    )


def _changed(
    capture: Capture, steps: Steps, layers: LayerChoice, changes: Changes, data: DataSet
) -> tuple[dict[int, RankState], Mapping[int, int], Sequence[Totals], tuple[str, ...], bool, bool]:
    """Read and change each rank.

    Returns the ranks by number, how many readers each had in the capture, the totals of the recorded ones, the
    assumptions as sentences, and whether nothing changed, before ranks are copied, and no lane.
    Raises: CaptureError when a part is damaged, or a rank has no training steps; UsageError if a change has no meaning
    for the capture.
    """
    shares = changes.ranks not in (None, len(capture.ranks)) and not changes.weak
    before, ranks, readers = [], dict[int, RankState](), dict[int, int]()
    notes: dict[str, None] = {}
    same, same_lanes = changes.compute_speed == 1.0 and not shares, not shares
    for rank in capture.ranks:
        recorded = source_state(_rows(capture, rank, layers), steps, rank)
        before.append(Totals.of(recorded.work))
        state = dataclasses.replace(recorded, work=with_requests(recorded.work, changes, data))
        if changes.readers is not None or changes.prefetch is not None:
            state, assumed = with_pipeline(state, changes)
            notes |= dict.fromkeys(assumed)
        same &= state.model is recorded.model and same_requests(state.work, recorded.work)
        same_lanes &= state.readers == recorded.readers and _lanes_of(state) == _lanes_of(recorded)
        ranks[rank], readers[rank] = finished(state), recorded.readers
        del recorded, state  # two ranks would be in memory while the next one is read
    if shares:
        sources = [SharedSource.of(ranks.pop(rank)) for rank in capture.ranks]
        states, dealt = shared_out(sources, changes.ranks or 0, capture.paths())
        notes |= dict.fromkeys(dealt)
        ranks = dict(enumerate(states))
        readers = {rank: state.readers for rank, state in ranks.items()}
    return ranks, readers, before, tuple(notes), same, same_lanes


def _lanes_of(state: RankState) -> set[int]:
    return set(np.unique(state.work["lane"]).tolist())


def _rows(capture: Capture, rank: int, layers: LayerChoice) -> pa.Table:
    """The operations of a rank that a replay issues. Raises: CaptureError when a part is damaged."""
    tables = [pa.Table.from_batches([batch.filter(layers.replayed(batch))]) for batch in capture.operations(rank)]
    return pa.concat_tables(tables) if tables else OPS_SCHEMA.empty_table()


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
    ranks: Mapping[int, RankState],
    readers: Mapping[int, int],
    lanes: pa.Table,
    changes: Changes,
    data: DataSet,
) -> _Written:
    """Schedule the changed ranks by their dependencies. readers: of each rank in the capture. lanes: `LANES_SCHEMA`."""
    pacing = Pacing(pace=Pace.STEPS, compute_speed=changes.compute_speed)
    begin_ns = capture.time_span_ns[0]
    times = scheduled(ranks, pacing, begin_ns)
    hdf5 = capture.hdf5
    if changes.chunk_bytes is not None or changes.compression is not None:
        gone = pa.array(list(data.chunk_bytes), type=pa.int32())
        hdf5 = hdf5.filter(pc.invert(pc.is_in(hdf5["file_id"], gone)))
    return _Written(
        operations=lambda rank: [_operations(rank, ranks[rank], times[rank])],
        spans={rank: _spans(rank, state, readers[rank], times[rank]) for rank, state in ranks.items()},
        files=_files(capture.files, ranks.values()),
        hdf5=hdf5,
        lanes=lanes,
        elapsed_ns=max(each.end_ns for each in times.values()) - begin_ns,
    )


def _spans(rank: int, state: RankState, readers_before: int, times: Scheduled) -> pa.Table:
    """The spans of a rank at their new times."""
    if state.spans is None:
        spans = loop_spans(rank, times.loop, own_reads=not state.readers)
    else:
        spans = spans_of(state.spans, state.model.loop, times.loop, wait_name(state.readers, readers_before))
    if times.made_ns is None:
        return spans
    return pa.concat_tables([spans, making_spans(spans, times.loop, times.made_ns)])


def _operations(rank: int, state: RankState, times: Scheduled) -> pa.Table:
    """The operations of a rank at their new times."""
    order = np.argsort(times.start_ns, kind="stable")
    work, fed = state.work, state.fed
    start, lasts = times.start_ns[order], work["duration_ns"][order]
    # What waits for anything but a batch fetch has no number: a reader knows it by its begin.
    follows = np.ma.masked_less(by_fetch(state.model.loop, work["follows"])[order], 0)
    ready = np.where(_ends_batch(work, fed), work["busy_ns"], 0)[order]
    found = {
        "rank": np.full(len(start), rank, dtype=np.int32),
        **{name: work[name][order] for name in _AS_THEY_ARE},
        "start_ns": start,
        "end_ns": start + lasts,
        "step": times.loop.step_at(start),
        "feeds": np.ma.masked_equal(fed[order], NO_FETCH),
        "follows": follows // 2,
        "follows_end": follows % 2,
        "ready_ns": np.ma.masked_equal(ready, 0),
    }
    found |= {name: np.ma.masked_less(found[name], 0) for name in ("other_file_id", "open_flags")}
    return table_from_columns(found, OPS_SCHEMA)


def _ends_batch(work: Work, fed: np.ndarray) -> np.ndarray:
    """bool (n,): the last operation of each batch in each lane."""
    found, feeds = np.zeros(len(fed), dtype=bool), np.flatnonzero(fed != NO_FETCH)
    for _, mine in rows_by_lane(work["lane"][feeds]):
        found[feeds[mine[np.flatnonzero(np.diff(fed[feeds[mine]], append=NO_FETCH))]]] = True
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
