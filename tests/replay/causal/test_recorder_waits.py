"""Waits that the recording made are taken out: a job with such a wait is the job without it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

import dxt_replay
from dxt_replay.replay.causal.paced_ranks import batch_without, recorder_waits, spans_without
from dxt_replay.replay.plan.plan_row import OperationBatch
from dxt_replay.traces.measures.intervals import Intervals
from dxt_replay.traces.measures.log_waits import longest_log_wait_ns
from dxt_replay.traces.schema import CaptureInfo, Job
from dxt_replay.traces.store.reader import Capture
from tests.capture_builder import Span, build_capture, read, spans_table

WAIT = (400, 900)


def batch(*times: tuple[int, int]) -> OperationBatch:
    begins, ends = np.array(times, dtype=np.int64).T
    zeros = np.zeros(len(times), dtype=np.int64)
    return OperationBatch(lane=zeros, op=zeros, file_id=zeros, length=zeros, start_ns=begins, end_ns=ends)


def info(**changes: Any) -> Any:
    made_by = {"log_writing": [[0, *WAIT], [0, 450, 700], [1, 0, 5000]]}
    return SimpleNamespace(**{"made_by": made_by, "dependencies": "inferred", **changes})


def shifted(times: np.ndarray) -> np.ndarray:
    """Times of a job without the wait, as a job with it would have them."""
    return np.where(times >= WAIT[0], times + WAIT[1] - WAIT[0], times)


def test_a_job_with_the_wait_is_the_job_without_it() -> None:
    alone = batch((10, 90), (120, 300), (420, 500), (640, 800))
    recorded = dataclasses.replace(alone, start_ns=shifted(alone.start_ns), end_ns=shifted(alone.end_ns))
    spans = [Span("compute", 300, 390), Span("input_wait", 390, 410), Span("compute", 410, 600)]
    seen = [
        dataclasses.replace(
            each, start_ns=int(shifted(np.array(each.start_ns))), end_ns=int(shifted(np.array(each.end_ns)))
        )
        for each in spans
    ]
    waits = recorder_waits(info(), 0, spans_table(seen), iter([recorded]), 0)
    assert (waits.starts.tolist(), waits.ends.tolist()) == ([400], [900])
    found = batch_without(waits, recorded)
    assert found.start_ns.tolist() == alone.start_ns.tolist()
    assert found.end_ns.tolist() == alone.end_ns.tolist()
    assert spans_without(waits, spans_table(seen)).equals(spans_table(spans))


def test_what_goes_on_meanwhile_is_no_wait() -> None:
    spans = spans_table([Span("compute", 500, 600), Span("input_wait", 300, 1000)])
    waits = recorder_waits(info(), 0, spans, iter([batch((650, 700)), batch((850, 2000))]), 420)
    assert list(zip(waits.starts.tolist(), waits.ends.tolist(), strict=True)) == [(420, 500), (600, 650), (700, 850)]


def test_work_that_no_span_covers_is_no_wait() -> None:
    """Plain Python between two steps, or any time where the profile shows no input waits."""
    none = spans_table([Span("step", 0, 2000)])
    assert not len(recorder_waits(info(), 0, none, iter([]), 0))
    some = spans_table([Span("input_wait", 0, 500)])
    assert recorder_waits(info(), 0, some, iter([]), 0).ends.tolist() == [500]


def test_without_evidence_nothing_is_taken_out() -> None:
    spans = spans_table([])
    assert not len(recorder_waits(info(made_by={}), 0, spans, iter([]), 0))
    assert not len(recorder_waits(info(dependencies="known"), 0, spans, iter([]), 0))
    assert spans_without(Intervals(), spans) is spans


def job(folder: Path, name: str, wait_ns: int) -> Capture:
    """Four steps of 50 us: 20 us to read, then compute. Before the third, Darshan writes a worker's log."""
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
    written = {"log_writing": [[0, 100_000, 100_000 + wait_ns]]} if wait_ns else {}
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
