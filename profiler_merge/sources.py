"""The kinds of files that users may give, and those that a merge reads: the only list of sources.

To add one, write the module that reads it and give its row here a `trace` (the operations of a job), a `profile`
(events of one rank) or `spans` (spans beside a recording). Then add it to docs/recording.md; a test compares that page
with this table.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import import_module
from typing import Any

_NO_OFFSETS = (
    "it has no offsets, so that nothing can be replayed from it. Record with Darshan, strace or DFTracer instead"
)
_WITHOUT = (
    "dxt-replay does not read it yet. Merge the Darshan logs without --profile: the paces timed and think then work, "
    "steps needs a profile of TensorFlow or PyTorch"
)
_NOT_READ = "dxt-replay does not read it: record the job with `dxt-replay record`"
_AS_PROFILE = "give it to `dxt-replay merge` as --profile, beside the Darshan log"
_AS_LOG = "give it to `dxt-replay merge` as LOG, not as a profile or a capture"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A kind of file.

    kind: its name in code and in capture.json, such as "kineto".
    pattern: regular expression of its first bytes. suffixes: of formats whose first bytes are not reliable.
    what: its name for people, with an article.
    remedy: advice if it was not expected, as the rest of a sentence.
    tool: its writer, for messages; "" for kinds that are not read.
    trace: "module:name" of a function that reads files, with globs of paths to leave out and of some to keep, as a
    `tracers.traced_job.TracedJob`. recording: if that does not suffice, "module:name" of a `recorded_job.Recording`
    made of files and `MergeOptions`.
    profile: whether it holds the events of one rank.
    spans: "module:name" of a function of files and the process ids of each rank to `profiles.more_spans.MoreSpans`.
    requests: "module:name" of a function of files to `tracers.requests.request_rows.RecordedRequests`, which may stand
    beside another recording of the same job.
    belongs: "module:name" of a function that tells whether an unknown file belongs to given files of this kind.
    """

    kind: str
    pattern: bytes
    what: str
    remedy: str
    suffixes: tuple[str, ...] = ()
    tool: str = ""
    trace: str = ""
    recording: str = ""
    requests: str = ""
    profile: bool = False
    spans: str = ""
    belongs: str = ""

    def begins(self, head: bytes) -> bool:
        """Whether these are the first bytes of such a file."""
        return re.search(self.pattern, head, re.DOTALL) is not None


def reader(name: str) -> Any:
    """The function or class that the `trace`, `recording`, `requests`, `spans` or `belongs` of a source names.

    Imports its module only now, so that a merge imports no readers of other files.
    """
    module, _, attribute = name.partition(":")
    return getattr(import_module(f"dxt_replay.profiler_merge.{module}"), attribute)


def _source(kind: str, pattern: bytes, what: str, remedy: str, **reads: Any) -> Source:
    return Source(kind=kind, pattern=pattern, what=what, remedy=remedy, **reads)


DARSHAN = "darshan"
SOURCES = (
    _source(
        DARSHAN,
        rb"\A\d\.\d\d\0{4}(75d\0{5}|\0{5}d57)",
        "a Darshan log",
        _AS_LOG,
        tool="Darshan",
        recording="darshan_recording:DarshanRecording",
    ),
    _source("darshan text", rb"\A# darshan log version:|\A# \*+\n# DXT", "the text of darshan-parser",
            "its times lack digits. Give the .darshan log itself"),
    _source(
        "xplane",
        rb"\A\x0a[\x80-\xff]{0,9}[\0-\x7f](\x08.{1,9}?)?\x12.(/host:|/device:|Task Environment)",
        "a TensorFlow profile (XPlane)",
        _AS_PROFILE,
        tool="TensorFlow",
        profile=True,
    ),
    _source("marks", rb"\ADXTMARK\d", "the marks of a training", _AS_PROFILE, tool="dxt-replay", profile=True),
    _source("tfevents", rb"\A.{12,40}brain\.Event:", "a file of TensorBoard events",
            "it holds no profile. Give the folder that has plugins/profile in it, or an .xplane.pb file"),
    _source("overview", rb"type\.googleapis\.com/tensorflow\.profiler",
            "a summary that TensorFlow's profiler made (such as .input_pipeline.pb)",
            "it holds times per step and no events. Give the .xplane.pb file that it was made of, or leave it out"),
    _source("dftracer", rb'\A[\s\[]*\{"(id|name)".*"cat": ?"(dftracer|POSIX|STDIO|ai_framework)"', "a DFTracer trace",
            _AS_LOG, tool="DFTracer", trace="tracers.dftracer.dftracer_job:read_dftracer",
            spans="tracers.dftracer.dftracer_job:read_annotations"),
    _source("horovod", rb"\A\s*\[.*(CYCLE_START|NEGOTIATE_(ALL|BROAD)|Horovod(All|Broad)|start_time_since_epoch_in_)",
            "a Horovod timeline", _AS_PROFILE, tool="Horovod",
            spans="tracers.horovod_timeline:read_horovod"),
    _source("tensorflow trace", rb'\A\s*[\[{].*"/(host|device):[A-Z]', "a trace.json of TensorFlow's profiler",
            "give the .xplane.pb file beside it to `dxt-replay merge` as --profile, or this file where there is none",
            tool="TensorFlow", profile=True),
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
        "kineto",
        rb'\A\s*\{.*("(deviceProperties|distributedInfo|schemaVersion)":|ProfilerStep#|"aten::|'
        rb'"cat": ?"(cpu_op|user_annotation|[Kk]ernel|Operator|cuda_runtime|python_function)")',
        "a PyTorch profile (Kineto)",
        _AS_PROFILE,
        tool="PyTorch",
        profile=True,
    ),
    _source("chrome", rb'\A\s*[\[{].*"(traceEvents|ph)" ?:', "a trace in Chrome's JSON format", _WITHOUT),
    _source(
        "strace",
        rb"\A(\[pid +\d+\] +|\d+ +)?("
        rb"\d+\.\d{3,9} (\w+\(|<\.\.\. \w+ resumed>|\+\+\+ |--- )|"
        rb"(\d\d:\d\d:\d\d(\.\d+)? )?(execve|openat|open|read|close|brk|mmap|newfstatat|fstat|access)\([^\n]*\) += )",
        "the output of strace",
        _AS_LOG,
        tool="strace",
        trace="tracers.strace.strace_job:read_strace",
        belongs="tracers.strace.strace_job:is_thread_file",
    ),
    _source("dftracer index", rb"\ASQLite format 3\0.*(LineOffsets|AccessPoints)", "DFTracer's index of a trace",
            "it holds no events. Give the .pfw.gz file beside it"),
    _source("requests", rb"\A# dxt-replay requests \d", "a log of requests to object stores", _AS_LOG,
            tool="dxt-replay", requests="tracers.requests.request_log:read_request_logs"),
    _source("s3dlio", rb"\A(#[^\n]*\n)*idx\tthread\top\tclient_id\t", "an operation log of s3dlio or warp", _AS_LOG,
            tool="s3dlio", requests="tracers.requests.op_log:read_op_logs"),
    _source("bpftrace", rb"\AAttaching \d+ probes?", "the output of bpftrace", _NO_OFFSETS),
    _source("perf", rb"\A\s*\d+\.\d+ \(\s*\d+\.\d+ ms\): ", "the output of perf trace",
            "its times have no date. Record with strace (-f -ttt -T -y) instead"),
    _source("recorder", rb'\A\s*\{"file_id":\[.*"proc_id":\[.*"tmid":\[', "an index of Recorder data", _NO_OFFSETS),
    _source("tar", rb"\A[^\0]{1,100}.{156,256}ustar[\0 ]", "an archive (tar)",
            "unpack it into an empty folder, as in `tar -xf FILE -C FOLDER`, and give that folder"),
    _source("zip", rb"\APK\x03\x04", "an archive (zip)",
            "unpack it into an empty folder, as in `unzip FILE -d FOLDER`, and give that folder"),
    _source("otf2", rb"\AOTF2|\A[BL#$]\0?OTF2", "a trace of Score-P (OTF2)", _NOT_READ, suffixes=(".otf2",)),
    _source("ctf", rb"\A(\xc1\x1f\xfc\xc1|\xc1\xfc\x1f\xc1|\x57\x1d\xd1\x75|\x75\xd1\x1d\x57|/\* CTF )",
            "a trace of LTTng or babeltrace (CTF)", _NOT_READ),
    _source("nsys", rb"\ASQLite format 3\0.*(CUPTI_ACTIVITY|NVTX_EVENTS|TARGET_INFO_)", "an export of Nsight Systems",
            _WITHOUT, suffixes=(".nsys-rep", ".qdrep")),
    _source("rocprof", rb"\ASQLite format 3\0.*(rocpd_|hsa_api)|\A\"?(Index\"?,\"?KernelName|Kind\"?,\"?Agent_Id|"
            rb"Name\"?,\"?Calls\"?,\"?TotalDurationNs)", "output of rocprof", _WITHOUT, suffixes=(".rpd",)),
    _source("chakra", rb"\A.\n.[01]\.\d\.\d", "an execution trace in Chakra's format",
            "it has no times of the training loop. Give the .pt.trace.json of torch.profiler instead"),
    _source("memory snapshot", rb"\A\x80[\x02-\x05].*(device_traces|segments)", "a memory snapshot of PyTorch",
            "it holds allocations and no events. Give the .pt.trace.json of torch.profiler instead"),
    _source("parquet", rb"\APAR1", "a Parquet file", "give the whole capture folder that it is a part of"),
)  # fmt: skip
"""The kinds in order: the first one whose pattern matches names the file."""

RECORDER = _source("recorder", rb"(?!)", "Recorder data as WisIO stores it", _NO_OFFSETS)
"""Kind whose column names are at the end of a Parquet file."""

BY_KIND = {source.kind: source for source in SOURCES}
RECORDINGS = tuple(source.kind for source in SOURCES if source.trace or source.recording or source.requests)
"""Kinds that hold the operations of a job."""
PROFILES = tuple(source.kind for source in SOURCES if source.profile)
"""Kinds of profiles of a rank, whose events become its spans."""
SPANS = tuple(source.kind for source in SOURCES if source.spans)
"""Kinds other than profiles that hold spans; some hold operations too."""
BESIDE = tuple(source.kind for source in SOURCES if source.kind not in RECORDINGS and (source.profile or source.spans))
"""Kinds that are useful only beside the operations of a job."""
