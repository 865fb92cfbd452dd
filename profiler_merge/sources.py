"""The kinds of files that a merge reads: the only list of sources.

To add one, write the module that reads it and give its row here a `trace` (the operations of a job), a `profile`
(events of one rank) or `spans` (spans beside a recording). Then add it to docs/recording.md; a test compares that page
with this table.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A kind of file.

    kind: its name in code and in capture.json, such as "kineto".
    pattern: regular expression of its first bytes.
    what: its name for people, with an article.
    tool: its writer, for messages.
    trace: "module:name" of a function that reads files, with globs of paths to leave out and of some to keep, as a
    `tracers.traced_job.TracedJob`. recording: if that does not suffice, "module:name" of a `recorded_job.Recording`
    made of files and `MergeOptions`.
    profile: whether it holds the events of one rank.
    spans: "module:name" of a function of files and the process ids of each rank to loops by rank.
    requests: "module:name" of a function of files to `tracers.requests.RecordedRequests`, which may stand
    beside another recording of the same job.
    belongs: "module:name" of a function that tells whether an unknown file belongs to given files of this kind.
    """

    kind: str
    pattern: bytes
    what: str
    tool: str
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


DARSHAN = "darshan"
SOURCES = (
    Source(
        kind=DARSHAN, what="a Darshan log", tool="Darshan", recording="darshan_recording:DarshanRecording",
        pattern=rb"\A\d\.\d\d\0{4}(75d\0{5}|\0{5}d57)",
    ),
    Source(
        kind="xplane", what="a TensorFlow profile (XPlane)", tool="TensorFlow", profile=True,
        pattern=rb"\A\x0a[\x80-\xff]{0,9}[\0-\x7f](\x08.{1,9}?)?\x12.(/host:|/device:|Task Environment)",
    ),
    Source(kind="marks", pattern=rb"\ADXTMARK\d", what="the marks of a training", tool="dxt-replay", profile=True),
    Source(
        kind="dftracer", what="a DFTracer trace", tool="DFTracer",
        trace="tracers.dftracer:read_dftracer", spans="tracers.dftracer:read_annotations",
        pattern=rb'\A[\s\[]*\{"(id|name)".*"cat": ?"(dftracer|POSIX|STDIO|ai_framework)"',
    ),
    Source(
        kind="kineto", what="a PyTorch profile (Kineto)", tool="PyTorch", profile=True,
        # Neither an execution trace of PyTorch nor the trace.json that TensorFlow and JAX write beside an .xplane.pb.
        pattern=rb'\A\s*(\[\s*)?\{(?!\s*"schema":|.*"/(host|device):[A-Z])'
        rb'.*("(deviceProperties|distributedInfo|schemaVersion)":|ProfilerStep#|"aten::|'
        rb'"cat": ?"(cpu_op|user_annotation|[Kk]ernel|Operator|cuda_runtime|python_function)")',
    ),
    Source(
        kind="strace", what="the output of strace", tool="strace",
        trace="tracers.strace:read_strace", belongs="tracers.strace:is_thread_file",
        pattern=rb"\A(\[pid +\d+\] +|\d+ +)?("
        rb"\d+\.\d{3,9} (\w+\(|<\.\.\. \w+ resumed>|\+\+\+ |--- )|"
        rb"(\d\d:\d\d:\d\d(\.\d+)? )?(execve|openat|open|read|close|brk|mmap|newfstatat|fstat|access)\([^\n]*\) += )",
    ),
    Source(
        kind="requests", what="a log of requests to object stores", tool="dxt-replay",
        requests="tracers.requests:read_request_logs", pattern=rb"\A# dxt-replay requests \d",
    ),
    Source(
        kind="s3dlio", what="an operation log of s3dlio or warp", tool="s3dlio",
        requests="tracers.requests:read_op_logs", pattern=rb"\A(#[^\n]*\n)*idx\tthread\top\tclient_id\t",
    ),
)  # fmt: skip
"""The kinds in order: the first one whose pattern matches names the file."""

BY_KIND = {source.kind: source for source in SOURCES}
PROFILES = tuple(source.kind for source in SOURCES if source.profile)
"""Kinds of profiles of a rank, whose events become its spans."""
RECORDINGS = tuple(source.kind for source in SOURCES if not source.profile)
"""Kinds that hold the operations of a job."""
SPANS = tuple(source.kind for source in SOURCES if source.spans)
"""Kinds of recordings that hold spans too."""
