"""A small job of several ranks that restores and saves with torch.distributed.checkpoint. What trains only sleeps.

It runs under torchrun with gloo. Each rank has its shards of some tensors, and writes its times to `output`.

    torchrun --nproc-per-node 2 -m benchmarks.checkpoint_application CONFIG.json
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

TENSORS = 4
FIRST = "first"
"""Folder of the checkpoint that the job begins with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointTraining:
    """background: saves by `async_save`; before a save begins, the one before it must have ended.
    bytes_in_all: of a checkpoint, over all ranks. save_every: steps from one save to the next."""

    background: bool = False
    bytes_in_all: int = 32 << 20
    steps: int = 12
    save_every: int = 4
    compute_ns: int = 100_000_000

    def saves(self, step: int) -> bool:
        """Whether this step, counted from 0, ends with a save."""
        return step % self.save_every == self.save_every - 1


def train(training: CheckpointTraining, folder: Path, output: Path) -> dict[str, Any]:
    """Restore from `folder`, train, and save there; seconds of the restore and of each step of this rank."""
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp

    from dxt_replay.profiler_merge.recording import recording

    state, group = _state(training), dist.new_group(backend="gloo")
    saving = None
    with recording(output / "profile") as run:
        begun = time.monotonic()
        dcp.load(state, checkpoint_id=folder / FIRST)
        restored = time.monotonic()
        ends = [restored]
        for step in range(training.steps):
            with run.step():
                time.sleep(training.compute_ns / 1e9)
                dist.barrier()
                if training.saves(step) and training.background:
                    if saving is not None:
                        saving.result()
                    saving = dcp.async_save(state, checkpoint_id=folder / f"step{step}", process_group=group)
                elif training.saves(step):
                    dcp.save(state, checkpoint_id=folder / f"step{step}")
            ends.append(time.monotonic())
        if saving is not None:
            saving.result()
    steps = [after - before for before, after in pairwise(ends)]
    return {"restore_s": restored - begun, "steps_s": steps}


def _state(training: CheckpointTraining) -> dict[str, Any]:
    import torch
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor, Shard, init_device_mesh

    ranks = dist.get_world_size()
    mesh, numbers = init_device_mesh("cpu", (ranks,)), training.bytes_in_all // (4 * TENSORS * ranks)
    shards = {f"tensor{i}": DTensor.from_local(torch.rand(numbers), mesh, [Shard(0)]) for i in range(TENSORS)}
    return {**shards, "step": torch.zeros(1)}


def main(config: Path) -> None:
    """Train as a JSON file says: `training`, `folder`, `output`; `write` makes the first checkpoint instead."""
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp

    chosen = json.loads(config.read_text(encoding="utf-8"))
    training, folder, output = CheckpointTraining(**chosen["training"]), Path(chosen["folder"]), Path(chosen["output"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    if chosen.get("write"):
        dcp.save(_state(training), checkpoint_id=folder / FIRST)
    else:
        found = json.dumps(train(training, folder, output))
        (output / f"rank{dist.get_rank()}.json").write_text(found, encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
