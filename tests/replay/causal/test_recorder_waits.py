"""Waits that the recording made are taken out: a job with such a wait is the job without it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import dxt_replay
from dxt_replay.traces.measures.log_waits import longest_log_wait_ns
from dxt_replay.traces.schema import CaptureInfo, Job
from dxt_replay.traces.store.reader import Capture
from tests.capture_builder import Span, build_capture, read

WAIT = (400, 900)


def job(folder: Path, name: str, wait_ns: int) -> Capture:
    """Four steps of 50 us: 20 us to read, then compute. Darshan writes a log before the third and after the last."""
    ops, spans, at = [], [], 0
    for step in range(4):
        begin = at
        if step == 2:
            at += wait_ns
        ops.append(read(0, length=4096, start_ns=at, end_ns=at + 20_000))
        spans += [
            Span("input_wait", begin, at + 20_000, step=step),
            Span("compute", at + 20_000, at + 50_000, step=step),
            Span("step", begin, at + 50_000, step=step),
        ]
        at += 50_000
    if wait_ns:
        spans.append(Span("input_wait", at, at + wait_ns, step=3))
    written = {"log_writing": [[0, 100_000, 100_000 + wait_ns], [0, at, at + wait_ns]]} if wait_ns else {}
    described = CaptureInfo(job=Job(nprocs=1, run_time_s=1.0), ranks=(0,), made_by=written)
    return build_capture(folder, ops=ops, files=["/a"], spans=spans, info=described, name=name)


def test_what_storage_costs_and_what_is_predicted_are_those_of_the_job_without_the_wait(tmp_path: Path) -> None:
    alone, recorded = job(tmp_path, "alone", 0), job(tmp_path, "recorded", 300_000)
    limits = [dxt_replay.storage_limit(capture) for capture in (alone, recorded)]
    assert [limit.recorded_ns for limit in limits] == [200_000, 200_000]
    assert limits[0] == limits[1]
    assert (longest_log_wait_ns(alone.info, alone.spans), longest_log_wait_ns(recorded.info, recorded.spans)) == (
        None,
        300_000,
    )
    loops = [dxt_replay.summary(capture).loop for capture in (alone, recorded)]
    assert loops[0] is not None
    assert loops[1] == dataclasses.replace(loops[0], recording_wait_s=300e-6)


def test_a_change_of_the_job_and_its_description_are_those_of_the_job_without_the_wait(tmp_path: Path) -> None:
    captures = [job(tmp_path, "alone", 0), job(tmp_path, "recorded", 300_000)]
    changed = [
        dxt_replay.transform(each, tmp_path / f"{number}.capture", compute_speed=2.0)
        for number, each in enumerate(captures)
    ]
    assert [each.after.elapsed_ns for each in changed] == [4 * (20_000 + 15_000)] * 2
    fitted = [dxt_replay.fit(each, tmp_path / "run.yaml", force=True).workload for each in captures]
    assert fitted[0] == fitted[1]
