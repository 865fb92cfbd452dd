"""A small PyTorch job that really reads: a DataLoader over files, records or shards, a model, checkpoints. For Darshan.

It runs under an interpreter that has torch, with Darshan preloaded, and leaves a Kineto trace; what stands for an
accelerator sleeps, so that two loaded cores do not decide the result.

    python -m benchmarks.torch_application CONFIG.json     (prints the seconds from the first batch to the last step)
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SAMPLE_BYTES = 98_304


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchTraining:
    """What is trained and how it reads.

    data: `files` (a whole file a sample), `records` (samples of a few files, drawn at random) or `shards` (streams of
    an iterable data set). workers: `num_workers`; 0 reads in the training thread. prefetch: `prefetch_factor`.
    decode_ns, compute_ns: for each sample in its worker, for each step.
    """

    data: str = "files"
    workers: int = 2
    prefetch: int = 2
    persistent: bool = False
    samples: int = 240
    batch: int = 8
    epochs: int = 2
    decode_ns: int = 800_000
    compute_ns: int = 20_000_000
    checkpoint_every: int = 25

    def paths(self, folder: Path) -> list[Path]:
        """The files of the data set."""
        count = {"files": self.samples, "records": 4, "shards": 8}[self.data]
        return [folder / f"{self.data}-{number:04d}.bin" for number in range(count)]

    def write(self, folder: Path) -> None:
        """Make the data set."""
        paths = self.paths(folder)
        for path in paths:
            with path.open("wb") as file:
                file.write(os.urandom(SAMPLE_BYTES * self.samples // len(paths)))
                file.flush()
                os.fsync(file.fileno())


def train(training: TorchTraining, folder: Path, output: Path) -> float:
    """Train on the data set in `folder`, with marks and checkpoints in `output`; seconds of the training loop."""
    import torch

    from dxt_replay.profiler_merge.recording import recording

    torch.set_num_threads(1)
    loader = _loader(training, folder)
    model = torch.nn.Linear(256, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    number = 0
    with recording(output / "profile"):
        begun = time.monotonic_ns()
        for _ in range(training.epochs):
            for batch in loader:
                optimizer.zero_grad()
                model(batch).sum().backward()
                optimizer.step()
                time.sleep(training.compute_ns / 1e9)
                number += 1
                if number % training.checkpoint_every == 0:
                    torch.save(model.state_dict(), output / "last.pt")
        ended = time.monotonic_ns()
    return (ended - begun) / 1e9


def _loader(training: TorchTraining, folder: Path) -> Any:
    from torch.utils.data import DataLoader

    makers = {"files": _files, "records": _records, "shards": _shards}
    data = makers[training.data](training, training.paths(folder))
    ahead = {"prefetch_factor": training.prefetch, "persistent_workers": training.persistent}
    return DataLoader(
        data,
        batch_size=training.batch,
        shuffle=training.data != "shards",
        num_workers=training.workers,
        **(ahead if training.workers else {}),
    )


def _decoded(training: TorchTraining, content: bytes) -> Any:
    import torch

    time.sleep(training.decode_ns / 1e9)
    return torch.tensor(list(content[:256]), dtype=torch.float32) / 256.0


def _files(training: TorchTraining, paths: list[Path]) -> Any:
    from torch.utils.data import Dataset

    class Files(Dataset):
        def __len__(self) -> int:
            return len(paths)

        def __getitem__(self, number: int) -> Any:
            return _decoded(training, paths[number].read_bytes())

    return Files()


def _records(training: TorchTraining, paths: list[Path]) -> Any:
    from torch.utils.data import Dataset

    files: dict[Path, int] = {}

    class Records(Dataset):
        def __len__(self) -> int:
            return training.samples

        def __getitem__(self, number: int) -> Any:
            place, path = divmod(number, len(paths))[0], paths[number % len(paths)]
            if path not in files:
                files[path] = os.open(path, os.O_RDONLY)
            return _decoded(training, os.pread(files[path], SAMPLE_BYTES, place * SAMPLE_BYTES))

    return Records()


def _shards(training: TorchTraining, paths: list[Path]) -> Any:
    from torch.utils.data import IterableDataset, get_worker_info

    class Shards(IterableDataset):
        def __iter__(self) -> Iterator[Any]:
            worker = get_worker_info()
            mine = paths if worker is None else paths[worker.id :: worker.num_workers]
            for path in mine:
                with path.open("rb", buffering=0) as file:
                    while content := file.read(SAMPLE_BYTES):
                        yield _decoded(training, content)

    return Shards()


def main(config: str) -> int:
    """Train as `config` says: JSON with `training`, `data` and `output`."""
    chosen = json.loads(Path(config).read_text(encoding="utf-8"))
    training, folder = TorchTraining(**chosen["training"]), Path(chosen["data"])
    print(train(training, folder, Path(chosen["output"])))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
