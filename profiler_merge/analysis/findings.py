"""Findings in words. Each is one function: a condition on an analysis, under its code and its four texts."""

from __future__ import annotations

import json
import math
import re
import string
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dxt_replay.profiler_merge.analysis import finding as thresholds
from dxt_replay.profiler_merge.analysis.analyse import LUSTRE, Analysis, Framework, analyse
from dxt_replay.profiler_merge.analysis.benchmark_figures import benchmark_figures
from dxt_replay.profiler_merge.analysis.finding import LOOP, RUN, SEVERITIES, Finding, Stake
from dxt_replay.profiler_merge.analysis.interfaces import InterfaceTotals
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
        "buffering=8 << 20). Reads of 1 MiB instead of 256 KiB were 1.25 to 1.32 times as fast in the DLIO paper.",
    },
    "open fewer files": {
        _UNKNOWN: "Put samples into fewer, larger files (shards, HDF5), and keep files open between epochs.",
    },
    "open shards less often": {
        _UNKNOWN: "Keep files open between epochs, and put more samples into each of them.",
    },
    "write more at once": {
        _UNKNOWN: "Collect the data in a buffer of some MiB before they are written; log less often.",
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
    made = (_finding(rule, hit, analysis) for rule in RULES for hit in rule.condition(analysis))
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


@dataclass(frozen=True, slots=True)
class Hit:
    """What a condition found: at stake, or the severity where that is not known; the numbers for programs; further
    words of the texts; the worst files."""

    stake: Stake | str
    values: Mapping[str, float]
    words: Mapping[str, Any] = field(default_factory=dict)
    files: tuple[str, ...] = ()


Condition = Callable[[Analysis], Iterator[Hit]]


class Rule(NamedTuple):
    """A finding. The texts are templates: `{name}` is a value or word of the Hit or a threshold, `{name:pct}`,
    `:bytes`, `:n` and `:ns` show it as per cent, bytes, a count or a duration."""

    code: str
    condition: Condition
    title: str
    evidence: str
    threshold: str
    remedy: str


RULES: list[Rule] = []
"""All findings; of equally severe ones with equally much at stake the first is listed first."""


def _rule(
    code: str, title: str, evidence: str, threshold: str, remedy: str = "{remedy}"
) -> Callable[[Condition], Condition]:
    """Adds the decorated condition to RULES."""

    def add(condition: Condition) -> Condition:
        RULES.append(Rule(code, condition, title, evidence, threshold, remedy))
        return condition

    return add


class _Template(string.Formatter):
    def format_field(self, value: Any, form: str) -> str:
        shown: Callable[[Any], str] | None = _FORMS.get(form)
        return super().format_field(value, form) if shown is None else shown(value)


def percent(value: float) -> str:
    """`12.3 %`."""
    return f"{value:.1f} %" if value < 99.95 else "100 %"


_FORMS: Mapping[str, Callable[[Any], str]] = {
    "pct": percent, "bytes": format_bytes, "n": format_count, "ns": format_duration,
}  # fmt: skip


def _finding(rule: Rule, hit: Hit, analysis: Analysis) -> Finding | None:
    """The finding with at most the saving of infinitely fast storage at stake; None if that is next to nothing."""
    summary, loop, stake = analysis.summary, analysis.summary.loop, hit.stake
    words = {
        **vars(thresholds), **hit.values, **hit.words, "stake": stake,
        "warm": " (first step left out)" if loop is not None and loop.warm_up_s else "",
    }  # fmt: skip
    texts: dict[str, Any] = {
        name: _Template().vformat(getattr(rule, name), (), words)
        for name in ("title", "evidence", "threshold", "remedy")
    }
    columns: dict[str, Any] = {"severity": stake} if isinstance(stake, str) else stake.columns()
    if isinstance(stake, Stake) and rule.code not in ("checkpoint-blocking", "warm-up"):
        most_s = most_saved_s(analysis, stake.of)
        shares = (hit.values.get(name, 0.0) for name in ("io_in_wait_pct", "saved_of_wait_pct"))
        # Waits that are not for storage would gain from faster decoding, which this limit does not hold for.
        by_storage = rule.code != "input-bound" or max(shares) >= thresholds.MOSTLY_STORAGE_PCT
        if stake.seconds > most_s and by_storage:
            whole_s = loop.loop_s if loop is not None and stake.of == LOOP else summary.job.run_time_s or 0.0
            limited = Stake(most_s, whole_s, stake.of)
            if not limited.matters and rule.code != "input-bound":
                return None
            columns = limited.columns()
            most = format_duration(most_s * NS_PER_S)
            texts["evidence"] += f" Infinitely fast storage would save at most {most} of the {stake.of}."
    if rule.code == "warm-up":
        columns["severity"] = "info"
    return Finding(code=rule.code, **texts, **columns, values=hit.values, files=hit.files)


@_rule(
    "no-trace",
    "The log holds no DXT trace",
    "Darshan counted {counted_operations:n} reads and writes; none of them was traced, so it is not known when "
    "each happened.",
    "no traced operation",
    "Record again with DXT: DXT_ENABLE_IO_TRACE=1 in the environment of every process.",
)
def _no_trace(found: Analysis) -> Iterator[Hit]:
    traced, carriers = found.summary.operations, _carriers(found)
    counted = sum(each.operations for each in carriers.values())
    # DXT does not trace an object store: `_not_traced` reports that.
    if counted and not (traced.read or traced.write or any(name in OBJECT_STORES for name in carriers)):
        yield Hit("high", {"counted_operations": counted})


def _carriers(found: Analysis) -> dict[str, InterfaceTotals]:
    """The interfaces with counters that moved the bytes themselves, on behalf of the others."""
    counted = {name: each for name, each in found.summary.interfaces.items() if each.source == "counters"}
    return {name: counted[name] for name in lowest({name: each.bytes or 0 for name, each in counted.items()})}


@_rule(
    "partial-trace",
    "The trace holds only part of the run",
    "{said}",
    "below {least:pct}",
    "Record again with more memory for DXT (DARSHAN_MODMEM, or MODMEM in a DARSHAN_CONFIG_PATH file), or leave out "
    "files that do not matter.",
)
def _partial_trace(found: Analysis) -> Iterator[Hit]:
    coverage, operations = found.summary.coverage, found.summary.operations
    known = dict(zip(("bytes", "operations"), coverage.traceable, strict=True))
    low = {name: share for name, share in known.items() if share is not None and share < LEAST_COVERAGE}
    counted = any(each.operations for each in _carriers(found).values())
    if not (low and (operations.read or operations.write or not counted)) and not found.summary.partial:
        return
    aside = ", C streams aside" if coverage.traceable != (coverage.bytes, coverage.operations) else ""
    shares = " and ".join(f"{percent(100 * share)} of the {name}" for name, share in low.items())
    said = f"The trace holds {shares} that Darshan counted{aside}." if low else "The source is marked as incomplete."
    yield Hit(
        "high",
        {f"coverage_{name}": share for name, share in low.items()},
        {"said": said, "least": 100 * LEAST_COVERAGE},
    )


@_rule(
    "not-traced",
    "Part of {part} is not in the trace",
    "{why}. So the cost of storage is not known, and a replay leaves this I/O out.",
    "above {most:pct} of the bytes, or not known",
)
def _not_traced(found: Analysis) -> Iterator[Hit]:
    unseen, why = found.summary.coverage.unseen, found.summary.not_judged
    if not unseen or why is None or nothing_recorded(unseen):
        return
    kinds = {each.kind for each in unseen}
    remedies = [_READ_INSTEAD] * bool(kinds - {OBJECTS}) + [_MOUNT_INSTEAD] * (OBJECTS in kinds)
    if "mapped" in kinds and found.summary.recorded_by == "darshan":
        remedies.insert(0, _TELL_APART)
    mapped = tuple(each.name for each in unseen if each.kind == "mapped")
    yield Hit(
        "high",
        {"least_bytes": sum(each.bytes or 0 for each in unseen), "mapped_files": len(mapped)},
        {
            "part": "the job's I/O" if OBJECTS in kinds else "what the job read",
            "why": f"{why[:1].upper()}{why[1:]}",
            "most": 100 * (1 - LEAST_COVERAGE),
            "remedy": " ".join(remedies),
        },
        mapped[:5],
    )


def _small(name: str, found: Analysis) -> Iterator[Hit]:
    """`reads`, or `writes`, smaller than the stripe of their file, or than 1 MiB for files without stripes."""
    files = _program_files(found)
    stake = _storage(found, files, files[name] > 0)
    total, small = int(files[name].sum()), int(files[f"small_{name}"].sum())
    share = 100 * small / total if total else 0.0
    if small < thresholds.LEAST_REQUESTS or share <= thresholds.SMALL_REQUEST_PCT or not stake.matters:
        return
    moved = int(files["bytes_read" if name == "reads" else "bytes_written"].sum())
    worst = int(files[f"small_{name}"].argmax())
    # The options of TensorFlow do not affect files that h5py or NumPy opens.
    framework = found.setting.framework
    if framework is _TENSORFLOW and files["format"][worst] != "tfrecord":
        framework = _UNKNOWN
    # Programs that read shards by now are not told to use them.
    shards = name == "reads" and framework is _PYTORCH and _is_shard(files["format"][worst], files["path"][worst])
    yield Hit(
        stake,
        {f"small_{name}": small, f"small_{name}_pct": share},
        {
            "small": small, "total": total, "share": share, "mean": moved / total,
            "limit": "a stripe of their file" if LUSTRE in found.setting.file_systems else "1 MiB",
            "remedy": _remedy("read more of a shard at once" if shards else f"{name[:-1]} more at once", framework),
        },
        _worst(files, files[f"small_{name}"]),
    )  # fmt: skip


for _name in ("reads", "writes"):
    _rule(
        f"small-{_name}",
        f"{_name.capitalize()} are smaller than {{limit}}",
        f"{{small:n}} of {{total:n}} {_name} ({{share:pct}}) move less than {{limit}}; the mean is {{mean:bytes}}.",
        "more than {SMALL_REQUEST_PCT:g} %, and at least {LEAST_REQUESTS}",
    )(partial(_small, _name))


@_rule(
    "small-chunks",
    "HDF5 chunks are smaller than a request",
    "{what}; they are {mean_bytes:bytes} each (mean).",
    "more than {READS_PER_REQUEST:g} reads a request (without HDF5 counters: more than {CONSECUTIVE_PCT:g} % "
    "consecutive), below {SMALL_CHUNK_BYTES:bytes}",
    "Repack with chunks of a sample or more (h5repack -l CHUNK=...): 1 MiB instead of 4 KiB made Cosmic Tagger's "
    "I/O 8 times as fast in the DLIO paper.",
)
def _small_chunks(found: Analysis) -> Iterator[Hit]:
    files, stake, interface = _program_files(found), _storage(found), found.summary.interfaces.get("HDF5")
    hdf5 = np.array([name == "hdf5" for name in files["format"]], dtype=bool)
    reads = np.where(hdf5, files["reads"], 0)
    mean = files["bytes_read"] / np.maximum(files["reads"], 1)
    requests = interface.reads if interface is not None and interface.source == "counters" else 0
    cut = 100 * files["consecutive"] > thresholds.CONSECUTIVE_PCT * reads
    if requests:
        cut = reads > thresholds.READS_PER_REQUEST * requests
    small = hdf5 & cut & (mean < thresholds.SMALL_CHUNK_BYTES) & (reads >= thresholds.LEAST_REQUESTS)
    if not small.any() or not stake.matters:
        return
    count, size = int(reads[small].sum()), float(files["bytes_read"][small].sum() / reads[small].sum())
    values = {"reads": count, "mean_bytes": size}
    what = f"{percent(100 * files['consecutive'][small].sum() / count)} of the reads continue the one before"
    if requests:
        values["reads_per_request"] = count / requests
        what = f"{count / requests:.0f} POSIX reads carry out one H5Dread"
    yield Hit(stake, values, {"what": what}, _worst(files, np.where(small, reads, 0)))


@_rule(
    "random-shared",
    "Shared files are accessed at random",
    "{random_pct:pct} of the accesses to {count:n} files of several ranks go to a place that does not follow from "
    "the two before.",
    "more than {RANDOM_PCT:g} %, and {LEAST_REQUESTS} of them",
    "Shuffle the order of blocks and the samples within a buffer rather than every sample, give each rank files of "
    "its own, or stage the file in memory or on a local disk.",
)
def _random_shared(found: Analysis) -> Iterator[Hit]:
    files, stake = _program_files(found), _storage(found)
    accesses, random = files["reads"] + files["writes"], files["random"]
    some = (files["ranks"] > 1) & (random >= thresholds.LEAST_REQUESTS)
    some &= 100 * random > thresholds.RANDOM_PCT * np.maximum(accesses, 1)
    if some.any() and stake.matters:
        share = 100 * random[some].sum() / accesses[some].sum()
        yield Hit(stake, {"random_pct": share}, {"count": int(some.sum())}, _worst(files, np.where(some, random, 0)))


@_rule(
    "re-reads",
    "Ranks read the same bytes again",
    "{reread_bytes:bytes} of {total:bytes} ({reread_pct:pct}) had been read by the same rank before; "
    "{unique_bytes:bytes} are distinct.",
    "at least {REREAD_PCT:g} %",
    "{remedy} That takes {unique_bytes:bytes}.",
)
def _rereads(found: Analysis) -> Iterator[Hit]:
    files, stake = _program_files(found), _storage(found)
    total, again, unique = (int(files[name].sum()) for name in ("bytes_read", "reread_bytes", "unique_bytes_read"))
    if stake.matters and total and again >= thresholds.LEAST_REREAD_BYTES and _at_least(again, total):
        remedy = _remedy("keep what was read", found.setting.framework)
        values = {"reread_bytes": again, "reread_pct": 100 * again / total, "unique_bytes": unique}
        yield Hit(stake, values, {"total": total, "remedy": remedy}, _worst(files, files["reread_bytes"]))


@_rule(
    "shared-reads",
    "Several ranks read the same bytes",
    "The ranks read {first:bytes}, of which {unique:bytes} are distinct: they read each byte {times:.1f} times on "
    "average.",
    "at least {REREAD_PCT:g} % more than once",
    "Shard the files over the ranks, or let one rank read and broadcast.",
)
def _shared_reads(found: Analysis) -> Iterator[Hit]:
    files, stake = _program_files(found), _storage(found)
    several, unique = (int(files[name].sum()) for name in ("read_by_several_bytes", "unique_bytes_read"))
    if stake.matters and several >= thresholds.LEAST_REREAD_BYTES and _at_least(several, unique):
        values = {"read_by_several_bytes": several, "times": (unique + several) / unique}
        words = {"first": unique + several, "unique": unique}
        yield Hit(stake, values, words, _worst(files, files["read_by_several_bytes"]))


def _at_least(part: int, whole: int) -> bool:
    return 100 * part >= thresholds.REREAD_PCT * whole


@_rule(
    "rank-imbalance",
    "Ranks share the I/O unevenly",
    "Rank {busiest} spends {busiest_ns:ns} in I/O, rank {laziest} {laziest_ns:ns}; the most that a rank moves is "
    "{most:bytes}, the least {least:bytes}.",
    "(max - min) / max above {IMBALANCE_PCT:g} %, in bytes or time",
    "Give the ranks equal shares of the files, and spread restarts, logs and checkpoints that one rank does for all.",
)
def _rank_imbalance(found: Analysis) -> Iterator[Hit]:
    ranks, time_ns = found.patterns.ranks, found.overlap.ranks["io_ns"].to_numpy()
    moved = ranks["bytes_read"].to_numpy() + ranks["bytes_written"].to_numpy()
    if len(moved) < 2 or not moved.max():
        return
    values = {
        "bytes_imbalance_pct": 100 * float(moved.max() - moved.min()) / float(moved.max()),
        "time_imbalance_pct": 100 * float(time_ns.max() - time_ns.min()) / float(max(time_ns.max(), 1)),
    }
    stake = Stake(float(time_ns.max() - time_ns.mean()) / NS_PER_S, found.overlap.run_time_s, RUN)
    if max(values.values()) <= thresholds.IMBALANCE_PCT or not stake.matters:
        return
    words = {"most": float(moved.max()), "least": float(moved.min())}
    for name, place in (("busiest", int(time_ns.argmax())), ("laziest", int(time_ns.argmin()))):
        words |= {name: ranks["rank"][place].as_py(), f"{name}_ns": float(time_ns[place])}
    yield Hit(stake, values, words)


@_rule(
    "metadata-time",
    "Opening, closing and looking up files takes long",
    "Rank {rank} spends {ns:ns} ({metadata_of_run_pct:pct} of the run) in metadata.",
    "at least {MATERIAL_PCT:g} % of the run, or above {METADATA_RANK_S:g} s of a rank",
)
def _metadata_time(found: Analysis) -> Iterator[Hit]:
    ranks, files = found.patterns.ranks, _program_files(found)
    time_ns = ranks["metadata_ns"].to_numpy() + ranks["reconstructed_metadata_ns"].to_numpy()
    if not len(time_ns) or not time_ns.max():
        return
    worst = int(time_ns.argmax())
    stake = Stake(int(time_ns[worst]) / NS_PER_S, found.overlap.run_time_s, RUN)
    if not stake.matters or (stake.pct < thresholds.MATERIAL_PCT and stake.seconds <= thresholds.METADATA_RANK_S):
        return
    moved = files["bytes_read"] + files["reconstructed_bytes"]
    sharded = np.array(list(map(_is_shard, files["format"], files["path"])), dtype=bool)
    remedy = "open shards less often" if 2 * moved[sharded].sum() > moved.sum() else "open fewer files"
    yield Hit(
        stake,
        {"metadata_s": stake.seconds, "metadata_of_run_pct": stake.pct},
        {"rank": ranks["rank"][worst].as_py(), "ns": float(time_ns[worst]), "remedy": _remedy(remedy)},
    )


def _storage(found: Analysis, files: dict[str, Any] | None = None, chosen: np.ndarray | None = None) -> Stake:
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


def _program_files(found: Analysis) -> dict[str, Any]:
    """The files table without the profilers' own files: numbers as arrays, texts as lists."""
    files = found.patterns.files
    table = files.filter(pa.array(~np.isin(files["file_id"].to_numpy(), sorted(found.setting.own_files))))
    return {
        name: table[name].to_pylist() if pa.types.is_string(table[name].type) else table[name].to_numpy()
        for name in table.column_names
    }


def _worst(files: dict[str, Any], by: np.ndarray) -> tuple[str, ...]:
    order = np.argsort(-by, kind="stable")[:5]
    return tuple(files["path"][place] for place in order if by[place] > 0)


def _counted(name: str, limit: float, times: tuple[str, ...], found: Analysis) -> Iterator[Hit]:
    """Requests that no trace holds, which counters tell (`counted_requests`), by the rules of Drishti: `name` of them
    are more than `limit` per cent, and the slowest rank spent time in the I/O of `times`."""
    summary, fact = found.summary, found.setting.counted.get(name)
    if fact is None:
        return
    spent = ((each["slowest_s"], sum(each[time] or 0.0 for time in times)) for each in summary.counted_times.values())
    longest_s = max((min(slowest_s or all_s, all_s) for slowest_s, all_s in spent), default=0.0)
    stake = Stake(longest_s, summary.job.run_time_s or 0.0, RUN)
    shown, least = format_count, thresholds.LEAST_REQUESTS
    if name in ("read_again", "one_shared"):
        shown, least = format_bytes, thresholds.LEAST_REREAD_BYTES
    share = 100 * fact["count"] / fact["of"]
    if share <= limit or fact["count"] < least or not stake.matters:
        return
    more = f"; the mean is {format_bytes(fact['of_bytes'] / fact['of'])}" if fact["of_bytes"] else ""
    if name == "one_shared":
        more = f", opened by {format_count(fact['ranks'])} of {format_count(summary.job.nprocs)} ranks"
    elif fact["in_shared"]:
        more += f". {shown(fact['in_shared'])} of these are in files of several ranks"
    yield Hit(
        stake,
        {name: fact["count"], f"{name}_pct": share, f"{name}_in_shared": fact["in_shared"]},
        {
            "part": f"{shown(fact['count'])} of {shown(fact['of'])}", "more": f"({percent(share)}){more}.",
            "limit": limit, "least": shown(least),
        },
        fact["files"],
    )  # fmt: skip


_BOTH = ("read_s", "write_s")
for _name, _code, _title, _what, _limit, _times, _how in (
    (
        "small_reads", "small-reads", "Reads are at most 1 MiB", "reads move at most 1 MiB",
        thresholds.SMALL_REQUEST_PCT, ("read_s",), _remedy("read more at once"),
    ),
    (
        "small_writes", "small-writes", "Writes are at most 1 MiB", "writes move at most 1 MiB",
        thresholds.SMALL_REQUEST_PCT, ("write_s",), _remedy("write more at once"),
    ),
    (
        "misaligned", "misaligned", "Requests do not begin at the file system's borders",
        "reads and writes begin beside them", thresholds.MISALIGNED_PCT, _BOTH,
        "Begin them at multiples of the block or stripe (H5Pset_alignment, striping_unit of MPI-IO).",
    ),
    (
        "misaligned_in_memory", "misaligned-in-memory", "Buffers are not aligned in memory",
        "reads and writes use such a buffer", thresholds.MISALIGNED_PCT, _BOTH,
        "Allocate buffers at multiples of 8 bytes, for direct I/O of a page (posix_memalign).",
    ),
    (
        "read_again", "re-reads", "The same bytes are read again", "had been read before, by the same rank or another",
        thresholds.REREAD_PCT, ("read_s",), "Let one rank read and broadcast, or keep what was read.",
    ),
    (
        "one_shared", "shared-file", "Most bytes go through one shared file", "are of one file",
        thresholds.SHARED_FILE_PCT, _BOTH,
        "Stripe it over more servers, let more ranks write it (cb_nodes of MPI-IO), or write subfiles.",
    ),
):  # fmt: skip
    _rule(
        _code, _title, f"{{part}} {_what} {{more}}", "more than {limit:g} %, and at least {least}", _how
    )(partial(_counted, _name, _limit, _times))  # fmt: skip


@_rule(
    "rank-imbalance",
    "Ranks share the I/O unevenly",
    "{uneven_files:n} shared files. Of the {of:bytes} of {file} {who}: {bytes_imbalance_pct:pct} apart.",
    "15 % of a file's bytes or time between two ranks, 30 % of the larger where not all open it",
    "Let more ranks, on more nodes, read and write (cb_nodes and striping of MPI-IO), in equal shares.",
)
def _counted_imbalance(found: Analysis) -> Iterator[Hit]:
    fact, posix = found.setting.counted.get("uneven"), found.summary.counted_times.get("POSIX")
    if fact is None or posix is None:
        return
    job, worst = found.summary.job, fact["worst"]
    mean_s = sum(posix[name] or 0.0 for name in ("read_s", "write_s", "metadata_s")) / max(job.nprocs, 1)
    stake = Stake((posix["slowest_s"] or worst["slowest_s"]) - mean_s, job.run_time_s or 0.0, RUN)
    if not stake.matters:
        return
    who = " and ".join(
        f"rank {worst[f'{each}_rank']} moves {format_bytes(worst[f'{each}_bytes'])} in "
        f"{format_duration(NS_PER_S * worst[f'{each}_s'])}"
        for each in ("slowest", "fastest")
    )
    share = 100 * abs(worst["slowest_bytes"] - worst["fastest_bytes"]) / max(worst["of_bytes"], 1)
    values = {"uneven_files": fact["count"], "bytes_imbalance_pct": share, "slowest_rank": worst["slowest_rank"]}
    yield Hit(stake, values, {"of": worst["of_bytes"], "file": fact["files"][0], "who": who}, fact["files"])


@_rule(
    "input-bound",
    "Training waits for input{cause}",
    "{input_wait_pct:pct} of the training loop is input wait{warm}; {storage}",
    "above {bound:pct}: MLPerf Storage asks for {LEAST_UTILISATION_PCT:g} % accelerator utilisation",
)
def _input_bound(found: Analysis) -> Iterator[Hit]:
    loop, bound, mostly = found.summary.loop, 100 - thresholds.LEAST_UTILISATION_PCT, thresholds.MOSTLY_STORAGE_PCT
    if loop is None or loop.input_wait_pct <= bound:
        return
    share, unknown, values = loop.io_in_wait_pct, found.summary.not_judged, {"input_wait_pct": loop.input_wait_pct}
    if share is not None:
        storage = f"storage is busy in {percent(share)} of the wait."
        values["io_in_wait_pct"] = share
    else:
        share, most = (min(100 * each / loop.input_wait_s, 100.0) for each in found.saved_s or (0.0, loop.input_wait_s))
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
    words = {"cause": cause, "storage": storage, "bound": bound, "remedy": _input_remedy(remedy, found)}
    yield Hit(Stake(loop.input_wait_s, loop.loop_s, LOOP), values, words)


@_rule(
    "no-overlap",
    "I/O and compute take turns",
    "{io_hidden_pct:pct} of the I/O time lies inside compute; I/O takes {io_of_loop_pct:pct} of the training "
    "loop{warm}.",
    "less than {HIDDEN_PCT:g} % hidden, and I/O at least {NOTICEABLE_PCT:g} % of the loop",
)
def _no_overlap(found: Analysis) -> Iterator[Hit]:
    loop, hidden = found.summary.loop, found.overlap.io_hidden_pct
    if loop is None or hidden is None or loop.io_pct < thresholds.NOTICEABLE_PCT or hidden >= thresholds.HIDDEN_PCT:
        return
    values = {"io_hidden_pct": hidden, "io_of_loop_pct": loop.io_pct}
    if (stake := Stake(loop.storage_gain_s, loop.loop_s, LOOP)).matters:
        yield Hit(stake, values, {"remedy": _input_remedy("read ahead", found)})


@_rule(
    "one-reader",
    "Each rank has one operation in flight at a time",
    "{in_flight:.2f} operations are in flight while any is; {exposed_io_of_loop_pct:pct} of the training loop is "
    "I/O outside compute{warm}.",
    "less than {ONE_AT_A_TIME:g} in flight, and exposed I/O at least {NOTICEABLE_PCT:g} % of the loop",
)
def _one_reader(found: Analysis) -> Iterator[Hit]:
    loop, union_ns = found.summary.loop, found.overlap.total("io_ns", profiled=True)
    if not union_ns or loop is None:
        return
    profiled = found.overlap.ranks.filter(found.overlap.ranks["profiled"])["rank"]
    ranks = found.patterns.ranks
    together = sum(ranks["io_ns"].filter(pc.is_in(ranks["rank"], profiled.combine_chunks())).to_pylist()) / union_ns
    stake = Stake(loop.storage_gain_s, loop.loop_s, LOOP)
    exposed = loop.io_exposed_pct
    if together < thresholds.ONE_AT_A_TIME and exposed >= thresholds.NOTICEABLE_PCT and stake.matters:
        values = {"in_flight": together, "exposed_io_of_loop_pct": exposed}
        yield Hit(stake, values, {"remedy": _input_remedy("read in parallel", found)})


@_rule(
    "checkpoint-blocking",
    "Checkpoints hold up training",
    "{count} steps of rank {rank} that save take {took:ns} (median), {times:.1f} times the others; saving takes "
    "{checkpoint_of_loop_pct:pct} of its loop{written}.",
    "at least {STRETCHED:g} times the other steps, and {NOTICEABLE_PCT:g} % of the loop",
)
def _checkpoint_blocking(found: Analysis) -> Iterator[Hit]:
    steps, files = found.overlap.steps, found.patterns.files
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
    if not stake.matters or not saving.any() or not other.any():
        return
    duration = steps["duration_ns"].to_numpy() + steps["gap_ns"].to_numpy()
    usual, stretched = float(np.median(duration[other])), float(np.median(duration[saving]))
    if usual <= 0 or stretched < thresholds.STRETCHED * usual:
        return
    saved = files.filter(pc.equal(files["format"], "checkpoint"))
    moved = sum(sum(saved[name].to_pylist()) for name in ("bytes_written", "reconstructed_bytes"))
    yield Hit(
        stake,
        {
            "checkpoint_of_loop_pct": stake.pct,
            "saving_step_s": stretched / NS_PER_S,
            "other_step_s": usual / NS_PER_S,
        },
        {
            "count": int(saving.sum()), "rank": worst["rank"], "took": stretched, "times": stretched / usual,
            "written": f" and writes {format_bytes(moved)} in all" if moved else "",
            "remedy": _remedy("save aside", found.setting.framework),
        },
    )  # fmt: skip


@_rule(
    "warm-up",
    "The first step is a warm-up",
    "It takes {excess:ns} longer than the usual step (mean of the ranks); the other findings leave it out.",
    "at least {WARM_UP:g} times the median of the other steps",
    "A long run needs no change, since it has only one first step. In a short test, leave the first step out "
    "(--part steps=1-N) before you compare.",
)
def _warm_up(found: Analysis) -> Iterator[Hit]:
    loop = found.summary.loop
    if loop is not None and loop.warm_up_s:
        stake = Stake(loop.warm_up_s, loop.loop_s + loop.warm_up_s, LOOP)
        if stake.matters:
            yield Hit(stake, {"warm_up_s": loop.warm_up_s}, {"excess": loop.warm_up_s * NS_PER_S})


def _benchmark(known: bool, found: Analysis) -> Iterator[Hit]:
    """A benchmark's training that MLPerf Storage knows, or not: its figures, and the rules it breaks."""
    run, jobs = found.setting.benchmark, found.summary.job.nprocs
    figures = None
    if run is not None and found.summary.loop is not None:
        figures = benchmark_figures(found.overlap.steps, run)
    if run is None or figures is None:
        return
    match = _BENCHMARK.fullmatch(run.workload)
    model = "" if match is None else match[1]
    least = thresholds.MLPERF_LEAST_PCT.get(model)
    if (least is not None) != known:
        return
    cache, used = found.setting.cache, figures.utilisation_pct
    size = run.files * run.samples_per_file * run.record_bytes
    needed = _LEAST_STEPS * run.batch_size * jobs // max(run.samples_per_file, 1)
    allowed = {*_TUNABLE, *(["reader.odirect"] if model == "unet3d" else [])}
    keys = {text.partition("=")[0].lstrip("+~").removeprefix("workload.") for text in run.overrides}
    resident = 0.0 if cache is None else cache.resident_before_pct or 0.0
    broken = {
        f"Utilisation is below {least:g} %.": used < least,
        f"{_LEAST_STEPS} steps of all ranks need {format_count(needed)} files.": run.files < needed,
        f"{resident:.1f} % of the data were in the page cache before the run.": resident > 0,
        f"A closed submission may not change {', '.join(sorted(keys - allowed))}.": keys - allowed,
    } if least is not None else {}  # fmt: skip
    said = [sentence for sentence, holds in broken.items() if holds]
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
        **({} if least is None else {"least_utilisation_pct": least}),
    }  # fmt: skip
    words = {
        "workload": run.workload, "evidence": " ".join([evidence, *said]), "steps": _LEAST_STEPS,
        "memories": _MEMORY_FACTOR, "judged": "misses rules of" if said else "meets the checked rules of",
        "remedy": "Generate with more files (dataset.num_files_train) or other tunable keys." if said else
        "Compare the memory of the hosts with the size of the data set: a capture does not show it.",
    }  # fmt: skip
    yield Hit("warning" if said else "info", values, words)


_rule(
    "benchmark-figures",
    "Benchmark {workload}: accelerator utilisation {utilisation_pct:.1f} %, {samples_per_s:,.4g} samples/s",
    "{evidence}",
    "none: MLPerf Storage has no such workload",
    "Nothing to do: these are the figures that DLIO prints.",
)(partial(_benchmark, False))
_rule(
    "mlperf-storage",
    "{workload} {judged} MLPerf Storage: accelerator utilisation {utilisation_pct:.1f} %, {samples_per_s:,.4g} "
    "samples/s",
    "{evidence}",
    "utilisation of at least {least_utilisation_pct:g} %, files for {steps} steps, a data set of {memories} times "
    "the memory of all hosts, nothing in the page cache, no change but tunable keys",
)(partial(_benchmark, True))
