"""The contract that all parts share: the columns of a capture's tables, and the contents of `capture.json`.

Times are int64 nanoseconds from the capture's zero, on one clock for all ranks. Enumerated columns are
Arrow dictionaries of the names below; inside NumPy code they are int8 codes, the index into the tuple.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from dxt_replay.traces.errors import CaptureError

SCHEMA_VERSION = 5
"""Version of the tables and of `capture.json`. History: 1 (0.1.0): first. 2: operation `rename`, rows that are
reconstructed, and the column `offsets` of the files. 3: the counts of usage lie in `usage/`, no longer in `ops/`.
4: the origins `generated`, `transformed` and `modelled`, the columns `feeds`, `follows` and `ready_ns` of the
operations, and `dependencies` in `capture.json`. 5: `index.parquet` in place of `usage/`; a row group may hold several
ranks; columns `other_file_id`, `follows_end` (`traces.store.checks` has what they were before), `open_flags`,
`first_byte_ns`, `status` and `connection` of the operations; interfaces `MMAP`, `S3` and `S3_REFUSED`, operations
`list` and `delete`; `lanes.parquet`."""

OPS = ("open", "close", "read", "write", "stat", "sync", "seek", "rename", "list", "delete")
APIS = ("POSIX", "MPIIO", "MPIIO_COLL", "STDIO", "HDF5", "MMAP", "S3", "S3_REFUSED")
ORIGINS = ("traced", "reconstructed", "generated", "transformed", "modelled")
FORMATS = ("tfrecord", "hdf5", "npz", "csv", "json", "checkpoint", "other")
OFFSETS = ("as recorded", "repaired", "suspect")
ROLES = ("main", "thread", "worker", "reader")
SPAN_KINDS = ("step", "compute", "input_wait", "pipeline", "checkpoint", "collective", "other")

LEAST_REFUSED = 400
"""HTTP statuses from here on are errors; 0 stands for a failure without a status."""

REFUSED = APIS.index("S3_REFUSED")

READ = OPS.index("read")
WRITE = OPS.index("write")
TRACED = ORIGINS.index("traced")
RECONSTRUCTED = ORIGINS.index("reconstructed")
"""The only origin whose times are inferred from counters: totals and exact comparisons leave its rows out. Rows of all
other origins are known individually."""

NO_STEP = -1
UNION_THREAD = -1
"""`spans.thread` of an interval that is the union over the threads of a rank."""

READING_WAITS = (
    "next_batch",
    "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
    "enumerate(DataLoader)#_StatefulSingleProcessDataLoaderIter.__next__",
)
"""`spans.name` of an `input_wait` in which the training thread itself reads or makes the batch. Under any other name
the thread waits for other threads or processes."""

EVALUATION_NAMES = ("evaluation", "evaluate", "eval", "validation", "validate")
"""`spans.name` of an `other` span in which the model is evaluated; no training step includes that time."""

LOG_WRITING = "log writing"
"""Name of an `other` span in which the loop waits while the recording writes a log. Measures add it; no capture has
it."""

GPU_COMPUTE, TPU_COMPUTE, GPU_STEP = "gpu compute", "tpu compute", "gpu step"
"""`spans.name` of a `compute` on an accelerator, whose number is its `thread`. `gpu compute`, `tpu compute`: something
ran there all the time. `gpu step`: from the begin to the end of what a step had it do, by timing events: gaps between
kernels are included."""

OWN_IO = "own I/O"
"""`spans.name` of an `input_wait` in which the training thread itself reads or writes, outside of its batch fetches."""

BACKGROUND_SAVE, BACKGROUND_WAIT = "checkpoint_async", "checkpoint_wait"
"""`spans.name` of a `checkpoint` in which the training thread starts a save that goes on in the background, and of one
in which it waits for the end of that save."""

BETWEEN_STEPS = "between steps"
"""`spans.name` of an `input_wait` from the end of a marked step to the begin of the next, of a loop that shows none."""

_ENUM = pa.dictionary(pa.int8(), pa.string())
OPEN_FLAGS = ("read", "write", "append", "create", "exclusive", "truncate", "direct", "sync", "sequential", "random")
"""What bit i of `operations.open_flags` stands for. POSIX's own numbers differ by processor architecture. `sequential`:
the program announced sequential reads (POSIX_FADV_SEQUENTIAL), for which the kernel doubles its read-ahead."""

VOCABULARY: Mapping[str, tuple[str, ...]] = {
    "op": OPS,
    "api": APIS,
    "origin": ORIGINS,
    "format": FORMATS,
    "offsets": OFFSETS,
    "kind": SPAN_KINDS,
    "role": ROLES,
}


def _schema(columns: str) -> pa.Schema:
    """The schema of these columns, "name type"; a ? marks a column that may have nulls."""
    lists = {f"list<{each}>": pa.list_(pa.type_for_alias(each)) for each in ("int64", "string")}
    fields = []
    for words in map(str.split, columns.split(",")):
        kind = words[1].removesuffix("?")
        found = _ENUM if kind == "enum" else lists.get(kind) or pa.type_for_alias(kind)
        fields.append(pa.field(words[0], found, nullable=words[1].endswith("?")))
    return pa.schema(fields)


OPS_SCHEMA = _schema(
    "rank int32, lane int32, op enum, api enum, file_id int32, offset int64, length int64, start_ns int64,"
    "end_ns int64, step int32, origin enum, other_file_id int32?, open_flags int16?, first_byte_ns int64?,"
    "status int16?, connection int32?, due_ns int64?, result int64?, feeds int32?, follows int32?,"
    "follows_end bool?, ready_ns int64?"
)
"""One row per operation, sorted by (rank, start_ns). `length` is the number of bytes transferred: a read of 0 met the
end of the file. `offset` is -1 where the source does not know it. `due_ns` and `result` (bytes, or -errno) are null
except in replays.

Operations other than read and write have length 0 and offset -1, except that the offset of a `seek` is the new
position. `other_file_id`: the file_id of a rename's new name; null for other operations. `open_flags`: the
flags of an `open`, bit i for `OPEN_FLAGS[i]`; null for other operations, and where the source does not record them, as
Darshan does not. At MMAP, an `open` is a mapping and a `read` the use of whole pages of it, whose times are those of
its page faults. A `sync` is fsync or fdatasync at POSIX, and a flush of the stream's buffer at STDIO.

A request to an object store (`S3`) is a row each time that it is sent. `first_byte_ns`: the time from its start until
its answer began. `status`: the HTTP status, 0 if no answer came or the client's error names none. `connection`: its
number among those of the rank. They are null where the source does not tell, and at other interfaces. The file of a
`list` is a folder: its path ends in `/`. A read or write that the store refused, or that failed (`status` 0 or from
LEAST_REFUSED on), moved nothing: it stands at `S3_REFUSED`, which no total counts and no replay sends
(`traces.layers`).

`reconstructed` rows are made from counters: their number and the interval that holds them are exact, their times within
it are inferred. `generated` rows come from a workload description; `transformed` ones were changed by an exact rule,
`modelled` ones by a rule that is not exact.

`feeds`, `follows`, `follows_end` and `ready_ns` say what an operation waits for; they are null unless
`CaptureInfo.dependencies` is `known`. The batch fetches of a rank are its `input_wait` spans in start order, counted
from 0 over the whole run.
`feeds`: the fetch that waits for the operation; null if none does.
`follows`: the fetch that lets the operation begin; null if only its lane holds it up.
`follows_end`: whether the end of that fetch lets it begin (true) or its begin (false); null where `follows` is.
`ready_ns`, on the last operation of a batch: time from the operation's end until its batch is ready; null for 0."""

LEFT_OUT: Mapping[str, Any] = {"step": NO_STEP, "origin": "traced", "format": "other", "mount": "", "fs_type": ""}
"""Default of a column without nulls that a writer leaves out. `record_id` is derived from the path."""

LANES_SCHEMA = _schema("rank int32, lane int32, host string?, pid int64?, thread int64?, role enum?")
"""One row per lane with operations, sorted by (rank, lane); null where the source does not know.

host: name of the machine. pid: process id. thread: the kernel's thread id.
role: of the lane in the job, also in a replay. `main` is the main thread of the rank's own process (in a generated
capture the training thread), `thread` another thread of that process, `worker` any thread of another process that the
rank started, `reader` a generated lane that reads ahead of the training thread."""

USAGE_SCHEMA = _schema(
    "rank int32, lane int32, op enum, api enum, origin enum, file_id int32, other_file_id int32, operations int64,"
    "least_length int64, reach int64"
)
"""Usage of each file by each lane: one row per rank, lane, op, api, origin and file. `other_file_id`: file_id of a
rename's new name, else -1; `operations`: their number; `least_length`: the shortest length in bytes; `reach`: the
furthest end, max(offset, 0) + length in bytes."""

INDEX_SCHEMA = _schema(
    "part string, part_bytes int64, digest string, row_group int32, rank int32, rows int64, first_ns int64,"
    "last_start_ns int64, last_ns int64"
).append(pa.field("usage", pa.list_(pa.struct([field for field in USAGE_SCHEMA if field.name != "rank"]))))
"""One row per stretch of the op stream: the operations of one rank in one row group. `part`: name of the file in
`ops/`, with its size and its SHA-256. `first_ns`, `last_start_ns`: when the first and the last of its operations start;
`last_ns`: when the last one ends. `usage`: on the last stretch of a rank, the usage by all of its operations
(`USAGE_SCHEMA`); null on the others."""

FILE_METADATA: Mapping[str, str] = {
    "dxt_replay.schema_version": str(SCHEMA_VERSION),
    "dxt_replay.units": "times: ns from job.zero_ns of capture.json; sizes, offsets and lengths: bytes",
}
"""Key-values of every Parquet file of a capture."""

BY_RANK_AND_START = (("rank", "ascending"), ("start_ns", "ascending"))
"""The order of operations within a row group, and of all spans."""

DEPENDENCY_COLUMNS = ("feeds", "follows", "follows_end", "ready_ns")
"""The columns of `OPS_SCHEMA` that hold the dependencies of an operation."""

COUNTERS = (
    "posix_opens", "posix_reads", "posix_writes", "posix_seeks", "posix_stats", "posix_fsyncs", "posix_fdsyncs",
    "posix_bytes_read", "posix_bytes_written", "posix_seq_reads", "posix_seq_writes",
    "posix_consec_reads", "posix_consec_writes",
    "stdio_opens", "stdio_reads", "stdio_writes", "stdio_seeks", "stdio_flushes",
    "stdio_bytes_read", "stdio_bytes_written",
    "mpiio_reads", "mpiio_writes", "mpiio_bytes_read", "mpiio_bytes_written",
    "h5d_reads", "h5d_writes", "h5d_bytes_read", "h5d_bytes_written",
)  # fmt: skip
"""Darshan counters kept per file, summed over the ranks; null where the module did not record the file."""

FILES_SCHEMA = _schema(
    "file_id int32, record_id uint64, path string, path_bytes binary?, size int64, format enum, mount string,"
    "fs_type string, stripe_size int64?, stripe_count int32?, coverage double?, offsets enum?,"
    + ",".join(f"{name} int64?" for name in COUNTERS)
)
"""One row per file, row i has file_id i. `path` shows a name that is not UTF-8 with `\\xNN` escapes and
`path_bytes` then holds it exactly (null otherwise). `size`: the smallest that satisfies all accesses where the
true size is unknown. `coverage`: traced bytes / counted bytes, null where nothing was counted. `offsets`: whether the
offsets of its reads and writes are as recorded, were repaired, or may be wrong; null where they were not examined."""

SPANS_SCHEMA = _schema(
    "rank int32, thread int64, kind enum, name string, step int32, start_ns int64, end_ns int64, origin enum?,"
    "fetched_ns int64?"
)
"""One row per span, sorted by (rank, start_ns). `step` spans of one rank do not overlap. `compute` spans are a
union over threads (thread UNION_THREAD) and disjoint. The others may nest. A `step` span without a number is a piece of
a step, in a part of a capture whose window cuts it. `origin`: `reconstructed` for steps that no profile shows and for
inferred meetings of ranks; null or `traced` for all others. `fetched_ns`: the end of the batch fetch (`input_wait`)
that first used what a `pipeline` span made; null where unknown. Spans `make batch`: see docs/capture-format.md."""

HDF5_SCHEMA = _schema(
    "file_id int32, dataset string, type_size int64, points int64, shape list<int64>?, chunk_shape list<int64>?,"
    "filters list<string>?, chunk_index list<int64>?, chunk_offset list<int64>?, chunk_size list<int64>?,"
    "chunk_mask list<int64>?"
)
"""One row per HDF5 dataset that the source knows; the table may be empty. Dimensions slowest first; `chunk_shape` is
empty for a contiguous dataset, null where it is not known, as are `shape` and `filters`. The `chunk_` lists hold the
stored chunks where the file itself was looked at, else null: number of the chunk in row-major order, its address in the
file, its stored bytes, and the mask of the filters that it skipped. A contiguous dataset is one chunk."""


def dictionary_array(codes: np.ndarray, vocabulary: tuple[str, ...]) -> pa.DictionaryArray:
    """Arrow dictionary over the whole `vocabulary` from int8 codes, without copying them; masked ones are null."""
    mask = np.ma.getmaskarray(codes) if isinstance(codes, np.ma.MaskedArray) else None
    indices = pa.array(np.ascontiguousarray(np.ma.getdata(codes), dtype=np.int8), mask=mask)
    return pa.DictionaryArray.from_arrays(indices, _names(vocabulary))


@cache
def _names(vocabulary: tuple[str, ...]) -> pa.StringArray:
    return pa.array(vocabulary, type=pa.string())


def codes(batch: pa.RecordBatch | pa.Table, column: str) -> np.ndarray:
    """int8 codes of an enumerated column, in the contract's numbering whatever dictionary the file used.

    Raises: CaptureError for a name that the contract does not have.
    """
    vocabulary = VOCABULARY[column]
    data = batch.column(column)
    chunks = data.chunks if isinstance(data, pa.ChunkedArray) else [data]
    parts = [_chunk_codes(chunk, vocabulary, column) for chunk in chunks]
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int8)


def _chunk_codes(chunk: pa.DictionaryArray, vocabulary: tuple[str, ...], column: str) -> np.ndarray:
    if chunk.dictionary.equals(_names(vocabulary)):
        return chunk.indices.to_numpy(zero_copy_only=False).astype(np.int8, copy=False)
    names = chunk.dictionary.to_pylist()
    unknown = [name for name in names if name not in vocabulary]
    if unknown:
        raise CaptureError(
            f"column {column!r} holds {unknown[0]!r}, which this release does not know: update dxt-replay"
        )
    indices = chunk.indices.to_numpy(zero_copy_only=False)
    if tuple(names) == vocabulary[: len(names)]:
        return indices.astype(np.int8, copy=False)
    translate = np.array([vocabulary.index(name) for name in names], dtype=np.int8)
    return translate[indices]


def table_from_columns(columns: Mapping[str, Any], schema: pa.Schema) -> pa.Table:
    """Table of `schema` from NumPy arrays (or scalars, repeated); enumerated columns as int8 codes.

    Nullable columns may be missing or hold a masked array or, unless enumerated, a list with None.
    """
    rows = next(len(value) for value in columns.values() if not np.isscalar(value))
    arrays = []
    for column in schema:
        value = columns.get(column.name)
        if value is None:
            arrays.append(pa.nulls(rows, type=column.type))
            continue
        if np.isscalar(value):
            value = [value] * rows if isinstance(value, (str, bytes)) else np.full(rows, value)
        if pa.types.is_dictionary(column.type):
            arrays.append(dictionary_array(np.asanyarray(value), VOCABULARY[column.name]))
        elif isinstance(value, np.ma.MaskedArray):
            mask = np.ma.getmaskarray(value)
            # The names of Arrow's numbers are NumPy's; `to_pandas_dtype` of older releases imports pandas.
            data = np.ascontiguousarray(value.data, dtype=np.dtype(str(column.type)))
            arrays.append(pa.array(data, type=column.type, mask=mask))
        else:
            arrays.append(pa.array(value, type=column.type))
    return pa.Table.from_arrays(arrays, schema=schema)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The job that was captured. `start_ns` and `end_ns` are CLOCK_REALTIME; `zero_ns` is the capture's zero there."""

    nprocs: int
    run_time_s: float
    start_ns: int = 0
    end_ns: int = 0
    zero_ns: int = 0
    job_id: int = 0
    exe: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A file that the capture was made from. `kind`: darshan, strace, dftracer, xplane, kineto ... or capture."""

    name: str
    sha256: str
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RankClock:
    """How the log times of one rank were placed: capture time = log time + offset_ns.

    rank: the rank of the process.
    method: anchors, nesting, wall or seconds: the evidence for the offset.
    interval_ns: the values of offset_ns that the evidence allows, both ends included.
    residual_ns: half the width of the interval, or the spread.
    worker: 0 for the rank's own process, 1, 2 ... for its data-loader workers, whose logs have clocks of their own.
    """

    rank: int
    method: str
    offset_ns: int
    residual_ns: int
    interval_ns: tuple[int, int]
    worker: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Unseen:
    """Bytes that a job read, or wrote to an object store, and that no trace holds.

    kind: mapped (page faults of a mapped file), socket (received from a peer), objects (calls of an object store, which
    counters hold), process (read more than its log explains, or left none) or all (no I/O was recorded).
    name: the path, "address:port", the interface, or the program.
    bytes: a lower bound; None where it is unknown, 0 for a mapped file whose reads are all in the capture.
    """

    kind: Literal["mapped", "socket", "objects", "process", "all"]
    name: str
    bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Trace coverage: traced / (counted + unseen), 1.0 where everything was traced; None where it is not known.

    bytes, operations: coverage of the whole job. ranks: rank -> (bytes, operations), coverage of the counted I/O.
    without_streams: (bytes, operations) without the C library's streams, which DXT never traces and which are rebuilt
    from counters; None if nothing went through them.
    unseen: I/O that is not counted as POSIX, MPI-IO or STDIO either; `operations` leaves it out.
    """

    bytes: float | None
    operations: float | None
    ranks: Mapping[int, tuple[float | None, float | None]] = field(default_factory=dict)
    without_streams: tuple[float | None, float | None] | None = None
    unseen: tuple[Unseen, ...] = ()

    @property
    def traceable(self) -> tuple[float | None, float | None]:
        """(bytes, operations): traced share of the I/O that DXT can trace. Below 1, a part of the trace is missing."""
        return (self.bytes, self.operations) if self.without_streams is None else self.without_streams


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureInfo:
    """Contents of `capture.json`. `lanes`: `pthread_id`, `overlap` (inferred) or `recorded`.

    `dependencies`: `known` if the DEPENDENCY_COLUMNS say what operations wait for; `inferred` if
    the times must tell.
    `made_by`: program, version and command; for a replay also the fields that `traces.records` reads.
    `digests`: path below the capture -> SHA-256 of the file (`traces.store.digests`); those of the parts are in the
    index. None in captures of old releases and of other writers.
    """

    job: Job
    ranks: tuple[int, ...]
    sources: tuple[Source, ...] = ()
    clock: tuple[RankClock, ...] = ()
    coverage: Coverage = Coverage(bytes=None, operations=None)
    lanes: str = "overlap"
    dependencies: Literal["inferred", "known"] = "inferred"
    warnings: tuple[str, ...] = ()
    partial: bool = False
    made_by: Mapping[str, Any] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION
