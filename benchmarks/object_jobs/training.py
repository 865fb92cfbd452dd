"""The training loop of the jobs: a DataLoader, a model, steps; what stands for an accelerator and a decoder sleeps.

    python -m benchmarks.object_jobs.training NAME ENDPOINT OUTPUT       (prints the seconds after the first steps)

NAME: a module of this folder with `loader(endpoint)`; its objects lie in BUCKET, and `objects()` yields them. It runs
under an interpreter with torch and the client, and leaves a Kineto trace in OUTPUT/profile.
"""

from __future__ import annotations

import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

BUCKET = "bucket"
REGION = "us-east-1"
STEP_S, DECODE_S = 0.02, 0.0008
EPOCHS = 2
SKIPPED = 8
"""First steps that no time counts: the workers import their clients meanwhile, whatever the store does."""


def decoded(content: bytes) -> Any:
    """A sample, after the time of its decoding."""
    import torch

    time.sleep(DECODE_S)
    return torch.tensor(list(content[:256]), dtype=torch.float32) / 256.0


def train(loader: Any, output: Path) -> float:
    """Train; seconds from the end of the first SKIPPED steps to that of the last one."""
    import torch

    from dxt_replay.profiler_merge.recording import recording

    torch.set_num_threads(1)
    model = torch.nn.Linear(256, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with recording(output / "profile"):
        number = begun = 0
        for _ in range(EPOCHS):
            for batch in loader:
                optimizer.zero_grad()
                model(batch).sum().backward()
                optimizer.step()
                time.sleep(STEP_S)
                number += 1
                if number == SKIPPED:
                    begun = time.monotonic_ns()
        ended = time.monotonic_ns()
    return (ended - begun) / 1e9


def main(name: str, endpoint: str, output: str) -> int:
    """Run a job."""
    job = import_module(f"benchmarks.object_jobs.{name}")
    print(train(job.loader(endpoint), Path(output)))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
