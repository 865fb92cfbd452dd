"""The benchmark facts of a generated training, for the figures of DLIO and of MLPerf Storage. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from dxt_replay.traces.benchmark_run import BenchmarkRun
from dxt_replay.workloads.data_set_files import record_length
from dxt_replay.workloads.description import Workload
from dxt_replay.workloads.generate.run_plan import Pass, RunPlan


def benchmark_facts(workload: Workload, plan: RunPlan) -> BenchmarkRun | None:
    """The training that a workload's plan contains; None if it contains none."""
    blocks = tuple(_blocks(plan))
    if not blocks:
        return None
    return BenchmarkRun(
        workload=workload.source.name,
        overrides=workload.source.overrides,
        batch_size=workload.reader.batch_size,
        record_bytes=record_length(workload.dataset),
        files=workload.dataset.num_files_train,
        samples_per_file=workload.dataset.num_samples_per_file,
        exclude_start_steps=workload.metric.exclude_start_steps,
        exclude_end_steps=workload.metric.exclude_end_steps,
        blocks=blocks,
    )


def _blocks(plan: RunPlan) -> Iterator[tuple[int, int, int]]:
    """The training steps as `BenchmarkRun.blocks`: a checkpoint, or the end of an epoch, ends a block."""
    for segment in plan.segments:
        if isinstance(segment, Pass) and not segment.evaluation and segment.steps:
            ends = sorted({*(done for done, _ in segment.saves), segment.steps})
            for begin, end in zip([0, *ends], ends, strict=False):
                yield segment.epoch, segment.first_step + begin, segment.first_step + end - 1
