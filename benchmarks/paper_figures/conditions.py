"""Conditions of a panel that the paper does not print: the file format, and the fitted times."""

from __future__ import annotations

from benchmarks.paper_figures.sweeps import Sweep
from dxt_replay.workloads.source import read_workload

HEAD = (
    "figure",
    "format here",
    "format there",
    "compute of a step, s",
    "preprocessing of a sample, s",
    "chosen to meet",
)


def conditions(sweep: Sweep) -> tuple[str, ...]:
    """The cells of HEAD; a time that only this panel has is marked with *."""
    base = read_workload(sweep.source).workload
    here = read_workload(sweep.source, sweep.overrides).workload
    times = (
        (base.train.computation_time, here.train.computation_time),
        (base.reader.preprocess_time, here.reader.preprocess_time),
    )
    return (
        sweep.figure,
        here.dataset.format,
        base.dataset.format,
        *(f"{there.mean_s:g}{'' if there == common else '*'}" for common, there in times),
        sweep.fitted_to or "nothing",
    )


def conditions_text(sweep: Sweep) -> str:
    """How a panel was made, in one line for its head."""
    return "; ".join(f"{name}: {cell}" for name, cell in zip(HEAD[1:], conditions(sweep)[1:], strict=True))
