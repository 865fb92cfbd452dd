"""Describes a plan of staging and its result, as lines for people and as JSON."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow.compute as pc

from dxt_replay.replay.target.stage_plan import StagePlan
from dxt_replay.replay.target.twin_files import TwinFiles
from dxt_replay.traces.text import printable
from dxt_replay.traces.units import NS_PER_S, format_bytes, format_count, format_counted, format_duration

LARGEST_SHOWN = 5
LEAST_MEASURED_S = 0.01


def describe(plan: StagePlan, *, dry_run: bool = True) -> list[str]:
    """The planned writes, one line for each fact, with the names of the largest files."""
    holes = f", {format_count(int(plan.sparse.sum()))} of them as holes" if plan.sparse.any() else ""
    verb, place = "Would write" if dry_run else "Writing", f"under {printable(plan.target)}"
    lines = [
        f"{verb} {format_counted(len(plan.to_write), 'file')} {place}: {format_bytes(plan.bytes_to_write)}{holes}"
        if len(plan.to_write)
        else f"Nothing to write {place}"
    ]
    largest = _largest(plan.to_write)
    lines += [f"  {format_bytes(size):>9}  {path}" for path, size in largest]
    if len(plan.to_write) > len(largest):
        lines.append(f"  and {format_count(len(plan.to_write) - len(largest))} more")
    for files, size, text in (
        (len(plan.already_staged), plan.already_staged.bytes, "there already"),
        (len(plan.mapped), sum(file.size for file in plan.mapped), "read from mapped data"),
    ):
        if files:
            lines.append(f"{format_counted(files, 'file')}, {format_bytes(size)}: {text}")
    if len(plan.created_by_run):
        made = f"{format_counted(len(plan.created_by_run), 'file')}, {format_bytes(plan.bytes_created_by_run)}"
        lines.append(f"{made}: only written by the program, so each replay makes them")
    lines += [f"{path} gets plain bytes instead of HDF5: {reason}" for path, reason in plan.plain_hdf5[:LARGEST_SHOWN]]
    if len(plan.plain_hdf5) > LARGEST_SHOWN:
        lines.append(f"  and {format_counted(len(plan.plain_hdf5) - LARGEST_SHOWN, 'more HDF5 file')}")
    if plan.shortage:
        lines.append(f"Does not fit: {plan.shortage}")
    elif plan.room.free_bytes is not None and dry_run:
        lines.append(f"{format_bytes(plan.room.free_bytes)} are free")
    return lines


def _largest(files: TwinFiles) -> list[tuple[str, int]]:
    """Path and size of the LARGEST_SHOWN largest files, the largest first; of equal ones the first by path."""
    if not len(files):
        return []
    least = np.partition(files.size, -min(LARGEST_SHOWN, len(files)))[-min(LARGEST_SHOWN, len(files))]
    larger = np.flatnonzero(files.size > least)
    equal = np.flatnonzero(files.size == least)
    equal = equal[pc.select_k_unstable(files.path.take(equal), LARGEST_SHOWN, [("", "ascending")]).to_numpy()]
    some = np.concatenate((larger, equal))
    found = zip(files.path.take(some).to_pylist(), files.size[some].tolist(), strict=True)
    return sorted(found, key=lambda file: (-file[1], file[0]))[:LARGEST_SHOWN]


def describe_done(plan: StagePlan, seconds: float) -> str:
    """The result of staging in one line, without a rate if hardly any time passed."""
    if not len(plan.to_write):
        return "The twin is complete."
    files, size = format_counted(len(plan.to_write), "file"), format_bytes(plan.bytes_to_write)
    rate = f", {format_bytes(plan.bytes_to_write / seconds)}/s" if seconds >= LEAST_MEASURED_S else ""
    return f"Staged {files} under {printable(plan.target)}: {size} in {format_duration(seconds * NS_PER_S)}{rate}"


def as_json(plan: StagePlan) -> dict[str, Any]:
    """The plan as the object that `dxt-replay stage --json` prints; paths are below `target`."""
    return {
        "target": printable(plan.target),
        "to_write": [
            {"path": path, "size_bytes": size, "sparse": sparse}
            for path, size, sparse in zip(
                plan.to_write.path.to_pylist(), plan.to_write.size.tolist(), plan.sparse.tolist(), strict=True
            )
        ],
        "already_staged": {"files": len(plan.already_staged), "bytes": plan.already_staged.bytes},
        "created_by_run": plan.created_by_run.path.to_pylist(),
        "bytes_created_by_run": plan.bytes_created_by_run,
        "plain_hdf5": [{"path": path, "reason": reason} for path, reason in plan.plain_hdf5],
        "mapped": {"files": len(plan.mapped), "bytes": sum(file.size for file in plan.mapped)},
        "bytes_to_write": plan.bytes_to_write,
        "free_bytes": plan.room.free_bytes,
        "fits": plan.shortage is None,
    }
