"""Spans beside a recording: DFTracer's annotations, on a Darshan log and on strace's output."""

import json

import pytest

from dxt_replay.profiler_merge.merge import MergeOptions, merge
from dxt_replay.traces.errors import ProfileError
from dxt_replay.traces.schema import SPAN_KINDS, codes
from dxt_replay.traces.store.reader import open_capture
from tests.darshan_writer import DxtRecord, JobSpec, write_dxt_log

START_S = 1_795_307_010
START_US = START_S * 1_000_000


def log(path, ranks=2):
    records = [DxtRecord(record_id=1 + rank, rank=rank, reads=[(0, 4096, 0.5, 0.6)]) for rank in range(ranks)]
    job = JobSpec(jobid=55, nprocs=ranks, start_s=START_S, start_ns=0, end_s=START_S + 10, end_ns=0)
    return write_dxt_log(path, records, dxt_version=1, names={1: b"/d/x", 2: b"/d/y"}, job=job)


def spans_of(capture, kind):
    """(rank, start, end, step) in us."""
    spans = capture.spans.filter(codes(capture.spans, "kind") == SPAN_KINDS.index(kind))
    zero_us = capture.info.job.zero_ns // 1000 - START_US
    return [
        (row["rank"], row["start_ns"] // 1000 + zero_us, row["end_ns"] // 1000 + zero_us, row["step"])
        for row in spans.to_pylist()
    ]


def test_annotations_of_dftracer_beside_strace(tmp_path):
    trace = tmp_path / "run.strace"
    trace.write_text(
        f'100 {START_S}.000000 execve("/usr/bin/python", [...], 0x7) = 0 <0.0001>\n'
        f'100 {START_S}.001000 openat(AT_FDCWD</d>, "x", O_RDONLY) = 3</d/x> <0.0001>\n'
        f'100 {START_S}.002100 read(3</d/x>, ""..., 10) = 10 <0.0001>\n'
    )
    event = {"id": 1, "pid": 100, "tid": 100, "ph": "X", "args": {}}
    pfw = tmp_path / "a.pfw"
    pfw.write_text(
        "".join(
            json.dumps({**event, "name": name, "cat": cat, "ts": START_US + at, "dur": dur}) + "\n"
            for name, cat, at, dur in (
                ("start", "dftracer", 0, 0), ("fetch", "dataloader", 2000, 500), ("compute", "compute", 2600, 300),
                ("fetch", "dataloader", 3000, 100), ("compute", "compute", 3200, 300),
            )
        )
    )  # fmt: skip
    result = merge([trace], [pfw], tmp_path / "a.capture", MergeOptions())
    capture = open_capture(result.capture)
    assert spans_of(capture, "step") == [(0, 2000, 3000, 0), (0, 3000, 3500, 1)]
    (rows,) = capture.operations(0)
    assert rows["step"].to_pylist() == [-1, 0]
    assert [source.kind for source in result.info.sources] == ["strace", "dftracer"]


def test_a_trace_without_annotations_is_no_profile(tmp_path):
    plain = tmp_path / "a.pfw"
    start = {"id": 1, "name": "start", "cat": "dftracer", "pid": 1, "tid": 1, "ts": START_US, "ph": "X", "args": {}}
    plain.write_text(json.dumps(start))
    with pytest.raises(ProfileError, match="without annotations"):
        merge([log(tmp_path / "a.darshan", ranks=1)], [plain], tmp_path / "a.capture", MergeOptions())
