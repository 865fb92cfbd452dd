"""Spans beside a recording: Horovod's meetings and DFTracer's annotations, on a Darshan log and on strace's output."""

import json

import pytest

from dxt_replay.profiler_merge.merge import MergeOptions, merge
from dxt_replay.traces.errors import ProfileError
from dxt_replay.traces.schema import SPAN_KINDS, codes
from dxt_replay.traces.store.reader import open_capture
from tests.darshan_writer import DxtRecord, JobSpec, write_dxt_log
from tests.places import SHARED

START_S = 1_795_307_010
START_US = START_S * 1_000_000
SMALL = SHARED / "other-sources" / "horovod" / "horovod_timeline_small.json"


def log(path, ranks=2):
    records = [DxtRecord(record_id=1 + rank, rank=rank, reads=[(0, 4096, 0.5, 0.6)]) for rank in range(ranks)]
    job = JobSpec(jobid=55, nprocs=ranks, start_s=START_S, start_ns=0, end_s=START_S + 10, end_ns=0)
    return write_dxt_log(path, records, dxt_version=1, names={1: b"/d/x", 2: b"/d/y"}, job=job)


def meeting(tensor, begin, ready, start, end):
    """One allreduce of a tensor: when each rank was ready, when it started and ended, in us."""
    return [
        {"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": begin, "pid": tensor},
        *({"ph": "X", "name": str(rank), "ts": at, "pid": tensor, "dur": 0} for rank, at in enumerate(ready)),
        {"ph": "E", "ts": max(ready), "pid": tensor},
        {"ph": "B", "name": "ALLREDUCE", "ts": start, "pid": tensor},
        {"ph": "B", "name": "NCCL_ALLREDUCE", "ts": start + 1, "pid": tensor},
        {"ph": "E", "ts": end - 1, "pid": tensor},
        {"ph": "E", "ts": end, "pid": tensor, "args": {"dtype": "float32"}},
    ]


def timeline(path, *events, start_us=START_US):
    first = {"name": "process_name", "ph": "M", "pid": 0, "args": {"start_time_since_epoch_in_micros": start_us}}
    # Until 0.20.1 the closing bracket is missing.
    path.write_text(
        "[\n" + ",\n".join(json.dumps(event) for event in ([first] if start_us else []) + [*events]) + ",\n"
    )
    return path


def spans_of(capture, kind):
    """(rank, start, end, step) in us."""
    spans = capture.spans.filter(codes(capture.spans, "kind") == SPAN_KINDS.index(kind))
    zero_us = capture.info.job.zero_ns // 1000 - START_US
    return [
        (row["rank"], row["start_ns"] // 1000 + zero_us, row["end_ns"] // 1000 + zero_us, row["step"])
        for row in spans.to_pylist()
    ]


def test_a_meeting_begins_for_a_rank_when_its_last_tensor_is_ready(tmp_path):
    path = timeline(
        tmp_path / "t.json",
        *meeting(1, 1000, [1000, 1200], 1250, 1500),
        *meeting(2, 1100, [1150, 1400], 1450, 1600),
        *meeting(1, 5000, [5300, 5000], 5350, 5400),
        {"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": 9000, "pid": 1},
    )
    result = merge([log(tmp_path / "a.darshan")], [path], tmp_path / "a.capture", MergeOptions())
    assert spans_of(open_capture(result.capture), "collective") == [
        (0, 1150, 1600, -1), (0, 5300, 5400, -1), (1, 1400, 1600, -1), (1, 5000, 5400, -1),
    ]  # fmt: skip
    assert any("1 collectives had not ended" in text for text in result.info.warnings)
    assert [source.kind for source in result.info.sources] == ["darshan", "horovod"]


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
    meetings = timeline(tmp_path / "t.json", *meeting(1, 2900, [2950], 2960, 2990))
    result = merge([trace, meetings], [pfw], tmp_path / "a.capture", MergeOptions())
    capture = open_capture(result.capture)
    assert spans_of(capture, "step") == [(0, 2000, 3000, 0), (0, 3000, 3500, 1)]
    assert spans_of(capture, "collective") == [(0, 2950, 2990, 0)]
    (rows,) = capture.operations(0)
    assert rows["step"].to_pylist() == [-1, 0]
    assert [source.kind for source in result.info.sources] == ["strace", "dftracer", "horovod"]


def test_what_cannot_be_used(tmp_path):
    one = log(tmp_path / "a.darshan", ranks=1)

    def refused(path):
        with pytest.raises(ProfileError) as error:
            merge([one], [path], tmp_path / "a.capture", MergeOptions())
        return str(error.value)

    whole = meeting(1, 1000, [1000, 1200], 1250, 1500)
    assert "of 2 ranks, and the job has 1" in refused(timeline(tmp_path / "two.json", *whole))
    assert "without a date" in refused(timeline(tmp_path / "old.json", *whole, start_us=0))
    assert "without a finished collective" in refused(timeline(tmp_path / "none.json", *whole[:2]))
    plain = tmp_path / "a.pfw"
    start = {"id": 1, "name": "start", "cat": "dftracer", "pid": 1, "tid": 1, "ts": START_US, "ph": "X", "args": {}}
    plain.write_text(json.dumps(start))
    assert "without annotations" in refused(plain)
    if SMALL.exists():
        assert "without a date" in refused(SMALL)
