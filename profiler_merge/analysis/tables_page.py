"""Makes docs/tables.md: the meaning of the tables' columns and of the keys of `summary --json`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dxt_replay.profiler_merge.analysis.tables import COLUMNS, GROUPS, TABLES
from dxt_replay.traces.text import unit_of

JSON_KEYS: Mapping[str, str] = {
    "access_pattern_source": "counters (Darshan's) or operations (the trace): source of the next two",
    "aggregate_bandwidth_mib_s": "bytes moved per time in which any operation of any rank was in flight",
    "bandwidth_per_op_mib_s": "min, median, mean and max over operations that moved bytes in measurable time",
    "by": "kind of the groups; with --by only",
    "bytes": "read and written, traced",
    "compute": "compute and input wait, mean of the profiled ranks; share of their I/O time inside compute",
    "consecutive_pct": "accesses that begin at the byte after the previous one",
    "counted_times": "by interface, Darshan's counters of the I/O that no trace holds: `reads`, `writes`, "
    "`bytes_read`, `bytes_written`; seconds of all ranks together: `read_s`, `write_s` (with syncs), `metadata_s`, "
    "`wait_s` (for non-blocking requests of PnetCDF); `slowest_s` and `slowest_rank`, as darshan-parser defines them; "
    "null if not counted. Interfaces are layers, so their figures do not add up. A log with a trace gives HDF5, "
    "PNETCDF, DFS and DAOS alone; a part of a capture gives none",
    "coverage": "traced share of the counted bytes and of the counted operations, 0 to 1, null if not known; "
    "`traceable`: both without C streams, which DXT cannot trace; `unseen`: untraced bytes of mapped files, sockets "
    "and object stores (DFS, DAOS), by name, counted into the bytes; `kind` all if no I/O was recorded: then the "
    "figures of I/O are null",
    "files": "files that were read or written",
    "groups": "rows of the table groups; with --by only",
    "in_flight_s": "time in which any operation of any rank was in flight",
    "interfaces": "reads, writes and bytes by interface, and whether they come from counters or operations. "
    "Interfaces are layers: do not add them up",
    "io_time_s": "time in reads and writes per rank: union and sum of the durations, mean and max over the ranks",
    "job": "ranks (nprocs), run time and command line (exe)",
    "loop": "the training loop without a first step that dominates and without evaluations: input wait, compute, I/O, "
    "and the most that infinitely fast storage could save; number and time of the evaluations; "
    "`recording_wait_s`: input wait while Darshan wrote the logs of processes that had ended, null if not known; "
    "null without steps",
    "not_judged": "why the cost of storage is not known, a clause; null if the trace holds enough",
    "operations": "read, write and other, traced",
    "other_io_s": "time in opens, closes and the like, and in reconstructed operations, of the rank with the most",
    "partial": "whether the source is marked as incomplete",
    "probably_mapped": "files that were mapped, or opened non-empty and never read: probably memory-mapped",
    "recorded_by": "darshan, strace or dftracer; capture if made from another capture",
    "reconstructed": "operations and bytes from counters, which are in no other total; `pct`: their share of the reads "
    "and writes, or of their bytes if that is larger",
    "sequential_pct": "accesses at a higher offset than the previous one",
    "storage_limit": "cost of storage for the training, by its causal model. Infinitely fast storage would save "
    "`limit_pct` and `saved_s` of `elapsed_s` (without waits that the recording made), leaving `fastest_s`. `model_s`: "
    "the model with the recorded durations; `utilisation_pct`: accelerator utilisation; `fastest_utilisation_pct`: the "
    "same with infinitely fast storage; `enough` (with --show storage-limit): by quantity, the multiple of the "
    "recorded speed from which training is within 2 % of the fastest; `reason`: why it is not known, else null. Absent "
    "if tables other than storage-limit and findings are shown, or training did not wait",
    "steps": "training steps of the rank with the most (`count`), their mean duration (`mean_s`), and how many were "
    "not profiled but extended from the profiled ones (`extended`)",
    "transfer_size_bytes": "min, median, mean and max over operations",
    "unmeasured_operations": "operations with a recorded duration of 0",
    "warnings": "sentences",
}
"""Key of `dxt-replay summary --json` -> its meaning."""


def tables_page() -> str:
    """The text of docs/tables.md."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield from (
        "# Tables and JSON",
        "",
        "`dxt-replay summary CAPTURE --show TABLE --csv FILE` writes a table, `--json` the same rows as `tables`.",
        "Units are in the names: `_ns` nanoseconds, `_s` seconds, `_bytes` bytes, `_mib_s` MiB (1,048,576 bytes) per "
        "second, `_pct` per cent, `_share` 0 to 1. An empty cell (JSON: null) is a value that is not known.",
    )
    tables = {**TABLES, "groups (--by)": GROUPS}
    for name, table in tables.items():
        columns = ", ".join(f"`{column}`" for column in table.columns)
        yield from ("", f"## {name}", "", table.row, "", f"Columns: {columns}.")
    yield from ("", "## Columns", "", "The meaning says where a column differs between tables.", "")
    yield from ("| column | unit | meaning |", "|---|---|---|")
    for column in sorted({column for table in tables.values() for column in table.columns}):
        yield f"| `{column}` | {unit_of(column)} | {COLUMNS[column].meaning} |"
    yield from ("", "## Keys of `summary --json`", "", "| key | holds |", "|---|---|")
    yield from (f"| `{key}` | {meaning} |" for key, meaning in JSON_KEYS.items())
    yield ""
