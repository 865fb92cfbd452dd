"""Small captures for tests, written through `traces.store.reader` as every producer writes them.

    capture = build_capture(
        tmp_path,
        files=["/data/train.tfrecord", File("/ckpt/model.h5", format="hdf5")],
        ops=[read(0, offset=0, length=4096), write(1, length=100, rank=1, start_ns=500)],
        spans=[Span("step", start_ns=0, end_ns=2000, step=0)],
    )

Operations come in any order: the builder sorts them. A file without a size gets the smallest that satisfies its
operations; an operation without an end lasts a microsecond.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dxt_replay.traces.schema import (
    APIS,
    COUNTERS,
    FILES_SCHEMA,
    FORMATS,
    LANES_SCHEMA,
    NO_STEP,
    OPS,
    OPS_SCHEMA,
    ORIGINS,
    ROLES,
    SPAN_KINDS,
    SPANS_SCHEMA,
    UNION_THREAD,
    CaptureInfo,
    Job,
    table_from_columns,
)
from dxt_replay.traces.store.index import INDEX_NAME
from dxt_replay.traces.store.reader import Capture, open_capture
from dxt_replay.traces.store.relation import as_source
from dxt_replay.traces.store.writer import (
    ROW_GROUP_ROWS,
    OpsWriter,
    create_capture,
    write_capture_info,
    write_files,
    write_lanes,
    write_spans,
)

DEFAULT_DURATION_NS = 1_000


@dataclass(frozen=True, slots=True)
class Op:
    """One row of `OPS_SCHEMA`, enumerated columns by name; `end_ns` None is a microsecond after the start.

    A rename gets the offset -1; `follows` without `follows_end` is the begin of the fetch.
    """

    op: str
    file_id: int
    offset: int = 0
    length: int = 0
    start_ns: int = 0
    end_ns: int | None = None
    rank: int = 0
    lane: int = 0
    api: str = "POSIX"
    step: int = NO_STEP
    origin: str = "traced"
    due_ns: int | None = None
    result: int | None = None
    feeds: int | None = None
    follows: int | None = None
    follows_end: bool | None = None
    ready_ns: int | None = None
    other_file_id: int | None = None
    open_flags: int | None = None


def read(file_id: int, **columns: Any) -> Op:
    """`Op("read", file_id, **columns)`."""
    return Op("read", file_id, **columns)


def write(file_id: int, **columns: Any) -> Op:
    """`Op("write", file_id, **columns)`."""
    return Op("write", file_id, **columns)


@dataclass(frozen=True, slots=True)
class File:
    """One row of `FILES_SCHEMA`: `path` as text or exact bytes; `size` None is what the operations need.

    `record_id` None is file_id + 1000. `counters` maps names of `traces.schema.COUNTERS` to numbers; the rest are null.
    """

    path: str | bytes
    size: int | None = None
    record_id: int | None = None
    format: str = "other"
    mount: str = "/"
    fs_type: str = "ext4"
    stripe_size: int | None = None
    stripe_count: int | None = None
    coverage: float | None = 1.0
    counters: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Span:
    """One row of `SPANS_SCHEMA`."""

    kind: str
    start_ns: int
    end_ns: int
    name: str = ""
    rank: int = 0
    thread: int = UNION_THREAD
    step: int = NO_STEP
    origin: str = "traced"
    fetched_ns: int | None = None


def build_capture(
    directory: Path,
    *,
    ops: Iterable[Op] = (),
    files: Iterable[File | str | bytes] = (),
    spans: Iterable[Span] = (),
    ranks: Iterable[int] = (),
    info: CaptureInfo | None = None,
    name: str = "test",
    replay_of: Capture | None = None,
    row_group_rows: int = ROW_GROUP_ROWS,
    lanes: pa.Table | None = None,
) -> Capture:
    """Write `directory`/`name`.capture and open it.

    Ranks are those of the operations, the spans and `ranks`, and at least rank 0. `info` replaces capture.json whole,
    in which a capture with `replay_of` says that it is a replay of that one.
    """
    op_list, span_list = list(ops), list(spans)
    path = Path(directory) / f"{name}.capture"
    create_capture(path)
    with OpsWriter(path, row_group_rows=row_group_rows) as writer:
        writer.write(ops_table(op_list))
    write_files(path, files_table(files, op_list))
    write_spans(path, spans_table(span_list))
    if info is None:
        found = {0, *ranks, *(op.rank for op in op_list), *(span.rank for span in span_list)}
        last = max([0, *(_end_ns(op) for op in op_list), *(span.end_ns for span in span_list)])
        info = CaptureInfo(
            job=Job(nprocs=max(found) + 1, run_time_s=last / 1e9, end_ns=last), ranks=tuple(sorted(found))
        )
    if replay_of is not None:
        made_by = {"command": "run", "pace": "timed", "speed": 1.0, **info.made_by}
        info = replace(info, sources=(as_source(replay_of),), made_by=made_by)
    if lanes is not None:
        write_lanes(path, lanes)
    write_capture_info(path, info)
    return open_capture(path)


def lanes_table(rows: Iterable[tuple[int, int, str | None, int | None, str | None]]) -> pa.Table:
    """Table of `LANES_SCHEMA` of (rank, lane, host, pid, role), with the pid as thread, too."""
    rank, lane, host, pid, role = map(list, zip(*rows, strict=True))
    code = np.ma.masked_less([-1 if name is None else ROLES.index(name) for name in role], 0)
    columns = {"rank": rank, "lane": lane, "host": host, "pid": pid, "thread": pid, "role": code}
    return table_from_columns(columns, LANES_SCHEMA)


def with_counts_of(capture: Capture, other: Capture) -> Capture:
    """The capture, opened again, with the counts that the index of another one with as many stretches holds."""
    index, counts = (pq.read_table(each.path / INDEX_NAME) for each in (capture, other))
    place = index.schema.get_field_index("usage")
    pq.write_table(index.set_column(place, index.schema.field(place), counts["usage"]), capture.path / INDEX_NAME)
    return open_capture(capture.path)


def ops_table(ops: Iterable[Op]) -> pa.Table:
    """Table of `OPS_SCHEMA`, sorted by (rank, start_ns), equal starts as given."""
    rows = sorted(ops, key=lambda op: (op.rank, op.start_ns))
    offsets = [-1 if row.op == "rename" else row.offset for row in rows]
    ends = [None if row.follows is None else bool(row.follows_end) for row in rows]
    return _table(rows, OPS_SCHEMA, offset=offsets, end_ns=list(map(_end_ns, rows)), follows_end=ends)


def files_table(files: Iterable[File | str | bytes], ops: Iterable[Op] = ()) -> pa.Table:
    """Table of `FILES_SCHEMA`, numbered in order; sizes not given are the largest end over `ops`."""
    rows = [file if isinstance(file, File) else File(file) for file in files]
    needed = [0] * len(rows)
    for op in ops:
        needed[op.file_id] = max(needed[op.file_id], op.offset + op.length)
    names = [_path_columns(row.path) for row in rows]
    return _table(
        rows,
        FILES_SCHEMA,
        file_id=list(range(len(rows))),
        record_id=[1000 + i if row.record_id is None else row.record_id for i, row in enumerate(rows)],
        path=[shown for shown, _ in names],
        path_bytes=[exact for _, exact in names],
        size=[needed[i] if row.size is None else row.size for i, row in enumerate(rows)],
        **{name: [row.counters.get(name) for row in rows] for name in COUNTERS},
    )


def spans_table(spans: Iterable[Span]) -> pa.Table:
    """Table of `SPANS_SCHEMA`, in the order given."""
    return _table(list(spans), SPANS_SCHEMA)


_VOCABULARY = {"op": OPS, "api": APIS, "origin": ORIGINS, "kind": SPAN_KINDS, "format": FORMATS}


def _table(rows: list[Any], schema: pa.Schema, **columns: list[Any]) -> pa.Table:
    """The rows' attributes of the schema's names, enumerated ones by name; `columns` replace some."""
    for name in set(schema.names) - set(columns):
        if rows and not hasattr(rows[0], name):
            continue
        values = [getattr(row, name) for row in rows]
        if vocabulary := _VOCABULARY.get(name):
            columns[name] = np.array([vocabulary.index(each) for each in values], dtype=np.int8)  # type: ignore[assignment]
        else:
            columns[name] = values
    return table_from_columns(columns, schema)


def _end_ns(op: Op) -> int:
    return op.start_ns + DEFAULT_DURATION_NS if op.end_ns is None else op.end_ns


def _path_columns(path: str | bytes) -> tuple[str, bytes | None]:
    """`path` and `path_bytes` as the contract has them."""
    if isinstance(path, str):
        return path, None
    try:
        return path.decode("utf-8"), None
    except UnicodeDecodeError:
        return path.decode("utf-8", "backslashreplace"), path
