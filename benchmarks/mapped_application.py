"""A small PyTorch job that reads its input through mappings: token windows, shards of tensors, Arrow rows.

It runs under an interpreter that has torch and what the input needs: safetensors for `tensors`, pyarrow or Hugging
Face's datasets for `arrow`. What stands for an accelerator sleeps.

    python -m benchmarks.mapped_application CONFIG.json    (prints the seconds of the training loop)
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TOKENS, WINDOW = 32 << 20, 1024
SHARDS, TENSORS, TENSOR_BYTES = 12, 4, 512 << 10
ROWS, ROW_BYTES, ROWS_IN_BATCH = 2048, 16 << 10, 64


@dataclass(frozen=True, slots=True, kw_only=True)
class MappedTraining:
    """What is trained.

    data: `tokens` (random windows of a mapped array, mapped anew for each batch, as nanoGPT does), `tensors` (a
    safetensors file a step), `arrow` (random rows of an Arrow file, by Hugging Face's datasets).
    """

    data: str = "tokens"
    steps: int = 24
    batch: int = 8
    compute_ns: int = 20_000_000

    def write(self, folder: Path) -> None:
        """Make the data set."""
        import numpy as np

        rng = np.random.default_rng(5)
        if self.data == "tokens":
            (folder / "train.bin").write_bytes(rng.integers(0, 50_000, TOKENS, dtype=np.uint16).tobytes())
        elif self.data == "tensors":
            from safetensors.numpy import save_file

            for shard in range(SHARDS):
                made = {f"t{i}": rng.integers(0, 255, TENSOR_BYTES, dtype=np.uint8) for i in range(TENSORS)}
                save_file(made, str(folder / f"shard-{shard:02d}.safetensors"))
        else:
            import pyarrow as pa

            schema = pa.schema([("text", pa.binary())])
            with pa.OSFile(str(folder / "rows.arrow"), "wb") as file, pa.ipc.new_stream(file, schema) as out:
                for _ in range(ROWS // ROWS_IN_BATCH):
                    out.write_batch(pa.record_batch([[rng.bytes(ROW_BYTES) for _ in range(ROWS_IN_BATCH)]], schema))


def train(training: MappedTraining, folder: Path, output: Path) -> float:
    """Train on the data set in `folder`, with a profile in `output`; seconds of the training loop."""
    import torch

    from dxt_replay.profiler_merge.recording import recording

    torch.set_num_threads(1)
    fetch = _READERS[training.data](training, folder)
    model = torch.nn.Linear(256, 16)
    begun = time.monotonic()
    with recording(output / "profile") as run:
        begun = time.monotonic()
        for number in range(training.steps):
            batch = fetch(number)
            with run.step():
                model(batch).sum().backward()
                time.sleep(training.compute_ns / 1e9)
        seconds = time.monotonic() - begun
    return seconds


def _tokens(training: MappedTraining, folder: Path) -> Callable[[int], Any]:
    import numpy as np
    import torch

    rng, path = np.random.default_rng(7), folder / "train.bin"

    def fetch(number: int) -> Any:
        places = rng.integers(0, TOKENS - WINDOW - 1, training.batch)
        data = np.memmap(path, dtype=np.uint16, mode="r")
        rows = [data[place : place + 1 + WINDOW].astype(np.int64) for place in places]
        return torch.from_numpy(np.stack(rows)[:, :256]).float()

    return fetch


def _tensors(training: MappedTraining, folder: Path) -> Callable[[int], Any]:
    from safetensors.torch import load_file

    def fetch(number: int) -> Any:
        path = folder / f"shard-{number % SHARDS:02d}.safetensors"
        return sum(tensor.clone()[:256].float() for tensor in load_file(path).values())[None, :]

    return fetch


def _arrow(training: MappedTraining, folder: Path) -> Callable[[int], Any]:
    import numpy as np
    import torch
    from datasets import Dataset
    from datasets.table import MemoryMappedTable

    rng, path = np.random.default_rng(7), str(folder / "rows.arrow")
    data = None

    def fetch(number: int) -> Any:
        nonlocal data
        if data is None:
            data = Dataset(MemoryMappedTable.from_file(path), fingerprint="rows")
        rows = [data[int(place)]["text"] for place in rng.integers(0, ROWS, training.batch)]
        return torch.stack([torch.frombuffer(bytearray(row), dtype=torch.uint8)[:256].float() for row in rows])

    return fetch


_READERS: dict[str, Callable[[MappedTraining, Path], Callable[[int], Any]]] = {
    "tokens": _tokens, "tensors": _tensors, "arrow": _arrow,
}  # fmt: skip


def main(config: Path) -> None:
    """Train as a JSON file says: `training`, `folder`, `output`, or `write` alone."""
    chosen = json.loads(config.read_text(encoding="utf-8"))
    training = MappedTraining(**chosen["training"])
    if chosen.get("write"):
        training.write(Path(chosen["folder"]))
    else:
        print(train(training, Path(chosen["folder"]), Path(chosen["output"])))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
