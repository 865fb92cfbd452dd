"""The description of a benchmark's training, stored in its capture and in replays of it; benchmark figures need it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

import msgspec

from dxt_replay.traces.errors import CaptureError
from dxt_replay.traces.schema import CaptureInfo

BENCHMARK = "benchmark"
"""Key of `Job.metadata` that holds the run, as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkRun:
    """One training of a benchmark in the manner of DLIO.

    workload: name of its description. overrides: `KEY=VALUE` given beside it.
    batch_size: samples of a rank's step. record_bytes: mean length of a sample. files, samples_per_file: of training.
    exclude_start_steps, exclude_end_steps: of each block, left out of the accelerator utilisation.
    blocks: (epoch, first step, last step) of each stretch of training steps without a checkpoint between.
    """

    workload: str
    overrides: tuple[str, ...]
    batch_size: int
    record_bytes: float
    files: int
    samples_per_file: int
    exclude_start_steps: int
    exclude_end_steps: int
    blocks: tuple[tuple[int, int, int], ...]

    def as_metadata(self) -> dict[str, str]:
        """The run as it lies in `Job.metadata`."""
        return {BENCHMARK: json.dumps(asdict(self))}


def benchmark_run(info: CaptureInfo) -> BenchmarkRun | None:
    """The run of a benchmark that a capture shows; None for any other. Raises: CaptureError where it is damaged."""
    if BENCHMARK not in info.job.metadata:
        return None
    try:
        run = msgspec.json.decode(info.job.metadata[BENCHMARK], type=BenchmarkRun)
        if min(run.batch_size, run.exclude_start_steps, run.exclude_end_steps, run.files, run.samples_per_file) < 0:
            raise ValueError("a number below 0")
        return run
    except (ValueError, RecursionError) as error:
        raise CaptureError(
            f"capture.json is damaged: the benchmark in its metadata cannot be read ({error}); copy or make the "
            "capture again"
        ) from error
