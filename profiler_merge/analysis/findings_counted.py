"""Findings about a job that no trace holds, from Darshan's counters, by the rules of Drishti. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from dxt_replay.profiler_merge.analysis.analyse import Analysis
from dxt_replay.profiler_merge.analysis.finding import Finding, Stake, percent
from dxt_replay.profiler_merge.analysis.remedies import remedy
from dxt_replay.profiler_merge.analysis.setting import Framework
from dxt_replay.profiler_merge.analysis.thresholds import (
    LEAST_REQUESTS,
    LEAST_REREAD_BYTES,
    MISALIGNED_PCT,
    REREAD_PCT,
    SHARED_FILE_PCT,
    SMALL_REQUEST_PCT,
)
from dxt_replay.traces.units import NS_PER_S, format_bytes, format_count, format_duration

_RULES = {
    "small_reads": (
        "small-reads", "Reads are at most 1 MiB", "reads move at most 1 MiB", SMALL_REQUEST_PCT,
        remedy("read more at once", Framework.UNKNOWN),
    ),
    "small_writes": (
        "small-writes", "Writes are at most 1 MiB", "writes move at most 1 MiB", SMALL_REQUEST_PCT,
        remedy("write more at once", Framework.UNKNOWN),
    ),
    "misaligned": (
        "misaligned", "Requests do not begin at the file system's borders", "reads and writes begin beside them",
        MISALIGNED_PCT, "Begin them at multiples of the block or stripe (H5Pset_alignment, striping_unit of MPI-IO).",
    ),
    "misaligned_in_memory": (
        "misaligned-in-memory", "Buffers are not aligned in memory", "reads and writes use such a buffer",
        MISALIGNED_PCT, "Allocate buffers at multiples of 8 bytes, for direct I/O of a page (posix_memalign).",
    ),
    "read_again": (
        "re-reads", "The same bytes are read again", "had been read before, by the same rank or another",
        REREAD_PCT, "Let one rank read and broadcast, or keep what was read.",
    ),
    "one_shared": (
        "shared-file", "Most bytes go through one shared file", "are of one file", SHARED_FILE_PCT,
        "Stripe it over more servers, let more ranks write it (cb_nodes of MPI-IO), or write subfiles.",
    ),
}  # fmt: skip
"""Name in `counted_requests` -> code, title, evidence behind the counts, per cent from which it counts, remedy."""

_TIMES = {"small_reads": ("read_s",), "small_writes": ("write_s",), "read_again": ("read_s",)}


def counted(found: Analysis) -> Iterator[Finding]:
    """Small, misaligned and repeated requests, and a file that all share."""
    summary, facts = found.summary, found.setting.counted
    for name, (code, title, what, limit, how) in _RULES.items():
        if (fact := facts.get(name)) is None:
            continue
        times = _TIMES.get(name, ("read_s", "write_s"))
        spent = (
            (each["slowest_s"], sum(each[time] or 0.0 for time in times)) for each in summary.counted_times.values()
        )
        longest_s = max((min(slowest_s or all_s, all_s) for slowest_s, all_s in spent), default=0.0)
        stake = Stake(seconds=longest_s, whole_s=summary.job.run_time_s or 0.0, of="run")
        in_bytes = name in ("read_again", "one_shared")
        shown, least = (format_bytes, LEAST_REREAD_BYTES) if in_bytes else (format_count, LEAST_REQUESTS)
        share = 100 * fact["count"] / fact["of"]
        if share <= limit or fact["count"] < least or not stake.matters:
            continue
        more = f"; the mean is {format_bytes(fact['of_bytes'] / fact['of'])}" if fact["of_bytes"] else ""
        if name == "one_shared":
            more = f", opened by {format_count(fact['ranks'])} of {format_count(summary.job.nprocs)} ranks"
        elif fact["in_shared"]:
            more += f". {shown(fact['in_shared'])} of these are in files of several ranks"
        yield Finding(
            code=code,
            title=title,
            evidence=f"{shown(fact['count'])} of {shown(fact['of'])} {what} ({percent(share)}){more}.",
            threshold=f"more than {limit:g} %, and at least {shown(least)}",
            remedy=how,
            values={name: fact["count"], f"{name}_pct": share, f"{name}_in_shared": fact["in_shared"]},
            files=fact["files"],
            **stake.columns(),
        )


def counted_imbalance(found: Analysis) -> Iterator[Finding]:
    """Files that ranks share unevenly."""
    fact, posix = found.setting.counted.get("uneven"), found.summary.counted_times.get("POSIX")
    if fact is None or posix is None:
        return
    job, worst = found.summary.job, fact["worst"]
    mean_s = sum(posix[name] or 0.0 for name in ("read_s", "write_s", "metadata_s")) / max(job.nprocs, 1)
    longest_s = posix["slowest_s"] or worst["slowest_s"]
    stake = Stake(seconds=longest_s - mean_s, whole_s=job.run_time_s or 0.0, of="run")
    if not stake.matters:
        return
    who = " and ".join(
        f"rank {worst[f'{each}_rank']} moves {format_bytes(worst[f'{each}_bytes'])} in "
        f"{format_duration(NS_PER_S * worst[f'{each}_s'])}"
        for each in ("slowest", "fastest")
    )
    share = 100 * abs(worst["slowest_bytes"] - worst["fastest_bytes"]) / max(worst["of_bytes"], 1)
    yield Finding(
        code="rank-imbalance",
        title="Ranks share the I/O unevenly",
        evidence=f"{format_count(fact['count'])} shared files. Of the {format_bytes(worst['of_bytes'])} of "
        f"{fact['files'][0]} {who}: {percent(share)} apart.",
        threshold="15 % of a file's bytes or time between two ranks, 30 % of the larger where not all open it",
        remedy="Let more ranks, on more nodes, read and write (cb_nodes and striping of MPI-IO), in equal shares.",
        values={"uneven_files": fact["count"], "bytes_imbalance_pct": share, "slowest_rank": worst["slowest_rank"]},
        files=fact["files"],
        **stake.columns(),
    )


RULES = (counted, counted_imbalance)
"""The findings of this module."""
