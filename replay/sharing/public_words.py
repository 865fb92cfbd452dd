"""Words that say nothing about who ran a job: what `dxt-replay anonymize` keeps as it is. Pure.

Everything that is not listed here is replaced, so a forgotten word costs some legibility and never a secret.
"""

from __future__ import annotations

import re

from dxt_replay.profiler_merge.sources import PROFILES, RECORDINGS
from dxt_replay.traces.paces import API_CHOICES, PACE_CHOICES
from dxt_replay.traces.schema import APIS, FORMATS, OFFSETS, OPS, ORIGINS, SPAN_KINDS


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

SOURCE_KINDS = frozenset(("capture", "chrome", "workload", "horovod", "tensorflow trace", *RECORDINGS, *PROFILES))
"""Kinds of the files that a capture was made from, also by earlier releases."""

FILTERS = frozenset(("gzip", "shuffle", "fletcher32", "szip", "nbit", "scaleoffset", "lzf"))
"""Names of HDF5 filters."""

WORDS = frozenset(
    (
        *(*PACE_CHOICES, *API_CHOICES, *OPS, *APIS, *FORMATS, *OFFSETS, *ORIGINS, *SPAN_KINDS),
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
PUBLIC_SPANS = re.compile(
    rf"{'|'.join(SPAN_KINDS)}|train|gpu compute|restore|next_batch|allreduce|dxt_anchor|wait for a batch"
    r"|ProfilerStep#\d+|enumerate\(DataLoader\)#_(?:SingleProcess|MultiProcessing)DataLoaderIter\.__next__"
    r"|(?:Distributed|FullySharded)DataParallel\.forward|ExecutorState::Process|ThreadpoolListener::StartRegion"
    r"|IteratorGetNext(?:Op)?(?:::DoCompute)?"
    rf"|(?:{_TF_DATA}|TensorSlice|TFRecord|V2)+(?:Produce|Consume|InitializeInput)"
    rf"|(?:c10d|gloo|mpi|nccl|ucc|xccl)::?(?:{_COLLECTIVE})+"
)
"""Names of spans that a framework or dxt-replay itself gives; the whole name has to match."""

SPAN_BEGINNINGS = re.compile(r"eval|valid|test|pjit|jit_|PjRt|TfrtCpu|aten::|Optimizer\.step#", re.IGNORECASE)
"""How names of spans begin that the analyses understand; the rest of the name is the application's own."""
