"""The tables of the analysis: the subject of each, its columns, and each column's type, unit, head and meaning.

Schemas, `--show`, `--help`, the tables for people and the reference of the site are derived from these descriptions.
A table with a `query` is made by it (`analysis.queries` has the relations that it may use): a new one needs nothing
else but its new columns.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dxt_replay.profiler_merge.analysis.finding import Finding
from dxt_replay.traces.text import UNITS

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Column:
    """A column; it is the same in every table. `type`: Arrow's name. `head`: for people, if not the name without its
    unit."""

    meaning: str
    type: str = "int64"
    head: str = ""


COLUMNS: Mapping[str, Column] = {
    "above_fastest_pct": Column(
        "how much longer than at the last speed of the same quantity, which is infinite", "double"
    ),
    "answer": Column(
        "done, error (a status from 400 on: no bytes of data), or failed (no status known); empty where nothing is "
        "known",
        "string",
    ),
    "at_stake_of": Column("what at_stake_pct is of: the training loop or the run", "string"),
    "at_stake_pct": Column("the most that a perfect remedy could gain, of at_stake_of", "double"),
    "at_stake_s": Column(
        "the most that a perfect remedy could gain, of storage no more than infinitely fast storage would; "
        "empty where not known",
        "double",
    ),
    "bin": Column("name of the size class", "string"),
    "bytes": Column("bytes moved; of a dataset, its size in memory"),
    "bytes_read": Column("bytes of traced reads", head="read"),
    "bytes_written": Column("bytes of traced writes", head="written"),
    "checkpoint_in_loop_ns": Column("saving and restoring, within the training loop"),
    "checkpoint_ns": Column("saving and restoring"),
    "calls": Column("operations, metadata included; in the table dependencies those in a row"),
    "chunk": Column("shape of a chunk; empty for a contiguous dataset", "string"),
    "chunk_bytes": Column("size of a chunk before the filter", head="chunk size"),
    "chunks_stored": Column("chunks that the file holds"),
    "code": Column("short name of the finding, which does not change", "string"),
    "collective_in_loop_ns": Column("inside collectives, waiting for other ranks included, within the training loop"),
    "collective_ns": Column("inside collectives, waiting for other ranks included"),
    "compute_busy_share": Column(
        "share of the bin in which the profiled ranks computed, their mean; empty without a profile", "double"
    ),
    "compute_in_loop_ns": Column("computing, within the training loop"),
    "compute_ns": Column("computing"),
    "consecutive": Column("accesses that begin at the byte after the previous one"),
    "dataset": Column("path of the dataset within its file", "string"),
    "duration_ns": Column("from the start of the step to its end, without evaluations"),
    "elapsed_ns": Column("how long the training takes, from the first operation or event to the last"),
    "evaluation_ns": Column("evaluating the model, of a step within it; in no other column"),
    "evaluations": Column("evaluations of the model, also before and after the training loop"),
    "evidence": Column("the numbers behind the finding, as a sentence", "string"),
    "excess_ns": Column("duration above the median of the rank's steps", head="above the median"),
    "file_id": Column("number of the file in files.parquet", "int32"),
    "files": Column("paths of the worst, a line each; in the table ranks: files that the rank read or wrote"),
    "filter": Column("compression: gzip, lzf, szip; empty for none", "string"),
    "first_byte_p50_ns": Column(
        "from the request to the begin of its answer, median; empty where the client does not tell",
        head="first byte, p50",
    ),
    "first_byte_p99_ns": Column("the same, 99th percentile", head="first byte, p99"),
    "follows": Column("what lets them begin; empty where they wait for their lane alone", "string"),
    "format": Column("kind of the file, such as tfrecord, hdf5 or checkpoint", "string"),
    "gap_checkpoint_ns": Column("saving between the step's end and the next step's start"),
    "gap_ns": Column("from the step's end to the start of the next, without evaluations; 0 for the last"),
    "group": Column("the rank, path, format, step or size class", "string"),
    "host": Column("name of the machine", "string"),
    "in_flight_max": Column("most operations in flight at any instant"),
    "in_flight_mean": Column("operations in flight, mean over the time of the bin", "double"),
    "input_wait_in_loop_ns": Column("waiting for the next batch, within the training loop"),
    "input_wait_ns": Column("waiting for the next batch"),
    "interface": Column("POSIX, STDIO, MPIIO or HDF5", "string"),
    "io_busy_share": Column("share of the bin with a read or write in flight, mean of the ranks", "double"),
    "io_exposed_ns": Column("I/O outside compute", head="outside"),
    "io_hidden_ns": Column("I/O inside compute", head="inside compute"),
    "io_in_checkpoint_ns": Column("I/O inside saving and restoring"),
    "io_in_collective_ns": Column("I/O inside collectives"),
    "io_in_evaluation_ns": Column("I/O inside evaluations"),
    "io_in_loop_ns": Column("I/O within the training loop"),
    "io_in_wait_ns": Column("I/O inside input wait"),
    "io_ns": Column(
        "time in traced reads and writes: union in overlap and steps, sum of the durations in the other tables",
        head="I/O",
    ),
    "lane": Column("number of the lane: a thread or worker of the rank", "int32"),
    "least_bytes": Column("smallest size, included"),
    "loop_ns": Column("from the start of the first step to the end of the last, without evaluations"),
    "mean_bytes": Column("mean size", "double"),
    "metadata_ns": Column("sum of the durations of traced opens, closes, stats, syncs and seeks"),
    "most_bytes": Column("largest size, included; empty for no limit"),
    "multiple": Column("how many times as fast as recorded; empty for infinitely fast", "double"),
    "name": Column("key of the object `model`, with dots between", "string"),
    "needed_by": Column("what of the training thread waits for them; empty where nothing does", "string"),
    "op": Column("read or write; in the table requests any operation", "string"),
    "operations": Column("reads and writes"),
    "origin": Column("traced, reconstructed from counters, generated, transformed or modelled", "string"),
    "other_operations": Column("traced opens, closes, stats, syncs and seeks"),
    "path": Column("as recorded", "string", head="file"),
    "pattern": Column(
        "what most accesses are: consecutive, strided, sequential, random; empty below 2 accesses", "string"
    ),
    "pid": Column("process id"),
    "pipeline_ns": Column("I/O, or work on input"),
    "profiled": Column("whether the rank has spans of a profile", "bool"),
    "quantity": Column("what is faster or slower: speed (all of storage), bandwidth or latency", "string"),
    "random": Column("accesses whose place does not follow from the two before"),
    "rank": Column("number of the rank; -1: all ranks together", "int32"),
    "ranks": Column("ranks that accessed the file"),
    "read_by_several_bytes": Column("bytes that more than one rank read", head="read by several ranks"),
    "read_mib_s": Column("bandwidth of reads", "double"),
    "reads": Column("traced reads"),
    "ready_ns": Column("how long the lane then makes their batch ready"),
    "reconstructed": Column("operations from counters, which are in no other column"),
    "reconstructed_bytes": Column("bytes of operations from counters", head="from counters"),
    "reconstructed_io_ns": Column("time in reads and writes from counters, which is in no other column"),
    "reconstructed_metadata_ns": Column("time in metadata operations from counters"),
    "reconstructed_operations": Column("operations from counters"),
    "records": Column("records in the file"),
    "remedy": Column("what to do, as a sentence", "string"),
    "reread_bytes": Column("bytes that a rank read again", head="read again"),
    "rest_ns": Column("time of the step that no span covers"),
    "requests": Column("requests to object stores, those that were sent again included"),
    "restarts": Column("accesses that begin again at a place before"),
    "role": Column(
        "main: main thread of the rank's own process, or the generated training thread; thread: another thread of that "
        "process; worker: a thread of another process of the rank; reader: a generated lane that reads ahead",
        "string",
    ),
    "sequential": Column("accesses at a higher offset than the previous one"),
    "severity": Column("high, warning or info", "string"),
    "shape": Column("sizes of the dimensions, such as 3x520x520", "string"),
    "share": Column("share of the operations, 0 to 1", "double"),
    "shared_files": Column("files that another rank accessed too"),
    "size_bytes": Column("size of the file, or of the requests", head="size"),
    "small_reads": Column("reads of less than a stripe of the file (1 MiB without stripes) and less than the file"),
    "small_writes": Column("writes of less than a stripe of the file (1 MiB without stripes) and less than the file"),
    "start_ns": Column("start, from the capture's zero", head="began at"),
    "status": Column(
        "HTTP status; 0: no answer came, or the client gave an error without one; empty where not known", "int32"
    ),
    "step": Column("number of the step", "int32"),
    "steps": Column("training steps"),
    "stored_bytes": Column("size of the dataset in the file"),
    "strided": Column("accesses at the same distance as the one before"),
    "think_ns": Column("how long the lane is busy before and between them, without waiting"),
    "thread": Column("the kernel's thread id"),
    "threshold": Column("the limit that was passed, as a sentence", "string"),
    "time_p50_ns": Column("from the request to the last byte of its answer, median", head="time, p50"),
    "time_p99_ns": Column("the same, 99th percentile", head="time, p99"),
    "title": Column("the finding, as a sentence", "string"),
    "type": Column("type of an element", "string"),
    "unique_bytes_read": Column("different bytes that were read"),
    "value": Column("its value, as text", "string"),
    "values": Column("numbers of the evidence, as a JSON object with the units in the names", "string"),
    "utilisation_pct": Column(
        "accelerator utilisation: compute, of the training loop; empty where no compute is known", "double"
    ),
    "why": Column(
        "the part of the step that is furthest above its median; empty where none is", "string", head="most of that in"
    ),
    "why_excess_ns": Column("how far that part is above its median", head="how much"),
    "write_mib_s": Column("bandwidth of writes", "double"),
    "writes": Column("traced writes"),
}
"""Every column of the tables, by name."""

COUNTS = (
    "reads", "writes", "bytes_read", "bytes_written", "io_ns", "sequential", "consecutive", "strided", "restarts",
    "random", "small_reads", "small_writes", "other_operations", "metadata_ns", "reconstructed_operations",
    "reconstructed_metadata_ns", "reconstructed_bytes",
)  # fmt: skip
"""Sums over the operations of a rank and file. `sequential` and `consecutive` are Darshan's definitions, without its
reset at an open; `strided`, `restarts` and `random` are explained in `rank_files`."""

SUMMED = (*COUNTS, "unique_bytes_read", "reread_bytes")
"""Quantities of a rank and file that can be added over files. Over ranks all but `unique_bytes_read` can: its sum
counts bytes once per rank."""

USUAL_STRIPE_BYTES = 1 << 20
"""Lustre's default stripe (lfs-setstripe), and the size below which Drishti calls a request small."""

OF_IO = frozenset(
    {
        *SUMMED, "files", "shared_files", "operations", "io_hidden_ns", "io_exposed_ns", "io_in_evaluation_ns",
        "io_in_wait_ns", "io_in_collective_ns", "io_in_checkpoint_ns", "io_in_loop_ns", "pipeline_ns",
        "reconstructed_io_ns", "read_mib_s", "write_mib_s", "in_flight_mean", "in_flight_max", "io_busy_share",
        "reconstructed",
    }
)  # fmt: skip
"""Columns that are null in the tables of ranks, steps and times if the capture recorded no I/O."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """`about`: a line for --help; `row`: what a row stands for. `texts`: columns that hold text here and numbers
    elsewhere. `query`: SQL whose result has the columns; empty where Python makes the table."""

    about: str
    row: str
    columns: tuple[str, ...]
    texts: tuple[str, ...] = ()
    query: str = ""

    @property
    def schema(self) -> pa.Schema:
        """The columns as Arrow has them."""
        import pyarrow as pa

        types = {name: "string" if name in self.texts else COLUMNS[name].type for name in self.columns}
        return pa.schema([(name, pa.type_for_alias(type_)) for name, type_ in types.items()])


_DARSHAN_LIMITS = (
    (100, "0_100"), (1 << 10, "100_1K"), (10 << 10, "1K_10K"), (100 << 10, "10K_100K"), (1 << 20, "100K_1M"),
    (4 << 20, "1M_4M"), (10 << 20, "4M_10M"), (100 << 20, "10M_100M"), (1 << 30, "100M_1G"), (None, "1G_PLUS"),
)  # fmt: skip
"""Largest size of each of Darshan's classes, inclusive (DARSHAN_BUCKET_INC in darshan-common.h), and its name as in
POSIX_SIZE_READ_0_100."""

_POWER_LIMITS = ((0, "0"), *(((2 << power) - 1, f"2^{power}") for power in range(63)))

_CLASS = ("interface", "op", "origin")
_BINS = (*_CLASS, "bin", "least_bytes", "most_bytes", "operations", "bytes")


def _sizes_query(limits: Sequence[tuple[int | None, str]]) -> str:
    """Requests of each class of sizes. `limits`: the largest size of each, ascending, and its name."""
    bins, cases, least = [], [], 0
    for place, (most, name) in enumerate(limits):
        bins.append(f"({place}, '{name}', {least}, {'NULL' if most is None else most})")
        cases.append(f"ELSE {place}" if most is None else f"WHEN length <= {most} THEN {place}")
        least = (most or 0) + 1
    return f"""SELECT {", ".join(_BINS)} FROM (SELECT interface, op, origin, CASE {" ".join(cases)} END AS place,
            count(*) AS operations, sum(length)::BIGINT AS bytes FROM ops WHERE data GROUP BY ALL)
        JOIN (VALUES {", ".join(bins)}) AS bins (place, bin, least_bytes, most_bytes) USING (place)
        ORDER BY interface, op, origin, place"""


def _percentile(time: str, share: float) -> str:
    """The smallest value that this share of those that are known does not exceed."""
    known = f"({time}) FILTER ({time} >= 0)"
    return f"list({time} ORDER BY {time}) FILTER ({time} >= 0)[greatest(ceil(count{known} * {share}), 1)::BIGINT]"


TRANSFER_TOTALS = """count(*) FILTER (op = 'read') AS reads, count(*) FILTER (op = 'write') AS writes,
    coalesce(sum(length) FILTER (op = 'read'), 0)::BIGINT AS bytes_read,
    coalesce(sum(length) FILTER (op = 'write'), 0)::BIGINT AS bytes_written, sum(end_ns - start_ns)::BIGINT AS io_ns"""
_TOTALS = ("reads", "writes", "bytes_read", "bytes_written")

TABLES: Mapping[str, Table] = {
    "findings": Table(
        about="what stands out, with evidence, what is at stake, and a remedy",
        row="One row per finding, the gravest first.",
        columns=tuple(each.name for each in dataclasses.fields(Finding)),
        texts=("files",),
    ),
    "overlap": Table(
        about="compute, input wait and I/O of each rank, and how much I/O compute hides",
        row="One row per rank. Times of spans are 0 where the rank was not profiled.",
        columns=(
            "rank", "profiled", "steps", "evaluations", "loop_ns", "compute_ns", "input_wait_ns", "collective_ns",
            "checkpoint_ns", "compute_in_loop_ns", "input_wait_in_loop_ns", "collective_in_loop_ns",
            "checkpoint_in_loop_ns", "evaluation_ns", "io_ns", "io_hidden_ns", "io_exposed_ns", "io_in_evaluation_ns",
            "io_in_wait_ns", "io_in_collective_ns", "io_in_checkpoint_ns", "io_in_loop_ns", "pipeline_ns",
            "reconstructed_io_ns",
        ),
    ),
    "steps": Table(
        about="the slowest training steps, and what they are slow by",
        row="One row per rank and training step.",
        columns=(
            "rank", "step", "start_ns", "duration_ns", "evaluation_ns", "compute_ns", "input_wait_ns",
            "collective_ns", "checkpoint_ns", "rest_ns", "io_ns", "io_hidden_ns", "io_exposed_ns", "io_in_wait_ns",
            "gap_ns", "gap_checkpoint_ns", "operations", "bytes_read", "bytes_written", "excess_ns", "why",
            "why_excess_ns",
        ),
    ),
    "sizes": Table(
        about="how large requests are, in powers of two",
        row="One row per power of two that holds any request.",
        columns=_BINS,
        query=_sizes_query(_POWER_LIMITS),
    ),
    "darshan-sizes": Table(
        about="how large requests are, in Darshan's ten classes",
        row="One row per class of Darshan's that holds any request.",
        columns=_BINS,
        query=_sizes_query(_DARSHAN_LIMITS),
    ),
    "exact-sizes": Table(
        about="the most frequent request sizes",
        row="The most frequent request sizes; a row with an empty size is all others.",
        columns=(*_CLASS, "size_bytes", "operations", "bytes", "share"),
        query="""WITH every AS (SELECT interface, op, origin, length, count(*) AS times
                FROM ops WHERE data GROUP BY ALL),
            ordered AS (SELECT *, row_number() OVER (
                PARTITION BY interface, op, origin ORDER BY times DESC, length) AS place, sum(times) OVER same AS whole
                FROM every WINDOW same AS (PARTITION BY interface, op, origin))
            SELECT interface, op, origin, least(place, 21) AS shown, min(length) FILTER (place <= 20) AS size_bytes,
            sum(times)::BIGINT AS operations, sum(times * length)::BIGINT AS bytes,
            sum(times) / first(whole) AS share
            FROM ordered GROUP BY interface, op, origin, shown ORDER BY interface, op, origin, shown""",
    ),
    "files": Table(
        about="files by the I/O time that they cost",
        row="One row per file that was accessed; counts are over all ranks.",
        columns=(
            "file_id", "path", "format", "size_bytes", "ranks", *SUMMED, "read_by_several_bytes", "pattern",
        ),
    ),
    "ranks": Table(
        about="files, bytes, I/O and metadata time of each rank",
        row="One row per rank.",
        columns=("rank", "files", "shared_files", *SUMMED),
    ),
    "rank-files": Table(
        about="what each rank does to each file",
        row="One row per rank and file that it accessed.",
        columns=("rank", "file_id", "path", "format", *SUMMED, "pattern"),
    ),
    "lanes": Table(
        about="lanes with their host, process, thread and role",
        row="One row per lane with operations; a fact that the source does not tell is empty.",
        columns=("rank", "lane", "role", "host", "pid", "thread", "calls"),
        query="""SELECT rank, lane, role, host, pid, thread, calls
            FROM (SELECT rank, lane, count(*) AS calls FROM ops GROUP BY ALL) LEFT JOIN lanes USING (rank, lane)
            ORDER BY rank, lane""",
    ),
    "requests": Table(
        about="requests to object stores: errors, and times to the first byte",
        row="One row for each operation and HTTP status of requests to object stores.",
        columns=(
            "op", "status", "answer", "requests", "bytes", "first_byte_p50_ns", "first_byte_p99_ns", "time_p50_ns",
            "time_p99_ns",
        ),
        query=f"""SELECT op, status, count(*) AS requests, sum(greatest(length, 0))::BIGINT AS bytes,
            CASE WHEN status = 0 THEN 'failed' WHEN status >= 400 THEN 'error'
                WHEN status IS NOT NULL THEN 'done' END AS answer,
            {_percentile("first_byte_ns", 0.5)} AS first_byte_p50_ns,
            {_percentile("first_byte_ns", 0.99)} AS first_byte_p99_ns,
            {_percentile("(end_ns - start_ns)", 0.5)} AS time_p50_ns,
            {_percentile("(end_ns - start_ns)", 0.99)} AS time_p99_ns
            FROM ops WHERE interface = 'S3' GROUP BY op, status ORDER BY op, status NULLS FIRST""",
    ),
    "dependencies": Table(
        about="the causal model: what reads wait for, and what waits for them",
        row="The causal model of `run --pace steps`: one row for operations of a lane, one after the other, that the "
        "same event of the training thread waits for and that follow the same moment. Events of a kind are counted "
        "from 0; `making batch` is the work of an input pipeline on one.",
        columns=("rank", "lane", "needed_by", "follows", "calls", "bytes", "start_ns", "think_ns", "ready_ns"),
    ),
    "model": Table(
        about="the model behind `run --pace steps`: what feeds each step, and how well it predicts",
        row="The causal model of `run --pace steps` and its evidence, one row per value. `--json` has it as the object "
        "`model`.",
        columns=("name", "value"),
    ),
    "storage-limit": Table(
        about="how long the training takes on faster and slower storage",
        row="How long the training takes on faster and slower storage, by its causal model: one row per speed. "
        "`bandwidth` and `latency` are there where requests of several sizes show them apart.",
        columns=("quantity", "multiple", "elapsed_ns", "above_fastest_pct", "utilisation_pct"),
    ),
    "timeline": Table(
        about="operations, bandwidth, I/O and compute over time",
        row="One row per bin of time. Bytes are spread over the bins that an operation covers.",
        columns=(
            "rank", "start_ns", *_TOTALS, "read_mib_s", "write_mib_s", "in_flight_mean", "in_flight_max",
            "io_busy_share", "compute_busy_share", "other_operations", "reconstructed",
        ),
    ),
    "tfrecords": Table(
        about="records of the TFRecord files, which are opened",
        row="One row per TFRecord file; the sizes are those of its records.",
        columns=("file_id", "path", "size_bytes", "records", "least_bytes", "most_bytes", "mean_bytes"),
    ),
    "datasets": Table(
        about="datasets and chunks of the HDF5 files, which are opened",
        row="One row per dataset of an HDF5 file.",
        columns=(
            "file_id", "path", "dataset", "shape", "type", "chunk", "chunk_bytes", "chunks_stored", "filter", "bytes",
            "stored_bytes",
        ),
    ),
}  # fmt: skip
"""The tables of `dxt-replay summary --show`, by name."""

GROUPS = Table(
    about="totals per group",
    row="One row per rank, file, format, step or size class.",
    columns=("group", *_TOTALS, "io_ns"),
)
"""The table of `dxt-replay summary --by`, one of GROUPINGS."""

GROUPINGS: Mapping[str, tuple[str, str]] = {
    "rank": ("rank", "rank"),
    "file": ("file_id", "path"),
    "format": ("format::format_name", "format"),
    "step": ("greatest(step, -1)", "greatest(step, -1)"),
    "size": ("if(length = 0, 0, length(bin(length)))", "NULL"),
}
"""What the columns are grouped by, and the name of a group, in SQL."""


def head_of(column: str) -> str:
    """The heading of the column for people: its `head`, or its name without the unit."""
    ending = next((ending for ending in UNITS if column.endswith(ending)), "")
    return COLUMNS[column].head or column.removesuffix(ending).replace("_", " ")
