"""Transforms a capture: reads its ranks one by one, changes them, schedules them together, and writes a capture."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dxt_replay.replay.causal.loop import NO_FETCH
from dxt_replay.replay.causal.ranks import steps_of
from dxt_replay.replay.causal.storage_limit import doubt_of_capture
from dxt_replay.replay.plan.layers import choose_layers, spans_by_rank
from dxt_replay.replay.plan.operations import rows_by_lane
from dxt_replay.replay.plan.pacing import Pace, Pacing
from dxt_replay.replay.transform.changes import Changes
from dxt_replay.replay.transform.pipeline import shared_out, with_pipeline
from dxt_replay.replay.transform.rank import (
    MODELLED,
    TRANSFORMED,
    RankState,
    Scheduled,
    Work,
    by_fetch,
    finished,
    moved_origin,
    scheduled,
    source_state,
)
from dxt_replay.replay.transform.requests import RequestCost, check_requests, data_set_of, with_requests
from dxt_replay.replay.transform.spans import copied_spans, spans_at
from dxt_replay.traces import schema
from dxt_replay.traces.measures.span_times import copies_alike
from dxt_replay.traces.plain import Result
from dxt_replay.traces.records import BENCHMARK, generated
from dxt_replay.traces.storage_limit import NO_DOUBT, UNKNOWN, Doubt
from dxt_replay.traces.store import writer as store
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.store.relation import as_source
from dxt_replay.traces.units import format_bytes, format_duration, ns_to_seconds
from dxt_replay.traces.version import VERSION
from dxt_replay.traces.workers import available_bytes

_AS_THEY_ARE = ("lane", "op", "api", "file_id", "offset", "length", "origin", "other_file_id", "open_flags")
"""Columns of the operations that no schedule changes."""


@dataclass(frozen=True, slots=True)
class Totals:
    """Totals of the operations of a capture that a replay issues. elapsed_ns: from its first to its last moment."""

    ranks: int
    operations: int
    reads: int
    bytes_read: int
    elapsed_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformed(Result):
    """The capture that `transform` wrote.

    path: its folder. changes: by name, in the order in which they were applied. assumptions: sentences.
    before, after: totals of the source and of the result. same: whether nothing changed.
    doubt: how far `after` may be believed. generated: as of `traces.records`; not in the JSON."""

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


def transform_capture(capture: Capture, changes: Changes, output: Path, *, force: bool = False) -> Transformed:
    """Write `capture` with these changes to `output`.

    Raises: UsageError if a change has no meaning for the capture; CaptureError for a damaged capture, or a rank without
    training steps; TargetError for `output`."""
    store.check_capture_output(output, force=force)
    layers = choose_layers(capture)
    data = data_set_of(capture, layers)
    check_requests(capture, changes, data, available_bytes())
    steps = steps_of(capture, layers)
    doubt = doubt_of_capture(capture, steps)
    begin_ns, end_ns = capture.time_span_ns
    shares = changes.ranks not in (None, len(capture.ranks)) and not changes.weak
    unchanged, same_lanes = changes.compute_speed == 1.0 and not shares, not shares
    before, notes = np.zeros(4, dtype=np.int64), dict[str, None]()
    ranks, readers = dict[int, RankState](), dict[int, int]()
    for rank in capture.ranks:
        batches = [pa.Table.from_batches([batch.filter(layers.replayed(batch))]) for batch in capture.operations(rank)]
        recorded = source_state(pa.concat_tables([schema.OPS_SCHEMA.empty_table(), *batches]), steps, rank)
        before += _counted(recorded.work)
        state = dataclasses.replace(recorded, work=with_requests(recorded.work, changes, data))
        if changes.pipeline_changes:
            state, assumed = with_pipeline(state, changes)
            notes |= dict.fromkeys(assumed)
        old, new = recorded.work, state.work
        unchanged &= state.model is recorded.model
        unchanged &= all(np.array_equal(new[name], old[name]) for name in new if name != "origin")
        same_lanes &= state.readers == recorded.readers and set(new["lane"].tolist()) == set(old["lane"].tolist())
        ranks[rank], readers[rank] = finished(state), recorded.readers
        del recorded, state, old, new, batches  # two ranks would be in memory while the next one is read
    if shares:
        states, dealt = shared_out((ranks.pop(rank) for rank in capture.ranks), changes.ranks or 0, capture.paths())
        notes |= dict.fromkeys(dealt)
        ranks = dict(enumerate(states))
        readers = {rank: state.readers for rank, state in ranks.items()}
    after = {rank: _counted(state.work) for rank, state in ranks.items()}
    if unchanged:  # all rows of the capture as they are
        spans, files, hdf5 = spans_by_rank(capture.spans, capture.ranks), capture.files, capture.hdf5
        lanes, elapsed_ns = capture.lanes, end_ns - begin_ns

        def operations(rank: int) -> Iterable[pa.Table]:
            return (pa.Table.from_batches([batch]) for batch in capture.operations(rank))
    else:
        times = scheduled(ranks, Pacing(pace=Pace.STEPS, compute_speed=changes.compute_speed), begin_ns)
        spans = {
            rank: spans_at(
                rank,
                state.spans,
                state.model.loop,
                times[rank].loop,
                times[rank].made_ns,
                reads_itself=not state.readers,
                renamed=bool(state.readers) != bool(readers[rank]),
            )
            for rank, state in ranks.items()
        }
        files, hdf5 = _files(capture.files, (state.work for state in ranks.values())), capture.hdf5
        if changes.chunk_bytes is not None or changes.compression is not None:
            gone = pa.array(list(data.chunk_bytes), type=pa.int32())
            hdf5 = hdf5.filter(pc.invert(pc.is_in(hdf5["file_id"], gone)))
        lanes = store.lanes_with_facts(capture.lanes.slice(0, None if same_lanes else 0), ["role"])
        elapsed_ns = max(each.end_ns for each in times.values()) - begin_ns

        def operations(rank: int) -> Iterable[pa.Table]:
            return [_operations(rank, ranks[rank], times[rank])]

    copies = Copies(capture, changes.ranks) if changes.ranks is not None and changes.weak else None
    source_of = {rank: rank for rank in ranks} if copies is None else copies.source_of
    same = unchanged and copies is None
    alike = () if copies is None else copies_alike(capture.spans, changes.ranks or 0)
    assumptions = () if same else (*_assumptions_of(changes, data.cost), *notes, *alike)
    transform = {"changes": changes.as_json(), "assumptions": list(assumptions)}
    working = store.begin_capture(output, force=force)
    try:
        with store.OpsWriter(working) as writer:
            for rank, source in source_of.items():
                for table in operations(source):
                    writer.write(table if copies is None else copies.operations(rank, table))
        if copies is not None:
            spans = {rank: copies.spans(rank, spans[source]) for rank, source in source_of.items()}
            files, hdf5, lanes = copies.files(files), copies.hdf5(hdf5), copies.lanes(lanes)
        store.write_files(working, files)
        store.write_spans(working, pa.concat_tables([schema.SPANS_SCHEMA.empty_table(), *spans.values()]))
        store.write_hdf5(working, hdf5)
        store.write_lanes(working, lanes)
        info = _info(capture, source_of, elapsed_ns, known=not unchanged)
        warnings = tuple(dict.fromkeys((*info.warnings, *alike)))  # which `summary` says
        made_by = {
            **info.made_by,
            "operations_stored": writer.rows,
            "transforms": [*capture.info.made_by.get("transforms", []), transform],
            **({"doubt": doubt.reason} if doubt.state == UNKNOWN else {}),
        }
        store.write_capture_info(working, dataclasses.replace(info, made_by=made_by, warnings=warnings))
        store.publish_capture(working, output, force=force)
    except BaseException:
        store.discard_capture(working)
        raise
    return Transformed(
        path=output,
        changes=changes.as_json(),
        assumptions=assumptions,
        before=_totals([before], end_ns - begin_ns),
        after=_totals([after[source] for source in source_of.values()], elapsed_ns),
        same=same,
        doubt=doubt,
        generated=generated(capture.info),
    )


def _totals(counted: Sequence[np.ndarray], elapsed_ns: int) -> Totals:
    ranks, operations, reads, moved = np.sum(counted, axis=0).tolist()
    return Totals(ranks, operations, reads, moved, elapsed_ns)


def _counted(work: Work) -> np.ndarray:
    """int64 (4,): the fields of `Totals` of one rank, without the time."""
    is_read = work["op"] == schema.READ
    return np.array([1, len(is_read), is_read.sum(), work["length"][is_read].sum()], dtype=np.int64)


def _operations(rank: int, state: RankState, times: Scheduled) -> pa.Table:
    """The operations of a rank at their new times."""
    order = np.argsort(times.start_ns, kind="stable")
    work, fed = state.work, state.fed
    ends_batch, feeds = np.zeros(len(fed), dtype=bool), np.flatnonzero(fed != NO_FETCH)
    for _, mine in rows_by_lane(work["lane"][feeds]):
        ends_batch[feeds[mine[np.flatnonzero(np.diff(fed[feeds[mine]], append=NO_FETCH))]]] = True
    start, lasts = times.start_ns[order], work["duration_ns"][order]
    # What waits for anything but a batch fetch has no number: a reader knows it by its begin.
    follows = np.ma.masked_less(by_fetch(state.model.loop, work["follows"])[order], 0)
    found = {
        "rank": np.full(len(start), rank, dtype=np.int32),
        **{name: work[name][order] for name in _AS_THEY_ARE},
        "start_ns": start,
        "end_ns": start + lasts,
        "step": times.loop.step_at(start),
        "feeds": np.ma.masked_equal(fed[order], NO_FETCH),
        "follows": follows // 2,
        "follows_end": follows % 2,
        "ready_ns": np.ma.masked_equal(np.where(ends_batch, work["busy_ns"], 0)[order], 0),
    }
    found |= {name: np.ma.masked_less(found[name], 0) for name in ("other_file_id", "open_flags")}
    return schema.table_from_columns(found, schema.OPS_SCHEMA)


def _files(files: pa.Table, works: Iterable[Work]) -> pa.Table:
    """The files table. A file with changed requests loses its counters, and gets the size that the requests need."""
    changed, ends = np.zeros(files.num_rows, dtype=bool), np.zeros(files.num_rows, dtype=np.int64)
    for work in works:
        changed[work["file_id"][np.isin(work["origin"], (TRANSFORMED, MODELLED))]] = True
        moves = np.isin(work["op"], (schema.READ, schema.OPS.index("write")))
        np.maximum.at(ends, work["file_id"][moves], np.maximum(work["offset"], 0)[moves] + work["length"][moves])
    columns = {name: files[name] for name in schema.FILES_SCHEMA.names}
    columns["size"] = pa.array(np.where(changed, ends, files["size"].to_numpy()))
    for name in ("coverage", *schema.COUNTERS):
        nothing = pa.nulls(files.num_rows, schema.FILES_SCHEMA.field(name).type)
        columns[name] = pc.if_else(pa.array(changed), nothing, files[name])
    return pa.table(columns, schema=schema.FILES_SCHEMA)


def _assumptions_of(changes: Changes, cost: RequestCost) -> Sequence[str]:
    """The assumptions of the changes, as sentences."""
    found = []
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
    if changes.weak:
        found.append("copied ranks take the recorded times: neither storage nor collectives slow down with more ranks")
    return found


def _info(source: Capture, source_of: Mapping[int, int], elapsed_ns: int, *, known: bool) -> schema.CaptureInfo:
    """capture.json of a changed capture, without its rows and changes. source_of: the recorded rank behind each.
    known: whether the rows hold their dependencies."""
    info, ranks = source.info, tuple(source_of)
    made_by: dict[str, Any] = {"program": "dxt-replay", "version": VERSION, "command": "transform"}
    clock: list[schema.RankClock] = []
    # Rows with known dependencies are at the times of one clock. The dependencies of others are inferred from these
    # facts, for a copy as for its source.
    if not known:
        clock = [
            dataclasses.replace(each, rank=to) for to, of in source_of.items() for each in info.clock if each.rank == of
        ]
        if logs := info.made_by.get("log_writing"):
            made_by["log_writing"] = [[to, *at] for rank, *at in logs for to, of in source_of.items() if of == rank]
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
        coverage=schema.Coverage(bytes=None, operations=None, unseen=info.coverage.unseen),
        dependencies="known" if known else info.dependencies,
        made_by=made_by,
    )


def _with(table: pa.Table, name: str, values: pa.Array | np.ndarray) -> pa.Table:
    """The table with other values in a column."""
    place = table.schema.get_field_index(name)
    return table.set_column(place, table.schema.field(place), pa.array(values))


class Copies:
    """Ranks that do as much as before: copies of the recorded ranks, with copies of the files that only they use.

    source_of: new rank -> the rank that it copies; the first ranks copy themselves."""

    def __init__(self, capture: Capture, ranks: int) -> None:
        sources, users, used = capture.ranks, np.zeros(capture.files.num_rows, dtype=np.int64), {}
        for rank in sources:
            usage = capture.usage(rank)
            other = usage["other_file_id"].to_numpy()
            used[rank] = np.unique(np.concatenate((usage["file_id"].to_numpy(), other[other >= 0])))
            users[used[rank]] += 1
        self.source_of = {rank: sources[rank % len(sources)] for rank in range(ranks)}
        self._private = {rank: files[users[files] == 1] for rank, files in used.items()}  # ids, ascending
        self._count = files = capture.files.num_rows
        self._first_id = dict[int, int]()  # of a copy's own files, which follow in order
        for rank in range(len(sources), ranks):
            self._first_id[rank] = files
            files += len(self._private[self.source_of[rank]])

    def _copied(self, rank: int, table: pa.Table, *names: str) -> pa.Table:
        """The table as one of the rank; in the columns `names` with the ids of its copies of private files."""
        if "rank" in table.column_names:
            table = _with(table, "rank", np.full(table.num_rows, rank, dtype=np.int32))
        private = self._private[self.source_of[rank]]
        if rank in self._first_id and len(private):
            ids = np.arange(self._count, dtype=np.int32)
            ids[private] = self._first_id[rank] + np.arange(len(private))
            for name in names:
                old = table[name]
                new = pa.array(ids[old.fill_null(0).to_numpy()], mask=old.is_null().to_numpy())
                table = _with(table, name, new)
        return table

    def operations(self, rank: int, table: pa.Table) -> pa.Table:
        """Operations of the source, rewritten for the rank."""
        table = self._copied(rank, table, "file_id", "other_file_id")
        if rank not in self._first_id:
            return table
        origin = moved_origin(schema.codes(table, "origin"))
        return _with(table, "origin", schema.dictionary_array(origin, schema.ORIGINS))

    def files(self, files: pa.Table) -> pa.Table:
        """The files, followed by the copies: `/data/a.h5` of rank 7 is `/data/a.rank7.h5`."""
        tables = [files.select(schema.FILES_SCHEMA.names)]
        for rank, first in self._first_id.items():
            mine = tables[0].take(pa.array(self._private[self.source_of[rank]]))
            paths = [f".rank{rank}".join(os.path.splitext(path)) for path in mine["path"].to_pylist()]
            in_bytes = [None if path is None else path + b".rank%d" % rank for path in mine["path_bytes"].to_pylist()]
            changed = {
                "file_id": np.arange(first, first + mine.num_rows, dtype=np.int32),
                "path": pa.array(paths, type=pa.string()),
                "path_bytes": pa.array(in_bytes, type=pa.binary()),
                "record_id": mine["record_id"].to_numpy() ^ np.uint64((rank * 0x9E3779B97F4A7C15) % (1 << 64)),
            }
            for name, values in changed.items():
                mine = _with(mine, name, values)
            tables.append(mine.cast(schema.FILES_SCHEMA))
        return pa.concat_tables([tables[0].cast(schema.FILES_SCHEMA), *tables[1:]])

    def lanes(self, lanes: pa.Table) -> pa.Table:
        """The lanes of all ranks; those of copies have the roles of their sources alone."""
        tables = [schema.LANES_SCHEMA.empty_table()]
        for rank, source in self.source_of.items():
            mine = lanes.filter(pc.equal(lanes["rank"], source))
            tables.append(
                self._copied(rank, store.lanes_with_facts(mine, ["role"]) if rank in self._first_id else mine)
            )
        return pa.concat_tables(tables)

    def hdf5(self, datasets: pa.Table) -> pa.Table:
        """The HDF5 datasets, with those of copied files."""
        tables = [datasets]
        for rank in self._first_id if datasets.num_rows else ():
            private = pa.array(self._private[self.source_of[rank]], type=pa.int32())
            tables.append(self._copied(rank, datasets.filter(pc.is_in(datasets["file_id"], private)), "file_id"))
        return pa.concat_tables(tables).cast(schema.HDF5_SCHEMA)

    def spans(self, rank: int, spans: pa.Table) -> pa.Table:
        """Spans of the source, rewritten for the rank (`copied_spans`)."""
        return self._copied(rank, copied_spans(spans) if rank in self._first_id else spans)
