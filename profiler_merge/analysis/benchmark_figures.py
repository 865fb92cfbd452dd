"""The figures that DLIO and MLPerf Storage compute for a training, from its steps. Pure.

A block is the steps of one rank between two checkpoints. Its accelerator utilisation is the compute of the counted
steps, divided by the time of the block without the batch fetches and compute of the steps left out. Waits at barriers
count as time. An epoch is the mean over its blocks, weighted by steps; then come the mean over ranks and over epochs.
Source: DLIO v2.0, utils/statscounter.py.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dxt_replay.traces.records import BenchmarkRun
from dxt_replay.traces.units import NS_PER_S

_COLUMNS = ("rank", "step", "start_ns", "duration_ns", "compute_ns", "input_wait_ns", "checkpoint_ns")


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkFigures:
    """The performance of a training.

    utilisation_pct: accelerator utilisation. samples_per_s: of the counted steps, sum of the ranks, mean of the epochs.
    dlio_samples_per_s: as DLIO prints it; its formula leaves out two steps but no time.
    steps: counted, of a rank.
    """

    utilisation_pct: float
    samples_per_s: float
    dlio_samples_per_s: float
    steps: int


def benchmark_figures(steps: pa.Table, run: BenchmarkRun) -> BenchmarkFigures | None:
    """The figures of a training, from its table of steps (`step_times.STEPS_SCHEMA`).

    Leaves out blocks without a counted step, and those that the capture shows only in part. None if no block is left.
    """
    columns = {name: steps[name].to_numpy() for name in _COLUMNS}
    blocks: dict[tuple[int, int], list[tuple[float, ...]]] = defaultdict(list)
    for rank in np.unique(columns["rank"]).tolist():
        of_rank = columns["rank"] == rank
        mine = {name: values[of_rank] for name, values in columns.items()}
        for epoch, first, last in run.blocks:
            chosen = (mine["step"] >= first) & (mine["step"] <= last)
            if chosen.sum() == last - first + 1:
                found = _block({name: values[chosen] for name, values in mine.items()}, run)
                if found is not None:
                    blocks[epoch, rank].append(found)
    if not blocks:
        return None
    by_epoch: dict[int, list[np.ndarray]] = defaultdict(list)
    counted: dict[int, int] = defaultdict(int)
    for (epoch, rank), found_blocks in blocks.items():
        rows = np.array(found_blocks)
        by_epoch[epoch].append(np.average(rows[:, 1:], axis=0, weights=rows[:, 0]))
        counted[rank] += int(rows[:, 0].sum())
    used = np.mean([np.mean(found, axis=0)[0] for found in by_epoch.values()])
    rates = np.mean([np.sum(found, axis=0)[1:] for found in by_epoch.values()], axis=0)
    return BenchmarkFigures(
        utilisation_pct=100.0 * float(used),
        samples_per_s=float(rates[0]),
        dlio_samples_per_s=float(rates[1]),
        steps=max(counted.values()),
    )


def _block(steps: dict[str, np.ndarray], run: BenchmarkRun) -> tuple[float, float, float, float] | None:
    """Counted steps, utilisation, samples per second, and samples per second by DLIO's formula, for a block's steps in
    order."""
    order = np.argsort(steps["start_ns"], kind="stable")
    number = len(order)
    counted = order[run.exclude_start_steps : number - run.exclude_end_steps]
    left_out = np.setdiff1d(order, counted)
    last = order[-1]
    # A checkpoint lies at the end of its step, outside of the block.
    end_ns = steps["start_ns"][last] + steps["duration_ns"][last] - steps["checkpoint_ns"][last]
    block_ns = int(end_ns - steps["start_ns"][order[0]])
    time_ns = block_ns - int((steps["input_wait_ns"] + steps["compute_ns"])[left_out].sum())
    if not len(counted) or time_ns <= 0:
        return None
    samples = run.batch_size * NS_PER_S
    return (
        float(len(counted)),
        float(steps["compute_ns"][counted].sum() / time_ns),
        len(counted) * samples / time_ns,
        max(number - 2, 0) * samples / block_ns,
    )
