"""Findings about the requests to storage, and about the completeness of the trace. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from dxt_replay.profiler_merge.analysis.analyse import Analysis
from dxt_replay.profiler_merge.analysis.finding import Finding, Stake, percent
from dxt_replay.profiler_merge.analysis.findings_compute import LOOP
from dxt_replay.profiler_merge.analysis.interfaces import InterfaceTotals
from dxt_replay.profiler_merge.analysis.remedies import remedy
from dxt_replay.profiler_merge.analysis.setting import LUSTRE, Framework
from dxt_replay.profiler_merge.analysis.thresholds import (
    CONSECUTIVE_PCT,
    IMBALANCE_PCT,
    LEAST_REQUESTS,
    LEAST_REREAD_BYTES,
    MATERIAL_PCT,
    METADATA_RANK_S,
    RANDOM_PCT,
    READS_PER_REQUEST,
    REREAD_PCT,
    SMALL_CHUNK_BYTES,
    SMALL_REQUEST_PCT,
)
from dxt_replay.traces.layers import OBJECT_STORES, lowest
from dxt_replay.traces.units import NS_PER_S, format_bytes, format_count, format_duration, ns_to_seconds
from dxt_replay.traces.unseen import LEAST_COVERAGE, OBJECTS, nothing_recorded

_WORST_FILES = 5

_TELL_APART = "Record --with strace, which shows mappings, sendfile and copies, and names io_uring and AIO."
_READ_INSTEAD = (
    "Record once with reads instead of mappings (torch.load(mmap=False), numpy.load without mmap_mode, datasets with "
    "keep_in_memory=True), and objects from a mounted bucket, to learn what they cost."
)
_MOUNT_INSTEAD = (
    "DXT traces calls of POSIX and MPI-IO: record once with the container mounted (dfuse) and files opened below the "
    "mount, to learn when the I/O happens."
)

_SHARDS = (".tar", ".tar.gz", ".tgz", ".tar.zst", ".parquet", ".arrow", ".lmdb", ".mdb", ".zip")
"""Suffixes of files with many samples, besides TFRecord and HDF5."""


def no_trace(found: Analysis) -> Iterator[Finding]:
    """A log recorded without DXT: only its counters are known."""
    operations = found.summary.operations
    in_store = any(name in OBJECT_STORES for name in _carriers(found))
    if operations.read or operations.write or in_store or not _counted(found):
        return  # DXT does not trace an object store: `not_traced` reports that
    yield Finding(
        code="no-trace",
        severity="high",
        title="The log holds no DXT trace",
        evidence=f"Darshan counted {format_count(_counted(found))} reads and writes; none of them was traced, so "
        "it is not known when each happened.",
        threshold="no traced operation",
        remedy="Record again with DXT: DXT_ENABLE_IO_TRACE=1 in the environment of every process.",
        values={"counted_operations": _counted(found)},
    )


def _counted(found: Analysis) -> int:
    """Counted reads and writes."""
    return sum(each.operations for each in _carriers(found).values())


def _carriers(found: Analysis) -> dict[str, InterfaceTotals]:
    """The interfaces with counters that moved the bytes themselves, on behalf of the others."""
    counted = {name: each for name, each in found.summary.interfaces.items() if each.source == "counters"}
    return {name: counted[name] for name in lowest({name: each.bytes or 0 for name, each in counted.items()})}


def partial_trace(found: Analysis) -> Iterator[Finding]:
    """Operations that the trace lacks: every number covers only a part of the run."""
    coverage, operations = found.summary.coverage, found.summary.operations
    known = dict(zip(("bytes", "operations"), coverage.traceable, strict=True))
    low = {name: share for name, share in known.items() if share is not None and share < LEAST_COVERAGE}
    traced = operations.read or operations.write
    if not (low and (traced or not _counted(found))) and not found.summary.partial:
        return
    aside = ", C streams aside" if coverage.traceable != (coverage.bytes, coverage.operations) else ""
    shares = " and ".join(f"{percent(100 * share)} of the {name}" for name, share in low.items())
    yield Finding(
        code="partial-trace",
        severity="high",
        title="The trace holds only part of the run",
        evidence=f"The trace holds {shares} that Darshan counted{aside}."
        if low
        else "The source is marked as incomplete.",
        threshold=f"below {percent(100 * LEAST_COVERAGE)}",
        remedy="Record again with more memory for DXT (DARSHAN_MODMEM, or MODMEM in a DARSHAN_CONFIG_PATH file), or "
        "leave out files that do not matter.",
        values={f"coverage_{name}": share for name, share in low.items()},
    )


def not_traced(found: Analysis) -> Iterator[Finding]:
    """Bytes moved through mapped files, sockets or an object store, which no trace of calls holds."""
    unseen, why = found.summary.coverage.unseen, found.summary.not_judged
    if not unseen or why is None or nothing_recorded(unseen):
        return
    known = sum(each.bytes or 0 for each in unseen)
    kinds = {each.kind for each in unseen}
    remedies = [_READ_INSTEAD] * bool(kinds - {OBJECTS}) + [_MOUNT_INSTEAD] * (OBJECTS in kinds)
    if "mapped" in kinds and found.summary.recorded_by == "darshan":
        remedies.insert(0, _TELL_APART)
    part = "the job's I/O" if OBJECTS in kinds else "what the job read"
    yield Finding(
        code="not-traced",
        severity="high",
        title=f"Part of {part} is not in the trace",
        evidence=f"{why[:1].upper()}{why[1:]}. So the cost of storage is not known, and a replay leaves this I/O out.",
        threshold=f"above {percent(100 * (1 - LEAST_COVERAGE))} of the bytes, or not known",
        remedy=" ".join(remedies),
        values={"least_bytes": known, "mapped_files": sum(each.kind == "mapped" for each in unseen)},
        files=tuple(each.name for each in unseen if each.kind == "mapped")[:_WORST_FILES],
    )


def small_requests(found: Analysis) -> Iterator[Finding]:
    """Reads, or writes, smaller than the stripe of their file, or than 1 MiB for files without stripes."""
    files = _program_files(found)
    striped = LUSTRE in found.setting.file_systems
    for name in ("reads", "writes"):
        stake = _storage(found, files, files[name] > 0)
        total, small = int(files[name].sum()), int(files[f"small_{name}"].sum())
        share = 100 * small / total if total else 0.0
        if small < LEAST_REQUESTS or share <= SMALL_REQUEST_PCT or not stake.matters:
            continue
        moved = int(files["bytes_read" if name == "reads" else "bytes_written"].sum())
        limit = "a stripe of their file" if striped else "1 MiB"
        yield Finding(
            code=f"small-{name}",
            title=f"{name.capitalize()} are smaller than {limit}",
            evidence=f"{format_count(small)} of {format_count(total)} {name} ({percent(share)}) move less than "
            f"{limit}; the mean is {format_bytes(moved / total)}.",
            threshold=f"more than {SMALL_REQUEST_PCT:g} %, and at least {LEAST_REQUESTS}",
            remedy=_of_requests(name, found, files),
            values={f"small_{name}": small, f"small_{name}_pct": share},
            files=_worst(files, files[f"small_{name}"]),
            **stake.columns(),
        )


def small_chunks(found: Analysis) -> Iterator[Finding]:
    """HDF5 files whose chunks are smaller than the application's requests."""
    files, stake = _program_files(found), _storage(found)
    hdf5 = np.array([name == "hdf5" for name in files["format"]], dtype=bool)
    reads = np.where(hdf5, files["reads"], 0)
    mean = files["bytes_read"] / np.maximum(files["reads"], 1)
    requests = _hdf5_requests(found)
    cut = reads > READS_PER_REQUEST * requests if requests else 100 * files["consecutive"] > CONSECUTIVE_PCT * reads
    small = hdf5 & cut & (mean < SMALL_CHUNK_BYTES) & (reads >= LEAST_REQUESTS)
    if not small.any() or not stake.matters:
        return
    count, size = int(reads[small].sum()), float(files["bytes_read"][small].sum() / reads[small].sum())
    what = (
        f"{count / requests:.0f} POSIX reads carry out one H5Dread"
        if requests
        else f"{percent(100 * files['consecutive'][small].sum() / count)} of the reads continue the one before"
    )
    yield Finding(
        code="small-chunks",
        title="HDF5 chunks are smaller than a request",
        evidence=f"{what}; they are {format_bytes(size)} each (mean).",
        threshold=f"more than {READS_PER_REQUEST:g} reads a request (without HDF5 counters: more than "
        f"{CONSECUTIVE_PCT:g} % consecutive), below {format_bytes(SMALL_CHUNK_BYTES)}",
        remedy="Repack with chunks of a sample or more (h5repack -l CHUNK=...): 1 MiB instead of 4 KiB made Cosmic "
        "Tagger's I/O 8 times as fast in the DLIO paper.",
        values={"reads": count, "mean_bytes": size, **({"reads_per_request": count / requests} if requests else {})},
        files=_worst(files, np.where(small, reads, 0)),
        **stake.columns(),
    )


def random_shared(found: Analysis) -> Iterator[Finding]:
    """Random access in files that several ranks use."""
    files, stake = _program_files(found), _storage(found)
    accesses = files["reads"] + files["writes"]
    random = (
        (files["ranks"] > 1)
        & (files["random"] >= LEAST_REQUESTS)
        & (100 * files["random"] > RANDOM_PCT * np.maximum(accesses, 1))
    )
    if not random.any() or not stake.matters:
        return
    share = 100 * files["random"][random].sum() / accesses[random].sum()
    yield Finding(
        code="random-shared",
        title="Shared files are accessed at random",
        evidence=f"{percent(share)} of the accesses to {format_count(int(random.sum()))} files of several ranks go to "
        "a place that does not follow from the two before.",
        threshold=f"more than {RANDOM_PCT:g} %, and {LEAST_REQUESTS} of them",
        remedy="Shuffle the order of blocks and the samples within a buffer rather than every sample, give each rank "
        "files of its own, or stage the file in memory or on a local disk.",
        values={"random_pct": share},
        files=_worst(files, np.where(random, files["random"], 0)),
        **stake.columns(),
    )


def rereads(found: Analysis) -> Iterator[Finding]:
    """Bytes that a rank reads repeatedly, and bytes that several ranks read."""
    files, stake = _program_files(found), _storage(found)
    total, again = int(files["bytes_read"].sum()), int(files["reread_bytes"].sum())
    unique = int(files["unique_bytes_read"].sum())
    if not stake.matters:
        return
    if total and again >= LEAST_REREAD_BYTES and 100 * again >= REREAD_PCT * total:
        yield Finding(
            code="re-reads",
            title="Ranks read the same bytes again",
            evidence=f"{format_bytes(again)} of {format_bytes(total)} ({percent(100 * again / total)}) had been read "
            f"by the same rank before; {format_bytes(unique)} are distinct.",
            threshold=f"at least {REREAD_PCT:g} %",
            remedy=f"{remedy('keep what was read', found.setting.framework)} That takes {format_bytes(unique)}.",
            values={"reread_bytes": again, "reread_pct": 100 * again / total, "unique_bytes": unique},
            files=_worst(files, files["reread_bytes"]),
            **stake.columns(),
        )
    several = int(files["read_by_several_bytes"].sum())
    first = unique + several
    if several >= LEAST_REREAD_BYTES and 100 * several >= REREAD_PCT * unique:
        yield Finding(
            code="shared-reads",
            title="Several ranks read the same bytes",
            evidence=f"The ranks read {format_bytes(first)}, of which {format_bytes(unique)} are distinct: they read "
            f"each byte {first / unique:.1f} times on average.",
            threshold=f"at least {REREAD_PCT:g} % more than once",
            remedy="Shard the files over the ranks, or let one rank read and broadcast.",
            values={"read_by_several_bytes": several, "times": first / unique},
            files=_worst(files, files["read_by_several_bytes"]),
            **stake.columns(),
        )


def rank_imbalance(found: Analysis) -> Iterator[Finding]:
    """Ranks that move more bytes, or spend longer in I/O, than others."""
    ranks = _columns(found.patterns.ranks)
    moved = ranks["bytes_read"] + ranks["bytes_written"]
    time_ns = found.overlap.ranks["io_ns"].to_numpy()
    if len(moved) < 2 or not moved.max():
        return
    share = {
        "bytes": 100 * float(moved.max() - moved.min()) / float(moved.max()),
        "time": 100 * float(time_ns.max() - time_ns.min()) / float(max(time_ns.max(), 1)),
    }
    stake = Stake(seconds=float(time_ns.max() - time_ns.mean()) / NS_PER_S, whole_s=found.overlap.run_time_s, of=RUN)
    if max(share.values()) <= IMBALANCE_PCT or not stake.matters:
        return
    busiest, laziest = int(time_ns.argmax()), int(time_ns.argmin())
    numbers = ranks["rank"]
    yield Finding(
        code="rank-imbalance",
        title="Ranks share the I/O unevenly",
        evidence=f"Rank {numbers[busiest]} spends {format_duration(float(time_ns[busiest]))} in I/O, rank "
        f"{numbers[laziest]} {format_duration(float(time_ns[laziest]))}; the most that a rank moves is "
        f"{format_bytes(float(moved.max()))}, the least {format_bytes(float(moved.min()))}.",
        threshold=f"(max - min) / max above {IMBALANCE_PCT:g} %, in bytes or time",
        remedy="Give the ranks equal shares of the files, and spread restarts, logs and checkpoints that one rank does "
        "for all.",
        values={"bytes_imbalance_pct": share["bytes"], "time_imbalance_pct": share["time"]},
        **stake.columns(),
    )


def metadata_time(found: Analysis) -> Iterator[Finding]:
    """Ranks that spend long in opens, closes and stats."""
    ranks = _columns(found.patterns.ranks)
    time_ns = ranks["metadata_ns"] + ranks["reconstructed_metadata_ns"]
    if not len(time_ns) or not time_ns.max():
        return
    worst = int(time_ns.argmax())
    stake = Stake(seconds=ns_to_seconds(int(time_ns[worst])), whole_s=found.overlap.run_time_s, of=RUN)
    if not stake.matters or (stake.pct < MATERIAL_PCT and stake.seconds <= METADATA_RANK_S):
        return
    yield Finding(
        code="metadata-time",
        title="Opening, closing and looking up files takes long",
        evidence=f"Rank {ranks['rank'][worst]} spends {format_duration(float(time_ns[worst]))} ({percent(stake.pct)} "
        "of the run) in metadata.",
        threshold=f"at least {MATERIAL_PCT:g} % of the run, or above {METADATA_RANK_S:g} s of a rank",
        remedy=remedy("open shards less often" if _sharded(found) else "open fewer files", Framework.UNKNOWN),
        values={"metadata_s": stake.seconds, "metadata_of_run_pct": stake.pct},
        **stake.columns(),
    )


RULES = (
    no_trace,
    partial_trace,
    not_traced,
    small_requests,
    small_chunks,
    random_shared,
    rereads,
    rank_imbalance,
    metadata_time,
)
"""The findings of this module; equally severe ones are listed in this order."""

RUN = "run"


def _storage(found: Analysis, files: dict[str, Any] | None = None, chosen: np.ndarray | None = None) -> Stake:
    """Upper bound of the gain from any remedy for the reads and writes, for the loop if it is known, else for the run.

    `chosen` (files,): the files that the remedy concerns. It cannot gain more than their I/O time.
    """
    loop, summary = found.summary.loop, found.summary
    most_s = float("inf")
    if files is not None and not files["reconstructed_bytes"][chosen].any():
        most_s = float(files["io_ns"][chosen].sum()) / NS_PER_S
    if loop is not None:
        return Stake(seconds=min(loop.storage_gain_s, most_s), whole_s=loop.loop_s, of=LOOP)
    return Stake(seconds=min(summary.in_flight_s, most_s), whole_s=summary.job.run_time_s or 0.0, of=RUN)


def _reader(found: Analysis, files: dict[str, Any], small: str) -> Framework:
    """The framework if it reads these files itself: its options do not affect files that h5py or NumPy opens."""
    framework, worst = found.setting.framework, int(files[small].argmax())
    by_itself = framework is not Framework.TENSORFLOW or files["format"][worst] == "tfrecord"
    return framework if by_itself else Framework.UNKNOWN


def _of_requests(name: str, found: Analysis, files: dict[str, Any]) -> str:
    """Remedy for small `reads` or `writes`. Programs that already read shards are not told to use them."""
    reader, worst = _reader(found, files, f"small_{name}"), int(files[f"small_{name}"].argmax())
    if name == "reads" and reader is Framework.PYTORCH and _is_shard(files["format"][worst], files["path"][worst]):
        return remedy("read more of a shard at once", Framework.UNKNOWN)
    return remedy(f"{name.removesuffix('s')} more at once", reader)


def _sharded(found: Analysis) -> bool:
    """Whether most bytes read lie in files of many samples."""
    files = _program_files(found)
    sharded = list(map(_is_shard, files["format"], files["path"]))
    moved = files["bytes_read"] + files["reconstructed_bytes"]
    return bool(2 * moved[np.array(sharded, dtype=bool)].sum() > moved.sum())


def _is_shard(kind: str, path: str) -> bool:
    """Whether a file of this format (of `traces.schema.FORMATS`) holds many samples."""
    return kind in ("tfrecord", "hdf5") or path.lower().endswith(_SHARDS)


def _program_files(found: Analysis) -> dict[str, Any]:
    """The columns of the files table without the profilers' own files."""
    files = found.patterns.files
    own = np.isin(files["file_id"].to_numpy(), sorted(found.setting.own_files))
    return _columns(files.filter(pa.array(~own)))


def _hdf5_requests(found: Analysis) -> int:
    interface = found.summary.interfaces.get("HDF5")
    return interface.reads if interface is not None and interface.source == "counters" else 0


def _columns(table: pa.Table) -> dict[str, Any]:
    """Numbers as arrays, texts as lists."""
    return {
        name: table[name].to_pylist() if pa.types.is_string(table[name].type) else table[name].to_numpy()
        for name in table.column_names
    }


def _worst(files: dict[str, Any], by: np.ndarray) -> tuple[str, ...]:
    order = np.argsort(-by, kind="stable")[:_WORST_FILES]
    return tuple(files["path"][place] for place in order if by[place] > 0)
