"""A finding for a benchmark's training: its figures, and whether they would count for MLPerf Storage. Pure.

The rules are those of MLPerf Storage v2.0 and v3.0 (mlcommons/storage, Submission_guidelines and the validation of
mlpstorage). A capture cannot show all of them; only those in this module are checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from dxt_replay.profiler_merge.analysis.analyse import Analysis
from dxt_replay.profiler_merge.analysis.benchmark_figures import BenchmarkFigures, benchmark_figures
from dxt_replay.profiler_merge.analysis.finding import Finding
from dxt_replay.profiler_merge.analysis.thresholds import MLPERF_LEAST_PCT
from dxt_replay.traces.benchmark_run import BenchmarkRun
from dxt_replay.traces.units import format_bytes, format_count

LEAST_STEPS = 500
"""Steps of an epoch for which the files must suffice."""

MEMORY_FACTOR = 5
"""Least size of the data set, as a multiple of the memory of all hosts."""

TUNABLE = frozenset(
    {
        "dataset.num_files_train", "dataset.num_subfolders_train", "dataset.data_folder", "reader.read_threads",
        "reader.computation_threads", "reader.transfer_size", "reader.prefetch_size", "checkpoint.checkpoint_folder",
        "storage.storage_type", "storage.storage_root",
    }
)  # fmt: skip
"""Keys that a closed submission may change; for unet3d `reader.odirect` too."""

_NAME = re.compile(r"([a-z0-9]+)_(a100|h100|b200|mi355)")


def benchmark(found: Analysis) -> Iterator[Finding]:
    """The figures of a benchmark's training, and whether it meets the rules of MLPerf Storage."""
    run = found.setting.benchmark
    if run is None or found.summary.loop is None:
        return
    figures = benchmark_figures(found.overlap.steps, run)
    if figures is None:
        return
    match = _NAME.fullmatch(run.workload)
    model = match[1] if match is not None else ""
    values = {
        "utilisation_pct": figures.utilisation_pct,
        "samples_per_s": figures.samples_per_s,
        "dlio_samples_per_s": figures.dlio_samples_per_s,
        "counted_steps": figures.steps,
    }
    evidence = _evidence(found, run, figures)
    if model not in MLPERF_LEAST_PCT:
        yield Finding(
            code="benchmark-figures",
            severity="info",
            title=f"Benchmark {run.workload}: accelerator utilisation {figures.utilisation_pct:.1f} %, "
            f"{figures.samples_per_s:,.4g} samples/s",
            evidence=evidence,
            threshold="none: MLPerf Storage has no such workload",
            remedy="Nothing to do: these are the figures that DLIO prints.",
            values=values,
        )
        return
    least = MLPERF_LEAST_PCT[model]
    broken = list(_broken_rules(found, run, model, figures, least))
    judged = "misses rules of" if broken else "meets the checked rules of"
    yield Finding(
        code="mlperf-storage",
        severity="warning" if broken else "info",
        title=f"{run.workload} {judged} MLPerf Storage: accelerator utilisation {figures.utilisation_pct:.1f} %, "
        f"{figures.samples_per_s:,.4g} samples/s",
        evidence=" ".join([evidence, *broken]),
        threshold=f"utilisation of at least {least:g} %, files for {LEAST_STEPS} steps, a data set of "
        f"{MEMORY_FACTOR} times the memory of all hosts, nothing in the page cache, no change but tunable keys",
        remedy="Generate with more files (dataset.num_files_train) or other tunable keys."
        if broken
        else "Compare the memory of the hosts with the size of the data set: a capture does not show it.",
        values={**values, "least_utilisation_pct": least},
    )


def _evidence(found: Analysis, run: BenchmarkRun, figures: BenchmarkFigures) -> str:
    size = run.files * run.samples_per_file * run.record_bytes
    sort = "replayed" if found.setting.cache is not None else "not run: its times are those of the assumed device"
    return (
        f"Counted: {format_count(figures.steps)} steps of each rank, {run.batch_size} samples a step; {sort}. "
        f"{format_bytes(int(figures.samples_per_s * run.record_bytes))}/s of records. The data set has "
        f"{format_count(run.files)} files, {format_bytes(int(size))}: enough if all hosts together have at most "
        f"{format_bytes(int(size / MEMORY_FACTOR))} of memory."
    )


def _broken_rules(
    found: Analysis, run: BenchmarkRun, model: str, figures: BenchmarkFigures, least: float
) -> Iterator[str]:
    """The rules that the run breaks, a sentence each."""
    if figures.utilisation_pct < least:
        yield f"Utilisation is below {least:g} %."
    needed = LEAST_STEPS * run.batch_size * found.summary.job.nprocs // max(run.samples_per_file, 1)
    if run.files < needed:
        yield f"{LEAST_STEPS} steps of all ranks need {format_count(needed)} files."
    cache = found.setting.cache
    if cache is not None and (cache.resident_before_pct or 0.0) > 0:
        yield f"{cache.resident_before_pct:.1f} % of the data were in the page cache before the run."
    allowed = {*TUNABLE, *(["reader.odirect"] if model == "unet3d" else [])}
    keys = [text.partition("=")[0].lstrip("+~").removeprefix("workload.") for text in run.overrides]
    others = sorted({key for key in keys if key not in allowed})
    if others:
        yield f"A closed submission may not change {', '.join(others)}."


RULES = (benchmark,)
