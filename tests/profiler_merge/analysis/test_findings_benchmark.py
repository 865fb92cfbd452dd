"""The figures of a benchmark's training, by hand, and the rules of MLPerf Storage."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from dxt_replay.profiler_merge.analysis.finding import Finding
from dxt_replay.profiler_merge.analysis.findings import findings
from dxt_replay.traces.errors import CaptureError
from dxt_replay.traces.records import BenchmarkRun, benchmark_run
from dxt_replay.traces.schema import CaptureInfo, Job
from dxt_replay.traces.store.reader import Capture
from tests.capture_builder import Span, build_capture, read

S = 1_000_000_000
RUN = BenchmarkRun(
    workload="unet3d_h100",
    overrides=(),
    batch_size=7,
    record_bytes=140e6,
    files=14_000,
    samples_per_file=1,
    exclude_start_steps=1,
    exclude_end_steps=0,
    blocks=((1, 1, 4), (1, 5, 6), (2, 7, 10)),
)


def a_training(folder: Path, run: BenchmarkRun = RUN, *, wait_s: float = 0.1, **made_by: Any) -> Capture:
    """Two ranks, ten steps: a wait, 1 s of compute, and 0.1 s (rank 1: 0.2 s) at a barrier; step 4 ends in a
    checkpoint of 3 s. The first step of each block waits 2 s."""
    spans, ops = [], []
    for rank in range(2):
        now = 0
        for step in range(1, 11):
            begin, wait = now, round((2 if step in (1, 5, 7) else wait_s) * S)
            parts = [("input_wait", wait), ("compute", S), ("collective", (1 + rank) * S // 10)]
            parts += [("checkpoint", 3 * S)] if step == 4 else []
            for kind, lasts in parts:
                spans.append(Span(kind, now, now + lasts, rank=rank, step=step))
                now += lasts
            spans.append(Span("step", begin, now, rank=rank, step=step))
            ops.append(read(0, start_ns=begin, end_ns=begin + wait, length=8, rank=rank, step=step))
    job = Job(nprocs=2, run_time_s=now / S, metadata=run.as_metadata())
    info = CaptureInfo(job=job, ranks=(0, 1), made_by=made_by)
    return build_capture(folder, ops=ops, files=["/a"], spans=spans, info=info)


def found(capture: Capture) -> Finding:
    (only,) = [each for each in findings(capture) if each.code in ("mlperf-storage", "benchmark-figures")]
    return only


def test_the_utilisation_is_that_of_dlios_formula(tmp_path: Path) -> None:
    """A block of n steps lasts 2 s + 1 s + barrier, and (n - 1) times 0.1 s + 1 s + barrier; its first step's wait and
    compute are left out, its barrier is not."""
    values = found(a_training(tmp_path)).values
    used = [
        ((3 / (3 * 1.1 + 4 * barrier)) * 3 + (1 / (1.1 + 2 * barrier)) * 1) / 4 / 2 + (3 / (3 * 1.1 + 4 * barrier)) / 2
        for barrier in (0.1, 0.2)
    ]
    assert values["utilisation_pct"] == pytest.approx(100 * sum(used) / 2)
    assert values["counted_steps"] == 7
    assert values["samples_per_s"] == pytest.approx(7 * sum(used))
    dlio = [(2 / (5.3 + 1 + 4 * barrier + 0) * 3 / 4 + 0 + 2 / (5.3 + 1 + 4 * barrier)) / 2 for barrier in (0.1, 0.2)]
    assert values["dlio_samples_per_s"] == pytest.approx(7 * sum(dlio))


def test_a_run_that_meets_what_is_checked(tmp_path: Path) -> None:
    run = dataclasses.replace(RUN, exclude_start_steps=1, overrides=("dataset.num_files_train=14000",))
    finding = found(a_training(tmp_path, dataclasses.replace(run, workload="cosmoflow_a100"), wait_s=0.001))
    assert (finding.code, finding.severity) == ("mlperf-storage", "info")
    assert "meets the checked rules" in finding.title
    assert "at most 365 GiB of memory" in finding.evidence


@pytest.mark.parametrize(
    ("changes", "broken"),
    [
        ({"files": 6_999}, "500 steps of all ranks need 7,000 files."),
        (
            {"overrides": ("++workload.train.epochs=1", "reader.odirect=true")},
            "may not change train.epochs.",
        ),
        ({"workload": "resnet50_h100", "overrides": ("reader.odirect=true",)}, "may not change reader.odirect."),
        ({}, "Utilisation is below 90 %."),
    ],
)
def test_a_rule_that_is_missed_is_named(tmp_path: Path, changes: dict[str, Any], broken: str) -> None:
    finding = found(a_training(tmp_path, dataclasses.replace(RUN, **changes), wait_s=0.5))
    assert (finding.code, finding.severity) == ("mlperf-storage", "warning")
    assert broken in finding.evidence


def test_a_warm_cache_of_a_replay_is_named(tmp_path: Path) -> None:
    result = {"cache": {"policy": "as found", "resident_before_pct": 12.5}}
    finding = found(a_training(tmp_path, command="run", pace="steps", result=result))
    assert "12.5 % of the data were in the page cache before the run." in finding.evidence
    assert "replayed" in finding.evidence


def test_another_workload_has_figures_and_no_rules(tmp_path: Path) -> None:
    finding = found(a_training(tmp_path, dataclasses.replace(RUN, workload="mine.yaml")))
    assert (finding.code, finding.severity) == ("benchmark-figures", "info")


def test_a_recording_has_none(tmp_path: Path) -> None:
    capture = build_capture(tmp_path, ops=[read(0)], files=["/a"], spans=[Span("step", 0, S, step=0)])
    assert not [each for each in findings(capture) if each.code in ("mlperf-storage", "benchmark-figures")]


def test_what_lies_in_the_metadata_comes_back_or_is_damaged() -> None:
    def info(metadata: dict[str, str]) -> CaptureInfo:
        return CaptureInfo(job=Job(nprocs=1, run_time_s=1, metadata=metadata), ranks=(0,))

    assert benchmark_run(info(RUN.as_metadata())) == RUN
    assert benchmark_run(info({"lib_ver": "3.4"})) is None
    for text in ("", "[]", "{}", RUN.as_metadata()["benchmark"].replace("7,", "-7,"), "[" * 100_000):
        with pytest.raises(CaptureError, match="damaged"):
            benchmark_run(info({"benchmark": text}))
