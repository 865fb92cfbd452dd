"""A summary of each shipped workload: its data, its compute time, and the bandwidth that one accelerator needs."""

from __future__ import annotations

from dataclasses import dataclass

from dxt_replay.workloads.data_set_files import data_set_files, record_length
from dxt_replay.workloads.workload_source import SHIPPED, read_workload, shipped_names


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedWorkload:
    """A shipped workload. Without training (checkpoints alone), `format` is empty and the later fields are 0 or None.

    compute_s: mean computation time of a step. needs_bytes_per_s: batch size * record length / compute_s, the rate at
    which a rank that never waits reads; None without computation.
    """

    name: str
    title: str
    format: str
    files: int
    bytes: int
    batch_size: int
    compute_s: float
    needs_bytes_per_s: float | None


def shipped_workloads() -> tuple[ListedWorkload, ...]:
    """All shipped workloads, by name."""
    return tuple(_listed(name) for name in shipped_names())


def _listed(name: str) -> ListedWorkload:
    workload = read_workload(name).workload
    with (SHIPPED / f"{name}.yaml").open(encoding="utf-8") as file:
        title = file.readline().lstrip("# ").rstrip("\n.")
    trains = workload.workflow.train
    files = data_set_files(workload) if trains else None
    sets = [] if files is None else [files.train, *([files.evaluation] if workload.workflow.evaluation else [])]
    step_bytes = workload.reader.batch_size * record_length(workload.dataset)
    compute_s = workload.train.computation_time.mean_s if trains else 0.0
    return ListedWorkload(
        name=name,
        title=title,
        format=workload.dataset.format if trains else "",
        files=sum(map(len, sets)),
        bytes=sum(each.total_bytes for each in sets),
        batch_size=workload.reader.batch_size if trains else 0,
        compute_s=compute_s,
        needs_bytes_per_s=step_bytes / compute_s if compute_s else None,
    )
