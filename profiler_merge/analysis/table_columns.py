"""What every column of the tables means; docs/tables.md is made of it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa

from dxt_replay.profiler_merge.analysis import (
    contents,
    findings,
    overlap,
    patterns,
    rank_files,
    sizes,
    step_times,
    timeline,
)
from dxt_replay.profiler_merge.analysis.named_tables import GROUPS_SCHEMA, STORAGE_LIMIT_SCHEMA

TABLES: Mapping[str, tuple[pa.Schema, str]] = {
    "findings": (findings.SCHEMA, "One row per finding, the gravest first."),
    "overlap": (overlap.RANKS_SCHEMA, "One row per rank. Times of spans are 0 where the rank was not profiled."),
    "steps": (step_times.STEPS_SCHEMA, "One row per rank and training step."),
    "sizes": (sizes.BINS_SCHEMA, "One row per power of two that holds any request."),
    "darshan-sizes": (sizes.BINS_SCHEMA, "One row per class of Darshan's that holds any request."),
    "exact-sizes": (sizes.EXACT_SCHEMA, "The most frequent request sizes; a row with an empty size is all others."),
    "files": (patterns.FILES_SCHEMA, "One row per file that was accessed; counts are over all ranks."),
    "ranks": (patterns.RANKS_SCHEMA, "One row per rank."),
    "rank-files": (rank_files.RANK_FILES_SCHEMA, "One row per rank and file that it accessed."),
    "storage-limit": (
        STORAGE_LIMIT_SCHEMA,
        "How long the training takes on faster and slower storage, by its causal model: one row per speed. "
        "`bandwidth` and `latency` are there where requests of several sizes show them apart.",
    ),
    "timeline": (timeline.SCHEMA, "One row per bin of time. Bytes are spread over the bins that an operation covers."),
    "tfrecords": (contents.TFRECORDS_SCHEMA, "One row per TFRecord file; the sizes are those of its records."),
    "datasets": (contents.DATASETS_SCHEMA, "One row per dataset of an HDF5 file."),
    "groups (--by)": (GROUPS_SCHEMA, "One row per rank, file, format, step or size class."),
}
"""Name -> columns, and what a row is."""

MEANINGS: Mapping[str, str] = {
    "above_fastest_pct": "how much longer than at the last speed of the same quantity, which is infinite",
    "at_stake_of": "what at_stake_pct is of: the training loop or the run",
    "at_stake_pct": "the most that a perfect remedy could gain, of at_stake_of",
    "at_stake_s": "the most that a perfect remedy could gain, of storage no more than infinitely fast storage would; "
    "empty where not known",
    "bin": "name of the size class",
    "bytes": "bytes moved; of a dataset, its size in memory",
    "bytes_read": "bytes of traced reads",
    "bytes_written": "bytes of traced writes",
    "checkpoint_in_loop_ns": "saving and restoring, within the training loop",
    "checkpoint_ns": "saving and restoring",
    "chunk": "shape of a chunk; empty for a contiguous dataset",
    "chunk_bytes": "size of a chunk before the filter",
    "chunks_stored": "chunks that the file holds",
    "code": "short name of the finding, which does not change",
    "collective_in_loop_ns": "inside collectives, waiting for other ranks included, within the training loop",
    "collective_ns": "inside collectives, waiting for other ranks included",
    "compute_busy_share": "share of the bin in which the profiled ranks computed, their mean; empty without a profile",
    "compute_in_loop_ns": "computing, within the training loop",
    "compute_ns": "computing",
    "consecutive": "accesses that begin at the byte after the previous one",
    "dataset": "path of the dataset within its file",
    "duration_ns": "from the start of the step to its end, without evaluations",
    "elapsed_ns": "how long the training takes, from the first operation or event to the last",
    "evaluation_ns": "evaluating the model, within the step or the training loop; in no other column",
    "evaluations": "evaluations of the model within the training loop",
    "evidence": "the numbers behind the finding, as a sentence",
    "excess_ns": "duration above the median of the rank's steps",
    "file_id": "number of the file in files.parquet",
    "files": "paths of the worst, a line each; in the table ranks: files that the rank read or wrote",
    "filter": "compression: gzip, lzf, szip; empty for none",
    "format": "kind of the file, such as tfrecord, hdf5 or checkpoint",
    "gap_checkpoint_ns": "saving between the step's end and the next step's start",
    "gap_ns": "from the step's end to the start of the next, without evaluations; 0 for the last",
    "group": "the rank, path, format, step or size class",
    "in_flight_max": "most operations in flight at any instant",
    "in_flight_mean": "operations in flight, mean over the time of the bin",
    "input_wait_in_loop_ns": "waiting for the next batch, within the training loop",
    "input_wait_ns": "waiting for the next batch",
    "interface": "POSIX, STDIO, MPIIO or HDF5",
    "io_busy_share": "share of the bin with a read or write in flight, mean of the ranks",
    "io_exposed_ns": "I/O outside compute",
    "io_hidden_ns": "I/O inside compute",
    "io_in_checkpoint_ns": "I/O inside saving and restoring",
    "io_in_collective_ns": "I/O inside collectives",
    "io_in_evaluation_ns": "I/O inside evaluations",
    "io_in_loop_ns": "I/O within the training loop",
    "io_in_wait_ns": "I/O inside input wait",
    "io_ns": "time in traced reads and writes: union in overlap and steps, sum of the durations in the other tables",
    "least_bytes": "smallest size, included",
    "loop_ns": "from the start of the first step to the end of the last, without evaluations",
    "mean_bytes": "mean size",
    "metadata_ns": "sum of the durations of traced opens, closes, stats, syncs and seeks",
    "most_bytes": "largest size, included; empty for no limit",
    "multiple": "how many times as fast as recorded; empty for infinitely fast",
    "op": "read or write",
    "operations": "reads and writes",
    "origin": "traced, reconstructed from counters, generated, transformed or modelled",
    "other_operations": "traced opens, closes, stats, syncs and seeks",
    "path": "as recorded",
    "pattern": "what most accesses are: consecutive, strided, sequential, random; empty below 2 accesses",
    "pipeline_ns": "I/O, or work on input",
    "profiled": "whether the rank has spans of a profile",
    "quantity": "what is faster or slower: speed (all of storage), bandwidth or latency",
    "random": "accesses whose place does not follow from the two before",
    "rank": "number of the rank; -1: all ranks together",
    "ranks": "ranks that accessed the file",
    "read_by_several_bytes": "bytes that more than one rank read",
    "read_mib_s": "bandwidth of reads",
    "reads": "traced reads",
    "reconstructed": "operations from counters, which are in no other column",
    "reconstructed_bytes": "bytes of operations from counters",
    "reconstructed_io_ns": "time in reads and writes from counters, which is in no other column",
    "reconstructed_metadata_ns": "time in metadata operations from counters",
    "reconstructed_operations": "operations from counters",
    "records": "records in the file",
    "remedy": "what to do, as a sentence",
    "reread_bytes": "bytes that a rank read again",
    "rest_ns": "time of the step that no span covers",
    "restarts": "accesses that begin again at a place before",
    "sequential": "accesses at a higher offset than the previous one",
    "severity": "high, warning or info",
    "shape": "sizes of the dimensions, such as 3x520x520",
    "share": "share of the operations, 0 to 1",
    "shared_files": "files that another rank accessed too",
    "size_bytes": "size of the file, or of the requests",
    "small_reads": "reads of less than a stripe of the file (1 MiB without stripes) and less than the file",
    "small_writes": "writes of less than a stripe of the file (1 MiB without stripes) and less than the file",
    "start_ns": "start, from the capture's zero",
    "step": "number of the step",
    "steps": "training steps",
    "stored_bytes": "size of the dataset in the file",
    "strided": "accesses at the same distance as the one before",
    "threshold": "the limit that was passed, as a sentence",
    "title": "the finding, as a sentence",
    "type": "type of an element",
    "unique_bytes_read": "different bytes that were read",
    "values": "numbers of the evidence, as a JSON object with the units in the names",
    "utilisation_pct": "accelerator utilisation: compute, of the training loop; empty where no compute is known",
    "why": "the part of the step that is furthest above its median; empty where none is",
    "why_excess_ns": "how far that part is above its median",
    "write_mib_s": "bandwidth of writes",
    "writes": "traced writes",
}
"""Column -> what it means, in whichever table it is."""

JSON_KEYS: Mapping[str, str] = {
    "access_pattern_source": "counters (Darshan's) or operations (the trace): source of the next two",
    "aggregate_bandwidth_mib_s": "bytes moved per time in which any operation of any rank was in flight",
    "bandwidth_per_op_mib_s": "min, median, mean and max over operations that moved bytes in measurable time",
    "by": "what the groups are; with --by only",
    "bytes": "read and written, traced",
    "compute": "compute and input wait, mean of the profiled ranks; share of their I/O time inside compute",
    "consecutive_pct": "accesses that begin at the byte after the previous one",
    "counted_times": "by interface, what Darshan's counters say of the I/O that no trace holds: `reads`, `writes`, "
    "`bytes_read`, `bytes_written`; seconds of all ranks together: `read_s`, `write_s` (with syncs), `metadata_s`, "
    "`wait_s` (for non-blocking requests of PnetCDF); `slowest_s` of the slowest rank, as darshan-parser takes it, and "
    "`slowest_rank`; null where it is not counted. Interfaces are layers, so their figures do not add up. Of a log "
    "with a trace, HDF5, PNETCDF, DFS and DAOS alone; empty for a part of a capture",
    "coverage": "share of the counted bytes, and of the counted operations, that was traced, 0 to 1, null where it is "
    "not known; `traceable`: both beside C streams, which DXT cannot trace; `unseen`: what went through mapped "
    "files, sockets and object stores (DFS, DAOS), by name, in no trace and counted into the bytes, or `kind` all "
    "where no I/O was recorded: then the figures of I/O are null",
    "files": "files that were read or written",
    "groups": "rows of the table groups; with --by only",
    "in_flight_s": "time in which any operation of any rank was in flight",
    "interfaces": "reads, writes and bytes by interface, and whether they are from counters or operations; "
    "layers, which do not add up",
    "io_time_s": "time in reads and writes per rank: union and sum of the durations, mean and max over the ranks",
    "job": "ranks (nprocs), run time and command line (exe)",
    "loop": "the training loop without a first step that dominates and without evaluations: input wait, compute, I/O, "
    "and the most that infinitely fast storage could save; number and time of the evaluations; null without steps",
    "not_judged": "why it is not known what storage cost, a clause; null where the trace holds enough",
    "operations": "read, write and other, traced",
    "other_io_s": "time in opens, closes and the like, and in what was rebuilt from counters, of the rank with most",
    "partial": "whether the source is marked as incomplete",
    "probably_mapped": "files that were mapped, or opened with something in them and never read: probably "
    "memory-mapped",
    "recorded_by": "what recorded the operations: darshan, strace, dftracer; capture for one made from another",
    "reconstructed": "operations and bytes from counters, which are in no other total; `pct`: their share of the reads "
    "and writes, or of the bytes of these where that is more",
    "sequential_pct": "accesses at a higher offset than the previous one",
    "storage_limit": "what storage costs the training by its causal model: `limit_pct` and `saved_s`, which infinitely "
    "fast storage would save of `elapsed_s`, leaving `fastest_s`; `model_s`: what the model comes to with the recorded "
    "durations; `utilisation_pct`: accelerator utilisation, `fastest_utilisation_pct` with infinitely fast storage; "
    "`enough`: by quantity, the multiple of the recorded speed from which training is within 2 % of the fastest (with "
    "--show storage-limit); `reason`: why it is not known, else null. Left out where tables other than storage-limit "
    "and findings are shown, and where training did not wait",
    "steps": "training steps of the rank with the most (`count`), their mean duration (`mean_s`), and how many were "
    "not profiled but extended from the profiled ones (`extended`)",
    "transfer_size_bytes": "min, median, mean and max over operations",
    "unmeasured_operations": "operations with a recorded duration of 0",
    "warnings": "sentences",
}
"""Key of `dxt-replay summary --json` -> what it holds."""

_UNITS = (("_ns", "ns"), ("_mib_s", "MiB/s"), ("_pct", "%"), ("_share", "0 to 1"), ("_bytes", "bytes"), ("_s", "s"))


def unit_of(column: str) -> str:
    """The unit of a column, as its name says; empty for counts and texts."""
    if column.startswith("bytes") or column.endswith("_bytes_read"):
        return "bytes"
    return next((unit for ending, unit in _UNITS if column.endswith(ending)), "")


def tables_page() -> str:
    """docs/tables.md."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield from (
        "# Tables and JSON",
        "",
        "`dxt-replay summary CAPTURE --show TABLE --csv FILE` writes a table, `--json` the same rows as `tables`.",
        "Units are in the names: `_ns` nanoseconds, `_s` seconds, `_bytes` bytes, `_mib_s` MiB (1,048,576 bytes) per "
        "second, `_pct` per cent, `_share` 0 to 1. An empty cell (JSON: null) is a value that is not known.",
    )
    for name, (schema, row) in TABLES.items():
        yield from ("", f"## {name}", "", row, "", "| column | unit | meaning |", "|---|---|---|")
        yield from (f"| `{column}` | {unit_of(column)} | {MEANINGS[column]} |" for column in schema.names)
    yield from ("", "## Keys of `summary --json`", "", "| key | holds |", "|---|---|")
    yield from (f"| `{key}` | {meaning} |" for key, meaning in JSON_KEYS.items())
    yield ""
