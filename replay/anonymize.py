"""A capture to one that can be given to strangers: the same operations, under names that say nothing.

Whatever is not a word of the lists below is replaced, so a forgotten word costs some legibility and never a secret.
"""

from __future__ import annotations

import dataclasses
import hmac
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dxt_replay.profiler_merge.sources import PROFILES, RECORDINGS
from dxt_replay.traces import schema
from dxt_replay.traces.files import exact_paths
from dxt_replay.traces.paces import API_CHOICES, PACE_CHOICES
from dxt_replay.traces.part import Part
from dxt_replay.traces.plain import Result
from dxt_replay.traces.records import benchmark_run, is_replay
from dxt_replay.traces.store import writer as store
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.store.relation import as_source
from dxt_replay.traces.unseen import WRITTEN
from dxt_replay.traces.version import VERSION

NAME_CHARS = 16  # Hex digits of a name, 64 bits: two of 10 million parts share one with a probability of 3 in a million


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


TOP_LEVEL = _words(
    """bin boot dev etc home lib lib32 lib64 media mnt opt proc root run sbin srv sys tmp usr var
    gpfs lustre scratch work"""
)
"""First parts of absolute paths: those of the Filesystem Hierarchy Standard, and where clusters mount their storage."""

ROLES = _words("train training val valid validation eval evaluation test plugins profile")
"""Names of directories by which the analyses recognise data for training, for evaluations, and profilers' output."""

EXTENSIONS = _words(
    """arrow avro bin bz2 ckpt csv dat db feather flac gz h5 hdf hdf5 he5 idx index jpeg jpg json jsonl keras log lz4
    mat mp3 mp4 msgpack nc nc4 npy npz onnx orc parquet pb pdf pickle pkl png pt pth py pyc raw rec root safetensors so
    sqlite tar tfrecord tfrecords tgz tif tiff toml tsv txt wav webp xml xz yaml yml zarr zip zst
    darshan darshan_partial input_pipeline profile-empty trace xplane"""
)
"""Endings of file names that stay, also several in a row (`.tar.gz`)."""

FILE_SYSTEMS = _words(
    """autofs beegfs btrfs ceph cifs cramfs daos devpts devtmpfs exfat ext2 ext3 ext4 f2fs fuse fuseblk glusterfs gpfs
    hugetlbfs iso9660 lustre nfs nfs4 ntfs orangefs overlay panfs proc pvfs2 ramfs rootfs smb3 squashfs sysfs tmpfs ufs
    unionfs vfat wekafs xfs zfs UNKNOWN"""
)
"""Types of file systems that stay."""

_SOURCE_KINDS = frozenset(("capture", "chrome", "workload", "horovod", "tensorflow trace", *RECORDINGS, *PROFILES))
"""Kinds of the files that a capture was made from, also by earlier releases."""

_FILTERS = frozenset(("gzip", "shuffle", "fletcher32", "szip", "nbit", "scaleoffset", "lzf"))  # Names of HDF5 filters

_WORDS = frozenset(
    (
        *(*PACE_CHOICES, *API_CHOICES, *schema.OPS, *schema.APIS, *schema.FORMATS, *schema.OFFSETS, *schema.ORIGINS),
        *schema.SPAN_KINDS,
        *("dxt-replay", "merge", "run", "generate", "transform", "cold", "as found", "sleep", "spin", "skip"),
        *("compiled", "python", "documented", "head", "v2.0", "v3.0", "STDIO", "POSIX", "MPI-IO", "H5D", "H5F"),
        *("anchors", "nesting", "wall", "seconds", "overlap", "pthread_id", "recorded"),
    )
)
"""Values of `capture.json` that dxt-replay itself wrote there."""

_TF_DATA = (
    "Parallel|Interleave|Map|And|Batch|Prefetch|Shuffle|Repeat|Cache|Zip|Take|Skip|Filter|Flat|Shard|Range|Legacy"
)
_COLLECTIVE = "_|all|reduce|gather|scatter|to|broadcast|barrier|send|recv|base|coalesced|tensor|into|single"
_PUBLIC_SPANS = re.compile(
    rf"{'|'.join(schema.SPAN_KINDS)}|train|gpu compute|restore|next_batch|allreduce|dxt_anchor|wait for a batch"
    r"|ProfilerStep#\d+|enumerate\(DataLoader\)#_(?:SingleProcess|MultiProcessing)DataLoaderIter\.__next__"
    r"|(?:Distributed|FullySharded)DataParallel\.forward|ExecutorState::Process|ThreadpoolListener::StartRegion"
    r"|IteratorGetNext(?:Op)?(?:::DoCompute)?"
    rf"|(?:{_TF_DATA}|TensorSlice|TFRecord|V2)+(?:Produce|Consume|InitializeInput)"
    rf"|(?:c10d|gloo|mpi|nccl|ucc|xccl)::?(?:{_COLLECTIVE})+"
)
"""Names of spans that a framework or dxt-replay itself gives; the whole name has to match."""

_SPAN_BEGINNINGS = re.compile(r"eval|valid|test|pjit|jit_|PjRt|TfrtCpu|aten::|Optimizer\.step#", re.IGNORECASE)
"""How names of spans begin that the analyses understand; the rest of the name is the application's own."""

_KEY = re.compile(r"[a-z][a-z0-9_]{0,40}|[A-Z][A-Z0-9_-]{0,20}|-?\d{1,20}")
"""Keys that dxt-replay itself writes: names of values, errors (ENOENT) and modules (POSIX), and ranks."""

_HINT = re.compile(r"\s*[a-z_]{1,40}\s*=\s*(?:true|false|enable|disable|automatic|\d{1,12})\s*")
"""A hint of MPI-IO without a name in its value; `cb_config_list` names hosts."""

_RELEASE = re.compile(r"\d{1,4}(?:\.\d{1,4}){0,3}")
_STANDARD_STREAMS = (b"<STDIN>", b"<STDOUT>", b"<STDERR>")
_ANCHOR = (b"dxt-anchor.", b".bin")


class AnonymousNames:
    """Names by HMAC-SHA-256 (RFC 2104) under a key: the same part has the same name everywhere, and without the key
    nobody can test a guess."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._parts: dict[bytes, bytes] = {part: part for part in (b"", b".", b"..")}

    @property
    def replaced_parts(self) -> int:
        """How many different parts of paths were given another name."""
        return sum(part != name for part, name in self._parts.items())

    def path(self, path: bytes) -> str:
        """A path of as many parts: `/home/ann/train/a-01.tar.gz` is `/home/<name>/train/<name>.tar.gz`.

        Kept: `s3://`, `..`, TOP_LEVEL and ROLES where they are a whole part, and EXTENSIONS."""
        if path.startswith(b"<"):  # <STDIN>, <record 17>
            return (path if path in _STANDARD_STREAMS else b"<" + self._hashed(path) + b">").decode()
        parts = path.split(b"/")
        is_top = len(parts) > 1 and not parts[0] and parts[1].decode("latin-1") in TOP_LEVEL
        kept = 2 if is_top or path.startswith(b"s3://") else 0
        return b"/".join([*parts[:kept], *map(self._part, parts[kept:])]).decode()

    def mount(self, mount: str) -> str:
        """A mount point, so that it is still the beginning of the paths below it; text that is not a path is a word."""
        return self.path(mount.encode()) if mount.startswith("/") else self.word(mount, FILE_SYSTEMS)

    def file_system(self, kind: str) -> str:
        """`fuse.sshfs` is `fuse.` and a name: FUSE subtypes are arbitrary, so they are replaced."""
        first, dot, rest = kind.partition(".")
        if first not in FILE_SYSTEMS:
            return self.word(kind, FILE_SYSTEMS)
        return first + dot + self.word(rest, FILE_SYSTEMS)

    def record_id(self, number: int) -> int:
        """A record id of its own: Darshan's is a hash of the path without a key, which a guessed path confirms."""
        return int.from_bytes(self._digest(b"record", str(number).encode())[:8], "big")

    def checksum(self, sha256: str) -> str:
        """In the place of a file's SHA-256, which everybody who has the file could look for."""
        return self._digest(b"checksum", sha256.encode("utf-8", "surrogatepass")).hex()

    def span(self, name: str) -> str:
        """The name of a span: kept where a framework gives it, else replaced."""
        if not name or _PUBLIC_SPANS.fullmatch(name):
            return name
        beginning = _SPAN_BEGINNINGS.match(name)
        return (beginning[0] if beginning else "") + self.word(name)

    def word(self, text: str, public: frozenset[str] = _WORDS) -> str:
        """Any other text: kept where it is empty or one of `public`."""
        return text if not text or text in public else self._hashed(text.encode("utf-8", "surrogatepass")).decode()

    def scrubbed(self, value: Any) -> Any:
        """The value with its numbers, and with other text and keys than dxt-replay's own replaced."""
        if isinstance(value, Mapping):
            keys = ((key if _KEY.fullmatch(key) else self.word(key), item) for key, item in value.items())
            return {key: self.scrubbed(item) for key, item in keys}
        if isinstance(value, (list, tuple)):
            return [self.scrubbed(item) for item in value]
        return self.word(value) if isinstance(value, str) else value

    def _part(self, part: bytes) -> bytes:
        found = self._parts.get(part)
        if found is None:
            found = self._parts[part] = self._new_part(part)
        return found

    def _new_part(self, part: bytes) -> bytes:
        if part.decode("latin-1") in ROLES:
            return part
        if part.startswith(_ANCHOR[0]) and part.endswith(_ANCHOR[1]):  # the host stands between
            return self._hashed(part).join(_ANCHOR)
        stem, ending = part, b""
        while True:
            rest, dot, last = stem.rpartition(b".")
            if not rest or last.lower().decode("latin-1") not in EXTENSIONS:
                return self._hashed(stem) + ending
            stem, ending = rest, dot + last + ending

    def _hashed(self, text: bytes) -> bytes:
        return self._digest(b"name", text).hex()[:NAME_CHARS].encode()

    def _digest(self, purpose: bytes, text: bytes) -> bytes:
        return hmac.digest(self._key, purpose + b"\0" + text, "sha256")


@dataclass(frozen=True, slots=True, kw_only=True)
class Anonymized(Result):
    """An anonymized capture that was written.

    path: its directory.
    operations, files, spans: their numbers, which are those of the original.
    replaced_parts: different parts of paths and of dataset names that have another name now.
    replaced_spans: different names of spans that are replaced.
    random_key: whether the key was made for this capture alone, and is lost."""

    path: Path
    operations: int
    files: int
    spans: int
    replaced_parts: int
    replaced_spans: int
    random_key: bool

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "path": str(self.path)}


def anonymize_capture(capture: Capture, output: Path, key: bytes, *, random_key: bool, force: bool) -> Anonymized:
    """Write the capture `output`. Operations are copied a row group at a time.

    Raises: TargetError for `output`; CaptureError for a damaged source."""
    names = AnonymousNames(key)
    files, lanes, datasets = capture.files, capture.lanes, capture.hdf5
    column = capture.spans["name"].combine_chunks().dictionary_encode()
    before = column.dictionary.to_pylist()
    after = [names.span(name) for name in before]
    working = store.begin_capture(output, force=force)
    try:
        with store.OpsWriter(working) as writer:
            for batch in capture.operations():
                writer.write(pa.Table.from_batches([batch]))
        changed = {
            "path": [names.path(path) for path in exact_paths(files)],
            "path_bytes": [None] * files.num_rows,
            "record_id": [*map(names.record_id, files["record_id"].to_pylist())],
            "mount": [*map(names.mount, files["mount"].to_pylist())],
            "fs_type": [*map(names.file_system, files["fs_type"].to_pylist())],
        }
        store.write_files(working, _replaced(files, schema.FILES_SCHEMA, changed))
        threads = _thread_numbers(capture.spans["thread"].to_numpy())
        spans = {"name": pa.array(after, pa.string()).take(column.indices), "thread": threads}
        with store.spans_writer(working) as table:
            table.write(_replaced(capture.spans, schema.SPANS_SCHEMA, spans))
        changed = {
            "dataset": [names.path(name.encode()) for name in datasets["dataset"].to_pylist()],
            "filters": [
                None if row is None else [n if n.isdecimal() else names.word(n, _FILTERS) for n in row if n]
                for row in datasets["filters"].to_pylist()
            ],
        }
        store.write_hdf5(working, _replaced(datasets, schema.HDF5_SCHEMA, changed))
        hosts = [None if host is None else names.word(host, frozenset()) for host in lanes["host"].to_pylist()]
        lanes = store.lanes_with_facts(lanes, ["role"])
        store.write_lanes(working, _replaced(lanes, schema.LANES_SCHEMA, {"host": hosts}))
        store.write_capture_info(working, anonymous_info(capture, names, writer.rows))
        store.publish_capture(working, output, force=force)
    except BaseException:
        store.discard_capture(working)
        raise
    return Anonymized(
        path=output,
        operations=writer.rows,
        files=files.num_rows,
        spans=capture.spans.num_rows,
        replaced_parts=names.replaced_parts,
        replaced_spans=sum(name != given for name, given in zip(before, after, strict=True)),
        random_key=random_key,
    )


def _replaced(table: pa.Table, like: pa.Schema, columns: Mapping[str, Any]) -> pa.Table:
    return pa.table({name: columns.get(name, table[name]) for name in like.names}, schema=like)


def _thread_numbers(thread: np.ndarray) -> np.ndarray:
    """int64: the ids of the threads, which may be those of the machine, as small numbers in the same order.

    UNION_THREAD stays; ids below it count down from -2."""
    found, place = np.unique(thread, return_inverse=True)
    below = int(np.count_nonzero(found < schema.UNION_THREAD))
    numbers = np.arange(len(found), dtype=np.int64)
    numbers[:below] -= below - schema.UNION_THREAD
    numbers[below:] -= below + int(schema.UNION_THREAD in found)
    return numbers[place.reshape(-1)]


def anonymous_info(capture: Capture, names: AnonymousNames, stored: int) -> schema.CaptureInfo:
    """`capture.json` of the anonymized capture, which has `stored` operations. Numbers stay, text is replaced."""
    info = capture.info
    # With the capture itself: a replay that is anonymized under the same key is known as its replay by it.
    sources = []
    for number, source in enumerate((as_source(capture), *info.sources)):
        kind = source.kind if source.kind in _SOURCE_KINDS else "other"
        name = f"{kind.replace(' ', '-')}-{number}"
        sources.append(schema.Source(name=name, sha256=names.checksum(source.sha256), kind=kind))
    left_out = f"warnings of the original capture that are left out, since they may name files: {len(info.warnings)}"
    unseen = (dataclasses.replace(each, name=f"{each.kind}-{i}") for i, each in enumerate(info.coverage.unseen))
    return dataclasses.replace(
        info,
        job=_job(info, names),
        sources=tuple(sources),
        clock=tuple(_clock(clock, names) for clock in info.clock),
        lanes=info.lanes if info.lanes in _WORDS else "overlap",
        coverage=dataclasses.replace(info.coverage, unseen=tuple(unseen)),
        warnings=(left_out,) if info.warnings else (),
        made_by=_made_by(capture, names, stored),
        schema_version=schema.SCHEMA_VERSION,
    )


def _job(info: schema.CaptureInfo, names: AnonymousNames) -> schema.Job:
    job, metadata = info.job, {}
    if hints := ";".join(text for text in job.metadata.get("h", "").split(";") if _HINT.fullmatch(text)):
        metadata["h"] = hints  # a replay through MPI-IO needs them
    if _RELEASE.fullmatch(job.metadata.get("lib_ver", "")):
        metadata["lib_ver"] = job.metadata["lib_ver"]
    if (benchmark := benchmark_run(info)) is not None:
        named = dataclasses.replace(benchmark, workload=names.word(benchmark.workload), overrides=())
        metadata |= named.as_metadata()
    dated = job.start_ns > 0 and job.end_ns >= job.start_ns
    return schema.Job(
        nprocs=job.nprocs,
        run_time_s=job.run_time_s,
        start_ns=job.start_ns - job.zero_ns if dated else 0,
        end_ns=job.end_ns - job.zero_ns if dated else 0,
        metadata=metadata,
    )


def _clock(clock: schema.RankClock, names: AnonymousNames) -> schema.RankClock:
    """The clock with its evidence; the offset loses its whole milliseconds, which may count from 1970 or from the boot
    of the machine."""
    moved = clock.offset_ns - clock.offset_ns % 1_000_000
    low, high = clock.interval_ns
    return dataclasses.replace(
        clock,
        method=names.word(clock.method),
        offset_ns=clock.offset_ns - moved,
        interval_ns=(low - moved, high - moved),
    )


def _made_by(capture: Capture, names: AnonymousNames, stored: int) -> dict[str, Any]:
    made_by = dict(capture.info.made_by)
    selection = made_by.pop("selection", None)
    version = str(made_by.pop("version", VERSION))
    found = {name: names.scrubbed(value) for name, value in made_by.items() if _KEY.fullmatch(name)}
    paths = []
    if WRITTEN in made_by or selection is not None:
        paths = list(zip(capture.paths(), map(names.path, exact_paths(capture.files)), strict=True))
    if WRITTEN in made_by:
        known = set(made_by[WRITTEN])
        found[WRITTEN] = [name for path, name in paths if path in known]
    if "doubt" in made_by:  # it may name files and programs
        found["doubt"] = "so it was of the capture that this one was made from"
    if is_replay(capture.info):
        found["selection"] = None
        if selection is not None:  # its patterns become the list of the paths that they match
            part = Part.from_json(selection)
            if part.paths or part.exclude:
                chosen = part.file_mask(capture.paths()).tolist()
                named = tuple(name for (_, name), mine in zip(paths, chosen, strict=True) if mine)
                part = dataclasses.replace(part, paths=named, exclude=())
            found["selection"] = part.as_json()
    release = version if _RELEASE.fullmatch(version) else VERSION
    return {**found, "program": "dxt-replay", "version": release, "operations_stored": stored, "anonymized": True}
