"""Which tool wrote a file, by its content, so that an error can name it and say what to do with it.

Only the first 64 KiB are looked at, unpacked where they are compressed.
"""

from __future__ import annotations

import codecs
import gzip
import os
import re
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dxt_replay.profiler_merge.profiles.xplane.decode import find_profiles as find_xplane

_NO_OFFSETS = (
    "it has no offsets, so that nothing can be replayed from it. Record with Darshan, strace or DFTracer instead"
)
HEAD_BYTES = 64 << 10
_MOST_FILES = 1000
_WITHOUT = (
    "dxt-replay does not read it yet. Merge the Darshan logs without --profile: the paces timed and think then work, "
    "steps needs a profile of TensorFlow or PyTorch"
)
_NOT_READ = "dxt-replay does not read it: record the job with `dxt-replay record`"
_GZIP = b"\x1f\x8b"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A kind of file.

    kind: its name in code, such as "kineto".
    pattern: is found in its first bytes.
    what: its name for people, with an article.
    remedy: what to do with it, as the rest of a sentence.
    """

    kind: str
    pattern: re.Pattern[bytes]
    what: str
    remedy: str


def _source(kind: str, pattern: bytes, what: str, remedy: str) -> Source:
    return Source(kind=kind, pattern=re.compile(pattern, re.DOTALL), what=what, remedy=remedy)


DARSHAN, XPLANE, KINETO, STRACE, DFTRACER = "darshan", "xplane", "kineto", "strace", "dftracer"
VIEWER, HOROVOD = "tensorflow trace", "horovod"
PROFILES = (XPLANE, KINETO, VIEWER)
"""Kinds of profiles of a rank, whose events become its spans."""
SPANS = (HOROVOD, DFTRACER)
"""Kinds other than profiles that hold spans; DFTracer's traces hold operations too."""
TRACES = (STRACE, DFTRACER)
"""Kinds other than Darshan's logs from which the operations come."""
_AS_PROFILE = "give it to `dxt-replay merge` as --profile, beside the Darshan log"
_AS_LOG = "give it to `dxt-replay merge` as LOG, not as a profile or a capture"
SOURCES = (
    _source(
        DARSHAN,
        rb"\A\d\.\d\d\0{4}(75d\0{5}|\0{5}d57)",
        "a Darshan log",
        _AS_LOG,
    ),
    _source("darshan text", rb"\A# darshan log version:|\A# \*+\n# DXT", "the text of darshan-parser",
            "its times lack digits. Give the .darshan log itself"),
    _source(
        XPLANE,
        rb"\A\x0a[\x80-\xff]{0,9}[\0-\x7f](\x08.{1,9}?)?\x12.(/host:|/device:|Task Environment)",
        "a TensorFlow profile (XPlane)",
        _AS_PROFILE,
    ),
    _source("tfevents", rb"\A.{12,40}brain\.Event:", "a file of TensorBoard events",
            "it holds no profile. Give the folder that has plugins/profile in it, or an .xplane.pb file"),
    _source("overview", rb"type\.googleapis\.com/tensorflow\.profiler",
            "a summary that TensorFlow's profiler made (such as .input_pipeline.pb)",
            "it holds times per step and no events. Give the .xplane.pb file that it was made of, or leave it out"),
    _source(DFTRACER, rb'\A[\s\[]*\{"(id|name)".*"cat": ?"(dftracer|POSIX|STDIO|ai_framework)"', "a DFTracer trace",
            _AS_LOG),
    _source(HOROVOD, rb"\A\s*\[.*(CYCLE_START|NEGOTIATE_(ALL|BROAD)|Horovod(All|Broad)|start_time_since_epoch_in_)",
            "a Horovod timeline", _AS_PROFILE),
    _source(VIEWER, rb'\A\s*[\[{].*"/(host|device):[A-Z]', "a trace.json of TensorFlow's profiler",
            "give the .xplane.pb file beside it to `dxt-replay merge` as --profile, or this file where there is none"),
    _source(
        "execution trace",
        rb'\A\s*\{\s*"schema": ?"[^"]*",.*"nodes": ?\[',
        "a PyTorch execution trace",
        "it has no times of the training loop. Give the .pt.trace.json of torch.profiler instead",
    ),
    _source(
        "memory timeline",
        rb"\A\s*\[\s*\[\s*-?\d[\d\s,.]*\]\s*,\s*\[\s*\[",
        "a memory timeline of PyTorch's profiler",
        "it holds sizes and no events. Give the .pt.trace.json of torch.profiler instead",
    ),
    _source(
        KINETO,
        rb'\A\s*\{.*("(deviceProperties|distributedInfo|schemaVersion)":|ProfilerStep#|"aten::|'
        rb'"cat": ?"(cpu_op|user_annotation|[Kk]ernel|Operator|cuda_runtime|python_function)")',
        "a PyTorch profile (Kineto)",
        "give it to `dxt-replay merge` as --profile, beside the Darshan log",
    ),
    _source("chrome", rb'\A\s*[\[{].*"(traceEvents|ph)" ?:', "a trace in Chrome's JSON format", _WITHOUT),
    _source(
        STRACE,
        rb"\A(\[pid +\d+\] +|\d+ +)?("
        rb"\d+\.\d{3,9} (\w+\(|<\.\.\. \w+ resumed>|\+\+\+ |--- )|"
        rb"(\d\d:\d\d:\d\d(\.\d+)? )?(execve|openat|open|read|close|brk|mmap|newfstatat|fstat|access)\([^\n]*\) += )",
        "the output of strace",
        _AS_LOG,
    ),
    _source("dftracer index", rb"\ASQLite format 3\0.*(LineOffsets|AccessPoints)", "DFTracer's index of a trace",
            "it holds no events. Give the .pfw.gz file beside it"),
    _source("bpftrace", rb"\AAttaching \d+ probes?", "the output of bpftrace", _NO_OFFSETS),
    _source("perf", rb"\A\s*\d+\.\d+ \(\s*\d+\.\d+ ms\): ", "the output of perf trace",
            "its times have no date. Record with strace (-f -ttt -T -y) instead"),
    _source("recorder", rb'\A\s*\{"file_id":\[.*"proc_id":\[.*"tmid":\[', "an index of Recorder data", _NO_OFFSETS),
    _source("tar", rb"\A[^\0]{1,100}.{156,256}ustar[\0 ]", "an archive (tar)",
            "unpack it into an empty folder, as in `tar -xf FILE -C FOLDER`, and give that folder"),
    _source("zip", rb"\APK\x03\x04", "an archive (zip)",
            "unpack it into an empty folder, as in `unzip FILE -d FOLDER`, and give that folder"),
    _source("otf2", rb"\AOTF2|\A[BL#$]\0?OTF2", "a trace of Score-P (OTF2)", _NOT_READ),
    _source("ctf", rb"\A(\xc1\x1f\xfc\xc1|\xc1\xfc\x1f\xc1|\x57\x1d\xd1\x75|\x75\xd1\x1d\x57|/\* CTF )",
            "a trace of LTTng or babeltrace (CTF)", _NOT_READ),
    _source("nsys", rb"\ASQLite format 3\0.*(CUPTI_ACTIVITY|NVTX_EVENTS|TARGET_INFO_)", "an export of Nsight Systems",
            _WITHOUT),
    _source("rocprof", rb"\ASQLite format 3\0.*(rocpd_|hsa_api)|\A\"?(Index\"?,\"?KernelName|Kind\"?,\"?Agent_Id|"
            rb"Name\"?,\"?Calls\"?,\"?TotalDurationNs)", "output of rocprof", _WITHOUT),
    _source("chakra", rb"\A.\n.[01]\.\d\.\d", "an execution trace in Chakra's format",
            "it has no times of the training loop. Give the .pt.trace.json of torch.profiler instead"),
    _source("memory snapshot", rb"\A\x80[\x02-\x05].*(device_traces|segments)", "a memory snapshot of PyTorch",
            "it holds allocations and no events. Give the .pt.trace.json of torch.profiler instead"),
    _source("parquet", rb"\APAR1", "a Parquet file", "give the whole capture folder that it is a part of"),
)  # fmt: skip
"""Kinds in order: the first whose pattern is found names the file."""
_BY_SUFFIX = {
    suffix: next(source for source in SOURCES if source.kind == kind)
    for suffix, kind in ((".otf2", "otf2"), (".nsys-rep", "nsys"), (".qdrep", "nsys"), (".rpd", "rocprof"))
}
"""Formats whose first bytes say nothing that could be relied on."""
RECORDER = _source("recorder", rb"(?!)", "Recorder data as WisIO stores it", _NO_OFFSETS)
"""Its columns stand at the end of a Parquet file."""


def recognise(path: Path) -> Source | None:
    """The kind of a file; None where no pattern fits, or it cannot be read."""
    head = _head(path).removeprefix(codecs.BOM_UTF8)
    found = next((source for source in SOURCES if source.pattern.search(head)), _BY_SUFFIX.get(path.suffix))
    return RECORDER if found is not None and found.kind == "parquet" and _is_wisio(path) else found


def _is_wisio(path: Path) -> bool:
    """Whether a Parquet file has the columns in which WisIO stores what Recorder traced."""
    try:
        return {"func_id", "acc_pat", "tstart"} <= set(pq.read_schema(path).names)
    except (OSError, pa.ArrowException):
        return False


def foreign(path: Path, *wanted: str) -> str | None:
    """The error for a file recognised as another kind than `wanted`, or for a folder that holds only other kinds.

    `wanted`: DARSHAN, XPLANE, KINETO, or "capture". None where the kind is a wanted one, or unknown.
    """
    if path.is_dir():
        return _folder(path, wanted)
    source = recognise(path)
    if source is None or source.kind in wanted:
        return None
    return f"{path} is {source.what}: {source.remedy}"


def _folder(path: Path, wanted: Sequence[str]) -> str | None:
    """The error that names the commonest kind of file below a folder; None where any file is of a wanted kind."""
    kinds: Counter[Source] = Counter()
    for file in _files_below(path):
        source = recognise(file)
        if source is not None:
            if source.kind in wanted:
                return None
            kinds[source] += 1
    if not kinds:
        return None
    (source, count), *_ = kinds.most_common(1)
    return f"{path} holds {source.what} ({count} file{'s' * (count > 1)}): {source.remedy}"


def _files_below(path: Path) -> list[Path]:
    found: list[Path] = []
    for parent, _, names in os.walk(path):
        found += [Path(parent) / name for name in sorted(names)]
        if len(found) >= _MOST_FILES:
            break
    return found[:_MOST_FILES]


def find_profiles(path: Path) -> list[Path]:
    """Every profile below a folder, sorted, or the file itself: `*.xplane.pb[.gz]`, and profiles in JSON.

    A compressed copy beside the plain file is left out, and TensorFlow's JSON beside its .xplane.pb.

    Raises: ProfileError for a path that does not exist, or a folder in it that cannot be listed.
    """
    found = find_xplane(path)
    if not path.is_dir():
        return found
    traces = {
        Path(parent) / name
        for parent, _, names in os.walk(path)
        for name in names
        if name.endswith((".json", ".json.gz"))
    }
    with_xplane = {file.parent for file in found}
    others = [
        trace
        for trace in traces
        if not (trace.suffix == ".gz" and trace.with_suffix("") in traces)
        and ((kind := kind_of(trace)) in (KINETO, HOROVOD) or (kind == VIEWER and trace.parent not in with_xplane))
    ]
    return sorted([*found, *others])


def kind_of(path: Path) -> str | None:
    """The kind of a file in code; None where no pattern fits."""
    source = recognise(path)
    return None if source is None else source.kind


def _head(path: Path) -> bytes:
    """The first bytes of a regular file, as many as can be unpacked; empty where it cannot be read."""
    if not path.is_file():
        return b""
    try:
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
        if not head.startswith(_GZIP):
            return head
        with gzip.open(path) as packed:
            return packed.read(HEAD_BYTES)
    except (OSError, EOFError, zlib.error, ValueError):
        return b""
