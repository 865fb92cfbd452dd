"""Findings in words. Each is one function: a condition on an analysis, and what is said where it holds."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dxt_replay.profiler_merge.analysis import finding as limits
from dxt_replay.profiler_merge.analysis.analyse import LUSTRE, Analysis, Framework, analyse
from dxt_replay.profiler_merge.analysis.benchmark_figures import benchmark_figures
from dxt_replay.profiler_merge.analysis.finding import LOOP, RUN, SEVERITIES, Finding, Stake
from dxt_replay.profiler_merge.analysis.interfaces import InterfaceTotals
from dxt_replay.profiler_merge.analysis.steady_loop import SteadyLoop
from dxt_replay.profiler_merge.analysis.tables import TABLES
from dxt_replay.traces.layers import OBJECT_STORES, called, lowest
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.units import NS_PER_S, format_bytes, format_count, format_counted, format_duration
from dxt_replay.traces.unseen import LEAST_COVERAGE, OBJECTS, nothing_recorded
from dxt_replay.traces.workers import ALONE, Workers

SCHEMA = TABLES["findings"].schema
"""One row per finding; `values` is a JSON object, `files` has one path per line."""

_SHARDS = (".tar", ".tar.gz", ".tgz", ".tar.zst", ".parquet", ".arrow", ".lmdb", ".mdb", ".zip")
"""Suffixes of files with many samples, besides TFRecord and HDF5."""

_BENCHMARK = re.compile(r"([a-z0-9]+)_(a100|h100|b200|mi355)")
_LEAST_STEPS, _MEMORY_FACTOR = 500, 5
"""MLPerf Storage v2.0 and v3.0 (mlcommons/storage, Submission_guidelines and the validation of mlpstorage): steps of an
epoch for which the files must suffice, and least size of the data set in memories of all hosts. A capture cannot show
all of its rules; only those here are checked."""
_TUNABLE = frozenset(
    {
        "dataset.num_files_train", "dataset.num_subfolders_train", "dataset.data_folder", "reader.read_threads",
        "reader.computation_threads", "reader.transfer_size", "reader.prefetch_size", "checkpoint.checkpoint_folder",
        "storage.storage_type", "storage.storage_root",
    }
)  # fmt: skip
"""Keys that a closed submission may change; for unet3d `reader.odirect` too."""

_TENSORFLOW, _PYTORCH, _JAX, _UNKNOWN = Framework.TENSORFLOW, Framework.PYTORCH, Framework.JAX, Framework.UNKNOWN
_REMEDIES: Mapping[str, Mapping[Framework, str]] = {
    "read ahead": {
        _TENSORFLOW: "Prepare the next batches while the present one is computed: dataset.prefetch(tf.data.AUTOTUNE).",
        _PYTORCH: "Prepare the next batches while the present one is computed: DataLoader(..., num_workers=N, "
        "prefetch_factor=4), N up to the cores of each rank.",
        _JAX: "Prepare the next batches in the background, with tf.data's prefetch or a loader such as Grain.",
        _UNKNOWN: "Prepare the next batches in background threads or processes while the present one is computed.",
    },
    "read in parallel": {
        _TENSORFLOW: "Read several files at once: dataset.interleave(..., num_parallel_calls=tf.data.AUTOTUNE). The "
        "DLIO paper gained 1.2x with 8 read threads.",
        _PYTORCH: "Read with several processes: DataLoader(..., num_workers=N), N up to the cores of each rank, or "
        "more where they wait for storage. The DLIO paper gained 1.2x with 8 read threads.",
        _UNKNOWN: "Read several files at once, in threads or processes. The DLIO paper gained 1.2x with 8 read "
        "threads.",
    },
    "prepare faster": {
        _TENSORFLOW: "Decode in parallel, dataset.map(decode, num_parallel_calls=tf.data.AUTOTUNE), or once, ahead of "
        "the run. The DLIO paper gained up to 66 % with more preprocessing threads.",
        _PYTORCH: "Decode in more processes, DataLoader(..., num_workers=N), N up to the cores of each rank, or once, "
        "ahead of the run. The DLIO paper gained up to 66 % with more preprocessing threads.",
        _UNKNOWN: "Decode in more threads or processes, or once, ahead of the run. The DLIO paper gained up to 66 % "
        "with more preprocessing threads.",
    },
    "read more at once": {
        _TENSORFLOW: "Ask for more at once: TFRecordDataset(files, buffer_size=8 << 20), or larger records. Reads of "
        "1 MiB instead of 256 KiB were 1.25 to 1.32 times as fast in the DLIO paper.",
        _PYTORCH: "Ask for more at once: read shards of many samples (WebDataset, tar) with open(path, 'rb', "
        "buffering=8 << 20). Reads of 1 MiB instead of 256 KiB were 1.25 to 1.32 times as fast in the DLIO paper.",
        _UNKNOWN: "Ask for more at once: a larger buffer, or several samples a read. Reads of 1 MiB instead of 256 KiB "
        "were 1.25 to 1.32 times as fast in the DLIO paper.",
    },
    "read more of a shard at once": {
        _UNKNOWN: "Ask for more at once: read the shards through a larger buffer, such as open(path, 'rb', "
        "buffering=8 << 20). Reads of 1 MiB instead of 256 KiB were 1.25 to 1.32 times as fast in the DLIO paper."
    },
    "open fewer files": {
        _UNKNOWN: "Put samples into fewer, larger files (shards, HDF5), and keep files open between epochs."
    },
    "open shards less often": {_UNKNOWN: "Keep files open between epochs, and put more samples into each of them."},
    "write more at once": {
        _UNKNOWN: "Collect the data in a buffer of some MiB before they are written; log less often."
    },
    "keep what was read": {
        _TENSORFLOW: "Keep the samples in memory, dataset.cache(), or on a local disk, "
        "dataset.cache('/local/disk/file').",
        _PYTORCH: "Hold the samples in memory, or copy the data set to a local disk first.",
        _UNKNOWN: "Keep the data in memory, or copy the files to a local disk first.",
    },
    "save aside": {
        _TENSORFLOW: "Write checkpoints in the background, tf.train.CheckpointOptions(enable_async=True), from all "
        "ranks in parallel, or less often.",
        _PYTORCH: "Write checkpoints in the background, torch.distributed.checkpoint.async_save(...), from all ranks "
        "in parallel, or less often.",
        _JAX: "Write checkpoints in the background (orbax's AsyncCheckpointer), from all ranks in parallel, or less "
        "often.",
        _UNKNOWN: "Copy the state in memory and write it in the background, from all ranks in parallel, or less often.",
    },
}
"""By name, in the words of the framework that the program uses, else in general ones."""

_TELL_APART = "Record --with strace, which shows mappings, sendfile and copies, and names io_uring and AIO."
_READ_INSTEAD = (
    "Record once with reads instead of mappings (torch.load(mmap=False), numpy.load without mmap_mode, datasets with "
    "keep_in_memory=True), and objects from a mounted bucket, to learn what they cost."
)
_MOUNT_INSTEAD = (
    "DXT traces calls of POSIX and MPI-IO: record once with the container mounted (dfuse) and files opened below the "
    "mount, to learn when the I/O happens."
)


def _remedy(name: str, framework: Framework = _UNKNOWN) -> str:
    return _REMEDIES[name].get(framework, _REMEDIES[name][_UNKNOWN])


def _input_remedy(name: str, found: Analysis) -> str:
    """A remedy for the input of this program, with the recorded facts about its DataLoader's workers, who would carry
    it out."""
    loop, workers = found.summary.loop, found.setting.workers
    said = [_remedy(name, found.setting.framework)]
    if workers is None or loop is None:
        return said[0]
    said.append(f"At most {format_counted(workers.at_once, 'worker')} of a rank read at the same time.")
    works_pct = 100 - loop.input_wait_pct
    if name == "prepare faster" and works_pct > 0:
        needed = math.ceil(100 * workers.at_once / works_pct)
        said.append(f"If each takes as long for a batch as now, {needed} would keep up, given a core each.")
    if workers.starts > 1:
        said.append(
            f"Workers started again {format_counted(workers.starts - 1, 'time')}: persistent_workers=True keeps them "
            "from one epoch to the next."
        )
    return " ".join(said)


def findings(
    capture: Capture, workers: Workers = ALONE, saved_s: tuple[float, float] | None = None
) -> tuple[Finding, ...]:
    """Findings about a capture, worst first. `saved_s`: as of `Analysis`."""
    return findings_of(analyse(capture, workers=workers, saved_s=saved_s))


def findings_of(analysis: Analysis) -> tuple[Finding, ...]:
    """Findings about the result of `analyse`, worst first; a warm-up comes last of its severity, since it does not
    matter in a long run."""
    files = _program_files(analysis)
    made = (_finding(hit, analysis) for condition in CONDITIONS for hit in condition(analysis, files))
    return tuple(
        sorted(
            filter(None, made),
            key=lambda each: (
                SEVERITIES.index(each.severity),
                each.code == "warm-up",
                -math.inf if each.at_stake_s is None else -each.at_stake_s,
            ),
        )
    )


def findings_table(found: Iterable[Finding]) -> pa.Table:
    """The findings as a table of SCHEMA."""
    rows = [
        {**each.as_json(), "values": json.dumps(dict(each.values)), "files": "\n".join(each.files)} for each in found
    ]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def most_saved_s(analysis: Analysis, of: str) -> float:
    """Upper bound of what infinitely fast storage saves of the training loop, or of the run, in s; inf where not known.

    For the loop it is the first figure of `summary`. For the time before and after the loop there is no bound.
    """
    summary, loop = analysis.summary, analysis.summary.loop
    run_s = summary.job.run_time_s or math.inf
    if loop is None:
        by_counters = called(summary.counted_times, summary.job.nprocs)
        counted_s = 0.0 if by_counters is None else by_counters[1]["slowest_s"] or run_s
        return min(max(summary.in_flight_s + summary.other_io_s, counted_s), run_s)
    saved_s = loop.storage_gain_s if analysis.saved_s is None else analysis.saved_s[1]
    return saved_s if of == LOOP else saved_s + max(run_s - loop.loop_s, 0.0)


class Hit(NamedTuple):
    """What a condition found. `stake`: what is at stake, or the severity where that is not known; the rest as of
    `Finding`. It is no finding where next to nothing is at stake."""

    code: str
    stake: Stake | str
    values: Mapping[str, float]
    title: str
    evidence: str
    threshold: str
    remedy: str
    files: tuple[str, ...] = ()


def _finding(hit: Hit, analysis: Analysis) -> Finding | None:
    """The finding with at most the saving of infinitely fast storage at stake; None if that is next to nothing."""
    code, stake, values, title, evidence, threshold, remedy, files = hit
    texts: dict[str, Any] = {"title": title, "threshold": threshold, "remedy": remedy}
    if isinstance(stake, str):
        return Finding(code=code, severity=stake, evidence=evidence, values=values, files=files, **texts)
    most_s, loop = most_saved_s(analysis, stake.of), analysis.summary.loop
    # Waits that are not for storage would gain from faster decoding, which this limit does not hold for.
    shares = (values.get(name, 0.0) for name in ("io_in_wait_pct", "saved_of_wait_pct"))
    by_storage = code != "input-bound" or max(shares) >= limits.MOSTLY_STORAGE_PCT
    if stake.seconds > most_s and by_storage and code not in ("checkpoint-blocking", "warm-up"):
        whole_s = loop.loop_s if loop is not None and stake.of == LOOP else analysis.summary.job.run_time_s or 0.0
        stake = Stake(most_s, whole_s, stake.of)
        evidence += f" Infinitely fast storage would save at most {_duration(most_s)} of the {stake.of}."
    if not stake.matters and code != "input-bound":
        return None
    columns = stake.columns() | ({"severity": "info"} if code == "warm-up" else {})
    return Finding(code=code, evidence=evidence, values=values, files=files, **texts, **columns)


Files = Mapping[str, Any]
"""The files table without the profilers' own files: numbers as arrays, texts as lists."""


def _program_files(found: Analysis) -> Files:
    files = found.patterns.files
    table = files.filter(pa.array(~np.isin(files["file_id"].to_numpy(), sorted(found.setting.own_files))))
    return {
        name: table[name].to_pylist() if pa.types.is_string(table[name].type) else table[name].to_numpy()
        for name in table.column_names
    }


def _worst(files: Files, by: np.ndarray) -> tuple[str, ...]:
    order = np.argsort(-by, kind="stable")[:5]
    return tuple(files["path"][place] for place in order if by[place] > 0)


def percent(value: float) -> str:
    """`12.3 %`."""
    return f"{value:.1f} %" if value < 99.95 else "100 %"


def _duration(seconds: float) -> str:
    return format_duration(seconds * NS_PER_S)


def _without_first(loop: SteadyLoop) -> str:
    return " (first step left out)" if loop.warm_up_s else ""


def _storage(found: Analysis, files: Files | None = None, chosen: np.ndarray | None = None) -> Stake:
    """Upper bound of the gain from any remedy for the reads and writes, for the loop if it is known, else for the run.

    `chosen` (files,): the files that the remedy concerns. It cannot gain more than their I/O time.
    """
    loop, summary = found.summary.loop, found.summary
    most_s = math.inf
    if files is not None and not files["reconstructed_bytes"][chosen].any():
        most_s = float(files["io_ns"][chosen].sum()) / NS_PER_S
    if loop is not None:
        return Stake(min(loop.storage_gain_s, most_s), loop.loop_s, LOOP)
    return Stake(min(summary.in_flight_s, most_s), summary.job.run_time_s or 0.0, RUN)


def _is_shard(kind: str, path: str) -> bool:
    """Whether a file of this format (of `traces.schema.FORMATS`) holds many samples."""
    return kind in ("tfrecord", "hdf5") or path.lower().endswith(_SHARDS)


# ---- what the trace holds


def _carriers(found: Analysis) -> dict[str, InterfaceTotals]:
    """The interfaces with counters that moved the bytes themselves, on behalf of the others."""
    counted = {name: each for name, each in found.summary.interfaces.items() if each.source == "counters"}
    return {name: counted[name] for name in lowest({name: each.bytes or 0 for name, each in counted.items()})}


def _no_trace(found: Analysis, files: Files) -> Iterator[Hit]:
    traced, carriers = found.summary.operations, _carriers(found)
    counted = sum(each.operations for each in carriers.values())
    # DXT does not trace an object store: `_not_traced` reports that.
    if counted and not (traced.read or traced.write or any(name in OBJECT_STORES for name in carriers)):
        yield Hit(
            "no-trace", "high", {"counted_operations": counted},
            "The log holds no DXT trace",
            f"Darshan counted {format_count(counted)} reads and writes; none of them was traced, so it is not known "
            "when each happened.",
            "no traced operation",
            "Record again with DXT: DXT_ENABLE_IO_TRACE=1 in the environment of every process.",
        )  # fmt: skip


def _partial_trace(found: Analysis, files: Files) -> Iterator[Hit]:
    coverage, operations = found.summary.coverage, found.summary.operations
    known = dict(zip(("bytes", "operations"), coverage.traceable, strict=True))
    low = {name: share for name, share in known.items() if share is not None and share < LEAST_COVERAGE}
    counted = any(each.operations for each in _carriers(found).values())
    if not (low and (operations.read or operations.write or not counted)) and not found.summary.partial:
        return
    aside = ", C streams aside" if coverage.traceable != (coverage.bytes, coverage.operations) else ""
    shares = " and ".join(f"{percent(100 * share)} of the {name}" for name, share in low.items())
    yield Hit(
        "partial-trace", "high", {f"coverage_{name}": share for name, share in low.items()},
        "The trace holds only part of the run",
        f"The trace holds {shares} that Darshan counted{aside}." if low else "The source is marked as incomplete.",
        f"below {percent(100 * LEAST_COVERAGE)}",
        "Record again with more memory for DXT (DARSHAN_MODMEM, or MODMEM in a DARSHAN_CONFIG_PATH file), or leave "
        "out files that do not matter.",
    )  # fmt: skip


def _not_traced(found: Analysis, files: Files) -> Iterator[Hit]:
    unseen, why = found.summary.coverage.unseen, found.summary.not_judged
    if not unseen or why is None or nothing_recorded(unseen):
        return
    kinds = {each.kind for each in unseen}
    remedies = [_READ_INSTEAD] * bool(kinds - {OBJECTS}) + [_MOUNT_INSTEAD] * (OBJECTS in kinds)
    if "mapped" in kinds and found.summary.recorded_by == "darshan":
        remedies.insert(0, _TELL_APART)
    mapped = tuple(each.name for each in unseen if each.kind == "mapped")
    part = "the job's I/O" if OBJECTS in kinds else "what the job read"
    yield Hit(
        "not-traced", "high",
        {"least_bytes": sum(each.bytes or 0 for each in unseen), "mapped_files": len(mapped)},
        f"Part of {part} is not in the trace",
        f"{why[:1].upper()}{why[1:]}. So the cost of storage is not known, and a replay leaves this I/O out.",
        f"above {percent(100 * (1 - LEAST_COVERAGE))} of the bytes, or not known",
        " ".join(remedies), mapped[:5],
    )  # fmt: skip


# ---- requests


def _small(found: Analysis, files: Files) -> Iterator[Hit]:
    """Reads, or writes, smaller than the stripe of their file, or than 1 MiB for files without stripes."""
    limit = "a stripe of their file" if LUSTRE in found.setting.file_systems else "1 MiB"
    for name, bytes_moved in (("reads", "bytes_read"), ("writes", "bytes_written")):
        total, small = int(files[name].sum()), int(files[f"small_{name}"].sum())
        share = 100 * small / total if total else 0.0
        if small < limits.LEAST_REQUESTS or share <= limits.SMALL_REQUEST_PCT:
            continue
        worst, mean = int(files[f"small_{name}"].argmax()), int(files[bytes_moved].sum()) / total
        # The options of TensorFlow do not affect files that h5py or NumPy opens.
        framework = found.setting.framework
        if framework is _TENSORFLOW and files["format"][worst] != "tfrecord":
            framework = _UNKNOWN
        # Programs that read shards by now are not told to use them.
        shards = name == "reads" and framework is _PYTORCH and _is_shard(files["format"][worst], files["path"][worst])
        yield Hit(
            f"small-{name}", _storage(found, files, files[name] > 0),
            {f"small_{name}": small, f"small_{name}_pct": share},
            f"{name.capitalize()} are smaller than {limit}",
            f"{format_count(small)} of {format_count(total)} {name} ({percent(share)}) move less than {limit}; the "
            f"mean is {format_bytes(mean)}.",
            f"more than {limits.SMALL_REQUEST_PCT:g} %, and at least {limits.LEAST_REQUESTS}",
            _remedy("read more of a shard at once" if shards else f"{name[:-1]} more at once", framework),
            _worst(files, files[f"small_{name}"]),
        )  # fmt: skip


def _small_chunks(found: Analysis, files: Files) -> Iterator[Hit]:
    interface = found.summary.interfaces.get("HDF5")
    hdf5 = np.array([name == "hdf5" for name in files["format"]], dtype=bool)
    reads = np.where(hdf5, files["reads"], 0)
    mean = files["bytes_read"] / np.maximum(files["reads"], 1)
    requests = interface.reads if interface is not None and interface.source == "counters" else 0
    cut = 100 * files["consecutive"] > limits.CONSECUTIVE_PCT * reads
    if requests:
        cut = reads > limits.READS_PER_REQUEST * requests
    small = hdf5 & cut & (mean < limits.SMALL_CHUNK_BYTES) & (reads >= limits.LEAST_REQUESTS)
    if not small.any():
        return
    count, size = int(reads[small].sum()), float(files["bytes_read"][small].sum() / reads[small].sum())
    values = {"reads": count, "mean_bytes": size}
    what = f"{percent(100 * files['consecutive'][small].sum() / count)} of the reads continue the one before"
    if requests:
        values["reads_per_request"] = count / requests
        what = f"{count / requests:.0f} POSIX reads carry out one H5Dread"
    yield Hit(
        "small-chunks", _storage(found), values,
        "HDF5 chunks are smaller than a request",
        f"{what}; they are {format_bytes(size)} each (mean).",
        f"more than {limits.READS_PER_REQUEST:g} reads a request (without HDF5 counters: more than "
        f"{limits.CONSECUTIVE_PCT:g} % consecutive), below {format_bytes(limits.SMALL_CHUNK_BYTES)}",
        "Repack with chunks of a sample or more (h5repack -l CHUNK=...): 1 MiB instead of 4 KiB made Cosmic Tagger's "
        "I/O 8 times as fast in the DLIO paper.",
        _worst(files, np.where(small, reads, 0)),
    )  # fmt: skip


def _random_shared(found: Analysis, files: Files) -> Iterator[Hit]:
    accesses, random = files["reads"] + files["writes"], files["random"]
    some = (files["ranks"] > 1) & (random >= limits.LEAST_REQUESTS)
    some &= 100 * random > limits.RANDOM_PCT * np.maximum(accesses, 1)
    if some.any():
        share = 100 * random[some].sum() / accesses[some].sum()
        yield Hit(
            "random-shared", _storage(found), {"random_pct": share},
            "Shared files are accessed at random",
            f"{percent(share)} of the accesses to {format_count(int(some.sum()))} files of several ranks go to a "
            "place that does not follow from the two before.",
            f"more than {limits.RANDOM_PCT:g} %, and {limits.LEAST_REQUESTS} of them",
            "Shuffle the order of blocks and the samples within a buffer rather than every sample, give each rank "
            "files of its own, or stage the file in memory or on a local disk.",
            _worst(files, np.where(some, random, 0)),
        )  # fmt: skip


def _reads_again(found: Analysis, files: Files) -> Iterator[Hit]:
    total, again, several, unique = (
        int(files[name].sum())
        for name in ("bytes_read", "reread_bytes", "read_by_several_bytes", "unique_bytes_read")
    )  # fmt: skip
    if total and again >= limits.LEAST_REREAD_BYTES and 100 * again >= limits.REREAD_PCT * total:
        pct = 100 * again / total
        yield Hit(
            "re-reads", _storage(found), {"reread_bytes": again, "reread_pct": pct, "unique_bytes": unique},
            "Ranks read the same bytes again",
            f"{format_bytes(again)} of {format_bytes(total)} ({percent(pct)}) had been read by the same rank before; "
            f"{format_bytes(unique)} are distinct.",
            f"at least {limits.REREAD_PCT:g} %",
            f"{_remedy('keep what was read', found.setting.framework)} That takes {format_bytes(unique)}.",
            _worst(files, files["reread_bytes"]),
        )  # fmt: skip
    if several >= limits.LEAST_REREAD_BYTES and 100 * several >= limits.REREAD_PCT * unique:
        times = (unique + several) / unique
        yield Hit(
            "shared-reads", _storage(found), {"read_by_several_bytes": several, "times": times},
            "Several ranks read the same bytes",
            f"The ranks read {format_bytes(unique + several)}, of which {format_bytes(unique)} are distinct: they "
            f"read each byte {times:.1f} times on average.",
            f"at least {limits.REREAD_PCT:g} % more than once",
            "Shard the files over the ranks, or let one rank read and broadcast.",
            _worst(files, files["read_by_several_bytes"]),
        )  # fmt: skip


def _rank_imbalance(found: Analysis, files: Files) -> Iterator[Hit]:
    ranks, time_ns = found.patterns.ranks, found.overlap.ranks["io_ns"].to_numpy()
    moved = ranks["bytes_read"].to_numpy() + ranks["bytes_written"].to_numpy()
    if len(moved) < 2 or not moved.max():
        return
    values = {
        "bytes_imbalance_pct": 100 * float(moved.max() - moved.min()) / float(moved.max()),
        "time_imbalance_pct": 100 * float(time_ns.max() - time_ns.min()) / float(max(time_ns.max(), 1)),
    }
    if max(values.values()) <= limits.IMBALANCE_PCT:
        return
    (busiest, most), (laziest, least) = (
        (ranks["rank"][place].as_py(), format_duration(float(time_ns[place])))
        for place in (int(time_ns.argmax()), int(time_ns.argmin()))
    )
    stake = Stake(float(time_ns.max() - time_ns.mean()) / NS_PER_S, found.overlap.run_time_s, RUN)
    yield Hit(
        "rank-imbalance", stake, values,
        "Ranks share the I/O unevenly",
        f"Rank {busiest} spends {most} in I/O, rank {laziest} {least}; the most that a rank moves is "
        f"{format_bytes(float(moved.max()))}, the least {format_bytes(float(moved.min()))}.",
        f"(max - min) / max above {limits.IMBALANCE_PCT:g} %, in bytes or time",
        "Give the ranks equal shares of the files, and spread restarts, logs and checkpoints that one rank does for "
        "all.",
    )  # fmt: skip


def _metadata_time(found: Analysis, files: Files) -> Iterator[Hit]:
    ranks = found.patterns.ranks
    time_ns = ranks["metadata_ns"].to_numpy() + ranks["reconstructed_metadata_ns"].to_numpy()
    if not len(time_ns) or not time_ns.max():
        return
    worst = int(time_ns.argmax())
    stake = Stake(int(time_ns[worst]) / NS_PER_S, found.overlap.run_time_s, RUN)
    if stake.pct < limits.MATERIAL_PCT and stake.seconds <= limits.METADATA_RANK_S:
        return
    moved = files["bytes_read"] + files["reconstructed_bytes"]
    sharded = np.array(list(map(_is_shard, files["format"], files["path"])), dtype=bool)
    yield Hit(
        "metadata-time", stake, {"metadata_s": stake.seconds, "metadata_of_run_pct": stake.pct},
        "Opening, closing and looking up files takes long",
        f"Rank {ranks['rank'][worst].as_py()} spends {format_duration(float(time_ns[worst]))} ({percent(stake.pct)} of "
        "the run) in metadata.",
        f"at least {limits.MATERIAL_PCT:g} % of the run, or above {limits.METADATA_RANK_S:g} s of a rank",
        _remedy("open shards less often" if 2 * moved[sharded].sum() > moved.sum() else "open fewer files"),
    )  # fmt: skip


# ---- what counters tell of a job without a trace

_BOTH = ("read_s", "write_s")
_COUNTED = (
    (
        "small_reads", "small-reads", "Reads are at most 1 MiB", "reads move at most 1 MiB",
        limits.SMALL_REQUEST_PCT, ("read_s",), _remedy("read more at once"),
    ),
    (
        "small_writes", "small-writes", "Writes are at most 1 MiB", "writes move at most 1 MiB",
        limits.SMALL_REQUEST_PCT, ("write_s",), _remedy("write more at once"),
    ),
    (
        "misaligned", "misaligned", "Requests do not begin at the file system's borders",
        "reads and writes begin beside them", limits.MISALIGNED_PCT, _BOTH,
        "Begin them at multiples of the block or stripe (H5Pset_alignment, striping_unit of MPI-IO).",
    ),
    (
        "misaligned_in_memory", "misaligned-in-memory", "Buffers are not aligned in memory",
        "reads and writes use such a buffer", limits.MISALIGNED_PCT, _BOTH,
        "Allocate buffers at multiples of 8 bytes, for direct I/O of a page (posix_memalign).",
    ),
    (
        "read_again", "re-reads", "The same bytes are read again", "had been read before, by the same rank or another",
        limits.REREAD_PCT, ("read_s",), "Let one rank read and broadcast, or keep what was read.",
    ),
    (
        "one_shared", "shared-file", "Most bytes go through one shared file", "are of one file",
        limits.SHARED_FILE_PCT, _BOTH,
        "Stripe it over more servers, let more ranks write it (cb_nodes of MPI-IO), or write subfiles.",
    ),
)  # fmt: skip
"""Rules of Drishti: the name in `counted_requests`, the code, the title, what they are, the limit in per cent, the
times of the slowest rank that a remedy could gain, and the remedy."""


def _counted(found: Analysis, files: Files) -> Iterator[Hit]:
    """Requests that no trace holds, which counters tell."""
    summary = found.summary
    for name, code, title, what, limit, times, remedy in _COUNTED:
        fact = found.setting.counted.get(name)
        if fact is None:
            continue
        every = (
            (each["slowest_s"], sum(each[time] or 0.0 for time in times)) for each in summary.counted_times.values()
        )
        longest_s = max((min(slowest_s or all_s, all_s) for slowest_s, all_s in every), default=0.0)
        shown, least = format_count, limits.LEAST_REQUESTS
        if name in ("read_again", "one_shared"):
            shown, least = format_bytes, limits.LEAST_REREAD_BYTES
        share = 100 * fact["count"] / fact["of"]
        if share <= limit or fact["count"] < least:
            continue
        more = f"; the mean is {format_bytes(fact['of_bytes'] / fact['of'])}" if fact["of_bytes"] else ""
        if name == "one_shared":
            more = f", opened by {format_count(fact['ranks'])} of {format_count(summary.job.nprocs)} ranks"
        elif fact["in_shared"]:
            more += f". {shown(fact['in_shared'])} of these are in files of several ranks"
        yield Hit(
            code, Stake(longest_s, summary.job.run_time_s or 0.0, RUN),
            {name: fact["count"], f"{name}_pct": share, f"{name}_in_shared": fact["in_shared"]},
            title, f"{shown(fact['count'])} of {shown(fact['of'])} {what} ({percent(share)}){more}.",
            f"more than {limit:g} %, and at least {shown(least)}", remedy, fact["files"],
        )  # fmt: skip


def _counted_imbalance(found: Analysis, files: Files) -> Iterator[Hit]:
    fact, posix = found.setting.counted.get("uneven"), found.summary.counted_times.get("POSIX")
    if fact is None or posix is None:
        return
    job, worst = found.summary.job, fact["worst"]
    mean_s = sum(posix[name] or 0.0 for name in ("read_s", "write_s", "metadata_s")) / max(job.nprocs, 1)
    who = " and ".join(
        f"rank {worst[f'{each}_rank']} moves {format_bytes(worst[f'{each}_bytes'])} in {_duration(worst[f'{each}_s'])}"
        for each in ("slowest", "fastest")
    )
    share = 100 * abs(worst["slowest_bytes"] - worst["fastest_bytes"]) / max(worst["of_bytes"], 1)
    yield Hit(
        "rank-imbalance", Stake((posix["slowest_s"] or worst["slowest_s"]) - mean_s, job.run_time_s or 0.0, RUN),
        {"uneven_files": fact["count"], "bytes_imbalance_pct": share, "slowest_rank": worst["slowest_rank"]},
        "Ranks share the I/O unevenly",
        f"{format_count(fact['count'])} shared files. Of the {format_bytes(worst['of_bytes'])} of {fact['files'][0]} "
        f"{who}: {percent(share)} apart.",
        "15 % of a file's bytes or time between two ranks, 30 % of the larger where not all open it",
        "Let more ranks, on more nodes, read and write (cb_nodes and striping of MPI-IO), in equal shares.",
        fact["files"],
    )  # fmt: skip


# ---- the training loop


def _input_bound(found: Analysis, files: Files) -> Iterator[Hit]:
    loop, bound, mostly = found.summary.loop, 100 - limits.LEAST_UTILISATION_PCT, limits.MOSTLY_STORAGE_PCT
    if loop is None or loop.input_wait_pct <= bound:
        return
    share, unknown, values = loop.io_in_wait_pct, found.summary.not_judged, {"input_wait_pct": loop.input_wait_pct}
    least, most = (min(100 * each / loop.input_wait_s, 100.0) for each in found.saved_s or (0.0, loop.input_wait_s))
    if share is not None and not share < mostly <= least:  # the loop waits for opens, too, which are no reads
        storage = f"storage is busy in {percent(share)} of the wait."
        values["io_in_wait_pct"] = share
    else:
        share = least
        storage = f"infinitely fast storage would save at least {percent(share)} of the wait."
        if share < mostly <= most:
            unknown = unknown or "much of the I/O is rebuilt from counters, and its times are estimates"
        elif share < mostly:
            storage = f"infinitely fast storage would save at most {percent(most)} of the wait."
        values["saved_of_wait_pct"] = share
    cause, remedy = ", mostly without recorded I/O", "prepare faster"
    if share >= mostly:
        cause, remedy = ", mostly for storage", "read ahead"
    elif unknown is not None:
        cause, remedy, storage = "", "read ahead", f"the cause is not known: {unknown}."
        values = {"input_wait_pct": loop.input_wait_pct}
    yield Hit(
        "input-bound", Stake(loop.input_wait_s, loop.loop_s, LOOP), values,
        f"Training waits for input{cause}",
        f"{percent(loop.input_wait_pct)} of the training loop is input wait{_without_first(loop)}; {storage}",
        f"above {percent(bound)}: MLPerf Storage asks for {limits.LEAST_UTILISATION_PCT:g} % accelerator utilisation",
        _input_remedy(remedy, found),
    )  # fmt: skip


def _no_overlap(found: Analysis, files: Files) -> Iterator[Hit]:
    loop, hidden = found.summary.loop, found.overlap.io_hidden_pct
    if loop is None or hidden is None or loop.io_pct < limits.NOTICEABLE_PCT or hidden >= limits.HIDDEN_PCT:
        return
    yield Hit(
        "no-overlap", _storage(found), {"io_hidden_pct": hidden, "io_of_loop_pct": loop.io_pct},
        "I/O and compute take turns",
        f"{percent(hidden)} of the I/O time lies inside compute; I/O takes {percent(loop.io_pct)} of the training "
        f"loop{_without_first(loop)}.",
        f"less than {limits.HIDDEN_PCT:g} % hidden, and I/O at least {limits.NOTICEABLE_PCT:g} % of the loop",
        _input_remedy("read ahead", found),
    )  # fmt: skip


def _one_reader(found: Analysis, files: Files) -> Iterator[Hit]:
    loop, union_ns = found.summary.loop, found.overlap.total("io_ns", profiled=True)
    if not union_ns or loop is None:
        return
    profiled = found.overlap.ranks.filter(found.overlap.ranks["profiled"])["rank"]
    ranks, exposed = found.patterns.ranks, loop.io_exposed_pct
    together = sum(ranks["io_ns"].filter(pc.is_in(ranks["rank"], profiled.combine_chunks())).to_pylist()) / union_ns
    if together < limits.ONE_AT_A_TIME and exposed >= limits.NOTICEABLE_PCT:
        yield Hit(
            "one-reader", _storage(found), {"in_flight": together, "exposed_io_of_loop_pct": exposed},
            "Each rank has one operation in flight at a time",
            f"{together:.2f} operations are in flight while any is; {percent(exposed)} of the training loop is I/O "
            f"outside compute{_without_first(loop)}.",
            f"less than {limits.ONE_AT_A_TIME:g} in flight, and exposed I/O at least {limits.NOTICEABLE_PCT:g} % of "
            "the loop",
            _input_remedy("read in parallel", found),
        )  # fmt: skip


def _checkpoint_blocking(found: Analysis, files: Files) -> Iterator[Hit]:
    steps, table = found.overlap.steps, found.patterns.files
    if not steps.num_rows:
        return
    ranks = found.overlap.ranks.select(["rank", "loop_ns", "checkpoint_in_loop_ns"]).to_pylist()
    worst = max(
        (rank for rank in ranks if rank["loop_ns"]), key=lambda rank: rank["checkpoint_in_loop_ns"] / rank["loop_ns"]
    )
    stake = Stake(worst["checkpoint_in_loop_ns"] / NS_PER_S, worst["loop_ns"] / NS_PER_S, LOOP)
    own = steps["rank"].to_numpy() == worst["rank"]
    saving = own & (steps["checkpoint_ns"].to_numpy() + steps["gap_checkpoint_ns"].to_numpy() > 0)
    other = own & ~saving
    if not saving.any() or not other.any():
        return
    duration = steps["duration_ns"].to_numpy() + steps["gap_ns"].to_numpy()
    usual, stretched = float(np.median(duration[other])), float(np.median(duration[saving]))
    if usual <= 0 or stretched < limits.STRETCHED * usual:
        return
    saved = table.filter(pc.equal(table["format"], "checkpoint"))
    moved = sum(sum(saved[name].to_pylist()) for name in ("bytes_written", "reconstructed_bytes"))
    written = f" and writes {format_bytes(moved)} in all" if moved else ""
    yield Hit(
        "checkpoint-blocking", stake,
        {
            "checkpoint_of_loop_pct": stake.pct, "saving_step_s": stretched / NS_PER_S,
            "other_step_s": usual / NS_PER_S,
        },
        "Checkpoints hold up training",
        f"{int(saving.sum())} steps of rank {worst['rank']} that save take {format_duration(stretched)} (median), "
        f"{stretched / usual:.1f} times the others; saving takes {percent(stake.pct)} of its loop{written}.",
        f"at least {limits.STRETCHED:g} times the other steps, and {limits.NOTICEABLE_PCT:g} % of the loop",
        _remedy("save aside", found.setting.framework),
    )  # fmt: skip


def _warm_up(found: Analysis, files: Files) -> Iterator[Hit]:
    loop = found.summary.loop
    if loop is not None and loop.warm_up_s:
        yield Hit(
            "warm-up", Stake(loop.warm_up_s, loop.loop_s + loop.warm_up_s, LOOP), {"warm_up_s": loop.warm_up_s},
            "The first step is a warm-up",
            f"It takes {_duration(loop.warm_up_s)} longer than the usual step (mean of the ranks); the other findings "
            "leave it out.",
            f"at least {limits.WARM_UP:g} times the median of the other steps",
            "A long run needs no change, since it has only one first step. In a short test, leave the first step out "
            "(--part steps=1-N) before you compare.",
        )  # fmt: skip


def _benchmark(found: Analysis, files: Files) -> Iterator[Hit]:
    """A benchmark's training: its figures, and the rules that it breaks of MLPerf Storage, if that has the workload."""
    run, jobs = found.setting.benchmark, found.summary.job.nprocs
    figures = None
    if run is not None and found.summary.loop is not None:
        figures = benchmark_figures(found.overlap.steps, run)
    if run is None or figures is None:
        return
    match = _BENCHMARK.fullmatch(run.workload)
    model = "" if match is None else match[1]
    least, cache, used = limits.MLPERF_LEAST_PCT.get(model), found.setting.cache, figures.utilisation_pct
    size = run.files * run.samples_per_file * run.record_bytes
    sort = "replayed" if cache is not None else "not run: its times are those of the assumed device"
    evidence = (
        f"Counted: {format_count(figures.steps)} steps of each rank, {run.batch_size} samples a step; {sort}. "
        f"{format_bytes(int(figures.samples_per_s * run.record_bytes))}/s of records. The data set has "
        f"{format_count(run.files)} files, {format_bytes(int(size))}: enough if all hosts together have at most "
        f"{format_bytes(int(size / _MEMORY_FACTOR))} of memory."
    )
    values = {
        "utilisation_pct": used, "samples_per_s": figures.samples_per_s,
        "dlio_samples_per_s": figures.dlio_samples_per_s, "counted_steps": figures.steps,
    }  # fmt: skip
    shown = f"accelerator utilisation {used:.1f} %, {figures.samples_per_s:,.4g} samples/s"
    if least is None:
        yield Hit(
            "benchmark-figures", "info", values, f"Benchmark {run.workload}: {shown}", evidence,
            "none: MLPerf Storage has no such workload", "Nothing to do: these are the figures that DLIO prints.",
        )  # fmt: skip
        return
    needed = _LEAST_STEPS * run.batch_size * jobs // max(run.samples_per_file, 1)
    allowed = {*_TUNABLE, *(["reader.odirect"] if model == "unet3d" else [])}
    keys = {text.partition("=")[0].lstrip("+~").removeprefix("workload.") for text in run.overrides}
    resident = 0.0 if cache is None else cache.resident_before_pct or 0.0
    broken = {
        f"Utilisation is below {least:g} %.": used < least,
        f"{_LEAST_STEPS} steps of all ranks need {format_count(needed)} files.": run.files < needed,
        f"{resident:.1f} % of the data were in the page cache before the run.": resident > 0,
        f"A closed submission may not change {', '.join(sorted(keys - allowed))}.": keys - allowed,
    }
    said = [sentence for sentence, holds in broken.items() if holds]
    yield Hit(
        "mlperf-storage", "warning" if said else "info", values | {"least_utilisation_pct": least},
        f"{run.workload} {'misses rules of' if said else 'meets the checked rules of'} MLPerf Storage: {shown}",
        " ".join([evidence, *said]),
        f"utilisation of at least {least:g} %, files for {_LEAST_STEPS} steps, a data set of {_MEMORY_FACTOR} times "
        "the memory of all hosts, nothing in the page cache, no change but tunable keys",
        "Generate with more files (dataset.num_files_train) or other tunable keys." if said else
        "Compare the memory of the hosts with the size of the data set: a capture does not show it.",
    )  # fmt: skip


CONDITIONS: tuple[Callable[[Analysis, Files], Iterator[Hit]], ...] = (
    _no_trace, _partial_trace, _not_traced, _small, _small_chunks, _random_shared, _reads_again, _rank_imbalance,
    _metadata_time, _counted, _counted_imbalance, _input_bound, _no_overlap, _one_reader, _checkpoint_blocking,
    _warm_up, _benchmark,
)  # fmt: skip
"""All findings; of equally severe ones with equally much at stake the first is listed first."""
